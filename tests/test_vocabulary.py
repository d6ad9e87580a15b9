"""Training a vocabulary."""

import gzip
import itertools
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest

from bothways.errors import BothwaysError
from bothways.text.files import read_texts
from bothways.text.train_vocab import FIRST_PIECES, _sample, train_vocabulary
from helpers import refused

TEXT = (
    "The cat sleeps.\n\nThe dog sleeps and the cats walk.\nWalking dogs walked. Été à Paris.\n北京是中国的首都。\n" * 5
)


def _spoilt_gzip() -> bytes:
    content = bytearray(gzip.compress(bytes(range(97, 123)) * 5000, mtime=0))
    content[40:60] = b"\xff" * 20
    return bytes(content)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "text.txt"


def test_specials_are_at_berts_ids(corpus: Path) -> None:
    tokenizer = train_vocabulary([corpus], size=200)
    places = {name: tokenizer.id(name) for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")}
    assert places == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    assert tokenizer.special_ids == {0, 100, 101, 102, 103}
    assert "[unused5]" not in tokenizer("[unused5]").pieces  # a spare row, not a marker
    assert tokenizer.size <= 200


def test_words_are_learned_and_the_size_is_kept(corpus: Path) -> None:
    tokenizer = train_vocabulary([corpus], size=172)
    assert tokenizer.size == 172
    assert {"the", "北", "京", "##s"} <= set(tokenizer.pieces)
    assert "[UNK]" not in tokenizer("walking cats 北京").pieces


def test_every_file_kind_gives_the_same_vocabulary(corpus: Path) -> None:
    lines = TEXT.split("\n")
    folder = corpus.parent
    with gzip.open(folder / "a.txt.gz", "wt", encoding="utf-8") as stream:
        stream.write(TEXT)
    with lzma.open(folder / "a.jsonl.xz", "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"body": line}) + "\n" for line in lines)
    (folder / "a.jsonl").write_text("\n".join(json.dumps({"body": line}) for line in lines), encoding="utf-8")
    prints = {
        train_vocabulary([folder / name], size=190, text="body").fingerprint
        for name in ("text.txt", "a.txt.gz", "a.jsonl.xz", "a.jsonl")
    }
    assert len(prints) == 1


def test_folders_and_patterns_stand_for_their_files(corpus: Path) -> None:
    expected = train_vocabulary([corpus], size=190).fingerprint
    assert train_vocabulary([corpus.parent], size=190).fingerprint == expected
    assert train_vocabulary([f"{corpus.parent}/*.txt"], size=190).fingerprint == expected


def test_the_same_text_gives_the_same_vocabulary(tmp_path: Path) -> None:
    """Full of ties, so that any order taken from a hash table would show."""
    words = ["".join(chr(97 + (i * j) % 26) for j in range(1, 7)) for i in range(200)]
    (tmp_path / "ties.txt").write_text("\n".join(words * 3), encoding="utf-8")
    for size in (200, 400):
        assert len({train_vocabulary([tmp_path / "ties.txt"], size=size).fingerprint for _ in range(5)}) == 1


def test_rare_letters_give_way_when_there_are_too_many(tmp_path: Path) -> None:
    rare, common = "".join(map(chr, range(0x410, 0x42A))), "".join(map(chr, range(0x5D0, 0x5EA)))
    (tmp_path / "a.txt").write_text(f"{common}\n" * 9 + rare, encoding="utf-8")
    pieces = train_vocabulary([tmp_path / "a.txt"], size=170, lower=False).pieces
    kept = [letter for letter in common + rare if letter in pieces]
    assert len([letter for letter in kept if letter in common]) == len(common)
    assert len(kept) < len(common + rare)


def test_the_size_is_never_exceeded(corpus: Path) -> None:
    for size in (106, 107, 120, 150):
        assert train_vocabulary([corpus], size=size).size <= size


def test_marks_at_the_start_and_old_line_ends_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe cat\r\nthe\rdog\n")
    assert list(read_texts(tmp_path / "a.txt")) == ["the cat", "the\rdog"]
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "ab\\ud800 c"}\r\n\r\n"plain"\n')
    assert list(read_texts(tmp_path / "a.jsonl")) == ["ab\ufffd c", "plain"]


def test_options(corpus: Path) -> None:
    cased = train_vocabulary([corpus], size=300, lower=False)
    assert "The" in cased.pieces
    assert "Été" in cased.decode(cased("Été").ids)
    accented = train_vocabulary([corpus], size=300, strip_accents=False)
    assert "été" in accented.decode(accented("Été").ids)
    plain = train_vocabulary([corpus], size=300)
    assert "ete" in plain.decode(plain("Été").ids)
    joined = train_vocabulary([corpus], size=300, split_cjk=False)
    assert "北京是中国的首都" in joined.pieces


def test_chinese_characters_are_kept(tmp_path: Path) -> None:
    """The library underneath keeps 1,000 characters unless told otherwise."""
    letters = [chr(0x4E00 + i) for i in range(2500)]
    (tmp_path / "han.txt").write_text("\n".join(letters * 2), encoding="utf-8")
    tokenizer = train_vocabulary([tmp_path / "han.txt"], size=8_000)
    assert "[UNK]" not in tokenizer("".join(letters)).pieces


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Ten times the text, the same words: what Python holds stays the same."""

    def peak(times: int) -> int:
        file = tmp_path / f"{times}.txt"
        file.write_text(TEXT * times, encoding="utf-8")
        tracemalloc.start()
        train_vocabulary([file], size=200)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    small, large = peak(20), peak(400)
    assert large < small + 300_000  # the larger file is 400 × 640 bytes × … = 1.5 MB more


def test_what_is_read_is_bounded(tmp_path: Path) -> None:
    """Beyond the bound an even sample is used, and said: so memory is bounded too, however many words there are."""
    (tmp_path / "many.txt").write_text("\n".join(["aaaa", "bbbb"] * 500 + ["cccc"] * 1000), encoding="utf-8")
    with pytest.warns(UserWarning, match=r"8,000 .*10\.0%"):
        few = train_vocabulary([tmp_path / "many.txt"], size=200, minimum=90, most=800)
    # 200 of 2,000 lines, every tenth: 100 of them say cccc, and the others are all bbbb.
    assert "cccc" in few.pieces
    assert "bbbb" in few.pieces
    assert "aaaa" not in few.pieces
    assert {"aaaa", "bbbb", "cccc"} <= set(train_vocabulary([tmp_path / "many.txt"], size=200, minimum=90).pieces)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 1 / 3, 0.999, 1.0])
def test_a_sample_is_even(share: float) -> None:
    taken = [int(text) for text in _sample(map(str, range(10_000)), share)]
    assert abs(len(taken) - 10_000 * share) <= 1
    gaps = {later - earlier for earlier, later in itertools.pairwise(taken)}
    assert not gaps or max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("empty.txt", b"", "no-text"),
        ("blank.txt", b"\n \n\n", "no-text"),
        ("damaged.txt", "café\n".encode() + b"caf\xe9\n", "not-utf8"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', "not-json"),
        ("field.jsonl", b'{"url": "a"}\n', "no-text-column"),
        ("number.jsonl", b'{"text": 5}\n', "not-text"),
        ("cut.txt.gz", gzip.compress(b"some text\n" * 1000, mtime=0)[:40], "damaged-file"),
        ("not.txt.xz", b"plain text", "damaged-file"),
        ("spoilt.txt.gz", _spoilt_gzip(), "damaged-file"),
        ("digits.jsonl", b"5" * 5000, "not-json"),
        ("deep.jsonl", b"[" * 200_000, "not-json"),
        ("table.xlsx", b"", "damaged-file"),
        ("table.docx", b"", "unknown-file-kind"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, name: str, content: bytes, code: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BothwaysError) as caught:
        train_vocabulary([tmp_path / name], size=200)
    assert caught.value.code == code
    assert name in str(caught.value)


def test_bad_requests_are_refused(corpus: Path) -> None:
    with refused("no-file", corpus.parent / "none.txt"):
        train_vocabulary([corpus.parent / "none.txt"])
    (corpus.parent / "empty").mkdir()
    with refused("no-known-files", corpus.parent / "empty"):
        train_vocabulary([corpus.parent / "empty"])
    with refused("no-input"):
        train_vocabulary([])
    with refused("stdin-once"):
        train_vocabulary([Path("-")])
    with refused("out-of-range", 10**20):
        train_vocabulary([corpus], size=10**20)
    with refused("out-of-range", len(FIRST_PIECES)):
        train_vocabulary([corpus], size=len(FIRST_PIECES))
