"""Filling blanks, against transformers and against every possible answer tried one by one."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
import transformers

from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.fill import fill
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, model_of, refused


def test_one_blank_equals_transformers(model_folder: Path) -> None:
    text = "The capital of France is [MASK]."
    theirs = transformers.BertForMaskedLM.from_pretrained(model_folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    grid = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        logits = theirs(**grid).logits[0, grid["input_ids"][0].tolist().index(103)]
    expected = logits.softmax(-1)
    answers = fill(text, model_folder, top=200)
    words = load(model_folder).tokenizer
    assert words is not None
    possible = [i for i in range(TINY.vocab_size) if i not in words.wordless_ids and "##" not in words.piece(i)]
    assert [a.tokens[0] for a in answers] == sorted(possible, key=lambda i: -float(expected[i]))[:200]
    for answer in answers:
        assert answer.score == pytest.approx(float(expected[answer.tokens[0]]), abs=1e-6)


def small_model(words: str = "a b c d e") -> Model:
    """Few enough words that every combination can be tried."""
    tokenizer = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words.split()])
    shape = EncoderConfig(tokenizer.size, 16, 2, 2, 32, positions=Learned(16), init_std=0.7)
    return Model.new(ModelConfig(shape, ("masked",)), tokenizer, seed=3).eval()


@pytest.mark.parametrize("text", ["a [MASK] c [MASK] d", "[MASK] [MASK]", "[MASK] a [MASK] [MASK]"])
def test_several_blanks_are_filled_together(text: str) -> None:
    """The best answer over all combinations by pseudo-likelihood, computed here the slow way."""
    model = small_model()
    tokenizer = model.tokenizer
    assert tokenizer is not None
    ids = tokenizer(text).ids
    places = [i for i, token in enumerate(ids) if token == 4]

    def pseudo(tokens: tuple[int, ...]) -> float:
        total = 0.0
        for place, token in zip(places, tokens, strict=True):
            filled = list(ids)
            for other, value in zip(places, tokens, strict=True):
                filled[other] = value
            filled[place] = 4
            with torch.no_grad():
                states = model.encoder(Batch.pack([filled]))
                total += float(model.masked(states[place : place + 1]).log_softmax(-1)[0, token])
        return total

    every = sorted(itertools.product(range(5, 10), repeat=len(places)), key=pseudo, reverse=True)
    wide = fill(text, model, top=63)  # a beam of 126 holds all 5³ combinations
    assert [a.tokens for a in wide] == every[:63]
    answers = fill(text, model, top=4)
    assert len({a.tokens for a in answers}) == len(answers) == 4
    for answer in answers:
        assert math.log(answer.score) * len(places) == pytest.approx(pseudo(answer.tokens), abs=1e-4)
    assert [a.score for a in answers] == sorted((a.score for a in answers), reverse=True)


def test_the_text_around_the_blank_is_left_as_written() -> None:
    model = small_model("a b ##s")
    text = "A  [MASK]\tB"
    assert {a.words[0]: a.text for a in fill(text, model)} == {"a": "A  a\tB", "b": "A  b\tB"}
    assert {a.words[0]: a.text for a in fill("A[MASK]\tB", model)} == {"##s": "As\tB"}


@pytest.mark.parametrize("takes_the_space", [False, True])
@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "deberta", "deberta-v2"])
def test_so_it_is_whatever_marks_a_tokenizer_puts_on_words(family: str, takes_the_space: bool, tmp_path: Path) -> None:
    """RoBERTa's own mask takes the space before it along, and its pieces may bring one, or none where one is written."""
    model = model_of(family)
    model.tokenizer = tokenizer = stripping(model.require_tokenizer(), takes_the_space, tmp_path)
    around = [("The cat", " sat."), ("The cat ", " sat."), ("Two.\n\n", " sat"), ("", "\tcat"), ("北京 ", "")]
    for before, after in around:
        for answer in fill(f"{before}{tokenizer.mask}{after}", model, top=20):
            word = tokenizer.decode([answer.tokens[0]]).strip()
            allowed = [before + word + after]
            if before == before.rstrip() != "":
                allowed.append(f"{before} {word}{after}")
            elif (
                takes_the_space and "\n" not in before and not tokenizer.piece(answer.tokens[0]).startswith(("Ġ", "▁"))
            ):
                allowed = [before.rstrip() + word + after]  # the rest of the word before
            assert answer.text in allowed


def stripping(tokenizer: Tokenizer, does: bool, folder: Path) -> Tokenizer:
    """The same, whose mask takes the white space before it along, or does not."""
    tokenizer.save(folder, 48)
    said = json.loads((folder / "tokenizer.json").read_text())
    for token in said["added_tokens"]:
        token["lstrip"] = does and token["content"] == tokenizer.mask
    (folder / "tokenizer.json").write_text(json.dumps(said))
    return Tokenizer.load(folder)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            (text, "a b ， 京")
            for text in ("a [MASK]", "[MASK] a", "  [MASK]", "a\n[MASK]", "(a) [MASK]", "京[MASK]", "，[MASK]")
        ),
        *((text, "##s ##t ， 京") for text in ("a[MASK]", "京a[MASK]", "3[MASK]")),
    ],
)
def test_a_word_begins_or_goes_on(text: str, expected: str) -> None:
    """The rest of a word is no answer where one begins, nor a word where one goes on; the others keep their probability."""
    model = small_model("a b ##s ##t ， 京")
    answers = fill(text, model, top=9)
    assert {a.words[0] for a in answers} == set(expected.split())
    assert 0 < sum(a.score for a in answers) < 1


def test_two_blanks_may_be_one_word() -> None:
    model = small_model("a b ##s")
    assert {a.words for a in fill("[MASK][MASK]", model, top=9)} == set(itertools.product("ab", ("a", "b", "##s")))
    assert {a.words for a in fill("[MASK] [MASK]", model, top=9)} == set(itertools.product("ab", "ab"))


def test_several_words_go_where_their_blanks_are() -> None:
    model = small_model("a bcd ##ef")
    for answer in fill("(X[MASK] y [MASK], z", model, top=9):
        first, second = (word.removeprefix("##") for word in answer.words)
        assert answer.text == f"(X{first} y {second}, z"


def test_too_many_answers_for_several_blanks_are_refused() -> None:
    with refused("out-of-range", 100_000):
        fill("[MASK] [MASK]", small_model(), top=100_000)


def test_no_answer_is_a_special_token(model_folder: Path) -> None:
    answers = fill("[MASK] 北京", model_folder, top=1000)
    tokenizer = load(model_folder).require_tokenizer()
    assert len(answers) == TINY.vocab_size - 104 - sum(piece.startswith("##") for piece in tokenizer.pieces)
    assert not any(word.startswith("[") for a in answers for word in a.words)


def test_padded_vocabularies_have_no_answer_in_the_padding(tokenizer: Tokenizer) -> None:
    shape = EncoderConfig(tokenizer.size + 30, 16, 1, 2, 32, positions=Learned(16))
    model = Model.new(ModelConfig(shape, ("masked",)), tokenizer).eval()
    assert max(a.tokens[0] for a in fill("[MASK]", model, top=1000)) < tokenizer.size


def test_what_cannot_be_filled(model_folder: Path, tmp_path: Path, tokenizer: Tokenizer) -> None:
    with refused("no-mask", "The capital of France is Paris."):
        fill("The capital of France is Paris.", model_folder)
    with refused("too-long", names=r"63.*48"):
        fill("the " * 60 + "[MASK]", model_folder)
    with refused("out-of-range", 0):
        fill("[MASK]", model_folder, top=0)
    save(Model.new(ModelConfig(TINY, ("pooler",)), tokenizer), tmp_path / "headless")
    with refused("no-head", "masked"):
        fill("[MASK]", tmp_path / "headless")
    with refused("no-tokenizer"):
        fill("[MASK]", Model.new(ModelConfig(TINY, ("masked",))))
    maskless = Tokenizer.from_pieces(["[UNK]", "[CLS]", "[SEP]", "a"])
    with refused("no-mask-token"):
        fill("[MASK]", Model.new(ModelConfig(TINY, ("masked",)), maskless))


def test_one_text_is_expected(model_folder: Path) -> None:
    with refused("bad-input", 5):
        fill(5, model_folder)  # type: ignore[call-overload]
