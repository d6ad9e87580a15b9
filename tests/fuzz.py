"""Random and damaged inputs for everything that reads: each ends in a result or in one sentence.

`python tests/fuzz.py --minutes 10` (`make fuzz`) runs the command line in forks of one process, which has imported it,
with limits: exit status 0, 1 or 2, no traceback, at most 20 seconds, and no more memory than the limit.
tests/test_fuzz.py runs the same cases in one process, a minute of them.
"""

import argparse
import importlib
import json
import os
import pkgutil
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

SECONDS, MEMORY = 20, 3 * 2**29
"""Of a processor; of address space, beyond what the imports take."""
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


@dataclass(frozen=True)
class Sources:
    """Folders that are right: a model, a fine-tuned adapter of it, its ONNX graph, and a search index."""

    model: Path
    adapter: Path
    graph: Path
    index: Path


Case = Callable[[Path, Sources, random.Random], list[str]]


def case_of_text(folder: Path, sources: Sources, draw: random.Random) -> list[str]:
    """Any verb that reads texts or labelled files."""
    file = str(text_file(folder, draw))
    out, model = str(folder / "out"), sources.model
    tuned = ["--model", str(sources.adapter)]
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


def case_of_model(folder: Path, sources: Sources, draw: random.Random) -> list[str]:
    """A damaged model, adapter or graph."""
    source = draw.choice([sources.model, sources.adapter, sources.graph])
    shutil.copytree(source, folder / "model")
    damage_folder(folder / "model", draw)
    where = str(folder / "model")
    base = ["--base", str(sources.model)] if (source / "adapter_config.json").exists() and draw.random() < 0.5 else []
    verbs = [["info", where], ["predict", "a cat", "--model", where, *base], ["fill", "a [MASK]", "--model", where],
             ["convert", where, str(folder / "out")]]  # fmt: skip
    return draw.choice(verbs)


def case_of_index(folder: Path, sources: Sources, draw: random.Random) -> list[str]:
    """A damaged search index."""
    shutil.copytree(sources.index, folder / "index")
    damage_folder(folder / "index", draw)
    where = ["--index", str(folder / "index")]
    verbs = [["search", "a cat", *where, "--mode", draw.choice(["dense", "bm25", "fused"])], ["search", "compact", *where],
             ["search", "add", "examples/sample.txt", *where], ["search", "delete", "1", *where]]  # fmt: skip
    return draw.choice(verbs)


def case_of_recipe(folder: Path, sources: Sources, draw: random.Random) -> list[str]:
    """An odd recipe."""
    train = folder / "train.tsv"
    train.write_text("text\tlabel\nthe cat\ta\na dog\tb\n", encoding="utf-8")
    out = ["--out", str(folder / "out")]
    model = ["--model", str(sources.model)]
    return ["finetune", str(recipe_file(folder, train, draw)), *out, *model, "--set", "run.steps=1"]


def case_of_arguments(folder: Path, sources: Sources, draw: random.Random) -> list[str]:
    """Words that no verb expects."""
    from bothways.cli import app

    verbs = sorted(command.name or command.callback.__name__ for command in app.registered_commands if command.callback)
    words = ["--json", "--model", str(sources.model), "--out", str(folder / "out"), "--top", "-1", "\x1b[31m", "", "--long", "x",
             "--set", "a=b", "--threads", "0", "99999999999999999999", "--text", str(folder), "no-file.tsv"]  # fmt: skip
    return [draw.choice([*verbs, "search", "vocab"]), *draw.choices(words, k=draw.randint(0, 4))]


CASES: tuple[Case, ...] = (case_of_text, case_of_model, case_of_index, case_of_recipe, case_of_arguments)


def import_everything() -> None:
    """What a command may import, so that a fork of this process need not."""
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    import bothways

    for module in pkgutil.walk_packages(bothways.__path__, "bothways."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):
                importlib.import_module(module.name)
    for name in ("pyarrow.parquet", "openpyxl", "onnxruntime", "bm25s"):
        importlib.import_module(name)


def run_apart(arguments: Sequence[str], folder: Path) -> str:
    """What is wrong with how the command ended; "" if nothing is."""
    shown_in = folder / "shown"
    if not (child := os.fork()):
        _run(arguments, shown_in)
    until = time.monotonic() + 6 * SECONDS  # the machine may be busy
    while not (ended := os.wait4(child, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    _, status, usage = ended
    shown = shown_in.read_bytes().decode("utf-8", "replace")
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1, 2) or "Traceback" in shown or "\x1b" in shown or (code and not shown.strip()):
        return f"status {code}: {shown[-1_500:]}"
    used = usage.ru_utime + usage.ru_stime
    return f"it took {used:.0f} s" if used > SECONDS else ""


def _run(arguments: Sequence[str], shown_in: Path) -> NoReturn:
    """The command in a fork, which never returns."""
    from bothways.cli import main

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (2 * SECONDS, 2 * SECONDS))
    shown = os.open(shown_in, os.O_CREAT | os.O_WRONLY)
    for stream, to in enumerate((os.open(os.devnull, os.O_RDONLY), shown, shown)):
        os.dup2(to, stream)
    sys.argv, code = ["bothways", *arguments], 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 99
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def make_sources(folder: Path) -> Sources:
    """A small model and what is made with it."""
    sys.path.insert(0, str(Path(__file__).parent))
    from bothways.export.folder import export_onnx
    from bothways.model.checkpoint import save
    from bothways.model.config import ModelConfig
    from bothways.model.load import load
    from bothways.model.lora import adapt, save_adapter
    from bothways.model.model import Model
    from bothways.search.index import Index
    from bothways.tasks.folder import with_task
    from bothways.text.tokenizer import Tokenizer
    from bothways.train.settings import LoraSettings
    from helpers import PIECES, TINY, config_for

    save(Model.new(ModelConfig(TINY, ("pooler", "masked")), Tokenizer.from_pieces(PIECES)), folder / "base")
    tuned = with_task(load(folder / "base"), config_for("classify", kind="single"), ("good", "bad"))
    adapted = adapt(tuned, LoraSettings(rank=2))
    save_adapter(adapted, str(folder / "base"), folder / "adapter")
    export_onnx(folder / "adapter", folder / "graph")
    documents = folder / "documents.txt"
    documents.write_text("the cat\na dog\n是 猫\n", encoding="utf-8")
    Index.build(documents, folder / "index", model=folder / "base")
    return Sources(folder / "base", folder / "adapter", folder / "graph", folder / "index")


def main() -> None:
    """Run cases for some minutes, and print those that end badly, each with its number."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first case; the same number is the same case"
    )
    options = parser.parse_args()
    until, number, bad = time.monotonic() + 60 * options.minutes, options.first, 0
    import_everything()
    with tempfile.TemporaryDirectory() as place:
        sources = make_sources(Path(place) / "sources")
        while time.monotonic() < until:
            folder = Path(place) / "case"
            folder.mkdir()
            draw = random.Random(number)
            arguments = CASES[number % len(CASES)](folder, sources, draw)
            if wrong := run_apart(arguments, folder):
                bad += 1
                sys.stdout.write(f"case {number}: {arguments!r}\n{wrong}\n\n")
                sys.stdout.flush()
            shutil.rmtree(folder)
            number += 1
    sys.stdout.write(f"{number - options.first:,} cases, {bad:,} ended badly\n")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
