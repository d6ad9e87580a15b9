"""Fine-tuning, ours against a plain transformers Trainer at equal hyper-parameters: scores, seconds an epoch.

    python benchmarks/finetune.py --data DIR --model DIR                        # scores: all tasks, three seeds
    python benchmarks/finetune.py --data DIR --model DIR --time                 # seconds an epoch, one job at a time
    python benchmarks/finetune.py --data DIR --model DIR --only RTE --epochs 1  # a quick look

--data: a folder with glue_sst2, glue_cola, glue_mrpc, glue_stsb, glue_rte, squad1, conll2003, chnsenticorp, each with
train* and dev* files (.jsonl with sentence / sentence1, sentence2 / text_a and label or score; SQuAD's .json; columns
of words and tags), plain or .xz. --model: the encoder to start from, a Hugging Face folder.

Both sides: AdamW, linear decay, 10 % warm-up, clipping at 1, bf16 on a GPU, the model after the last step, the same
scorers. Theirs: batches padded to their longest, SDPA attention, Trainer's defaults otherwise. With --time nothing is
evaluated or saved on either side, and preparing the data and starting up is not counted.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from bothways.data.notes import Notes
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe
from bothways.tasks.registry import TASKS, plan_task
from bothways.text.columns import Columns


@dataclass(frozen=True)
class Job:
    """One data set and its published settings."""

    folder: str
    task: str
    score: str
    epochs: float = 3.0
    batch: int = 32
    lr: float = 5e-5
    kind: str = "single"


JOBS = {
    "SST-2": Job("glue_sst2", "classify", "accuracy", lr=3e-5),
    "CoLA": Job("glue_cola", "classify", "matthews"),
    "MRPC": Job("glue_mrpc", "classify", "positive_f1"),
    "STS-B": Job("glue_stsb", "classify", "spearman", kind="regression"),
    "RTE": Job("glue_rte", "classify", "accuracy"),
    "SQuAD": Job("squad1", "answer", "f1", epochs=2.0),
    "CoNLL": Job("conll2003", "tag", "f1"),
    "ChnSentiCorp": Job("chnsenticorp", "classify", "accuracy"),
}
LONGEST = {"classify": 256, "tag": 256, "answer": 384}


def recipe_for(job: Job, asked: argparse.Namespace) -> FinetuneRecipe:
    table: dict[str, Any] = {
        "task": job.task,
        "data": {"train": files(asked.data / job.folder, "train"), "dev": files(asked.data / job.folder, "dev")},
        "model": {"init": str(asked.model)},
        "window": {"length": LONGEST[job.task], "long": "window" if job.task == "answer" else "cut"},
        "classify": {"kind": job.kind} if job.task == "classify" else {},
        "optim": {"lr": job.lr, "eps": 1e-8, "decay": 0.0},
        "run": {
            "epochs": asked.epochs or job.epochs,
            "batch": job.batch,
            "seed": asked.seed,
            "save_minutes": 0.0,
            "save_every": 10**9,  # at the end only
        },
    }
    return finetune_recipe(table)


def files(folder: Path, beginning: str) -> list[str]:
    found = sorted(str(p) for p in folder.iterdir() if p.name.startswith(beginning))
    if not found:
        raise SystemExit(f"{folder} has no file that begins with {beginning}")
    return found


# ---------------------------------------------------------------------- ours


def ours(job: Job, asked: argparse.Namespace) -> dict[str, float]:
    from bothways.predict.evaluation import evaluate
    from bothways.predict.predictor import Predictor
    from bothways.train.protocol import Finished, Started

    recipe = recipe_for(job, asked)
    times: dict[str, float] = {}

    def listen(event: Any) -> None:
        if isinstance(event, Started):
            times["began"] = time.perf_counter()
        if isinstance(event, Finished):
            times["seconds"] = event.elapsed

    with tempfile.TemporaryDirectory() as out:
        done = finetune(recipe, out, dev=[], listen=[listen])
        seconds = times["seconds"] / recipe.run.epochs
        if asked.time:
            return {"seconds": seconds}
        found = evaluate(recipe.data.dev, Predictor.load(done.folder), recipe.data)
    return {"seconds": seconds, **found.scores}


# ---------------------------------------------------------------------- theirs


def theirs(job: Job, asked: argparse.Namespace) -> dict[str, float]:
    import transformers

    transformers.set_seed(asked.seed)
    transformers.utils.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.model)
    recipe = recipe_for(job, asked)
    notes = Notes()
    train, dev = (list(TASKS[job.task].read(some, Columns(), notes)) for some in (recipe.data.train, recipe.data.dev))
    config, labels = plan_task(job.task, recipe.settings, recipe.window, train)
    train, dev = ([TASKS[job.task].normalise(config, e) for e in some if e.gold is not None] for some in (train, dev))
    kinds = {
        "classify": transformers.AutoModelForSequenceClassification,
        "tag": transformers.AutoModelForTokenClassification,
        "answer": transformers.AutoModelForQuestionAnswering,
    }
    options: dict[str, Any] = {"id2label": dict(enumerate(labels))} if labels else {}
    if job.kind == "regression":
        options["problem_type"] = "regression"
    model = kinds[job.task].from_pretrained(asked.model, dtype=torch.float32, **options)
    rows = {"classify": rows_classify, "tag": rows_tag, "answer": rows_answer}[job.task](train, tokenizer, labels, job)
    collators = {
        "classify": transformers.DataCollatorWithPadding,
        "tag": transformers.DataCollatorForTokenClassification,
        "answer": transformers.DataCollatorWithPadding,
    }
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory() as out:
        trainer = transformers.Trainer(
            model=model,
            args=transformers.TrainingArguments(
                out,
                num_train_epochs=recipe.run.epochs,
                per_device_train_batch_size=job.batch,
                learning_rate=job.lr,
                warmup_steps=round(0.1 * recipe.run.epochs * -(-len(rows) // job.batch)),
                bf16=on_gpu,
                seed=asked.seed,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=not on_gpu,
                logging_steps=500,
            ),
            train_dataset=rows,
            data_collator=collators[job.task](tokenizer),
        )
        seconds = trainer.train().metrics["train_runtime"] / recipe.run.epochs
        if asked.time:
            return {"seconds": seconds}
        return {"seconds": seconds, **scored(model, tokenizer, job, recipe, dev, labels)}


def rows_classify(examples: list[Any], tokenizer: Any, labels: tuple[str, ...], job: Job) -> list[dict[str, Any]]:
    found = []
    for example in examples:
        row = dict(tokenizer(*example.texts, truncation=True, max_length=LONGEST["classify"]))
        row["labels"] = example.gold if job.kind == "regression" else labels.index(example.gold)
        found.append(row)
    return found


def rows_tag(examples: list[Any], tokenizer: Any, labels: tuple[str, ...], job: Job) -> list[dict[str, Any]]:
    found = []
    for example in examples:
        words = [example.text[start:end] for start, end in example.words]
        encoding = tokenizer(words, is_split_into_words=True, truncation=True, max_length=LONGEST["tag"])
        before, row = None, []
        for word in encoding.word_ids():
            row.append(-100 if word is None or word == before else labels.index(example.gold[word]))
            before = word
        found.append({**encoding, "labels": row})
    return found


def rows_answer(examples: list[Any], tokenizer: Any, labels: tuple[str, ...], job: Job) -> list[dict[str, Any]]:
    found = []
    for example in examples:
        encoding = tokenizer(
            example.question, example.context, truncation="only_second", max_length=LONGEST["answer"], stride=128,
            return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        text, start = example.gold[0] if example.gold else ("", -1)
        for i, ids in enumerate(encoding["input_ids"]):
            inside = [n for n, source in enumerate(encoding.sequence_ids(i)) if source == 1]
            offsets = encoding["offset_mapping"][i]
            first = next((n for n in inside if offsets[n][1] > start), None)
            last = next((n for n in reversed(inside) if offsets[n][0] < start + len(text)), None)
            ends = offsets[inside[0]][0], offsets[inside[-1]][1]
            whole = start >= 0 and ends[0] <= start and start + len(text) <= ends[1]
            found.append(
                {
                    "input_ids": ids,
                    "attention_mask": encoding["attention_mask"][i],
                    "token_type_ids": encoding["token_type_ids"][i],
                    "start_positions": first if whole else 0,
                    "end_positions": last if whole else 0,
                }
            )
    return found


def scored(
    model: Any, tokenizer: Any, job: Job, recipe: FinetuneRecipe, dev: list[Any], labels: tuple[str, ...]
) -> dict[str, float]:
    """Their weights through the same decoding and the same scorers."""
    from bothways.model.load import load
    from bothways.predict.predictor import Predictor
    from bothways.tasks.folder import with_task

    with tempfile.TemporaryDirectory() as folder:
        model.float().cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        config, _ = plan_task(job.task, recipe.settings, recipe.window, dev)
        predictor = Predictor(with_task(load(folder), config, labels))
        scores = predictor.task.new_scores()
        for item, decoded in predictor.decode_all(dev):
            predictor.task.count(scores, item, decoded)
    return scores.scores()


# ---------------------------------------------------------------------- many


def one(name: str, who: str, seed: int, asked: argparse.Namespace) -> dict[str, Any]:
    """A job in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--data", str(asked.data), "--model", str(asked.model),
               "--job", name, "--who", who, "--seed", str(seed)]  # fmt: skip
    command += ["--epochs", str(asked.epochs)] if asked.epochs else []
    command += ["--time"] if asked.time else []
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} {who} {seed} failed: {done.stderr[-1500:]}", flush=True)
        return {"name": name, "who": who, "seed": seed}
    return {"name": name, "who": who, "seed": seed, **json.loads(done.stdout.strip().splitlines()[-1])}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a folder of labelled data, described above")
    options.add_argument("--model", type=Path, required=True, help="the encoder to start from")
    options.add_argument("--only", action="append", choices=list(JOBS))
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=float, default=0.0)
    options.add_argument("--time", action="store_true")
    options.add_argument("--side-by-side", type=int, default=1, metavar="N", help="jobs at once (not with --time)")
    options.add_argument("--job", choices=list(JOBS), help=argparse.SUPPRESS)
    options.add_argument("--who", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    options.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.job:
        print(json.dumps((ours if asked.who == "ours" else theirs)(JOBS[asked.job], asked)))
        return
    import transformers

    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{os.cpu_count()} CPU cores"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}, torch {torch.__version__}, "
          f"transformers {transformers.__version__}")  # fmt: skip
    names = asked.only or (["SST-2", "SQuAD", "CoNLL"] if asked.time else list(JOBS))
    seeds = range(1 if asked.time else asked.seeds)
    jobs = [(name, who, seed) for name in names for who in ("ours", "theirs") for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(1 if asked.time else asked.side_by_side) as pool:
        results = list(pool.map(lambda job: one(job[0], job[1], job[2], asked), jobs))
    for name in names:
        line = [f"{name:14}"]
        for who in ("ours", "theirs"):
            mine = [r for r in results if r["name"] == name and r["who"] == who and "seconds" in r]
            if not mine:
                line.append(f"{who}: failed")
                continue
            seconds = statistics.median(r["seconds"] for r in mine)
            if asked.time:
                line.append(f"{who}: {seconds:7.2f} s an epoch")
                continue
            values = [100 * r[JOBS[name].score] for r in mine]
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            line.append(
                f"{who}: {statistics.mean(values):5.2f} ± {sd:4.2f} {JOBS[name].score} ({seconds:.1f} s an epoch)"
            )
        print("   ".join(line), flush=True)


if __name__ == "__main__":
    main()
