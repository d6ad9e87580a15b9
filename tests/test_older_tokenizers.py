"""Tokenizers from before tokenizer.json: SentencePiece's files judged by its own library, merges by transformers."""

import io
import json
import random
import struct
import unicodedata
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import transformers
from transformers import AutoTokenizer

import bothways
from bothways.errors import BothwaysError
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.text.tokenizer import Tokenizer
from helpers import BERT, ROBERTA, TEXT, TINY, byte_level, make_loud, refused

KINDS: dict[str, dict[str, Any]] = {
    "spm.model": {
        "pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3,
        "pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]",
    },
    "spiece.model": {
        "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "user_defined_symbols": ["(", ")", '"', "-", ".", "–", "£", "€"],
    },
    "sentencepiece.bpe.model": {},
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "identity": {"normalization_rule_name": "identity"},
    "all spaces": {"remove_extra_whitespaces": False},
    "no space before": {"add_dummy_prefix": False},
    "over spaces": {"split_by_whitespace": False},
    "bytes": {"byte_fallback": True, "vocab_size": 420},
}
LEARNED = [*TEXT * 5, *["I paid 5, 16, 1,000 and 7 dollars (or £3) — café ＡＢＣ ﬁne"] * 9]


@cache
def trained(name: str, settings: str) -> bytes:
    """Trained once for each name and its further settings."""
    file = io.BytesIO()
    usual = {"vocab_size": 300, "hard_vocab_limit": False, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LEARNED), model_writer=file, **(usual | KINDS[name] | json.loads(settings))
    )
    return file.getvalue()


def write(folder: Path, name: str, said: dict[str, Any] | None = None, **settings: Any) -> Any:
    """The file in its folder, beside what tokenizer_config.json says; the judge that reads it."""
    data = trained(name, json.dumps(settings))
    (folder / name).write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(said or {}))
    return sentencepiece.SentencePieceProcessor(model_proto=data)


def proto(pieces: list[tuple[str, float, int]], kind: int = 1) -> bytes:
    """A file with these pieces, scores and kinds (1 a piece, 2 unknown, 3 control, 5 unused), short ones only."""
    bodies = [
        b"\x0a"
        + bytes([len(piece.encode())])
        + piece.encode()
        + b"\x15"
        + struct.pack("<f", score)
        + bytes([0x18, sort])
        for piece, score, sort in pieces
    ]
    return b"".join(b"\x0a" + bytes([len(body)]) + body for body in bodies) + bytes([0x12, 2, 0x18, kind])


@cache
def odd_texts() -> list[str]:
    draw = random.Random(0)
    odd = ["  ", "\t", "\n", "\u3000", "ＡＢ", "ﬁ", "(", ")", "£", "5,", "é", "e\u0301", "日本", "🙂", "zz", "½"]
    words = [*" ".join(TEXT).split(), *odd]
    made = [draw.choice(["", " "]).join(draw.choices(words, k=draw.randint(0, 12))) for _ in range(200)]
    return [*TEXT[:6], *made]


# ---------------------------------------------------------------------- SentencePiece


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_text_is_cut_as_sentencepiece_cuts_it(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    judge = write(tmp_path, name, {"do_lower_case": False, "keep_accents": True}, **settings)
    tokenizer = Tokenizer.load(tmp_path)
    fairseq = {judge.unk_id(): 3} if name == "sentencepiece.bpe.model" else {}
    for text in odd_texts():
        encoding = tokenizer(text)
        assert encoding.pieces[1:-1] == judge.encode(text, out_type=str), text
        expected = [fairseq.get(i, i + len(fairseq)) for i in judge.encode(text)]
        assert encoding.ids[1:-1] == expected, text


@pytest.mark.parametrize(
    ("name", "pair", "mask"),
    [
        ("spm.model", "[CLS] {0} [SEP] {0} [SEP]", "[MASK]"),
        ("spiece.model", "[CLS] {0} [SEP] {0} [SEP]", "[MASK]"),
        ("sentencepiece.bpe.model", "<s> {0} </s> </s> {0} </s>", "<mask>"),
    ],
)
def test_specials_stand_where_the_family_has_them(tmp_path: Path, name: str, pair: str, mask: str) -> None:
    judge = write(tmp_path, name)
    tokenizer = Tokenizer.load(tmp_path)
    the = judge.encode("the", out_type=str)  # what SentencePiece learns here differs between its versions
    encoding = tokenizer("the", "the")
    assert encoding.pieces == pair.format(" ".join(the)).split()
    n = len(the)
    assert encoding.segments == ([0] * (n + 2) + [1] * (n + 1) if mask == "[MASK]" else [0] * (2 * n + 4))
    assert tokenizer.mask == mask
    assert tokenizer(f"the {mask} the").pieces[1:-1] == [*the, mask, *the]
    last = {
        "spm.model": judge.get_piece_size(),
        "spiece.model": 4,
        "sentencepiece.bpe.model": judge.get_piece_size() + 1,
    }
    assert tokenizer.id(mask) == last[name]
    assert set(tokenizer.roles) == {"pad_token", "unk_token", "cls_token", "sep_token", "mask_token"}


def test_words_have_their_places(tmp_path: Path) -> None:
    write(tmp_path, "spm.model")
    text = "The  cat and\tParis, 北京!"
    encoding = Tokenizer.load(tmp_path)(text)
    marked = [
        (piece.strip("▁"), text[start:end])
        for piece, (start, end) in zip(encoding.pieces, encoding.offsets, strict=True)
        if piece.strip("▁") and piece not in BERT
    ]
    assert "".join(piece for piece, _ in marked) == "ThecatandParis,北京!"
    assert all(piece == place for piece, place in marked)


def test_albert_lowers_and_strips_accents(tmp_path: Path) -> None:
    judge = write(tmp_path, "spiece.model")
    plain = "".join(c for c in unicodedata.normalize("NFKD", "Paris, Café") if not unicodedata.combining(c)).lower()
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer("Paris, Café").pieces[1:-1] == judge.encode(plain, out_type=str)
    assert tokenizer("``a''").pieces == tokenizer('"a"').pieces
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "keep_accents": True}))
    assert Tokenizer.load(tmp_path)("Paris, Café").pieces[1:-1] == judge.encode("Paris, Café", out_type=str)


def test_albert_cuts_the_comma_off_a_number(tmp_path: Path) -> None:
    first = [("<pad>", 0.0, 3), ("<unk>", 0.0, 2), *((name, 0.0, 3) for name in ("[CLS]", "[SEP]", "[MASK]"))]
    data = proto([*first, ("▁", -2.0, 1), ("5", -3.0, 1), (",", -3.0, 1), ("▁5,", -1.0, 1), ("▁a,", -1.0, 1)])
    judge = sentencepiece.SentencePieceProcessor(model_proto=data)
    (tmp_path / "spiece.model").write_bytes(data)
    assert judge.encode("5, a,", out_type=str) == ["▁5,", "▁a,"]
    assert Tokenizer.load(tmp_path)("5, a,").pieces[1:-1] == ["▁", "5", ",", "▁a,"]


def test_decoding_gives_the_text_back(tmp_path: Path) -> None:
    for name, settings in (("spm.model", {}), ("spm.model", SETTINGS["no space before"])):
        judge = write(tmp_path, name, **settings)
        tokenizer = Tokenizer.load(tmp_path)
        for text in ("The cat and Paris, which is big.", "北京 is the capital"):
            assert tokenizer.decode(tokenizer(text).ids) == judge.decode(judge.encode(text)) == text


def test_symbols_of_the_user_stay_whole_and_markers_are_special(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"user_defined_symbols": ["Paris", "北京是"], "control_symbols": ["<topic>"]}
    judge = write(tmp_path, "spm.model", **settings)
    tokenizer = Tokenizer.load(tmp_path)
    for text in ("Parisian cats in Paris", "xParisx 北京是中国的首都"):
        assert tokenizer(text).pieces[1:-1] == judge.encode(text, out_type=str)
    assert judge.piece_to_id("<topic>") in tokenizer.special_ids


def test_camembert_numbers_its_pieces_in_its_own_way(tmp_path: Path) -> None:
    judge = write(tmp_path, "sentencepiece.bpe.model")
    (tmp_path / "config.json").write_text('{"model_type": "camembert"}')
    tokenizer = Tokenizer.load(tmp_path)
    scored = [(judge.id_to_piece(i), judge.get_score(i)) for i in range(judge.get_piece_size())]
    first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"]
    vocabulary = [*((piece, -100.0 * (i == 4)) for i, piece in enumerate(first)), *scored[1:], ("<mask>", 0.0)]
    theirs = transformers.CamembertTokenizer(vocab=vocabulary)
    for text in ["The cat of Paris", "北京 houses"]:
        assert tokenizer(text, text).ids == theirs(text, text)["input_ids"]
    assert tokenizer("a <mask>").ids == theirs("a <mask>")["input_ids"]


@pytest.mark.parametrize("said", [{}, {"do_lower_case": True}, {"split_by_punct": True}])
def test_deberta_may_lower_and_split_at_punctuation(tmp_path: Path, said: dict[str, Any]) -> None:
    judge = write(tmp_path, "spm.model", said)
    text = "The Cats,and Paris"
    expected = judge.encode("the cats,and paris" if "do_lower_case" in said else text, out_type=str)
    if "split_by_punct" in said:
        expected = [p for part in ("The Cats", ",", "and Paris") for p in judge.encode(part, out_type=str)]
    assert Tokenizer.load(tmp_path)(text).pieces[1:-1] == expected


# ---------------------------------------------------------------------- vocab.json and merges.txt


@pytest.mark.parametrize("space", [False, True])
@pytest.mark.parametrize("specials", [ROBERTA, BERT], ids=["roberta", "deberta"])
def test_merges_are_read_as_transformers_reads_them(tmp_path: Path, specials: list[str], space: bool) -> None:
    vocabulary, merges = byte_level(tuple(specials))
    kind = transformers.RobertaTokenizer if specials is ROBERTA else transformers.DebertaTokenizer
    theirs = kind(vocab=vocabulary, merges=merges, add_prefix_space=space)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (tmp_path / "merges.txt").write_text("\r\n".join(lines) + "\r\n", encoding="utf-8", newline="")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": space}))
    for path in (tmp_path, tmp_path / "vocab.json", tmp_path / "merges.txt"):
        tokenizer = Tokenizer.load(path)
        for text in odd_texts()[:50]:
            assert tokenizer(text).ids == theirs(text)["input_ids"], text
    pair, halves = (
        tokenizer("the cat", "the houses"),
        [theirs(text)["input_ids"][1:-1] for text in ("the cat", "the houses")],
    )
    cls, sep = tokenizer.id(specials[0] if specials is ROBERTA else "[CLS]"), tokenizer.id(tokenizer.roles["sep_token"])
    # transformers 5 puts two [SEP] between DeBERTa's texts; DeBERTa itself, one.
    between = [sep, sep] if specials is ROBERTA else [sep]
    assert pair.ids == [cls, *halves[0], *between, *halves[1], sep]
    assert pair.segments == [0] * (len(pair) - len(halves[1]) - 1) + [int(specials is BERT)] * (len(halves[1]) + 1)
    pieces = tokenizer(f"the {tokenizer.mask} cat").pieces
    assert tokenizer.mask in pieces
    assert "Ġ" not in pieces  # the space before a mask is the mask's
    text = "the cat, 北京"
    places = [text[start:end] for start, end in tokenizer(text).offsets[1:-1]]
    assert places[0][0] == "t"
    assert not any(place.startswith(" ") for place in places)


@pytest.mark.parametrize("way", ["added_tokens.json", "tokenizer_config.json", "additional_special_tokens"])
@pytest.mark.parametrize("kind", ["spm.model", "sentencepiece.bpe.model", "vocab.txt", "merges.txt"])
def test_added_words_are_known(tmp_path: Path, kind: str, way: str) -> None:
    """As the folders of fine-tuned models have them; transformers gives the words the next ids."""
    if kind == "vocab.txt":
        (tmp_path / kind).write_text("".join(f"{piece}\n" for piece in [*BERT, "the", "cat", "e", "##1"]))
    elif kind == "merges.txt":
        vocabulary, merges = byte_level(tuple(ROBERTA))
        (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
        (tmp_path / kind).write_text("".join(f"{left} {right}\n" for left, right in merges))
    else:
        write(tmp_path, kind)
    size = Tokenizer.load(tmp_path).size
    if way == "added_tokens.json":
        (tmp_path / way).write_text(json.dumps({"[E1]": size, "glucosuria": size + 1}))
    elif way == "tokenizer_config.json":
        words = {str(size): "[E1]", str(size + 1): "glucosuria"}
        told = {"added_tokens_decoder": {i: {"content": word, "special": word == "[E1]"} for i, word in words.items()}}
        (tmp_path / way).write_text(json.dumps(told))
    else:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({way: ["[E1]", {"content": "glucosuria"}]}))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.size == size + 2
    ids = tokenizer("the [E1] cat glucosuria").ids
    assert (ids.count(size), ids.count(size + 1)) == (1, 1)
    assert (size in tokenizer.special_ids, size + 1 in tokenizer.special_ids) == (
        way != "added_tokens.json",
        way == "additional_special_tokens",
    )


def test_an_added_word_is_special_if_it_is_said_to_be(tmp_path: Path) -> None:
    """Then it is itself alone, and not what the text's normaliser makes of it; other words go by the normaliser."""
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*BERT, "the"]))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": 6, "Glucose": 7}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": ["[E1]"]}))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.size, 6 in tokenizer.special_ids, 7 in tokenizer.special_ids) == (8, True, False)
    assert tokenizer("the [E1] glucose").ids[1:-1] == [5, 6, 7]
    assert 6 not in tokenizer("the [e1]").ids


@pytest.mark.parametrize(
    ("file", "content", "code", "value"),
    [
        ("added_tokens.json", {"[E1]": 99}, "vocabulary-mismatch", ("[E1]", 99)),
        ("added_tokens.json", {"the": 1}, "vocabulary-mismatch", ("the", 1)),
        ("added_tokens.json", ["[E1]"], "damaged-file", None),
        ("tokenizer_config.json", {"additional_special_tokens": "x"}, "bad-setting", "additional_special_tokens"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"6": "x"}}, "bad-setting", "added_tokens_decoder"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": {"content": "y"}}},
            "bad-setting",
            "added_tokens_decoder",
        ),
    ],
)
def test_added_words_that_do_not_fit_are_refused(
    tmp_path: Path, file: str, content: Any, code: str, value: object
) -> None:
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*BERT, "the"]))
    (tmp_path / file).write_text(json.dumps(content))
    with refused(code, tmp_path / file if value is None else value):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "key"), [("spm.model", "do_lower_case"), ("spm.model", "split_by_punct"), ("spiece.model", "keep_accents")]
)
def test_switches_are_true_or_false(tmp_path: Path, name: str, key: str) -> None:
    write(tmp_path, name, {key: "false"})
    with refused("bad-setting", key):
        Tokenizer.load(tmp_path)


# ---------------------------------------------------------------------- whole folders, and what is refused


@pytest.mark.parametrize("name", KINDS)
def test_a_model_opens_with_such_a_file_and_is_saved_with_a_new_one(tmp_path: Path, name: str) -> None:
    family = {"spm.model": "deberta-v2", "spiece.model": "albert", "sentencepiece.bpe.model": "xlm-roberta"}[name]
    (tmp_path / "old").mkdir()
    write(tmp_path / "old", name)
    tokenizer = Tokenizer.load(tmp_path / "old")
    shape = FAMILIES[family].fresh(replace(TINY, layers=2, vocab_size=tokenizer.size))
    made = Model.new(ModelConfig(shape, ("masked",), family=family), tokenizer)
    make_loud(made)
    bothways.save(made, tmp_path / "model")
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / "model" / file).unlink()
    (tmp_path / "model" / name).write_bytes((tmp_path / "old" / name).read_bytes())
    model = bothways.load(tmp_path / "model")
    text = f"The capital of France is {tokenizer.mask}."
    assert bothways.fill(text, model)[0].text
    bothways.save(model, tmp_path / "new")
    assert AutoTokenizer.from_pretrained(tmp_path / "new")(text)["input_ids"] == tokenizer(text).ids


ENDS = [("[UNK]", 0.0, 2), ("[CLS]", 0.0, 3), ("[SEP]", 0.0, 3)]


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("spm.model", b"", "no-specials"),
        ("spm.model", b"version https://git-lfs.github.com/spec/v1\n", "damaged-file"),
        ("spm.model", proto([("[UNK]", 0.0, 2)])[:-5], "damaged-file"),
        ("spm.model", proto(ENDS) + b"\x1a\x06\x12\x04abcd", "damaged-file"),
        ("spm.model", proto(ENDS, kind=2), "unsupported-tokenizer"),
        ("spm.model", proto([("a", 0.0, 1)]), "no-specials"),
        ("spm.model", proto([("a", 0.0, 5), *ENDS]), "unsupported-tokenizer"),
        ("spm.model", proto([("a", 0.0, 1), ("[UNK]", 0.0, 2)]), "no-specials"),
        ("spm.model", proto([("[UNK]", 0.0, 2)]) + b"\x08\x05", "damaged-file"),
        ("spm.model", proto([("[UNK]", 0.0, 2)]) + b"\x0a\x02\x18\x01", "damaged-file"),
        ("spm.model", proto(ENDS) + b"\x12\x03\xc0\x01\x01", "unsupported-tokenizer"),
        ("sentencepiece.bpe.model", proto([("a", 0.0, 1), ("<unk>", 0.0, 2)]), "no-specials"),
        ("merges.txt", b"a b\n", "no-file"),
    ],
)
def test_files_that_do_not_do_are_refused(tmp_path: Path, name: str, data: bytes, code: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BothwaysError) as caught:
        Tokenizer.load(tmp_path)
    value = tmp_path / ("vocab.json" if name == "merges.txt" else name)
    assert (caught.value.code, caught.value.value) == (code, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pieces", "merges", "code", "file"),
    [
        ('["a"]', "", "damaged-file", "vocab.json"),
        ('{"a": "b"}', "", "damaged-file", "vocab.json"),
        ("{", "", "damaged-file", "vocab.json"),
        ('{"<s>": 0, "</s>": 1}', "x yz\n", "vocabulary-mismatch", "merges.txt"),
        ('{"a": 0}', "", "no-specials", "merges.txt"),
        ('{"a": 0, "b": 0}', "", "repeated-id", "vocab.json"),
        ('{"a": 5000000000}', "", "damaged-file", "vocab.json"),
    ],
)
def test_pieces_and_merges_that_do_not_do_are_refused(
    tmp_path: Path, pieces: str, merges: str, code: str, file: str
) -> None:
    (tmp_path / "vocab.json").write_text(pieces)
    (tmp_path / "merges.txt").write_text(merges)
    with pytest.raises(BothwaysError) as caught:
        Tokenizer.load(tmp_path)
    assert (caught.value.code, caught.value.value) == (code, tmp_path / file)
    assert "\n" not in str(caught.value)


def test_half_of_the_files_and_other_names_are_told(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with refused("no-file", tmp_path / "merges.txt"):
        Tokenizer.load(tmp_path / "vocab.json")
    (tmp_path / "my.model").write_bytes(trained("spm.model", "{}"))
    with refused("unknown-file-kind", tmp_path / "my.model"):
        Tokenizer.load(tmp_path / "my.model")
    (tmp_path / "spm.model").write_bytes(trained("sentencepiece.bpe.model", "{}"))
    with refused("no-specials", tmp_path / "spm.model"):
        Tokenizer.load(tmp_path / "spm.model")
