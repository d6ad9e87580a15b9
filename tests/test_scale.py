"""Bulk work in parts: the result of one process, whatever was killed, and every row once."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bothways.model.model import Model
from bothways.predict.predictor import Predictor
from bothways.pretraining.pack import pack
from bothways.progress import tick
from bothways.scale import encode_files, predict_files
from bothways.scale.drive import Progress, Target, drive, run_units
from bothways.scale.jobs import EncodeJob
from bothways.scale.packing import pack_files
from bothways.scale.processes import parse_devices, run_here, run_processes
from bothways.scale.turns import Turn, told_to
from bothways.scale.units import Counts, Cursor, TellOf, Unit, estimate_rows, unique_names, write_json
from bothways.text.tokenizer import Tokenizer
from helpers import WORDS, refused
from helpers.cli import Run, is_one_error, write_rows
from helpers.scale import Broken, Gated, done_parts, go_on, is_alive, wait_for, waiting
from helpers.tasks import their_folder

PLAIN = [word for word in WORDS if not word.startswith("##")]
ROWS = 25


def sentences(rows: int = ROWS, seed: int = 0) -> list[str]:
    draws = random.Random(seed)
    return [" ".join(draws.choices(PLAIN, k=draws.randint(0, 12))) for _ in range(rows)]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in sentences()), encoding="utf-8")
    return file


def job_for(model: Path) -> EncodeJob:
    return EncodeJob(model=str(model))


def target_for(out: Path, rows_per_part: int = 10) -> Target:
    return Target(out, out.suffix, False, rows_per_part)


def left_over(folder: Path) -> list[str]:
    """Hidden files and parts."""
    return [file.name for file in folder.iterdir() if file.name.startswith(".") or file.name.endswith(".parts")]


def require_same_vectors(found: Path, expected: Path) -> None:
    """The same rows with the same fields. Numbers may differ in their last digits: batches are cut at parts."""
    if found.suffix == ".npy":
        one, other = np.load(found), np.load(expected)
        beside = [file.with_name(file.name + ".jsonl") for file in (found, expected)]
        assert [file.exists() for file in beside] in ([False, False], [True, True])
        assert not beside[0].exists() or beside[0].read_bytes() == beside[1].read_bytes()
    else:
        rows = [_rows(file) for file in (found, expected)]
        one, other = (np.array([row.pop("vector") for row in some], np.float32) for some in rows)
        assert rows[0] == rows[1]
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _rows(file: Path) -> list[dict[str, Any]]:
    if file.suffix == ".parquet":
        return list(pq.read_table(file).to_pylist())
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------------- the same as one process


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("v.npy", ["--devices", "cpu:2"]),
        ("v.npy", ["--per", "token", "--devices", "cpu:2"]),
        ("v.jsonl", ["--devices", "cpu:1", "--layers", "last-four", "--combine", "sum"]),
        ("v.parquet", ["--per", "word", "--devices", "cpu:2"]),
    ],
)
def test_encode_in_parts(
    name: str, options: list[str], texts: Path, model_folder: Path, tmp_path: Path, run: Run
) -> None:
    found, expected = tmp_path / "some" / name, tmp_path / "one" / name
    command = ["encode", texts, "--model", model_folder, "--json"]
    where = options.index("--devices")
    plain = options[:where] + options[where + 2 :]
    one = run(*command, "--out", expected, *plain)
    some = run(*command, "--out", found, *options, "--rows-per-part", 10)
    assert one.returncode == some.returncode == 0, some.stderr
    assert {**json.loads(one.stdout), "out": ""} == {**json.loads(some.stdout), "out": ""}
    require_same_vectors(found, expected)
    assert left_over(found.parent) == []


@pytest.mark.parametrize("name", ["v.npy", "v.jsonl", "v.parquet"])
@pytest.mark.parametrize("per", ["text", "token"])
@pytest.mark.parametrize("rows", [0, 1, 20, ROWS])
def test_every_number_of_rows(name: str, per: Any, rows: int, model_folder: Path, tmp_path: Path, run: Run) -> None:
    """No row, less than a part, whole parts, and a rest."""
    texts = write_rows(tmp_path / "texts.csv", sentences(rows))
    found, expected = tmp_path / name, tmp_path / f"one-{name}"
    report = encode_files(texts, found, model_folder, per=per, text="body", devices="", rows_per_part=10)
    run("encode", texts, "--model", model_folder, "--out", expected, "--per", per, "--field", "body")
    assert report.rows == report.tally.texts == rows
    if name.endswith(".parquet") and rows == 0:
        assert pq.read_table(found).equals(pq.read_table(expected))
        return
    require_same_vectors(found, expected)


def test_parquet_has_the_row_groups_of_one_process(model_folder: Path, tmp_path: Path, run: Run) -> None:
    texts = tmp_path / "many.txt"
    texts.write_text("a\n" * 9000, encoding="utf-8")
    encode_files(texts, tmp_path / "some.parquet", model_folder, layers="static", rows_per_part=3500)
    run("encode", texts, "--model", model_folder, "--out", tmp_path / "one.parquet", "--layers", "static")
    groups = [
        [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        for file in map(pq.ParquetFile, (tmp_path / "some.parquet", tmp_path / "one.parquet"))
    ]
    assert groups[0] == groups[1]
    assert pq.read_table(tmp_path / "some.parquet")["text"].to_pylist() == list(range(9000))


@pytest.fixture
def classifier(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    return their_folder(tmp_path / "classifier", tokenizer, "BertForSequenceClassification")


@pytest.mark.parametrize("options", [[], ["--devices", "cpu:2"]])
def test_predict_in_parts(options: list[str], classifier: Path, tmp_path: Path, run: Run) -> None:
    rows = [text or "the" for text in sentences()]
    file = write_rows(tmp_path / "rows.jsonl", rows)
    out = tmp_path / "answers.jsonl"
    command = ["predict", file, "--model", classifier, "--text", "body", "--top", 2, "--json"]
    one, some = run(*command), run(*command, "--out", out, "--rows-per-part", 10, *options)
    assert one.returncode == some.returncode == 0, some.stderr
    messages = [
        [line for line in done.stderr.splitlines() if not line.startswith("predicting:")] for done in (one, some)
    ]
    assert messages[0] == messages[1]
    answers, expected = _answers(out.read_text(encoding="utf-8")), _answers(one.stdout)
    assert [row["predicted_labels"] for row in answers] == [[a["label"] for a in row] for row in expected]
    np.testing.assert_allclose(
        [row["predicted_scores"] for row in answers], [[a["score"] for a in row] for row in expected], rtol=1e-4
    )
    assert [row["body"] for row in answers] == rows
    assert [row["input_row"] for row in answers] == list(range(1, len(rows) + 1))
    assert left_over(tmp_path) == []


def _answers(written: str) -> list[Any]:
    return [json.loads(line) for line in written.splitlines()]


def test_predict_needs_a_file_for_devices(classifier: Path, texts: Path, run: Run) -> None:
    assert run("predict", texts, "--model", classifier, "--devices", "cpu:2").returncode == 2


@pytest.fixture
def vocabulary(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    folder = tmp_path / "vocabulary"
    folder.mkdir()
    tokenizer.save(folder)
    return folder


def test_pack_in_parts(vocabulary: Path, tmp_path: Path, run: Run) -> None:
    """Byte for byte, with copies within files and between them, a held-out file and a held-out share."""
    draws = random.Random(1)
    files = [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "held.txt"]
    documents = [". ".join(sentences(draws.randint(1, 4), seed)) for seed in range(40)]
    for file in files:
        file.write_text("\n\n".join(draws.choices(documents, k=30)), encoding="utf-8")
    command = ["pack", f"first={files[0]}", f"second={files[1]}", "--model", vocabulary, "--json"]
    held_out: list[list[object]] = [["--dedup", "--valid", "30%"], ["--valid", files[2], "--each", "lines"]]
    for n, options in enumerate(held_out):
        one, some = tmp_path / f"one-{n}" / "text", tmp_path / f"some-{n}" / "text"
        plain = run(*command, "--out", one, *options)
        parted = run(*command, "--out", some, *options, "--devices", "cpu:2", "--rows-per-part", 7)
        assert plain.returncode == parted.returncode == 0, parted.stderr
        assert plain.stdout == parted.stdout
        assert {f.name: f.read_bytes() for f in one.iterdir()} == {f.name: f.read_bytes() for f in some.iterdir()}
        assert left_over(some.parent) == []


def test_pack_counts_long_documents_once(vocabulary: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A document of more than a million characters is several; a part may end between them."""
    text = tmp_path / "long.txt"
    text.write_text("\n\n".join(["the cat", "a dog. " * 400_000, "paris", "a cat. " * 200_000]), encoding="utf-8")
    one = pack([text], tokenizer, tmp_path / "one" / "text")
    some = pack_files(
        {"text": [text]}, tmp_path / "vocabulary", tmp_path / "some" / "text", devices="cpu:1", rows_per_part=2
    )
    assert one == some
    assert one.split == 2


# ---------------------------------------------------------------------- several inputs


def test_several_inputs(texts: Path, model_folder: Path, tmp_path: Path, run: Run) -> None:
    """A folder with a result for each; those that are there are skipped, with their counts."""
    other = tmp_path / "more" / "texts.csv"
    other.parent.mkdir()
    write_rows(other, sentences(12, seed=1))
    write_rows(other.with_name("third.jsonl.gz"), sentences(3, seed=2))
    out = tmp_path / "vectors"
    command = ["encode", texts, other.parent, "--model", model_folder, "--field", "body", "--out", out, "--json"]
    options = ["--format", "jsonl", "--rows-per-part", 10]
    first = run(*command, *options)
    assert first.returncode == 0, first.stderr
    names = {"texts.jsonl": 25, "texts-2.jsonl": 12, "third.jsonl": 3}
    assert {file.name: len(_rows(file)) for file in out.glob("*.jsonl")} == names
    assert sorted(file.name for file in out.iterdir()) == sorted([*names, "counts", "plan.json"])
    (out / "third.jsonl").unlink()
    before = {name: (out / name).stat().st_ino for name in ("texts.jsonl", "texts-2.jsonl")}
    again = run(*command, *options)
    assert again.stdout == first.stdout
    assert json.loads(first.stdout)["texts"] == 40
    assert {name: (out / name).stat().st_ino for name in before} == before
    assert (out / "third.jsonl").exists()
    assert is_one_error(run(*command, "--format", "npy", "--rows-per-part", 10).stderr, "--format")


def test_several_inputs_for_predict(classifier: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text("the cat\na dog\n", encoding="utf-8")
    report = predict_files(str(tmp_path / "*.txt"), tmp_path / "out", classifier, devices="cpu:2")
    assert [file.name for file in report.outputs] == ["a.jsonl", "b.jsonl"]
    expected = Predictor.load(classifier)(["the cat", "a dog"])
    for file in report.outputs:
        assert [row["predicted_label"] for row in _rows(file)] == [row["label"] for row in expected]
        assert [row["text"] for row in _rows(file)] == ["the cat", "a dog"]


def test_parts_that_a_kill_left_beside_a_finished_output_are_removed(classifier: Path, tmp_path: Path) -> None:
    """It came after the counts of the output were written, and before its parts were removed."""
    files = [write_rows(tmp_path / f"{name}.csv", ["the cat", "a dog"]) for name in ("a", "b")]
    before = [file.read_bytes() for file in predict_files(files, tmp_path / "out", classifier).outputs]
    left = tmp_path / "out/a.jsonl.parts"
    left.mkdir()
    (left / "part-00000.jsonl").write_text("{}\n")
    assert [file.read_bytes() for file in predict_files(files, tmp_path / "out", classifier).outputs] == before
    assert not left.exists()
    assert left_over(tmp_path / "out") == []


def test_progress_counts_each_row_once(tmp_path: Path) -> None:
    """Of units that tell several times how far they are, and are then done."""
    units = [Unit("a.txt", first, 10, tmp_path / f"part-{first}") for first in (0, 10)]

    def execute(job: object, units: Sequence[Unit], *, tell: TellOf) -> Iterator[tuple[Unit, Counts]]:
        for far in (3, 7):
            for unit in units:
                tell(unit, {"rows": far, "bytes": 2 * far})
        for unit in units:
            yield unit, {"rows": 10, "bytes": 20}

    seen: list[Progress] = []
    job: Any = None
    assert list(run_units(job, units, 20, execute, seen.append, 40)) == units
    assert [(now.parts, now.rows, now.bytes) for now in seen] == [
        (0, 3, 6), (0, 6, 12), (0, 10, 20), (0, 14, 28), (1, 17, 34), (2, 20, 40),
    ]  # fmt: skip


def test_outputs_that_make_no_sense(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    with refused("is-a-file", names="v.npy"):
        encode_files([texts, write_rows(tmp_path / "b.csv", ["a"])], tmp_path / "v.npy", model_folder)
    with refused("unknown-format", names=r"v\.csv"):
        encode_files(texts, tmp_path / "v.csv", model_folder)
    with refused("overwrites-input"):
        encode_files(write_rows(tmp_path / "a.jsonl", ["a"]), tmp_path / "a.jsonl", model_folder)
    with refused("no-file", names=r"none\.txt"):
        encode_files(tmp_path / "none.txt", tmp_path / "v.npy", model_folder)
    with refused("stdin-once"):
        predict_files("-", tmp_path / "v.jsonl", model_folder)
    with refused("bad-combination", names="cpu"):
        encode_files(texts, tmp_path / "v.npy", model_folder, device="cpu", devices="cpu:2")
    assert left_over(tmp_path) == []


# ---------------------------------------------------------------------- kills


def test_a_killed_worker_loses_nothing(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "v.npy"
    gate.mkdir()
    job = Gated(job_for(model_folder), gate, (10,))
    killed: list[int] = []

    def kill() -> None:
        killed.append(waiting(gate))
        os.kill(killed[0], signal.SIGKILL)
        killed.append(waiting(gate, but=killed))
        (gate / "go").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.warns(UserWarning, match=r"SIGKILL.*rows 11 to 20 of .*texts\.txt"):
        report = drive(job, [texts], target_for(out), partial(run_processes, devices=["cpu", "cpu"]))
    killer.join()
    assert len(set(killed)) == 2
    assert report.counts["rows"] == ROWS
    encode_files(texts, tmp_path / "one.npy", model_folder)
    require_same_vectors(out, tmp_path / "one.npy")
    assert left_over(tmp_path) == []


DRIVER = """
import sys
from functools import partial
from pathlib import Path
from bothways.scale.drive import Target, drive
from bothways.scale.jobs import EncodeJob
from bothways.scale.on_ray import run_ray
from bothways.scale.processes import run_processes
from helpers.scale import Gated
texts, model, out, gate, where = sys.argv[1:]
execute = partial(run_ray, address="ray", devices="cpu:2") if where == "ray" else partial(run_processes, devices=["cpu"] * 2)
drive(Gated(EncodeJob(model=model), Path(gate), (10,)), [Path(texts)], Target(Path(out), ".npy", False, 5), execute)
"""


@contextmanager
def driver_apart(*arguments: object) -> "Iterator[subprocess.Popen[bytes]]":
    """A driver in a process of its own, until the block ends."""
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *map(str, arguments)], env=apart())
    try:
        yield driver
    finally:
        driver.kill()
        driver.wait()


def apart() -> dict[str, str]:
    """The environment for a process that finds the same modules. Without a token, Ray puts one into the home folder."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    return {**os.environ, **token, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def test_a_killed_driver_goes_on(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    gate, out = tmp_path / "gate", tmp_path / "v.npy"
    gate.mkdir()
    with driver_apart(texts, model_folder, out, gate, "here"):
        worker = waiting(gate)
        wait_for(lambda: len(done_parts(out)) == 4)  # all but the one that waits
        before = done_parts(out)
        with refused("already-running", names=r"v\.npy\.parts"):
            encode_files(texts, out, model_folder, rows_per_part=5)
    wait_for(lambda: not is_alive(worker))  # workers end with their driver
    assert not out.exists()
    progress, parts = go_on(texts, model_folder, out)
    assert [now[0] for now in progress] == [1, 2, 3, 4, 5]
    assert progress[-1] == (5, 5, ROWS, ROWS)
    for seen in parts:
        assert before.items() <= seen.items()  # none of them was made again
    encode_files(texts, tmp_path / "one.npy", model_folder)
    require_same_vectors(out, tmp_path / "one.npy")
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("moment", ["joined", "counted"])
def test_a_kill_while_parts_are_joined(
    moment: str, texts: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts are removed when all else is done."""

    def pull(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "vectors"
    name = {"joined": "write_json", "counted": "remove_parts"}[moment]
    again: Callable[[], Any] = partial(encode_files, texts.with_name("t*ts.txt"), out, model_folder, rows_per_part=10)
    with monkeypatch.context() as patch:
        patch.setattr(f"bothways.scale.drive.{name}", pull)
        with pytest.raises(KeyboardInterrupt):
            again()
    assert again().rows == ROWS
    assert len(np.load(out / "texts.npy")) == ROWS


class _KillError(Exception):
    """Stands for a kill, in this process."""


def killed_after(monkeypatch: pytest.MonkeyPatch, parts: int, call: Callable[[], Any]) -> None:
    """Call a function, and end it when it has finished so many parts."""
    left = parts

    def write(path: Path, value: Any) -> None:
        nonlocal left
        if not left:
            raise _KillError
        left -= 1
        write_json(path, value)

    with monkeypatch.context() as patch:
        patch.setattr("bothways.scale.jobs.write_json", write)
        with pytest.raises(_KillError):
            call()


@pytest.mark.parametrize("name", ["answers.jsonl", "answers.csv", "v.npy", "v.jsonl", "words.npy"])
def test_a_killed_run_of_a_small_file_goes_on_where_it_was(
    name: str, classifier: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of one unit: its beginning is kept, and the numbers are the same to the last bit."""
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 4})
    texts.write_text("\n".join(text or "the" for text in sentences()), encoding="utf-8")
    out, expected = tmp_path / name, tmp_path / "expected" / name

    def work(out: Path) -> Any:
        if name.startswith("answers"):
            return predict_files(texts, out, classifier)
        return encode_files(texts, out, classifier, per="word" if name == "words.npy" else "text")

    whole = work(expected)
    monkeypatch.setattr("bothways.scale.turns.SECONDS", 0.0)
    killed_after(monkeypatch, 3, partial(work, out))
    kept = [json.loads(file.read_text()) for file in out.with_name(f"{name}.parts").glob("part-*.json")]
    assert len(kept) == 3
    again: list[int] = []
    read = Cursor.take

    def take(self: Cursor[Any], rows: int) -> Any:
        again.append(self._row)
        return read(self, rows)

    monkeypatch.setattr(Cursor, "take", take)
    assert work(out).tally == whole.tally
    assert again[0] == sum(counts["rows"] for counts in kept), "the rows that were done are not done again"
    assert out.read_bytes() == expected.read_bytes()
    beside = [path.with_name(f"{path.name}.jsonl") for path in (out, expected)]
    assert [path.exists() for path in beside] == [name == "words.npy"] * 2
    assert name != "words.npy" or beside[0].read_bytes() == beside[1].read_bytes()
    assert left_over(tmp_path) == []


def test_a_turn_ends_only_where_all_rows_have_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.scale.turns.SECONDS", 0.0)
    turn = Turn(iter(range(10)), "cpu")

    def three_at_a_time() -> Iterator[int]:
        rows = iter(turn)
        while some := list(islice(rows, 3)):
            yield from some

    assert list(turn.answers(three_at_a_time())) == [0, 1, 2]
    assert turn.counts() == {"goes_on": True}
    on_gpu = Turn(iter(range(10)), "cuda")
    assert list(on_gpu.answers(on_gpu)) == list(range(10))
    assert on_gpu.counts() == {}


# ---------------------------------------------------------------------- progress within a part


def test_a_part_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine draws rows ahead: those that it computes count by its ticks."""
    monkeypatch.setattr("bothways.scale.turns._TELL_SECONDS", 0.0)
    turn, told = Turn(iter(range(8)), "cpu"), list[int]()

    def four_at_a_time() -> Iterator[int]:
        rows = iter(turn)
        while some := list(islice(rows, 4)):
            for finished in range(0, 8, 2):
                tick(finished, 8)  # two sequences a row
            yield from some

    with told_to(lambda far: told.append(far["rows"])):
        assert list(turn.answers(four_at_a_time())) == list(range(8))
    assert sorted(set(told)) == list(range(9))
    assert told == sorted(told)


@pytest.mark.parametrize("devices", ["", "cpu:1"])
def test_progress_within_a_part(devices: str, texts: Path, model_folder: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    encode_files(texts, tmp_path / "v.npy", model_folder, devices=devices, on_progress=seen.append)
    assert [now.rows for now in seen] == sorted(now.rows for now in seen)
    assert {now.all_parts for now in seen} == {1}
    assert 0 in [now.parts for now in seen]
    assert (seen[-1].parts, seen[-1].rows, seen[-1].all_rows) == (1, ROWS, ROWS)


def test_pack_counts_the_bytes_of_its_files(vocabulary: Path, tmp_path: Path) -> None:
    """Lines are not documents: their number says nothing of how far it is."""
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for file in files:
        file.write_text("the cat sleeps\na dog walks\n\n" * 20_000, encoding="utf-8")
    seen: list[Progress] = []
    written: list[str] = []

    def watch(items: Any, what: str, _: object = ()) -> Any:
        written.append(what)
        return items

    out, size = tmp_path / "packed" / "text", sum(file.stat().st_size for file in files)
    where: dict[str, Any] = {"devices": "cpu:2", "on_progress": seen.append, "watch": watch}
    pack_files({"text": files}, vocabulary, out, **where, rows_per_part=10_000)
    assert {now.all_bytes for now in seen} == {size}
    assert [now.bytes for now in seen] == sorted(now.bytes for now in seen)
    assert any(0 < now.bytes < size and not now.parts for now in seen)
    assert 0.9 * size < seen[-1].bytes <= size
    assert written == ["writing"]


def test_a_bug_ends_the_run_after_three_attempts(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    job = Broken(job_for(model_folder))
    with (
        pytest.warns(UserWarning, match="ZeroDivisionError: a bug"),
        refused("worker-died", names=r"3 workers.*rows 1 to the last of .*ZeroDivisionError: a bug"),
    ):
        drive(job, [texts], target_for(tmp_path / "v.npy", 100), partial(run_processes, devices=["cpu"]))


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("devices", ["", "cpu:2"])
def test_an_error_names_the_row_of_the_file(devices: str, texts: Path, model_folder: Path, tmp_path: Path) -> None:
    rows = sentences()
    rows[17] = "the " * 60
    texts.write_text("\n".join(rows), encoding="utf-8")
    with refused("too-long", names=r"texts\.txt: text 18 has 62 tokens"):
        encode_files(texts, tmp_path / "v.npy", model_folder, devices=devices, rows_per_part=5)
    report = encode_files(texts, tmp_path / "w.npy", model_folder, rows_per_part=5, long="cut")
    assert (report.tally.cut, report.tally.texts) == (1, ROWS)


def test_an_error_of_a_reader_names_the_line(classifier: Path, tmp_path: Path, run: Run) -> None:
    file = write_rows(tmp_path / "rows.jsonl", sentences())
    lines = file.read_text().splitlines()
    lines[13] = "{"
    file.write_text("\n".join(lines))
    command = ["predict", file, "--model", classifier, "--text", "body", "--out", tmp_path / "v.jsonl"]
    done = run(*command, "--rows-per-part", 5)
    assert done.returncode == 1
    assert is_one_error(done.stderr, "rows.jsonl, line 14")
    assert done.stderr.count("rows.jsonl") == 1


def test_what_another_plan_began_is_refused(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    rows = sentences()
    out = tmp_path / "v.npy"
    texts.write_text("\n".join([*rows, "the " * 60]), encoding="utf-8")

    def begin(**options: Any) -> None:
        encode_files(texts, out, options.pop("model", model_folder), **{"rows_per_part": 10, **options})

    with refused("too-long"):  # two parts are done, the third is not
        begin()
    assert len(done_parts(out)) == 2
    with refused("other-plan", names="`pool` None, and now it is .*cls.*delete .*v.npy.parts"):
        begin(pool="cls")
    with refused("other-plan", names="`rows_per_part` 10, and now it is 5"):
        begin(rows_per_part=5)
    config = model_folder / "config.json"
    config.write_text(config.read_text() + " ")
    with refused("other-plan", names="another config.json of the model"):
        begin()
    config.write_text(config.read_text()[:-1])
    os.utime(texts, ns=(0, 0))
    with refused("other-plan", names="another .*texts.txt of the inputs"):
        begin()


def test_a_plan_of_which_nothing_is_done_is_replaced(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    """After a misspelt option nothing must be deleted."""
    with refused("unknown-choice", "query"):
        encode_files(texts, tmp_path / "v.npy", model_folder, prompt_name="query")
    assert encode_files(texts, tmp_path / "v.npy", model_folder).rows == ROWS


def test_a_missing_ray_is_one_sentence(
    texts: Path, model_folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    done = run("encode", texts, "--model", model_folder, "--out", tmp_path / "v.npy", "--on", "ray")
    assert done.returncode == 1
    assert is_one_error(done.stderr, "pip install 'bothways[ray]'")


def test_devices() -> None:
    assert parse_devices("cpu:3") == ["cpu"] * 3
    for wrong in ("cpu:0", "cpu:x", "cpux"):
        with refused("unknown-choice", wrong):
            parse_devices(wrong)
    with refused("no-gpu", "cuda:99", names="cuda:99"):
        parse_devices("cuda:99")


# ---------------------------------------------------------------------- pieces


def test_a_cursor_opens_a_file_again_only_to_go_back() -> None:
    opened: list[str] = []

    def read(file: str) -> Any:
        opened.append(file)
        return iter(range(10))

    cursor = Cursor(read)
    for file, first, rows, expected in [
        ("a", 2, 2, [2, 3]),
        ("a", 6, 3, [6, 7, 8]),
        ("a", 9, None, [9]),
        ("a", 12, 2, []),
        ("b", 0, 1, [0]),
        ("b", 0, None, list(range(10))),
    ]:
        cursor.seek(file, first)
        assert list(cursor.take(rows)) == expected
    assert opened == ["a", "b", "b"]


@pytest.mark.parametrize(("content", "rows"), [("", 0), ("a", 1), ("a\n", 1), ("a\n\nb", 3)])
def test_estimated_rows(content: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(content)
    assert estimate_rows(tmp_path / "a.txt") == rows
    assert estimate_rows(write_rows(tmp_path / "b.parquet", ["x"] * rows)) == rows


def test_names_are_unique() -> None:
    files = [Path("a/x.txt"), Path("b/x.txt.gz"), Path("x-2.csv"), Path("c/x.v1.txt")]
    assert unique_names(files, ".npy") == ["x.npy", "x-2.npy", "x-2-2.npy", "x.v1.npy"]


def test_a_worker_opens_its_model_once(
    texts: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Model] = []
    load = Model.to

    def counted(self: Model, *arguments: Any, **options: Any) -> Any:
        opened.append(self)
        return load(self, *arguments, **options)

    monkeypatch.setattr(Model, "to", counted)
    units = [Unit(str(texts), first, 5, tmp_path / f"part-{first:05}.npy") for first in range(0, ROWS, 5)]
    assert len(list(run_here(job_for(model_folder), units, "cpu"))) == 5
    assert len({id(model) for model in opened}) == 1


# ---------------------------------------------------------------------- Ray


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")
def test_ray_loses_nothing(texts: Path, model_folder: Path, tmp_path: Path) -> None:
    """On a local cluster of two workers: one is killed, then the driver; the same command again does the rest."""
    gate, out = tmp_path / "gate", tmp_path / "v.npy"
    gate.mkdir()
    with driver_apart(texts, model_folder, out, gate, "ray"):
        first = waiting(gate)
        os.kill(first, signal.SIGKILL)
        second = waiting(gate, but=[first])  # the unit of the killed worker is begun again
        wait_for(lambda: len(done_parts(out)) == 4)
        before = done_parts(out)
    wait_for(lambda: not is_alive(second))
    code = "import json, sys; from helpers.scale import go_on; print(json.dumps(go_on(*sys.argv[1:], on='ray', devices='cpu:2')))"
    command = [sys.executable, "-c", code, texts, model_folder, out]
    done = subprocess.run(list(map(str, command)), env=apart(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    progress, parts = json.loads(done.stdout)
    assert progress[-1] == [5, 5, ROWS, ROWS]
    for seen in parts:
        assert before.items() <= {name: tuple(facts) for name, facts in seen.items()}.items()
    # Workers of Ray compute in one thread each; more would change the last bits.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    one = "import sys; from bothways.scale.bulk import encode_files; encode_files(*sys.argv[1:], rows_per_part=5)"
    command = [sys.executable, "-c", one, texts, tmp_path / "one.npy", model_folder]
    subprocess.run(list(map(str, command)), env=environment, check=True)
    assert out.read_bytes() == (tmp_path / "one.npy").read_bytes()
    assert left_over(tmp_path) == []
