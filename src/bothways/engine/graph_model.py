"""An exported graph in the engine: ONNX Runtime computes, on the CPU, without torch.

B sequences · L the longest of them · N tokens of all · V vocabulary.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.engine.backend import HeadReader, NumpyBackend, PaddedBatch
from bothways.engine.threads import threads_of_graph
from bothways.errors import BothwaysError
from bothways.model.device import Device, Precision
from bothways.model.exported import ExportedModel, not_for_graphs

Rows = NDArray[np.float32]
_LOGITS = 2**24
"""Logits over the vocabulary that are held at once: the graph computes them for every token."""

_MADE_BY = {"last_hidden_state": "vectors", "sentence_embedding": "vectors"}
"""What to export for, by the output that is missing."""


class GraphModel:
    """The sessions of a graph."""

    def __init__(self, model: ExportedModel, device: Device | None, dtype: Precision | None) -> None:
        for name, value, allowed in (
            ("device", device, ("auto", "cpu")),
            ("dtype", dtype, ("auto", "fp32", model.precision)),
        ):
            if value is not None and str(value) not in allowed:
                raise BothwaysError(
                    f"`{name}` is {value}, and the graph {model.file.name} computes on the CPU, as it was exported: "
                    "leave it out, or use the model that it was exported from",
                    "exported-graph",
                    (name, str(value)),
                )
        self.model, self.backend, self.device = model, NumpyBackend(), model.device
        if model.output == "masked":
            most = max(_LOGITS // model.config.encoder.vocab_size, 1)
            self.backend = NumpyBackend(tokens=min(self.backend.tokens, most))

    def around(self, tokens: int) -> AbstractContextManager[None]:
        return nullcontext()

    def states(self, batch: PaddedBatch) -> Rows:
        """(N, W)."""
        return batch.packed(self._run(batch, "last_hidden_state"))

    def outputs(self, task: HeadReader, batch: PaddedBatch) -> Rows:
        """(B, …) or (N, …), as `Model.logits`."""
        if task.head == "span":
            return batch.packed(np.stack(self._run(batch, "start_logits", "end_logits"), -1))
        rows: Rows = self._run(batch, "logits" if task.head else "sentence_embedding")
        return batch.packed(rows) if task.head == "token" else rows

    def vectors(self, batch: PaddedBatch) -> Rows | None:
        """The vectors of texts as the folder says; None if the graph computes something else."""
        return self._run(batch, "sentence_embedding") if self.model.output == "vectors" else None

    def masked(self, batch: PaddedBatch) -> Callable[[NDArray[np.int64]], Rows]:
        logits = batch.packed(self._run(batch, "logits"))
        return lambda at: logits[at]

    def replaced(self, batch: PaddedBatch) -> Rows:
        rows: Rows = batch.packed(self._run(batch, "logits"))[:, 0]
        return rows

    def require_layers(self, layers: Sequence[int] | None) -> None:
        """Refuse hidden states that a graph does not compute."""
        if layers is None or set(layers) != {self.model.config.encoder.layers}:
            raise not_for_graphs(self.model.file, "a value of `layers` other than last")
        self._require("last_hidden_state")

    def hidden(self, batch: PaddedBatch, layers: Sequence[int]) -> list[Rows]:
        return [self.states(batch)] * len(layers)

    def _require(self, *names: str) -> None:
        if missing := [name for name in names if name not in self.model.outputs]:
            file, own, other = self.model.file, self.model.output, _MADE_BY.get(missing[0], "another head")
            says = f"{file} was exported for {own} and does not compute {missing[0]}: export its model for {other} too"
            raise BothwaysError(says, "exported-graph", file)

    def _run(self, batch: PaddedBatch, *names: str) -> Any:
        model = self.model
        self._require(*names)
        feed = {"input_ids": batch.ids, "attention_mask": batch.mask, "token_type_ids": batch.segments}
        if model.output == "choice":  # each option is an example of its own, as for a model with weights
            feed = {name: rows[:, None] for name, rows in feed.items()}
        threads = threads_of_graph(batch.ids.size, model.config.encoder)
        found = model.session(threads).run(list(names), {name: feed[name] for name in model.inputs})
        return found if len(names) > 1 else found[0]
