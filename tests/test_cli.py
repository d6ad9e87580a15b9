"""The command line as people use it: output, exit codes, sentences instead of tracebacks, no network."""

import inspect
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bothways.cli import app
from bothways.cli.output import show_warnings
from bothways.model.box import has_box
from bothways.predict.encode import encode
from helpers.cli import GUARDED, Run, is_one_error, run_apart


def test_train_show_info_fill(tmp_path: Path, model_folder: Path, run: Run) -> None:
    """The whole way of a newcomer, English and Chinese."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("The cat sleeps. 北京是中国的首都。\nThe dog walks.\n" * 20, encoding="utf-8")
    trained = run("vocab", "train", corpus, "--out", tmp_path / "vocabulary", "--size", 300)
    assert trained.returncode == 0, trained.stderr
    assert str(tmp_path / "vocabulary") in trained.stderr
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
def test_pipes_and_no_network(tmp_path: Path, model_folder: Path, run: Run) -> None:
    """What reads standard input in a process of its own; what does not, in this one. None touches the network."""
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
    assert run("vocab", "train", corpus, "--out", tmp_path / "v", "--size", 150).returncode == 0
    assert run("info", model_folder).returncode == 0
    broken = run("fill", "[MASK]", "--model", tmp_path / "none")
    assert broken.returncode == 1
    assert is_one_error(broken.stderr, str(tmp_path / "none"))


@pytest.mark.parametrize("name", ["out.npy", "out.jsonl", "out.parquet"])
def test_encode(tmp_path: Path, model_folder: Path, name: str, run: Run) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("The cat\n\n北京\n", encoding="utf-8")
    done = run(
        "encode", texts, "--model", model_folder, "--out", tmp_path / name, "--layers", "last-four", "--combine", "sum"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    for words in ("3 texts", "10 tokens", "1 empty", "3 × 32"):
        assert words in done.stderr
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
    "no model": (["fill", "[MASK]", "--model", "{tmp}/none"], "{tmp}/none"),
    "no mask": (["fill", "no mask", "--model", "{model}"], "[MASK]"),
    "too long": (["fill", "[MASK] " + "the " * 600, "--model", "{model}"], "603"),
    "too long to encode": (["encode", "{long}", "--model", "{model}", "--out", "{tmp}/v.npy"], " --long "),
    "no file": (["encode", "{tmp}/none.txt", "--model", "{model}", "--out", "{tmp}/v.npy"], "{tmp}/none.txt"),
    "bad output": (["encode", "{long}", "--model", "{model}", "--out", "{tmp}/v.csv"], "{tmp}/v.csv"),
    "unwritable": (["encode", "{short}", "--model", "{model}", "--out", "/proc/none/v.npy"], "/proc/none"),
    "unwritable folder": (["vocab", "train", "{short}", "--out", "/proc/none"], "/proc/none"),
    "a full folder": (["vocab", "train", "{short}", "--out", "{tmp}"], "{tmp}"),
    "bad weights": (
        ["encode", "{short}", "--model", "{model}", "--out", "{tmp}/v.npy", "--weights", "a,b"],
        "--weights is 'a,b'",
    ),
    "bad layers": (["encode", "{short}", "--model", "{model}", "--out", "{tmp}/v.npy", "--layers", "77"], "77"),
    "no tokenizer": (["vocab", "show", "a", "--model", "{tmp}"], "{tmp}"),
    "not a model": (["info", "{tmp}"], "{tmp}"),
    "tiny vocabulary": (["vocab", "train", "{short}", "--out", "{tmp}/v", "--size", "5"], "5"),
    "over its input": (["encode", "{jsonl}", "--model", "{model}", "--out", "{jsonl}"], "{jsonl}"),
    "names over its input": (
        ["encode", "{names}", "--model", "{model}", "--out", "{tmp}/v.npy", "--per", "word"],
        "{names}",
    ),
    "a model's folder": (["vocab", "train", "{short}", "--out", "{model}"], "README.md"),
    "a name too long": (["info", "{tmp}/" + "x" * 300], "x" * 300),
    "a size too large": (["vocab", "train", "{short}", "--out", "{tmp}/v", "--size", "9" * 20], "99"),
    "too many answers": (["fill", "[MASK] [MASK]", "--model", "{model}", "--top", "100000"], "--top is 100000"),
    "binary": (["encode", "{binary}", "--model", "{model}", "--out", "{tmp}/v.npy"], "{binary}"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_1(what: str, tmp_path: Path, model_folder: Path, run: Run) -> None:
    arguments, value = BAD[what]
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
    assert done.stdout == ""
    assert is_one_error(done.stderr, value.format(**places)), done.stderr
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
        ["search", "--help"],
        ["search", "build", "--help"],
        ["vocab", "train", "--help"],
    ):
        done = subprocess.run(
            [sys.executable, "-c", check, *arguments], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def helps(group: typer.Typer, *words: str) -> Iterator[tuple[str, str]]:
    """All verbs, as they are typed, with their help."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield " ".join([*words, command.name or command.callback.__name__]), inspect.getdoc(command.callback) or ""
    for sub in group.registered_groups:
        assert isinstance(sub.typer_instance, typer.Typer)
        yield from helps(sub.typer_instance, *words, str(sub.name))


HELP = dict(helps(app))


@pytest.mark.parametrize("verb", HELP)
def test_the_help_of_every_verb_ends_with_an_example(verb: str) -> None:
    assert re.search(rf"\n\nExample: bothways {verb}( [^\n]+(\n[^\n]+)?)?$", HELP[verb])


@pytest.mark.parametrize("verb", HELP)
def test_h_shows_the_help_and_flags_have_no_type(verb: str) -> None:
    short, long = (CliRunner().invoke(app, [*verb.split(), option]) for option in ("-h", "--help"))
    assert short.exit_code == 0
    assert short.output == long.output
    assert "<bool>" not in short.output
    usage = short.output.partition("Usage:")[2].partition("\n\n")[0]
    assert not re.search(r"\}|\.\.\.\]?\.\.\.|\[\[", usage)


@pytest.mark.parametrize("verb", HELP)
def test_the_same_option_has_the_same_help(verb: str) -> None:
    shown = " ".join(CliRunner().invoke(app, [*verb.split(), "-h"], env={"COLUMNS": "400"}).output.split())
    for option, words in (("--json", "Print JSON."), ("--threads", "N [x>=1] Number of CPU threads of each process.")):
        assert f" {option} " not in shown or re.search(rf" {option} +{re.escape(words)}", shown)
    assert "in the box" not in shown


COMPUTES_NOTHING = {
    "info": "shows what a folder holds",
    "convert": "copies weights",
    "export": "copies weights, and runs a few tokens",
    "models": "shows a list",
    "page": "copies weights",
    "pack": "tokenizes",
    "search compact": "copies rows",
    "search delete": "marks rows",
    "vocab train": "counts words",
    "vocab show": "tokenizes",
    "vocab extend": "adds rows of a table",
    "vocab shrink": "drops rows of a table",
}


@pytest.mark.parametrize("verb", sorted({*HELP, *COMPUTES_NOTHING}))
def test_every_verb_that_computes_has_a_device_and_threads(verb: str) -> None:
    names = re.findall(r"(?<= )--[a-z]+", CliRunner().invoke(app, [*verb.split(), "-h"]).output)
    has = [name in names for name in ("--device", "--threads")]
    assert has == [verb not in COMPUTES_NOTHING] * 2


@pytest.mark.parametrize("verb", ["info", "export", "compress", "static"])
def test_a_model_is_the_argument_or_an_option(verb: str) -> None:
    needed = {"compress": ["--train", "a", "--dev", "a", "--out", "b"], "info": []}.get(verb, ["--out", "b"])
    both = CliRunner().invoke(app, [verb, "en", "--model", "zh", *needed])
    assert both.exit_code == 2
    assert "two models were given" in both.output


@pytest.mark.skipif(not has_box(), reason="this copy has no model in the box")
def test_a_model_of_an_option_is_shown(run: Run) -> None:
    assert run("info", "--model", "zh", "--json").stdout == run("info", "zh", "--json").stdout != ""


def test_shells_complete_verbs() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "--install-completion" in shown
    assert "<bool>" not in shown
    words = {"_BOTHWAYS_COMPLETE": "complete_bash", "COMP_WORDS": "bothways fin", "COMP_CWORD": "1"}
    done = CliRunner().invoke(app, [], prog_name="bothways", env=words)
    assert done.output.split() == ["finetune"]


@pytest.mark.slow
@pytest.mark.skipif(not has_box(), reason="this copy has no model in the box")
@pytest.mark.parametrize("verb", ["fill", "encode", "predict", "evaluate", "evaluate-vectors", "blimp"])
def test_the_example_works_with_the_model_in_the_box(
    verb: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(Path(__file__).parent.parent / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    command = shlex.split(HELP[verb].partition("Example: ")[2])
    done = run(*command[1:])
    assert done.returncode == 0, done.stderr
    assert done.stdout or (tmp_path / command[-1]).is_file()


def test_warnings_are_one_line_of_every_verb(tmp_path: Path, run: Run) -> None:
    """A renamed key of a recipe: the library warns, and nobody sees Python's way of saying it."""
    recipe = tmp_path / "old.toml"
    recipe.write_text('task = "classify"\n[optim]\ndecay = 0.5\n')
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    done = run("finetune", recipe, "--train", tmp_path / "rows.csv", "--model", tmp_path / "none", "--out", tmp_path)
    warning, error = done.stderr.splitlines()
    assert warning.startswith("warning: ")
    assert "optim.decay" in warning
    assert "optim.weight_decay" in warning
    assert is_one_error(f"{error}\n", str(tmp_path / "none"))
    with pytest.warns(UserWarning, match="odd"):  # and the hook is gone
        warnings.warn("odd", stacklevel=1)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_of_the_processes_of_torchrun_the_first_one_warns(
    rank: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    with show_warnings():
        warnings.simplefilter("always")
        warnings.warn("odd", stacklevel=1)
    assert capfd.readouterr().err == ("warning: odd\n" if rank == "0" else "")


def test_every_line_of_a_warning_and_those_of_others(capfd: pytest.CaptureFixture[str]) -> None:
    with show_warnings():
        warnings.simplefilter("always")
        warnings.warn("set `max_length`\nor not", stacklevel=1)
        warnings.warn_explicit("from elsewhere", DeprecationWarning, "other.py", 1)
    assert capfd.readouterr().err == "warning: set --max-length or not\nwarning: from elsewhere\n"


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
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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

    def hear() -> None:  # a shell's background jobs are started deaf to Ctrl-C, and nohup's to closed terminals
        signal.signal(kind, signal.SIG_DFL)

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


@pytest.mark.parametrize("verb", ["predict a.txt --out b.jsonl", "encode a.txt --out b.npy", "pack a.txt --out b"])
def test_empty_devices_are_not_none(verb: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("the cat\n")
    assert is_one_error(run(*verb.split(), "--devices", "").stderr, "--devices is empty")


# ---------------------------------------------------------------------- several files after one option


def _parsed(verb: str, *words: str) -> dict[str, object]:
    """What a verb gets from these words; its error, if they are refused."""
    command: Any = typer.main.get_command(app)
    for name in verb.split():
        command = command.commands[name]
    return dict(command.make_context(verb, list(words)).params)


@pytest.mark.parametrize(
    ("verb", "words", "expected"),
    [
        ("finetune", "classify --train a b c --dev d e --out o", {"task": "classify", "train": "abc", "dev": "de"}),
        ("finetune", "classify --train a --train b c --out o", {"train": "abc"}),
        ("finetune", "classify --train=a b --out o", {"train": "ab"}),
        ("finetune", "--train a b --lr 1e-3 classify --out o", {"task": "classify", "train": "ab", "lr": 1e-3}),
        ("finetune", "--train a b --out o -- classify", {"task": "classify", "train": "ab"}),
        ("finetune", "--train a classify --dev b --out o", {"task": "classify", "train": "a", "dev": "b"}),
        ("finetune", "classify --train a b --set run.seed=1 --json --dev c --out o", {"train": "ab", "dev": "c"}),
        ("doctor", "a --dev b c", {"files": "a", "dev": "bc"}),
        ("doctor", "--dev b c -- a", {"files": "a", "dev": "bc"}),
        ("doctor", "--dev b a", {"files": "a", "dev": "b"}),
        ("doctor", "a - --dev -", {"files": "a-", "dev": "-"}),
        ("adapt", "a b --general c d --out o", {"texts": "ab", "general": "cd"}),
        ("pack", "a --valid b c --out o", {"inputs": "a", "valid": "bc"}),
        ("pretrain", "tiny --data a b --out o", {"recipe": "tiny", "data": "ab"}),
        ("serve", "--index a b", {"folders": "b", "index": "a"}),
        ("serve", "a b --index c d", {"folders": "ab", "index": "cd"}),
        ("vocab extend", "m --words a b --from c d --out o", {"words": "ab", "files": "cd"}),
        ("vocab shrink", "m --out o --from c d", {"files": "cd"}),
    ],
)
def test_several_files_after_one_option(verb: str, words: str, expected: dict[str, object]) -> None:
    """As a shell gives them for --train data/*.csv."""
    found = _parsed(verb, *words.split())
    for name, value in expected.items():
        given = found[name]
        assert ("".join(map(str, given)) if isinstance(given, list | tuple) else given) == value


@pytest.mark.parametrize(
    ("verb", "words", "named"),
    [
        ("finetune", "--train a b classify --out o", ("--train", "TASK")),
        ("finetune", "--out o --train a b --dev c classify", ("--train", "TASK")),
        ("doctor", "--dev a b c", ("--dev", "FILE")),
        ("adapt", "--out o --general a b c", ("--general", "TEXT")),
    ],
)
def test_files_that_may_be_arguments_are_refused(verb: str, words: str, named: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, [*verb.split(), *words.split()])
    option, argument = named
    assert done.exit_code == 2
    assert f"put {argument} before {option}, or after --" in " ".join(done.output.replace("│", " ").split())


def test_an_option_is_no_value() -> None:
    done = CliRunner().invoke(app, ["finetune", "classify", "--out", "o", "--train", "--dev", "d.csv"])
    assert done.exit_code == 2
    assert "--train needs a value, and --dev is an option" in " ".join(done.output.replace("│", " ").split())


def _commands(command: Any, *words: str) -> Iterator[Any]:
    found = getattr(command, "commands", {})
    yield from [one for name, sub in found.items() for one in _commands(sub, *words, name)] if found else [command]


def test_every_option_of_several_files_takes_them_after_one_flag() -> None:
    """Options of one file are named by its kind; those that may be repeated end in three points."""
    for command in _commands(typer.main.get_command(app)):
        for option in (param for param in command.params if param.param_type_name == "option"):
            metavar = option.metavar or ""
            if re.search("FILE|DIR|TEXT|PATH", metavar):
                assert option.multiple == metavar.endswith("..."), (command.name, option.name)
