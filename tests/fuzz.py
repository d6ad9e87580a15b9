"""Random and damaged inputs for everything that reads: each ends in a result or in one sentence.

`python tests/fuzz.py --minutes 10` (`make fuzz`) runs the command line in processes with limits: exit status 0, 1 or 2,
no traceback, at most 20 seconds, and no more memory than the limit. tests/test_fuzz.py runs the same cases in one
process, a minute of them.
"""

import argparse
import json
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SECONDS, MEMORY = 20, 4 * 2**30  # of address space: torch alone maps three
_ODD: list[Any] = [0, -1, 1, 2**31, 2**63, 10**30, -(10**400), 0.5, 1e308, float("nan"), float("inf"), True, None, "", "x", [], {},
        [[]], {"a": {}}, "a" * 5_000, "\x1b[31m", "\u202e", "\ud800", [1] * 1_000, "(a+)+b", "../..", "\x00"]  # fmt: skip
_LINES = ["text\tlabel", "a\tb\nc\td", "text,label\na,b\n", '{"text": "a", "label": 1}', '{"text": ["a"]}', "[[[[", '"',
          "\ufeff", "\x00\x00", "a" * 3_000, "\u200b", "\x1b]0;x\x07", "1e308", "nan", "-DOCSTART- O", "a B-X\nb I-Y",
          '{"a": NaN}', '{"text": {"b": 1}}', "__label__x y", "\r\n\r", "是 B-X"]  # fmt: skip
READ = (".txt", ".tsv", ".csv", ".jsonl", ".json", ".conll", ".conllu", ".parquet", ".arrow", ".xlsx", ".gz", ".xz",
        ".spacy", ".html", ".md", ".pdf", ".ann")  # fmt: skip


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Bytes with some of them changed, left out, repeated or added."""
    found = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(5):
            case 0:
                found[at : at + 1] = bytes([draw.randrange(256)])
            case 1:
                del found[at : at + draw.randint(1, 200)]
            case 2:
                found[at:at] = found[at : at + draw.randint(1, 200)]
            case 3:
                found[at:at] = draw.choice(_LINES).encode("utf-8", "surrogatepass")
            case 4:
                found[at : at + 8] = struct.pack("<Q", draw.choice([0, 1, 2**31, 2**40, 2**63]))
    return bytes(found)


def damaged_json(value: Any, draw: random.Random) -> Any:
    """A JSON value with one of its parts replaced, left out or repeated."""
    if draw.random() < 0.15 or not isinstance(value, dict | list) or not value:
        return draw.choice(_ODD)
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    key = draw.choice(list(copy)) if isinstance(copy, dict) else draw.randrange(len(copy))
    if draw.random() < 0.15:
        del copy[key]
    else:
        copy[key] = damaged_json(copy[key], draw)
    return copy


def damage_folder(folder: Path, draw: random.Random) -> None:
    """Change one file of a model or an adapter."""
    file = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    if file.suffix == ".json" and draw.random() < 0.8:
        value = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(damaged_json(value, draw)), encoding="utf-8")
        return
    content = file.read_bytes()
    if file.suffix == ".safetensors" and draw.random() < 0.7:
        size = struct.unpack("<Q", content[:8])[0]
        header = json.dumps(damaged_json(json.loads(content[8 : 8 + size]), draw)).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header + content[8 + size :])
        return
    file.write_bytes(damaged(content, draw))


def text_file(folder: Path, draw: random.Random) -> Path:
    """A file of a kind that is read, with lines that are not right, or with an example of ours damaged."""
    examples = [path for path in sorted(Path("examples").glob("*")) if path.is_file() and path.stat().st_size < 200_000]
    suffix = draw.choice(READ)
    content = "\n".join(draw.choices(_LINES, k=draw.randint(0, 12))).encode("utf-8", "surrogatepass")
    if examples and draw.random() < 0.5:
        chosen = draw.choice(examples)
        suffix = draw.choice([chosen.suffix, suffix])
        content = damaged(chosen.read_bytes()[:5_000], draw)
    path = folder / f"input{draw.choice(['', ' x', '=1'])}{suffix}"
    path.write_bytes(content)
    return path


def recipe_file(folder: Path, train: Path, draw: random.Random) -> Path:
    """A recipe with odd keys and values."""
    keys = ["run.seed", "run.keep", "optim.lr", "optim.betas", "optim.warmup",
            "window.length", "window.overlap", "lora.rank", "lora.targets", "model.freeze", "model.keep_layers",
            "distill.teacher", "classify.kind", "classify.class_weights", "data.text", "run.batch_size"]  # fmt: skip
    values = ["0", "-1", "1", "1e308", "nan", "inf", "99999999999999999999999", '""', '"x"', "[]", "[1]", "{}", "true",
              '["\\u001b"]', "1979-05-27", "0x" + "f" * 60, "[[" * 50 + "]]" * 50]  # fmt: skip
    lines = ["task = \"classify\"", f"data.train = [{json.dumps(str(train))}]", "run.micro_tokens = 64"]  # fmt: skip
    lines += [f"{draw.choice(keys)} = {draw.choice(values)}" for _ in range(draw.randint(1, 3))]
    path = folder / "recipe.toml"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


Case = Callable[[Path, Path, Path, random.Random], list[str]]


def case_of_text(folder: Path, model: Path, adapter: Path, draw: random.Random) -> list[str]:
    """Any verb that reads texts or labelled files."""
    file = str(text_file(folder, draw))
    out = str(folder / "out")
    tuned = ["--model", str(adapter)]
    verbs = [
        ["predict", file, *tuned, "--long", "cut"], ["predict", file, *tuned, "--json", "--top", "2"],
        ["evaluate", file, *tuned], ["encode", file, "--model", str(model), "--out", out + ".npy"],
        ["doctor", file], ["doctor", file, "--dev", file, "--json"], ["similar", file, "--model", str(model)],
        ["cluster", file, "--model", str(model), "--k", "2"], ["pack", file, "--model", str(model), "--out", out],
        ["vocab", "train", file, "--out", out, "--size", "200"], ["mine", file, "--model", str(model), "--out", out + ".jsonl"],
        ["finetune", draw.choice(["classify", "tag", "answer", "choose", "score", "embed"]), "--train", file, "--out", out,
         "--model", str(model), "--set", "run.steps=1"],
        ["rerank", "a query", file, *tuned], ["evaluate-vectors", file, "--model", str(model)], ["bertscore", file, file],
        ["search", "build", file, "--out", out, "--model", str(model)], ["blimp", file, "--model", str(model)],
    ]  # fmt: skip
    return draw.choice(verbs)


def case_of_model(folder: Path, model: Path, adapter: Path, draw: random.Random) -> list[str]:
    """A damaged model or adapter."""
    source = draw.choice([model, adapter])
    shutil.copytree(source, folder / "model")
    damage_folder(folder / "model", draw)
    where = str(folder / "model")
    base = ["--base", str(model)] if (source / "adapter_config.json").exists() and draw.random() < 0.5 else []
    verbs = [["info", where], ["predict", "a cat", "--model", where, *base], ["fill", "a [MASK]", "--model", where],
             ["convert", where, str(folder / "out")]]  # fmt: skip
    return draw.choice(verbs)


def case_of_recipe(folder: Path, model: Path, adapter: Path, draw: random.Random) -> list[str]:
    """An odd recipe."""
    train = folder / "train.tsv"
    train.write_text("text\tlabel\nthe cat\ta\na dog\tb\n", encoding="utf-8")
    out = ["--out", str(folder / "out")]
    return ["finetune", str(recipe_file(folder, train, draw)), *out, "--model", str(model), "--set", "run.steps=1"]


def case_of_arguments(folder: Path, model: Path, adapter: Path, draw: random.Random) -> list[str]:
    """Words that no verb expects."""
    from bothways.cli import app

    verbs = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)
    words = ["--json", "--model", str(model), "--out", str(folder / "out"), "--top", "-1", "\x1b[31m", "", "--long", "x",
             "--set", "a=b", "--threads", "0", "99999999999999999999", "--text", str(folder), "no-file.tsv"]  # fmt: skip
    return [draw.choice([*verbs, "search", "vocab"]), *draw.choices(words, k=draw.randint(0, 4))]


CASES: tuple[Case, ...] = (case_of_text, case_of_model, case_of_recipe, case_of_arguments)


def _limits() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def run_apart(arguments: Sequence[str]) -> str:
    """What is wrong with how the command ended; "" if nothing is."""
    command = [sys.executable, "-m", "bothways", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    try:
        done = subprocess.run(command, capture_output=True, timeout=3 * SECONDS, check=False, env=environment,
                              stdin=subprocess.DEVNULL, preexec_fn=_limits)  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"it took more than {3 * SECONDS} s"
    except ValueError:  # an argument that no process can have
        return ""
    shown = (done.stdout + done.stderr).decode("utf-8", "replace")
    if done.returncode not in (0, 1, 2):
        return f"status {done.returncode}: {shown[-1_500:]}"
    used = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if "Traceback" in shown or "\x1b" in shown:
        return shown[-1_500:]
    return f"it took {used:.0f} s" if used > SECONDS else ""  # of a processor: the machine may be busy


def make_models(folder: Path) -> tuple[Path, Path]:
    """A small model and an adapter of it, fine-tuned."""
    sys.path.insert(0, str(Path(__file__).parent))
    from bothways.model.checkpoint import save
    from bothways.model.config import ModelConfig
    from bothways.model.load import load
    from bothways.model.lora import adapt, save_adapter
    from bothways.model.model import Model
    from bothways.tasks.folder import with_task
    from bothways.text.tokenizer import Tokenizer
    from bothways.train.settings import LoraSettings
    from helpers import PIECES, TINY, config_for

    save(Model.new(ModelConfig(TINY, ("pooler", "masked")), Tokenizer.from_pieces(PIECES)), folder / "base")
    tuned = with_task(load(folder / "base"), config_for("classify", kind="single"), ("good", "bad"))
    adapted = adapt(tuned, LoraSettings(rank=2))
    save_adapter(adapted, str(folder / "base"), folder / "adapter")
    return folder / "base", folder / "adapter"


def main() -> None:
    """Run cases for some minutes, and print those that end badly, each with its number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first case; the same number is the same case"
    )
    options = parser.parse_args()
    until, number, bad = time.monotonic() + 60 * options.minutes, options.first, 0
    with tempfile.TemporaryDirectory() as place:
        model, adapter = make_models(Path(place) / "models")
        while time.monotonic() < until:
            folder = Path(place) / "case"
            folder.mkdir()
            draw = random.Random(number)
            arguments = CASES[number % len(CASES)](folder, model, adapter, draw)
            if wrong := run_apart(arguments):
                bad += 1
                sys.stdout.write(f"case {number}: {arguments!r}\n{wrong}\n\n")
                sys.stdout.flush()
            shutil.rmtree(folder)
            number += 1
    sys.stdout.write(f"{number - options.first:,} cases, {bad:,} ended badly\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
