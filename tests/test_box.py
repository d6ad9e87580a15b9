"""The model in the box: what answers if no model is named, and how it is told apart. A small box stands in for it."""

import importlib.util
import json
import shutil
import tomllib
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.data.examples import Question, Text
from bothways.errors import BothwaysError
from bothways.model import box
from bothways.model.sentence import Normalize
from bothways.tasks.recipe import FinetuneModel, FinetuneRecipe, FinetuneRun
from bothways.text.tokenizer import Tokenizer
from bothways.train.settings import LoraSettings
from helpers import refused
from helpers.runs import calm, make_reader, recipe

CARD = Path(__file__).parents[1] / "docs/box.md"
LORA = LoraSettings(rank=2, targets=("all-linear",))
ADVICE = """
[model]
pooling = "mean"

[optim]
lr = 4e-4
layer_decay = 0.8

[run]
epochs = 5
"""


def maker() -> ModuleType:
    file = Path(__file__).parents[1] / "benchmarks/box.py"
    spec = importlib.util.spec_from_file_location("benchmark_box", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def small_box(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made as the real one: an encoder that fills masks, beside it moods and answers, and another encoder."""
    here, out = tmp_path_factory.mktemp("box"), tmp_path_factory.mktemp("runs")
    plan = calm(recipe(packed, steps=2))
    plan = replace(plan, model=replace(plan.model, family="modernbert"), objectives=("mlm",))
    reader = bothways.pretrain(plan, out / "en").folder
    moods = [Text(("I like it",), gold="glad"), Text(("I hate it",), gold="sad")]
    asked = [Question("q", "who likes it", "she likes it", (("she", 0),))]
    for name, task, examples in (("emotion", "classify", moods), ("answer", "answer", asked)):
        run = FinetuneRecipe(
            task, model=FinetuneModel(init=str(reader)), lora=LORA, run=FinetuneRun(steps=1, device="cpu")
        )
        bothways.finetune(run, out / name, train=examples)
    (reader / "finetune.toml").write_text(ADVICE)
    tasks = [(f"en-{name}", str(out / name / "adapter")) for name in ("emotion", "answer")]
    models = [("en", str(reader)), ("zh", str(reader))]
    tasks.append(("zh-emotion", str(out / "emotion/adapter")))
    maker().make(Namespace(model=models, task=tasks, card=[("en", str(CARD))], reads=[]), here)
    about = {
        "en": {"languages": ["English"], "about": "fills masks", "score": "CoLA 52"},
        "zh": {"languages": ["中文"]},
    }
    (here / "models.json").write_text(json.dumps(about))
    return here


@pytest.fixture
def filled(small_box: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(box, "BOX", small_box)
    return small_box


def test_it_is_made_in_16_bit_and_not_too_large(
    small_box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in small_box.glob("*/*.safetensors"):
        assert {tensor.dtype for tensor in load_file(file).values()} == {torch.float16}, file
    module = maker()
    monkeypatch.setattr(module, "MOST_BYTES", 50_000)
    with pytest.raises(SystemExit, match="too large"):
        module.make(Namespace(model=[("en", str(small_box / "en"))], task=[], card=[], reads=[]), tmp_path)
    assert "all" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="'fr', which the box does not have"):
        module.make(
            Namespace(model=[], task=[("fr-emotion", str(small_box / "en-emotion"))], card=[], reads=[]), tmp_path
        )


def run(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.stdout if code == 0 else str(done.exception or done.output)


def test_without_a_path_it_is_the_english_model(filled: Path) -> None:
    model = bothways.load()
    same = bothways.load(filled / "en").state_dict()
    assert all(torch.equal(tensor, same[name]) for name, tensor in model.state_dict().items())


def test_an_adapter_means_the_reader_beside_it(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is called so where somebody works."""
    expected = bothways.fill("she [MASK] it")
    other = bothways.load()
    with torch.no_grad():
        other.encoder.embeddings.tokens.weight.mul_(-1)
    bothways.save(other, tmp_path / "en")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert bothways.fill("she [MASK] it") == expected


def test_a_model_is_opened_by_its_name(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a folder is taken; a folder of that name goes before."""
    expected = bothways.fill("she [MASK] it", filled / "zh")
    assert bothways.fill("she [MASK] it", "zh") == expected
    shown = [json.loads(line) for line in run("fill", "she [MASK] it", "--model", "zh", "--json").splitlines()]
    assert [answer["text"] for answer in shown[0]] == [answer.text for answer in expected]
    assert bothways.finetune_recipe({"model": {"init": "zh"}}).model.init == str(filled / "zh")
    assert json.loads(run("info", "zh", "--json"))["folder"] == str(filled / "zh")
    assert "[CLS]" in run("vocab", "show", "she likes it", "--model", "zh")
    (tmp_path / "text.txt").write_text("she likes it\n")
    run("pack", str(tmp_path / "text.txt"), "--model", "zh", "--out", str(tmp_path / "packed"))
    assert bothways.boxed("emotion") == filled / "en-emotion"
    assert bothways.boxed("emotion", "zh") == bothways.boxed("zh-emotion") == filled / "zh-emotion"
    assert bothways.boxed("reader") == bothways.boxed("fill") == filled / "en"  # earlier names
    moods = bothways.Predictor.load("emotion")
    assert moods("I like it") == bothways.Predictor.load(filled / "en-emotion")("I like it")
    with refused("no-such-model", names="en, zh, answer, emotion"):
        bothways.boxed("fr")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zh").mkdir()
    with refused("not-a-model", names="zh"):
        bothways.load("zh")
    with refused("no-folder", names="fr"):
        bothways.load("fr")


def test_the_task_of_a_named_model(filled: Path) -> None:
    text = "I like it so much"
    (answer,) = [
        json.loads(line) for line in run("predict", text, "--task", "emotion", "--model", "zh", "--json").splitlines()
    ]
    assert answer == bothways.Predictor.load(filled / "zh-emotion")(text)
    with pytest.raises(BothwaysError, match="the included model zh has no task 'answer': expected emotion"):
        CliRunner().invoke(app, ["predict", text, "--task", "answer", "--model", "zh"], catch_exceptions=False)


def test_models_are_listed(filled: Path) -> None:
    found = json.loads(run("models", "--json"))
    assert [one["name"] for one in found] == ["en", "en-answer", "en-emotion", "zh", "zh-emotion"]
    assert [(one["task"], one["base"]) for one in found[1:4]] == [("answer", "en"), ("emotion", "en"), ("", "")]
    assert [one["languages"] for one in found[2:]] == [["English"], ["中文"], ["中文"]]
    assert found[0]["size"] == sum(file.stat().st_size for file in (filled / "en").iterdir())
    assert found[0]["score"] == "CoLA 52"
    shown = run("models")
    assert "--task emotion" in shown
    assert "CoLA 52" in shown


def test_a_task_answers_at_once(filled: Path) -> None:
    (answer,) = [
        json.loads(line) for line in run("predict", "I like it so much", "--task", "emotion", "--json").splitlines()
    ]
    assert answer == bothways.Predictor.load(bothways.boxed("emotion"))("I like it so much")
    assert answer["label"] in ("glad", "sad")


def test_a_question_and_a_text(filled: Path) -> None:
    out = run("predict", "who likes it", "she likes it and he hates it", "--task", "answer", "--json")
    expected = bothways.Predictor.load(filled / "en-answer")(("who likes it", "she likes it and he hates it"))
    assert json.loads(out) == json.loads(json.dumps(expected))


def test_what_looks_like_a_file_is_one(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "two.txt").write_text("I like it\nI hate it\n")
    assert len(run("predict", str(tmp_path / "two.txt"), "--task", "emotion").splitlines()) == 2
    (tmp_path / "a text").write_text("one\n")
    assert len(run("predict", str(tmp_path / "a text"), "--task", "emotion").splitlines()) == 1
    for word in ("reviews.txt", "some/where"):
        with refused("no-file", names=word):
            CliRunner().invoke(app, ["predict", word, "--task", "emotion"], catch_exceptions=False)
    for word in ("喜欢", "Good.Really", "3.5"):
        assert word in run("predict", word, "--task", "emotion")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["predict", "a text", "--task", "mood"], "mood.* answer, emotion"),
        (["predict", "one", "two", "three", "--task", "emotion"], "3"),
        (["evaluate", "x.tsv", "--task", "emotion", "--calibrate"], "emotion"),
    ],
)
def test_impossible_requests_are_refused(filled: Path, words: list[str], named: str) -> None:
    with pytest.raises(BothwaysError, match=named):
        CliRunner().invoke(app, words, catch_exceptions=False)


def test_one_model_is_named(filled: Path) -> None:
    for words, said in (
        (["predict", "a text"], "answer, emotion"),
        (["evaluate", "x", "--task", "emotion", "--model", "x"], "--model is x: name one of"),
    ):
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert said in " ".join(done.stderr.replace("│", "").split())


def test_evaluation_of_a_boxed_task(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("text\tlabel\nI like it\tglad\nI hate it\tsad\n")
    found = json.loads(run("evaluate", str(tmp_path / "dev.tsv"), "--task", "emotion", "--json"))
    assert found["examples"] == 2
    assert found["labels"] == ["glad", "sad"]


def test_info_says_which_is_which(filled: Path) -> None:
    facts = json.loads(run("info", "--json"))
    assert facts["folder"] == str(filled / "en")
    assert {name: one["can"] for name, one in facts["box"].items()} == {
        "answer": ["answer questions with a span of a text (bothways predict --task answer)"],
        "emotion": ["classify texts (bothways predict --task emotion)"],
    }
    assert facts["box"]["emotion"]["labels"] == ["glad", "sad"]
    shown = run("info")
    assert "bothways predict --task emotion): glad, sad" in shown
    assert "box" not in json.loads(run("info", str(filled / "en"), "--json"))


def test_vectors_are_its_own_if_no_model_is_named(filled: Path) -> None:
    texts = ["she likes it", "he hates it"]
    assert (bothways.encode(texts) == bothways.encode(texts, filled / "en")).all()
    (found, _), (expected, _) = bothways.encode_tokens(texts), bothways.encode_tokens(texts, filled / "en")
    assert (found.vectors == expected.vectors).all()


def test_other_commands_take_it_too(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("she likes it\n")
    run("encode", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "texts.npy"))
    assert (tmp_path / "texts.npy").exists()
    assert "[CLS]" in run("vocab", "show", "she likes it")
    row = {"sentence_good": "she likes it", "sentence_bad": "it she likes", "UID": "order"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(row) + "\n")
    assert json.loads(run("blimp", str(tmp_path / "pairs.jsonl"), "--json"))["pairs"] == 1


# ---------------------------------------------------------------------- vectors of texts


@pytest.fixture
def with_sentence(small_box: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box that has models for vectors of texts too, which give other vectors than the encoders."""
    shutil.copytree(small_box, tmp_path / "box")
    monkeypatch.setattr(box, "BOX", tmp_path / "box")
    for name, pooling in (("sentence", "max"), ("sentence-zh", "cls")):
        model = bothways.load("en")
        model.sentence = bothways.Sentence(bothways.Pooling((pooling,)), [Normalize()])  # type: ignore[arg-type]
        bothways.save(model, tmp_path / "box" / name)
    return tmp_path / "box"


def test_vectors_of_texts_have_a_model_of_their_own(with_sentence: Path, tmp_path: Path) -> None:
    texts = ["she likes it", "he hates it"]
    expected = bothways.encode(texts, with_sentence / "sentence")
    assert not np.allclose(expected, bothways.encode(texts, "en"))
    assert (bothways.encode(texts) == expected).all()
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    file, out = str(tmp_path / "texts.txt"), tmp_path / "out.npy"
    run("encode", file, "--out", str(out))
    assert (np.load(out) == expected).all()
    bothways.scale.encode_files(file, tmp_path / "named.npy", "sentence")
    assert (np.load(tmp_path / "named.npy") == expected).all()
    assert bothways.similar_pairs(texts)[0].score == pytest.approx(float(expected[0] @ expected[1]), abs=1e-6)


def test_features_are_those_of_the_encoder(with_sentence: Path, tmp_path: Path) -> None:
    """Layers, other poolings, tokens: `sentence` has half the layers, and its tokens serve nothing else."""
    texts = ["she likes it", "he hates it"]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    for options, words in (({"layers": 1}, ["--layers", "1"]), ({"pool": "cls"}, ["--pool", "cls"])):
        expected = bothways.encode(texts, "en", **options)
        assert (bothways.encode(texts, **options) == expected).all()
        run("encode", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out.npy"), *words)
        assert (np.load(tmp_path / "out.npy") == expected).all()
    (found, _), (expected_tokens, _) = bothways.encode_tokens(texts), bothways.encode_tokens(texts, "en")
    assert (found.vectors == expected_tokens.vectors).all()


def test_an_index_knows_the_model_that_made_it(with_sentence: Path, tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("she likes it\nhe hates it\n")
    assert bothways.Index.build(tmp_path / "c.txt", tmp_path / "new", device="cpu").model == "sentence"
    found = bothways.Index.open(tmp_path / "new").search("she likes it", k=1)
    assert found[0].id == "1"
    assert found[0].score > 0.999
    bothways.Index.build(tmp_path / "c.txt", tmp_path / "old", "en", device="cpu")
    manifest = tmp_path / "old/manifest.json"  # as earlier versions wrote it
    manifest.write_text(manifest.read_text().replace('"model": "en"', '"model": null'))
    assert bothways.Index.open(tmp_path / "old").search("she likes it", k=1)[0].id == "1"


def test_similarity_is_a_task_without_an_adapter(with_sentence: Path) -> None:
    assert bothways.boxed("similarity") == with_sentence / "sentence"
    assert bothways.boxed("similarity", "zh") == with_sentence / "sentence-zh"
    pair = ("she likes it", "he hates it")
    vectors = bothways.encode(pair, with_sentence / "sentence-zh")
    words = ["predict", *pair, "--task", "similarity", "--model", "zh", "--json"]
    assert json.loads(run(*words))["score"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-6)
    assert "similarity" in json.loads(run("info", "--json"))["box"]
    assert bothways.boxed("similarity", "sentence-zh") == with_sentence / "sentence-zh"
    assert box.boxed_tasks("sentence") == box.boxed_tasks("sentence-zh") == ["similarity"]
    with refused("bad-input", names="three"):
        bothways.Predictor.load("similarity")(("one", "two", "three"))
    names = ["en", "en-answer", "en-emotion", "zh", "zh-emotion", "sentence", "sentence-zh"]
    found = bothways.boxed_models()
    assert [one.name for one in found] == names
    size = sum(file.stat().st_size for file in (with_sentence / "sentence").rglob("*") if file.is_file())
    assert found[5].size == size > (with_sentence / "sentence/model.safetensors").stat().st_size


def test_a_model_may_read_a_script_by_its_pieces(small_box: Path, tmp_path: Path) -> None:
    """One that learned English by Chinese words and single Latin letters says so, and keeps saying it."""
    made = Namespace(model=[("en", str(small_box / "en"))], task=[], card=[], reads=[("en", "Runic")])
    maker().make(made, tmp_path)
    tokenizer = Tokenizer.load(tmp_path / "en")
    assert tokenizer.scripts - Tokenizer.load(small_box / "en").scripts == {"Runic"}
    (tmp_path / "again").mkdir()
    tokenizer.save(tmp_path / "again")
    assert "Runic" in Tokenizer.load(tmp_path / "again").scripts


def test_the_worst_similarities_are_those_farthest_from_their_scores(with_sentence: Path, tmp_path: Path) -> None:
    """Scores from 0 to 5 were compared with cosines, so that the best pairs came first."""
    rows = "".join(f"she likes it\tshe likes it\t{score}\n" for score in ("5.0", "0.0", "4.0"))
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tscore\n{rows}")
    found = json.loads(run("evaluate", str(tmp_path / "pairs.tsv"), "--task", "similarity", "--json"))
    assert [one["gold"] for one in found["worst"]] == [0.0, 4.0, 5.0]
    predictor = bothways.Predictor.load("similarity")
    bothways.evaluate(str(tmp_path / "pairs.tsv"), predictor)
    rows = "".join(f"she likes it\tshe likes it\t{score}\n" for score in ("1.0", "0.9", "0.1"))  # of another scale
    (tmp_path / "pairs.tsv").write_text(f"sentence1\tsentence2\tscore\n{rows}")
    errors = bothways.evaluate(str(tmp_path / "pairs.tsv"), predictor).worst
    assert [one["gold"] for one in errors] == [0.1, 0.9, 1.0]
    assert errors[-1]["error"] == pytest.approx(0, abs=1e-6)


def test_who_reads_a_script_is_told_by_what_for(with_sentence: Path) -> None:
    assert (box.boxed_for("Latin"), box.boxed_for("Latin", for_vectors=True)) == ("en", "sentence")


# ---------------------------------------------------------------------- fine-tuning


def test_fine_tuning_starts_from_it_as_it_advises(filled: Path) -> None:
    plan = bothways.finetune_recipe({"task": "classify"})
    assert plan.model == FinetuneModel(init=str(filled / "en"), pooling="mean")
    assert (plan.optim.lr, plan.optim.layer_decay, plan.run.epochs) == (4e-4, 0.8, 5)


def test_what_is_said_goes_before_advice(filled: Path) -> None:
    plan = bothways.finetune_recipe({"optim": {"lr": 1e-3}}, ["run.steps=7", "model.pooling=first"])
    assert (plan.optim.lr, plan.optim.layer_decay, plan.model.pooling) == (1e-3, 0.8, "first")
    assert (plan.run.steps, plan.run.epochs) == (7, 0.0)
    below = bothways.finetune_recipe({"optim": {"weight_decay": 0.5}}, usual={"optim": {"lr": 5e-5, "clip": 2.0}})
    assert (below.optim.weight_decay, below.optim.lr, below.optim.clip) == (0.5, 4e-4, 2.0)


def test_another_model_has_its_own_advice_or_none(filled: Path, tmp_path: Path) -> None:
    assert bothways.finetune_recipe({"model": {"init": "elsewhere"}}).optim.lr == 0  # chosen when the model is known
    (tmp_path / "finetune.toml").write_text("[optim]\nlr = 1e-5\n")
    assert bothways.finetune_recipe({"model": {"init": str(tmp_path)}}).optim.lr == 1e-5
    (tmp_path / "finetune.toml").write_text("[optim]\nrate = 1e-5\n")
    with refused("unknown-key", names=r"finetune\.toml.*optim\.rate"):
        bothways.finetune_recipe({"model": {"init": str(tmp_path)}})


def test_advice_goes_with_whatever_is_made_of_a_model(filled: Path, tmp_path: Path, packed: Path) -> None:
    """It was lost by saving, by pretraining further and by fine-tuning, and the next rate was BERT's, ten times too low."""
    plan = calm(recipe(packed, steps=1))
    start = FinetuneModel(init=str(filled / "en"))
    moods = [Text(("I like it",), gold="glad"), Text(("I hate it",), gold="sad")]
    tune = FinetuneRecipe("classify", model=start, run=FinetuneRun(steps=1, device="cpu"))
    bothways.save(bothways.load(), tmp_path / "saved")
    bothways.pretrain(
        replace(plan, objectives=("mlm",), model=replace(plan.model, init=start.init)), tmp_path / "further"
    )
    bothways.finetune(tune, tmp_path / "tuned", train=moods)
    bothways.finetune(replace(tune, lora=LORA), tmp_path / "lora", train=moods)
    made = ("saved", "further/model", "tuned/model", "lora/model", "lora/adapter")
    found = {name: bothways.finetune_recipe({"model": {"init": str(tmp_path / name)}}) for name in made}
    assert {name: (plan.optim.lr, plan.run.epochs) for name, plan in found.items()} == dict.fromkeys(made, (4e-4, 5))
    assert (tmp_path / "saved/finetune.toml").read_text() == ADVICE
    assert not (tmp_path / "lora/adapter/finetune.toml").exists()  # that of its base is meant
    bothways.save(bothways.load(tmp_path / "saved"), tmp_path / "saved")
    plain = bothways.load()
    plain.config = replace(plain.config, advice="")
    with refused("other-files", names=r"finetune\.toml"):  # written by somebody else
        bothways.save(plain, tmp_path / "saved")
    bothways.save(plain, tmp_path / "plain")
    with pytest.raises(SystemExit, match=r"finetune\.toml"):
        maker().make(Namespace(model=[("en", str(tmp_path / "plain"))], task=[], card=[], reads=[]), tmp_path / "none")


def test_a_recipe_for_pretraining_may_hold_advice(tmp_path: Path, packed: Path) -> None:
    advice = {"model": {"pooling": "mean"}, "optim": {"lr": 4e-4, "layer_decay": 0.8}}
    plan = replace(calm(recipe(packed, steps=1)), finetune=advice)
    with refused("unsupported-setting", ("model.pooling", "mean")):
        bothways.pretrain(plan, tmp_path / "run")
    plan = replace(plan, model=replace(plan.model, family="modernbert"), objectives=("mlm",))
    bothways.pretrain(plan, tmp_path / "run")
    said = json.loads((tmp_path / "run/model/config.json").read_text())
    assert said["classifier_pooling"] == "mean"  # so that what others fine-tune reads the same
    assert bothways.finetune_recipe({"model": {"init": str(tmp_path / "run/model")}}).optim.layer_decay == 0.8
    told = (tmp_path / "run/model/finetune.toml").read_text()
    assert (tomllib.loads(told), told[0]) == (advice, "[")
    assert bothways.pretrain(plan, tmp_path / "run").complete
    words = [
        "pretrain",
        "tiny",
        "--data",
        str(packed),
        "--out",
        str(tmp_path / "none"),
        "--set",
        "finetune.optim.rat=1",
    ]
    assert getattr(CliRunner().invoke(app, words).exception, "value", "") == "finetune.optim.rat"
    assert not (tmp_path / "none").exists()


def test_the_command_goes_on_with_the_same_recipe(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "I like it\tglad\nI hate it\tsad\n" * 4)
    words = [
        "finetune",
        "classify",
        "--train",
        str(tmp_path / "train.tsv"),
        "--out",
        str(tmp_path / "run"),
        "--set",
        "run.steps=2",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "finetune.toml" in done.stderr
    kept = bothways.tasks.recipe.read_finetune_recipe(tmp_path / "run/recipe.toml")
    assert kept.model.init == str(filled / "en")
    assert CliRunner().invoke(app, words).exit_code == 0
    assert bothways.Predictor.load(tmp_path / "run/model").labels == ("glad", "sad")


def test_an_encoder_that_fills_no_masks_is_not_boxed(packed: Path, tmp_path: Path) -> None:
    reader = make_reader(packed, tmp_path / "reader")
    (reader / "finetune.toml").write_text(ADVICE)
    with pytest.raises(SystemExit, match="fills no masks"):
        maker().make(Namespace(model=[("en", str(reader))], task=[], card=[], reads=[]), tmp_path)


# ---------------------------------------------------------------------- without a box


def test_an_empty_box_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(box, "BOX", tmp_path / "box")
    for call in (bothways.load, lambda: bothways.fill("a [MASK]"), bothways.boxed):
        with refused("no-box", tmp_path / "box"):
            call()
    assert bothways.finetune_recipe({}).model.init == ""


def test_fine_tuning_without_a_box_asks_for_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(box, "BOX", tmp_path / "box")
    (tmp_path / "train.tsv").write_text("text\tlabel\nI like it\tglad\nI hate it\tsad\n")
    words = ["finetune", "classify", "--train", str(tmp_path / "train.tsv"), "--out", str(tmp_path / "run")]
    with refused("no-model", names=r"--model|`model`"):
        CliRunner().invoke(app, words, catch_exceptions=False)
