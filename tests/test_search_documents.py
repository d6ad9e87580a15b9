"""Corpora of every kind, and the passages of long documents."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.search.documents import Corpus, find_corpus, hash_of, hashes_of
from bothways.search.passages import PassageSplitter
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, refused, tokenizer_of
from helpers.cli import write_rows

HERE = Path("/nowhere")


def read(*paths: Path, field: str = "text") -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in Corpus(find_corpus(paths, HERE), field)]


@pytest.mark.parametrize("name", ["c.jsonl", "c.csv", "c.tsv", "c.parquet", "c.jsonl.gz", "c.csv.xz"])
def test_rows_with_ids(name: str, tmp_path: Path) -> None:
    rows = ["a dog", "北京, 上海", "the cat; the house"]
    assert read(write_rows(tmp_path / name, rows), field="body") == [(str(i), row) for i, row in enumerate(rows)]


def test_titles_come_before_texts(tmp_path: Path) -> None:
    rows = [{"_id": "a", "title": "Paris", "text": "A city."}, {"_id": 2, "title": "", "text": "北京"}, {"text": "x"}]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = [("a", "Paris A city."), ("2", "北京"), ("3", "x")]
    assert read(corpus) == expected
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "a query"}\n')
    assert read(tmp_path) == expected  # a folder in BEIR's layout
    corpus.rename(tmp_path / "plain")
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wb") as file:
        file.write((tmp_path / "plain").read_bytes())
    assert read(tmp_path) == expected


def test_the_index_in_a_folder_is_no_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "a.md").write_text("a")
    (tmp_path / "index" / "vectors.npy").write_bytes(b"\0")
    assert [file.path.name for file in find_corpus(tmp_path, tmp_path / "index")] == ["a.md"]
    with pytest.warns(UserWarning, match=r"1 file is of another kind .*: \.npy 1"):
        find_corpus(tmp_path, tmp_path / "elsewhere")


@pytest.mark.filterwarnings("ignore:.* of another kind")
def test_files_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "more").mkdir(parents=True)
    (folder / "a.md").write_text("---\r\ntitle: A\r\n---\r\n# A title\r\n\r\nand lines\n")
    (folder / "more" / "b.txt").write_text("one\ntwo\n")
    (folder / "rows.jsonl").write_text('{"text": "three"}\n')
    (folder / "picture.png").write_bytes(b"\0")
    expected = [("a.md", "# A title\n\nand lines"), ("more/b.txt", "one\ntwo"), ("3", "three")]
    assert read(folder) == expected
    assert [file.path.name for file in find_corpus(folder, folder / "more")] == ["a.md", "rows.jsonl"]
    assert read(folder / "a.md") == expected[:1]
    assert read(folder / "more" / "b.txt") == [("1", "one"), ("2", "two")]  # a file alone: its lines
    assert read(folder / "*.jsonl") == [("1", "three")]
    assert read(folder / "*.jsonl", folder / "rows.jsonl", folder / "more" / ".." / "rows.jsonl") == [("1", "three")]
    corpus = Corpus(find_corpus(folder / "more" / "b.txt", HERE), first=10)
    assert [document.id for document in corpus] == ["11", "12"]
    assert corpus.last == 12


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("nowhere.txt", "nowhere/*.txt"):
        with refused("no-file"):
            find_corpus(tmp_path / name, HERE)
    with refused("stdin-once"):
        find_corpus("-", HERE)
    with refused("no-known-files"):
        find_corpus(tmp_path, HERE)
    for name in ("a.png", "a.pdf.gz"):
        (tmp_path / name).touch()
        with refused("unknown-file-kind"):
            find_corpus(tmp_path / name, HERE)
    rows = tmp_path / "c.jsonl"
    for row, code in (('{"id": null, "text": "x"}', "no-id"), ('{"id": "a"}', "not-text"), ('{"text": 3}', "not-text")):
        rows.write_text(f'{{"id": "0", "text": "ok"}}\n{row}\n')
        with refused(code, names=r"c\.jsonl, line 2"):
            read(rows)


def test_hashes_tell_ids_apart(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("x\n" * 5_000)
    hashes = hashes_of(Corpus(find_corpus(tmp_path / "c.txt", HERE)))
    assert len(set(hashes.tolist())) == 5_000
    assert int(hashes[41]) == hash_of("42")


# ---------------------------------------------------------------------- passages

LETTERS = Tokenizer.from_pieces(PIECES)
TEXTS = st.lists(
    st.sampled_from(["the", "cat", "unbelievable", "walking", "北京是中国的首都", "!", "runs", "\n"]), max_size=80
)


@settings(max_examples=60)
@given(TEXTS, st.sampled_from([10, 16, 48]))
def test_passages_cover_a_document(words: list[str], max_length: int) -> None:
    text = " ".join(words)
    (spans,) = PassageSplitter(LETTERS, max_length)([text])
    if not text.strip():
        assert spans == []
        return
    fits = len(LETTERS(text)) <= max_length
    assert (spans == [(0, len(text))]) == fits
    covered = set()
    for start, end in spans:
        covered |= set(range(start, end))
        assert len(LETTERS(text[start:end])) <= max_length
    assert all(text[i].isspace() for i in set(range(len(text))) - covered)
    assert spans == sorted(spans)


def test_passages_begin_and_end_with_words() -> None:
    text = " ".join(["unbelievable", "walking"] * 30)
    (spans,) = PassageSplitter(LETTERS, 24)([text])
    assert len(spans) > 5
    for start, end in spans:
        assert set(text[start:end].split()) <= {"unbelievable", "walking"}


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2", "modernbert"])
def test_passages_of_other_tokenizers(family: str) -> None:
    """Byte-level tokens are parts of a Chinese character, and a line of Chinese is one word of SentencePiece."""
    tokenizer = tokenizer_of(family)
    text = "北京是中国的首都。" * 20 + "the cat sleeps in the big house. " * 20
    (spans,) = PassageSplitter(tokenizer, 32)([text])
    assert len(spans) > 8
    assert "".join(text[i] for i in sorted({i for start, end in spans for i in range(start, end)})).replace(
        " ", ""
    ) == (text.replace(" ", ""))
    assert max(len(tokenizer(text[start:end])) for start, end in spans) <= 32 + 4


def test_a_prompt_takes_room() -> None:
    text = "the cat runs " * 60
    short, long = (PassageSplitter(LETTERS, 32, prompt)([text])[0] for prompt in ("", "the big house is black: "))
    assert len(long) > len(short)
    with refused("no-room"):
        PassageSplitter(LETTERS, 12, "the big house is black: ")


@pytest.mark.parametrize("names", [("ID", "Title", "Text"), ("編號", "標題", "內容")])
def test_ids_and_titles_are_known_in_any_case_and_in_chinese(names: tuple[str, ...], tmp_path: Path) -> None:
    row = dict(zip(names, ("x7", "On cats", "They sleep."), strict=True))
    (tmp_path / "a.jsonl").write_text(json.dumps(row), encoding="utf-8")
    [found] = Corpus(find_corpus(tmp_path / "a.jsonl", tmp_path / "index"))
    assert (found.id, found.text) == ("x7", "On cats They sleep.")
