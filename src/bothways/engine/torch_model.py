"""A model with weights in the engine: torch computes, on any device."""

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor, nn

from bothways.engine.backend import HeadReader, TorchBackend
from bothways.engine.compiled import CompilePolicy, EncoderCalls
from bothways.engine.threads import threads_for, use_wanted_threads
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.device import Device, Precision, announce, find_device, find_dtype
from bothways.model.load import load
from bothways.model.model import Model


class TorchModel:
    """A model in evaluation mode on a device."""

    def __init__(
        self,
        model: Model | Path | str | None,
        device: Device | None,
        dtype: Precision | None,
        compile: CompilePolicy,
    ) -> None:
        if model is not None and not isinstance(model, Model | Path | str):
            raise BothwaysError(
                f"a model or its folder was expected, and {model!r} was given: Predictor.load opens a folder",
                "bad-input",
                model,
            )
        use_wanted_threads()
        model, self.device = _opened(model, device, dtype)
        self.model = model.eval() if model.training else model
        if self.device.type == "cpu" and platform.machine() == "aarch64":
            _store_by_columns(self.model)
        self.backend = TorchBackend(self.device)
        self.states = EncoderCalls(self.model.encoder, compile)

    @contextmanager
    def around(self, tokens: int) -> Iterator[None]:
        """Around the computation of a batch: on a GPU exact sums, and its time; on a CPU the number of threads."""
        if self.device.type != "cuda":
            with threads_for(tokens, self.model.config.encoder):
                yield
            return
        with torch.cuda.device(self.device), self.states.timed(), _exact_sums():
            yield

    def outputs(self, task: HeadReader, batch: Batch) -> Tensor:
        found: Tensor = task.outputs(self.model, self.states(batch), batch)
        return found

    def vectors(self, batch: Batch) -> Tensor | None:
        """None: they are pooled from hidden states."""
        return None

    def masked(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        states = self.states(batch)
        return lambda at: self.model.masked(states[at]).float()

    def replaced(self, batch: Batch) -> Tensor:
        return self.model.logits("replaced", self.states(batch), batch)[:, 0].float()

    def require_layers(self, layers: Sequence[int] | None) -> None:
        """Any: all are computed."""

    def hidden(self, batch: Batch, layers: Sequence[int] | None) -> list[Tensor]:
        encoder = self.model.encoder
        if layers is None:
            return [encoder.embeddings.tokens(batch.ids)]
        if set(layers) == {encoder.config.layers}:
            return [self.states(batch)] * len(layers)
        seen = encoder.activations(batch, hidden_states=set(layers))
        return [seen.hidden_states[n] for n in layers]


@contextmanager
def _exact_sums() -> Iterator[None]:
    """Sum products of 16-bit numbers in fp32 throughout: by default cuBLAS may add partial sums in 16 bits.

    It does so for small matrices, so that a text alone would get another answer than among others.
    """
    settings, names = torch.backends.cuda.matmul, [f"allow_{half}_reduced_precision_reduction" for half in _HALVES]
    with _LOCK:  # the settings are those of the process: the first thread changes them, and the last restores them
        if not _BEFORE:
            _BEFORE.append([getattr(settings, name) for name in names])
            for name in names:
                setattr(settings, name, False)
        _INSIDE.append(None)
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.pop()
            if not _INSIDE:
                for name, value in zip(names, _BEFORE.pop(), strict=True):
                    setattr(settings, name, value)


_HALVES = ("bf16", "fp16")
_LOCK = Lock()
_BEFORE: list[list[bool]] = []
"""The settings before the first thread."""
_INSIDE: list[None] = []
"""One for each thread that computes."""


def _store_by_columns(model: Model) -> None:
    """Store matrices in memory by columns; their values and shapes stay.

    On 64-bit ARM torch then multiplies faster, as it need not rearrange them at every call: by a quarter for one short
    text, by an eighth for many.
    """
    with _LOCK:  # no thread computes with a model that another one is rearranging
        first = next((part for part in model.modules() if isinstance(part, nn.Linear)), None)
        if first is not None and first.weight.is_contiguous():  # else all are stored so already
            for part in model.modules():
                if isinstance(part, nn.Linear):
                    part.weight.data = part.weight.data.t().contiguous().t()


def _opened(
    model: Model | Path | str | None, device: Device | None, dtype: Precision | None
) -> tuple[Model, torch.device]:
    is_chosen = not isinstance(model, Model) and not (device and dtype)
    if isinstance(model, Model):
        target = model.device if device is None else find_device(device)
        precision = model.dtype if dtype is None else find_dtype(dtype, target)
        if precision != model.dtype:
            model = copy.deepcopy(model).to(precision)
        if target != model.device:
            model = model.to(target)
    else:
        target = find_device(device or "auto")
        precision = find_dtype(dtype or "auto", target)
        model = load(model, device=target, dtype=precision)
    if is_chosen or "auto" in (device, dtype):
        announce(target, precision)
    return model, model.device
