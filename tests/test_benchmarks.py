"""The benchmarks run: tiny models, a step or two. What they measure here means nothing."""

import dataclasses
import importlib.util
import io
import json
import re
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import helper, numpy_helper

import bothways.cli
from bothways.pretraining.recipe import read_recipe
from helpers.cli import Done

FILE = Path(__file__).parents[1] / "benchmarks" / "families.py"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FILE.with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def families() -> ModuleType:
    return loaded("families")


def test_every_family_of_ours_is_timed(families: ModuleType) -> None:
    from bothways.model.families import FAMILIES

    same_as_another = {"xlm-roberta", "camembert", "data2vec-text", "ernie", "splinter", "new"}
    without_a_judge = {"neobert", "mosaic-bert", "jina-bert-v2"}
    read_and_not_timed = {"xlm-roberta-xl", "roformer", "nomic_bert", "gte", "eurobert"}
    assert set(families.BASES) == set(FAMILIES) - same_as_another - without_a_judge - read_and_not_timed


def test_both_sides_have_the_same_parameters(families: ModuleType) -> None:
    """With one layer of the published size."""
    from bothways.model.config import ModelConfig
    from bothways.model.families import FAMILIES
    from bothways.model.model import Model

    counts = {}
    for family, base in families.BASES.items():
        config = families.make_config(family, 1, 0, False)
        with torch.device("meta"):
            theirs = getattr(transformers, f"{base.classes}ForMaskedLM")(config)
            raw = config.to_dict()
            ours = Model(ModelConfig(FAMILIES[family].read_config(raw), ("masked",), family=family, hf_config=raw))
        counts[family] = [sum(p.numel() for p in model.parameters()) for model in (ours, theirs)]
    assert all(ours == theirs for ours, theirs in counts.values()), counts


@pytest.mark.parametrize("family", ["distilbert", "deberta"])
def test_both_sides_take_a_step(families: ModuleType, family: str) -> None:
    settings = families.Settings("cpu", layers=1, rounds=1, batches=2)
    cases = families.candidates(family, ("ragged",), ("ours", "theirs"), False)
    found = [families.attempt(case, settings, lambda: None) for case in cases]
    assert [f.failure for f in found] == ["", ""]
    assert f"{found[0].ktoks / found[1].ktoks:.2f} ×" in families.table(found)


def test_a_failure_is_told_and_does_not_end_the_run(families: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object) -> None:
        raise RuntimeError("no room left\non the device")

    monkeypatch.setattr(families, "their_step", out_of_memory)
    case = families.Candidate("bert", "even", "theirs", False)
    found = families.attempt(case, families.Settings("cpu", rounds=1), lambda: None)
    assert found.failure == "failed: RuntimeError: no room left"
    assert "–" in families.table([found])


def test_families_are_made_ready_side_by_side_and_timed_in_turn() -> None:
    words = ["--device", "cpu", "--families", "bert,albert", "--shapes", "even", "--layers", "1", "--rounds", "1"]
    command = [sys.executable, str(FILE), *words, "--no-compile", "--side-by-side", "2"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found = [line.split()[:4] for line in done.stdout.splitlines() if "ktok/s " in line and "eager" in line]
    assert found == [
        [family, "even", side, "eager"] for side in ("ours", "theirs") for family in ("bert", "albert")
    ]  # fmt: skip


def test_a_process_that_dies_is_told(families: ModuleType) -> None:
    class Gone:
        def send(self, what: object) -> None:
            raise BrokenPipeError

        def recv(self) -> object:
            raise EOFError

    case = families.Candidate("bert", "even", "theirs", False)
    families._tell(Gone(), case)
    assert "has died" in families._hear(Gone(), case).failure


def test_nothing_is_timed_before_its_turn(families: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(families, "prepare", lambda case, settings: (lambda: order.append("step"), 1))
    case = families.Candidate("bert", "even", "ours", False)
    families.attempt(case, families.Settings("cpu", rounds=1), lambda: order.append("turn"))
    assert order == ["turn", "step", "step"]


CROWDED = """
import sys
sys.path.insert(0, sys.argv[1])
import families

class OutOfMemoryError(Exception):
    pass

tried = []

def prepare(case, settings):
    tried.append(case)
    if case.family == "albert" and len(tried) == 1:
        raise OutOfMemoryError("others have it")
    return (lambda: None), 1

families.prepare = prepare
cases = [[families.Candidate(name, "even", "ours", False)] for name in ("bert", "albert", "mpnet")]
for found in families.measure(cases, families.Settings("cpu", rounds=1), 0.0):
    print(found.candidate.family, found.failure or "timed")
"""


def test_what_finds_no_memory_beside_others_is_tried_alone() -> None:
    command = [sys.executable, "-c", CROWDED, str(FILE.parent)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["bert timed", "mpnet timed", "albert timed"]


class OneByOne:
    """A pool of threads without threads: only the main one may listen to signals, as the command line does."""

    def __init__(self, _: int) -> None:
        self.map = map

    def __enter__(self) -> "OneByOne":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m bothways` of a benchmark without a process of its own: each would load torch anew."""
    start = subprocess.run

    def answer(command: list[str], check: bool, stderr: Any = None, **others: Any) -> Done:
        if "bothways" not in command:  # matplotlib, say, which lists the fonts of a machine that it has not seen before
            return start(command, check=check, stderr=stderr, **others)
        words, out, err = command[command.index("bothways") :], io.StringIO(), stderr or io.StringIO()
        code = 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(sys, "argv", words)
            try:
                bothways.cli.main()
            except SystemExit as stop:
                code = int(stop.code or 0)
        assert not (check and code), words
        return subprocess.CompletedProcess(command, code, out.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", answer)


@pytest.mark.usefixtures("in_this_process")
def test_pilots_pretrain_and_fine_tune(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.dumps({"text_a": text, "label": i % 2}) for i, text in enumerate(["很好", "the cat sat"] * 8)]
    for part in ("train", "dev", "test"):
        (tmp_path / "data/chnsenticorp").mkdir(parents=True, exist_ok=True)
        (tmp_path / "data/chnsenticorp" / f"{part}.jsonl").write_text("\n".join(rows))
    shape = json.dumps({"width": 16, "layers": 4, "heads": 2, "hidden": 16})
    words = ["--text", packed, "--data", tmp_path / "data", "--out", tmp_path / "out", "--steps", "2", "--seeds", "1",
             "--first-seed", "7", "--tasks", "ChnSentiCorp", "--shape", shape, "--run", "short both rtd.weight=20", "--tune",
             "slow optim.lr=1e-9"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["pilots.py", *map(str, words)])
    pilots = loaded("pilots")
    pool = SimpleNamespace(futures=SimpleNamespace(ThreadPoolExecutor=OneByOne))
    monkeypatch.setattr(pilots, "concurrent", pool)
    pilots.main()
    printed = capsys.readouterr().out
    for row in ("short", "short slow"):
        dev_and_test = r" \d+\.\d ± 0\.0, \d+\.\d \|" * 2
        assert re.search(rf"^\| {row} \|{dev_and_test}$", printed, re.MULTILINE)
        slow = "lr = 1e-09" in (tmp_path / f"out/tuned/{row.replace(' ', '-')}-ChnSentiCorp-7/recipe.toml").read_text()
        assert slow == ("slow" in row)
    trained = read_recipe(tmp_path / "out/short/recipe.toml")
    assert (trained.settings["rtd"].weight, trained.settings["rtd"].masked, len(trained.phases)) == (20.0, 0.25, 2)
    assert "fill" in (tmp_path / "out/short/metrics.jsonl").read_text()
    assert (tmp_path / "out/pilots.png").exists()


@pytest.mark.usefixtures("in_this_process")
def test_the_box_is_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["box_speed.py", "--rounds", "1", "--texts", "4"])
    loaded("box_speed").main()
    printed = capsys.readouterr().out
    assert re.search(r"^\| encode \| \d+ \| \d+\.\d\d × \|$", printed, re.MULTILINE)
    assert float(printed.rpartition(": ")[2]) < 1e-4


def test_words_are_compared_with_a_treebank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["do", "n't", "e-mail", "me"]
    rows = [f"{i}\t{word}" + "\t_" * 7 for i, word in enumerate(words, 1)]
    misc = ["SpaceAfter=No", "_", "_", "_"]
    (tmp_path / "dev.conllu").write_text("".join(f"{row}\t{last}\n" for row, last in zip(rows, misc, strict=True)))
    monkeypatch.setattr("sys.argv", ["words.py", "--data", str(tmp_path / "dev.conllu")])
    loaded("words").main()
    assert capsys.readouterr().out.splitlines()[-1] == "| 4 | 6 | 50.0 | 75.0 | 60.0 |"


def test_pilots_start_from_what_they_say() -> None:
    bases = loaded("pilots").BASES
    plans = {name: read_recipe("bothways-small", settings) for name, settings in bases.items()}
    assert {name: plan.settings["rtd"].masked for name, plan in plans.items() if "rtd" in plan.objectives} == {
        "rtd": 0,
        "both": 0.25,
    }
    assert {plan.optim.muon_lr for name, plan in plans.items() if name != "both"} == {0.02}


def test_the_adapters_data_has_no_message_on_both_sides(tmp_path: Path) -> None:
    pair = {"premise": "A man is asleep.", "hypothesis": "A man is sleeping."}
    scored = [{"sentence1": "a", "sentence2": "b", "score": 1}]
    made: dict[str, list[dict[str, Any]]] = {
        "goemotions/train.jsonl": [{"text": "wow", "labels": [1, 0]}],
        "goemotions/dev.jsonl": [{"text": "ugh", "labels": [0]}],
        "goemotions/test.jsonl": [{"text": "oh", "labels": [0]}],
        "sms_spam/all.jsonl": [
            {"text": "80086", "label": "spam"},
            *(
                {"text": f"{word}  win {i % 40}", "label": "ham" if i % 4 else "spam"}
                for word in ("to", "TO")
                for i in range(80)
            ),
        ],
        "snli/train.jsonl": [{**pair, "label": label} for label in ("neutral", "-")],
        "snli/dev.jsonl": [{"premise": "a", "hypothesis": "b", "label": "entailment"}],
        "snli/test.jsonl": [{"premise": "c", "hypothesis": "d", "label": "entailment"}],
        "glue_mnli/dev_matched.jsonl": [{"premise": "e", "hypothesis": "f", "label": "neutral"}],
        "pairs/nli-snli-mnli.jsonl": [
            {"a": f"Number {i} is red.", "b": f"Number {i} is coloured.", "relation": "entailment"} for i in range(60)
        ],
        "pairs/nli-scitail.jsonl": [{"a": "e", "b": "x", "relation": "neutral"}],
        "glue_sst2/train.jsonl": [{"sentence": "good ", "label": 1}],
        "glue_sst2/dev.jsonl": [{"sentence": "bad", "label": 0}],
        "cad_imdb/train.jsonl": [{"Text": "fine", "Sentiment": "Positive"}],
        "cad_imdb/dev.jsonl": [{"Text": "poor", "Sentiment": "Negative"}],
        **{f"glue_stsb/{part}.jsonl": scored for part in ("train", "dev", "test")},
        **{f"zh_stsb/{part}.jsonl": scored for part in ("train", "valid", "test")},
        **{f"chnsenticorp/{part}.jsonl": [{"text_a": "好", "label": 1}] for part in ("train", "dev", "test")},
    }
    for name, rows in made.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "goemotions/labels.txt").write_text("anger\njoy\n")
    asked = [
        {"id": f"q{i}", "question": f"Where is {i}?", "answers": [{"text": str(i), "answer_start": 8}]}
        for i in range(20)
    ]
    squad = {"data": [{"paragraphs": [{"context": f"Here is {i}.", "qas": [asked[i]]} for i in range(20)]}]}
    kinds = {"3月": "NOUN", "猫": "NOUN", "睡觉": "VERB"}
    lines = (f"{n}\t{word}\t_\t{kind}" + "\t_" * 6 for n, (word, kind) in enumerate(kinds.items(), 1))
    analysed = "\n".join(lines) + "\n\n"
    others = {
        "ud_english_ewt/en-train.conllu": "train", "ud_english_ewt/en-dev.conllu": "dev",
        "msra_ner/train.conll": "train", "msra_ner/dev.conll": "dev",
        **{f"ud_chinese_gsdsimp/zh-{part}.conllu": analysed for part in ("dev", "test")},
        "squad1_train_part/train.json": json.dumps(squad), "squad2_dev/dev-v2.0.json": "{}",
        "cmrc2018/train.json": json.dumps(squad), "cmrc2018/dev.json": "{}",
        "entities/wikigold.conll": "Bob I-PER\nAnn I-PER\nis O\n\nRed I-MISC\n",
        "entities/wnut17-dev.conll": "X B-corporation\n",
    }  # fmt: skip
    for name, text in others.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    folders = {
        "data": tmp_path,
        "pairs": tmp_path / "pairs",
        "entities": tmp_path / "entities",
        "out": tmp_path / "out",
    }
    words = [word for name, folder in folders.items() for word in (f"--{name}", str(folder))]
    subprocess.run(
        [sys.executable, str(FILE.with_name("box_data.py")), *words], check=True, capture_output=True, timeout=120
    )

    def read(name: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()]

    assert read("emotion/train.jsonl") == [{"text": "wow", "labels": ["joy", "anger"]}]
    learned_pairs = {(str(row["premise"]), str(row["hypothesis"])): row["label"] for row in read("nli/train.jsonl")}
    assert learned_pairs[pair["premise"], pair["hypothesis"]] == "neutral"
    assert learned_pairs["Number 1 is red.", "Number 1 is coloured."] == "entailment"
    negated = {label for (_, second), label in learned_pairs.items() if "not" in second or "n't" in second}
    assert negated == {"entailment", "contradiction"}, "of a text and its negation, and of negations with themselves"
    for (first, second), label in learned_pairs.items():
        is_opposite = ("not" in second or "n't" in second) != ("not" in first or "n't" in first)
        assert label == "neutral" or (label == "contradiction") == is_opposite, (first, second, label)
    assert (tmp_path / "out/ner/train.conll").read_text() == "Bob B-PER\nAnn I-PER\nis O\n\nRed O\n\nX B-ORG\n"
    none = [p for p in json.loads((tmp_path / "out/answer/train.json").read_text())["data"][0]["paragraphs"]
            for q in p["qas"] if not q["answers"]]  # fmt: skip
    for part in ("train", "dev"):
        tagged = (tmp_path / f"out/zh-pos/{part}.conll").read_text()
        assert tagged == "3\tB-NOUN\n月\tI-NOUN\n猫\tB-NOUN\n睡\tB-VERB\n觉\tI-VERB\n"
    assert none
    assert not any(p["qas"][0]["question"].removeprefix("Where is ").rstrip("?") + "." in p["context"] for p in none)
    train, dev = (
        {" ".join(str(row["text"]).lower().split()) for row in read(f"spam/{part}.jsonl")} for part in ("train", "dev")
    )
    assert train
    assert dev
    assert not train & dev
    learned = read("spam/train.jsonl")
    numberless = [row for row in learned if not any(map(str.isdigit, str(row["text"])))]
    assert {(row["text"], row["label"]) for row in numberless} == {("to win", "spam"), ("TO win", "spam")}
    doubled = [row for row in learned if len(re.findall(r"\d+", str(row["text"]))) == 2]
    assert {row["label"] for row in doubled} == {"ham"}
    unwanted = sum(row["label"] == "spam" for row in learned) - len(numberless)
    assert (len(doubled), len(numberless)) == (unwanted, unwanted - 1)  # of a number alone nothing would be left
    assert len(learned) - len(numberless) - len(doubled) + len(read("spam/dev.jsonl")) == 161
    assert (tmp_path / "out/pos/dev-en-dev.conllu").read_text() == "dev"


def test_blanks_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words that come again and again are named, letters in no order are not."""
    found = []
    letters = " ".join(np.random.default_rng(0).permutation(list("abcdefghijklmnopqrstuvwxyz0123456789")))
    for name, text in (("easy", "the door of the house was open and " * 8), ("hard", letters)):
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
        monkeypatch.setattr(sys, "argv", ["blanks.py", "--text", str(tmp_path / f"{name}.txt"), "--length", "40"])
        loaded("blanks").main()
        cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")]
        found.append((cells[1], int(cells[2]), float(cells[3].rstrip("%")), float(cells[4].rstrip("%"))))
    (who, asked, right, first_five), (_, _, wrong, _) = found
    assert (who, asked) == ("the box", round(0.15 * 38))
    assert wrong < 50 < right <= first_five


def test_bertscore_is_compared_with_the_package(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bert_score")
    (tmp_path / "texts.txt").write_text("the cat\n\nthe dog runs\na house\n北京是中国的首都\n", encoding="utf-8")
    words = ["--data", tmp_path / "texts.txt", "--model", model_folder, "--rounds", 1, "--layer", 2]
    monkeypatch.setattr(sys, "argv", ["bertscore.py", *map(str, words)])
    loaded("bertscore").main()
    out = capsys.readouterr().out
    assert "2 pairs, layer 2" in out
    assert float(re.findall(r"64 pairs (\S+)", out)[0]) < 1e-5


def test_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["memory.py", "--lines", "30", "--only", "encode"])
    loaded("memory").main()
    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert [cell.strip() for cell in row[1:3]] == ["encode", "30 lines"]
    assert float(row[3].replace(",", "")) > 50


def test_soak(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A round works, and what grows is found."""
    soak = loaded("soak")
    monkeypatch.setattr(sys, "argv", ["soak.py", "--minutes", "0", "--rows", "1"])
    with pytest.raises(SystemExit) as stopped:
        soak.main()
    assert stopped.value.code == 0
    assert "flat" in capsys.readouterr().out
    flat = [soak.Sample(float(i), i, 400.0 + i % 2, 4, 12) for i in range(100)]
    assert soak.problems(flat) == []
    for name in ("resident", "threads", "descriptors"):
        grown = [dataclasses.replace(one, **{name: getattr(one, name) + one.rounds // 10}) for one in flat]
        assert len(soak.problems(grown)) == 1, name


def test_a_schedule_ends_at_a_time_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    until = loaded("until")
    monkeypatch.setattr(until, "_END", time.monotonic() + 30, raising=False)
    assert until.done(None, 5, 10.0) == pytest.approx(0.25, abs=0.01)
    monkeypatch.setattr(until, "_END", time.monotonic() - 1)
    assert until.done(None, 5, 10.0) == 1


def test_linear_layers_without_names_get_those_of_their_operations(tmp_path: Path) -> None:
    wide = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = {"onnx::MatMul_7": wide, "encoder.layer.0.output.dense.bias": wide[0], "embeddings.position_ids": wide}
    node = helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["y"], "/encoder/layer.0/output/dense/MatMul")
    graph = helper.make_graph([node], "g", [], [], [numpy_helper.from_array(a, name) for name, a in tensors.items()])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    found = loaded("gte_small").weights(tmp_path / "model.onnx")
    assert set(found) == {"encoder.layer.0.output.dense.weight", "encoder.layer.0.output.dense.bias"}
    assert np.array_equal(found["encoder.layer.0.output.dense.weight"], wide.T)


def test_search_is_scored_by_words_and_by_both(model_folder: Path, tmp_path: Path) -> None:
    """Words find what they name; a query that is a document of its own does not find itself."""
    documents = {"a": "the cat sleeps", "b": "the dog runs", "q": "the dog runs", "c": "北京是中国的首都"}
    queries = {"p": "cat sleeps", "q": "the dog runs", "r": "北京"}
    rows = {"corpus": documents, "queries": queries}
    for name, some in rows.items():
        lines = [json.dumps({"_id": id, "text": text}, ensure_ascii=False) for id, text in some.items()]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\np\ta\t1\nq\tb\t1\nr\tc\t1\n")
    words, vectors, both = loaded("search_quality").scores(tmp_path, str(model_folder))
    assert words == 100
    assert 0 < vectors <= 100
    assert 0 < both <= 100
