"""The log survives kills, the console speaks to standard error only, the picture shows the data."""

import io
import json
import math
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bothways.train import curve, report
from bothways.train.curve import Thinned, draw_curve, entries
from bothways.train.machine import peak_flops
from bothways.train.protocol import Evaluated, Event, Finished, Saved, Started, Stepped
from bothways.train.report import Console, Log, TensorBoard
from helpers import refused

STARTED = Started(0, 1_234_567, "cpu", "fp32", 2e11)


def stepped(step: int, phase: int = 0, **changed: Any) -> Stepped:
    loss = 2 + 8 / step
    losses = {"mlm": loss - 0.5, "next": 0.5}
    return replace(
        Stepped(step, phase, loss, losses, 1e-4, 1.5, 1000 * step, 5000.0, 5e10, (step - 1) / 100, 0.2 * step),
        **changed,
    )


def write_log(path: Path, events: list[Event], resumed_at: int = 0) -> list[dict[str, Any]]:
    with closing(Log(path, resumed_at)) as log:
        log(replace(STARTED, step=resumed_at))
        for event in events:
            log(event)
    return read(path)


def read(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------ log


def test_every_step_and_evaluation_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    events: list[Event] = [
        Evaluated(0, {"loss": 10.4, "mlm_accuracy": 0.01}, False),
        stepped(1),
        Saved(1, tmp_path),
        Evaluated(1, {"loss": 9.0}, True),
        Finished(1, 0.2, True),
    ]
    assert write_log(path, events) == [
        {"step": 0, "valid": {"loss": 10.4, "mlm_accuracy": 0.01}, "final": False},
        {
            "step": 1,
            "phase": 0,
            "loss": 10.0,
            "losses": {"mlm": 9.5, "next": 0.5},
            "lr": 1e-4,
            "norm": 1.5,
            "tokens": 1000,
            "tokens_per_second": 5000.0,
            "mfu": 0.25,
            "elapsed": 0.2,
        },
        {"step": 1, "valid": {"loss": 9.0}, "final": True},
    ]


def test_losses_keep_every_bit(tmp_path: Path) -> None:
    [entry] = write_log(tmp_path / "m", [stepped(1, loss=1 / 3)])
    assert entry["loss"] == 1 / 3


def test_a_line_is_there_as_soon_as_it_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with closing(Log(path, 0)) as log:
        for step in (1, 2, 3):
            log(stepped(step))
            assert [entry["step"] for entry in read(path)] == list(range(1, step + 1))


def test_numbers_that_are_not_finite_stay_json(tmp_path: Path) -> None:
    bad = stepped(1, loss=math.nan, losses={"mlm": math.inf, "next": 0.5}, norm=-math.inf, speed=math.inf)
    step, valid = write_log(tmp_path / "m", [bad, Evaluated(1, {"loss": math.nan}, False)])
    assert (step["loss"], step["losses"], step["norm"]) == (None, {"mlm": None, "next": 0.5}, None)
    assert step["tokens_per_second"] is None
    assert valid["valid"] == {"loss": None}


def test_a_run_that_goes_on_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "m"
    events: list[Event] = [Evaluated(0, {"loss": 11.0}, False)]
    for step in range(1, 8):
        events += [stepped(step), Evaluated(step, {"loss": 1.0 * step}, False)]
    whole = write_log(path, events)
    kept = write_log(path, [stepped(5, loss=7.0)], resumed_at=4)
    assert kept[:-1] == [entry for entry in whole if entry["step"] <= 4]
    assert len(kept) == 1 + 2 * 4 + 1
    assert kept[-1]["loss"] == 7.0
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "broken", ['{"step": 3, "pha', '{"step": 3', "\0\0\0", '{"step": 3}', "3\n", "\xff\n", "[1]\n"]
)
def test_a_half_written_line_is_dropped(tmp_path: Path, broken: str) -> None:
    """Even one that happens to be whole but for its end, to which the next would be glued."""
    path = tmp_path / "m"
    write_log(path, [stepped(1), stepped(2)])
    path.write_bytes(path.read_bytes() + broken.encode("latin-1"))
    assert [entry["step"] for entry in write_log(path, [stepped(4)], resumed_at=3)] == [1, 2, 4]


def test_a_fresh_run_starts_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_log(path, [Evaluated(0, {"loss": 1.0}, False), stepped(1)])
    assert write_log(path, []) == []


def test_a_kill_while_the_log_is_cut_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m"
    before = write_log(path, [stepped(1), stepped(2)])

    def killed(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
        yield b"{}\n", {"step": 1}
        raise KeyboardInterrupt

    monkeypatch.setattr(report, "entries", killed)
    with pytest.raises(KeyboardInterrupt):
        Log(path, 1)
    assert read(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with closing(Log(tmp_path / "m", 0)) as log:
        log._file.close()
        log._file = open("/dev/full", "a", buffering=1)  # noqa: SIM115
        with refused("unwritable", tmp_path / "m"):
            log(stepped(1))
        with pytest.raises(OSError, match="No space"):
            log._file.close()


# ------------------------------------------------------------------ console


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(report, "monotonic", lambda: self.now)


def test_without_a_terminal_there_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    with Console(100, None) as console:
        console(STARTED)
        for step in range(1, 101):
            clock.now += 0.5
            console(stepped(step))
        console(Evaluated(100, {"loss": 1.5, "mlm_accuracy": 0.25}, True))
        console(Saved(100, Path("out/step-100")))
        console(Finished(100, 200.0, True))
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0] == "1,234,567 parameters on cpu in fp32"
    steps = [int(line.split("step ")[1].split()[0]) for line in lines[1:7]]
    assert steps == [1, 21, 41, 61, 81, 100]
    assert lines[7:] == [
        "step 100: validation loss 1.5000 (mlm_accuracy 0.25)",
        "step 100: saved out/step-100",
        "finished at step 100 after 3 min 20 s",
    ]


def test_what_was_done_before_is_not_told_as_new(capsys: pytest.CaptureFixture[str]) -> None:
    with Console(100, None) as console:
        console(replace(STARTED, step=100))
        console(Finished(100, 200.0, True))
    end = capsys.readouterr().err.splitlines()[-1]
    assert "step 100 after 3 min 20 s" in end
    assert not end.startswith("finished")


def test_a_line_says_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    console = Console(1000, None)
    console(STARTED)
    console(stepped(1))
    clock.now += 10
    console(stepped(51, loss=4.0, losses={"mlm": 3.0, "next": 1.0}, elapsed=10.2))
    first, second = capsys.readouterr().err.splitlines()[1:]
    assert first == (
        "  0%  step 1 of 1,000  loss 10.0000  mlm 9.5000  next 0.5000  lr 1.00e-04  5,000 tokens/s  MFU 25.0%"
    )
    # 949 steps of 0.2 seconds; the losses are between the two of the steps.
    assert "step 51 of 1,000  3 min 10 s left  loss 6.9400  mlm 6.1850  next 0.7550" in second
    assert second.startswith("  5%")


@pytest.mark.parametrize("peak", [math.nan, 4.9e10])
def test_no_mfu_without_a_peak_rate_and_none_above_one(
    peak: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A CPU has no known peak; steps that are reported together may look faster than a device can be."""
    started = replace(STARTED, peak_flops=peak)
    console = Console(1000, None)
    with closing(Log(tmp_path / "metrics.jsonl", 0)) as log:
        for event in (started, stepped(1)):
            console(event)
            log(event)
    assert "tokens/s" in (told := capsys.readouterr().err)
    assert "MFU" not in told
    assert [step["mfu"] for step in read(tmp_path / "metrics.jsonl")] == [None]


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A10G", math.nan),  # not an A10
        ("NVIDIA H20", math.nan),
    ],
)
def test_the_peak_rate_of_a_gpu_is_that_of_its_data_sheet(
    name: str, peak: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    assert peak_flops(torch.device("cuda"), "bf16") == pytest.approx(peak, nan_ok=True)
    assert math.isnan(peak_flops(torch.device("cuda"), "fp32"))
    assert math.isnan(peak_flops(torch.device("cpu"), "bf16"))


def test_a_run_by_minutes_shows_the_share_of_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(None, 2.0)
    console(stepped(7, losses={"mlm": 1.0}, done=0.25, elapsed=30.0))
    console(stepped(8, losses={"mlm": 1.0}, done=0.26, elapsed=31.0))
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(" 25%  step 7  1 min 30 s left  loss ")
    assert "mlm" not in line
    assert "MFU" not in line


def test_steps_that_are_told_together_do_not_count_as_fast(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(1000, None)
    for step in range(1, 101):
        console(stepped(step, elapsed=10.0 * math.ceil(step / 50)))
    console(Finished(100, 20.0, False))
    assert "step 100 of 1,000  3 min 00 s left" in capsys.readouterr().err


def test_a_new_phase_does_not_blur_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(100, None)
    for step in range(1, 50):
        console(stepped(step, loss=9.0))
    console(stepped(50, phase=1, loss=2.0))
    console(Finished(50, 9.0, False))
    *_, last, end = capsys.readouterr().err.splitlines()
    assert "loss 2.0000" in last
    assert "step 50 after 9 s" in end


def test_a_run_that_goes_on_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(100, None)
    console(replace(STARTED, step=1500))
    console(stepped(1501))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].endswith("step 1,500")
    assert "step 1,501" in lines[1]


def test_a_checkpoint_is_told_with_the_step_it_is_of(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock(monkeypatch)
    console = Console(100, None)
    console(stepped(1))
    console(stepped(2))
    console(Saved(2, Path("here")))
    console(Finished(2, 0.4, False))
    lines = capsys.readouterr().err.splitlines()
    parts = ["1%  step 1 of", "2%  step 2 of", "step 2: saved here", "stopped at step 2 "]
    assert all(part in line for line, part in zip(lines, parts, strict=True)), lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def sit_at_a_terminal(monkeypatch: pytest.MonkeyPatch, kind: str = "xterm") -> Terminal:
    """Not a fixture: pytest puts its own standard error back before a test begins."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_on_a_terminal_there_is_a_display(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = sit_at_a_terminal(monkeypatch)
    with Console(100, None) as console:
        assert console._live
        console(STARTED)
        console._live.refresh()
        assert "preparing" in terminal.getvalue()
        for step in range(1, 43):
            console(stepped(step))
        console._live.refresh()
        shown = terminal.getvalue()
        console(Evaluated(42, {"loss": 1.5}, False))
    for words in ("━", "42%", "step 42 of 100", "12 s left", "mlm", "tokens/s", "MFU 25.0%"):
        assert words in shown, words
    assert "validation loss 1.5000" in terminal.getvalue()
    assert "%  step" not in terminal.getvalue(), "the display says it, no line has to"
    assert capsys.readouterr().out == ""


def test_the_display_ends_if_the_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = sit_at_a_terminal(monkeypatch)
    displays = []
    with pytest.raises(ZeroDivisionError), Console(100, None) as console:
        assert console._live
        displays.append(console._live)
        assert displays[0].is_started
        console(stepped(1))
        _ = 1 / 0
    assert not displays[0].is_started
    assert sys.stderr is terminal
    assert terminal.getvalue().rstrip("\n").rfind("\x1b[?25h") > terminal.getvalue().rfind("\x1b[?25l")


def test_results_keep_their_way_to_standard_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = sit_at_a_terminal(monkeypatch)
    with Console(100, None):
        sys.stdout.write("a result\n")
    assert capsys.readouterr().out == "a result\n"
    assert "a result" not in terminal.getvalue()


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = sit_at_a_terminal(monkeypatch, "dumb")
    with Console(100, None) as console:
        console(stepped(1))
    assert "step 1 of 100" in terminal.getvalue()
    assert "\x1b" not in terminal.getvalue()


# ------------------------------------------------------------------ tensorboard


def test_tensorboard_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with refused("missing-package", "tensorboard"):
        TensorBoard(tmp_path)


def test_tensorboard_shows_what_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in, so that it is tested where tensorboard is not installed."""
    made: list[Any] = []

    class Writer:
        def __init__(self, folder: str, purge_step: int) -> None:
            self.folder, self.purge_step, self.closed = folder, purge_step, False
            self.rows: dict[tuple[str, int], float] = {}
            made.append(self)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.rows[name, step] = value

        def close(self) -> None:
            self.closed = True

    module = type(sys)("torch.utils.tensorboard")
    module.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    with closing(TensorBoard(tmp_path)) as board:
        board(replace(STARTED, step=3))
        board(stepped(4, norm=math.inf))
        board(Evaluated(4, {"loss": 1.5, "mlm_accuracy": 0.5}, False))
    [writer] = made
    assert (writer.folder, writer.purge_step, writer.closed) == (str(tmp_path), 4, True)
    assert writer.rows == {
        ("train/loss", 4): 4.0,
        ("train/loss/mlm", 4): 3.5,
        ("train/loss/next", 4): 0.5,
        ("train/lr", 4): 1e-4,
        ("train/tokens_per_second", 4): 5000.0,
        ("train/mfu", 4): 0.25,
        ("valid/loss", 4): 1.5,
        ("valid/mlm_accuracy", 4): 0.5,
    }


@pytest.mark.slow
def test_tensorboard_itself_reads_it(tmp_path: Path) -> None:
    judge = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for begin, end in ((0, 6), (3, 5)):
        with closing(TensorBoard(tmp_path)) as board:
            board(replace(STARTED, step=begin))
            for step in range(begin + 1, end + 1):
                board(stepped(step, loss=10.0 * begin + step))
    found = judge.EventAccumulator(str(tmp_path)).Reload().Scalars("train/loss")
    assert [(row.step, row.value) for row in found] == [(1, 1), (2, 2), (3, 3), (4, 34), (5, 35)]


# ------------------------------------------------------------------ picture


def make_log(path: Path, steps: int = 300, offset: float = 0.0, phases: int = 1, accuracy: bool = True) -> Path:
    events: list[Event] = []
    for step in range(1, steps + 1):
        phase = phases * (step - 1) // steps
        events.append(stepped(step, phase, loss=2 + offset + 8 / step + 0.1 * (step % 3)))
        if step % 100 == 0:
            scores = {"loss": 2.1 + 8 / step} | ({"mlm_accuracy": step / 1000} if accuracy else {})
            events.append(Evaluated(step, scores, step == steps))
    write_log(path, events)
    return path


def picture(tmp_path: Path, log: Path, plateau: float | None = None) -> bytes:
    assert draw_curve(log, tmp_path / "curve.png", plateau)
    data = (tmp_path / "curve.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(data[16:20]), int.from_bytes(data[20:24])) == (1000, 700)
    return data


@pytest.mark.slow
def test_the_picture_shows_the_data(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    before = dict(matplotlib.rcParams)
    log = make_log(tmp_path / "a")
    pictures = [
        picture(tmp_path, log),
        picture(tmp_path, make_log(tmp_path / "b", offset=0.5)),
        picture(tmp_path, make_log(tmp_path / "c", phases=2, accuracy=False)),
        picture(tmp_path, log, plateau=5.0),
        picture(tmp_path, make_log(tmp_path / "d", steps=1)),
    ]
    assert len(set(pictures)) == 5
    assert not list(tmp_path.glob(".*"))
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_without_matplotlib_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw_curve(make_log(tmp_path / "a", steps=5), tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_without_steps_there_is_no_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_log(tmp_path / "a", [Evaluated(0, {"loss": 1.0}, False)])
    assert draw_curve(tmp_path / "a", tmp_path / "curve.png")
    assert not (tmp_path / "curve.png").exists()


def test_what_is_not_finite_or_half_written_is_not_drawn(tmp_path: Path) -> None:
    log = make_log(tmp_path / "a", phases=3)
    plain = curve._read(log)
    assert plain.phases == {0: 1, 1: 101, 2: 201}
    assert plain.last == (300, 300_000)
    with closing(Log(log, 300)) as more:
        more(stepped(300, loss=math.nan))
        more(Evaluated(300, {"loss": math.inf}, False))
    log.write_text(log.read_text() + '{"step": 301, "ph')
    assert len(list(entries(log))) == 300 + 3 + 2
    found = curve._read(log)
    assert (found.steps.table() == plain.steps.table()).all()
    assert {name: len(rows.table()) for name, rows in found.valid.items()} == {"loss": 3, "mlm_accuracy": 3}


def test_a_long_run_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "POINTS", 100)
    rows = Thinned(2)
    for step in range(1, 3334):
        rows.add((step, 2.0 * step))
        assert len(rows._rows) < 100
    table = rows.table()
    assert 50 <= len(table) <= 100
    assert (table[:, 1] == 2 * table[:, 0]).all()
    # Every row counted once: the means, weighted with how many each stands for, are the mean of all.
    weights = [rows.stride] * (len(table) - 1) + [3333 - rows.stride * (len(table) - 1)]
    assert (table[:, 0] * weights).sum() == pytest.approx(3333 * 3334 / 2)
    assert (table[1:, 0] > table[:-1, 0]).all()


def test_smoothing_keeps_straight_lines_and_calms_noise() -> None:
    import numpy as np

    line = np.linspace(5.0, 1.0, 2000)
    assert np.allclose(curve._smoothed(line), line)
    noise = np.where(np.arange(2000) % 2, 1.0, -1.0)
    assert abs(curve._smoothed(noise)[50:-50]).max() < 0.05
    for size in (0, 1, 2, 9):
        assert len(curve._smoothed(np.ones(size))) == size
