"""ColBERT folders: vectors and scores are those of sentence-transformers' MultiVectorEncoder."""

import json
import logging
import random
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from sentence_transformers import MultiVectorEncoder

from bothways.model.attention import Backend, choose
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.encode import encode
from bothways.predict.late_interaction import LateInteraction
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, TINY, make_loud, refused
from helpers.cli import Run
from helpers.tasks import LIMIT

QUERIES = ["the capital of china?", "中国的首都是", "who walks, and who talks!"]
DOCUMENTS = [
    "beijing is the capital of china.",
    "巴黎是法国的首都，北京是中国的首都。",
    "the black cat sleeps in the big house",
    "unbelievable!",
    "a dog runs - and - runs",
    "猫 and 狗",
]
PAIRED = [(query, text) for query in QUERIES for text in DOCUMENTS]
LONG = "the cat runs in the big house of paris, " * 8 + "beijing is the capital of china"
LONG_QUERY = "the cat runs in the big house of paris and sleeps. " * 4


@pytest.fixture
def tokenizer() -> Tokenizer:
    more = [mark for mark in string.punctuation if mark not in PIECES]
    return Tokenizer.from_pieces([*PIECES, "[unused0]", "[unused1]", *more])


def stanford(folder: Path, tokenizer: Tokenizer, metadata: dict[str, Any] | None = None, file: str = "safe") -> Path:
    """A folder as Stanford's ColBERT publishes it: linear.weight beside the tensors of BERT."""
    config = transformers.BertConfig(
        vocab_size=tokenizer.size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=96,
    )
    model = transformers.BertModel(config)
    make_loud(model)
    model.save_pretrained(folder)
    weights = {f"bert.{name}": tensor for name, tensor in model.state_dict().items()}
    weights["linear.weight"] = torch.randn(16, 32, generator=torch.Generator().manual_seed(1))
    (folder / "model.safetensors").unlink()
    if file == "safe":
        safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        torch.save(weights, folder / "pytorch_model.bin")
    raw = json.loads((folder / "config.json").read_text()) | {"architectures": ["HF_ColBERT"]}
    (folder / "config.json").write_text(json.dumps(raw))
    tokenizer.save(folder, 96)
    if metadata is not None:
        (folder / "artifact.metadata").write_text(json.dumps(metadata))
    return folder


def judge(folder: Path) -> MultiVectorEncoder:
    return MultiVectorEncoder(str(folder), device="cpu")


def ours(folder: Path, **options: Any) -> LateInteraction:
    return LateInteraction(folder, device="cpu", dtype="fp32", **options)


def assert_same(folder: Path, **options: Any) -> None:
    """The vectors of all tokens, and the scores of all pairs."""
    theirs, mine = judge(folder), ours(folder, **options)
    queries, documents = theirs.encode_query(QUERIES), theirs.encode_document(DOCUMENTS)
    for texts, side, expected in ((QUERIES, "query", queries), (DOCUMENTS, "document", documents)):
        (found,) = mine.vectors(texts, side)  # type: ignore[arg-type]
        assert found[1].tolist() == [len(one) for one in expected]
        assert found[0] == pytest.approx(torch.cat([one.cpu() for one in expected]).numpy(), abs=LIMIT)
    scores = theirs.similarity(queries, documents).flatten().numpy()
    assert mine.scores(PAIRED) == pytest.approx(scores, rel=LIMIT, abs=LIMIT)
    assert np.ptp(scores) > 0.03
    hits = mine.rank(QUERIES[1], DOCUMENTS, top=4)
    own = scores[len(DOCUMENTS) : 2 * len(DOCUMENTS)]
    assert [hit.index for hit in hits] == np.argsort(-own)[:4].tolist()
    assert [hit.text for hit in hits] == [DOCUMENTS[hit.index] for hit in hits]


METADATA: dict[str, dict[str, Any] | None] = {
    "no metadata": None,
    "colbertv2": {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 32, "doc_maxlen": 60},
    "swapped markers": {"query_token_id": "[unused1]", "doc_token_id": "[unused0]"},
    "attended masks": {"attend_to_mask_tokens": True, "query_maxlen": 24},
    "punctuation": {"mask_punctuation": False},
}


@pytest.mark.parametrize("name", METADATA)
def test_a_folder_of_stanford(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert_same(stanford(tmp_path, tokenizer, METADATA[name], "bin" if name == "colbertv2" else "safe"))


def test_what_a_query_and_a_document_are(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Queries have 32 vectors, documents lose their punctuation, and vectors have the length 1."""
    mine = ours(stanford(tmp_path, tokenizer))
    ((vectors, lengths),) = mine.vectors(["the cat", "a"], "query")
    assert lengths.tolist() == [32, 32]
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=LIMIT)
    ((_, lengths),) = mine.vectors(["the cat.", "a, !"], "document")
    assert lengths.tolist() == [5, 4]  # [CLS] [unused1] … [SEP]


EXPANSIONS: dict[str, Any] = {
    "none": None,
    "fixed": {"strategy": "fixed", "length": 18},
    "min": {"strategy": "min", "length": 6, "attend": False},
    "attended": {"strategy": "min", "length": 16, "attend": True, "token": "cat"},
}


@pytest.mark.parametrize("name", EXPANSIONS)
def test_a_folder_of_sentence_transformers(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    theirs = judge(stanford(tmp_path / "start", tokenizer))
    theirs[0].query_expansion = EXPANSIONS[name]
    if name == "none":
        theirs.prompts = {"query": "the cat: ", "document": ""}
    if name == "min":
        theirs.similarity_fn_name = "meanmaxsim"
        theirs[2].skiplist_tasks = ["query", "document"]
    theirs.save_pretrained(str(tmp_path / "theirs"))
    assert_same(tmp_path / "theirs")


def pylate(folder: Path, tokenizer: Tokenizer, **settings: Any) -> Path:
    """A folder as PyLate writes it: the Transformer and Dense only, and its settings beside the prompts."""
    judge(stanford(folder / "start", tokenizer)).save_pretrained(str(folder / "pylate"))
    place = folder / "pylate"
    listed = json.loads((place / "modules.json").read_text())[:2]
    listed[1] |= {"type": "pylate.models.Dense.Dense"}
    (place / "modules.json").write_text(json.dumps(listed))
    (place / "sentence_bert_config.json").write_text("{}")
    dense = json.loads((place / "1_Dense" / "config.json").read_text())
    names = ("module_input_name", "module_output_name")
    (place / "1_Dense" / "config.json").write_text(json.dumps({k: v for k, v in dense.items() if k not in names}))
    raw = {"model_type": "ColBERT", "prompts": {}, "query_prefix": "[unused0]", "document_prefix": "[unused1]"}
    (place / "config_sentence_transformers.json").write_text(json.dumps(raw | settings))
    tokenizer.save(place, 96)
    return place


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"query_length": 20, "document_length": 40, "skiplist_words": ["!", "cat"], "attend_to_expansion_tokens": True},
        {"query_prefix": "[Q] ", "document_prefix": "[D] ", "do_query_expansion": False},
        {"prompts": {"query": "[unused0]the ", "document": ""}},
    ],
    ids=["plain", "settings", "unknown markers", "a prompt"],
)
def test_a_folder_of_pylate(settings: dict[str, Any], tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert_same(pylate(tmp_path, tokenizer, **settings))


def test_a_score_does_not_depend_on_the_others(tokenizer: Tokenizer, tmp_path: Path) -> None:
    mine = ours(stanford(tmp_path, tokenizer))
    alone = np.concatenate([mine.scores([pair]) for pair in PAIRED])
    order = random.Random(1).sample(range(len(PAIRED)), len(PAIRED))
    assert mine.scores([PAIRED[i] for i in order]) == pytest.approx(alone[order], abs=LIMIT)
    assert mine.scores([]).shape == (0,)


def test_many_pairs_are_scored_some_at_a_time(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ours(stanford(tmp_path, tokenizer))
    whole = mine.scores(PAIRED)
    monkeypatch.setattr("bothways.predict.late_interaction._PAIRS", 4)
    assert mine.scores(iter(PAIRED)) == pytest.approx(whole, abs=LIMIT)


def test_every_token_of_a_long_document_counts(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """In windows, each with [CLS] and the marker; of these, the first ones count."""
    folder = stanford(tmp_path, tokenizer, {"doc_maxlen": 40})
    mine = ours(folder)
    ((vectors, lengths),) = mine.vectors([LONG, DOCUMENTS[0]], "document")
    pieces = tokenizer(LONG).pieces
    assert lengths[0] == len([piece for piece in pieces if piece not in string.punctuation]) + 1
    assert mine.tally.in_windows == 1
    tail = ours(folder).scores([(QUERIES[0], DOCUMENTS[0])])
    assert len(vectors) == lengths.sum()
    assert mine.scores([(QUERIES[0], LONG)])[0] > 0.5 * tail[0]


def test_cutting_is_sentence_transformers_and_is_said(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = stanford(tmp_path, tokenizer, {"doc_maxlen": 40})
    theirs = judge(folder)
    with caplog.at_level(logging.ERROR):
        expected = theirs.similarity(theirs.encode_query([LONG_QUERY]), theirs.encode_document([LONG]))
    with pytest.warns(UserWarning, match="2 texts cut"):
        found = ours(folder, long="cut").scores([(LONG_QUERY, LONG)])
    assert found[0] == pytest.approx(float(expected), rel=LIMIT)
    with refused("too-long"):
        ours(folder, long="error").scores([(QUERIES[0], LONG)])
    with refused("too-long"):
        ours(folder, long="error").scores([(LONG_QUERY, DOCUMENTS[0])])


def test_a_long_query_is_kept_whole(tokenizer: Tokenizer, tmp_path: Path) -> None:
    mine = ours(stanford(tmp_path, tokenizer))
    ((_, lengths),) = mine.vectors([LONG_QUERY], "query")
    assert lengths.tolist() == [len(tokenizer(LONG_QUERY)) + 1]
    with refused("too-long"):
        mine.scores([(LONG * 2, DOCUMENTS[0])])


@pytest.mark.parametrize("backend", ["reference", "dense"])
@pytest.mark.parametrize("family", ["bert", "deberta-v2", "modernbert", "mpnet"])
def test_tokens_that_are_not_attended_to_change_nothing(family: str, backend: Backend) -> None:
    """The states of the others are those of a sequence without them, wherever positions come from."""
    shape = FAMILIES[family].fresh(TINY)
    encoder = Model.new(ModelConfig(replace(shape, convolution=0), (), family=family)).eval().encoder
    make_loud(encoder)
    encoder.backend = backend
    ids = [[5, 6, 7, 8, 9, 10], [11, 12, 13, 14]]
    batch = Batch.pack(ids)
    attended = torch.tensor([True] * 4 + [False] * 2 + [True] * 3 + [False])
    with torch.no_grad():
        found = encoder(replace(batch, attended=attended))[attended]
        alone = encoder(Batch.pack([ids[0][:4], ids[1][:3]]))
        other = encoder(batch)[attended]
    assert torch.allclose(found, alone, atol=1e-4)
    assert not torch.allclose(other, alone, atol=1e-2)


@pytest.mark.parametrize("name", ["attended masks", "punctuation"])
def test_a_copy_of_a_colbert(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Saved as a MultiVectorEncoder, it gives the same scores here and there."""
    folder = stanford(tmp_path / "colbert", tokenizer, METADATA[name])
    save(load(folder), tmp_path / "copy")
    assert_same(tmp_path / "copy")
    expected = ours(folder).scores([*PAIRED, (QUERIES[0], LONG)])
    assert ours(tmp_path / "copy").scores([*PAIRED, (QUERIES[0], LONG)]) == pytest.approx(expected, abs=LIMIT)
    save(load(tmp_path / "copy"), tmp_path / "again")
    assert ours(tmp_path / "again").scores(PAIRED) == pytest.approx(expected[:-1], abs=LIMIT)


def test_a_copy_of_pylate(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = pylate(tmp_path, tokenizer, query_length=20, document_length=40, skiplist_words=["!", "cat"])
    save(load(folder), tmp_path / "copy")
    assert_same(tmp_path / "copy")


def test_a_smaller_vocabulary(tokenizer: Tokenizer, tmp_path: Path, run: Run) -> None:
    """It keeps the projection, the markers and the mask."""
    folder, text = stanford(tmp_path / "colbert", tokenizer), tmp_path / "texts.txt"
    text.write_text("\n".join([*QUERIES, *DOCUMENTS]), encoding="utf-8")
    done = run("vocab", "shrink", folder, "--from", text, "--out", tmp_path / "small")
    assert done.returncode == 0, done.stderr
    small = load(tmp_path / "small")
    assert small.config.encoder.vocab_size < tokenizer.size
    found = LateInteraction(small).scores(PAIRED)
    assert found == pytest.approx(ours(folder).scores(PAIRED), abs=LIMIT)
    facts = json.loads(run("info", folder, "--json").stdout)
    assert facts["parameters"] == sum(facts["parameters_by_part"].values())
    assert any("rerank" in ability for ability in facts["can"])


def test_a_backend_without_biases_is_not_chosen_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flash attention has no bias, which hides the tokens that are not attended to."""
    seen: list[bool] = []

    def watched(wanted: Backend, *, bias: bool, **more: Any) -> Backend:
        seen.append(bias)
        return choose(wanted, bias=bias, **more)

    monkeypatch.setattr("bothways.model.encoder.choose", watched)
    encoder, batch = Model.new(ModelConfig(TINY, ())).eval().encoder, Batch.pack([[5, 6, 7]])
    encoder(batch)
    encoder(replace(batch, attended=torch.tensor([True, True, False])))
    assert seen == [False, True]


def test_other_models_are_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    with refused("not-a-colbert"):
        LateInteraction(Model.new(ModelConfig(replace(TINY, vocab_size=tokenizer.size), ()), tokenizer))
    folder = stanford(tmp_path / "colbert", tokenizer)
    with refused("late-interaction", folder):
        encode(["the cat"], folder)
    assert encode(["the cat"], folder, pool="mean").shape == (1, 32)
    theirs = judge(folder)
    theirs.save_pretrained(str(tmp_path / "theirs"))
    mask = tmp_path / "theirs" / "2_MultiVectorMask" / "config.json"
    mask.write_text(json.dumps(json.loads(mask.read_text()) | {"keep_only_token_ids": [3]}))
    with refused("unsupported-modules", "MultiVectorMask"):
        ours(tmp_path / "theirs")


def test_a_projection_of_another_width_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    folder = stanford(tmp_path, tokenizer)
    file = folder / "model.safetensors"
    weights = safetensors.torch.load_file(file) | {"linear.weight": torch.zeros(8, 24)}
    safetensors.torch.save_file(weights, file, metadata={"format": "pt"})
    with refused("shape-mismatch", (24, 32)):
        ours(folder)


def test_the_command_opens_a_colbert(tokenizer: Tokenizer, tmp_path: Path, run: Run) -> None:
    folder, file = stanford(tmp_path / "colbert", tokenizer), tmp_path / "documents.txt"
    file.write_text("\n".join(DOCUMENTS), encoding="utf-8")
    done = run("rerank", QUERIES[1], file, "--model", folder, "--dtype", "fp32", "--top", 3, "--json")
    assert done.returncode == 0, done.stderr
    expected = ours(folder).rank(QUERIES[1], DOCUMENTS, top=3)
    assert [one["index"] for one in json.loads(done.stdout)] == [hit.index for hit in expected]
