"""New words: each becomes one piece, and a text without them is read as before, to the last bit."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.cli import main
from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.vocabulary import extend_vocabulary
from bothways.predict.fill import fill
from bothways.pretraining.pack import pack
from bothways.pretraining.shards import Corpus, open_packed
from bothways.text.new_words import add_words, find_words, pieces_per_word
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, TINY, families_with, judge, make_loud, model_of, refused, tokenizer_of

WORDS = ["coronal", "glucosuria", "c++", "猫狗", "北京猫", "x-ray"]
KINDS = {"WordPiece": "bert", "BPE": "roberta", "Unigram": "xlm-roberta", "Unigram, lower": "albert"}
PARTS = [
    *WORDS, "Coronal", "coronals", "supercoronal", "GLUCOSURIA", "glucosurias", "C++", "c++11", "c+", "x-rays", "x-ra", "ray",
    "猫", "狗", "北", "京", "北京", "猫 狗", "我去北京猫了", "the", "The", "walking", "unbelievable", "virus", "sun", "é", "0", "_", "[MASK]",
    "<mask>", "😀", "!", ",", "(", ")", "'s", "-", "€", " ", "  ", "\n", "\t",
]  # fmt: skip
TEXTS = st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(["", " "])), max_size=9).map(
    lambda parts: "".join(part + space for part, space in parts)
)
# What it means that a text has a new word: it stands there between spaces or marks; a Chinese one stands there.
SPELT = re.compile(
    "|".join([rf"(?<!\w){re.escape(word)}(?!\w)" for word in WORDS if word.isascii()] + ["猫狗", "北京猫"])
)


def extended(name: str) -> tuple[Tokenizer, Tokenizer]:
    before = tokenizer_of(KINDS[name])
    new = add_words(before, WORDS)
    assert sorted(new.added) == sorted(WORDS)
    return before, new.tokenizer


def logits(model: Model, texts: list[str]) -> torch.Tensor:
    assert model.tokenizer is not None
    with torch.no_grad():
        return model.masked(model.encoder(model.batch(model.tokenizer.batch(texts))))


@pytest.mark.parametrize("name", KINDS)
def test_a_text_without_a_new_word_is_cut_as_before(name: str) -> None:
    before, after = extended(name)
    lowers = name in ("WordPiece", "Unigram, lower")

    @settings(max_examples=100)
    @given(TEXTS)
    def check(text: str) -> None:
        old, new = before(text), after(text)
        if name == "WordPiece":  # to which every Chinese character is a word of its own
            text = re.sub(
                "(?<=[a-z+])(?=[猫狗北京我去了])|(?<=[猫狗北京我去了])(?=[a-z+])", " ", text, flags=re.IGNORECASE
            )
        has_word = bool(SPELT.search(text.lower() if lowers else text))
        assert has_word == any(i >= before.size for i in new.ids)
        if all(i < before.size for i in new.ids):
            assert (old.ids, old.offsets, old.words) == (new.ids, new.offsets, new.words)

    check()


@settings(max_examples=60)
@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=6), max_size=4))
def test_any_text_and_any_words(text: str, words: list[str]) -> None:
    """Whatever is asked for is added, or told of; and the same holds for any text."""
    before = tokenizer_of("bert")
    new = add_words(before, words)
    after = new.tokenizer
    told = [new.added, new.known, new.repeated, new.spaced, new.refused]
    assert sum(map(len, told)) + new.empty == len(words)
    assert after.pieces == [*before.pieces, *new.added]
    for place, word in enumerate(new.added):
        assert after(word).ids[1:-1] == [before.size + place]
    ids = after(text).ids
    assert ids == before(text).ids or max(ids) >= before.size


def test_states_and_logits_stay_to_the_last_bit() -> None:
    model = model_of("bert")
    new = extend_vocabulary(model, WORDS).model

    @settings(max_examples=25)
    @given(st.lists(TEXTS, min_size=1, max_size=4))
    def check(texts: list[str]) -> None:
        assert new.tokenizer is not None
        size = model.config.encoder.vocab_size
        texts = [text[:20] for text in texts]
        if all(i < size for encoding in new.tokenizer.batch(texts) for i in encoding.ids):
            assert torch.equal(logits(new, texts)[:, :size], logits(model, texts))

    check()


@pytest.mark.parametrize("family", families_with("masked"))
def test_every_family_learns_words_and_transformers_agrees(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    save(model, tmp_path / "old")
    result = extend_vocabulary(load(tmp_path / "old"), WORDS)
    new, cuts, first = result.model, result.words.cuts, tokenizer_of(family).size
    assert len(result.words.added) == len(WORDS)
    assert new.tokenizer is not None
    for place, (word, cut) in enumerate(zip(result.words.added, cuts, strict=True)):
        assert len(cut) > 1
        table, old = new.encoder.embeddings.tokens.weight, model.encoder.embeddings.tokens.weight
        torch.testing.assert_close(table[first + place], old[list(cut)].mean(0))
        for name in {"heads.masked.bias", "heads.masked.decoder.weight"} & model.state_dict().keys():
            grown, before = new.state_dict()[name], model.state_dict()[name]
            torch.testing.assert_close(grown[first + place], before[list(cut)].mean(0))
        assert first + place in new.tokenizer(f"the {word} is").ids
    plain = ["the virus is coronals", "北京 is the capital", "supercoronal"]
    assert torch.equal(logits(new, plain)[:, :first], logits(model, plain))
    save(new, tmp_path / "new")
    again = load(tmp_path / "new")
    assert again.tokenizer is not None
    assert again.tokenizer.fingerprint == new.tokenizer.fingerprint != tokenizer_of(family).fingerprint
    assert json.loads((tmp_path / "new" / "config.json").read_text())["vocab_size"] == first + len(WORDS)
    texts = [*plain, "The coronal glucosuria, c++ and x-ray.", "我在北京猫狗了", "coronal"]
    ids, outputs = judge(tmp_path / "new", texts)
    assert ids == [encoding.ids for encoding in again.tokenizer.batch(texts)]
    for text, expected in zip(texts, outputs, strict=True):
        assert float((logits(again, [text]) - expected).abs().max()) <= 1e-5 * max(1, float(expected.abs().max()))


def test_words_are_spelt_as_the_vocabulary_spells() -> None:
    lower, cased = Tokenizer.from_pieces(PIECES), Tokenizer.from_pieces(PIECES, lower=False)
    words = ["Évry", "EVRY", "cat", "", " ", "\u200b", "two words", "猫狗", "[MASK]", "T恤", " padded ", "##odd"]
    new = add_words(lower, words)
    assert new.added == ("evry", "猫狗", "t恤", "padded")
    assert (new.known, new.repeated, new.spaced, new.refused) == (
        ("cat", "[MASK]"),
        ("EVRY",),
        ("two words",),
        ("##odd",),
    )
    assert new.empty == 3
    assert new.tokenizer("ÉVRY évry Evry").pieces[1:-1] == ["evry"] * 3
    assert new.tokenizer.id("t恤") in new.tokenizer("买T恤吧").ids
    assert new.tokenizer.piece(new.tokenizer.id("t恤")) == "t恤"
    cased_words = add_words(cased, ["Évry", "évry"])
    assert cased_words.added == ("Évry", "évry")
    assert cased_words.tokenizer("Évry EVRY").pieces.count("Évry") == 1
    assert new.tokenizer.decode(new.tokenizer("the evry 猫狗").ids) == "the evry 猫狗"


def test_offsets_and_words_of_a_new_piece() -> None:
    tokenizer = add_words(tokenizer_of("bert"), ["evry", "北京"]).tokenizer
    text = "In Évry、我在北京了 evrys"
    encoding = tokenizer(text)
    spans = {piece: text[start:end] for piece, (start, end) in zip(encoding.pieces, encoding.offsets, strict=True)}
    assert (spans["evry"], spans["北京"]) == ("Évry", "北京")
    place = encoding.pieces.index("北京")
    assert len({encoding.words[place + step] for step in (-1, 0, 1)}) == 3
    assert tokenizer.wordless_ids == tokenizer_of("bert").wordless_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_the_space_before_a_new_word_is_no_piece(family: str) -> None:
    """As it is none before other words: byte-level BPE would have a Ġ there, DeBERTa v3 a ▁."""
    before = tokenizer_of(family)
    new = add_words(before, ["glucosuria"])
    encoding = new.tokenizer("the glucosuria is")
    alone, place = before("the").ids[:-1], encoding.ids.index(before.size)
    assert encoding.ids[:place] == alone
    assert encoding.ids[place + 1 :] == before("the is").ids[len(alone) :]


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_a_new_piece_begins_a_word_for_whole_word_masking(family: str, tmp_path: Path) -> None:
    tokenizer = add_words(tokenizer_of(family), ["glucosuria", "北京猫"]).tokenizer
    (tmp_path / "a.txt").write_text("the walking glucosuria walks 我在北京猫了\n", encoding="utf-8")
    pack([tmp_path / "a.txt"], tokenizer, tmp_path / "packed")
    (shards,) = open_packed(tmp_path / "packed").corpora("train").values()
    corpus = Corpus(shards)
    ids, starts = corpus.take(np.array([0]), np.array([corpus.tokens]))
    new = np.flatnonzero(ids >= tokenizer_of(family).size)
    assert len(new) == 2
    assert starts[new].all()
    assert starts[new + 1].all()


def test_spare_rows_of_a_padded_table_are_used_up() -> None:
    tokenizer = tokenizer_of("bert")
    model = Model.new(ModelConfig(replace(TINY, vocab_size=tokenizer.size + 3), ("masked",)), tokenizer)
    make_loud(model)
    two, five = (extend_vocabulary(model, WORDS[:count]).model for count in (2, 5))
    assert (two.config.encoder.vocab_size, five.config.encoder.vocab_size) == (tokenizer.size + 3, tokenizer.size + 5)
    cut = tokenizer("coronal").ids[1:-1]
    table = model.encoder.embeddings.tokens.weight
    torch.testing.assert_close(two.encoder.embeddings.tokens.weight[tokenizer.size], table[cut].mean(0))
    assert torch.equal(two.encoder.embeddings.tokens.weight[-1], table[-1])


def test_a_new_word_can_fill_a_blank() -> None:
    model = model_of("bert")
    new = extend_vocabulary(model, ["北京", "glucosuria"]).model
    with torch.no_grad():
        new.heads["masked"].bias[-2:] += 1000  # type: ignore[index, operator]
    texts = {answer.text for answer in fill("the [MASK].", new, top=2)}
    assert texts == {"the 北京.", "the glucosuria."}


def test_words_are_found_by_what_they_cost(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bert")
    lines = ["Glucose zzz the cat 2024 北京北京北京", "glucose, qqqqqqqqqq zzz the cat", "zzz 20242024 zzz"]
    (tmp_path / "a.txt").write_text("\n".join(lines), encoding="utf-8")
    costs = {
        word: times * (len(tokenizer(word).ids) - 3)
        for word, times in {"glucose": 2, "zzz": 4, "qqqqqqqqqq": 1}.items()
    }
    expected = sorted(costs, key=lambda word: (-costs[word], word))
    assert find_words([tmp_path / "a.txt"], tokenizer, 2) == expected[:2]
    assert find_words([tmp_path / "a.txt"], tokenizer, 9) == expected
    before, after = pieces_per_word([tmp_path / "a.txt"], (tokenizer, add_words(tokenizer, expected).tokenizer))
    pieces = sum(len(tokenizer(line)) - 2 for line in lines)
    words = 4 + 6 + 1 + 4 + 1 + 3 + 1  # the comma is one, and each Chinese character
    assert before == pytest.approx(pieces / 20)
    assert words == 20
    assert after == pytest.approx((pieces - sum(costs.values())) / 20)


def test_words_that_were_given_are_not_found_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("qqqqqqqqqq zzz", encoding="utf-8")
    result = extend_vocabulary(model_of("bert"), ["qqqqqqqqqq"], files=[tmp_path / "a.txt"], count=1)
    assert result.words.added == ("qqqqqqqqqq", "zzz")
    assert result.fertility is not None
    assert result.fertility[1] == 1.0


def test_bad_requests_get_one_sentence(tmp_path: Path) -> None:
    model = model_of("bert")
    (tmp_path / "empty.txt").write_text("\n\n")
    with refused("no-words"):
        extend_vocabulary(model)
    with refused("no-text", 3):
        extend_vocabulary(model, count=3)
    with refused("no-tokenizer"):
        extend_vocabulary(Model.new(ModelConfig(TINY)), ["a"])
    with refused("out-of-range", names="0"):
        extend_vocabulary(model, files=[tmp_path / "empty.txt"], count=0)
    with refused("no-text", names=r"empty\.txt"):
        extend_vocabulary(model, ["a"], files=[tmp_path / "empty.txt"])
    with pytest.raises(BothwaysError):
        extend_vocabulary(model, ["a"], files=["-"])


# ---------------------------------------------------------------------- the command

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> "subprocess.CompletedProcess[str]":
        monkeypatch.setattr(sys, "argv", ["bothways", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, int(stop.value.code or 0), out, err)

    return call


def test_the_command(tmp_path: Path, model_folder: Path, run: Run) -> None:
    (tmp_path / "words.txt").write_text("Glucosuria\nglucosuria\n\n北京猫\ncat\n", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("insulin glucosuria insulin\n我在北京猫了\n", encoding="utf-8")
    named = ("--words", tmp_path / "words.txt", "--from", tmp_path / "notes.txt", "--count", 1)
    told = run("vocab", "extend", model_folder, *named, "--out", tmp_path / "new")
    assert told.returncode == 0, told.stderr
    for part in ("3", "glucosuria, 北京猫, insulin", "cat"):
        assert part in told.stdout
    model = load(tmp_path / "new")
    assert model.tokenizer is not None
    assert model.tokenizer.pieces[-3:] == ["glucosuria", "北京猫", "insulin"]
    assert (tmp_path / "new" / "vocab.txt").read_text(encoding="utf-8").split() == PIECES
    report = json.loads(run("vocab", "extend", model_folder, *named, "--out", tmp_path / "new", "--json").stdout)
    assert report["words"] == ["glucosuria", "北京猫", "insulin"]
    before, after = report["pieces_per_word_before"], report["pieces_per_word_after"]
    assert after < before
    assert f"{before:.3f}" in told.stderr
    assert f"{after:.3f}" in told.stderr
    assert {key: report[key] for key in ("added", "known", "repeated", "spaced", "refused", "empty")} == {
        "added": 3, "known": 1, "repeated": 1, "spaced": 0, "refused": 0, "empty": 1,
    }  # fmt: skip
    nothing = run("vocab", "extend", model_folder, "--out", tmp_path / "none")
    assert nothing.returncode == 1
    assert nothing.stderr.startswith("bothways: ")
    assert nothing.stderr.count("\n") == 1
    assert not (tmp_path / "none").exists()
