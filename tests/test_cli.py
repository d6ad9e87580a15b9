"""The command line as people use it: output, exit codes, sentences instead of tracebacks, no network."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bothways.cli import main
from bothways.predict.encode import encode
from conftest import NETWORK

# Any use of the network ends the process with status 99, whatever catches exceptions.
GUARDED = f"""
import os, sys
def guard(event, arguments):
    if event in {sorted(NETWORK)!r}:
        sys.stderr.write("network: " + event)
        os._exit(99)
sys.addaudithook(guard)
from bothways.cli import main
main()
"""

Done = subprocess.CompletedProcess[str]
Run = Callable[..., Done]


def run_apart(*arguments: object, stdin: str = "") -> Done:
    """The command in a process of its own, with warnings as errors and the network guarded."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", GUARDED, *map(str, arguments)],
        input=stdin, capture_output=True, timeout=120, encoding="utf-8", check=False,
    )  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: the same `main`, without waiting for torch each time."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["bothways", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, code, out, err)

    return call


def test_train_show_info_fill(tmp_path: Path, model_folder: Path, run: Run) -> None:
    """The whole way of a newcomer, English and Chinese."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The cat sleeps. 北京是中国的首都。\nThe dog walks.\n" * 20, encoding="utf-8")
    trained = run("vocab", "train", corpus, "--out", tmp_path / "vocabulary", "--size", 300)
    assert trained.returncode == 0, trained.stderr
    assert "pieces in" in trained.stderr
    assert trained.stdout == ""

    shown = run("vocab", "show", "The cat 北京", "walks", "--model", tmp_path / "vocabulary")
    assert shown.returncode == 0
    for word in ("piece", "segment", "[CLS]", "the", "cat", "北", "[SEP]"):
        assert word in shown.stdout
    table = json.loads(run("vocab", "show", "The cat", "walks", "--model", tmp_path / "vocabulary", "--json").stdout)
    assert table[1] == {
        "piece": "the",
        "id": table[1]["id"],
        "start": 0,
        "end": 3,
        "text": "The",
        "word": 0,
        "segment": 0,
    }
    assert [row["segment"] for row in table] == [0, 0, 0, 0, *[1] * (len(table) - 4)]

    info = run("info", model_folder)
    assert info.returncode == 0
    for word in (
        "BertForPreTraining",
        "3 layers × 32",
        "WordPiece",
        "masked, next",
        "model.safetensors",
        "predict masked tokens",
    ):
        assert word in info.stdout
    facts = json.loads(run("info", model_folder, "--json").stdout)
    assert facts["parameters"] == sum(facts["parameters_by_part"].values())
    assert facts["encoder"]["layers"] == 3

    filled = run("fill", "The capital of France is [MASK].", "--model", model_folder, "--top", 3)
    assert filled.returncode == 0, filled.stderr
    lines = filled.stdout.splitlines()
    assert len(lines) == 3
    score, word, text = lines[0].split(maxsplit=2)
    assert 0 < float(score) <= 1
    assert text == f"The capital of France is {word}." or word.startswith("##")
    assert run("fill", "The\ncat [MASK].", "--model", model_folder, "--top", 1).stdout.count("\n") == 1
    answers = json.loads(run("fill", "北[MASK]是[MASK]国的首都。", "--model", model_folder, "--json").stdout)
    assert len(answers) == 5
    assert set(answers[0]) == {"score", "words", "tokens", "text"}
    assert len(answers[0]["words"]) == 2


@pytest.mark.slow
def test_pipes_and_no_network(tmp_path: Path, model_folder: Path) -> None:
    """Each verb in a process of its own, fed through standard input where it can be; none touches the network."""
    filled = run_apart("fill", "-", "--model", model_folder, "--json", stdin="[MASK] cat\n\n猫 [MASK]\n")
    assert filled.returncode == 0, filled.stderr
    first, second = (json.loads(line) for line in filled.stdout.splitlines())
    assert first[0]["text"].endswith(" cat")
    assert second[0]["text"].startswith("猫")
    out = tmp_path / "words.npy"
    report = run_apart("encode", "-", "--model", model_folder, "--out", out, "--per", "word", "--json", stdin="a cat\n")
    assert report.returncode == 0, report.stderr
    assert json.loads(report.stdout)["rows"] == 2
    names = (tmp_path / "words.npy.jsonl").read_text().splitlines()
    assert json.loads(names[1]) == {"text": 0, "word": "cat", "start": 2, "end": 5}
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sleeps\n" * 9)
    assert run_apart("vocab", "train", corpus, "--out", tmp_path / "v", "--size", 150).returncode == 0
    assert run_apart("info", model_folder).returncode == 0
    broken = run_apart("fill", "[MASK]", "--model", tmp_path / "none")
    assert (broken.returncode, broken.stderr) == (1, f"bothways: there is no folder {tmp_path / 'none'}\n")


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl", "out.parquet"])
def test_encode(tmp_path: Path, model_folder: Path, name: str, run: Run) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("The cat\n\n北京\n", encoding="utf-8")
    done = run(
        "encode", texts, "--model", model_folder, "--out", tmp_path / name, "--layers", "last-four", "--combine", "sum"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "3 texts, 10 tokens; 1 empty → 3 × 32" in done.stderr
    if name == "out.npy":
        expected = encode(["The cat", "", "北京"], model_folder, layers="last-four", combine="sum")
        assert np.abs(np.load(tmp_path / name) - expected).max() < 1e-5
    assert [f.name for f in tmp_path.iterdir() if f.name.startswith(".")] == []


def test_weighted_layers(tmp_path: Path, model_folder: Path, run: Run) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"body": "the cat"}\n')
    out = tmp_path / "v.npy"
    options = ("--field", "body", "--layers", "1,2", "--weights", "0.5,2", "--pool", "cls")
    assert run("encode", texts, "--model", model_folder, "--out", out, *options).returncode == 0
    expected = encode(["the cat"], model_folder, layers=[1, 2], weights=[0.5, 2], pool="cls")
    assert np.abs(np.load(out) - expected).max() < 1e-5


BAD = {
    "no model": (["fill", "[MASK]", "--model", "{tmp}/none"], "there is no folder"),
    "no blank": (["fill", "no blank", "--model", "{model}"], "there is no blank to fill"),
    "too long": (["fill", "[MASK] " + "the " * 600, "--model", "{model}"], "has 603 tokens and this model reads 48"),
    "too long to encode": (["encode", "{long}", "--model", "{model}", "--out", "{tmp}/v.npy"], "set --long to window"),
    "no file": (["encode", "{tmp}/none.txt", "--model", "{model}", "--out", "{tmp}/v.npy"], "there is no file"),
    "bad output": (["encode", "{long}", "--model", "{model}", "--out", "{tmp}/v.csv"], "expected a name that ends in"),
    "unwritable": (["encode", "{short}", "--model", "{model}", "--out", "/proc/none/v.npy"], "could not be written"),
    "unwritable folder": (["vocab", "train", "{short}", "--out", "/proc/none"], "could not be written"),
    "a full folder": (["vocab", "train", "{short}", "--out", "{tmp}"], "already holds other files"),
    "bad weights": (
        ["encode", "{short}", "--model", "{model}", "--out", "{tmp}/v.npy", "--weights", "a,b"],
        "--weights takes numbers",
    ),
    "bad layers": (
        ["encode", "{short}", "--model", "{model}", "--out", "{tmp}/v.npy", "--layers", "77"],
        "there is no layer 77",
    ),
    "no tokenizer": (["vocab", "show", "a", "--model", "{tmp}"], "has no tokenizer"),
    "not a model": (["info", "{tmp}"], "is not a model folder"),
    "tiny vocabulary": (["vocab", "train", "{short}", "--out", "{tmp}/v", "--size", "5"], "too small"),
    "over its input": (["encode", "{jsonl}", "--model", "{model}", "--out", "{jsonl}"], "would be overwritten"),
    "names over its input": (
        ["encode", "{names}", "--model", "{model}", "--out", "{tmp}/v.npy", "--per", "word"],
        "would be overwritten",
    ),
    "a model's folder": (
        ["vocab", "train", "{short}", "--out", "{model}"],
        "already holds other files, such as README.md",
    ),
    "a name too long": (["info", "{tmp}/" + "x" * 300], "File name too long"),
    "a size too large": (["vocab", "train", "{short}", "--out", "{tmp}/v", "--size", "9" * 20], "cannot be made"),
    "too many answers": (["fill", "[MASK] [MASK]", "--model", "{model}", "--top", "100000"], "at most 256 answers"),
    "binary": (["encode", "{binary}", "--model", "{model}", "--out", "{tmp}/v.npy"], "is not UTF-8 text"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_1(what: str, tmp_path: Path, model_folder: Path, run: Run) -> None:
    arguments, says = BAD[what]
    work = tmp_path / "work"
    work.mkdir()
    (work / "long.txt").write_text("short\n" + "the cat " * 100)
    (work / "short.txt").write_text("short")
    (work / "binary.txt").write_bytes(b"ok\n\xff\xfe\x00")
    (work / "a.jsonl").write_text('{"text": "short"}')
    (work / "v.npy.jsonl").write_text('{"text": "short"}')
    before = {f.name: f.read_bytes() for f in work.iterdir()}
    places = {
        "jsonl": work / "a.jsonl",
        "names": work / "v.npy.jsonl",
        "tmp": work,
        "model": model_folder,
        "long": work / "long.txt",
        "short": work / "short.txt",
        "binary": work / "binary.txt",
    }
    done = run(*[argument.format(**places) for argument in arguments])
    assert done.returncode == 1, done.stderr
    assert says in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert {f.name: f.read_bytes() for f in work.iterdir()} == before  # nothing half-written, nothing lost


def test_wrong_usage_is_exit_code_2(model_folder: Path, run: Run) -> None:
    for arguments in (
        ["fill"],
        ["fill", "[MASK]", "--top", "none"],
        ["dance"],
        ["encode", "a.txt", "--model", model_folder, "--out", "b.npy", "--pool", "median"],
    ):
        assert run(*arguments).returncode == 2


def test_help_does_not_wait_for_torch() -> None:
    check = "import sys\nfrom bothways.cli import main\ntry:\n    main()\nfinally:\n    assert 'torch' not in sys.modules, 'torch'\n    assert 'numpy' not in sys.modules\n"
    for arguments in (
        ["--help"],
        ["--version"],
        ["fill", "--help"],
        ["encode", "--help"],
        ["vocab", "train", "--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", check, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_every_verb_shows_an_example(run: Run) -> None:
    for verb in (["info"], ["fill"], ["encode"], ["vocab", "train"], ["vocab", "show"]):
        assert f"Example: bothways {' '.join(verb)}" in " ".join(run(*verb, "--help").stdout.split())


def test_import_is_quick() -> None:
    """What `import bothways` and all its names cost beyond torch, in modules rather than in seconds."""
    script = "import sys, bothways\nassert 'torch' not in sys.modules and set(dir(bothways)) >= set(bothways.__all__)\n"
    script += "import torch\nbefore = set(sys.modules)\n"
    script += "for name in bothways.__all__: getattr(bothways, name)\n"
    script += "print('\\n'.join(sorted({m.split('.')[0] for m in set(sys.modules) - before})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    roots = set(done.stdout.split())
    assert not roots & {
        "transformers",
        "sentence_transformers",
        "peft",
        "pandas",
        "scipy",
        "sklearn",
        "matplotlib",
        "pyarrow",
        "rich",
        "typer",
    }


def is_waiting(process: int) -> bool:
    """Whether a process sleeps, where the system can tell."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    except FileNotFoundError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_leaves_nothing(kind: signal.Signals, tmp_path: Path, model_folder: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    command = [
        sys.executable,
        "-c",
        GUARDED,
        "encode",
        "-",
        "--model",
        str(model_folder),
        "--out",
        str(folder / "v.npy"),
    ]

    def hear() -> None:  # a shell's background jobs are started deaf to Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes, preexec_fn=hear)  # type: ignore[call-overload]  # noqa: PLW1509
    deadline = time.monotonic() + 60
    while not any(folder.iterdir()) or not is_waiting(process.pid):  # it has begun to write, and waits for texts
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(kind)
    _, words = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"Traceback" not in words
    assert list(folder.iterdir()) == []
