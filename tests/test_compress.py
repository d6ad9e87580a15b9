"""`compress`: the smallest model that keeps a score, for every task, and nothing where none keeps it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bothways
from bothways.compression.compress import compress
from bothways.compression.keep import Keep, is_loss, reaches
from bothways.compression.measure import Measure
from bothways.compression.steps import TABLE, Compressed, CompressionStep, smallest
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.predict.evaluation import evaluate
from bothways.predict.predictor import Predictor
from bothways.tasks.finetune import finetune
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import finetune_recipe
from bothways.text.tokenizer import Tokenizer
from helpers import config_for, make_loud, refused
from helpers.cli import Run, is_one_error
from helpers.tasks import base_model
from helpers.writing_verbs import texts

EXAMPLES = Path(__file__).parent.parent / "examples"
STEPS = ("run.steps=2", "run.evaluate_every=2")
STEP = CompressionStep("original", 2, 99, "", 100, 10, 5.0, 1.0, 0.9, 0.0, True)


def rows(path: Path, lines: list[str]) -> Path:
    """A table with a label that one word of a line decides, in two languages."""
    cells = [(line, "yes" if "cat" in line or "猫" in line else "no") for line in lines]
    path.write_text("text\tlabel\n" + "".join(f"{line}\t{label}\n" for line, label in cells), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A classifier of two layers that knows its word, and its data."""
    home = tmp_path_factory.mktemp("compress")
    train, dev = rows(home / "train.tsv", texts(160, 1)), rows(home / "dev.tsv", texts(60, 2))
    recipe = finetune_recipe(
        {
            "model": {"init": str(base_model(home / "base", tokenizer))},
            "data": {"train": [str(train)], "dev": [str(dev)]},
            "run": {"device": "cpu", "batch_size": 16, "steps": 160, "evaluate_every": 80},
            "optim": {"lr": 2e-3},
        }
    )
    found = finetune(recipe, home / "run")
    assert found.scores["accuracy"] > 0.8
    return home


def run_of(home: Path, out: Path, **options: Any) -> Compressed:
    """With few steps of distillation and two precisions."""
    usual: dict[str, Any] = {"train": home / "train.tsv", "dev": home / "dev.tsv", "settings": STEPS, "device": "cpu"}
    usual |= {"precisions": ("int8", "int4"), "vocabulary": "pruned"}
    return compress(home / "run", out, **{**usual, **options})


# ---------------------------------------------------------------------- the score to keep


@pytest.mark.parametrize(
    ("given", "score"), [("98%", 0.784), ("0.75", 0.75), (0.75, 0.75), ("100 %", 0.8), ("５０％", 0.4)]
)
def test_a_share_or_a_score(given: str | float, score: float) -> None:
    assert Keep.of(given).score(0.8, "accuracy") == pytest.approx(score)


@pytest.mark.parametrize(("given", "code"), [("a lot", "bad-number"), ("nan", "bad-number"), ("", "bad-number"), ("0%", "out-of-range"), ("101%", "out-of-range")])  # fmt: skip
def test_other_words_are_refused(given: str, code: str) -> None:
    with refused(code, given):
        Keep.of(given)


def test_a_share_of_nothing_is_refused() -> None:
    assert Keep.of(-0.5).score(-0.2, "spearman") == -0.5
    for score in (0.0, -0.2, float("nan")):
        with refused("no-share"):
            Keep.of("98%").score(score, "spearman")


def test_losses_are_kept_from_above() -> None:
    assert is_loss("mean_squared_error")
    assert not is_loss("accuracy")
    needed = Keep.of("50%").score(0.2, "mean_squared_error")
    assert needed == pytest.approx(0.4)
    assert reaches(0.39, needed, "mean_squared_error")
    assert not reaches(0.41, needed, "mean_squared_error")
    assert not reaches(0.89, 0.9, "accuracy")
    assert reaches(0.9 - 1e-12, 0.9, "accuracy")
    assert not reaches(float("nan"), -1.0, "spearman")


def test_the_smallest_that_keeps() -> None:
    steps = [STEP, replace(STEP, name="b", bytes=50), replace(STEP, name="c", bytes=50), replace(STEP, name="d", bytes=9, keeps=False)]  # fmt: skip
    assert smallest(steps).name == "b"


# ---------------------------------------------------------------------- what is tried and chosen


@pytest.fixture(scope="module")
def compressed(home: Path) -> Compressed:
    return run_of(home, home / "out", keep="70%")


def test_every_step_is_measured_and_the_smallest_that_keeps_is_written(home: Path, compressed: Compressed) -> None:
    names = [step.name for step in compressed.steps]
    assert names == ["original", "fewer pieces", "fewer pieces, int8", "fewer pieces, int4", "1 layer", "1 layer, int8", "1 layer, int4"]  # fmt: skip
    original, pruned = compressed.steps[:2]
    assert compressed.needed == pytest.approx(0.7 * original.score)
    assert all(step.keeps == (step.score >= compressed.needed) for step in compressed.steps)
    assert all(step.difference == step.score - original.score for step in compressed.steps)
    assert all(step.speed > 0 and step.texts_per_second > 0 for step in compressed.steps)
    assert original.speed == 1
    assert (pruned.score, pruned.layers) == (original.score, original.layers)
    assert pruned.bytes < original.bytes
    assert pruned.pieces < original.pieces
    least = min((step for step in compressed.steps if step.keeps), key=lambda step: step.bytes)
    assert compressed.best == least
    assert compressed.chosen not in ("original", "fewer pieces")


def test_the_folder_is_what_the_table_says(home: Path, compressed: Compressed) -> None:
    out, best = compressed.folder, compressed.best
    found = evaluate(home / "dev.tsv", out)
    assert found.scores[compressed.metric] == best.score
    assert found.examples == compressed.examples == 60
    assert found.labels == ("no", "yes")
    files = [file for file in out.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files if file.name not in ("README.md", TABLE)) == best.bytes
    table = json.loads((out / TABLE).read_text(encoding="utf-8"))
    assert {key: table[key] for key in compressed.as_table()} == json.loads(json.dumps(compressed.as_table()))
    assert (table["training data"], table["settings"]) == ("train.tsv: 160 rows", list(STEPS))
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "library_name: onnx" in card
    assert f"{compressed.best.pieces} of {compressed.steps[0].pieces} tokens" in card
    assert f"{compressed.best.name} (this model)" in card
    assert "×" not in card.split("## Compression")[1].split("## Usage")[0]  # speeds are those of a machine
    assert f'Predictor.load("{out.name}")' in card
    assert not [file for file in home.iterdir() if file.name.startswith(".")]


def test_with_fewer_pieces_all_answers_are_the_same(home: Path, tmp_path: Path) -> None:
    found = run_of(home, tmp_path / "out", keep="100%", layers=[0], precisions=())
    assert found.chosen == "fewer pieces"
    before, after = Predictor.load(home / "run"), Predictor.load(tmp_path / "out")
    lines = [*texts(60, 2), *texts(160, 1)]
    for one, other in zip(before(lines), after(lines), strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], abs=1e-6)
    others = ["unbelievable talkers read 法国 in berlin, zzz 1234 狗!", "walked"]
    old, new = (one.model.require_tokenizer() for one in (before, after))
    for line in others:
        unknown = [tokenizer(line).pieces.count("[UNK]") for tokenizer in (old, new)]
        assert unknown[1] <= unknown[0]


def test_a_score_may_be_named(home: Path, tmp_path: Path, compressed: Compressed) -> None:
    original = compressed.steps[0].score
    found = run_of(home, tmp_path / "out", keep=original, layers=[0], precisions=["int8"])
    assert found.needed == original
    assert found.best.score >= original
    assert found.best == min((step for step in found.steps if step.keeps), key=lambda step: step.bytes)
    loose = run_of(home, tmp_path / "out", keep="0.01", layers=[0], precisions=["int8"])  # in place of the first
    assert loose.best.bytes == min(step.bytes for step in loose.steps)
    assert evaluate(home / "dev.tsv", tmp_path / "out").scores["accuracy"] == loose.best.score


def test_pieces_of_new_texts_may_be_missing(home: Path, tmp_path: Path) -> None:
    """Where the training data lack the word that decides, the vocabulary stays whole, unless other texts have it."""
    lines = [line for line in texts(160, 1) if "cat" not in line and "paris" not in line]
    rows(tmp_path / "train.tsv", lines)
    said: list[str] = []
    options: dict[str, Any] = {"train": tmp_path / "train.tsv", "layers": [0], "precisions": (), "vocabulary": "auto"}
    found = run_of(home, tmp_path / "a", **options, say=said.append)
    assert found.unseen_pieces is not None
    assert found.unseen_pieces < found.needed
    assert [step.name for step in found.steps] == ["original"]
    assert any("the vocabulary stays whole" in line for line in said)
    assert (tmp_path / "a" / "model.safetensors").is_file()
    (tmp_path / "more.txt").write_text("the cat in paris\n" + "\n".join(texts(200, 3)), encoding="utf-8")
    found = run_of(home, tmp_path / "b", **options, texts=[tmp_path / "more.txt"])
    assert found.unseen_pieces == found.steps[0].score
    assert found.chosen == "fewer pieces"
    whole = run_of(home, tmp_path / "c", **{**options, "vocabulary": "whole"})
    assert (whole.unseen_pieces, len(whole.steps)) == (None, 1)


def test_a_student_has_the_labels_of_its_teacher(home: Path, tmp_path: Path) -> None:
    """The training data may lack some."""
    rows(tmp_path / "train.tsv", [line for line in texts(80, 4) if "cat" not in line and "猫" not in line])
    found = run_of(home, tmp_path / "out", train=tmp_path / "train.tsv", keep="1%", precisions=["int4"])
    assert found.chosen == "1 layer, int4"
    assert Predictor.load(tmp_path / "out").labels == ("no", "yes")


def test_chinese(home: Path, tmp_path: Path) -> None:
    lines = ["猫在中国", "北京的狗", "中国的首都是北京", "猫和狗", "法国的猫", "狗在北京"] * 4
    rows(tmp_path / "中文.tsv", lines)
    found = run_of(home, tmp_path / "小", train=tmp_path / "中文.tsv", dev=tmp_path / "中文.tsv", keep="90%")
    assert found.steps[1].score == found.steps[0].score
    assert found.steps[1].pieces < found.steps[0].pieces
    assert evaluate(tmp_path / "中文.tsv", tmp_path / "小").scores["accuracy"] == found.best.score
    before, after = (Predictor.load(folder).model.require_tokenizer() for folder in (home / "run", tmp_path / "小"))
    assert after("猫在北京").pieces == before("猫在北京").pieces
    assert {"猫", "北", "京"} <= set(after.pieces)
    assert "中文.tsv: 24 rows" in (tmp_path / "小" / "README.md").read_text(encoding="utf-8")


TASKS = {
    "several labels": ("classify", "multi", ("joy", "anger"), "emotions"),
    "regression": ("classify", "regression", ("score",), ""),
    "entities": ("tag", "", ("O", "B-PER", "I-PER"), "entities.conll"),
    "answers": ("answer", "", (), "questions.json"),
    "choices": ("choose", "", (), "choices.jsonl"),
    "pairs": ("score", "", ("score",), "pairs.jsonl"),
}


def test_pieces_of_the_development_data_stay(home: Path, tmp_path: Path) -> None:
    few = rows(tmp_path / "few.tsv", ["the cat", "a cat"])
    words = rows(tmp_path / "words.tsv", ["the dog runs", "a cat"])
    only: dict[str, Any] = {"train": few, "layers": [0], "precisions": ["int8"], "keep": "1%"}
    pieces = [run_of(home, tmp_path / dev.stem, dev=dev, **only).steps[1].pieces for dev in (few, words)]
    assert pieces[0] < pieces[1]


@pytest.mark.parametrize("name", TASKS)
def test_every_task(name: str, tmp_path: Path, tokenizer: Tokenizer) -> None:
    task, kind, labels, file = TASKS[name]
    lines = texts(12, 5)
    data = EXAMPLES / file
    if name == "regression":
        data = tmp_path / "numbers.tsv"
        cells = [f"{line}\t{0.5 * len(line):g}\n" for line in lines]
        data.write_text("text\tlabel\n" + "".join(cells), encoding="utf-8")
    elif name == "several labels":
        data = tmp_path / "labels.jsonl"
        cells = [json.dumps({"text": line, "labels": [["joy"], ["anger"], []][i % 3]}) for i, line in enumerate(lines)]
        data.write_text("\n".join(cells), encoding="utf-8")
    elif name == "entities":
        data = tmp_path / "tags.conll"
        cells = ["\n".join(f"{word} {'B-PER' if 'cat' in word else 'O'}" for word in line.split()) for line in lines]
        data.write_text("\n\n".join(cells), encoding="utf-8")
    tuned = with_task(load(base_model(tmp_path / "base", tokenizer)), config_for(task, kind), labels)
    make_loud(tuned, 2)
    save(tuned, tmp_path / "tuned")
    found = compress(
        tmp_path / "tuned", tmp_path / "out", train=data, dev=data, keep=-1.0, precisions=["int8"],
        vocabulary="pruned", settings=("run.steps=1",), device="cpu", long="cut",
    )  # fmt: skip
    assert [step.name for step in found.steps[1:]] == ["fewer pieces", "fewer pieces, int8", "1 layer", "1 layer, int8"]
    assert found.steps[1].score == pytest.approx(found.steps[0].score, abs=1e-6)
    assert found.chosen == "1 layer, int8"
    assert evaluate(data, tmp_path / "out").scores[found.metric] == found.best.score
    card = (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert ("| thresholds | " in card) == ("the thresholds were selected" in card) == (name == "several labels")


# ---------------------------------------------------------------------- refusals


def test_nothing_is_written_where_nothing_keeps(home: Path, tmp_path: Path, run: Run) -> None:
    files = ("--train", home / "train.tsv", "--dev", home / "dev.tsv")
    for keep in ("1.01", "98"):
        done = run("compress", home / "run", *files, "--out", tmp_path / "out", "--keep", keep)
        assert done.returncode == 1
        assert is_one_error(done.stderr.splitlines(keepends=True)[-1], "nothing keeps accuracy")
        assert not done.stdout
        assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*arguments: Any, **options: Any) -> Any:
        return replace(finetune(*arguments, **options), complete=False)

    monkeypatch.setattr("bothways.compression.students.finetune", stopped)
    said: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_of(home, tmp_path / "out", say=said.append)
    assert said[-1] == "stopped: nothing is written"
    assert not list(tmp_path.iterdir())


def test_folders_of_others_are_not_replaced(
    home: Path, compressed: Compressed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "run" / "model", tmp_path / "model")
    with refused("other-files"):
        run_of(home, tmp_path / "model")
    shutil.copytree(compressed.folder, tmp_path / "out")
    with refused("same-folder"):
        compress(home / "run", home / "run" / "model", train=home / "train.tsv", dev=home / "dev.tsv")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    monkeypatch.setattr(Measure, "__init__", lambda *_: pytest.fail("refused before anything is computed"))
    with refused("other-files"):
        run_of(home, tmp_path / "out")


def test_what_cannot_be_is_said_at_once(
    home: Path, tmp_path: Path, tokenizer: Tokenizer, compressed: Compressed
) -> None:
    (tmp_path / "unlabelled.tsv").write_text("text\tlabel\nthe cat\t\n")
    for options, code in (
        ({"layers": [2]}, "out-of-range"),
        ({"layers": [-1]}, "out-of-range"),
        ({"precisions": ["int2"]}, "unknown-choice"),
        ({"vocabulary": "half"}, "unknown-choice"),
        ({"keep": "most"}, "bad-number"),
        ({"dev": tmp_path / "nothing.tsv"}, "no-file"),
        ({"texts": [tmp_path / "nothing.txt"]}, "no-file"),
        ({"settings": ["run.stepz=2"]}, "unknown-key"),
        ({"train": tmp_path / "unlabelled.tsv"}, "no-labels"),
    ):
        with refused(code):
            run_of(home, tmp_path / "out", **options)
    with refused("no-task-head"):
        compress(home / "base", tmp_path / "out", train=home / "train.tsv", dev=home / "dev.tsv")
    with refused("exported-graph"):
        compress(compressed.folder, tmp_path / "out", train=home / "train.tsv", dev=home / "dev.tsv")
    vectors = with_task(load(home / "base"), config_for("embed"))
    save(vectors, tmp_path / "vectors")
    with refused("not-distillable"):
        compress(tmp_path / "vectors", tmp_path / "out", train=home / "train.tsv", dev=home / "dev.tsv")
    (tmp_path / "others.tsv").write_text("text\tlabel\nthe cat\tmaybe\nthe dog\tno\n")
    for which in ("train", "dev"):
        with refused("unknown-label", names="maybe"):
            run_of(home, tmp_path / "out", **{which: tmp_path / "others.tsv"})
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------- the command


def test_the_command(home: Path, tmp_path: Path, run: Run) -> None:
    out, words = tmp_path / "out", ("--train", home / "train.tsv", "--dev", home / "dev.tsv", "--keep", "80%")
    few = ("--layers", 0, "--precision", "int8", "--vocabulary", "pruned", "--device", "cpu")
    done = run("compress", home / "run", *words, *few, "--out", out)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert lines[0] == ["MB", "parameters", "speed", "accuracy", "difference", "kept"]
    assert [line[-1] for line in lines[2:]] == ["yes", "yes", "chosen"]
    assert "next: bothways predict FILE --model" in done.stderr
    again = run("compress", home / "run", *words, *few, "--out", out, "--json")
    told = json.loads(again.stdout)
    assert told["folder"] == str(out)
    assert told["chosen"] == "fewer pieces, int8"
    assert [step["name"] for step in told["steps"]] == ["original", "fewer pieces", "fewer pieces, int8"]
    predicted = run("predict", "the cat sleeps", "--model", out)
    assert predicted.returncode == 0
    assert run("compress", *words, "--out", out).returncode == 2
    assert bothways.compress is compress
