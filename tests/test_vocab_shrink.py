"""Fewer pieces: texts made of those that stay are cut as before and give the same states, under new ids."""

import json
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, processors

from bothways.cli import main
from bothways.model.box import boxed
from bothways.model.checkpoint import save
from bothways.model.config import Learned, ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.readable import check_readable
from bothways.model.vocabulary import Shrunk, extend_vocabulary, shrink_vocabulary
from bothways.text.fewer_pieces import choose_pieces, count_pieces, keep_pieces
from bothways.text.new_words import add_words
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, TEXT, TINY, families_with, judge, model_of, refused, tokenizer_of

KINDS = {
    "WordPiece": "bert",
    "BPE": "roberta",
    "Unigram": "xlm-roberta",
    "Unigram, lower": "albert",
    "CamemBERT": "camembert",
}
USED = ["The houses of Paris.", "北京是猫", "unbelievable insulin, walking", "the corona viruses"]
WORDS = sorted(
    {word for line in TEXT for word in line.split()}
    | {"北京", "猫", "首都", "xyz", "Zebra", "é", "😀", "virusing", "<s>", "[MASK]"}
)
TEXTS = st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", " "])), max_size=9).map(
    lambda parts: "".join(part + space for part, space in parts)
)


def states(model: Model, texts: list[str]) -> torch.Tensor:
    assert model.tokenizer is not None
    with torch.no_grad():
        found: torch.Tensor = model.encoder(model.batch(model.tokenizer.batch(texts)))
    return found


@cache
def smaller(family: str) -> tuple[Tokenizer, Tokenizer, list[int]]:
    before = tokenizer_of(family)
    counts = np.zeros(before.size, np.int64)
    for encoding in before.batch(USED):
        counts += np.bincount(encoding.ids, minlength=before.size)
    kept = choose_pieces(before, counts)
    return before, keep_pieces(before, kept), kept


@pytest.mark.parametrize("name", KINDS)
def test_a_text_of_pieces_that_stayed_is_cut_as_before(name: str) -> None:
    before, after, kept = smaller(KINDS[name])
    assert before.special_ids <= set(kept)
    assert len(kept) < before.size
    place = {old: new for new, old in enumerate(kept)}
    unknown = before.id(before.roles["unk_token"])
    seen = 0

    @settings(max_examples=200, derandomize=True)  # so that enough texts are of such pieces
    @given(TEXTS)
    def check(text: str) -> None:
        nonlocal seen
        old, new = before(text), after(text)
        # Of an unknown word WordPiece does not tell where it got stuck: without a piece it may find a way.
        if place.keys() >= set(old.ids) and not (name == "WordPiece" and unknown in old.ids):
            seen += 1
            assert (old.pieces, old.offsets, old.words) == (new.pieces, new.offsets, new.words)
            assert new.ids == [place[i] for i in old.ids]
        if unknown not in old.ids:
            assert after.id(after.roles["unk_token"]) not in new.ids

    check()
    assert seen > 10
    for line in USED:
        assert after(line).pieces == before(line).pieces


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from(sorted({word for line in TEXT for word in line.split()})), min_size=1, max_size=6),
    st.data(),
)
def test_merges_stay_with_the_pieces_they_make(words: list[str], data: st.DataObject) -> None:
    """Any selection of texts, any BPE: what was merged on the way is kept, used by itself or not."""
    before = tokenizer_of(data.draw(st.sampled_from(["roberta", "deberta"])))
    text = " ".join(words)
    counts = np.bincount(before(text).ids, minlength=before.size)
    kept = choose_pieces(before, counts)
    after = keep_pieces(before, kept)
    assert after(text).pieces == before(text).pieces
    merges = json.loads(after.backend.to_str())["model"]["merges"]
    made = {"".join(pair) for pair in merges}
    assert {piece for piece in after.pieces if len(piece) > 1} - set(after.roles.values()) == made


@pytest.mark.parametrize("family", families_with("masked"))
def test_every_family_shrinks_and_transformers_agrees(family: str, tmp_path: Path) -> None:
    save(model_of(family), tmp_path / "old")
    model = load(tmp_path / "old")
    (tmp_path / "a.txt").write_text("\n".join(USED), encoding="utf-8")
    found = shrink_vocabulary(model, [tmp_path / "a.txt"])
    new, kept = found.model, list(found.kept)
    assert found.covered == 1
    assert found.rows == (tokenizer_of(family).size, len(kept))
    assert len(kept) < found.rows[0]
    assert torch.equal(states(new, USED), states(model, USED))
    with torch.no_grad():
        old_logits, logits = (some.masked(states(some, USED)) for some in (model, new))
    assert float((logits - old_logits[:, kept]).abs().max()) <= 1e-6 * float(old_logits.abs().max())
    lost = found.parameters[0] - found.parameters[1]
    by_piece = [p for p in model.parameters() if len(p) == found.rows[0]]  # the table, a bias, an untied matrix
    assert lost == sum(p[0].numel() for p in by_piece) * (found.rows[0] - len(kept))
    assert found.megabytes[0] - found.megabytes[1] == pytest.approx(lost * 4 / 1e6)
    save(new, tmp_path / "new")
    again = load(tmp_path / "new")
    assert again.tokenizer is not None
    assert torch.equal(states(again, USED), states(model, USED))
    config = json.loads((tmp_path / "new" / "config.json").read_text())
    assert config["vocab_size"] == len(kept)
    counts_from_padding = isinstance(new.config.encoder.positions, Learned) and new.config.encoder.positions.offset
    assert config["pad_token_id"] == again.tokenizer.id(again.tokenizer.roles["pad_token"]) or counts_from_padding
    texts = [*USED, "something quite different: 日本, viruses!"]
    ids, outputs = judge(tmp_path / "new", texts)
    assert ids == [encoding.ids for encoding in again.tokenizer.batch(texts)]
    for text, expected in zip(texts, outputs, strict=True):
        with torch.no_grad():
            ours = again.masked(states(again, [text]))
        assert float((ours - expected).abs().max()) <= 1e-5 * max(1, float(expected.abs().max()))


def shrunk(tmp_path: Path, model: Model, minimum: int = 1, count: int | None = None) -> Shrunk:
    (tmp_path / "text.txt").write_text("\n".join(USED), encoding="utf-8")
    return shrink_vocabulary(model, [tmp_path / "text.txt"], minimum=minimum, count=count)


def test_the_most_used_pieces_stay(tmp_path: Path) -> None:
    model = model_of("bert")
    tokenizer = tokenizer_of("bert")
    shrunk(tmp_path, model)  # which writes the text
    counts = count_pieces([tmp_path / "text.txt"], tokenizer)
    assert int(counts.sum()) == sum(len(tokenizer(line)) - 2 for line in USED)
    twice = shrunk(tmp_path, model, minimum=2)
    assert twice.model.tokenizer is not None
    assert "the" in twice.model.tokenizer.pieces
    assert "able" not in twice.model.tokenizer.pieces
    assert twice.covered == pytest.approx(counts[list(twice.kept)].sum() / counts.sum())
    assert twice.covered < 1
    least = len(shrunk(tmp_path, model, minimum=1000).kept)
    one = shrunk(tmp_path, model, count=least + 1)
    assert len(one.kept) == least + 1
    assert one.model.tokenizer is not None
    assert "the" in one.model.tokenizer.pieces  # used twice, all others of several letters once
    with refused("out-of-range", names=f"{least - 1}.*{least}"):
        shrunk(tmp_path, model, count=least - 1)


def test_single_characters_and_specials_stay_and_spare_rows_go(tmp_path: Path) -> None:
    found = shrunk(tmp_path, model_of("bert"), minimum=1000).model.tokenizer
    assert found is not None
    expected = [
        p for p in PIECES if len(p.removeprefix("##")) == 1 or p in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    ]
    assert [piece for piece in found.pieces if piece not in ("😀",)] == [piece for piece in expected if piece != "😀"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "xyz", "##bb", "abb"]
    odd = Tokenizer.from_pieces(pieces)  # nothing but xyz spells an x
    assert keep_pieces(odd, choose_pieces(odd, np.eye(9, dtype=np.int64)[4])).pieces == pieces[:7]


def test_ids_in_config_json_follow_and_roberta_keeps_the_row_of_its_padding(tmp_path: Path) -> None:
    model = model_of("roberta")
    tokenizer = tokenizer_of("roberta")
    named: dict[str, object] = {
        "bos_token_id": 0,
        "eos_token_id": 2,
        "mask_token_id": 4,
        "odd_token_id": tokenizer.size - 1,
        "far_token_id": 10**6,
    }
    model.config = replace(model.config, hf_config=named)
    found = shrunk(tmp_path, model)
    assert found.model.config.hf_config == {**named, "odd_token_id": found.kept.index(tokenizer.size - 1)}
    bert = model_of("bert")
    bert.config = replace(bert.config, encoder=replace(bert.config.encoder, positions=Learned(48, offset=5)))
    assert shrunk(tmp_path, bert).kept[:5] == (0, 1, 2, 3, 4)


def test_new_words_that_a_text_uses_stay(tmp_path: Path) -> None:
    model = extend_vocabulary(model_of("bert"), ["glucosuria", "北京", "insulin", "coronal"]).model
    found = shrunk(tmp_path, model)
    assert found.model.tokenizer is not None
    assert found.model.tokenizer.pieces[-2:] == ["北京", "insulin"]
    assert torch.equal(states(found.model, USED), states(model, USED))
    again = add_words(found.model.tokenizer, ["coronal"])
    assert again.tokenizer.pieces[-3:] == ["北京", "insulin", "coronal"]


def test_rows_beyond_the_vocabulary_go(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bert")
    model = Model.new(ModelConfig(replace(TINY, vocab_size=tokenizer.size + 9), ("masked",)), tokenizer).eval()
    found = shrunk(tmp_path, model)
    assert found.rows == (tokenizer.size + 9, len(found.kept))
    assert torch.equal(states(found.model, USED), states(model, USED))


def test_marks_around_a_text_follow(tmp_path: Path) -> None:
    """Both ways in which files write them down."""
    plain = Tokenizer.from_pieces(PIECES)
    marks = (("[SEP]", plain.id("[SEP]")), ("[CLS]", plain.id("[CLS]")))
    for post_processor in (
        processors.BertProcessing(*marks),
        processors.Sequence([processors.ByteLevel(), processors.RobertaProcessing(*marks)]),
    ):
        backend = tokenizers.Tokenizer.from_str(plain.backend.to_str())
        backend.post_processor = post_processor
        old = plain.with_backend(backend)
        new = keep_pieces(old, choose_pieces(old, np.zeros(old.size, np.int64)))
        assert new("a", "b").pieces == old("a", "b").pieces
        assert new("a").ids == [new.id(piece) for piece in ("[CLS]", "a", "[SEP]")] != old("a").ids


def test_a_smaller_vocabulary_reads_the_same_writing_systems(tmp_path: Path) -> None:
    """The English model keeps all single characters, thousands of which are Chinese, and few English words."""
    whole = Tokenizer.load(boxed("en"))
    (tmp_path / "text.txt").write_text("The haircut is okay.\n", encoding="utf-8")
    kept = choose_pieces(whole, count_pieces([tmp_path / "text.txt"], whole))
    assert len(kept) > 1000
    keep_pieces(whole, kept).save(tmp_path)
    smaller = Tokenizer.load(tmp_path)
    assert "Latin" in smaller.scripts
    with warnings.catch_warnings(action="error"):
        check_readable(["The haircut is okay."], smaller)


def test_what_an_unknown_character_costs_stays() -> None:
    """Unigram reckons it from the lowest score of all: without zz, the path over <unk> would win."""
    vocabulary = [("<unk>", 0.0), ("a", -1.0), ("b", -1.0), ("z", -1.0), ("zz", -50.0), ("aXb", -20.0), ("ab", -2.5)]
    old = Tokenizer(tokenizers.Tokenizer(models.Unigram(vocabulary, unk_id=0)))
    new = keep_pieces(old, choose_pieces(old, np.zeros(7, np.int64)))
    assert new.pieces == [piece for piece in old.pieces if piece != "ab"]
    assert new("aXb").pieces == old("aXb").pieces == ["aXb"]


def test_bad_requests_get_one_sentence(tmp_path: Path) -> None:
    level = Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")))
    with refused("unsupported-tokenizer", names="WordLevel"):
        choose_pieces(level, np.ones(2, np.int64))
    with refused("out-of-range", names="0"):
        shrunk(tmp_path, model_of("bert"), minimum=0)
    (tmp_path / "empty.txt").write_text("\n")
    with refused("no-text", names=r"empty\.txt"):
        shrink_vocabulary(model_of("bert"), [tmp_path / "empty.txt"])


def test_the_command(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("\n".join(USED), encoding="utf-8")
    results = []
    for more in ((), ("--json",), ("--keep-count", "1")):
        named = ("vocab", "shrink", model_folder, "--from", tmp_path / "a.txt", "--out", tmp_path / "new", *more)
        monkeypatch.setattr(sys, "argv", ["bothways", *map(str, named)])
        with pytest.raises(SystemExit) as stop:
            main()
        results.append((stop.value.code, *capfd.readouterr()))
    assert results[0][0] in (0, None), results[0]
    assert "100.00%" in results[0][2]
    report = json.loads(results[1][1])
    for key in ("rows_before", "rows_after", "parameters_after"):
        assert f"{report[key]:,}" in results[0][1]
    assert report["covered"] == 1
    assert report["rows_before"] == len(PIECES)
    assert report["rows_after"] == load(tmp_path / "new").config.encoder.vocab_size < len(PIECES)
    assert report["parameters_after"] < report["parameters_before"]
    assert results[2][0] == 1
    assert results[2][2].startswith("bothways: ")
    assert results[2][2].count("\n") == 1
