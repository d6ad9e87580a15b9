"""A worker process: reads a job and units from standard input, and answers.

The driver keeps standard input open for as long as it lives, so its end is the end of the worker too.
"""

import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from bothways.errors import BothwaysError, SaidOnceWarning
from bothways.scale.jobs import Job, Runner, run_unit
from bothways.scale.turns import Tell
from bothways.scale.units import Counts, Unit

Warned = tuple[str, str]
"""A warning, and what it is known by: that is said once."""


@dataclass(frozen=True)
class Order:
    """The first message to a worker."""

    job: Job
    device: str


@dataclass(frozen=True)
class Reply:
    """The answer to a unit: its counts, or the user's error, or the traceback of any other failure.

    Before it come replies that say how far the unit is.
    """

    counts: Counts | None = None
    error: BothwaysError | None = None
    failure: str = ""
    warnings: tuple[Warned, ...] = ()
    far: Counts | None = None


class SayOnce:
    """Gives the warnings of workers, each once."""

    def __init__(self) -> None:
        self._said = set[str]()

    def __call__(self, found: Iterable[Warned]) -> None:
        for message, key in found:
            if key not in self._said:
                self._said.add(key)
                warnings.warn(message, stacklevel=3)


def warned(message: str | Warning) -> Warned:
    """A warning of a worker. Its words are what it is known by, unless they are of the worker's own texts."""
    return str(message), type(message).__name__ if isinstance(message, SaidOnceWarning) else str(message)


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the driver ends its workers
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get among the replies
    units: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    order: Order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_read_units, args=(sys.stdin.buffer, units), daemon=True).start()
    runner = None

    def send(reply: Reply) -> None:
        pickle.dump(reply, replies)
        replies.flush()

    while True:
        reply, runner = answer(order, runner, units.get(), lambda far: send(Reply(far=far)))
        send(reply)
        if reply.failure:  # a fresh process may succeed, for example after an error of the GPU
            sys.exit(1)


def answer(order: Order, runner: Runner | None, unit: Unit, tell: Tell | None = None) -> tuple[Reply, Runner | None]:
    """The reply to a unit, and the opened job for the next one. `tell` hears how far the unit is."""
    counts, error, failure = None, None, ""
    with warnings.catch_warnings(record=True) as caught:
        try:
            runner = runner or open_job(order.job, order.device)
            counts = run_unit(runner, unit, tell)
        except BothwaysError as refused:
            error = BothwaysError(str(refused), refused.code, str(refused.value))
        except Exception:
            failure = traceback.format_exc()
    return Reply(counts, error, failure, tuple(warned(warning.message) for warning in caught)), runner


def open_job(job: Job, device: str) -> Runner:
    """Open a job on a device. Kernels go to the current GPU unless told otherwise, so that is set too."""
    if device.startswith("cuda:"):
        import torch

        if torch.device(device).index < torch.cuda.device_count():
            torch.cuda.set_device(device)
    return job.open(device)


def _read_units(stream: IO[bytes], units: "queue.SimpleQueue[Unit]") -> None:
    try:
        while True:
            units.put(pickle.load(stream))
    except (EOFError, OSError, pickle.UnpicklingError):
        os._exit(0)  # at once: a part that is half written has a temporary name
