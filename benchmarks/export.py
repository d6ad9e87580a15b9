"""ONNX graphs of the included model in ONNX Runtime: size, speed, and how close their answers are to fp32.

    python benchmarks/export.py --texts examples/reviews.tsv
    python benchmarks/export.py --texts FILE --threads 1 --repeat 5

--texts: a file of texts, as `bothways predict` reads it. Answers: the first emotion of every text, by the adapter
`emotion`; vectors: the mean of the tokens. Speed by CPU time of this process, median: one short text at a time, and all
texts in batches of 16 sorted by length; ours in torch and transformers beside it, with the same number of threads.
"""

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import onnxruntime
import torch
import transformers

import bothways
from bothways.data.texts import read_texts_labelled
from bothways.export.folder import FILES
from bothways.export.onnx import GraphSettings, build

BATCH = 16


class Graph:
    """A graph in ONNX Runtime, and the tokenizer of its model."""

    def __init__(self, model: Any, output: str, precision: Any, threads: int) -> None:
        self.tokenizer = model.require_tokenizer()
        graph = build(model, output, GraphSettings(precision))
        self.size = graph.ByteSize()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(graph.SerializeToString(), options)
        self.output = "sentence_embedding" if output == "vectors" else "logits"

    def __call__(self, texts: Sequence[str]) -> Any:
        encodings = [self.tokenizer(text) for text in texts]
        ids = np.zeros((len(texts), max(map(len, encodings))), np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encodings):
            ids[row, : len(encoding)], mask[row, : len(encoding)] = encoding.ids, 1
        return self.session.run([self.output], {"input_ids": ids, "attention_mask": mask})[0]


def batches(texts: Sequence[str]) -> list[list[str]]:
    ordered = sorted(texts, key=len)
    return [ordered[i : i + BATCH] for i in range(0, len(ordered), BATCH)]


def in_batches(work: Callable[[Sequence[str]], Any], texts: Sequence[str]) -> None:
    for part in batches(texts):
        work(part)


def seconds(work: Callable[[], Any], repeat: int) -> float:
    """CPU time, median."""
    work()
    found = []
    for _ in range(repeat):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return statistics.median(found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--texts", required=True, help="a file of texts")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--repeat", type=int, default=5)
    asked = options.parse_args()
    torch.set_num_threads(asked.threads)
    texts = [row.texts[0] for row in read_texts_labelled([asked.texts])]
    short = sorted(texts, key=len)[len(texts) // 4]
    tuned = bothways.load(bothways.boxed("emotion")).float().eval()
    plain = bothways.load("en").float().eval()
    versions = [f"{module.__name__} {module.__version__}" for module in (torch, transformers, onnxruntime)]
    print(f"{platform.machine()}, Python {platform.python_version()}, {', '.join(versions)}")
    print(f"threads: {asked.threads}, texts: {len(texts)}")
    print("| | MB | equal answers | lowest cosine | alone against batched | one text, ms | all texts, s |")
    print("|---|---|---|---|---|---|---|")
    reference: Any = None
    for precision in FILES:
        graph, vectors = (Graph(m, o, precision, asked.threads) for m, o in ((tuned, "sequence"), (plain, "vectors")))
        alone = np.concatenate([graph([text]) for text in texts])
        together = {text: row for part in batches(texts) for text, row in zip(part, graph(part), strict=True)}
        apart = max(float(np.abs(row - together[text]).max()) for text, row in zip(texts, alone, strict=True))
        units = np.concatenate([vectors(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)])
        units = units / np.linalg.norm(units, axis=1, keepdims=True)
        reference = reference or (alone.argmax(1), units)
        equal, cosine = (alone.argmax(1) == reference[0]).mean(), (units * reference[1]).sum(1).min()
        one = seconds(partial(graph, [short]), 20 * asked.repeat)
        many = seconds(partial(in_batches, graph, texts), asked.repeat)
        quality = f"{graph.size / 1e6:.1f} | {equal:.1%} | {cosine:.4f} | {apart:.1e}"
        print(f"| {precision} | {quality} | {1e3 * one:.1f} | {many:.2f} |", flush=True)
    predictor = bothways.Predictor(tuned, device="cpu", dtype="fp32")
    one, many = seconds(lambda: predictor(short), 20 * asked.repeat), seconds(lambda: predictor(texts), asked.repeat)
    print(f"| bothways, torch | | | | | {1e3 * one:.1f} | {many:.2f} |", flush=True)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(
        bothways.boxed("en"), dtype=torch.float32
    ).base_model.eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(bothways.boxed("en"))

    def transform(some: Sequence[str]) -> Any:
        with torch.inference_mode():
            return theirs(**tokenizer(list(some), padding=True, return_tensors="pt"))

    one = seconds(lambda: transform([short]), 20 * asked.repeat)
    many = seconds(partial(in_batches, transform, texts), asked.repeat)
    print(f"| transformers, torch | | | | | {1e3 * one:.1f} | {many:.2f} |", flush=True)


if __name__ == "__main__":
    main()
