"""Outputs that are no plain files, texts that show nothing, long words, tiny runs, and what finetune says first."""

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways import atomic
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import finetune_recipe
from bothways.text import train_vocab
from bothways.text.same_text import is_blank
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings, lr_factor
from helpers import refused


def write(path: Path, text: str) -> None:
    with atomic.new_file(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "far/file").write_text("old", encoding="utf-8")
    for name, target in (("link", "far/file"), ("to nothing", "far/new")):
        (tmp_path / name).symlink_to(target)
        write(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / target).read_text(encoding="utf-8") == "new"
    assert sorted(os.listdir(tmp_path / "far")) == ["file", "new"]


def test_a_pipe_is_refused_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused("not-a-file", tmp_path / "pipe"):
        write(tmp_path / "pipe", "new")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    with refused("not-a-file", Path("/dev/null")):
        write(Path("/dev/null"), "new")


@pytest.mark.parametrize("text", ["", " \n\t", "\u200b", "\ufeff \u2060", "\u200d\u00a0\u3000"])
def test_what_has_no_width_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(f"{text}是{text}")


def test_rows_without_a_visible_text_are_empty(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    rows = [{"text": "a good day", "label": "x"}, {"text": "\u200b\ufeff", "label": "y"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = run("doctor", tmp_path / "a.jsonl", "--json")
    found = {one["what"]: one["severity"] for one in json.loads(done.stdout)["findings"]}
    assert found["empty"] == "error"


# ---------------------------------------------------------------------- vocabularies


@given(st.lists(st.text("ab中,é 😀\u0301", max_size=30), max_size=5))
def test_texts_of_short_words_are_learned_as_they_are(texts: list[str]) -> None:
    shape = Tokenizer.from_pieces(train_vocab.FIRST_PIECES)
    for text in texts:
        assert train_vocab._with_short_words(text, shape.backend) == text


def test_no_word_is_longer_than_a_tokenizer_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Tokenizer.from_pieces(train_vocab.FIRST_PIECES)
    text = "is " + "ab" * 200 + "," + "c" * 101 + " 中文" * 200
    found = train_vocab._with_short_words(text, shape.backend)
    words = [
        word for word, _ in shape.backend.pre_tokenizer.pre_tokenize_str(shape.backend.normalizer.normalize_str(found))
    ]
    assert max(map(len, words)) == 100
    assert "".join(words) == "".join(text.split())


# ---------------------------------------------------------------------- tiny runs


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "constant"])
@pytest.mark.parametrize("steps", [1, 2, 9, 10, 100])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 3.0])
def test_every_run_learns(schedule: str, steps: int, warmup: float) -> None:
    settings = OptimSettings(schedule=schedule, warmup=warmup)  # type: ignore[arg-type]
    rates = [lr_factor(settings, step, step / steps, steps) for step in range(steps)]
    assert max(rates) > 0
    if 0 < warmup * steps < 1:
        assert rates[0] == 1


# ---------------------------------------------------------------------- what finetune says


def told(
    base: Path, folder: Path, train: list[tuple[str, str]], dev: list[tuple[str, str]], *settings: str
) -> list[str]:
    names = {}
    for name, rows in (("train", train), ("dev", dev)):
        names[name] = folder / f"{name}.jsonl"
        lines = (json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
        names[name].write_text("".join(lines), encoding="utf-8")
    table = {
        "model": {"init": str(base)},
        "data": {"train": [str(names["train"])], "dev": [str(names["dev"])] if dev else []},
    }
    said: list[str] = []
    finetune(finetune_recipe(table, ["run.steps=1", *settings]), folder / "run", say=said.append)
    return said


GOOD = [("the white cat sleeps", "a"), ("the black dog runs", "b"), ("a small house", "a"), ("a big tree", "b")]


def test_shared_rows_are_told(base: Path, tmp_path: Path) -> None:
    said = told(base, tmp_path, GOOD, [("The white  cat sleeps!", "a"), ("a dog", "b")])
    assert next(line for line in said if "training data: scores" in line).startswith("1 of the 2 development rows")


def test_one_class_is_refused(base: Path, tmp_path: Path) -> None:
    with refused("one-label", "a"):
        told(base, tmp_path, [(text, "a") for text, _ in GOOD], [])


def test_cut_texts_are_told(base: Path, tmp_path: Path) -> None:
    said = told(base, tmp_path, GOOD, [], "window.length=3", "window.long=cut")
    assert any(line.startswith("all 4 texts are cut") for line in said)
    assert not any("\n" in line for line in said)


def test_good_data_are_not_talked_about(base: Path, tmp_path: Path) -> None:
    said = told(base, tmp_path, GOOD, [("the dog sleeps", "a"), ("one tree", "b")])
    assert not any("development rows" in line or "cut" in line or "nothing to learn" in line for line in said)


def test_labels_that_training_lacks_are_told(base: Path, tmp_path: Path) -> None:
    from bothways.errors import BothwaysError

    with pytest.raises(BothwaysError) as caught:
        told(base, tmp_path, GOOD, [("the dog sleeps", "c")])
    assert "c" in str(caught.value)
