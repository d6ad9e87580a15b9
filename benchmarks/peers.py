"""bothways against transformers, sentence-transformers, spaCy and simpletransformers, on a CPU and offline.

    python benchmarks/peers.py --venvs DIR [--base DIR] [--lr 4e-4] [--rounds 3] [--only spacy …]

Each library gets a virtual environment of its own under --venvs, made with pip and the torch of constraints.txt, and
runs the user code below in fresh processes, with one thread. Times are CPU seconds of the process, since the cores may
be shared with other work. All libraries take a measurement one after the other, then all take it again. Lines of user
code are counted in the text that is run.

--base: the model folder that is fine-tuned, unless a library cannot open it (spaCy trains its own). Results go to
standard output as a table, and to DIR/results.json.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRAIN, DEV = ROOT / "examples/reviews.tsv", ROOT / "examples/reviews-dev.tsv"
TEXTS, EPOCHS = 2_000, 5
LIMIT = 600
"""Seconds that one measurement may take."""

# The user code. Given: texts, labels (lists of strings), base, out (folders), lr, save_every, resume. `predict` returns
# a label and its probability for each text.
FIT = {
    "bothways": """
from bothways import Classifier
settings = ["run.batch_size=8", f"run.save_every={save_every}"]
Classifier(base, epochs=5, lr=lr, settings=settings, out=out).fit(texts, labels)
""",
    "transformers": """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding
from transformers import Trainer, TrainingArguments, set_seed
set_seed(42)
names = sorted(set(labels))
tokenizer = AutoTokenizer.from_pretrained(base)
model = AutoModelForSequenceClassification.from_pretrained(
    base, num_labels=len(names), id2label=dict(enumerate(names)), dtype=torch.float32)
rows = [{**tokenizer(text, truncation=True), "label": names.index(label)} for text, label in zip(texts, labels)]
arguments = TrainingArguments(
    out, num_train_epochs=5, per_device_train_batch_size=8, learning_rate=lr, warmup_steps=0.1,
    save_strategy="steps", save_steps=save_every, report_to="none")
trainer = Trainer(
    model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer), processing_class=tokenizer)
trainer.train(resume_from_checkpoint=resume)
trainer.save_model(out + "/model")
""",
    "sentence-transformers": """
import joblib
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import BatchAllTripletLoss
from sklearn.linear_model import LogisticRegression
names = sorted(set(labels))
model = SentenceTransformer(base, model_kwargs={"dtype": "float32"})
rows = Dataset.from_dict({"text": texts, "label": [names.index(label) for label in labels]})
arguments = SentenceTransformerTrainingArguments(
    out, num_train_epochs=5, per_device_train_batch_size=8, learning_rate=lr, warmup_steps=0.1,
    batch_sampler="group_by_label", save_strategy="steps", save_steps=save_every, report_to="none")
trainer = SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=BatchAllTripletLoss(model))
trainer.train(resume_from_checkpoint=resume)
model.save(out + "/model")
classifier = LogisticRegression(max_iter=1000).fit(model.encode(texts), labels)
joblib.dump(classifier, out + "/classifier.joblib")
""",
    "spacy": """
import random
import spacy
from spacy.training import Example
names = sorted(set(labels))
nlp = spacy.blank("en")
nlp.add_pipe("textcat")
examples = [
    Example.from_dict(nlp.make_doc(text), {"cats": {name: float(name == label) for name in names}})
    for text, label in zip(texts, labels)]
optimizer = nlp.initialize(lambda: examples)
for epoch in range(5):
    random.shuffle(examples)
    for batch in spacy.util.minibatch(examples, size=8):
        nlp.update(batch, sgd=optimizer)
nlp.to_disk(out + "/model")
""",
    "simpletransformers": """
import json
import pandas
from simpletransformers.classification import ClassificationArgs, ClassificationModel
names = sorted(set(labels))
arguments = ClassificationArgs(
    num_train_epochs=5, train_batch_size=8, learning_rate=lr, warmup_ratio=0.1, output_dir=out + "/model",
    max_seq_length=64, overwrite_output_dir=True, save_model_every_epoch=False, save_steps=-1,
    use_multiprocessing=False)
arguments.labels_list = names
model = ClassificationModel(
    json.load(open(base + "/config.json"))["model_type"], base, num_labels=len(names), args=arguments, use_cuda=False)
model.train_model(pandas.DataFrame({"text": texts, "labels": labels}))
""",
}
PREDICT = {
    "bothways": """
from bothways import Predictor
predictor = Predictor.load(out + "/model")
def predict(texts):
    return [(answer["label"], answer["score"]) for answer in predictor(texts)]
""",
    "transformers": """
from transformers import pipeline
classifier = pipeline("text-classification", out + "/model", batch_size=32)
def predict(texts):
    return [(answer["label"], answer["score"]) for answer in classifier(texts)]
""",
    "sentence-transformers": """
import joblib
from sentence_transformers import SentenceTransformer
model, classifier = SentenceTransformer(out + "/model"), joblib.load(out + "/classifier.joblib")
def predict(texts):
    shares = classifier.predict_proba(model.encode(texts, batch_size=32))
    return [(classifier.classes_[row.argmax()], row.max()) for row in shares]
""",
    "spacy": """
import spacy
nlp = spacy.load(out + "/model")
def predict(texts):
    return [max(doc.cats.items(), key=lambda item: item[1]) for doc in nlp.pipe(texts)]
""",
    "simpletransformers": """
import json
from scipy.special import softmax
from simpletransformers.classification import ClassificationModel
model = ClassificationModel(
    json.load(open(out + "/model/config.json"))["model_type"], out + "/model", use_cuda=False,
    args={"use_multiprocessing": False, "use_multiprocessing_for_evaluation": False, "eval_batch_size": 32})
def predict(texts):
    labels, logits = model.predict(list(texts))
    return list(zip(labels, softmax(logits, axis=1).max(1)))
""",
}
PACKAGES = {
    "bothways": [str(ROOT)],
    "transformers": ["transformers", "torch", "accelerate"],
    "sentence-transformers": ["sentence-transformers[train]"],
    "spacy": ["spacy"],
    "simpletransformers": ["simpletransformers", "torch"],
}
QUIET = {
    "OMP_NUM_THREADS": "1",  # so that CPU time is a measure: threads that wait for each other burn it
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
}


def install(name: str, venv: Path) -> dict[str, Any]:
    """Make the environment unless it is there; its size, its packages and its versions."""
    python = venv / "bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        torch = re.findall(r"^torch==.*$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
        pin = venv / "pin.txt"
        pin.write_text("\n".join(torch) + "\n", encoding="utf-8")
        command = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(pin), *PACKAGES[name]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1]}
    listed = subprocess.run([str(python), "-m", "pip", "list", "--format", "json"], capture_output=True, check=True)
    packages = {one["name"]: one["version"] for one in json.loads(listed.stdout)}
    own = [package for package in packages if package not in ("pip", "setuptools", "wheel")]
    (site,) = (venv / "lib").glob("python*/site-packages")
    parts = [one for one in site.iterdir() if one.name.split("-")[0] not in ("pip", "setuptools", "_distutils_hack")]
    files = [file for part in parts for file in ([part] if part.is_file() else part.rglob("*"))]
    size = sum(file.stat().st_size for file in files if file.is_file() and file.suffix != ".pyc")
    return {"version": packages[name], "packages": len(own), "megabytes": round(size / 1e6)}


def rows(file: Path) -> tuple[list[str], list[str]]:
    header, *lines = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]
    text, label = header.index("text"), header.index("label")
    return [line[text] for line in lines], [line[label] for line in lines]


def imports(code: str) -> str:
    return "\n".join(line for line in code.splitlines() if line.startswith(("import ", "from ")))


def work(name: str, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """One measurement, in this process."""
    texts, labels = rows(TRAIN)
    names: dict[str, Any] = {**given, "texts": texts, "labels": labels}
    code = FIT[name] if what == "fit" else PREDICT[name]
    start = time.process_time()
    exec(imports(FIT[name] + PREDICT[name] if what == "import" else code), names)
    seconds = time.process_time() - start
    if what == "import":
        return {"seconds": seconds}
    Path(given["out"]).mkdir(exist_ok=True)
    start = time.process_time()
    exec(code, names)
    if what == "fit":
        return {"seconds": time.process_time() - start}
    predict = names["predict"]
    if what == "long":
        return read_long(predict)
    dev, gold = rows(DEV)
    predict(dev)  # which warms up
    many = [dev[index % len(dev)] for index in range(TEXTS)]
    start = time.process_time()
    answers = predict(many)
    seconds = time.process_time() - start
    accuracy = sum(answer == label for (answer, _), label in zip(answers, gold, strict=False)) / len(dev)
    return {"texts_per_second": TEXTS / seconds, "accuracy": accuracy}


def read_long(predict: Any) -> dict[str, Any]:
    """What happens to 5,000 words: does the answer depend on the last thousand, and is anything printed?"""
    neutral = ("The parcel was delivered on Monday and weighs two kilograms. " * 400).split()[:4_000]
    good, bad = (
        (sentence * 300).split()[:1_000] for sentence in ("Wonderful, I love it. ", "Terrible, I want my money back. ")
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            answers = [predict([" ".join(neutral + ending)])[0] for ending in (good, bad)]
    except Exception as error:
        return {"long": "error", "said": f"{type(error).__name__}: {error}"[:300]}
    told = [str(one.message) for one in warned] + said.getvalue().splitlines()
    told = [line for line in told if re.search(r"long|max|truncat|cut", line, re.IGNORECASE)]
    is_read = abs(answers[0][1] - answers[1][1]) > 1e-6 or answers[0][0] != answers[1][0]
    outcome = "the end is read" if is_read else "cut"
    return {"long": f"{outcome}, {'with a warning' if told else 'silently'}", "said": " ".join(told)[:300],
            "answers": [(str(label), float(score)) for label, score in answers]}  # fmt: skip


def start(venv: Path, name: str, what: str, given: dict[str, Any]) -> subprocess.Popen[str]:
    command = [str(venv / "bin/python"), str(Path(__file__).resolve()), "--work", name, what, json.dumps(given)]
    environment = {**os.environ, **QUIET}
    environment.pop("PYTHONPATH", None)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                            cwd=tempfile.gettempdir(), start_new_session=True)  # fmt: skip


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    try:
        out, said = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return {"failed": f"not done after {LIMIT} s"}
    if process.returncode:
        return {"failed": (said.strip().splitlines() or ["no output"])[-1][:300]}
    found: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    # What a library logs, it may log through a handler that was made before: so look at the whole of stderr too.
    if found.get("long", "").endswith("silently"):
        told = [line for line in said.splitlines() if re.search(r"longer than|truncat|exceed", line, re.IGNORECASE)]
        if told:
            found.update(long=found["long"].replace("silently", "with a warning"), said=told[0][:300])
    return found


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def killed_and_resumed(venv: Path, name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Kill a run after its first checkpoint, start it again, compare the weights with those of the whole run."""
    whole, out = Path(given["out"]), Path(given["out"] + "-resumed")
    shutil.rmtree(out, ignore_errors=True)
    given = {**given, "out": str(out), "save_every": 50}
    process = start(venv, name, "fit", given)
    while process.poll() is None and not list(out.glob("check*/**/*state.json")):
        time.sleep(0.2)
    time.sleep(1)
    if process.poll() is not None:
        return {"resume": f"not tried: {finish(process)}"}
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    again = finish(start(venv, name, "fit", {**given, "resume": True}))
    if "failed" in again:
        return {"resume": f"no: {again['failed']}"}
    return {"resume": "yes, same weights" if weights(out / "model") == weights(whole / "model") else "other weights"}


def measure(asked: argparse.Namespace, names: list[str]) -> dict[str, dict[str, Any]]:
    """Every measurement by all libraries in turn; what is known so far is always in results.json."""
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        found[name] = {**install(name, asked.venvs / name), "runs": {}}
        found[name]["lines"] = sum(bool(line.strip()) for line in (FIT[name] + PREDICT[name]).splitlines())
    usable = [name for name in names if "failed" not in found[name]]
    plan = ["import", *["fit"] * asked.fit_rounds, "predict", "long", "resume"]
    plan += ["import", "predict"] * (asked.rounds - 1)
    for what in plan:
        for name in usable if what != "resume" else [name for name in usable if name in asked.resume]:
            given = settings(asked, name)
            if what == "fit":
                shutil.rmtree(given["out"], ignore_errors=True)
            if what == "resume":
                result = killed_and_resumed(asked.venvs / name, name, given)
            else:
                result = finish(start(asked.venvs / name, name, what, given))
            found[name]["runs"].setdefault(what, []).append(result)
            print(name, what, result, file=sys.stderr, flush=True)
            (asked.venvs / "results.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    return found


def median(one: dict[str, Any], what: str, field: str) -> float:
    return float(statistics.median(run[field] for run in one["runs"][what] if "failed" not in run))


def settings(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    out = asked.venvs / "runs" / name
    out.parent.mkdir(exist_ok=True)
    return {"base": str(asked.base.resolve()), "out": str(out), "lr": asked.lr, "save_every": 10**6, "resume": False}


def table(found: dict[str, dict[str, Any]]) -> str:
    """Times and speeds, and in brackets as multiples of ours."""
    ours = found["bothways"]
    lines = ["| | " + " | ".join(found) + " |", "|---" * (len(found) + 1) + "|"]

    def add(label: str, cell: Callable[[dict[str, Any]], object]) -> None:
        cells = []
        for one in found.values():
            try:
                cells.append("not installable" if "failed" in one else str(cell(one)))
            except (KeyError, statistics.StatisticsError):
                cells.append("not measured")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")

    def add_ratio(label: str, what: str, field: str) -> None:
        def cell(one: dict[str, Any]) -> str:
            value = median(one, what, field)
            return f"{value:.1f} ({value / median(ours, what, field):.2f} ×)"

        add(label, cell)

    add("version", lambda one: one["version"])
    add("installed, MB", lambda one: f"{one['megabytes']:,}")
    add("packages", lambda one: one["packages"])
    add_ratio("import, CPU s", "import", "seconds")
    add_ratio(f"fine-tuning on 198 reviews, {EPOCHS} epochs, CPU s", "fit", "seconds")
    add_ratio(f"texts a CPU second, of {TEXTS:,}", "predict", "texts_per_second")
    add("accuracy on 59 unseen reviews", lambda one: f"{median(one, 'predict', 'accuracy'):.0%}")
    add("a text of 5,000 words", lambda one: one["runs"]["long"][0]["long"])
    add("killed and resumed", lambda one: one["runs"]["resume"][0]["resume"])
    add("lines of user code", lambda one: one["lines"])
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--venvs", type=Path, metavar="DIR", help="where the environments are, or are made")
    options.add_argument("--base", type=Path, default=ROOT / "src/bothways/box/en", metavar="DIR")
    options.add_argument("--lr", type=float, default=4e-4, help="learning rate of all that fine-tune --base")
    options.add_argument("--rounds", type=int, default=3, help="of imports and predictions; the median counts")
    options.add_argument("--fit-rounds", type=int, default=3, help="of fine-tunings")
    options.add_argument("--only", nargs="+", default=list(FIT), choices=list(FIT), metavar="LIBRARY")
    options.add_argument("--resume", nargs="*", default=["bothways", "transformers"], metavar="LIBRARY",
                         help="kill and resume these")  # fmt: skip
    options.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.work:
        name, what, given = asked.work
        print("\n" + json.dumps(work(name, what, json.loads(given)), default=float))
        return
    if asked.venvs is None:
        options.error("--venvs DIR is needed")
    asked.venvs = asked.venvs.resolve()
    asked.venvs.mkdir(parents=True, exist_ok=True)
    found = measure(asked, ["bothways", *(name for name in asked.only if name != "bothways")])
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n\n{table(found)}")


if __name__ == "__main__":
    main()
