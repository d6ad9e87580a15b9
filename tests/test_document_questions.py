"""Questions over documents: their texts, passages and places, and answers that can be compared."""

import json
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

import bothways
from bothways.data.examples import Question
from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.predict.ask import ask
from bothways.predict.predictor import Predictor
from bothways.search.documents import Corpus, find_corpus
from bothways.tasks.folder import with_task
from bothways.text.document_files import LONGEST, find_documents, read_passages, split_passages
from bothways.text.html_text import html_text
from bothways.text.tokenizer import Tokenizer
from helpers import config_for, make_loud, refused
from helpers.cli import Run, is_one_error
from helpers.tasks import SMALL

# ---------------------------------------------------------------------- files


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text on each page, in which ASCII is written as it is."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * i} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    made, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = (
        f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\n"
    )
    return made + f"{end}startxref\n{len(made)}\n%%EOF\n".encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One document of each kind, a hidden one and two that are none."""
    home = tmp_path / "notes"
    (home / "more").mkdir(parents=True)
    (home / ".git").mkdir()
    (home / "a.md").write_bytes(b"---\ntitle: cats\n---\n\n# The cat\r\n\r\nThe cat runs in Paris.\r\nIt talks.\r\n")
    (home / "b.txt").write_text("The dog walks.\n\n中国的首都是北京。\n", encoding="utf-8")
    page = "<html><head><title>x</title></head><body><nav>Menu</nav>\n<p>The <b>house</b>\nis big.</p></body></html>"
    (home / "more" / "c.html").write_text(page)
    (home / ".git" / "hidden.md").write_text("hidden")
    (home / "picture.png").write_bytes(b"\0")
    (home / "more" / "rows.csv").write_text("text\n")
    return home


def test_the_documents_of_a_folder(folder: Path) -> None:
    found = find_documents([folder])
    assert [file.name for file in found.files] == ["a.md", "b.txt", "c.html"]
    assert [file.name for file in found.skipped] == ["rows.csv", "picture.png"]
    again = find_documents([folder / "b.txt", folder, folder / "**" / "*.html", folder / "*"])
    assert [file.name for file in again.files] == ["b.txt", "a.md", "c.html"]  # each once, in the order they are named
    assert [file.name for file in find_documents([folder / "*"]).skipped] == ["rows.csv", "picture.png"]


def test_what_is_no_document_is_named(folder: Path, tmp_path: Path) -> None:
    with refused("no-file", folder / "nowhere"):
        find_documents([folder / "nowhere"])
    with refused("no-file"):
        find_documents([folder / "*.rst"])
    with refused("unknown-file-kind", folder / "picture.png", names=r"\.pdf"):
        find_documents([folder / "picture.png"])
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.png").touch()
    with refused("no-known-files", tmp_path / "empty"):
        find_documents([tmp_path / "empty"])
    with refused("no-input"):
        find_documents([])


def test_places_are_those_of_the_file(folder: Path) -> None:
    """In .txt and .md every character counts: those of line ends, and of front matter, which is left out."""
    for name, first in (("a.md", 5), ("b.txt", 1)):
        text = (folder / name).read_bytes().decode()
        (passage,) = read_passages(folder / name)
        assert text[passage.start : passage.start + len(passage.text)] == passage.text
        assert passage.lines[0] == first
        assert len(passage.lines) == passage.text.count("\n") + 1
    assert "title" not in next(read_passages(folder / "a.md")).text
    (folder / "a.md").write_text("---\n\nA line above is no front matter.\n\n---\n")
    assert "no front matter" in next(read_passages(folder / "a.md")).text


PAGE = """<!DOCTYPE html>
<html><head><title>Not this</title><style>p {}</style>
<body>
<nav><ul><li>Home<nav>inner</nav></ul></nav><div role="navigation">Menu</div>
<header><h1>Cats &amp;
 dogs</h1></header>
<script>if (a < b) { "<p>no</p>" }</script>
<p>The <em>cat</em>
   sleeps.<p>It runs.<br>And talks.
<ul><li>one</li><li>two</li></ul>
<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>
<pre>x = 1
  y = 2</pre>
<footer>© 2020</footer>中文&nbsp;也可以
</body></html>
"""


def test_the_text_of_a_page() -> None:
    text, lines = html_text(PAGE)
    assert text.split("\n") == [
        "Cats & dogs", "", "The cat sleeps.", "", "It runs.", "And talks.", "", "one", "two", "", "a b", "c d", "",
        "x = 1", "  y = 2", "", "中文 也可以",
    ]  # fmt: skip
    numbered = dict(zip(text.split("\n"), lines, strict=True))
    assert [numbered[line] for line in ("Cats & dogs", "The cat sleeps.", "It runs.", "a b")] == [5, 8, 9, 11]
    assert [numbered[line] for line in ("x = 1", "  y = 2", "中文 也可以")] == [12, 13, 14]
    assert html_text("") == ("", [])


def test_pages_of_a_pdf(tmp_path: Path) -> None:
    pypdf = pytest.importorskip("pypdf")
    file = tmp_path / "a.pdf"
    file.write_bytes(pdf("The cat runs.", "", "The dog sleeps in Paris."))
    first, second = read_passages(file)
    assert (first.text, first.page, first.start, first.lines) == ("The cat runs.", 1, 0, ())
    assert (second.text, second.page) == ("The dog sleeps in Paris.", 3)
    page = pypdf.PdfReader(file).pages[2].extract_text()
    assert page[second.start :][: len(second.text)] == second.text
    documents = [(document.id, document.text) for document in Corpus(find_corpus(tmp_path, Path("/nowhere")))]
    assert documents == [("a.pdf", "The cat runs.\n\n\n\nThe dog sleeps in Paris.")]  # search reads them as well
    file.write_bytes(b"%PDF-1.4\nnothing")
    with refused("damaged-file", file):
        list(read_passages(file))


class _Page:
    def __init__(self, text: str) -> None:
        self.text = text

    def extract_text(self) -> str:
        if self.text == "damaged":
            raise KeyError("/Font")
        return self.text


class _Pypdf:
    """What pypdf does, for a file with a page on each line."""

    class PdfReader:
        def __init__(self, path: Path) -> None:
            self.pages = [_Page(line) for line in path.read_text().splitlines()]


@pytest.mark.filterwarnings("ignore:.* of another kind")
def test_a_pdf_with_any_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_text("One.\nTwo \ud83d!\n".encode("utf-8", "replace").decode())
    monkeypatch.setitem(sys.modules, "pypdf", _Pypdf)
    assert [(passage.page, passage.text) for passage in read_passages(tmp_path / "a.pdf")] == [
        (1, "One."),
        (2, "Two ?!"),
    ]
    (tmp_path / "a.pdf").write_text("One.\ndamaged\n")
    with refused("damaged-file", tmp_path / "a.pdf", names="page 2"):
        list(read_passages(tmp_path / "a.pdf"))
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with refused("missing-package", "pypdf", names=r"bothways\[pdf\]"):
        find_documents([tmp_path])
    (tmp_path / "b.md").write_text("Three.")  # among others, it is skipped
    found = find_documents([tmp_path])
    assert (found.files, found.skipped) == ([tmp_path / "b.md"], [tmp_path / "a.pdf"])
    assert [file.path.name for file in find_corpus(tmp_path, Path("/nowhere"))] == ["b.md"]


@pytest.mark.filterwarnings("ignore:.* of another kind")
def test_pages_are_documents_of_a_search(folder: Path) -> None:
    (folder / "more" / "rows.csv").unlink()
    found = {document.id: document.text for document in Corpus(find_corpus(folder, Path("/nowhere")))}
    assert found["more/c.html"] == "The house is big."


# ---------------------------------------------------------------------- passages

PARTS = st.sampled_from(
    ["The cat runs. ", "北京是首都。", "a" * 700, " ", "\n", "\n\n", "\r\n", "\n# Head\n", "word " * 150]
)


@settings(max_examples=60)
@given(st.lists(PARTS, max_size=30), st.booleans(), st.integers(0, 2**20))
def test_passages_cover_a_document_whatever_its_blocks(parts: list[str], is_markdown: bool, seed: int) -> None:
    text, draws = "".join(parts), random.Random(seed)
    whole = list(split_passages([text], is_markdown))
    cuts = sorted(draws.choices(range(len(text) + 1), k=6))
    blocks = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert list(split_passages(blocks, is_markdown)) == whole
    end = 0
    for passage in whole:
        assert not text[end : passage.start].strip()
        end = passage.start + len(passage.text)
        assert text[passage.start : end] == passage.text
        assert 0 < len(passage.text) <= LONGEST
        line = text.count("\n", 0, passage.start) + 1
        assert passage.lines == tuple(range(line, line + passage.text.count("\n") + 1))
    assert not text[end:].strip()


def test_a_heading_begins_a_passage_and_stays_with_its_text() -> None:
    text = "Before.\n\n# A\n\n## B\nText of B.\n\nMore.\n## C\n\nText of C.\n"
    found = [passage.text for passage in split_passages([text], is_markdown=True)]
    assert found == ["Before.", "# A\n\n## B\nText of B.\n\nMore.", "## C\n\nText of C."]
    assert len(list(split_passages([text]))) == 1  # of .txt: all paragraphs that fit


def test_long_paragraphs_are_divided_at_sentences() -> None:
    sentences = [f"The cat number {i} runs in the house." for i in range(200)]
    found = [passage.text for passage in split_passages([" ".join(sentences)])]
    assert 5 < len(found) < 10
    assert " ".join(found) == " ".join(sentences)
    assert all(text.endswith("house.") for text in found)


# ---------------------------------------------------------------------- answers


def model_for(tokenizer: Tokenizer, seed: int = 0, task: str = "answer", **config: Any) -> Model:
    """A loud model whose windows are short."""
    base = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    labels = ("good", "bad") if task == "classify" else ()
    model = with_task(
        base, config_for(task, "single" if labels else "", window=WindowSettings(32, 8), **config), labels
    )
    make_loud(model, seed)
    return model


WORDS = ["the", "cat", "unbelievable", "Paris", "中", "国", "walks", "in", "Berlin", "dog", "talking", "house"]


def texts_of(count: int, words: int = 40, seed: int = 1) -> dict[str, str]:
    draws = random.Random(seed)
    return {f"{i}.txt": " ".join(draws.choices(WORDS, k=draws.randint(1, words))) for i in range(count)}


def one_by_one(predictor: Predictor, question: str, texts: dict[str, str], top: int) -> list[dict[str, Any]]:
    """The same answers from each text by itself, with no batch."""
    found = []
    for name, text in texts.items():
        ((_, decoded),) = predictor.decode_all([Question("", question, text)])
        for start, end, score in decoded.ranked(top):
            found.append({"file": name, "start": start, "end": end, "score": score - decoded.null})
    return sorted(found, key=lambda one: -one["score"])[:top]


def test_answers_are_those_of_each_passage_alone(tokenizer: Tokenizer) -> None:
    predictor, texts, question = Predictor(model_for(tokenizer, thresholds={"null": 1e9})), texts_of(30), "who walks?"
    expected = one_by_one(predictor, question, texts, 9)
    found = predictor.ask(question, texts, top=9)
    assert len({one["file"] for one in expected}) > 3
    for one, other in zip(found, expected, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-4)
        assert {key: one[key] for key in ("file", "start", "end")} == {
            key: other[key] for key in ("file", "start", "end")
        }
        assert one["answer"] == texts[one["file"]][one["start"] : one["end"]]
        # And the best of a passage is what the model answers to it.
        if other is next(like for like in expected if like["file"] == other["file"]):
            assert predictor((question, one["passage"]))["answer"] == one["answer"]


def test_answers_do_not_overlap(tokenizer: Tokenizer) -> None:
    found = Predictor(model_for(tokenizer)).ask("who?", {"a": " ".join(WORDS * 3)}, top=5)
    spans = sorted((one["start"], one["end"]) for one in found if one["file"])
    assert len(spans) >= 4
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_scores_are_those_of_transformers_logits(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """As in SQuAD 2's postprocessing: the best start logit + end logit, minus those of [CLS]."""
    texts = {name: text for name, text in texts_of(6, words=8).items() if len(text.split()) > 2}
    predictor = Predictor(model_for(tokenizer, thresholds={"null": 1e9}))
    save(predictor.model, tmp_path)
    judge = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path).eval()
    expected = {}
    for name, text in texts.items():
        item = predictor.task.encode([Question("", "who?", text)])[0]
        (view,), inside = item.views, item.reads[0].inside
        ids, kinds = (torch.tensor([list(map(int, values))]) for values in (view.ids, view.segments))
        with torch.no_grad():
            logits = judge(input_ids=ids, token_type_ids=kinds)
        start, end = logits.start_logits[0], logits.end_logits[0]
        spans = [(i, j) for i in range(inside.start, inside.stop) for j in range(i, inside.stop)]
        expected[name] = max(float(start[i] + end[j] - start[0] - end[0]) for i, j in spans)
    found = predictor.ask("who?", texts, top=99)
    best = {name: max(one["score"] for one in found if one["file"] == name) for name in texts}
    assert best == pytest.approx(expected, abs=1e-4)
    assert found[0]["file"] == max(expected, key=lambda name: expected[name])


def test_no_answer_has_a_place_by_its_score(tokenizer: Tokenizer) -> None:
    texts, question = texts_of(6), "who walks?"
    scores = [one["score"] for one in one_by_one(Predictor(model_for(tokenizer)), question, texts, 7)]
    for wins, threshold in ((5, -(scores[4] + scores[5]) / 2), (2, -(scores[1] + scores[2]) / 2), (0, -scores[0] - 1)):
        predictor = Predictor(model_for(tokenizer, thresholds={"null": threshold}))
        found = predictor.ask(question, texts, top=6)
        assert [one["answer"] == "" for one in found].index(True) == wins
        none = found[wins]
        assert none["score"] == pytest.approx(-threshold)
        assert none["file"] is none["start"] is none["line"] is None
        assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
        (first,) = predictor.ask(question, texts)
        assert (first["answer"] == "") == (wins == 0)


def test_only_the_best_passages_are_read(tokenizer: Tokenizer) -> None:
    texts = {**texts_of(20), "here.txt": "The capital of germany is berlin."}
    predictor = Predictor(model_for(tokenizer, thresholds={"null": 1e9}))
    with pytest.warns(UserWarning, match="3 of 21 passages"):
        found = predictor.ask("the capital of germany?", texts, top=99, passages=3)
    assert "here.txt" in {one["file"] for one in found}
    assert len({one["file"] for one in found if one["file"]}) == 3
    alone = predictor.ask("the capital of germany?", {"here.txt": texts["here.txt"]}, top=99)
    assert next(one["answer"] for one in found if one["file"] == "here.txt") == alone[0]["answer"]


def test_chinese_markdown(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "---\ntitle: 城市\n---\n# 北京\n\n北京是中国的首都。\n\n# 巴黎\n\n巴黎是法国的首都。\n"
    (tmp_path / "城市.md").write_text(text, encoding="utf-8")
    predictor = Predictor(model_for(tokenizer, thresholds={"null": 1e9}))
    found = predictor.ask("中国的首都?", str(tmp_path), top=4)
    assert {one["passage"] for one in found} == {"# 北京\n\n北京是中国的首都。", "# 巴黎\n\n巴黎是法国的首都。"}
    for one in found:
        assert text[one["start"] : one["end"]] == one["answer"] != ""
        assert text.split("\n")[one["line"] - 1].count(one["answer"].split("\n")[0])
        assert text[one["passage_start"] :].startswith(one["passage"])


def test_a_broken_file_ends_no_question(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = Predictor(model_for(tokenizer))
    (tmp_path / "b.md").write_text("the cat sleeps in the house.", encoding="utf-8")
    expected = predictor.ask("who sleeps?", tmp_path)
    (tmp_path / "a.pdf").write_bytes(b"no pdf at all")
    (tmp_path / "c.txt").write_bytes(b"the dog runs" * 30 + b"\xff \x81 \xc3")
    with pytest.warns(
        UserWarning, match=r"a\.pdf cannot be read as \.pdf from its start: .*; 2 files could not be read"
    ):
        assert predictor.ask("who sleeps?", tmp_path) == expected
    found = ask(predictor, "who sleeps?", tmp_path)
    assert (found.documents, len(found.broken), found.empty) == (3, 2, ())
    (tmp_path / "b.md").unlink()
    with refused("damaged-file", tmp_path / "a.pdf"):
        predictor.ask("who sleeps?", tmp_path)


def test_what_cannot_be_asked(tokenizer: Tokenizer, tmp_path: Path) -> None:
    predictor = Predictor(model_for(tokenizer))
    with refused("no-file", Path("The cat runs.")):  # a text is not a name
        predictor.ask("who?", "The cat runs.")
    for text in ("the cat " * 1000, "the cat? " * 1000):
        with refused("no-file"):
            predictor.ask("who?", text)
    with refused("empty-text"):
        predictor.ask(" ", {"a": "the cat"})
    with refused("no-text"):
        predictor.ask("who?", {"a": " \n"})
    with refused("bad-input", 0):
        predictor.ask("who?", {"a": "the cat", "b": 0})
    for settings_ in ({"top": 0}, {"passages": 0}):
        with refused("out-of-range", 0):
            predictor.ask("who?", {"a": "the cat"}, **settings_)
    with refused("no-questions", "classify"):
        Predictor(model_for(tokenizer, task="classify")).ask("who?", {"a": "the cat"})
    with pytest.warns(UserWarning, match=r"without text, such as b"):
        predictor.ask("who?", {"a": "the cat", "b": ""})


# ---------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("models")
    save(model_for(tokenizer, thresholds={"null": 1e9}), home / "answer")
    save(model_for(tokenizer, thresholds={"null": -1e9}), home / "silent")
    save(model_for(tokenizer, task="classify"), home / "classify")
    return {name: home / name for name in ("answer", "silent", "classify")}


def test_a_question_and_a_folder(folder: Path, models: dict[str, Path], run: Run) -> None:
    with pytest.warns(UserWarning, match="2 files were skipped"):
        expected = Predictor.load(models["answer"]).ask("Who runs?", folder, top=3)
    done = run("predict", "Who runs?", folder, "--model", models["answer"], "--top", 3, "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [replace_score(one) for one in found] == [replace_score(one) for one in expected]
    assert len(found) == 3
    assert "2 files were skipped" in done.stderr
    assert "3 documents, 3 passages, 3 read" in done.stderr
    table = run("predict", "Who runs?", folder, "--model", models["answer"], "--top", 3).stdout
    for one in expected:
        assert f"{one['file']}:{one['line']}" in table
        assert f"{one['score']:.2f}" in table
    shown = run("predict", "Who runs?", folder, "--model", models["answer"], "--show").stdout
    assert f"[{expected[0]['answer']} answer]" in shown
    page = folder.parent / "page.html"
    assert run("predict", "Who runs?", folder, "--model", models["answer"], "--html", page).returncode == 0
    assert "<mark" in page.read_text(encoding="utf-8")


def replace_score(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "score": round(answer["score"], 3)}


def test_files_and_patterns(folder: Path, models: dict[str, Path], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for paths, count in ((["a.md", "b.txt"], 2), (["*.txt", "more/"], 2), (["more/c.html"], 1), (["*"], 3)):
        done = run("predict", "Who runs?", *paths, "--model", models["answer"])
        assert done.returncode == 0, done.stderr
        assert f"{count} document{'s' if count > 1 else ''}, " in done.stderr


def test_no_answer_is_said_in_words(folder: Path, models: dict[str, Path], run: Run) -> None:
    done = run("predict", "Who reads?", folder, "--model", models["silent"])
    assert done.returncode == 0
    assert "no answer" in done.stdout
    shown = run("predict", "Who reads?", folder, "--model", models["silent"], "--show")
    assert "Who reads? (no answer)" in shown.stdout
    told = json.loads(run("predict", "Who reads?", folder, "--model", models["silent"], "--json").stdout)
    assert (told["answer"], told["file"], told["score"]) == ("", None, 1e9)


@pytest.mark.parametrize(
    ("model", "given", "told"),
    [
        ("answer", ("Who?", "the cat"), None),  # a text: neither a file nor like a name
        ("answer", ("Who?", "北京"), None),
        ("answer", ("Who?", "nowhere"), "no file or folder nowhere"),
        ("answer", ("Who?", "nowhere.md"), "nowhere.md"),
        ("answer", ("Who?", "my nowhere.md"), "my nowhere.md"),
        ("answer", ("Who?", "no where/"), "no where"),
        ("answer", ("Who?", "a.md", "some text"), "some text"),
        ("answer", ("more", "a.md"), "more is a folder"),
        ("answer", ("more/docs",), "more/docs is a folder"),
        ("answer", ("a.md",), "a.md is a file"),
        ("answer", ("Who?", "picture.png"), "picture.png"),
        ("classify", ("Who?", "more"), "more names a file or folder"),
        ("classify", ("Who?", "nowhere.md"), "nowhere.md"),
        ("classify", ("Who?", "a.md"), "a.md names a file or folder"),
    ],
)
def test_a_name_is_never_a_text(
    model: str, given: tuple[str, ...], told: str | None, folder: Path, models: dict[str, Path], run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    (folder / "more" / "docs").mkdir()
    (folder / "more" / "docs" / "d.txt").write_text("the cat")
    done = run("predict", *given, "--model", models[model])
    assert (done.returncode == 0) == (told is None), done.stderr
    if told is not None:
        assert done.stdout == ""
        assert is_one_error(done.stderr, told)


def test_a_folder_of_texts_says_how_it_is_read(folder: Path, models: dict[str, Path], run: Run) -> None:
    (folder / "more" / "rows.csv").write_text("text\nthe cat\n")
    done = run("predict", folder / "more", "--model", models["classify"])
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 1
    assert f"{folder / 'more'} is a folder" in done.stderr


def test_a_text_may_be_long_and_look_like_a_pattern(models: dict[str, Path], run: Run) -> None:
    for context in ("the cat [runs] to the dog? " * 400 + "**", "a\nb.md", "the cat is *big*"):
        done = run("predict", "Who runs?", context, "--model", models["answer"])
        assert done.returncode == 0, done.stderr[-80:]
        assert "document" not in done.stderr


def test_options_that_do_not_fit(folder: Path, models: dict[str, Path], run: Run) -> None:
    done = run("predict", "Who runs?", folder, "--model", models["answer"], "--out", folder / "out.jsonl")
    assert done.returncode == 2
    assert "--out" in done.stderr
    assert not (folder / "out.jsonl").exists()
    done = run("predict", "the cat", "--model", models["classify"], "--passages", 3)
    assert done.returncode == 2


def test_the_included_model_finds_the_file(tmp_path: Path) -> None:
    (tmp_path / "owls.md").write_text("# Owls\n\nOwls hunt at night. By day they sleep in hollow trees.\n")
    (tmp_path / "bread.txt").write_text("The dough rises for two hours before it is baked.\n")
    (tmp_path / "tower.html").write_text("<p>The Eiffel Tower was built between 1887 and 1889 in Paris.</p>")
    predictor = bothways.Predictor.load("answer")
    (owls,) = predictor.ask("Where do owls sleep?", tmp_path)
    assert (owls["answer"], Path(owls["file"]).name, owls["line"]) == ("hollow trees", "owls.md", 3)
    (bread,) = predictor.ask("How long does the dough rise?", [tmp_path / "owls.md", tmp_path / "bread.txt"])
    assert (bread["answer"], bread["start"]) == ("two hours", 20)
    (none,) = predictor.ask("How long does the dough rise?", tmp_path / "tower.html")
    assert (none["answer"], none["score"]) == ("", 0.0)
