"""A folder with an ONNX graph, and all that is needed beside it: config.json, tokenizer, labels, card."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bothways import atomic
from bothways.errors import BothwaysError, missing_package, require_choice
from bothways.model.batch import Batch
from bothways.model.box import boxed_models, boxed_name, model_folder
from bothways.model.card import Made, graph_card
from bothways.model.card_text import CARD
from bothways.model.checkpoint import describe, write_settings
from bothways.model.exported import FILES as FILES
from bothways.model.exported import FOLDER, OUTPUT, WEIGHTS
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.weights import read_json

_USAGE = re.compile(r"^## Usage\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_LIBRARY = re.compile(r"^library_name: .*", re.MULTILINE)
TABLES = ("fp32", "fp16", "int8")
_HEADS = ("sequence", "token", "span", "choice", "masked", "replaced", "next")
"""What a model with several heads is exported for: the first of these that it has."""
_MOST = 2**31 - 1
"""Bytes of a protobuf file."""
_LENGTHS = (9, 31, 1, 16)
"""Tokens of the sequences that a graph is checked with."""


@dataclass(frozen=True)
class Exported:
    """A graph that was written."""

    file: Path
    output: str
    """The head; or "states", "vectors" or "tokens"."""
    size: int
    """Bytes."""
    difference: float | None
    """The largest difference of its outputs from ours, relative to the largest output; None without onnxruntime."""


def export_onnx(
    model: Model | Path | str,
    out: Path | str,
    *,
    precision: str = "fp32",
    tables: str | None = None,
    attentions: bool = False,
    output: str | None = None,
    base: Path | str | None = None,
) -> Exported:
    """Write a model as an ONNX graph into `out`/onnx, and compare it with the model if onnxruntime is installed.

    `output`: the head, or "states" (hidden states), "vectors" (of texts) or "tokens" (ColBERT); by default what the
    model was trained for. `tables`: the precision of embedding tables, by default that of matrices. `attentions`: with
    the attention weights of every layer. A folder may hold one graph of each precision. `base`: as in `bothways.load`.
    """
    require_choice("`precision`", precision, tuple(FILES))
    if tables is not None:
        require_choice("`tables`", tables, TABLES)
    require_onnx()
    from bothways.export.onnx import GraphSettings, build

    source = None if isinstance(model, Model) else model_folder(model)
    model = (model if isinstance(model, Model) else load(model, base=base)).float().eval()
    output, out = output or default_output(model), Path(out)
    settings: Any = {"precision": precision, "tables": tables, "attentions": attentions}
    graph = build(model, output, GraphSettings(**settings))
    weights = digest_of(model)
    graph.metadata_props.add(key=WEIGHTS, value=weights)
    size, name = graph.ByteSize(), FILES[precision]
    if size > _MOST:
        raise BothwaysError(
            f"the graph has {size / 1e9:.1f} GB, and a file of ONNX at most 2.1: choose a smaller `precision`",
            "too-large",
            size,
        )
    difference, data = compare(model, output, graph), graph.SerializeToString()
    if _is_export_of(out, model, output, weights):
        with atomic.new_file(out / FOLDER / name) as temporary:
            temporary.write_bytes(data)
    else:
        with atomic.new_folder(out, replaces=()) as fresh:
            write_settings(model, fresh, torch.float32, _card(model, source, out, output))
            (fresh / FOLDER).mkdir()
            (fresh / FOLDER / name).write_bytes(data)
    return Exported(out / FOLDER / name, output, size, difference)


def _card(model: Model, source: Path | None, out: Path, output: str) -> str:
    """That of the model that was exported, with the usage of a graph, which transformers and PEFT do not open."""
    name = boxed_name(source) if source else None
    own = next((one for one in boxed_models() if one.name == name), None)
    made = Made(out.name, f"{own.name}, a model that bothways includes: {own.about}. {own.score}.") if own else None
    ours = graph_card(model, out, output, made)
    if source is None or not (source / CARD).is_file():
        return ours
    usage = _USAGE.search(ours)
    assert usage is not None
    theirs = (source / CARD).read_text("utf-8", "replace")
    if theirs.startswith("---\n"):
        theirs = _LIBRARY.sub("library_name: onnx", theirs, count=1)
    if _USAGE.search(theirs) is None:
        return f"{theirs.rstrip()}\n\n{usage[0]}"
    return _USAGE.sub(lambda _: usage[0], theirs, count=1)


def default_output(model: Model) -> str:
    """What a model is exported for: vectors if its folder tells how to make them, else its head, else hidden states."""
    if model.late is not None:
        return "tokens"
    if model.sentence is not None:
        return "vectors"
    return next((head for head in _HEADS if head in model.heads), "states")


def compare(model: Model, output: str, graph: Any) -> float | None:
    """The largest difference of a graph's outputs from ours, on random tokens; None without onnxruntime."""
    try:
        import onnxruntime
    except ImportError:
        return None
    shape, random = model.config.encoder, np.random.default_rng(0)
    lengths = [min(length, shape.max_length) for length in _LENGTHS]
    ids = [random.integers(0, shape.vocab_size, length) for length in lengths]
    segments = [random.integers(0, max(shape.segments, 1), length) for length in lengths]
    feed = {"input_ids": _padded(ids), "attention_mask": _padded([np.ones_like(row) for row in ids])}
    feed["token_type_ids"] = _padded(segments)
    if output == "choice":
        feed = {name: rows.reshape(2, 2, -1) for name, rows in feed.items()}
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {one.name: feed[one.name] for one in session.get_inputs()})
    with torch.inference_mode():
        batch = Batch.pack(ids, segments if shape.segments else None).to(model.device)
        expected = _expected(model, output, batch).float().cpu().numpy()
    theirs = np.stack(found[:2], -1) if output == "span" else found[1] if output == "vectors" else found[0]
    if output == "choice":
        theirs = theirs.reshape(-1, 1)
    elif theirs.ndim == 3:
        theirs = theirs[feed["attention_mask"] > 0]
    return float(np.abs(theirs - expected).max() / max(1.0, float(np.abs(expected).max())))


def _expected(model: Model, output: str, batch: Batch) -> torch.Tensor:
    states: torch.Tensor = model.encoder(batch)
    match output:
        case "states":
            found = states
        case "masked":
            found = model.masked(states)
        case "tokens":
            assert model.late is not None
            found = model.late(states)
        case "vectors":
            pooling = Pooling(("mean",)) if model.sentence is None else model.sentence.pooling
            found = pooling(states, batch)
            found = found if model.sentence is None else model.sentence(found)
        case _:
            found = model.logits(output, states, batch)
    return found


def _padded(rows: list[Any]) -> Any:
    found = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return found


def digest_of(model: Model) -> str:
    """Of the weights, by which two models of one config are told apart."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


def _is_export_of(out: Path, model: Model, output: str, weights: str) -> bool:
    """Whether a folder holds graphs of this very model for the same output, to which another precision may be added.

    The card tells of one output, and a folder is opened by the first graph that it has.
    """
    if not (out / FOLDER).is_dir():
        return False
    described = json.loads(json.dumps(describe(model, torch.float32)))
    if read_json(out / "config.json") != described:
        raise BothwaysError(f"{out} holds graphs of another model: name another `out`", "other-files", out)
    for file in (out / FOLDER / name for name in FILES.values()):
        told = _told_by(file) if file.exists() else {}
        if told.get(WEIGHTS, weights) != weights:
            raise BothwaysError(f"{out} holds graphs of another model: name another `out`", "other-files", out)
        if (own := told.get(OUTPUT, output)) != output:
            says = f"{out} holds a graph for {own}, and this one is for {output}: name another `out`"
            raise BothwaysError(says, "other-files", out)
    return True


def _told_by(file: Path) -> dict[str, str]:
    """What a graph says about itself."""
    import onnx

    try:
        graph = onnx.load(file, load_external_data=False)
    except Exception as error:  # protobuf's own
        says = f"{file} is damaged: remove it, or name another `out`"
        raise BothwaysError(says, "damaged-file", file) from error
    return {one.key: one.value for one in graph.metadata_props}


def require_onnx() -> None:
    """Refuse to export without the package, which an extra installs."""
    try:
        import onnx  # noqa: F401
    except ImportError:
        raise missing_package("exporting", "onnx") from None
