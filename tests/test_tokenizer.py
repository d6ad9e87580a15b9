"""The tokenizer: transformers' ids, offsets into the original text, truncation that is reported."""

import json
from pathlib import Path

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, refused
from helpers.strings import many_strings


@pytest.mark.parametrize("options", [
    {"lower": True}, {"lower": False}, {"lower": True, "strip_accents": False}, {"lower": False, "strip_accents": True},
    {"lower": True, "split_cjk": False},
], ids=str)  # fmt: skip
def test_ids_equal_transformers(options: dict[str, bool]) -> None:
    ours = Tokenizer.from_pieces(PIECES, **options)
    theirs = transformers.BertTokenizer(
        vocab={piece: i for i, piece in enumerate(PIECES)},
        do_lower_case=options["lower"],
        strip_accents=options.get("strip_accents"),
        tokenize_chinese_chars=options.get("split_cjk", True),
    )
    texts = many_strings()
    assert len(set(texts)) >= 10_000
    expected = theirs(texts)["input_ids"]
    found = [encoding.ids for encoding in ours.batch(texts)]
    assert [(t, f, e) for t, f, e in zip(texts, found, expected, strict=True) if f != e] == []


def test_the_comparison_would_notice_a_wrong_option() -> None:
    texts = many_strings()
    right = [e.ids for e in Tokenizer.from_pieces(PIECES).batch(texts)]
    for wrong in ({"lower": False}, {"strip_accents": False}, {"split_cjk": False}):
        assert [e.ids for e in Tokenizer.from_pieces(PIECES, **wrong).batch(texts)] != right


def test_pairs_equal_transformers(tokenizer: Tokenizer) -> None:
    theirs = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})
    texts = many_strings(600)
    pairs = list(zip(texts, reversed(texts), strict=True))
    expected = theirs([a for a, _ in pairs], [b for _, b in pairs])
    found = tokenizer.batch(pairs)
    assert [e.ids for e in found] == expected["input_ids"]
    assert [e.segments for e in found] == expected["token_type_ids"]


@pytest.mark.parametrize("limit", [5, 8, 13])
def test_cutting_pairs_equals_transformers(tokenizer: Tokenizer, limit: int) -> None:
    theirs = transformers.BertTokenizer(vocab={piece: i for i, piece in enumerate(PIECES)})
    pairs = [
        ("the cat sleeps in the big house", "the dog"),
        ("a cat", "the dog runs to the big tree and sleeps"),
        ("the cat sleeps", "a dog runs"),
    ]
    for a, b in pairs:
        ours = tokenizer(a, b, limit=limit, long="cut")
        expected = theirs(a, b, truncation="longest_first", max_length=limit)
        whole = len(tokenizer(a, b))
        assert len(ours) == min(limit, whole) == len(expected["input_ids"])
        # Both take from the longer; at a tie ours takes from the second, as Google's code does.
        assert abs(sum(ours.segments) - sum(expected["token_type_ids"])) <= 1
        assert ours.cut == max(whole - limit, 0)


def test_cutting_is_googles_rule(tokenizer: Tokenizer) -> None:
    """create_pretraining_data.py: while too long, drop the last token of A if A is longer, else of B."""
    a, b = ["the"] * 9, ["a"] * 6
    for limit in range(5, 19):
        left, right = list(a), list(b)
        while len(left) + len(right) > limit - 3:
            (left if len(left) > len(right) else right).pop()
        encoding = tokenizer(" ".join(a), " ".join(b), limit=limit, long="cut")
        assert encoding.pieces == ["[CLS]", *left, "[SEP]", *right, "[SEP]"]
        assert encoding.cut == 18 - limit


@settings(max_examples=300)
@given(st.text(max_size=60))
def test_offsets_point_into_the_original_text(text: str) -> None:
    tokenizer = Tokenizer.from_pieces(PIECES)
    encoding = tokenizer(text)
    last = 0
    for piece, (start, end), source in zip(encoding.pieces, encoding.offsets, encoding.sources, strict=True):
        if source is None:
            assert (start, end) == (0, 0)
            continue
        assert 0 <= start <= end <= len(text)
        assert start >= last
        last = start
        written = text[start:end]
        if written.isascii() and piece != "[UNK]":
            assert written.lower() == piece.removeprefix("##").lower()


def test_offsets_words_and_sources(tokenizer: Tokenizer) -> None:
    text, pair = "Unbelievable: Paris!", "北京 cafés"
    encoding = tokenizer(text, pair)
    seen = [
        (piece, (text, pair)[source][start:end] if source is not None else None, word, segment)
        for piece, (start, end), word, source, segment in zip(
            encoding.pieces, encoding.offsets, encoding.words, encoding.sources, encoding.segments, strict=True
        )
    ]
    assert seen[:5] == [
        ("[CLS]", None, None, 0),
        ("un", "Un", 0, 0),
        ("##believ", "believ", 0, 0),
        ("##able", "able", 0, 0),
        ("[UNK]", ":", 1, 0),
    ]
    assert ("paris", "Paris", 2, 0) in seen
    assert seen[7:10] == [("[SEP]", None, None, 0), ("北", "北", 0, 1), ("京", "京", 1, 1)]
    word = [written for _, written, number, segment in seen if segment == 1 and number == 2]
    assert "".join(str(part) for part in word) == "cafés"


def test_too_long_is_an_error_that_says_by_how_much(tokenizer: Tokenizer) -> None:
    with refused("too-long", (12, 8)):
        tokenizer.batch(["the cat", "the " * 10], limit=8)
    assert len(tokenizer("the " * 10)) == 12  # without a limit nothing is lost
    with refused("out-of-range", 4):
        tokenizer("the cat", "a dog", limit=4, long="cut")


def test_half_a_character_is_no_crash(tokenizer: Tokenizer) -> None:
    encoding = tokenizer("the \ud83d cat", "a \udc00")
    assert "cat" in encoding.pieces
    assert encoding.offsets[encoding.pieces.index("cat")] == (6, 9)


def test_truncation_and_padding_of_a_file_are_not_ours(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """all-MiniLM-L6-v2's tokenizer.json cuts at 128 tokens and pads to 128."""
    backend = Backend.from_str(tokenizer.backend.to_str())
    backend.enable_truncation(6)
    backend.enable_padding(length=6)
    backend.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert len(loaded("the " * 10)) == 12
    assert len(loaded("the")) == 3
    assert loaded.fingerprint == tokenizer.fingerprint


# ---------------------------------------------------------------------- files


def test_saved_and_loaded_by_us_and_by_them(tmp_path: Path) -> None:
    cased = Tokenizer.from_pieces([*PIECES, "The", "Paris"], lower=False)
    cased.save(tmp_path, 512)
    texts = many_strings(2000)
    expected = [e.ids for e in cased.batch(texts)]
    assert {f.name for f in tmp_path.iterdir()} == {
        "tokenizer.json",
        "vocab.txt",
        "tokenizer_config.json",
        "special_tokens_map.json",
    }
    again = Tokenizer.load(tmp_path)
    assert again.fingerprint == cased.fingerprint
    assert [e.ids for e in again.batch(texts)] == expected
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path, model_type="bert")
    assert theirs(texts)["input_ids"] == expected
    assert theirs.model_max_length == 512
    assert (theirs.mask_token, theirs.pad_token_id) == ("[MASK]", 0)
    (tmp_path / "tokenizer.json").unlink()  # vocab.txt and the settings alone must do
    only_vocab = Tokenizer.load(tmp_path)
    assert [e.ids for e in only_vocab.batch(texts)] == expected
    assert only_vocab.fingerprint == cased.fingerprint


def test_a_vocab_txt_may_begin_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n", encoding="utf-8-sig")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.pieces[0] == tokenizer.roles["pad_token"] == "[PAD]"


def test_a_bare_vocab_txt_tells_its_case(tmp_path: Path) -> None:
    (tmp_path / "lower.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    (tmp_path / "cased.txt").write_text("\r\n".join([*PIECES, "Paris"]) + "\r\n", encoding="utf-8")
    assert "paris" in Tokenizer.load(tmp_path / "lower.txt")("PARIS").pieces
    cased = Tokenizer.load(tmp_path / "cased.txt")
    assert "Paris" in cased("Paris").pieces
    assert cased.size == len(PIECES) + 1


def test_bpe_and_unigram_load(tmp_path: Path) -> None:
    """RoBERTa's and XLM-R's kinds of tokenizer.json: byte-level BPE and Unigram, with <s> </s> around a text."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Backend(
        models.BPE(
            {p: i for i, p in enumerate([*specials, *letters, "th", "the"])},
            [("t", "h"), ("th", "e")],
            unk_token="<unk>",
        )
    )
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    unigram = Backend(
        models.Unigram(
            [*((s, 0.0) for s in specials), ("▁the", -2.0), ("▁", -3.0), ("c", -4.0), ("at", -3.0)], unk_id=3
        )
    )
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    expected = {"BPE": ["<s>", "the", "Ġ", "c", "a", "t", "</s>"], "Unigram": ["<s>", "▁the", "▁", "c", "at", "</s>"]}
    for backend in (bpe, unigram):
        backend.add_special_tokens(specials)
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        folder = tmp_path / type(backend.model).__name__
        folder.mkdir()
        backend.save(str(folder / "tokenizer.json"))
        loaded = Tokenizer.load(folder)
        assert loaded("the cat").pieces == expected[loaded.kind]
        assert loaded.mask == "<mask>"
        assert loaded.roles["cls_token"] == "<s>"
        assert loaded("the", "cat").segments == [0] * len(loaded("the", "cat"))
        cut = loaded("the cat", "the", limit=6, long="cut")
        assert len(cut) == 6
        assert cut.pieces[0] == "<s>"
        assert cut.pieces[-1] == "</s>"
        loaded.save(folder)
        assert Tokenizer.load(folder).fingerprint == loaded.fingerprint
        assert not (folder / "vocab.txt").exists()


def test_fingerprints_tell_tokenizers_apart(tokenizer: Tokenizer) -> None:
    others = [
        Tokenizer.from_pieces(PIECES, lower=False),
        Tokenizer.from_pieces([*PIECES, "new"]),
        Tokenizer.from_pieces(PIECES, split_cjk=False),
    ]
    prints = {t.fingerprint for t in [tokenizer, *others]}
    assert len(prints) == 4
    assert Tokenizer.from_pieces(PIECES).fingerprint == tokenizer.fingerprint


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("tokenizer.json", "{", "damaged-file"),
        ("tokenizer.json", "", "damaged-file"),
        ("vocab.txt", "a\nb\n", "no-piece"),
        ("vocab.txt", b"\xff\xfe\x00", "unreadable-file"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str | bytes, code: str) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(code, "[UNK]" if code == "no-piece" else tmp_path / name):
        Tokenizer.load(tmp_path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with refused("no-tokenizer", tmp_path):
        Tokenizer.load(tmp_path)
    with refused("no-file", tmp_path / "nothing.json"):
        Tokenizer.load(tmp_path / "nothing.json")
    Tokenizer.from_pieces(PIECES).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("[1")
    with refused("not-json", tmp_path / "tokenizer_config.json"):
        Tokenizer.load(tmp_path)


def test_special_names_come_from_the_folder(tmp_path: Path) -> None:
    Tokenizer.from_pieces([*PIECES, "<blank>"]).save(tmp_path)
    settings_file = tmp_path / "special_tokens_map.json"
    settings_file.write_text(json.dumps({"mask_token": {"content": "<blank>", "lstrip": False}}))
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).mask == "<blank>"
