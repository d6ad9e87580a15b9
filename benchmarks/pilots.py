"""Small encoders pretrained in one way or another for the same time, and what each is worth afterwards.

    python benchmarks/pilots.py --text PACKED --data DIR --out OUT --minutes 6    # rtd, masked words, and both
    python benchmarks/pilots.py --text PACKED --data DIR --out OUT --steps 2000 --at-once --seeds 2 --side-by-side 8 \\
        --run "as-it-was rtd" --run "more-decay rtd optim.weight_decay=0.1" --run "documents rtd data.rows=documents"

--text: a folder that `bothways pack` made, with held-out text. --data: a folder with glue_sst2, glue_mrpc, glue_stsb,
glue_cola, glue_rte, and for --tasks CoNLL, EWT, SQuAD and SNLI with conll2003, ud_english_ewt, squad1 and nli (as
benchmarks/box_data.py writes it), and for the Chinese tasks with chnsenticorp, cmrc2018, ocnli, c3, lcqmc, atec,
msra_ner, resume_ner and ud_chinese_gsdsimp (as benchmarks/chinese_data.py writes them), each with files that have train
and dev in their names, as for benchmarks/finetune.py; a file of ChnSentiCorp or Resume with test in its name is
scored too. --blimp: the file for `bothways blimp`. --out: where the runs go; what is there already is not done again.

Encoders of one shape, of one vocabulary, on one text: `both` is the recipe bothways-small, `rtd` what that recipe was
at first, which learned from replaced tokens alone, and `mlm` differs from `rtd` in that it learns from masked words.
--run makes another of one of them by settings as they are written after --set. Each is trained for the same number of
minutes, compilation not counted, or of steps, and then all may share the GPU at once. Then plain fine-tuning, several
seeds, the last model of each: mean pooling, AdamW 4e-4, layer-wise decay 0.8, batches of 32, three epochs (RTE and
STS-B ten, as in ELECTRA's paper, Resume and GSD ten, SQuAD and CMRC four). CMRC's answers may have 80 tokens: a fifth
of those it trains on is longer than the usual 30. --tune fine-tunes each in another way too: a name, and settings of
`bothways finetune`.
"""

import argparse
import concurrent.futures
import itertools
import json
import platform
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_REPLACED = ("rtd.masked=0", "optim.muon_lr=0.02", "optim.muon_weight_decay=0.1", "optim.lr=3e-3", "data.rows=stream")
BASES: dict[str, tuple[str, ...]] = {
    "rtd": (*_REPLACED, "phases=[{share=1.0,length=128,tokens=131072}]"),
    "mlm": (
        *_REPLACED,
        "objectives=['mlm']",
        "mlm.mask=0.8",
        "mlm.random=0.1",
        "phases=[{share=0.55,rate=0.25,length=128,tokens=131072},{share=0.45,rate=0.15,length=128,tokens=131072}]",
    ),
    "both": (),
}
"""What is different from the recipe `bothways-small`."""


@dataclass(frozen=True)
class Job:
    """One data set, and how it is learned."""

    folder: str
    score: str
    epochs: int = 3
    kind: str = "single"
    task: str = "classify"
    settings: tuple[str, ...] = ()
    """Settings of `bothways finetune` beyond the usual ones."""
    other_score: str = ""
    """A second score that has a column of its own."""
    is_tested: bool = False
    """Whether a file with test in its name is scored too."""


JOBS = {
    "CoLA": Job("glue_cola", "matthews"),
    "STS-B": Job("glue_stsb", "spearman", epochs=10, kind="regression"),
    "RTE": Job("glue_rte", "accuracy", epochs=10),
    "MRPC": Job("glue_mrpc", "positive_f1"),
    "SST-2": Job("glue_sst2", "accuracy"),
    "CoNLL": Job("conll2003", "f1", task="tag"),
    "EWT": Job("ud_english_ewt", "accuracy", task="tag"),
    "SQuAD": Job("squad1", "f1", epochs=4, task="answer"),
    "SNLI": Job("nli", "accuracy"),
    "ChnSentiCorp": Job("chnsenticorp", "accuracy", is_tested=True),
    "CMRC": Job(
        "cmrc2018", "f1", epochs=4, task="answer", other_score="exact",
        settings=("window.length=512", "answer.max_answer_length=80"),
    ),
    "OCNLI": Job("ocnli", "accuracy"),
    "LCQMC": Job("lcqmc", "accuracy"),
    "ATEC": Job("atec", "positive_f1"),
    "C3": Job("c3", "accuracy", task="choose", settings=("window.length=512",)),
    "MSRA": Job("msra_ner", "f1", task="tag"),
    "Resume": Job("resume_ner", "f1", epochs=10, task="tag", is_tested=True),
    "GSD": Job("ud_chinese_gsdsimp", "accuracy", epochs=10, task="tag"),
}  # fmt: skip
QUICK = ("CoLA", "STS-B", "RTE", "MRPC", "SST-2")
SLOW = ("MSRA", "CMRC", "C3", "SST-2")
"""Tasks that take long and are therefore started first, so that the others fill the gaps."""


@dataclass(frozen=True)
class Pilot:
    """A run, what it is made from, and what is different."""

    name: str
    base: str
    settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: str) -> "Pilot":
        name, *rest = words.split()
        base = rest.pop(0) if rest else name
        if base not in BASES:
            raise argparse.ArgumentTypeError(f"{base!r} is none of {', '.join(BASES)}")
        return cls(name, base, tuple(rest))


@dataclass(frozen=True)
class Tuning:
    """A way to fine-tune: what is different from the plain one."""

    name: str = ""
    settings: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: str) -> "Tuning":
        name, *rest = words.split()
        if not all("=" in setting for setting in rest):
            raise argparse.ArgumentTypeError(f"{words!r} is not a name and settings as KEY=VALUE")
        return cls(name, tuple(rest))


def pretrain(pilot: Pilot, asked: argparse.Namespace) -> None:
    """A run of the library's own command."""
    shape = [f"model.{name}={value}" for name, value in (asked.shape or {}).items()]
    length = f"run.steps={asked.steps}" if asked.steps else f"run.minutes={asked.minutes}"
    run = [length, f"run.seed={asked.seed}", f"run.evaluate_every={asked.evaluate_every}", "run.save_minutes=0"]
    command = [sys.executable, "-W", "ignore", "-m", "bothways", "pretrain", "bothways-small", "--data",
               str(asked.text), "--out", str(asked.out / pilot.name)]  # fmt: skip
    for setting in (*BASES[pilot.base], *shape, *run, *pilot.settings):
        command += ["--set", setting]
    path = asked.out / f"{pilot.name}.log"
    with path.open("w") as log:
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=log)
    if done.returncode:
        raise SystemExit(f"{pilot.name}: {(path.read_text().splitlines() or ['it ended without a word'])[-1]}")


def finetune(asked: argparse.Namespace, name: str, tuning: Tuning, task: str, seed: int) -> list[dict[str, Any]]:
    """The scores of one seed's last model; none if it failed."""
    row = " ".join(filter(None, (name, tuning.name)))
    job, out = JOBS[task], asked.out / "tuned" / f"{row.replace(' ', '-')}-{task}-{seed}"
    settings: dict[str, Any] = {
        "optim.lr": 4e-4, "optim.layer_decay": 0.8, "run.epochs": job.epochs, "run.batch_size": 32,
        "run.evaluate_every": 10**9, "run.save_every": 10**9, "run.save_minutes": 0.0,
    }  # fmt: skip
    if job.task == "classify":
        settings |= {"model.pooling": "mean", "classify.kind": job.kind}
    if job.task != "answer":
        settings |= {"window.long": "cut", "window.length": 256}
    changes = [*(f"{key}={value}" for key, value in settings.items()), *job.settings, *tuning.settings]
    files = [word for part in ("train", "dev") for file in _files(asked, job, part) for word in (f"--{part}", file)]
    changed = [word for change in changes for word in ("--set", change)]
    try:
        scores = _scores(
            asked.limit, "finetune", job.task, "--seed", str(seed), "--model", str(asked.out / name / "model"),
            "--out", str(out), *files, *changed,
        )  # fmt: skip
        found = {task: scores[job.score]}
        if job.other_score:
            found[f"{task} {job.other_score}"] = scores[job.other_score]
        if job.is_tested and (tests := _files(asked, job, "test")):
            command = ("evaluate", *tests, "--model", str(out / "model"), "--worst", "0")
            found[f"{task} test"] = _scores(asked.limit, *command)[job.score]
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"{row} {task} {seed} failed: {type(error).__name__} {str(error.stderr or '')[-800:]}", flush=True)
        return [{"run": row, "task": task, "seed": seed}]
    print(f"{row} {seed}: " + ", ".join(f"{title} {100 * score:.1f}" for title, score in found.items()), flush=True)
    return [{"run": row, "task": title, "seed": seed, "score": 100 * score} for title, score in found.items()]


def _files(asked: argparse.Namespace, job: Job, part: str) -> list[str]:
    return sorted(str(p) for p in (asked.data / job.folder).iterdir() if part in p.name)


def _scores(limit: float, *words: str) -> dict[str, float]:
    """The scores that a command of the library prints."""
    command = [sys.executable, "-W", "ignore", "-m", "bothways", *words, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=limit)
    scores: dict[str, float] = json.loads(done.stdout)["scores"]
    return scores


def blimp(name: str, asked: argparse.Namespace) -> float:
    """How often the better of two sentences was found, in per cent."""
    command = [sys.executable, "-W", "ignore", "-m", "bothways", "blimp", str(asked.blimp), "--json", "--model",
               str(asked.out / name / "model")]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return 100 * float(json.loads(done.stdout)["accuracy"])


def curves(asked: argparse.Namespace, pilots: list[Pilot]) -> None:
    """Held-out scores over the minutes, as a picture."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for pilot in pilots:
        if not (metrics := asked.out / pilot.name / "metrics.jsonl").exists():
            continue  # a model from elsewhere
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        minutes = {row["step"]: row["elapsed"] / 60 for row in rows if "elapsed" in row}
        found = [(minutes.get(row["step"], 0.0), row["valid"]) for row in rows if "valid" in row]
        who = "the model" if pilot.base == "mlm" else "its generator"
        minutes_of = [m for m, _ in found]
        left.plot(minutes_of, [s["mlm_accuracy"] for _, s in found], marker=".", label=f"{pilot.name}, {who}")
        if pilot.base != "mlm":
            for score in ("rtd_recall", "rtd_precision"):
                right.plot(minutes_of, [s[score] for _, s in found], marker=".", label=f"{pilot.name}, {score[4:]}")
    for axes, title in ((left, "share of the asked words guessed right"), (right, "replaced tokens, the detector")):
        axes.set(title=title, xlabel="minutes", ylim=(0, None))
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend()
    figure.savefig(asked.out / "pilots.png", dpi=120)


def cell(scores: list[float]) -> str:
    """Of the seeds of one task."""
    if not scores:
        return "failed"
    sd = statistics.stdev(scores) if len(scores) > 1 else 0.0
    return f"{statistics.mean(scores):.1f} ± {sd:.1f}, {statistics.median(scores):.1f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--text", type=Path, required=True, help="packed text, described above")
    options.add_argument("--data", type=Path, required=True, help="a folder of labelled data, described above")
    options.add_argument("--out", type=Path, required=True, help="a folder for the runs")
    options.add_argument("--minutes", type=float, default=6.0)
    options.add_argument("--steps", type=int, default=0, help="length of a run in steps instead of minutes")
    options.add_argument("--at-once", action="store_true", help="pretrain all at the same time; needs --steps")
    options.add_argument("--run", action="append", type=Pilot.of, metavar="'NAME BASE KEY=VALUE …'", dest="pilots")
    options.add_argument("--blimp", type=Path, help="pairs of sentences, described above")
    options.add_argument(
        "--tasks", action="append", choices=list(JOBS), help=f"may be repeated (default: {', '.join(QUICK)})"
    )
    options.add_argument("--seed", type=int, default=0, help="seed of pretraining")
    options.add_argument("--seeds", type=int, default=3, help="number of fine-tuning seeds")
    options.add_argument("--first-seed", type=int, default=0, help="first seed of fine-tuning")
    options.add_argument(
        "--tune", action="append", type=Tuning.of, default=[Tuning()], metavar="'NAME KEY=VALUE …'", dest="tunings"
    )
    options.add_argument("--evaluate-every", type=int, default=500, metavar="STEPS")
    options.add_argument("--side-by-side", type=int, default=1, metavar="N", help="fine-tunings at once")
    options.add_argument("--limit", type=float, default=3600, metavar="SECONDS", help="time limit of a fine-tuning")
    options.add_argument("--shape", type=json.loads, help="other [model] settings as JSON, for a quick test")
    options.add_argument("--part", choices=("pretrain", "finetune"), help="only this part of the work")
    asked = options.parse_args()
    if asked.at_once and not asked.steps:
        options.error("--at-once is for --steps: minutes would not be the same for all")
    pilots = asked.pilots or [Pilot(name, name) for name in BASES]
    names = [pilot.name for pilot in pilots]
    (asked.out / "tuned").mkdir(parents=True, exist_ok=True)
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{platform.machine()}, {where}; Python {platform.python_version()}, torch {torch.__version__}", flush=True)
    if asked.part != "finetune":
        missing = [pilot for pilot in pilots if not (asked.out / pilot.name / "model").exists()]
        with concurrent.futures.ThreadPoolExecutor(max(1, len(missing)) if asked.at_once else 1) as pool:
            list(pool.map(lambda pilot: pretrain(pilot, asked), missing))
    if asked.part == "pretrain":
        return
    tasks = sorted(asked.tasks or QUICK, key=lambda task: SLOW.index(task) if task in SLOW else len(SLOW))
    ways = list(itertools.product(names, asked.tunings))
    seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
    jobs = [(name, way, task, seed) for task in tasks for name, way in ways for seed in seeds]
    with concurrent.futures.ThreadPoolExecutor(asked.side_by_side) as pool:
        results = list(itertools.chain.from_iterable(pool.map(lambda job: finetune(asked, *job), jobs)))
    (asked.out / "results.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    measured = list(dict.fromkeys(result["task"] for result in results))
    titles = [*measured, "BLiMP"] if asked.blimp else measured
    print("mean ± standard deviation, median")
    print("| |" + "".join(f" {title} |" for title in titles) + "\n|---|" + "---|" * len(titles))
    for row in dict.fromkeys(result["run"] for result in results):
        cells = [
            cell([r["score"] for r in results if (r["run"], r["task"]) == (row, t) and "score" in r]) for t in measured
        ]
        if asked.blimp:
            cells.append(f"{blimp(row, asked):.1f}" if row in names else "")
        print(f"| {row} |" + "".join(f" {found} |" for found in cells), flush=True)
    curves(asked, pilots)


if __name__ == "__main__":
    main()
