"""Units over processes of this machine, one for each device. A process that dies is replaced and its unit repeated."""

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial

from bothways.errors import BothwaysError
from bothways.scale.jobs import Job, run_unit
from bothways.scale.units import Counts, TellOf, Unit, tell_nobody
from bothways.scale.worker import Order, Reply, SayOnce, open_job, warned

ATTEMPTS = 3
"""How often a unit is begun before the run stops."""
Done = tuple[Unit, Counts]


def parse_devices(written: str) -> list[str]:
    """`all` (the GPUs of this machine), a list such as `cuda:0,cuda:1`, or `cpu:2` for two processes."""
    import torch

    if written.startswith("cpu"):
        return ["cpu"] * parse_processes(written)
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if written == "all" and not gpus:
        raise BothwaysError(
            "`devices` is all, and torch finds no GPU: for two processes without one, say cpu:2", "no-gpu", written
        )
    found = gpus if written == "all" else ["cuda:0" if name == "cuda" else name for name in written.split(",")]
    for name in found:
        if name not in gpus:
            known = ", ".join(gpus) or "none"
            raise BothwaysError(f"`devices` names {name!r}, and the GPUs here are: {known}", "no-gpu", name)
    return found


def parse_processes(written: str) -> int:
    """The number of processes in `cpu:2`."""
    name, _, number = written.partition(":")
    if name != "cpu" or not (number or "1").isdigit() or not int(number or "1"):
        raise BothwaysError(
            f"`devices` cannot be {written!r}: expected cpu:2 for two processes, for example", "unknown-choice", written
        )
    return int(number or "1")


def run_here(job: Job, units: Sequence[Unit], device: str, *, tell: TellOf = tell_nobody) -> Iterator[Done]:
    """The units in this process, one after the other."""
    runner = open_job(job, device) if units else None
    for unit in units:
        assert runner is not None
        yield unit, run_unit(runner, unit, partial(tell, unit))


def run_processes(
    job: Job, units: Sequence[Unit], devices: Sequence[str], *, tell: TellOf = tell_nobody
) -> Iterator[Done]:
    """The units over processes, as they are done. An error of one ends all."""
    todo: queue.SimpleQueue[Unit] = queue.SimpleQueue()
    events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
    for unit in units:
        todo.put(unit)
    slots = [_Slot(job, device, _threads(len(devices)), todo, events) for device in devices[: len(units)]]
    say = SayOnce()
    try:
        for slot in slots:
            slot.thread.start()
        left = len(units)
        while left:
            unit, reply = events.get()
            say(reply.warnings)
            if reply.far is not None:
                tell(unit, reply.far)
            if reply.error is not None:
                raise reply.error
            if reply.counts is not None:
                left -= 1
                yield unit, reply.counts
    finally:
        for slot in slots:
            slot.stop()


_Event = tuple[Unit, Reply]


def _threads(processes: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // processes)


class _Slot:
    """One worker, and a thread that keeps it busy."""

    def __init__(
        self,
        job: Job,
        device: str,
        threads: int,
        todo: "queue.SimpleQueue[Unit]",
        events: "queue.SimpleQueue[_Event]",
    ) -> None:
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.order, self.threads, self.todo, self.events = Order(job, device), threads, todo, events
        self.process: subprocess.Popen[bytes] | None = None
        self.stopping = False
        self.lock = threading.Lock()  # a process must not be started after `stop`

    def _work(self) -> None:
        try:
            while not self.stopping:
                try:
                    unit = self.todo.get_nowait()
                except queue.Empty:
                    break
                self._do(unit)
        except BaseException as error:  # the driver waits for events: silence would be for ever
            failed = BothwaysError(f"a worker could not be started: {error}", "worker-died", str(error))
            self.events.put((unit, Reply(error=failed)))
        self._end()

    def stop(self) -> None:
        with self.lock:
            self.stopping = True
            if self.process is not None:
                self.process.kill()
        if self.thread.ident is not None:
            self.thread.join()

    def _do(self, unit: Unit) -> None:
        """Ask for a unit until there is an answer, or it has failed too often."""
        for attempt in range(1, ATTEMPTS + 1):
            reply, why = self._ask(unit)
            if self.stopping:
                return
            if reply is not None and not reply.failure:
                self.events.put((unit, reply))
                return
            if attempt < ATTEMPTS:
                again = f"a worker ended ({why}) in {unit}: this part is done again"
                self.events.put((unit, Reply(warnings=(warned(again),))))
        error = BothwaysError(f"{ATTEMPTS} workers ended in {unit}, the last with: {why}", "worker-died", unit.file)
        error.__cause__ = RuntimeError(reply.failure) if reply is not None else None
        self.events.put((unit, Reply(error=error)))

    def _ask(self, unit: Unit) -> tuple[Reply | None, str]:
        """The worker's reply, if there is one; how the worker ended, if it did."""
        process, reply = self._started(), None
        if process is None:
            return None, "stopped"
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(unit, process.stdin)
            process.stdin.flush()
            while (reply := pickle.load(process.stdout)).far is not None:
                self.events.put((unit, reply))
            if not reply.failure:
                return reply, ""
        except (EOFError, OSError, pickle.UnpicklingError):
            pass
        code = process.wait()
        self._end()
        if reply is not None:
            return reply, reply.failure.strip().rpartition("\n")[2]
        return None, f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def _started(self) -> "subprocess.Popen[bytes] | None":
        with self.lock:
            if self.stopping or self.process is not None:
                return self.process if not self.stopping else None
            self.process = process = subprocess.Popen(
                [sys.executable, "-c", "from bothways.scale.worker import main; main()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(self.threads),
            )
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # if it has died already, the next message finds that
            pickle.dump(self.order, process.stdin)
            process.stdin.flush()
        return process

    def _end(self) -> None:
        """Close the worker's standard input, which ends it."""
        with self.lock:
            process, self.process = self.process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        process.wait()


def _environment(threads: int) -> dict[str, str]:
    """That of this process. Workers share the cores, and find the same modules."""
    own = {"OMP_NUM_THREADS": str(threads), "RAYON_NUM_THREADS": str(threads)}
    return {**own, **os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
