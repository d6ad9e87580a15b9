"""An exported folder: a graph that ONNX Runtime computes, with the config, tokenizer and labels beside it.

Opening one imports no torch.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError, missing_package
from bothways.model.config import ModelConfig
from bothways.model.facts import Host, the_tokenizer
from bothways.model.families import FAMILIES
from bothways.model.identify import read_labels
from bothways.model.pooling import Pooling
from bothways.model.sentence_files import DescribedVectors, Prompts, described_vectors
from bothways.model.weights import read_json
from bothways.text.tokenizer import READ as TOKENIZERS
from bothways.text.tokenizer import Tokenizer

FOLDER = "onnx"
"""Where transformers.js, Optimum and sentence-transformers look for graphs."""
FILES = {
    "fp32": "model.onnx",
    "fp16": "model_fp16.onnx",
    "int8": "model_quantized.onnx",
    "int8-blocks": "model_q8.onnx",
    "int4": "model_q4.onnx",
    "int8-dynamic": "model_int8.onnx",
}
"""The file of each precision, under the names of transformers.js where it has one. The first of these is opened."""
OUTPUT, FAMILY, PRECISION = "bothways.output", "bothways.family", "bothways.precision"
WEIGHTS = "bothways.weights"
"""What a graph says about itself: what it computes, the family of its config.json, its precision, and a digest of the
weights that it was made of."""
_WEIGHTS = ("*.safetensors", "pytorch_model*", "adapter_config.json", "*.ckpt.index")
_WITH_LABELS = ("sequence", "token")

Feed = Mapping[str, NDArray[np.int64]]


def graph_file(folder: Path) -> Path | None:
    """The graph of an exported folder, or the file itself; None for other folders, such as those with weights."""
    if folder.suffix == ".onnx" and folder.is_file():
        return folder
    if not (folder / FOLDER).is_dir():
        return None
    if any(fnmatch(file.name, weights) for file in folder.iterdir() for weights in _WEIGHTS):
        return None
    return next((folder / FOLDER / name for name in FILES.values() if (folder / FOLDER / name).exists()), None)


def not_for_graphs(file: Path, what: str) -> BothwaysError:
    """The error about something that needs the weights. `what`: a phrase that says what was asked for."""
    return BothwaysError(
        f"{file} is an exported graph, which answers only: {what} needs the model that it was exported from",
        "exported-graph",
        file,
    )


@dataclass(frozen=True)
class GraphVectors(Prompts):
    """How a graph makes the vector of a text, and what comes after the pooling of the windows of a long one."""

    pooling: Pooling
    steps: tuple[str, ...]
    max_length: int | None
    include_prompt: bool
    settings: dict[str, Any]
    full_width: int
    file: Path

    @classmethod
    def of(cls, told: DescribedVectors, full_width: int, file: Path) -> "GraphVectors":
        steps = tuple(kind for kind, _ in told.steps)
        return cls(told.pooling, steps, told.max_length, told.include_prompt, told.settings, full_width, file)

    @property
    def step_names(self) -> list[str]:
        """The modules after the pooling."""
        return list(self.steps)

    def width(self, width: int) -> int:
        """The width of the vectors."""
        return self.full_width

    def from_pooled(self, pooled: NDArray[np.float32]) -> NDArray[np.float32]:
        """The vectors of texts that were pooled outside of the graph."""
        for step in self.steps:
            if step != "Normalize":
                raise not_for_graphs(self.file, "a vector of several windows, before a layer with weights,")
            pooled = pooled / np.maximum(np.linalg.norm(pooled, axis=1, keepdims=True), 1e-12)
        return pooled[:, : self.settings.get("truncate_dim")]


class ExportedModel:
    """A graph with the config, the tokenizer and the labels of its folder."""

    late: None = None
    """Vectors of tokens are matched by a model with weights only."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.folder = file.parent.parent if file.parent.name == FOLDER else file.parent
        self._sessions: dict[int, Any] = {}
        self._opening = Lock()
        session = self.session(1)
        told = session.get_modelmeta().custom_metadata_map
        if OUTPUT not in told or told.get(FAMILY) not in FAMILIES:
            raise BothwaysError(
                f"{file} was not written by this version of `bothways export`: export the model again",
                "unknown-graph",
                file,
            )
        self.output, self.precision = told[OUTPUT], told.get(PRECISION, "")
        """What the graph computes: a head; or "states", "vectors" or "tokens"."""
        self.inputs = tuple(one.name for one in session.get_inputs())
        self.outputs = {one.name: one.shape for one in session.get_outputs()}
        self.config = self._read_config(told[FAMILY])
        has_tokenizer = any((self.folder / name).exists() for name in TOKENIZERS)
        self.tokenizer: Tokenizer | None = Tokenizer.load(self.folder) if has_tokenizer else None
        self.heads = self.config.heads
        self.device = Host()
        self.sentence_error: BothwaysError | None = None
        vectors = described_vectors(self.folder) if self.output == "vectors" else None
        width = self.outputs["sentence_embedding"][-1] if vectors else 0
        self.sentence = GraphVectors.of(vectors, width, file) if vectors else None

    def __repr__(self) -> str:
        shape = self.config.encoder
        return (
            f"ExportedModel({self.config.family}, {self.file.name}, {shape.layers} layers, width {shape.width}, "
            f"{shape.vocab_size:,} tokens, reads {shape.max_length:,}, computes {self.output})"
        )

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer, or an error if there is none."""
        return the_tokenizer(self)

    def session(self, threads: int) -> Any:
        """The graph in ONNX Runtime on this many threads. It is opened when it is first asked for."""
        with self._opening:
            if threads not in self._sessions:
                self._sessions[threads] = _open(self.file, threads)
            return self._sessions[threads]

    def _read_config(self, family: str) -> ModelConfig:
        raw = read_json(self.folder / "config.json")
        heads = (self.output,) if self.output in FAMILIES[family].heads else ()
        labels = read_labels(raw) if heads and FAMILIES[family].heads[heads[0]].has_labels else ()
        found = ModelConfig(FAMILIES[family].read_config(raw), heads, labels, family, raw)
        if self.output in _WITH_LABELS and self.outputs["logits"][-1] != len(labels):
            count = self.outputs["logits"][-1]
            raise BothwaysError(
                f"{self.folder / 'config.json'} names {len(labels)} labels (id2label), and the graph has {count} "
                "outputs: copy the config.json of the model that it was exported from",
                "bad-labels",
                (len(labels), count),
            )
        return found


def _open(file: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise missing_package(f"answering with {file}", "onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Threads sleep while they wait for each other: by default they spin, which takes the time of other work.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(os.fspath(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime raises many kinds
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise BothwaysError(f"{file} is damaged or is no graph: {reason}", "damaged-file", file) from error
