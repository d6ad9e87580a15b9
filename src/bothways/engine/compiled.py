"""An encoder that is compiled once the work is long enough to earn it.

Compiling takes 10 to 60 seconds and makes a GPU up to a third faster. So the encoder runs as it is until a GPU has been
busy with it for `WORTH_SECONDS`: ten texts never wait for a compiler, and a job of an hour waits once.
"""

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from bothways.engine.engine import CompilePolicy as CompilePolicy
from bothways.model.batch import Batch
from bothways.model.encoder import Encoder

WORTH_SECONDS = 40.0
"""Seconds of a GPU's work, after which compiling pays off: it costs about as much as was lost by then."""


@dataclass
class _Usage:
    """How long a GPU was busy with an encoder."""

    seconds: float = 0.0
    running: deque[tuple[Any, Any]] = field(default_factory=deque)
    is_refused: bool = False
    """Whether the compiler failed."""


_USED: "WeakKeyDictionary[Encoder, _Usage]" = WeakKeyDictionary()


class EncoderCalls:
    """Calls an encoder, compiled or not."""

    def __init__(self, encoder: Encoder, policy: CompilePolicy) -> None:
        self.encoder, self.policy = encoder, policy
        self.usage = _USED.setdefault(encoder, _Usage())

    def __call__(self, batch: Batch) -> Tensor:
        if not self._is_worth_it(batch):
            return self.encoder(batch)  # type: ignore[no-any-return]
        try:
            return _compiled()(self.encoder, batch)
        except Exception as error:
            if self.policy == "always":
                raise
            warnings.warn(f"the encoder runs uncompiled, as the compiler failed: {error}", stacklevel=2)
            self.usage.is_refused = True
            return self.encoder(batch)  # type: ignore[no-any-return]

    def _is_worth_it(self, batch: Batch) -> bool:
        """Dense attention is planned outside the compiler, so its batches are not compiled."""
        is_half = self.encoder.embeddings.tokens.weight.dtype in (torch.bfloat16, torch.float16)
        if self.policy == "never" or not batch.ids.is_cuda or not is_half or self.encoder.config.has_score_bias:
            return False
        return self.policy == "always" or (self.usage.seconds >= WORTH_SECONDS and not self.usage.is_refused)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time of the GPU in this block, without waiting for it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        running = self.usage.running
        running.append((begin, end))
        while running and running[0][1].query():
            begin, end = running.popleft()
            self.usage.seconds += begin.elapsed_time(end) / 1000


@cache
def _compiled() -> Callable[[Encoder, Batch], Tensor]:
    """Shapes are dynamic: one graph serves all batches. It is kept on disk for the next process."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home / "bothways" / "compiled"))
    return torch.compile(Encoder.forward, dynamic=True)
