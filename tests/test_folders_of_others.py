"""Folders of others, opened and saved again: transformers cuts every text and pair as it did before, whatever class it
takes, and blanks are filled with words as people write them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers
from tokenizers.normalizers import Lowercase
from tokenizers.processors import TemplateProcessing

from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.fill import _joined, _shown, fill
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, TEXT, TINY, hf_tokenizer, model_of, tokenizer_of

NAMES = ("roberta", "deberta", "xlm-roberta", "camembert", "albert", "mpnet", "modernbert", "deberta-v2")
PAIRS = [(TEXT[0], TEXT[1]), ("The cat，sleeps", "x y"), ("北京", "UPPER lower")]


def own_tokenizer(family: str) -> Any:
    if family != "mpnet":
        return hf_tokenizer(family)
    specials = ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"]
    return transformers.MPNetTokenizer(vocab={piece: i for i, piece in enumerate([*specials, *PIECES[5:]])})


def ids_of(folder: Path) -> list[Any]:
    judge = transformers.AutoTokenizer.from_pretrained(folder)
    return [judge(text)["input_ids"] for text in TEXT] + [judge(*pair)["input_ids"] for pair in PAIRS]


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("family", NAMES)
def test_transformers_cuts_texts_as_it_did(family: str, generic: bool, tmp_path: Path) -> None:
    """The family's own tokenizer, and one of no family, which cuts and joins as no family does."""
    own = own_tokenizer(family)
    if generic:
        roles = ("mask_token", "pad_token", "unk_token")
        backend = tokenizers.Tokenizer.from_str(own.backend_tokenizer.to_str())
        backend.normalizer = Lowercase()
        mark = str(own.sep_token)
        backend.post_processor = TemplateProcessing(
            f"{mark} $A", f"{mark} $A {mark} {mark} {mark} $B", [(mark, own.sep_token_id)]
        )
        own = transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, **{role: str(getattr(own, role)) for role in roles}
        )
    shape = FAMILIES[family].fresh(replace(TINY, vocab_size=len(own) + 8))
    save(Model.new(ModelConfig(shape, ("masked",), family=family)), tmp_path / "theirs")
    own.save_pretrained(tmp_path / "theirs")
    before = ids_of(tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    assert ids_of(tmp_path / "ours") == before
    tokenizer = Tokenizer.load(tmp_path / "ours")
    assert [tokenizer(text).ids for text in TEXT] + [tokenizer(*pair).ids for pair in PAIRS] == before


@pytest.mark.parametrize("family", ["roberta", "modernbert", "mpnet", "distilbert"])
def test_a_model_without_segments_is_given_none(family: str, tmp_path: Path) -> None:
    save(model_of(family), tmp_path)
    told = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))
    assert told["model_input_names"] == ["input_ids", "attention_mask"]
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path)("the cat", return_tensors="pt")
    assert transformers.AutoModel.from_pretrained(tmp_path)(**inputs).last_hidden_state.shape[0] == 1


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "deberta", "camembert"])
def test_a_blank_is_filled_with_a_word_as_it_is_written(family: str) -> None:
    """The marks for spaces are no part of it, and what is written before it stays as it is."""
    tokenizer = tokenizer_of(family)
    words = [i for i, piece in enumerate(tokenizer.pieces) if piece.startswith(("Ġ", "▁")) and piece[1:].isalpha()]
    inside = [i for i, piece in enumerate(tokenizer.pieces) if len(piece) > 1 and piece.isascii() and piece.isalpha()]
    assert words
    for token in words[:20]:
        word = tokenizer.pieces[token][1:]
        if not word.isascii():
            continue
        assert _shown(token, tokenizer) == word
        for before, taken in (("The capital is", ""), ("The capital is", " "), ("The capital is ", "")):
            assert _joined(before, taken, token, tokenizer) == f"The capital is {word}"
        assert _joined("", "", token, tokenizer) == word
        assert _joined("is", "\n ", token, tokenizer) == f"is\n {word}"
    for token in inside[:5]:
        piece = tokenizer.pieces[token]
        assert _joined("is", " ", token, tokenizer) == f"is{piece}"  # it is the rest of a word
        assert _joined("is ", "", token, tokenizer) == f"is {piece}"
        assert _joined("is", "\n", token, tokenizer) == f"is\n{piece}"
    model: Model = model_of(family)
    for answer in fill(f"The capital is {tokenizer.mask}.", model, top=5):
        assert not set("Ġ▁") & set(answer.text)
        assert answer.text.startswith("The capital is")
        assert answer.text.endswith(".")
