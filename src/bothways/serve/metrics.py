"""Counters of the service in the text format of Prometheus. Labels are known names only, never what a client sent."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (16, 64, 256, 1024, 2048, 4096, 16384, 65536)
_PREFIX = "bothways"
Labels = tuple[str, ...]


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total, self.number = bounds, [0] * len(bounds), 0.0, 0

    def add(self, value: float) -> None:
        self.total, self.number = self.total + value, self.number + 1
        for i, bound in enumerate(self.bounds):
            self.counts[i] += value <= bound

    def lines(self, name: str, labels: str) -> Iterator[str]:
        comma = "," if labels else ""
        for bound, count in zip(self.bounds, self.counts, strict=True):
            yield f'{name}_bucket{{{labels}{comma}le="{bound:g}"}} {count}'
        yield f'{name}_bucket{{{labels}{comma}le="+Inf"}} {self.number}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {self.number}"


class Metrics:
    """What the service did. Several threads may add to it."""

    def __init__(self, models: Sequence[str], indexes: Sequence[str]) -> None:
        self._lock = Lock()
        self._requests: Counter[Labels] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batch_seconds: dict[str, Histogram] = {}
        self._batch_tokens: dict[str, Histogram] = {}
        self._texts: Counter[str] = Counter(dict.fromkeys(models, 0))
        self._tokens: Counter[str] = Counter(dict.fromkeys(models, 0))
        self.gone = 0
        """Clients that left before their answer."""
        self.in_service = 0
        """Requests that have a place."""

    def request(self, path: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests[path, str(status)] += 1
            self._seconds.setdefault(path, Histogram(_SECONDS)).add(seconds)

    def batch(self, model: str, texts: int, tokens: int, seconds: float) -> None:
        with self._lock:
            self._batch_seconds.setdefault(model, Histogram(_SECONDS)).add(seconds)
            self._batch_tokens.setdefault(model, Histogram(_TOKENS)).add(tokens)
            self._texts[model] += texts
            self._tokens[model] += tokens

    def text(self, waiting: Mapping[str, tuple[int, int]], is_ready: bool) -> str:
        """All numbers. `waiting`: requests and tokens in the queue of each model."""
        with self._lock:
            return "\n".join(self._lines(waiting, is_ready)) + "\n"

    def _lines(self, waiting: Mapping[str, tuple[int, int]], is_ready: bool) -> Iterator[str]:
        yield from _head("requests_total", "counter", "Requests by path and status.")
        for (path, status), count in sorted(self._requests.items()):
            yield f'{_PREFIX}_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _histograms("request_seconds", "Seconds from the first byte to the answer.", "path", self._seconds)
        yield from _histograms("batch_seconds", "Seconds of a batch.", "model", self._batch_seconds)
        yield from _histograms("batch_tokens", "Tokens of a batch.", "model", self._batch_tokens)
        by_model = (
            ("texts_total", "counter", "Texts that were computed.", self._texts),
            ("tokens_total", "counter", "Tokens that were computed.", self._tokens),
            ("waiting_requests", "gauge", "Requests that wait.", {name: one[0] for name, one in waiting.items()}),
            ("waiting_tokens", "gauge", "Tokens that wait.", {name: one[1] for name, one in waiting.items()}),
        )
        for name, kind, about, counts in by_model:
            yield from _head(name, kind, about)
            for model, count in counts.items():
                yield f'{_PREFIX}_{name}{{model="{escaped(model)}"}} {count}'
        singles = (
            ("clients_gone_total", "counter", "Clients that left before their answer.", self.gone),
            ("requests_in_service", "gauge", "Requests that are read, wait or are computed.", self.in_service),
            ("ready", "gauge", "1 if the service takes requests.", int(is_ready)),
        )
        for name, kind, about, value in singles:
            yield from _head(name, kind, about)
            yield f"{_PREFIX}_{name} {value}"
        if memory := resident_bytes():
            yield "# HELP process_resident_memory_bytes Resident memory size in bytes."
            yield "# TYPE process_resident_memory_bytes gauge"
            yield f"process_resident_memory_bytes {memory}"


def resident_bytes() -> int:
    """The memory of this process; 0 where the system does not tell."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


def escaped(name: str) -> str:
    """The value of a label.

    >>> print(escaped('a"b'))
    a\\"b
    """
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {_PREFIX}_{name} {about}", f"# TYPE {_PREFIX}_{name} {kind}"]


def _histograms(name: str, about: str, label: str, found: Mapping[str, Histogram]) -> Iterator[str]:
    yield from _head(name, "histogram", about)
    for value, histogram in sorted(found.items()):
        yield from histogram.lines(f"{_PREFIX}_{name}", f'{label}="{escaped(value)}"')
