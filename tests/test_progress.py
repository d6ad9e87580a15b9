"""Progress: what is shown where and when, that it costs little, and that every verb shows it."""

import io
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console
from typer.main import get_command

from bothways import progress as module
from bothways.cli import app
from bothways.cli.output import file_progress, say
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.predict.classifier import Classifier
from bothways.progress import (
    Progress,
    in_notebook,
    interactive_progress,
    notebook_progress,
    progress,
    taken_screen,
    tick,
)
from bothways.progress_displays import Display, Notebook, Plain, Snapshot, Terminal, in_jupyter
from bothways.tasks.finetune import finetune
from bothways.tasks.folder import with_task
from bothways.text.files import read_texts
from bothways.text.streams import follow
from bothways.text.tokenizer import Tokenizer
from helpers import config_for
from helpers.cli import Run, write_rows
from helpers.tasks import SINGLE, base_model, recipe_for

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(autouse=True)
def no_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only items move the display, so that every test shows the same each time."""
    monkeypatch.setattr(module, "_BEAT_SECONDS", 1e6)
    monkeypatch.delenv("RANK", raising=False)


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now, self.looks = 100.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


class Recorder:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.shown: list[Snapshot] = []
        self.hidden = 0
        self.last: Snapshot | None = None

    def show(self, now: Snapshot) -> None:
        self.shown.append(now)

    def hide(self) -> None:
        self.hidden += 1

    def end(self, now: Snapshot) -> None:
        self.last = now


def spend(bar: Progress, clock: Clock, items: int, seconds: float) -> None:
    """Work on items that take so long each."""
    with bar:
        for _ in bar.over(range(items)):
            clock.now += seconds


# ---------------------------------------------------------------------- lines


def test_lines_come_after_10_seconds_then_more_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    spend(Progress("encoding", 2_400, clock=clock, display=Plain), clock, 2_400, 0.125)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "encoding: 80 of 2,400 (3 %), 8/s, 4 min 50 s left",  # after 10 seconds
        "encoding: 240 of 2,400 (10 %), 8/s, 4 min 30 s left",  # 20 later
        "encoding: 560 of 2,400 (23 %), 8/s, 3 min 50 s left",  # 40 later
        "encoding: 1,040 of 2,400 (43 %), 8/s, 2 min 50 s left",  # 60 later
        "encoding: 1,520 of 2,400 (63 %), 8/s, 1 min 50 s left",
        "encoding: 2,000 of 2,400 (83 %), 8/s, 50 s left",
        "encoding: 2,400 of 2,400 (100 %), 8/s, 5 min 00 s in all",
    ]


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    spend(Progress("encoding", 99, clock=clock, display=Plain), clock, 99, 0.1)
    assert capsys.readouterr().err == ""


def test_without_a_total_there_is_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    spend(Progress("filling", clock=clock, display=Plain), clock, 4, 5.0)
    assert capsys.readouterr().err.splitlines() == ["filling: 2, 0.2/s", "filling: 4, 0.2/s, 20 s in all"]


def test_bytes_are_shown_as_bytes_and_loading_does_not_slow_the_rate(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("packing", unit="bytes", clock=clock, display=Plain) as bar:
        clock.now += 9
        bar.at(0, 50_000_000)
        clock.now += 4
        bar.at(10_000_000, 50_000_000)
    assert capsys.readouterr().err.splitlines()[0] == "packing: 10.0 MB of 50.0 MB (20 %), 2.5 MB/s, 16 s left"


def test_a_second_reading_starts_again(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("reading", clock=clock, display=Plain) as bar:
        for done in (0, 50, 100, 0, 50):
            bar.at(done, 100)
            clock.now += 4
        bar.at(60, 100)
    # 60 in 8 seconds of the second reading
    assert "60 of 100 (60 %), 7.5/s" in capsys.readouterr().err.splitlines()[-1]


def test_work_that_is_not_counted_shows_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    """While nothing comes, a thread looks at the clock."""
    clock = Clock()
    with Progress("converting", clock=clock, display=Plain) as bar:
        clock.now += 12
        bar._refresh(clock())
        clock.now += 3
    assert capsys.readouterr().err == "converting: 12 s so far\nconverting: 15 s in all\n"


def test_a_thread_beats_while_no_item_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BEAT_SECONDS", 0.001)
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    recorder = Recorder()
    with Progress("converting", display=lambda: recorder) as bar:
        while not recorder.shown:
            pass
    assert bar._ended.is_set()


def test_closed_standard_error_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    clock = Clock()
    spend(Progress("encoding", 5, clock=clock, display=Plain), clock, 5, 20.0)


# ---------------------------------------------------------------------- terminal


def screen() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=120, color_system=None, legacy_windows=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    clock, console = Clock(), screen()
    with Progress("encoding", 30, clock=clock, display=lambda: Terminal(console)) as bar:
        for done in bar.over(range(30)):
            clock.now += 0.5
            assert ("encoding" in written(console)) == (done >= 4), "nothing in the first two seconds"
    for words in ("━", "15 of 30 (50 %), 2/s, 8 s left", "0:00:07"):
        assert words in written(console), words
    assert written(console).endswith("\x1b[1A\x1b[2K"), "the line is erased"
    assert written(console).rfind("\x1b[?25h") > written(console).rfind("\x1b[?25l"), "the cursor is back"


def test_short_work_draws_nothing() -> None:
    clock, console = Clock(), screen()
    spend(Progress("encoding", clock=clock, display=lambda: Terminal(console)), clock, 19, 0.1)
    assert written(console) == ""


def test_a_bar_is_drawn_five_times_a_second() -> None:
    clock, console = Clock(), screen()
    spend(Progress("encoding", 10_000, clock=clock, display=lambda: Terminal(console)), clock, 10_000, 0.001)
    assert 30 <= written(console).count("encoding") <= 41


def test_results_keep_their_way_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    clock, console = Clock(), screen()
    with Progress("predicting", clock=clock, display=lambda: Terminal(console)) as bar:
        for _ in bar.over(range(3)):
            clock.now += 3
            sys.stdout.write("an answer\n")
    assert capsys.readouterr().out == "an answer\n" * 3
    assert "predicting" in written(console)
    assert "answer" not in written(console)


def test_an_error_ends_the_bar() -> None:
    clock, console = Clock(), screen()
    with (
        pytest.raises(ZeroDivisionError),
        Progress("encoding", clock=clock, display=lambda: Terminal(console)) as bar,
    ):
        for _ in bar.over(range(9)):
            clock.now += 1
            _ = 1 / (clock.now < 105)
    assert written(console).rfind("\x1b[?25h") > written(console).rfind("\x1b[?25l")
    assert module._open == []


def test_an_iterator_that_is_left_ends_its_bar() -> None:
    items = progress(iter("abc"), "reading")
    assert next(items) == "a"
    assert len(module._open) == 1
    items.close()  # type: ignore[attr-defined]
    assert module._open == []


def test_an_error_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with pytest.raises(KeyError), Progress("encoding", 9, clock=clock, display=Plain) as bar:
        for done in bar.over(range(9)):
            clock.now += 6
            if done == 4:
                raise KeyError
    assert capsys.readouterr().err.splitlines()[-1] == "encoding: 4 of 9 (44 %), 0.13/s, 30 s until it stopped"


def test_a_bar_inside_another_takes_its_place() -> None:
    clock, console = Clock(), screen()
    with Progress("outer", clock=clock, display=lambda: Terminal(console)) as outer:
        for _ in outer.over(range(3)):
            clock.now += 3
            spend(Progress("inner", clock=clock, display=lambda: Terminal(console)), clock, 3, 1.5)
    assert written(console).count("inner") >= 3
    assert written(console).count("outer") >= 2


def test_only_the_innermost_is_shown_and_others_are_hidden() -> None:
    clock, outer, inner, hidden = Clock(), Recorder(), Recorder(), list[int]()
    with taken_screen(lambda: hidden.append(1)), Progress("outer", clock=clock, display=lambda: outer) as bar:
        with Progress("inner", clock=clock, display=lambda: inner):
            clock.now += 3
            bar.at(1)
            assert not outer.shown
        bar.at(2)
        assert len(outer.shown) == 1
    assert hidden == [1]
    assert module._open == []


def test_a_message_does_not_stand_in_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, console = Clock(), screen()
    monkeypatch.setattr(sys, "stderr", console.file)
    with Progress("encoding", clock=clock, display=lambda: Terminal(console)) as bar:
        for done in bar.over(range(9)):
            clock.now += 1
            if done == 5:
                say("a warning")
    assert "\x1b[2Ka warning\n" in written(console), "on a line that was erased"
    assert "encoding" in written(console).split("a warning")[1], "the bar comes back"


# ---------------------------------------------------------------------- notebook


class Handle:
    def __init__(self, pages: list[str]) -> None:
        self.pages = pages

    def update(self, element: str) -> None:
        self.pages.append(element)


def shell_of(name: str) -> object:
    return type(name, (type("ZMQInteractiveShell", (), {}) if name == "Shell" else object,), {})()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A notebook as in Colab, whose shell is a subclass; what its cell showed."""
    pages: list[str] = []

    def display(element: str, display_id: bool) -> Handle:
        assert display_id
        assert not pages, "one element, which is updated"
        pages.append(element)
        return Handle(pages)

    package, part = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = lambda: shell_of("Shell")  # type: ignore[attr-defined]
    part.HTML, part.display = str, display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return pages


def test_a_notebook_gets_an_element(notebook: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with Progress("encoding <b>", 100, clock=clock) as bar:
        for done in bar.over(range(100)):
            clock.now += 0.125
            assert bool(notebook) == (done >= 16), "nothing in the first two seconds"
    assert 40 <= len(notebook) <= 52, "five a second"
    assert 'value="0.5000"' in "".join(notebook)
    assert "encoding &lt;b&gt;: 50 of 100 (50 %), 8/s, 6 s left" in "".join(notebook)
    assert "100 of 100 (100 %), 8/s, 12 s in all" in notebook[-1]
    assert capsys.readouterr() == ("", "")


def test_short_work_leaves_the_notebook_alone(notebook: list[str]) -> None:
    clock = Clock()
    spend(Progress("encoding", 9, clock=clock), clock, 9, 0.2)
    assert notebook == []


def test_the_library_shows_progress_in_notebooks(notebook: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    items = [1, 2]
    for _ in in_notebook(items, "scoring"):
        clock.now += 3
    assert "1 of 2 (50 %)" in notebook[0]
    notebook.clear()
    with notebook_progress("scoring", 2) as bar:
        for _ in bar.over(items):
            clock.now += 3
    assert "1 of 2 (50 %)" in notebook[0]


@pytest.mark.parametrize("name", ["TerminalInteractiveShell", "NoneType", ""])
def test_the_library_shows_nothing_elsewhere(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    if name:
        monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell_of(name), raising=False)
    assert not in_jupyter()
    clock, items = Clock(), [1, 2]
    monkeypatch.setattr(module, "monotonic", clock)
    assert in_notebook(items, "scoring") is items
    with notebook_progress("scoring") as bar:
        for _ in bar.over(items):
            clock.now += 100
        bar.at(2)
        assert module._open == [], "a bar of the command line keeps its place"
    assert capsys.readouterr() == ("", "")


def test_interactive_progress_is_not_for_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    for bar, is_told in ((Progress("fitting", 2), True), (interactive_progress("fitting", 2), False)):
        with bar:
            for _ in bar.over([1, 2]):
                clock.now += 100
        assert ("fitting: 1 of 2" in capsys.readouterr().err) == is_told
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with interactive_progress("fitting", 2) as bar:
        for _ in bar.over([1, 2]):
            clock.now += 100
    assert "1 of 2" in capsys.readouterr().err


@pytest.fixture
def fitted(tokenizer: Tokenizer, tmp_path: Path) -> Callable[[bool], Classifier]:
    def fit(is_shown: bool) -> Classifier:
        folder = base_model(tmp_path / "base", tokenizer)
        settings = ["run.steps=3", "run.batch_size=2"]
        return Classifier(folder, settings=settings, device="cpu", progress=is_shown).fit(["cat", "狗"], ["a", "b"])

    return fit


def test_fit_shows_its_steps_in_a_notebook(
    fitted: Callable[[bool], Classifier], notebook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    classifier = fitted(True)
    assert "fine-tuning: 3 of 3 steps (100 %)" in notebook[-1]
    notebook.clear()
    classifier.predict(["cat", "狗"])
    assert "predicting: 2 of 2" in notebook[-1]
    notebook.clear()
    fitted(False).predict(["cat"])
    assert notebook == []


def test_a_run_without_listeners_shows_its_steps_in_a_notebook(
    tokenizer: Tokenizer, tmp_path: Path, notebook: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    recipe = recipe_for("classify", base_model(tmp_path / "base", tokenizer))
    finetune(recipe, tmp_path / "run", train=SINGLE, dev=[])
    assert "training: 4 of 4 steps (100 %)" in notebook[-1]
    notebook.clear()
    finetune(recipe, tmp_path / "heard", train=SINGLE, dev=[], listen=[lambda event: None])
    assert notebook == []


# ---------------------------------------------------------------------- which


def test_the_display_fits_where_it_is_shown(monkeypatch: pytest.MonkeyPatch, notebook: list[str]) -> None:
    assert isinstance(module._find_display(), Notebook)
    monkeypatch.delitem(sys.modules, "IPython")
    assert isinstance(module._find_display(), Plain)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for kind, display in (("xterm", Terminal), ("dumb", Plain)):
        monkeypatch.setenv("TERM", kind)
        assert isinstance(module._find_display(), display)
    monkeypatch.setenv("RANK", "1")
    assert module._find_display() is None, "one of several processes reports"


# ---------------------------------------------------------------------- cost


def test_the_clock_is_looked_at_rarely_for_fast_items_and_always_for_slow_ones() -> None:
    for seconds, most in ((1e-5, 2_000), (1.0, 100_010)):
        clock = Clock()
        spend(Progress("x", clock=clock, display=Recorder), clock, 100_000, seconds)
        assert clock.looks < most
    assert clock.looks >= 100_000


def test_the_display_is_not_late_when_items_become_slow() -> None:
    clock, recorder = Clock(), Recorder()
    with Progress("x", clock=clock, display=lambda: recorder) as bar:
        for done in bar.over(range(100_100)):
            clock.now += 1e-4 if done < 100_000 else 1.0
    slow = [now for now in recorder.shown if now.done > 100_000]
    assert len(slow) >= 20
    assert slow[0].done <= 100_064


# ---------------------------------------------------------------------- reading ahead


def test_what_is_read_ahead_is_not_done() -> None:
    """As the inference engine works: 100 items are read, then computed in four batches."""
    clock, recorder = Clock(), Recorder()
    with Progress("encoding", 200, clock=clock, display=lambda: recorder) as bar:
        items = bar.over(range(200))
        for _ in range(2):
            for _ in range(100):
                next(items)
            for batch in range(4):
                tick(batch, 4)
                clock.now += 5.0
        assert next(items, None) is None
    # An item counts when the next one is asked for, so the last of those read ahead counts with the next 100.
    places = [round(now.done / 25) * 25 for now in recorder.shown]
    assert sorted(set(places)) == [25, 50, 75, 100, 125, 150, 175]
    assert places == sorted(places)
    assert recorder.shown[places.index(100)].left == pytest.approx(20, rel=0.05)
    assert recorder.last is not None
    assert recorder.last.done == 200
    tick(1, 2)  # without a bar, nothing happens


def test_the_time_left_follows_the_bytes_read(tmp_path: Path) -> None:
    for suffix in ("jsonl", "csv", "tsv", "parquet", "jsonl.gz"):
        # Rows that do not compress, and several blocks, which gzip reads ahead: 32 kB, 128 kB since Python 3.12.
        path = write_rows(tmp_path / f"a.{suffix}", [Random(i).randbytes(60).hex() for i in range(16_000)])
        with follow([path]) as share:
            rows = read_texts(path, "body")
            assert share() == 0
            for _ in range(8_000):
                next(rows)
            assert share() == pytest.approx(0.5, abs=0.2), suffix
            assert len(list(rows)) == 8_000
            assert share() == 1.0
            next(read_texts(path, "body"))
            assert share() != 1.0, "the last reader counts"


@pytest.mark.parametrize("name", ["-", ".", "a.json"])
def test_without_bytes_to_count_there_is_no_share(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.json").write_text("[]", encoding="utf-8")
    with follow([name]) as share:
        assert share() is None


def test_rows_are_counted_and_bytes_tell_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, recorder = Clock(), Recorder()
    monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.setattr(module, "_find_display", lambda: recorder)
    path = tmp_path / "a.txt"
    path.write_text("0123456789\n" * 20_000, encoding="utf-8")
    with file_progress("reading", [path]) as bar:
        for _ in bar.over(read_texts(path)):
            clock.now += 0.01
    half = next(now for now in recorder.shown if now.done >= 10_000)
    assert half.rate == pytest.approx(100)
    assert half.left == pytest.approx(100, rel=0.35)
    assert half.total is None


# ---------------------------------------------------------------------- every verb

LOAD = "loading the model"
VERBS: dict[str, tuple[str, set[str], set[str]]] = {
    # verb → arguments, the bars that count something, the bars that show the time only
    "info": ("{model}", set(), {"reading the model"}),
    "models": ("", set(), set()),
    "convert": ("{model} {out}/converted", set(), {"converting"}),
    "export": ("{model} --out {out}/exported", set(), {"exporting"}),
    "fill": ("-", {"filling"}, {LOAD}),
    "encode": ("{out}/a.txt --out {out}/a.npy --model {model}", {"encoding"}, {LOAD}),
    "similar": ("{out}/a.txt --model {model}", {"reading", "encoding", "comparing"}, {LOAD}),
    "cluster": (
        "{out}/a.txt --model {model} --threshold 0.99",
        {"reading", "encoding", "comparing", "grouping"},
        {LOAD},
    ),
    "static": (
        "{model} --texts {out}/a.txt --out {out}/static",
        {"encoding the vocabulary", "counting tokens"},
        {LOAD},
    ),
    "mine": (
        "{data}/pairs.jsonl --model {model} --negatives 1 --out {out}/mined.jsonl --long cut",
        {"reading", "encoding candidates", "encoding anchors", "mining"},
        {LOAD},
    ),
    "pack": ("{out}/a.txt --model {model} --out {out}/packed", {"packing"}, set()),
    "page": ("{model} --out {out}/page", {"writing models"}, set()),
    "adapt": (
        "{data}/stories.txt --model {model} --valid 20% --out {out}/adapted --set run.steps=2 --set phases.0.length=16 "
        "--set phases.0.tokens=64 --set run.device=cpu",
        {"packing"},
        set(),
    ),
    "pretrain": ("tiny --data {out}/packed --out {out}/pretrained {small}", set(), set()),
    "doctor": (
        "{data}/reviews.tsv --dev {data}/reviews-dev.tsv --model {model}",
        {"reading", "reading development data", "tokenizing"},
        set(),
    ),
    "finetune": (
        "classify --train {data}/reviews.tsv --dev {data}/reviews-dev.tsv --model {model} --out {out}/tuned "
        "--set run.steps=2 --set run.device=cpu",
        {"reading", "tokenizing"},
        set(),
    ),
    "evaluate": ("{data}/reviews-dev.tsv --model {out}/tuned/model", {"evaluating"}, {LOAD}),
    "compress": (
        "{out}/tuned --train {data}/reviews.tsv --dev {data}/reviews-dev.tsv --out {out}/small --precision int8 "
        "--set run.steps=2 --device cpu",
        {"reading", "scoring", "counting tokens", "tokenizing"},
        {LOAD},
    ),
    "evaluate-vectors": (
        "{data}/vector-sets --model {model} --long window",
        {
            LOAD,
            "resampling",
            "encoding the queries of capitals",
            "searching capitals",
            "encoding questions.jsonl",
            "encoding similar-zh.tsv",
            "encoding similar.tsv",
            "encoding topics-zh",
            "fitting the probe",
            "encoding topics.tsv",
            "clustering topics.tsv",
        },
        set(),
    ),
    "predict": ("{data}/reviews-dev.tsv --model {out}/tuned/model", {"predicting"}, {LOAD}),
    "blimp": ("{data}/minimal-pairs.jsonl --model {model} --limit 2", {"scoring"}, {LOAD}),
    "bertscore": ("{out}/a.txt {out}/a.txt --model {model} --idf", {"reading", "counting tokens", "scoring"}, {LOAD}),
    "search build": (
        "{out}/a.txt --out {out}/index --model {model}",
        {"reading", "embedding", "counting words"},
        {"building the index"},
    ),
    "search add": ("{out}/index {out}/a.txt", {"reading", "embedding", "counting words"}, {"adding"}),
    "search query": ("cat --index {out}/index", set(), {"searching"}),
    "search delete": ("{out}/index --id 1", set(), {"deleting"}),
    "search compact": ("{out}/index", set(), {"compacting"}),
    "rerank": ("cat {out}/a.txt --model {out}/ranker", {"reading", "scoring"}, {LOAD}),
    "glue": (
        "{out}/glue --model {model} --out {out}/glue-run --seeds 1 --set run.steps=2 --set run.device=cpu",
        {"reading", "tokenizing", "RTE, seed 0"},
        set(),
    ),
    "squad": (
        "{out}/squad --model {model} --out {out}/squad-run --set run.steps=2 --set run.device=cpu "
        "--set window.long=cut",
        {"reading", "tokenizing", "SQuAD, seed 0"},
        set(),
    ),
    "conll": (
        "{out}/conll --model {model} --out {out}/conll-run --seeds 1 --set run.steps=2 --set run.device=cpu "
        "--set window.long=cut",
        {"reading", "tokenizing", "CoNLL, seed 0"},
        set(),
    ),
    "vocab train": ("{out}/a.txt --size 300 --out {out}/vocabulary", {"training a vocabulary"}, set()),
    "vocab show": ("cat --model {model}", set(), set()),
    "vocab extend": ("{model} --from {out}/long.txt --count 1 --out {out}/extended", {"reading"}, set()),
    "vocab shrink": ("{model} --from {out}/long.txt --out {out}/shrunk", {"reading"}, set()),
}
IN_LINES = ("pretrain", "adapt", "finetune")
"""Training has a display of its own."""
SMALL = (
    "run.steps=2 run.minutes=0 model.width=16 model.ffn_width=32 phases.0.length=16 phases.0.tokens=64 run.device=cpu"
)


def test_every_verb_is_here() -> None:
    commands: Any = get_command(app)
    verbs = {
        f"{name} {part}" if part else name
        for name, command in commands.commands.items()
        for part in getattr(command, "commands", [""])
    }
    assert verbs - {"serve"} == set(VERBS), "serve has no end to work towards"


@pytest.fixture
def place(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The files that the verbs read, and standard input."""
    text = "the cat sleeps in paris.\na dog walks in germany. 北京是中国的首都。\n\n" * 30
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "long.txt").write_text(text * 300, encoding="utf-8")
    for suite, name in (("squad", "questions.json"), ("conll", "entities.conll")):
        (tmp_path / suite).mkdir()
        stem, _, kind = name.partition(".")
        shutil.copy(EXAMPLES / name, tmp_path / suite / f"train.{kind}")
        shutil.copy(EXAMPLES / f"{stem}-dev.{kind}", tmp_path / suite / f"dev.{kind}")
    save(with_task(load(model_folder), config_for("score"), ("score",)), tmp_path / "ranker")
    rows = [f"{i}\tthe cat\ta dog\t{('not_entailment', 'entailment')[i % 2]}" for i in range(8)]
    (tmp_path / "glue/RTE").mkdir(parents=True)
    for part in ("train", "dev"):
        table = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows])
        (tmp_path / f"glue/RTE/{part}.tsv").write_text(table, encoding="utf-8")
    small = " ".join(f"--set {setting}" for setting in SMALL.split())
    lines = tmp_path / "lines"
    lines.write_text("the [MASK] sleeps.\n" * 3, encoding="utf-8")
    with lines.open(encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield {"out": str(tmp_path), "model": str(model_folder), "data": str(EXAMPLES), "small": small}


NEEDS = {"pretrain": ["pack"], "evaluate": ["finetune"], "predict": ["finetune"], "compress": ["finetune"]}
NEEDS |= {f"search {part}": ["search build"] for part in ("add", "query", "delete", "compact")}


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_shows_its_progress(
    verb: str, place: dict[str, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(name: str) -> list[str]:
        return [*name.split(), *VERBS[name][0].format(**place).split()]

    for name in NEEDS.get(verb, []):
        assert run(*command(name)).returncode == 0
    bars: list[Recorder] = []

    def new() -> Display:
        bars.append(Recorder())
        return bars[-1]

    monkeypatch.setattr(module, "_find_display", new)
    more = ["--model", place["model"]] if verb == "fill" else []
    done = run(*command(verb), *more)
    assert done.returncode == 0, done.stderr
    ends = [bar.last for bar in bars if bar.last is not None]
    assert len(ends) == len(bars)
    _, counting, timing = VERBS[verb]
    assert {now.what for now in ends if now.done} == counting
    assert {now.what for now in ends if not now.done} == timing
    if verb in IN_LINES:
        assert "step 2 of 2" in done.stderr
        assert "tokens/s" in done.stderr


def test_a_long_command_prints_lines_and_results_go_elsewhere(
    place: dict[str, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]

    def jump() -> float:
        now[0] += 11
        return now[0]

    monkeypatch.setattr(module, "monotonic", jump)
    done = run("fill", "-", "--model", place["model"], "--top", 1)
    assert len(done.stdout.splitlines()) == 3
    assert done.stderr.splitlines()[-1].startswith("filling: 3, 0.")
    assert done.stderr.splitlines()[-1].endswith(" in all")
