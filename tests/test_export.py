"""ONNX graphs: equal to the model in ONNX Runtime, for every family, head, pooling and precision."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

import bothways
from bothways.errors import BothwaysError
from bothways.export.activations import BY_NAME
from bothways.export.folder import FILES, default_output
from bothways.export.onnx import GraphSettings, build
from bothways.model.activations import ACTIVATIONS
from bothways.model.batch import Batch
from bothways.model.box import has_box
from bothways.model.checkpoint import save
from bothways.model.config import Disentangled, EncoderConfig, Learned, ModelConfig, Rotary
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import Dense, Normalize, Sentence
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, make_loud, refused
from helpers.cli import Run

LIMIT = 1e-5
LENGTHS = (7, 40, 1, 20)
SMALL = replace(TINY, vocab_size=99, width=32, layers=3, num_heads=4, ffn_width=48)
CASES = [
    (family, head)
    for family, one in FAMILIES.items()
    for head in ("", *one.heads)
    if head != "pooler"
]  # fmt: skip

Feed = dict[str, NDArray[np.int64]]


def loud(shape: EncoderConfig, family: str = "bert", head: str = "") -> Model:
    needs = FAMILIES[family].heads[head].needs if head else ()
    model = Model.new(ModelConfig(shape, (*needs, head) if head else (), ("a", "b", "c"), family), seed=1).eval()
    make_loud(model)
    return model


def sequences(shape: EncoderConfig, lengths: tuple[int, ...] = LENGTHS) -> tuple[list[list[int]], list[list[int]]]:
    """Token ids and segments."""
    random = np.random.default_rng(3)
    ids = [random.integers(0, shape.vocab_size, length).tolist() for length in lengths]
    return ids, [random.integers(0, max(shape.segments, 1), length).tolist() for length in lengths]


def padded(ids: list[list[int]], segments: list[list[int]], *, left: bool = False, spare: int = 0) -> Feed:
    """Padding on the right or on the left, and with `spare` columns of nothing but padding."""
    longest = max(map(len, ids)) + spare
    feed = {name: np.zeros((len(ids), longest), np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for row, (tokens, kinds) in enumerate(zip(ids, segments, strict=True)):
        here = slice(longest - len(tokens), longest) if left else slice(0, len(tokens))
        for name, values in zip(feed, (tokens, [1] * len(tokens), kinds), strict=True):
            feed[name][row, here] = values
    return feed


def outputs(graph: onnx.ModelProto, feed: Feed) -> dict[str, NDArray[np.float32]]:
    onnx.checker.check_model(graph)
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})
    return dict(zip((one.name for one in session.get_outputs()), found, strict=True))


def expected(model: Model, head: str, ids: list[list[int]], segments: list[list[int]]) -> NDArray[np.float32]:
    batch = Batch.pack(ids, segments)
    model.encoder.backend = "reference"
    with torch.no_grad():
        states = model.encoder(batch)
        if head == "masked":
            states = model.masked(states)
        elif head:
            states = model.logits(head, states, batch)
    found: NDArray[np.float32] = states.numpy()
    return found


def difference(found: NDArray[np.float32], wanted: NDArray[np.float32]) -> float:
    assert found.shape == wanted.shape
    return float(np.abs(found - wanted).max() / max(1.0, np.abs(wanted).max()))


# ---------------------------------------------------------------------- families and heads


@pytest.mark.slow
@pytest.mark.parametrize(("family", "head"), CASES, ids=[f"{family} {head or 'states'}" for family, head in CASES])
def test_every_family_and_head(family: str, head: str) -> None:
    shape = FAMILIES[family].fresh(SMALL)
    model = loud(shape, family, head)
    ids, segments = sequences(shape)
    feed = padded(ids, segments)
    if head == "choice":
        feed = {name: rows.reshape(2, 2, -1) for name, rows in feed.items()}
    found = outputs(build(model, head or "states"), feed)
    first = np.stack(list(found.values()), -1) if head == "span" else next(iter(found.values()))
    if head == "choice":
        first = first.reshape(-1, 1)
    real = padded(ids, segments)["attention_mask"] > 0
    assert difference(first[real] if first.ndim == 3 else first, expected(model, head, ids, segments)) < LIMIT
    if first.ndim == 3:
        assert not first[~real].any()


VARIANTS: dict[str, tuple[str, EncoderConfig]] = {
    "windows": ("modernbert", replace(FAMILIES["modernbert"].fresh(SMALL), windows=(0, 3, 5))),
    "causal": ("bert", replace(SMALL, causal=True)),
    "shared keys": ("eurobert", replace(FAMILIES["eurobert"].fresh(SMALL), num_kv_heads=2)),
    "convolution": ("deberta-v2", replace(FAMILIES["deberta-v2"].fresh(SMALL), convolution=3)),
    "content to position": (
        "deberta",
        replace(FAMILIES["deberta"].fresh(SMALL), positions=Disentangled(64, 16, terms=("c2p",))),
    ),
    "far buckets": (
        "deberta-v2",
        replace(FAMILIES["deberta-v2"].fresh(SMALL), positions=Disentangled(64, 8, far=32, shared=True, norm=True)),
    ),
    "absolute and relative": (
        "deberta-v2",
        replace(FAMILIES["deberta-v2"].fresh(SMALL), positions=Disentangled(64, 16, shared=True, rows=64)),
    ),
    "slow rotation": (
        "modernbert",
        replace(FAMILIES["modernbert"].fresh(SMALL), positions=Rotary(64, base=50.0, factor=3.0)),
    ),
    "adjacent, 64 bits": (
        "modernbert",
        replace(FAMILIES["modernbert"].fresh(SMALL), positions=Rotary(64, in_64_bits=True, adjacent=True)),
    ),
    "narrow embeddings": ("albert", replace(FAMILIES["albert"].fresh(SMALL), embedding_width=8)),
    "positions from 2": ("bert", replace(SMALL, positions=Learned(66, offset=2))),
    "padding inside": ("roberta", replace(SMALL, segments=1, positions=Learned(66, offset=2, skips_padding=True))),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_every_detail_of_an_encoder(name: str) -> None:
    family, shape = VARIANTS[name]
    model = loud(shape, family)
    ids, segments = sequences(shape)
    if name == "padding inside":
        ids[1][5] = ids[1][6] = 1
    real = (feed := padded(ids, segments))["attention_mask"] > 0
    found = outputs(build(model, "states"), feed)["last_hidden_state"]
    assert difference(found[real], expected(model, "", ids, segments)) < LIMIT


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_every_activation(name: str) -> None:
    assert ACTIVATIONS[name] in {ACTIVATIONS[known] for known in BY_NAME}
    shape = replace(SMALL, activation=name)
    model = loud(shape)
    ids, segments = sequences(shape)
    feed = padded(ids, segments)
    found = outputs(build(model, "states"), feed)["last_hidden_state"][feed["attention_mask"] > 0]
    assert difference(found, expected(model, "", ids, segments)) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "mpnet", "deberta-v2", "jina-bert-v2"])
def test_padding_makes_no_difference(family: str) -> None:
    """On either side, and however much: a text has one result."""
    shape = FAMILIES[family].fresh(SMALL)
    model = loud(shape, family, "sequence")
    graph, (ids, segments) = build(model, "sequence"), sequences(shape)
    wanted = expected(model, "sequence", ids, segments)
    for left in (False, True):
        for spare in (0, 8):
            found = outputs(graph, padded(ids, segments, left=left, spare=spare))["logits"]
            assert difference(found, wanted) < LIMIT
    alone = [outputs(graph, padded([a], [b]))["logits"] for a, b in zip(ids, segments, strict=True)]
    assert difference(np.concatenate(alone), wanted) < LIMIT


def test_attention_weights() -> None:
    model = loud(SMALL)
    ids, segments = sequences(SMALL)
    feed = padded(ids, segments)
    found = outputs(build(model, "states", GraphSettings(attentions=True)), feed)
    with torch.no_grad():
        maps = model.encoder.activations(Batch.pack(ids, segments), attentions=(1, 2, 3)).attentions
    for layer in (1, 2, 3):
        for row, (length, wanted) in enumerate(zip(LENGTHS, maps[layer], strict=True)):
            here = found[f"attentions.{layer - 1}"][row, :, :length]
            assert difference(here[:, :, :length], wanted.numpy()) < LIMIT
            assert not here[:, :, length:].any()


# ---------------------------------------------------------------------- vectors

POOLINGS = ["cls", "lasttoken", "mean", "mean_sqrt_len_tokens", "weightedmean", "max"]


@pytest.mark.parametrize("modes", [*((mode,) for mode in POOLINGS), ("cls", "mean"), ("max", "weightedmean")])
def test_vectors_of_texts(modes: tuple[Any, ...]) -> None:
    model = loud(SMALL)
    dense = Dense(32 * len(modes), 12, True, "torch.nn.modules.activation.Tanh")
    settings = {"truncate_dim": 8}
    model.sentence = Sentence(Pooling(modes), [dense, Normalize()], settings=settings).eval()
    assert default_output(model) == "vectors"
    ids, segments = sequences(SMALL)
    batch = Batch.pack(ids, segments)
    with torch.no_grad():
        wanted = model.sentence(model.sentence.pooling(model.encoder(batch), batch)).numpy()
    for left in (False, True):
        found = outputs(build(model, "vectors"), padded(ids, segments, left=left, spare=3))
        assert difference(found["sentence_embedding"], wanted) < LIMIT
    assert found["last_hidden_state"].shape == (4, 43, 32)


def test_a_prompt_that_is_not_pooled_is_refused() -> None:
    model = loud(SMALL)
    model.sentence = Sentence(Pooling(("mean",)), include_prompt=False, settings={"prompts": {"query": "q: "}})
    with refused("unsupported-setting", "include_prompt"):
        build(model, "vectors")


# ---------------------------------------------------------------------- precision


def quiet(shape: EncoderConfig) -> Model:
    """With weights as trained models have them, where rounding is small beside them."""
    return Model.new(ModelConfig(shape, ("pooler", "sequence"), ("a", "b", "c")), seed=2).eval()


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "limit"), {"fp16": 1e-3, "int8": 3e-2, "int8-blocks": 2e-2, "int4": 0.3}.items())
def test_a_text_has_one_result_in_every_precision(precision: Any, limit: float) -> None:
    """Alone and among others, which ONNX Runtime's own dynamic quantisation does not give."""
    shape = replace(SMALL, width=64, ffn_width=128)
    model = quiet(shape)
    graph, (ids, segments) = build(model, "states", GraphSettings(precision)), sequences(shape)
    feed = padded(ids, segments)
    found = outputs(graph, feed)["last_hidden_state"][feed["attention_mask"] > 0]
    alone = [outputs(graph, padded([a], [b]))["last_hidden_state"][0] for a, b in zip(ids, segments, strict=True)]
    assert difference(np.concatenate(alone), found) < LIMIT
    wanted = expected(model, "", ids, segments)
    assert 1e-7 < difference(found, wanted) < limit
    other = outputs(build(model, "states", GraphSettings("int8-dynamic")), feed)["last_hidden_state"]
    one = outputs(build(model, "states", GraphSettings("int8-dynamic")), padded(ids[:1], segments[:1]))
    assert difference(one["last_hidden_state"][0], other[0, : LENGTHS[0]]) > 1e-4


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int8-blocks", "int4"])
def test_sizes(precision: Any) -> None:
    """Bytes of weights, and tables in a precision of their own."""
    shape = replace(SMALL, vocab_size=2_000, width=64, ffn_width=256)
    model = quiet(shape)
    each = {"fp32": 4, "fp16": 2, "int8": 1, "int8-blocks": 1.13, "int4": 0.63}
    matrices = sum(p.numel() for name, p in model.encoder.blocks.named_parameters() if p.ndim > 1)
    tables = (2_000 + shape.max_length + 2) * 64
    for kind in (None, "fp32", "int8"):
        table = {"fp32": 4, "fp16": 2}.get(kind or precision, 1)
        size = build(model, "states", GraphSettings(precision, kind)).ByteSize()
        rest = size - matrices * each[precision] - tables * table
        assert 0 < rest < 60_000, (kind, rest)


# ---------------------------------------------------------------------- folders


@pytest.fixture
def classifier(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    shape = replace(TINY, vocab_size=tokenizer.size)
    model = Model.new(ModelConfig(shape, ("pooler", "sequence"), ("sad", "glad")), tokenizer, seed=4)
    make_loud(model)
    save(model, tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_has_all_that_is_needed(classifier: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    said = json.loads(run("export", classifier, "--out", out, "--json").stdout)
    assert (said["output"], said["file"]) == ("sequence", str(out / "onnx/model.onnx"))
    assert said["difference"] < LIMIT
    assert {"config.json", "tokenizer.json", "README.md", "onnx"} <= {file.name for file in out.iterdir()}
    assert json.loads((out / "config.json").read_text())["id2label"] == {"0": "sad", "1": "glad"}
    done = run("export", classifier, "--out", out, "--precision", "int8")  # beside the first
    assert "batch" not in done.stderr
    dynamic = run("export", classifier, "--out", tmp_path / "dynamic", "--precision", "int8-dynamic")
    assert "the result of a text depends on its batch" in dynamic.stderr
    assert {file.name for file in (out / "onnx").iterdir()} == {FILES["fp32"], FILES["int8"]}
    encoding = bothways.Tokenizer.load(out)("the cat runs")
    feed = padded([list(encoding.ids)], [list(encoding.segments)])
    found = outputs(onnx.load(out / "onnx/model.onnx"), feed)["logits"]
    model = bothways.load(classifier)
    assert difference(found, expected(model, "sequence", [list(encoding.ids)], [list(encoding.segments)])) < LIMIT


def test_the_card_tells_how_the_graph_is_used(classifier: Path, tmp_path: Path) -> None:
    card = classifier / "README.md"
    theirs = card.read_text()
    card.write_text(theirs.replace("# model", "# A fine model") + "\n## Licence\n\nours\n")
    assert "transformers" in theirs
    bothways.export_onnx(classifier, tmp_path / "out")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "# A fine model" in text
    assert ("library_name: onnx" in text, "library_name: transformers" in theirs) == (True, True)
    assert text.endswith("## Licence\n\nours\n")
    usage = text.partition("## Usage")[2]
    assert 'bothways.Predictor.load("out")' in usage
    assert "ONNX Runtime" in usage
    assert "from transformers" not in usage
    card.write_text("# Without usage\n")
    bothways.export_onnx(classifier, tmp_path / "other")
    text = (tmp_path / "other" / "README.md").read_text()
    assert text.startswith("# Without usage\n\n## Usage\n")
    bothways.export_onnx(bothways.boxed("spam"), tmp_path / "spam")
    assert "en-spam, a model that bothways includes: spam or not." in (tmp_path / "spam" / "README.md").read_text()


def run_card(folder: Path) -> str:
    """What the code of a card prints, in the folder that it was written for."""
    code = (folder / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    words = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(words, check=True, cwd=folder.parent, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("output", ["masked", "next", "replaced", "sequence", "token", "span", "vectors", "states"])
def test_the_code_of_the_card_runs(output: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """For whatever the graph computes, though the model has other heads."""
    own = () if output in ("vectors", "states", "masked", "next") else (output,)
    labels = ("O", "B-x", "I-x") if output in ("sequence", "token") else ()
    config = ModelConfig(TINY, ("pooler", "masked", "next", *own), labels)
    if output == "replaced":
        config = ModelConfig(TINY, own, family="electra")
    model = Model.new(config, tokenizer, seed=1)
    bothways.export_onnx(model, tmp_path / "out", output=output)
    assert run_card(tmp_path / "out")


def test_a_folder_holds_graphs_of_one_model_and_one_output(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Two fine-tunings may have the same config; what a folder is opened for must not depend on the precision."""
    config, out = ModelConfig(TINY, ("masked",)), tmp_path / "out"
    one, other = (Model.new(config, tokenizer, seed=seed) for seed in (1, 2))
    bothways.export_onnx(one, out, precision="fp16")
    for precision in ("fp16", "fp32"):
        with refused("other-files", out):
            bothways.export_onnx(other, out, precision=precision)
        with refused("other-files", out):
            bothways.export_onnx(one, out, precision=precision, output="vectors")
    bothways.export_onnx(one, out, attentions=True)
    assert len(list((out / "onnx").iterdir())) == 2
    (out / "onnx" / FILES["fp16"]).write_bytes(b"\xff" * 100)
    with refused("damaged-file", out / "onnx" / FILES["fp16"]):
        bothways.export_onnx(one, out)


def test_what_is_refused(classifier: Path, tmp_path: Path) -> None:
    with refused("unknown-choice", "int2"):
        bothways.export_onnx(classifier, tmp_path / "a", precision="int2")
    with refused("no-such-head", "span"):
        bothways.export_onnx(classifier, tmp_path / "a", output="span")
    with refused("no-such-head", "tokens"):
        bothways.export_onnx(classifier, tmp_path / "a", output="tokens")
    assert not (tmp_path / "a").exists()
    with refused("other-files"):
        bothways.export_onnx(classifier, classifier)
    bothways.export_onnx(classifier, tmp_path / "b")
    other = bothways.load(classifier)
    other.config = replace(other.config, labels=("up", "down"))
    with refused("other-files"):
        bothways.export_onnx(other, tmp_path / "b", precision="fp16")


def test_without_the_extra(classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert bothways.export_onnx(classifier, tmp_path / "a").difference is None
    monkeypatch.setitem(sys.modules, "onnx", None)
    with refused("missing-package", "onnx", names=r"bothways\[export\]"):
        bothways.export_onnx(classifier, tmp_path / "b")


@pytest.mark.skipif(not has_box(), reason="this copy has no model in the box")
@pytest.mark.parametrize("verb", ["export", "page"])
def test_the_model_of_a_task_is_named_as_on_other_verbs(
    verb: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def stop(*arguments: Any, **_: Any) -> None:
        asked.append(arguments)
        raise BothwaysError("seen", "seen")

    monkeypatch.setattr("bothways.export.folder.export_onnx", stop)
    monkeypatch.setattr("bothways.page.write.write_page", stop)
    run(verb, "--task", "pos", "--model", "zh", "--out", tmp_path / "a")
    folder = bothways.boxed("pos", "zh")
    assert asked == ([(folder, tmp_path / "a")] if verb == "export" else [(tmp_path / "a", [folder])])


@pytest.mark.slow
@pytest.mark.parametrize("task", ["nli", "answer"])
def test_tasks_of_the_box_are_exported(task: str, tmp_path: Path) -> None:
    found = bothways.export_onnx(bothways.boxed(task), tmp_path / "out")
    assert found.output == {"nli": "sequence", "answer": "span"}[task]
    assert found.difference is not None
    assert found.difference < LIMIT


def test_a_graph_that_is_too_large_for_a_file(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bothways.export.folder._MOST", 1_000)
    with refused("too-large"):
        bothways.export_onnx(classifier, tmp_path / "out")
    assert not (tmp_path / "out").exists()
