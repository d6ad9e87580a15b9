"""Listeners of a run: the log, the console, TensorBoard."""

import json
import math
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any

from bothways import atomic
from bothways.errors import BothwaysError, missing_package
from bothways.printable import printable
from bothways.progress import Progress, taken_screen
from bothways.progress_displays import duration
from bothways.train.curve import entries
from bothways.train.health import MovingAverage
from bothways.train.protocol import Evaluated, Event, Finished, Saved, Started, Stepped, Stopping

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

QUIET = 10.0
"""Seconds between two lines if standard error is not a terminal."""


class Log:
    """metrics.jsonl: one line for each step and each evaluation, written at once."""

    def __init__(self, path: Path, resumed_at: int) -> None:
        """Drop what a killed session wrote after step `resumed_at`; at 0 the file starts empty."""
        self._path, self._resumed_at, self._peak = path, resumed_at, math.nan
        with atomic.new_file(path) as temporary, temporary.open("wb") as file:
            if resumed_at and path.exists():
                file.writelines(line for line, entry in entries(path) if entry["step"] <= resumed_at)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                assert event.step == self._resumed_at
                self._peak = event.peak_flops
            case Stepped():
                self._write(metrics(event, self._peak))
            case Evaluated():
                self._write({"step": event.step, "valid": event.scores, "final": event.final})

    def close(self) -> None:
        self._file.close()

    def _write(self, entry: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(_finite(entry), ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise BothwaysError(
                f"{self._path} could not be written: {error.strerror or error}", "unwritable", self._path
            ) from error


def metrics(event: Stepped, peak: float) -> dict[str, Any]:
    """What metrics.jsonl says about a step."""
    return {
        "step": event.step,
        "phase": event.phase,
        "loss": event.loss,
        "losses": event.losses,
        "lr": event.lr,
        "norm": event.norm,
        "tokens": event.tokens,
        "tokens_per_second": round(event.speed, 1),
        "mfu": _mfu(event, peak),
        "elapsed": round(event.elapsed, 3),
    }


def _mfu(event: Stepped, peak: float) -> float | None:
    """Model FLOPs utilization: the share of the devices' peak rate; None if that is not known.

    Above 1 it was not measured but estimated wrongly: steps that were reported together, or frozen layers.
    """
    share = event.flops / peak if peak > 0 else math.nan
    return share if share <= 1 else None


def _finite(value: Any) -> Any:
    """JSON has no nan and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Console:
    """Progress on standard error: a live display on a terminal, else a line every 10 seconds. A context manager."""

    def __init__(self, total_steps: int | None, minutes: float | None) -> None:
        from rich.console import Console as Screen

        self._steps, self._seconds = total_steps, 60 * minutes if minutes else None
        # In a notebook, too, standard error gets the lines.
        self._screen = Screen(stderr=True, markup=False, highlight=False, emoji=False, force_jupyter=False)
        self._claims = ExitStack()
        self._live: Live | None = None
        self._last: Stepped | None = None
        self._smooth: dict[str, MovingAverage] = {}
        self._peak = math.nan
        self._marks: deque[tuple[int, float]] = deque(maxlen=50)
        """Recent (step, time) pairs, for the current speed."""
        self._printed_at, self._printed_step = -math.inf, -1

    def __enter__(self) -> "Console":
        if sys.stderr.isatty() and not self._screen.is_dumb_terminal:
            self._start()
            self._claims.enter_context(taken_screen(self._hide))
        return self

    def _start(self) -> None:
        from rich.live import Live

        self._live = Live(get_renderable=self._display, console=self._screen, transient=True, redirect_stdout=False)
        self._live.start()

    def _hide(self) -> None:
        """Until the next event: the data are read with bars of their own."""
        if self._live:
            self._live.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._claims.close()
        if self._live:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        if self._live and not self._live.is_started:
            self._start()
        match event:
            case Started():
                self._peak = event.peak_flops
                self._steps = event.steps or self._steps
                self._last, self._printed_step = None, -1
                self._marks.clear()
                resumed = f", resuming from step {event.step:,}" if event.step else ""
                self.say(f"{event.parameters:,} parameters on {event.device} in {event.precision}{resumed}")
            case Stepped():
                self._follow(event)
                if not self._live and monotonic() - self._printed_at >= QUIET:
                    self._print()
            case Evaluated():
                self._print()
                shown = [f"{name} {value:.4g}" for name, value in event.scores.items() if name != "loss"]
                scores = ", ".join(shown[:6])
                if "loss" in event.scores:
                    scores = f"validation loss {event.scores['loss']:.4f}" + (f" ({scores})" if scores else "")
                self.say(f"step {event.step:,}: {scores}")
            case Saved():
                self._print()
                self.say(f"step {event.step:,}: saved {event.folder}")
            case Stopping():
                self.say("stopping after saving a checkpoint; press Ctrl-C again to stop at once without one")
            case Finished():
                self._print()
                begin = "nothing to do: the run had " if event.complete and self._last is None else ""
                how, then = ("finished", "") if event.complete else ("stopped", "; the same command resumes the run")
                self.say(f"{begin}{how} at step {event.step:,} after {duration(event.elapsed)}{then}")

    def _follow(self, event: Stepped) -> None:
        if self._last is None or event.phase != self._last.phase:
            self._smooth = {name: MovingAverage(50) for name in ("", *event.losses)}
        for name, value in {"": event.loss, **event.losses}.items():
            self._smooth[name].add(value)
        if not self._marks or event.elapsed > self._marks[-1][1]:
            self._marks.append((event.step, event.elapsed))
        self._last = event

    def say(self, words: str) -> None:
        self._screen.print(printable(words), soft_wrap=self._live is None)

    def _print(self) -> None:
        """Print the last step as a line, unless it was printed or is on display."""
        if self._live or not self._last or self._last.step == self._printed_step:
            return
        self._printed_at, self._printed_step = monotonic(), self._last.step
        self.say(f"{self._share():4.0%}  {self._place()}  {self._numbers()}")

    def _display(self) -> "RenderableType":
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=1.0, completed=self._share(), width=32), f"{self._share():.0%}", self._place())
        return Group(bar, Text(self._numbers(), no_wrap=True, overflow="ellipsis"))

    def _share(self) -> float:
        if not self._last:
            return 0.0
        return min(1.0, self._last.step / self._steps if self._steps else self._last.done)

    def _place(self) -> str:
        if not self._last:
            return "preparing"
        of = f" of {self._steps:,}" if self._steps else ""
        left = self._time_left(self._last)
        return f"step {self._last.step:,}{of}" + (f"  {duration(left)} left" if left is not None else "")

    def _time_left(self, last: Stepped) -> float | None:
        if self._seconds:
            return max(0.0, self._seconds - last.elapsed)
        (first_step, begin), (step, end) = self._marks[0], self._marks[-1]
        if not self._steps or step == first_step:
            return None
        return (self._steps - last.step) * (end - begin) / (step - first_step)

    def _numbers(self) -> str:
        last = self._last
        if not last:
            return ""
        shown = self._smooth if len(last.losses) > 1 else {"": self._smooth[""]}
        losses = "  ".join(f"{name or 'loss'} {smooth.value:.4f}" for name, smooth in shown.items())
        mfu = _mfu(last, self._peak)
        shown_mfu = f"  MFU {mfu:.1%}" if mfu is not None else ""
        return f"{losses}  lr {last.lr:.2e}  {last.speed:,.0f} tokens/s{shown_mfu}"


class StepProgress:
    """Shows the steps of a run on a progress bar."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._steps = bar, 0

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                self._steps = event.steps
            case Stepped():
                self._bar.at(event.step, self._steps or None)


class TensorBoard:
    """Writes the run's numbers for TensorBoard, if it is installed."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing_package("run.tensorboard", "tensorboard") from error
        self._make, self._folder, self._peak = SummaryWriter, folder, math.nan
        self._writer: SummaryWriter | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case Started():
                # purge_step hides what a killed session wrote after this step.
                after = event.step + 1 if event.step else 0
                self._writer, self._peak = self._make(str(self._folder), purge_step=after), event.peak_flops
            case Stepped():
                numbers = metrics(event, self._peak)
                plain = {name: numbers[name] for name in ("loss", "lr", "norm", "tokens_per_second", "mfu")}
                losses = {f"loss/{name}": value for name, value in event.losses.items()}
                self._add("train", event.step, plain | losses)
            case Evaluated():
                self._add("valid", event.step, event.scores)

    def close(self) -> None:
        if self._writer:
            self._writer.close()

    def _add(self, part: str, step: int, numbers: Mapping[str, float | None]) -> None:
        assert self._writer, "a run begins with Started"
        for name, value in numbers.items():
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(f"{part}/{name}", value, step)
