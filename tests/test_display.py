"""What people see: marked texts on a terminal, in HTML and in notebooks, and the one-line forms of objects."""

import copy
import io
import json
import pickle
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text
from rich.console import Console

import bothways
from bothways.data.examples import Tagged
from bothways.data.words import join_words, split_words
from bothways.engine.reader import WindowSettings
from bothways.marked_text import INK, Colours, Mark, MarkedText, html_table
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.plots import new_figure, save_figure
from bothways.predict.display import marked_pair
from bothways.tasks.answer import QuestionAnswering
from bothways.tasks.folder import with_task
from bothways.tasks.tag import TokenClassification
from bothways.text.tokenizer import Tokenizer
from helpers import config_for, make_loud
from helpers.cli import Run
from helpers.tasks import KINDS, LABELS, SMALL, written

BIO = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def model_of(tokenizer: Tokenizer, name: str) -> Model:
    """A loud model of a kind, as in helpers.tasks.KINDS."""
    task, kind, labels = KINDS[name]
    start = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    config = config_for(task, kind, window=WindowSettings(32, 8))
    model = with_task(start, config, LABELS.get(name, labels))
    make_loud(model, 0)
    return model


def luminance(colour: str) -> float:
    """As WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


class Page(HTMLParser):
    """The text of an HTML page, and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


# ---------------------------------------------------------------------- marks


def test_every_label_keeps_its_colour_and_is_readable() -> None:
    many = [f"T{i}" for i in range(40)]
    colours = Colours(many)
    assert len(set(colours.values())) == 40
    assert dict(Colours(many)) == dict(colours)
    for colour in colours.values():
        contrast = (luminance(colour) + 0.05) / (luminance(INK) + 0.05)
        assert contrast > 4.5, "WCAG AA, whatever the page behind it"
    types = Colours(BIO)
    assert list(types) == ["LOC", "PER"]
    types["NEW"]
    assert (types["LOC"], types["PER"]) == (colours["T0"], colours["T1"])


def test_adjacent_marks_stay_apart_and_overlaps_are_dropped() -> None:
    text = "北京上海 & Bonn"
    marks = (
        Mark(2, 4, "LOC"),
        Mark(0, 2, "LOC"),
        Mark(1, 3, "PER"),
        Mark(7, 11, "LOC"),
        Mark(5, 99, "LOC"),
        Mark(3, 3, "X"),
    )
    shown = MarkedText(text, marks)
    assert list(shown.pieces()) == [("北京", "LOC"), ("上海", "LOC"), (" & ", ""), ("Bonn", "LOC")]
    assert shown.plain() == "[北京 LOC][上海 LOC] & [Bonn LOC]"
    assert "".join(part for part, _ in shown.pieces()) == text


def test_the_part_around_the_marks_of_a_long_text() -> None:
    words = " ".join(f"w{i}" for i in range(1000))
    start = words.index("w700")
    near = MarkedText(words, (Mark(0, 2, "A"), Mark(start, start + 4, "B"))).near([Mark(start, start + 4, "B")], 100)
    assert len(near.text) == 102
    assert near.text[0] == near.text[-1] == "…"
    assert [(near.text[mark.start : mark.end], mark.label) for mark in near.kept()] == [("w700", "B")]
    across = MarkedText("x" * 500, (Mark(90, 210, "A"),)).near([Mark(0, 1, "B")], 100)
    assert across.kept() == [Mark(90, 210, "A")], "a mark is never cut"
    assert MarkedText("short", ()).near([]) == MarkedText("short", ())


def test_a_terminal_gets_colours_and_no_commands_of_the_text() -> None:
    shown = MarkedText("Bonn \x1b[31mred", (Mark(0, 4, "LOC"),)).rich(Colours(BIO))
    page = io.StringIO()
    Console(file=page, force_terminal=True, color_system="truecolor").print(shown)
    red, green, blue = (int(Colours(BIO)["LOC"][i : i + 2], 16) for i in (1, 3, 5))
    assert f"48;2;{red};{green};{blue}m Bonn " in page.getvalue()
    assert "\x1b[31m" not in page.getvalue()


def test_html_is_escaped() -> None:
    shown = MarkedText("<b>&Ada <u>", (Mark(0, 7, "<i>"),), "1 < 2?").html(Colours())
    page = Page(shown)
    assert page.text == "1 < 2?<b>&Ada\xa0<i> <u>"
    assert page.tags == ["div", "b", "div", "mark", "b"]
    assert Page(html_table(("<a>",), [("<script>", 1)], "<h>", 1)).text == "<h><a><script>1"


# ---------------------------------------------------------------------- notebooks


@pytest.fixture
def tagger(tokenizer: Tokenizer) -> bothways.Predictor:
    return bothways.Predictor(model_of(tokenizer, "tag"))


def test_tags_are_lists_that_notebooks_show(tagger: bothways.Predictor) -> None:
    texts = ["the black cat <b> sleeps in paris", "中国的首都是北京。"]
    answers = tagger(texts)
    plain = list(tagger.stream(texts))
    assert answers == plain
    assert json.dumps(answers) == json.dumps(plain)
    assert type(plain[0]) is list
    page = answers._repr_html_()
    assert "<\xa0" in Page(page).text, "escaped"
    assert Page(page).tags.count("mark") == sum(map(len, plain)) > 0
    for same in (pickle.loads(pickle.dumps(answers)), copy.deepcopy(answers)):
        assert same == plain
        assert same._repr_html_() == page
    one = tagger(texts[0])
    assert one == plain[0]
    assert one._repr_html_() == answers[0]._repr_html_()
    assert page.startswith(one._repr_html_())


def test_a_list_that_was_changed_is_shown_as_a_list(tagger: bothways.Predictor) -> None:
    answers = tagger(["the cat", "a dog", "paris"])
    answers.reverse()
    assert answers._repr_html_() is None
    answers.reverse()
    assert answers._repr_html_() is not None
    answers.pop()
    assert answers._repr_html_() is None


def test_labels_are_a_table_of_the_first_texts(tokenizer: Tokenizer) -> None:
    predictor = bothways.Predictor(model_of(tokenizer, "single"))
    answers = predictor([f"the <cat> {i}" for i in range(25)])
    assert isinstance(predictor("a"), dict)
    page = Page(answers._repr_html_())
    assert page.tags.count("tr") == 20
    assert "the <cat> 19" in page.text
    assert "the <cat> 20" not in page.text
    assert "5 more" in page.text


def test_objects_are_a_line_or_two(tagger: bothways.Predictor) -> None:
    for thing in (tagger, tagger.model):
        assert len(repr(thing).splitlines()) <= 2
        assert "bert" in repr(thing)
        assert f"{tagger.model.config.encoder.layers} layers" in repr(thing)
    assert tagger.labels[0] in repr(tagger)


@pytest.mark.parametrize("name", ["single", "multi", "tag", "answer"])
def test_an_evaluation_is_a_line_and_a_page(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = bothways.Predictor(model_of(tokenizer, name))
    found = bothways.evaluate([str(written(tmp_path, name))], predictor, worst=2)
    assert f"{found.metric} {found.scores[found.metric]:.4f}" in repr(found)
    page = Page(found._repr_html_())
    for words in (f"Scores on {found.examples}", *found.scores):
        assert words in page.text
    assert ("Confusion matrix" in page.text) == (name == "single")
    titles = {"tag": "Sentences with the most wrong tags"}
    assert found.worst
    assert titles.get(name, "Most confident errors") in page.text
    assert found.worst[0]["where"] in page.text


def test_labels_get_a_font_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was installed after matplotlib listed the fonts. DejaVu Sans has no circled letters, and STIX has."""
    from matplotlib import font_manager

    def drawn(text: str) -> tuple[Text, Text, bytes]:
        figure = new_figure(1, 1)
        assert figure is not None
        english, other = figure.text(0, 0, "good"), figure.text(0, 0.5, text)
        save_figure(figure, tmp_path / "a.png")
        return english, other, (tmp_path / "a.png").read_bytes()

    fonts = font_manager.fontManager.ttflist
    (stix,) = (font.fname for font in fonts if (font.name, font.style, font.weight) == ("STIXGeneral", "normal", 400))
    few = [font for font in fonts if font.name in ("DejaVu Sans", "Last Resort High-Efficiency")]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(few))
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    with pytest.warns(UserWarning, match="no installed font has 'ⒷⒼ': the picture has boxes") as warned:
        *_, boxes = drawn("Ⓖ +\nⒷ")
    assert len(warned) == 1
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [stix, str(tmp_path / "broken.ttf")])
    english, other, letters = drawn("Ⓖ +\nⒷ")
    assert other.get_fontfamily() == [*english.get_fontfamily(), "STIXGeneral"]
    assert boxes != letters


# ---------------------------------------------------------------------- errors of taggers


def test_the_gold_of_an_error_is_an_answer(tokenizer: Tokenizer) -> None:
    task = TokenClassification
    example = Tagged(*join_words(["Ada", "Bo", "saw", "北", "京"]), ("B-PER", "I-PER", "O", "B-LOC", "I-LOC"))
    tagger = bothways.Predictor(model_of(tokenizer, "tag")).task
    gold = tagger.gold_answer(example)
    assert gold == [
        {"entity_group": "PER", "word": "Ada Bo", "start": 0, "end": 6},
        {"entity_group": "LOC", "word": "北京", "start": 11, "end": 13},
    ]
    found = [{**gold[0], "end": 3, "word": "Ada", "score": 0.9}, {**gold[1], "score": 0.8}]
    above, below = marked_pair(task, BIO, {"text": example.text, "gold": gold, "answer": found})
    assert above.plain() == "[Ada Bo PER] saw [北京 LOC]"
    assert below.plain() == "[Ada PER] Bo saw [北京 LOC]"


def test_an_answer_without_a_place_is_told_from_none() -> None:
    """The data may have a gold answer that is not in its text."""
    error = {"question": "who?", "context": "the cat runs",
             "gold": [{"start": -1, "end": 2, "answer": "dog"}], "answer": {"start": 0, "end": 0, "answer": ""}}  # fmt: skip
    above, below = marked_pair(QuestionAnswering, (), error)
    assert (above.plain(), below.plain()) == ("dog (not in the text)", "(no answer)")


def test_of_plain_tags_only_the_wrong_ones_are_marked() -> None:
    text = "she runs fast"
    tags = {"gold": ("PRON", "VERB", "ADV"), "answer": ("PRON", "NOUN", "ADV")}
    fields = {
        name: [
            {"entity_group": tag, "start": start, "end": end}
            for tag, (start, end) in zip(tags[name], split_words(text), strict=True)
        ]
        for name in tags
    }
    above, below = marked_pair(TokenClassification, ("ADV", "NOUN", "PRON", "VERB"), {"text": text, **fields})
    assert (above.plain(), below.plain()) == ("she [runs VERB] fast", "she [runs NOUN] fast")


# ---------------------------------------------------------------------- commands


@pytest.fixture
def folder(tagger: bothways.Predictor, tmp_path: Path) -> Path:
    bothways.save(tagger.model, tmp_path / "tagger")
    return tmp_path / "tagger"


def test_show_marks_each_text(folder: Path, tagger: bothways.Predictor, tmp_path: Path, run: Run) -> None:
    texts = ["the black cat sleeps in paris", "中国的首都是北京。"]
    (tmp_path / "a.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    done = run("predict", tmp_path / "a.txt", "--model", folder, "--show")
    assert done.returncode == 0, done.stderr
    expected = [
        MarkedText(text, tuple(Mark(one["start"], one["end"], one["entity_group"]) for one in answer)).plain()
        for text, answer in zip(texts, tagger(texts), strict=True)
    ]
    assert done.stdout.splitlines() == expected
    assert any("[" in line for line in expected)


def test_html_is_a_page_of_its_own(folder: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "a.txt").write_text("the <script>cat</script>\n中国的首都是北京。\n", encoding="utf-8")
    done = run("predict", tmp_path / "a.txt", "--model", folder, "--html", tmp_path / "a.html")
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert page.endswith("</html>\n")
    assert page.count("<article>") == 2
    assert 'charset="utf-8"' in page
    assert not {"script", "link", "img"} & set(Page(page).tags), "nothing is loaded from elsewhere"


def test_a_page_tells_the_language_of_its_texts(folder: Path, tmp_path: Path, run: Run) -> None:
    """Browsers choose between the Chinese and the Japanese form of a character by it."""
    (tmp_path / "a.txt").write_text("the cat\n中国的首都是北京。\n東京に住む。\n", encoding="utf-8")
    assert run("predict", tmp_path / "a.txt", "--model", folder, "--html", tmp_path / "a.html").returncode == 0
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert re.findall(r' lang="(\w*)"', page) == ["en", "", "zh", "ja"]


def test_the_page_is_written_and_its_texts_are_printed(folder: Path, tmp_path: Path, run: Run) -> None:
    alone, both = (run("predict", "the cat", "--model", folder, *marks) for marks in
                   (["--show"], ["--show", "--html", tmp_path / "a.html"]))  # fmt: skip
    assert (both.returncode, both.stdout) == (0, alone.stdout)
    assert "<article>" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_what_cannot_be_shown(folder: Path, tokenizer: Tokenizer, tmp_path: Path, run: Run) -> None:
    bothways.save(model_of(tokenizer, "single"), tmp_path / "classifier")
    done = run("predict", "the cat", "--model", tmp_path / "classifier", "--show")
    assert (done.returncode, done.stdout) == (1, "")
    assert "--show" in done.stderr
    assert run("predict", "the cat", "--model", folder, "--show", "--json").returncode == 2
    assert run("predict", "the cat", "--model", folder, "--html", tmp_path / "a.txt").returncode == 1
    assert not (tmp_path / "a.txt").exists()


def test_errors_of_a_tagger_are_marked_texts(folder: Path, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "dev.conll"
    path.write_text(
        "".join(f"{word} O\n" for word in ("the", "black", "cat", "sleeps", "in", "paris")), encoding="utf-8"
    )
    shown = run("evaluate", path, "--model", folder).stdout.splitlines()
    place = shown.index("Sentences with the most wrong tags")
    assert shown[place + 1].endswith("dev.conll, line 1")
    assert shown[place + 2] == "  gold       the black cat sleeps in paris"
    assert shown[place + 3].startswith("  predicted  ")
    assert "[" in shown[place + 3]
