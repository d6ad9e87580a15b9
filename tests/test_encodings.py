"""Text files that are not UTF-8: named, guessed with a sentence, or refused with the line."""

import gzip
import tracemalloc
import warnings
from pathlib import Path

import pytest

from bothways.data.texts import read_texts_labelled
from bothways.scale.jobs import EncodeJob
from bothways.scale.units import Unit
from bothways.text.columns import Columns
from bothways.text.files import read_documents, read_texts
from bothways.text.guess_encoding import guess_encoding
from bothways.text.streams import Meter, named_encoding, read_as, read_blocks
from helpers import refused
from helpers.cli import Run, is_one_error

LINES = {
    "gb18030": ["质量太差了，用了两天就坏。", "这家酒店的位置不太方便，但是早餐很好吃。"],
    "gbk": ["自行车修得又快又便宜，跟新的一样。", "没有一个地方让我满意。"],
    "big5": ["今天的天氣很好，我們去公園玩。", "這家酒店的位置不太方便。"],
    "shift_jis": ["今日はとても天気がいいので、公園へ行きました。"],
    "euc_jp": ["今日はとても天気がいいので、公園へ行きました。"],
    "euc_kr": ["오늘은 날씨가 아주 좋아서 공원에 갔습니다. 이것은 사람들이 하는 일이다."],
    "cp1251": ["Сегодня очень хорошая погода, и мы пошли в парк."],
    "koi8-r": ["Сегодня очень хорошая погода, и мы пошли в парк."],
    "cp1252": ["L’été à la plage, c’était très bien — 5 €.", "Größe und Übermaß"],
    "latin-1": ["El niño comió piña, ¿verdad?", "café"],
    "cp1250": ["Příliš žluťoučký kůň úpěl ďábelské ódy"],
    "cp1254": ["Bugün hava çok güzel, ağaçlar yeşil, ışık sıcak"],
    "utf-16": ["The cat sleeps.", "猫在睡觉。"],
    "utf-16-le": ["The cat sleeps on the mat.", "It purrs."],
    "utf-32": ["The cat sleeps.", "猫在睡觉。"],
}


@pytest.mark.parametrize("encoding", LINES)
def test_guessed(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\n".join(LINES[encoding]).encode(encoding))
    with pytest.warns(UserWarning, match="is not UTF-8 and is read as") as told:
        assert list(read_texts(path)) == LINES[encoding]
    assert len(told) == 1
    assert "`encoding`" in str(told[0].message)
    with warnings.catch_warnings():  # it is said once
        warnings.simplefilter("error")
        assert list(read_documents(path, each="lines")) == LINES[encoding]


@pytest.mark.parametrize("encoding", LINES)
def test_named(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("\n".join(LINES[encoding]).encode(encoding)))
    with read_as(encoding):
        assert list(read_texts(path)) == LINES[encoding]
        assert named_encoding() == encoding
    assert named_encoding() == ""


@pytest.mark.parametrize("block", [1, 2, 7, 2**15])
def test_whatever_the_blocks(tmp_path: Path, block: int) -> None:
    """ASCII before is the same in every encoding, so the guess is made where it ends, with what follows."""
    text = "id,text\n" * 20 + "7,很好，我们都很喜欢这个地方。\n" * 30
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode("gb18030"))
    with pytest.warns(UserWarning, match="gb18030"):
        assert "".join(read_blocks(path, Meter(), block)) == text


def test_far_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"ascii only\n" * 100_000 + "最后一行是中文，很好。\n".encode("gbk") * 20_000)
    tracemalloc.start()
    with pytest.warns(UserWarning, match="gb18030"):
        lines = sum(1 for _ in read_texts(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == 120_000
    assert peak < 8_000_000


def test_damaged_utf_8_is_never_another_encoding(tmp_path: Path) -> None:
    for content, line in (
        ("很好。\n".encode() * 50 + b"a\xe9b\n" + "很好。\n".encode() * 50, 51),
        ("naïve\ncafé\n".encode() + b"caf\xe9\n", 3),
        ("é\né\n".encode() + b"\xe9\n\xe8\n\xe0\n", 3),
        (b"plain\nIt\xe2\x80s cut\n", 2),
        (b"plain\nabc\xff\n", 2),
        (b"\xef\xbb\xbfmarked\ncaf\xe9\n", 2),
    ):
        path = tmp_path / "a.txt"
        path.write_bytes(content)
        with refused("not-utf8", f"{path}, line {line}", names="`encoding`"):
            list(read_texts(path))


def test_what_was_decoded_is_not_taken_back(tmp_path: Path) -> None:
    """After a block with other UTF-8, a bad byte is damage, however little UTF-8 there was."""
    path = tmp_path / "a.txt"
    path.write_bytes("é\n".encode() + b"x" * 2**16 + b"\n" + "这是中文，我们很好。\n".encode("gbk") * 9)
    with refused("not-utf8", f"{path}, line 3"):
        list(read_texts(path))


def test_the_wrong_name_is_refused_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("好\n好\n".encode() + b"\x80")
    with read_as("ascii"), refused("not-utf8", f"{path}, line 1"):
        list(read_texts(path))
    with read_as("utf-8"), refused("not-utf8", f"{path}, line 3"):
        list(read_texts(path))
    for name in ("klingon", "hex"):
        with refused("unknown-encoding", name), read_as(name):
            pass


def test_random_bytes_are_no_text() -> None:
    assert guess_encoding(bytes(range(128, 256)) * 20) is None


def test_labelled_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("评论,label\n很好，我们都很喜欢。,pos\n太差了，不好。,neg\n".encode("gbk"))
    with pytest.warns(UserWarning, match="gb18030"):
        found = list(read_texts_labelled(path, Columns("评论")))
    assert [(one.texts[0], one.gold) for one in found] == [("很好，我们都很喜欢。", "pos"), ("太差了，不好。", "neg")]


def test_the_option_holds_for_one_command(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\n好,a\n坏,b\n".encode("utf-16-be"))
    done = run("doctor", path, "--encoding", "utf-16-be")
    assert "columns: text = text, label = label" in done.stderr
    assert "--encoding utf-16-be" in done.stdout
    assert "is read as" not in done.stderr
    assert named_encoding() == ""
    done = run("doctor", path, "--encoding", "klingon")
    assert done.returncode == 1
    assert is_one_error(done.stderr, "klingon")


def test_workers_read_in_the_named_encoding(tmp_path: Path, model_folder: Path) -> None:
    """A job carries it, because a worker is another process."""
    path = tmp_path / "a.txt"
    path.write_bytes("猫在睡觉".encode("utf-16-be"))
    with read_as("utf-16-be"):
        jobs = [EncodeJob(model=str(model_folder), long="cut", encoding=named_encoding()), EncodeJob(str(model_folder))]
    unit = Unit(str(path), 0, None, tmp_path / "part-00000.npy")
    assert jobs[0].open("cpu")(unit)["rows"] == 1
    with refused("not-utf8", f"{path}, line 1"):
        jobs[1].open("cpu")(unit)
