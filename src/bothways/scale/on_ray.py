"""Units over the machines of a Ray cluster, by Ray Data. The machines share a file system, in which the parts are."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from bothways.errors import BothwaysError, missing_package
from bothways.scale.jobs import Job, Runner
from bothways.scale.processes import ATTEMPTS, Done, parse_processes
from bothways.scale.units import TellOf, Unit, tell_nobody
from bothways.scale.worker import Order, Reply, SayOnce, answer

_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, Ray warns of how a later version sets this
    "RAY_worker_niceness": "0",  # by default workers are niced, and other processes of the machine starve them
}


class RayWorker:
    """An actor: a job that is opened once."""

    def __init__(self, job: Job, device: str, folder: str) -> None:
        try:
            os.chdir(folder)
            self.missing = None
        except OSError:
            says = f"a machine of the cluster has no folder {folder}: all machines must share a file system"
            self.missing = BothwaysError(says, "no-folder", folder)
        self.order = Order(job, device)
        self.runner: Runner | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """The unit's number, and the reply as JSON: an exception would lose its class on the way."""
        unit = Unit(row["file"], row["first"], row["rows"] if row["rows"] >= 0 else None, Path(row["part"]))
        error = self.missing or _begin(unit)
        reply = Reply(error=error)
        if error is None:
            reply, self.runner = answer(self.order, self.runner, unit)
        if reply.failure:
            with _attempts(unit).open("a", encoding="utf-8") as stream:
                stream.write(reply.failure.strip().rpartition("\n")[2])
            os._exit(1)  # Ray repeats the unit in a fresh process, and repeats no unit that raised an exception
        refused = reply.error and [str(reply.error), reply.error.code, str(reply.error.value)]
        answered = {"counts": reply.counts, "error": refused, "warnings": reply.warnings}
        return {"number": row["number"], "reply": json.dumps(answered)}


def _attempts(unit: Unit) -> Path:
    """A file with a line end for each beginning of a unit, and how it ended: Ray itself would repeat it for ever."""
    return unit.part.with_suffix(".attempts")


def _begin(unit: Unit) -> BothwaysError | None:
    """Note that a unit is begun; an error if it was begun too often."""
    path = _attempts(unit)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as stream:
        stream.seek(0)
        before = stream.read()
        stream.write("\n")
    if before.count("\n") < ATTEMPTS:
        return None
    says = f"{ATTEMPTS} workers ended in {unit}, the last with: {before.rpartition(chr(10))[2] or 'a kill'}"
    return BothwaysError(says, "worker-died", unit.file)


def run_ray(
    job: Job, units: Sequence[Unit], address: str, devices: str, *, tell: TellOf = tell_nobody
) -> Iterator[Done]:
    """The units over the workers of a cluster, as they are done. Ray replaces workers that die.

    `tell` hears nothing: messages before the end of a unit would need a further actor.
    """
    if not units:
        return
    for unit in units:
        _attempts(unit).unlink(missing_ok=True)  # those of an earlier call
    say = SayOnce()
    # Ray prints that a worker has died on standard output, which is for results.
    with redirect_stdout(sys.stderr), _cluster(address) as ray:
        for row in (_rows if address == "ray" else _remote_rows)(ray, job, units, devices, os.getcwd()):
            found = json.loads(row["reply"])
            say(found["warnings"])
            if found["error"]:
                sentence, code, value = found["error"]
                raise BothwaysError(sentence, code, value)
            yield units[row["number"]], found["counts"]


class _Driver:
    """An actor that drives Ray Data inside the cluster: it does not work through a client's connection."""

    def __init__(self, job: Job, units: Sequence[Unit], devices: str, folder: str) -> None:
        import ray
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        self.rows = _rows(ray, job, units, devices, folder)

    def next_row(self) -> dict[str, Any] | None:
        """The next row; None after the last."""
        return next(self.rows, None)


def _remote_rows(ray: Any, job: Job, units: Sequence[Unit], devices: str, folder: str) -> Iterator[dict[str, Any]]:
    """The same rows, through a client's connection. The actor ends with the connection."""
    driver = ray.remote(num_cpus=0)(_Driver).remote(job, units, devices, folder)
    try:
        while (row := ray.get(driver.next_row.remote())) is not None:
            yield row
    except ray.exceptions.RayTaskError as error:
        raise _ended(error) from error


def _rows(ray: Any, job: Job, units: Sequence[Unit], devices: str, folder: str) -> Iterator[dict[str, Any]]:
    """What became of each unit, as soon as it is known. `folder` is the working directory of the workers."""
    gpus = int(ray.cluster_resources().get("GPU", 0)) if devices == "all" else 0
    workers = gpus or (_cpus(ray) if devices in ("all", "cpu") else parse_processes(devices))
    items = [
        {
            "number": number,
            "file": unit.file,
            "first": unit.first,
            "rows": -1 if unit.rows is None else unit.rows,
            "part": str(unit.part),
        }
        for number, unit in enumerate(units)
    ]
    needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    # One unit at a time for each worker: with more, units would wait behind a slow one while other workers are idle.
    data = ray.data.from_items(items, override_num_blocks=len(items)).map(
        RayWorker,
        fn_constructor_args=(job, "cuda" if gpus else "cpu", folder),
        compute=ray.data.ActorPoolStrategy(size=min(workers, len(items)), max_tasks_in_flight_per_actor=1),
        **needs,
    )
    try:
        yield from data.iter_rows()
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise _ended(error) from error


def _ended(error: Exception) -> BothwaysError:
    why = str(error).strip().rpartition("\n")[2]
    return BothwaysError(f"the run on Ray ended with: {why}", "worker-died", why)


def _cpus(ray: Any) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Ray, connected to a cluster; `ray` is the one that runs here, or that RAY_ADDRESS names, else a new one."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
        import ray.data
    except ImportError:
        raise missing_package("`on`", "ray") from None
    if address != "ray" and not address.startswith("ray://"):
        raise BothwaysError(f"`on` cannot be {address!r}: expected ray or ray://host:port", "unknown-choice", address)
    try:
        with _silent():
            _connect(ray, address)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        why = str(error).strip().partition("\n")[0]
        raise BothwaysError(f"Ray cannot be reached at {address}: {why}", "no-cluster", address) from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        yield ray
    finally:
        ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address != "ray":
        ray.init(address, **quiet)
        return
    try:
        ray.init("auto", **quiet)
    except ConnectionError:  # no cluster is running
        ray.init("local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)


@contextmanager
def _silent() -> Iterator[None]:
    """Drop standard error, where Ray's own code says that it obeys RAY_BACKEND_LOG_LEVEL."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
