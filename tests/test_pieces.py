"""Long texts are tokenized in pieces, with the tokens of the whole, and in memory that does not grow with them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from bothways.engine.token_ids import TokenIds
from bothways.text import pieces, plain_ids
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, ROBERTA, byte_level
from test_tokenizer import ALPHABETS, FIXED

WORDS = [
    "the",
    "Cat",
    "walking",
    "Paris",
    "北京",
    "中国的首都是北京",
    "naïve",
    "über",
    "don't",
    "1,234.56",
    "[MASK]",
    "C++",
    "x" * 70,
]
SEPARATORS = ["", " ", " ", " ", "  ", "\n", "\u3000", "，", "。", "!!!", " \t"]
WIDE = st.lists(
    st.tuples(
        st.one_of(
            st.sampled_from(WORDS),
            st.sampled_from(FIXED),
            *(st.text(letters, min_size=1, max_size=9) for letters in ALPHABETS.values()),
            st.text(max_size=5),
        ),
        st.sampled_from(SEPARATORS),
    ),
    min_size=1,
    max_size=60,
).map(lambda parts: "".join(word + after for word, after in parts))
"""Texts of every script, with and without spaces between words."""


def wordpiece(**options: Any) -> Tokenizer:
    return Tokenizer.from_pieces(PIECES, **options)


def with_added(words: list[AddedToken]) -> Tokenizer:
    tokenizer = wordpiece()
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.add_tokens(words)
    return tokenizer.with_backend(backend)


def unigram(normalizer: Any, splitter: Any) -> Tokenizer:
    letters = sorted({*"abcdefghijklmnopqrstuvwxyzABC中国北京的。，0123456789!"})
    rows = [
        ("[UNK]", 0.0),
        ("[CLS]", 0.0),
        ("[SEP]", 0.0),
        ("[MASK]", 0.0),
        ("▁", -3.0),
        *((one, -5.0) for one in letters),
    ]
    rows += [("▁the", -2.0), ("▁w", -2.5), ("alking", -3.5), ("▁中", -4.0), ("北京", -4.0), ("at", -3.0), ("▁1", -3.0)]
    backend = Backend(models.Unigram(rows, 0))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    backend.add_special_tokens([AddedToken(name, lstrip=name == "[MASK]") for name in ("[CLS]", "[SEP]", "[MASK]")])
    return Tokenizer(backend)


def bytes_with(**options: Any) -> Tokenizer:
    vocabulary, merges = byte_level(tuple(ROBERTA))
    backend = Backend(models.BPE(vocabulary, merges))
    backend.normalizer, backend.pre_tokenizer = normalizers.NFC(), pre_tokenizers.ByteLevel(**options)
    ends = ("</s>", 2), ("<s>", 0)
    backend.post_processor = processors.RobertaProcessing(*ends, trim_offsets=True, **options)
    backend.add_special_tokens([AddedToken(name, lstrip=name == "<mask>") for name in ROBERTA])
    return Tokenizer(backend)


SPACES = normalizers.Replace(Regex(" {2,}"), " ")
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": wordpiece,
    "wordpiece, cased": lambda: wordpiece(lower=False),
    "wordpiece, accents": lambda: wordpiece(strip_accents=False),
    "wordpiece, no chinese": lambda: wordpiece(split_cjk=False),
    "wordpiece, added": lambda: with_added([AddedToken("C++"), AddedToken("naive"), AddedToken("é!", normalized=True)]),
    "wordpiece, taking spaces": lambda: with_added([AddedToken("京", lstrip=True, rstrip=True), AddedToken("ing", single_word=True)]),
    "bpe": lambda: bytes_with(add_prefix_space=False),
    "bpe, prefix": lambda: bytes_with(add_prefix_space=True),
    "unigram": lambda: unigram(normalizers.Sequence([normalizers.NFKC(), SPACES]), pre_tokenizers.Metaspace()),
    "unigram, strip": lambda: unigram(
        normalizers.Sequence([normalizers.Strip(), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
        pre_tokenizers.Metaspace(prepend_scheme="first"),
    ),
    "unigram, words": lambda: unigram(
        normalizers.Nmt(), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    ),
    "unigram, quotes": lambda: unigram(
        normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFD()]), pre_tokenizers.Metaspace(prepend_scheme="never")
    ),
}  # fmt: skip
MADE = {name: make() for name, make in TOKENIZERS.items()}


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE", 24)
    monkeypatch.setattr(pieces, "_NEAR", (8, 16))
    monkeypatch.setattr(plain_ids, "LONG", 24)


def same_as_whole(tokenizer: Tokenizer, text: str) -> int:
    """Compares a text in pieces with the whole, and returns the number of pieces."""
    whole = tokenizer.raw_batch([text], specials=False)[0]
    found = pieces.whole_ids(TokenIds(tokenizer, False).stream([text], has_offsets=True))
    assert found.ids.tolist() == whole.ids
    assert found.offsets is not None
    assert found.offsets.tolist() == list(map(list, whole.offsets))
    return sum(1 for _ in TokenIds(tokenizer, False).cutter.pieces([text]))


@pytest.mark.parametrize("name", TOKENIZERS)
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=WIDE)
def test_pieces_have_the_tokens_of_the_whole(short_pieces: None, name: str, text: str) -> None:
    same_as_whole(MADE[name], text.encode(errors="replace").decode())


@pytest.mark.parametrize("name", TOKENIZERS)
def test_texts_are_cut(short_pieces: None, name: str) -> None:
    """Else the comparison above would compare the whole with itself."""
    text = " ".join(["the cat walking over C++ [MASK] Paris 1,234.56 don't x!"] * 20)
    assert same_as_whole(MADE[name], text) > 20
