"""The same encoder in ONNX Runtime, OpenVINO, TorchScript and torch's compiler: CPU time on one thread, in turns.

    python benchmarks/runtimes.py --texts examples/reviews.tsv

The included model `en`, from token ids to hidden states: no tokenizer, and nothing of ours around it. One text: a short
one alone; all: the whole file, sorted by length, in padded batches of 16. OpenVINO reads the exported files; it is
measured if it is installed. TorchScript and the compiler (in place of ahead-of-time compilation) get our
module for one text of exactly this length, their best case: a service would need one program for every shape. Each
repetition runs all of them after each other; medians. The largest difference is that of one number in the states of the
short text from torch's; NaN: the output has another shape.
"""

import argparse
import importlib.util
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import onnxruntime
import torch

import bothways
from bothways.data.texts import read_texts_labelled
from bothways.model.batch import Batch
from bothways.model.exported import FILES, FOLDER

BATCH = 16
Feed = dict[str, np.ndarray[Any, Any]]
Work = Callable[[Feed], Any]


def feeds_of(rows: Sequence[Sequence[int]]) -> list[Feed]:
    """Padded batches."""
    found = []
    for first in range(0, len(rows), BATCH):
        some = rows[first : first + BATCH]
        ids = np.zeros((len(some), max(map(len, some))), np.int64)
        mask = np.zeros_like(ids)
        for number, row in enumerate(some):
            ids[number, : len(row)], mask[number, : len(row)] = row, 1
        found.append({"input_ids": ids, "attention_mask": mask})
    return found


def onnx_runtime(file: Path) -> Work:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)[0]


def openvino(file: Path) -> Work:
    core = importlib.import_module("openvino").Core()
    settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    request = core.compile_model(str(file), "CPU", settings).create_infer_request()
    return lambda feed: request.infer(feed)[0]


class ForOne(torch.nn.Module):
    """Our encoder for one text of a given length, as a function of tensors."""

    def __init__(self, row: Sequence[int]) -> None:
        super().__init__()
        self.encoder, self.batch = bothways.load(bothways.boxed("en")).encoder, Batch.pack([row])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(replace(self.batch, ids=ids))
        return states


def in_torch(row: Sequence[int], wrap: Callable[[torch.nn.Module, torch.Tensor], Any]) -> Work:
    """For feeds of this one text."""
    with torch.inference_mode():
        wrapped = wrap(ForOne(row).eval(), torch.tensor(row))

    def run(feed: Feed) -> Any:
        with torch.inference_mode():
            return wrapped(torch.from_numpy(feed["input_ids"][0])).numpy()[None]

    return run


def difference(states: Any, exact: Any) -> float:
    """The largest; NaN where the shape is another one."""
    return float(np.abs(states - exact).max()) if states.shape == exact.shape else float("nan")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", required=True, help="a file of texts")
    options.add_argument("--repeat", type=int, default=3)
    asked = options.parse_args()
    torch.set_num_threads(1)
    tokenizer = bothways.load(bothways.boxed("en")).require_tokenizer()
    rows = sorted((tokenizer(row.texts[0]).ids for row in read_texts_labelled([asked.texts])), key=len)
    short = rows[len(rows) // 4]
    feeds = {"one": feeds_of([short]), "all": feeds_of(rows)}
    works: dict[str, Work] = {}
    with tempfile.TemporaryDirectory() as place:
        for precision in ("fp32", "int8"):
            bothways.export_onnx(bothways.boxed("en"), place, precision=precision, output="states")
            file = Path(place) / FOLDER / FILES[precision]
            works[f"ONNX Runtime, {precision}"] = onnx_runtime(file)
            if importlib.util.find_spec("openvino"):
                works[f"OpenVINO, {precision}"] = openvino(file)
        for name, wrap in WRAPS.items():
            works[name] = in_torch(short, wrap)
        exact = works["torch"](feeds["one"][0])
        found: dict[tuple[str, str], list[float]] = {}
        for kind, repeat in (("one", 10 * asked.repeat), ("all", asked.repeat)):
            for turn in range(repeat + 1):
                for name, work in works.items():
                    if kind == "one" or name not in WRAPS:
                        begun = time.process_time()
                        for feed in feeds[kind]:
                            work(feed)
                        if turn:  # the first turn warms up
                            found.setdefault((name, kind), []).append(time.process_time() - begun)
        errors = {name: difference(work(feeds["one"][0]), exact) for name, work in works.items()}
    print(f"one text of {len(short)} tokens; all: {len(rows)} texts, {sum(map(len, rows)):,} tokens\n")
    print("| | largest difference | one text, ms | all texts, s |\n|---|---|---|---|")
    for name in works:
        one, many = (statistics.median(found[name, kind]) if (name, kind) in found else None for kind in feeds)
        print(f"| {name} | {errors[name]:.1e} | {1e3 * (one or 0):.1f} | {'' if many is None else f'{many:.2f}'} |")


WRAPS: dict[str, Callable[[torch.nn.Module, torch.Tensor], Any]] = {
    "torch": lambda module, ids: module,
    "TorchScript": lambda module, ids: torch.jit.freeze(torch.jit.trace(module, (ids,))),
    "torch.compile": lambda module, ids: torch.compile(module),
}


if __name__ == "__main__":
    main()
