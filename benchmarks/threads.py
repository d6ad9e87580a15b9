"""One and several CPU threads for work of several sizes, on idle and on busy cores, with the included model.

    python benchmarks/threads.py
    OMP_WAIT_POLICY=passive python benchmarks/threads.py

Threads that wait for each other spin by default; with the second command, which is what the command line of bothways
does, they sleep. Cores are made busy by processes that count. Medians of wall-clock milliseconds.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import bothways

TEXT = "The food was great and the staff were friendly. "
CASES = {"1 text of 12 tokens": [TEXT], "8 of them": [TEXT] * 8, "100 of them": [TEXT] * 100,
         "1 text of 480 tokens": [TEXT * 48]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    rounds, threads = (given := parser.parse_args()).rounds, given.threads
    print(f"OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', '')}, load {os.getloadavg()[0]:.1f}\n")
    print(f"| busy cores | work | {' | '.join(f'{n} threads' for n in threads)} |\n|---|---|{'---|' * len(threads)}")
    model = bothways.load()
    for processes in (0, 1):
        with busy(processes):
            for name, texts in CASES.items():
                times = [f"{1e3 * seconds(model, texts, number, rounds):.0f}" for number in threads]
                print(f"| {processes} | {name} | {' | '.join(times)} |", flush=True)


def seconds(model: bothways.Model, texts: list[str], threads: int, rounds: int) -> float:
    bothways.set_threads(threads)
    times = []
    for _ in range(rounds + 2):
        begin = time.perf_counter()
        bothways.encode(texts, model)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[2:])


@contextmanager
def busy(processes: int) -> Iterator[None]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    main()
