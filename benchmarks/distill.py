"""A student of half the layers: how much of its teacher's score it keeps, and how much faster it is.

    python benchmarks/distill.py --data DIR --model MINILM --out OUT             # scores
    python benchmarks/distill.py --data DIR --model MINILM --out OUT --speed     # pace of both, on this machine's CPU

--data: a folder with glue_sst2 and conll2003, each with train* and dev* files, plain or .xz. --model: the encoder that
the teacher starts from, a Hugging Face folder. --out: where the runs go; what is there already is not done again.

The teacher is fine-tuned as usual (three epochs). The student begins as every other layer of it and learns from the
labels, the teacher's guesses and its last states. Beside it, a model of the same layers of the encoder that never saw
the teacher.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Job:
    folder: str
    task: str
    score: str
    lr: str
    batch: int
    epochs: int
    """Of the student."""


JOBS = {
    "SST-2": Job("glue_sst2", "classify", "accuracy", "5e-5", 64, 3),
    "CoNLL": Job("conll2003", "tag", "f1", "5e-5", 32, 6),
}
USUAL = ["--set", "window.long=cut", "--set", "window.length=256", "--set", "run.save_minutes=0"]


def files(job: Job, part: str, asked: argparse.Namespace) -> str:
    found = sorted((asked.data / job.folder).glob(f"{part}*"))
    if not found:
        raise SystemExit(f"{asked.data / job.folder} has no file that begins with {part}")
    return str(found[0])


def run(name: str, who: str, seed: int, asked: argparse.Namespace) -> float:
    """The score of the best model of one run."""
    job, out = JOBS[name], asked.out / f"{name}-{who}-{seed}"
    teacher = asked.out / f"{name}-teacher-{seed}" / "model"
    small = ["--set", f"model.keep_layers={asked.layers}", "--lr", asked.lr, "--epochs", str(job.epochs)]
    options = {
        "teacher": ["--model", str(asked.model), "--lr", job.lr, "--epochs", "3"],
        "student": ["--teacher", str(teacher), *small],
        "alone": ["--model", str(asked.model), *small],
    }[who]
    command = [sys.executable, "-W", "ignore", "-m", "bothways", "finetune", job.task, "--json", "--seed", str(seed)]
    command += ["--batch", str(job.batch)]
    command += ["--train", files(job, "train", asked), "--dev", files(job, "dev", asked), "--out", str(out)]
    done = subprocess.run([*command, *options, *USUAL], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{name} {who} {seed} failed: {done.stderr[-800:]}")
    return 100 * float(json.loads(done.stdout)["scores"][job.score])


def both(name: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    scores = {who: run(name, who, seed, asked) for who in ("teacher", "student", "alone")}
    print(name, seed, scores, flush=True)
    return {"name": name, "seed": seed, **scores}


def measure_pace(asked: argparse.Namespace) -> None:
    """Sentences a second of the two on the development text, one after the other in every round."""
    from bothways.model.load import load
    from bothways.predict.predictor import Predictor
    from bothways.tasks.folder import with_task
    from bothways.tasks.registry import new_config
    from bothways.text.files import read_texts

    path = Path(files(JOBS["SST-2"], "dev", asked))
    texts = list(itertools.islice(read_texts(path, field="sentence"), asked.texts))
    models = {}
    for layers in (0, asked.layers):
        base = load(asked.model)
        base = base.with_layers(layers) if layers else base
        models[layers] = Predictor(with_task(base, new_config("classify", kind="single"), ("no", "yes")))
    times: dict[int, list[float]] = {layers: [] for layers in models}
    for _ in range(asked.rounds):
        for layers, predictor in models.items():
            begin = time.perf_counter()
            list(predictor(texts))
            times[layers].append(time.perf_counter() - begin)
    whole, small = (statistics.median(times[layers]) for layers in (0, asked.layers))
    print(f"{len(texts)} sentences: {whole:.2f} s and {small:.2f} s, {whole / small:.2f} x", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a folder of labelled data, described above")
    options.add_argument("--model", type=Path, required=True, help="the encoder to start from")
    options.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    options.add_argument("--layers", type=int, default=3)
    options.add_argument("--lr", default="1e-4", help="learning rate of the student")
    options.add_argument("--only", action="append", choices=list(JOBS))
    options.add_argument("--seeds", type=int, default=1)
    options.add_argument("--side-by-side", type=int, default=1, metavar="N", help="jobs at once")
    options.add_argument("--speed", action="store_true")
    options.add_argument("--texts", type=int, default=400)
    options.add_argument("--rounds", type=int, default=5)
    asked = options.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}, torch {torch.__version__}", flush=True)
    if asked.speed:
        measure_pace(asked)
        return
    jobs = [(name, seed) for name in asked.only or JOBS for seed in range(asked.seeds)]
    with concurrent.futures.ThreadPoolExecutor(asked.side_by_side) as pool:
        results = list(pool.map(lambda job: both(job[0], job[1], asked), jobs))
    print("| | teacher | student | kept | the same layers without a teacher |\n|---|---|---|---|---|")
    for name in asked.only or JOBS:
        mine = [r for r in results if r["name"] == name]
        teacher, student, alone = (statistics.mean(r[who] for r in mine) for who in ("teacher", "student", "alone"))
        print(f"| {name} | {teacher:.2f} | {student:.2f} | {student / teacher:.1%} | {alone:.2f} |", flush=True)


if __name__ == "__main__":
    main()
