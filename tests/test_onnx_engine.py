"""Answers from exported folders: the same as those of the model, for every task, without torch."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bothways
from bothways.engine import threads
from bothways.engine.backend import NumpyBackend
from bothways.engine.graph_model import GraphModel
from bothways.model import arrays
from bothways.model.activations import ACTIVATIONS
from bothways.model.config import ACTIVATIONS as NAMED
from bothways.model.config import ModelConfig
from bothways.model.exported import FILES, ExportedModel, graph_file
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import Dense, Normalize, Sentence
from bothways.predict.predictor import Predictor
from bothways.predict.rerank import Reranker
from bothways.serve.model import ServedModel
from bothways.tasks.folder import with_task
from bothways.tasks.registry import new_config
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, make_loud, refused
from helpers.cli import Run

LIMIT = 1e-4
LONG = "the white cat walks in the big house of paris , " * 12  # in three windows
TEXTS = ["the black cat sleeps", "中国的首都是北京。", "unbelievable!", LONG, "a dog", "猫 and 狗 in the house"]
LABELS = {"classify": ("good", "bad", "so-so"), "tag": ("O", "B-LOC", "I-LOC"), "score": ("score",)}
SHORT = [text for text in TEXTS if text != LONG]
INPUTS: dict[str, list[Any]] = {
    "classify": [*TEXTS, ("the cat", "巴黎")],
    "tag": [*TEXTS, ("the", "big", "house")],
    "score": [("the dog walks", text) for text in TEXTS],
    "answer": [("the capital?", text) for text in TEXTS],
    "choose": [
        {"question": "what runs?", "options": ["the dog", "a big black house"], "context": text} for text in TEXTS
    ],
}


def tuned(task: str, tokenizer: Tokenizer, **options: Any) -> Model:
    """A small loud model for a task."""
    base = Model.new(ModelConfig(TINY, ()), tokenizer, seed=1)
    model = with_task(base, new_config(task, **options), LABELS.get(task, ()), seed=1).eval()
    make_loud(model)
    return model


def sentence_model(tokenizer: Tokenizer, *modes: Any, steps: Any = (), **settings: Any) -> Model:
    model = Model.new(ModelConfig(TINY, ()), tokenizer, seed=1).eval()
    make_loud(model)
    model.sentence = Sentence(Pooling(modes), steps, settings=settings)
    return model


@pytest.fixture(scope="module")
def folders(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An exported folder of each task, and "masked" and "vectors"."""
    place = tmp_path_factory.mktemp("exported")
    models = {task: tuned(task, tokenizer) for task in INPUTS}
    masked = Model.new(ModelConfig(TINY, ("masked",)), tokenizer, seed=1).eval()
    make_loud(masked)
    models |= {"masked": masked, "vectors": sentence_model(tokenizer, "mean", steps=[Normalize()])}
    for name, model in models.items():
        bothways.export_onnx(model, place / name)
    for precision in ("fp16", "int8", "int4"):
        bothways.export_onnx(models["classify"], place / precision, precision=precision)
    return {path.name: path for path in place.iterdir()}


def assert_near(ours: Any, theirs: Any, limit: float = LIMIT) -> None:
    """Equal, but for numbers with a fraction."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            assert_near(ours[key], theirs[key], limit)
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_near(one, other, limit)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, abs=limit)
    else:
        assert ours == theirs


# ---------------------------------------------------------------------- the same answers


@pytest.mark.parametrize("task", INPUTS)
def test_a_graph_answers_as_its_model(task: str, folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    model, graph = Predictor(tuned(task, tokenizer)), Predictor.load(folders[task])
    assert isinstance(graph.model, ExportedModel)
    assert_near(graph(INPUTS[task]), model(INPUTS[task]))
    assert vars(graph.tally) == vars(model.tally)
    assert graph.tally.in_windows > 0


@pytest.mark.parametrize("task", INPUTS)
def test_an_answer_is_the_same_alone_and_among_others(task: str, folders: dict[str, Path]) -> None:
    graph = Predictor.load(folders[task])
    together = graph(INPUTS[task])
    assert_near([graph(one) for one in INPUTS[task]], together, 1e-5)
    graph.engine.backend = NumpyBackend(tokens=20)
    assert_near(graph(INPUTS[task]), together, 1e-5)


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_other_precisions(precision: str, folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    graph, model = Predictor.load(folders[precision]), Predictor(tuned("classify", tokenizer))
    assert graph.model.precision == precision
    found, expected = graph(INPUTS["classify"], top=3), model(INPUTS["classify"], top=3)
    scores = [{one["label"]: one["score"] for one in answers} for answers in found]
    for own, theirs in zip(scores, expected, strict=True):
        for one in theirs:
            assert own[one["label"]] == pytest.approx(one["score"], abs=0.02 if precision != "int4" else 0.5)
    assert_near([graph(one, top=3) for one in INPUTS["classify"]], found, 1e-5)


def test_the_first_of_several_graphs_is_opened_or_the_one_that_is_named(tmp_path: Path, tokenizer: Tokenizer) -> None:
    model = tuned("classify", tokenizer)
    for precision in ("int8", "fp32"):
        bothways.export_onnx(model, tmp_path / "out", precision=precision)
    assert Predictor.load(tmp_path / "out").model.precision == "fp32"
    named = tmp_path / "out/onnx" / FILES["int8"]
    assert Predictor.load(named).model.precision == "int8"


def test_a_reranker(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    ours, theirs = Reranker(folders["score"]), Reranker(tuned("score", tokenizer))
    assert_near(
        [hit.index for hit in ours.rank("the cat", TEXTS)], [hit.index for hit in theirs.rank("the cat", TEXTS)]
    )
    np.testing.assert_allclose(ours.scores(INPUTS["score"]), theirs.scores(INPUTS["score"]), atol=LIMIT)


@pytest.mark.parametrize(
    "texts",
    ["the cat [MASK] in the house", "中国的首都是[MASK][MASK]。", "the [MASK] [MASK] runs [MASK]", "walk[MASK]"],
)
def test_fill(texts: str, folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer, seed=1).eval()
    make_loud(model)
    ours, theirs = bothways.fill(texts, folders["masked"], top=3), bothways.fill(texts, model, top=3)
    assert [(one.words, one.text) for one in ours] == [(one.words, one.text) for one in theirs]
    assert_near([one.score for one in ours], [one.score for one in theirs])


def test_sentence_scores(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer, seed=1).eval()
    make_loud(model)
    ours, theirs = (list(bothways.sentence_scores(TEXTS[:3], one)) for one in (folders["masked"], model))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("modes", [("mean",), ("cls",), ("max", "lasttoken"), ("weightedmean", "mean_sqrt_len_tokens")])
@pytest.mark.parametrize("normalized", [True, False])
def test_vectors(modes: Any, normalized: bool, tmp_path: Path, tokenizer: Tokenizer) -> None:
    """By the graph for whole texts, pooled outside of it for windows and for another pooling."""
    model = sentence_model(tokenizer, *modes, steps=[Normalize()] if normalized else [], prompts={"query": "the cat "})
    bothways.export_onnx(model, tmp_path / "out")
    calls: list[dict[str, Any]] = [
        {"long": "cut"}, {"long": "window"}, {"long": "window", "prompt_name": "query"},
        {"long": "window", "pool": ["max", "cls"]},
    ]  # fmt: skip
    for call in calls:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of cut texts and of prompts
            ours, theirs = (bothways.encode(TEXTS, one, **call) for one in (tmp_path / "out", model))
        np.testing.assert_allclose(ours, theirs, atol=LIMIT)
    alone = np.concatenate([bothways.encode([text], tmp_path / "out", long="window", prompt="") for text in TEXTS])
    together = bothways.encode(TEXTS, tmp_path / "out", long="window", prompt="")
    np.testing.assert_allclose(alone, together, atol=1e-5)


def test_vectors_of_tokens_and_words(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    model = sentence_model(tokenizer, "mean", steps=[Normalize()])
    for per in ("token", "word"):
        ours, theirs = (
            bothways.encode_tokens(TEXTS, one, per=per, long="window") for one in (folders["vectors"], model)
        )
        for one, other in zip(ours, theirs, strict=True):
            assert one.texts == other.texts
            np.testing.assert_allclose(one.vectors, other.vectors, atol=LIMIT)


def test_a_dense_module_is_in_the_graph_only(tmp_path: Path, tokenizer: Tokenizer) -> None:
    dense = Dense(32, 8, True, "torch.nn.modules.activation.Tanh")
    model = sentence_model(tokenizer, "mean", steps=[dense], truncate_dim=5)
    file = bothways.export_onnx(model, tmp_path / "out").file
    np.testing.assert_allclose(
        bothways.encode(TEXTS[:3], tmp_path / "out"), bothways.encode(TEXTS[:3], model), atol=LIMIT
    )
    with refused("exported-graph", file):
        bothways.encode(TEXTS, tmp_path / "out", long="window")


def test_a_bi_encoder_predicts_and_searches(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Verbs that use torch themselves take the vectors of a graph too."""
    model = sentence_model(tokenizer, "mean", steps=[Normalize()])
    bothways.export_onnx(model, tmp_path / "out")
    pair = ("the cat", "猫 and 狗")
    assert_near(Predictor.load(tmp_path / "out")(pair), Predictor(model)(pair))
    ours, theirs = (bothways.similar_pairs(SHORT, one, top=3) for one in (tmp_path / "out", model))
    assert_near([(one.first, one.second) for one in ours], [(one.first, one.second) for one in theirs])


def test_a_table_in_memory(folders: dict[str, Path], tokenizer: Tokenizer) -> None:
    import pandas

    table = pandas.DataFrame({"text": TEXTS, "other": range(len(TEXTS))})
    found = Predictor.load(folders["classify"])(table)
    assert list(found["predicted_label"]) == [one["label"] for one in Predictor(tuned("classify", tokenizer))(TEXTS)]


def test_the_service_offers_what_a_graph_computes(folders: dict[str, Path]) -> None:
    served = {name: ServedModel(name, folders[name]) for name in ("classify", "score", "masked", "vectors")}
    assert {name: model.abilities for name, model in served.items()} == {
        "classify": ("predict",), "score": ("rerank", "predict"), "masked": ("fill",), "vectors": ("embed",),
    }  # fmt: skip
    work = served["vectors"].embed(TEXTS[:2], "cut", None).work
    np.testing.assert_allclose(work.run(work.items), bothways.encode(TEXTS[:2], folders["vectors"], long="cut"))
    work = served["classify"].predict(TEXTS[:2], None, 1, False).work
    assert_near(list(work.run(work.items)), Predictor.load(folders["classify"])(TEXTS[:2]), 1e-6)


# ---------------------------------------------------------------------- without torch

WITHOUT = """
import json, sys, warnings
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
import bothways
folders, inputs, texts = json.loads(sys.stdin.read())
found = {task: bothways.Predictor.load(folders[task])([tuple(one) if isinstance(one, list) else one for one in given])
         for task, given in inputs.items()}
found["int8"] = bothways.Predictor.load(folders["int8"])(texts)
found["reranker"] = bothways.Reranker(folders["score"]).scores([("the cat", text) for text in texts]).tolist()
found["vectors"] = bothways.encode(texts, folders["vectors"], long="window").tolist()
found["fill"] = [answer.text for answer in bothways.fill("中国的首都是[MASK][MASK]。", folders["masked"])]
from bothways.engine import long_reader
usual, long_reader.STREAMED, long_reader._WINDOWS = long_reader.STREAMED, 100, 3
long = "the cat walking over Paris 北京 " * 40
found["streamed"] = bothways.Predictor.load(folders["classify"])([long], top=3)
found["streamed vectors"] = bothways.encode([long], folders["vectors"], long="window").tolist()
long_reader.STREAMED = usual
from starlette.testclient import TestClient
served = {name: folders[name] for name in ("classify", "score", "masked", "vectors")}
with TestClient(bothways.asgi_app(served), raise_server_exceptions=False) as client:
    asked = {"/predict": {"texts": texts}, "/rerank": {"query": "the cat", "texts": texts},
             "/fill": {"text": "中国的首都是[MASK][MASK]。"}, "/embed": {"inputs": texts, "long": "window"}}
    found["served"] = {path: client.post(path, json=body).json() for path, body in asked.items()}
for name, call in {"load": lambda: bothways.load("en"), "predict": lambda: bothways.Predictor.load("emotion"),
                   "finetune": lambda: bothways.finetune}.items():
    try:
        call()
    except bothways.BothwaysError as error:
        found[name] = [error.code, error.value]
from bothways.cli import main
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
assert "torch" not in sys.modules
print(json.dumps(found))
"""


def test_all_answers_come_without_torch(folders: dict[str, Path], tmp_path: Path, tokenizer: Tokenizer) -> None:
    """In a process in which torch cannot be imported: the Python API and the verbs."""
    rows = tmp_path / "rows.csv"
    rows.write_text("text,kept\n" + "".join(f'"{text}",{i}\n' for i, text in enumerate(TEXTS)), encoding="utf-8")
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    labelled = tmp_path / "labelled.tsv"
    labelled.write_text("text\tlabel\nthe cat\tgood\n中国的首都\tbad\n", encoding="utf-8")
    verbs = [
        ["predict", rows, "--model", folders["classify"], "--out", tmp_path / "out.csv", "--probabilities"],
        ["predict", lines, "--model", folders["tag"], "--json"],
        ["predict", "the capital?", "the capital is paris", "--model", folders["answer"], "--threads", "1"],
        ["fill", "the cat [MASK]", "--model", folders["masked"], "--json"],
        ["encode", lines, "--model", folders["vectors"], "--long", "cut", "--out", tmp_path / "out.npy"],
        ["rerank", "the cat", lines, "--model", folders["score"], "--json"],
        ["evaluate", labelled, "--model", folders["classify"], "--json"],
        ["info", folders["int8"], "--json"],
    ]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, json.dumps([[str(word) for word in verb] for verb in verbs])],
        input=json.dumps([{name: str(path) for name, path in folders.items()}, INPUTS, TEXTS]),
        capture_output=True, encoding="utf-8", timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, last = done.stdout.splitlines()
    found = json.loads(last)
    served = found["served"]
    assert_near(served["/predict"]["answers"], Predictor(tuned("classify", tokenizer))(TEXTS))
    assert_near({one["index"]: one["score"] for one in served["/rerank"]}, dict(enumerate(found["reranker"])))
    assert_near(served["/embed"], found["vectors"])
    assert [one["text"] for one in served["/fill"]["answer"]] == found["fill"]
    for task, given in INPUTS.items():
        assert_near(found[task], Predictor(tuned(task, tokenizer))(given))
    theirs = Reranker(tuned("score", tokenizer)).scores([("the cat", text) for text in TEXTS])
    np.testing.assert_allclose(found["reranker"], theirs, atol=LIMIT)
    model = sentence_model(tokenizer, "mean", steps=[Normalize()])
    np.testing.assert_allclose(found["vectors"], bothways.encode(TEXTS, model, long="window"), atol=LIMIT)
    long = "the cat walking over Paris 北京 " * 40
    assert_near(found["streamed"], Predictor(tuned("classify", tokenizer))([long], top=3))
    np.testing.assert_allclose(found["streamed vectors"], bothways.encode([long], model, long="window"), atol=LIMIT)
    assert len(found["fill"]) == 5
    assert len(found["int8"]) == len(TEXTS)
    assert found["load"] == found["predict"] == found["finetune"] == ["missing-package", "torch"]
    assert len((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()) == len(TEXTS) + 1
    assert np.load(tmp_path / "out.npy").shape == (len(TEXTS), 32)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(("{", "["))]
    assert any(isinstance(one, dict) and one.get("graph", {}).get("precision") == "int8" for one in said)


def test_numpy_and_torch_compute_the_same() -> None:
    """The operations that are there twice: once for graphs, once for models with weights."""
    random = np.random.default_rng(0)
    rows, counts = random.normal(size=(9, 4)).astype(np.float32), np.array([3, 0, 5, 1])
    owners = np.repeat(np.arange(4), counts)
    given = [torch.from_numpy(array) for array in (rows, owners, counts)]
    with torch.inference_mode():
        for ours, args in (
            (arrays.sums, (rows, owners, counts)), (arrays.maxima, (rows, owners, counts)),
            (arrays.log_softmax, (rows,)), (arrays.log_sigmoid, (rows,)), (arrays.to_fp32, (counts,)),
        ):  # fmt: skip
            theirs: Any = ours(*(given[[rows is a, owners is a, counts is a].index(True)] for a in args))
            np.testing.assert_allclose(ours(*args), theirs.numpy(), rtol=1e-6)
        for count in (1, 3, 9):
            for one, other in zip(arrays.largest(rows, count), arrays.largest(given[0], count), strict=True):
                np.testing.assert_array_equal(one, other.numpy())


def test_the_names_of_activations_are_those_that_are_computed() -> None:
    assert set(NAMED) == set(ACTIVATIONS)


# ---------------------------------------------------------------------- what a graph is, and cannot do


def test_info_says_what_an_exported_folder_is(folders: dict[str, Path], run: Run) -> None:
    done = run("info", folders["classify"])
    assert "exported graph" in done.stdout
    assert "computes sequence" in done.stdout
    facts = json.loads(run("info", folders["vectors"], "--json").stdout)
    assert facts["graph"]["computes"] == "vectors"
    assert facts["sentence"]["modules"] == ["Normalize"]
    assert not facts["labels"]


def test_what_needs_the_weights_is_refused(folders: dict[str, Path]) -> None:
    folder = folders["vectors"]
    file = graph_file(folder)
    with refused("exported-graph", file):
        bothways.load(folder)
    for layers in (0, "all", "static"):
        with refused("exported-graph", file):
            bothways.encode(["the cat"], folder, layers=layers)
    with refused("exported-graph", graph_file(folders["classify"])):
        bothways.encode(["the cat"], folders["classify"])
    with refused("exported-graph", file):
        bothways.bert_score(["the cat"], ["the dog"], folder)
    with refused("exported-graph", ("device", "cuda")):
        bothways.encode(["the cat"], folder, device="cuda")
    with refused("exported-graph", ("dtype", "fp16")):
        bothways.encode(["the cat"], folder, dtype="fp16")
    with refused("exported-graph", "en"):
        Predictor.load(folders["classify"], base="en")
    with refused("no-head", "masked"):
        bothways.fill("the [MASK]", folders["classify"])
    with refused("not-a-reranker"):
        Reranker(folders["classify"])


def test_verbs_refuse_in_one_sentence(folders: dict[str, Path], run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\nthe cat\ta\nthe dog\tb\n", encoding="utf-8")
    done = run(
        "finetune", "classify", "--train", tmp_path / "train.tsv", "--model", folders["masked"], "--out", tmp_path / "o"
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(folders["masked"]) in done.stderr


def test_damaged_folders(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnx").mkdir()
    file, good = tmp_path / "onnx/model.onnx", graph_file(folders["classify"])
    assert good is not None
    file.write_bytes(good.read_bytes()[:5000])
    with refused("damaged-file", file):
        Predictor.load(tmp_path)
    file.write_bytes(good.read_bytes())
    with refused("no-file", tmp_path / "config.json"):
        Predictor.load(tmp_path)
    config = json.loads((folders["classify"] / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if "label" not in k}))
    with refused("bad-labels", (0, 3)):
        Predictor.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused("no-tokenizer"):
        Predictor.load(tmp_path)
    import onnx

    graph = onnx.load(good)
    del graph.metadata_props[:]
    onnx.save(graph, file)
    with refused("unknown-graph", file):
        Predictor.load(tmp_path)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with refused("missing-package", "onnxruntime"):
        Predictor.load(tmp_path)


def test_a_folder_with_weights_is_opened_with_them(
    folders: dict[str, Path], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    bothways.save(tuned("classify", tokenizer), tmp_path / "both")
    (tmp_path / "both/onnx").mkdir()
    good = graph_file(folders["classify"])
    assert good is not None
    (tmp_path / "both/onnx/model.onnx").write_bytes(good.read_bytes())
    assert isinstance(Predictor.load(tmp_path / "both").model, Model)


# ---------------------------------------------------------------------- threads


def test_threads_by_the_size_of_the_work(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    monkeypatch.setattr(threads, "SMALL", 20.0 * TINY.layers * TINY.block_weights)
    model = ExportedModel(graph_file(folders["vectors"]))  # type: ignore[arg-type]
    seen: list[int] = []
    session = model.session

    def watched(number: int) -> Any:
        seen.append(number)
        return session(number)

    monkeypatch.setattr(model, "session", watched)
    bothways.encode(["the cat"], model)
    bothways.encode(["the cat " * 12], model)
    assert seen == [1, 3]
    try:
        bothways.set_threads(2)
        bothways.encode(["the cat"], model)
    finally:
        bothways.set_threads(None)
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    bothways.encode(["the cat"], model)
    assert seen == [1, 3, 2, 4]


def test_logits_over_the_vocabulary_are_computed_in_small_batches(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothways.engine.graph_model._LOGITS", 10 * TINY.vocab_size)
    model = ExportedModel(graph_file(folders["masked"]))  # type: ignore[arg-type]
    assert GraphModel(model, None, None).backend.tokens == 10
    assert len(bothways.fill(["the [MASK] cat"] * 5, model, top=1)) == 5
