"""Cross-encoders that rank documents, compared with sentence-transformers' CrossEncoder."""

import json
import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder

from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.predict.rerank import Hit, Reranker
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, config_for, make_loud, refused, tokenizer_of
from helpers.cli import Run, is_one_error
from helpers.tasks import LIMIT, SMALL, their_folder

SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "no key": {},
    "sigmoid": {"sentence_transformers": {"activation_fn": SIGMOID}},
    "identity": {"sentence_transformers": {"activation_fn": IDENTITY}},
    "old key": {"sbert_ce_default_activation_function": IDENTITY},
    "a number": {"problem_type": "regression"},
}
QUERIES = ["the capital of china?", "中国的首都是", "who walks"]
DOCUMENTS = [
    "beijing is the capital of china.",
    "巴黎是法国的首都，北京是中国的首都。",
    "the black cat sleeps in the big house",
    "unbelievable!",
    "a dog runs",
    "猫 and 狗",
    "berlin is in germany, and paris is in france.",
]
PAIRED = [(query, text) for query in QUERIES for text in DOCUMENTS]
LONG = "the cat runs in the big house of paris " * 12 + "beijing is the capital of china"


def folder_of(place: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """A folder of transformers with one output, and these further keys."""
    their_folder(
        place,
        tokenizer,
        "BertForSequenceClassification",
        id2label={0: "relevance"},
        label2id={"relevance": 0},
        max_position_embeddings=64,
    )
    file = place / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | config))
    return place


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    return folder_of(tmp_path / "reranker", tokenizer, **ACTIVATIONS["identity"])


def reranker(place: Path, **options: Any) -> Reranker:
    return Reranker(place, device="cpu", dtype="fp32", **options)


def judge(place: Path) -> CrossEncoder:
    return CrossEncoder(str(place), device="cpu")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_scores_and_order_are_those_of_sentence_transformers(name: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    place = folder_of(tmp_path, tokenizer, **ACTIVATIONS[name])
    ours, theirs = reranker(place), judge(place)
    found = ours.scores(PAIRED)
    assert found.dtype == np.float32
    assert found == pytest.approx(theirs.predict(PAIRED), abs=LIMIT)
    assert np.ptp(found) > 0.1, "weights are loud"
    for query in QUERIES:
        hits = ours.rank(query, DOCUMENTS)
        expected = theirs.rank(query, DOCUMENTS, return_documents=True)
        assert [(hit.index, hit.text) for hit in hits] == [(one["corpus_id"], one["text"]) for one in expected]
        assert [hit.score for hit in hits] == pytest.approx([one["score"] for one in expected], abs=LIMIT)


@pytest.mark.parametrize("family", ["xlm-roberta", "electra", "modernbert"])
def test_other_families(family: str, tmp_path: Path) -> None:
    """bge-reranker is an XLM-RoBERTa, which reads pairs without segments."""
    tokenizer = tokenizer_of(family)
    shape = FAMILIES[family].fresh(replace(TINY, vocab_size=tokenizer.size))
    base = Model.new(ModelConfig(shape, (), family=family), tokenizer)
    model = with_task(base, config_for("score"), ("score",))
    make_loud(model)
    save(model, tmp_path / "model")
    assert reranker(tmp_path / "model").scores(PAIRED) == pytest.approx(
        judge(tmp_path / "model").predict(PAIRED), abs=LIMIT
    )


def test_a_folder_that_sentence_transformers_wrote(folder: Path, tmp_path: Path) -> None:
    judge(folder).save_pretrained(str(tmp_path / "theirs"))
    assert (tmp_path / "theirs" / "modules.json").exists()
    assert reranker(tmp_path / "theirs").scores(PAIRED) == pytest.approx(judge(folder).predict(PAIRED), abs=LIMIT)


def test_a_score_does_not_depend_on_the_others(folder: Path) -> None:
    ours = reranker(folder)
    alone = np.concatenate([ours.scores([pair]) for pair in PAIRED])
    order = random.Random(1).sample(range(len(PAIRED)), len(PAIRED))
    assert ours.scores(PAIRED) == pytest.approx(alone, abs=2e-6)
    assert ours.scores([PAIRED[i] for i in order]) == pytest.approx(alone[order], abs=2e-6)


def test_top_and_ties(folder: Path) -> None:
    ours = reranker(folder)
    everything = ours.rank(QUERIES[0], [*DOCUMENTS, *DOCUMENTS])
    assert [hit.index + len(DOCUMENTS) for hit in everything[::2]] == [hit.index for hit in everything[1::2]]
    assert ours.rank(QUERIES[0], [*DOCUMENTS, *DOCUMENTS], top=3) == everything[:3]
    assert ours.rank(QUERIES[0], DOCUMENTS, top=100) == ours.rank(QUERIES[0], DOCUMENTS)
    assert ours.rank(QUERIES[0], []) == []
    assert ours.scores([]).shape == (0,)
    assert isinstance(everything[0], Hit)


def test_saturated_sigmoids_are_ordered_by_their_logits(tokenizer: Tokenizer, tmp_path: Path) -> None:
    place = folder_of(tmp_path, tokenizer)
    ours = reranker(place)
    bias = dict(ours.model.named_parameters())["heads.sequence.linear.bias"].data
    bias += 500
    hits = ours.rank(QUERIES[0], DOCUMENTS)
    assert {hit.score for hit in hits} == {1.0}
    bias -= 500
    assert [hit.index for hit in hits] == [hit.index for hit in ours.rank(QUERIES[0], DOCUMENTS)]


def test_a_long_document_gets_the_score_of_its_best_window(folder: Path) -> None:
    ours = reranker(folder)
    (found,) = ours.scores([(QUERIES[0], LONG)])
    reads = ours._task.reader([(QUERIES[0], LONG)])
    batches = [reads.sequences.batch(np.array([i]), torch.device("cpu")) for i in range(len(reads.sequences))]
    with torch.no_grad():
        windows = [float(ours.model.logits("sequence", ours.model.encoder(one), one)[0, 0]) for one in batches]
    assert len(windows) > 2
    assert found == pytest.approx(max(windows), abs=LIMIT)
    assert (ours.tally.in_windows, ours.tally.cut) == (2, 0)


def test_cutting_is_sentence_transformers_and_is_said(folder: Path) -> None:
    ours = reranker(folder, long="cut")
    with pytest.warns(UserWarning, match="1 text cut"):
        found = ours.scores([(QUERIES[0], LONG), (QUERIES[0], DOCUMENTS[0])])
    assert found == pytest.approx(judge(folder).predict([(QUERIES[0], LONG), (QUERIES[0], DOCUMENTS[0])]), abs=LIMIT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.scores(PAIRED)  # nothing is cut here
    assert ours.tally.cut == 1
    with refused("too-long"):
        reranker(folder, long="error").scores([(QUERIES[0], LONG)])


def test_the_maximum_length_of_the_folder(folder: Path) -> None:
    """A folder may say that it reads less than the model could, as sentence-transformers does."""
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_max_length": 24}))
    ours = reranker(folder, long="cut")
    with pytest.warns(UserWarning, match="cut"):
        found = ours.scores([(QUERIES[0], LONG)])
    assert found == pytest.approx(judge(folder).predict([(QUERIES[0], LONG)]), abs=LIMIT)


def test_our_own_folder_keeps_its_windows_and_temperature(tokenizer: Tokenizer) -> None:
    model = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
    tuned = with_task(model, config_for("score", window=WindowSettings(24, 6), temperature=2.0), ("score",))
    make_loud(tuned)
    ours = Reranker(tuned)
    assert ours.model is tuned
    plain = with_task(tuned, config_for("score", window=WindowSettings(24, 6)), ("score",))
    odds = [np.log(scores / (1 - scores)) for scores in (ours.scores(PAIRED), Reranker(plain).scores(PAIRED))]
    assert odds[0] * 2 == pytest.approx(odds[1], abs=1e-3)
    assert ours.tally.in_windows > 0
    assert ours.tally.cut == 0
    assert Reranker(tuned, long="error")._task.reader.settings == WindowSettings(24, 6, "error")


@pytest.mark.parametrize("given", ["a text", ("a",), ("a", "b", "c"), ("a", 1), 5])
def test_what_is_no_pair_is_refused(given: Any, folder: Path) -> None:
    with refused("bad-input", given):
        reranker(folder).scores([given])


def test_wrong_calls_are_refused(folder: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    ours = reranker(folder)
    with refused("bad-input"):
        ours.rank("a", "b")
    with refused("out-of-range", 0):
        ours.rank("a", ["b"], top=0)
    with refused("unknown-choice"):
        reranker(folder, long="drop")
    names: dict[str, Any] = {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 0, "b": 1}}
    with refused("not-a-reranker", "pooler, sequence", "2 labels"):
        reranker(their_folder(tmp_path / "two", tokenizer, "BertForSequenceClassification", **names))
    with refused("not-a-reranker", names="head"):
        Reranker(Model.new(ModelConfig(SMALL, ()), tokenizer))


# ---------------------------------------------------------------------- bothways rerank


def documents_file(folder: Path) -> Path:
    file = folder / "documents.txt"
    file.write_text("\n".join(["", *DOCUMENTS]) + "\n", encoding="utf-8")
    return file


def test_the_command_prints_the_best(folder: Path, tmp_path: Path, run: Run) -> None:
    hits = reranker(folder).rank(QUERIES[1], DOCUMENTS, top=3)
    file = documents_file(tmp_path)
    done = run("rerank", QUERIES[1], file, "--model", folder, "--top", 3, "--dtype", "fp32", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["index"], one["text"]) for one in found] == [(hit.index + 1, hit.text) for hit in hits]
    assert [one["score"] for one in found] == pytest.approx([hit.score for hit in hits], abs=LIMIT)
    assert f"{len(DOCUMENTS)} texts" in done.stderr
    done = run("rerank", QUERIES[1], file, "--model", folder, "--top", 3, "--dtype", "fp32")
    assert [line.split("\t")[1:] for line in done.stdout.splitlines()] == [
        [str(hit.index + 1), hit.text] for hit in hits
    ]


def test_the_command_reads_rows_and_standard_input(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"body": text}) + "\n" for text in DOCUMENTS), encoding="utf-8")
    done = run("rerank", QUERIES[0], rows, "--model", folder, "--field", "body", "--json")
    best = json.loads(done.stdout)
    assert len(best) == len(DOCUMENTS)
    with documents_file(tmp_path).open(encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        done = run("rerank", QUERIES[0], "-", "--model", folder, "--json")
    assert [one["text"] for one in json.loads(done.stdout)] == [one["text"] for one in best]


def test_long_documents_of_the_command(folder: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "long.txt"
    file.write_text(LONG, encoding="utf-8")
    assert "1 long text read in windows" in run("rerank", QUERIES[0], file, "--model", folder).stderr
    done = run("rerank", QUERIES[0], file, "--model", folder, "--long", "cut")
    assert "1 text cut" in done.stderr
    done = run("rerank", QUERIES[0], file, "--model", folder, "--long", "error")
    assert done.returncode == 1
    assert is_one_error(done.stderr.splitlines()[-1] + "\n", "--long")


def test_mistakes_of_the_command(folder: Path, tmp_path: Path, run: Run) -> None:
    file = documents_file(tmp_path)
    (tmp_path / "empty.txt").write_text("\n\n")
    empty, none = tmp_path / "empty.txt", tmp_path / "none.txt"
    for query, documents, named in (("  ", file, "query"), ("a", empty, str(empty)), ("a", none, str(none))):
        done = run("rerank", query, documents, "--model", folder)
        assert (done.returncode, done.stdout) == (1, "")
        assert is_one_error(done.stderr, named)
    assert run("rerank", "a", file).returncode == 2
