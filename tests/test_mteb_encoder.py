"""The encoder that mteb drives: by a small driver with mteb's calls, and by mteb itself where it is installed."""

import enum
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import bothways
from bothways.model.sentence import Normalize
from bothways.predict.roles import SIMILARITIES
from helpers import refused

PAIRS = [
    ("the cat sleeps", "a cat sleeps in the house", 4.5),
    ("paris is the capital of france", "the capital of france is paris", 4.0),
    ("北京是中国的首都。", "中国的首都是北京。", 5.0),
    ("a big black dog runs", "berlin", 0.5),
    ("猫", "日本的首都", 1.0),
    ("the tree is big", "the dog walks", 2.0),
]
DOCUMENTS = {
    "d1": "paris is the capital of france",
    "d2": "the capital of germany is berlin",
    "d3": "北京是中国的首都。",
    "d4": "a black cat sleeps",
    "d5": "a black cat sleeps",
    "d6": "the white dog runs in the house",
}
QUERIES = {"q1": "capital of france", "q2": "中国的首都", "q3": "the cat"}
JUDGED = {"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 1}, "q3": {"d4": 1, "d6": 1}}


class PromptType(enum.StrEnum):  # as mteb's
    query = "query"
    document = "document"


def batches(texts: list[str], size: int = 2) -> Iterator[dict[str, list[str]]]:
    return ({"text": texts[first : first + size]} for first in range(0, len(texts), size))


def sentence_folder(model_folder: Path, **settings: Any) -> Path:
    model = bothways.load(model_folder)
    model.sentence = bothways.Sentence(bothways.Pooling(("cls",)), [Normalize()], max_length=32, settings=settings)
    bothways.save(model, model_folder.with_name("sentence"))
    return model_folder.with_name("sentence")


# ---------------------------------------------------------------------- a driver with mteb's calls


def test_the_methods_of_the_protocol(model_folder: Path) -> None:
    encoder = bothways.mteb_encoder(model_folder, device="cpu", dtype="fp32")
    texts = [text for first, second, _ in PAIRS for text in (first, second)]
    task = SimpleNamespace(name="MySTS", type="STS")
    vectors = encoder.encode(
        batches(texts), task_metadata=task, hf_split="test", hf_subset="default", batch_size=2, show_progress_bar=False
    )
    assert vectors.dtype == np.float32
    assert np.abs(vectors - bothways.encode(texts, model_folder)).max() < 1e-6
    assert not hasattr(encoder, "predict"), "mteb would take it for a cross-encoder"
    assert encoder.tally.texts == len(texts)


@pytest.mark.parametrize("name", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarities_are_those_of_sentence_transformers(model_folder: Path, name: str) -> None:
    util = pytest.importorskip("sentence_transformers.util")
    judge = getattr(util, {"cosine": "cos_sim", "dot": "dot_score"}.get(name, f"{name}_sim"))
    folder = sentence_folder(model_folder, similarity_fn_name=name)
    encoder = bothways.mteb_encoder(folder, device="cpu", dtype="fp32")
    draws = np.random.default_rng(0)
    first, second = (draws.normal(size=(n, 8)).astype(np.float32) for n in (3, 4))
    assert torch.allclose(encoder.similarity(first, second), judge(first, second), atol=1e-5)
    pairs = encoder.similarity_pairwise(torch.from_numpy(first), second[:3])
    assert torch.allclose(pairs, judge(first, second[:3]).diag(), atol=1e-5)
    assert set(SIMILARITIES) == {"cosine", "dot", "euclidean", "manhattan"}


def test_prompts_by_task_and_role(model_folder: Path) -> None:
    """The more specific prompt wins, as in mteb."""
    prompts = {
        "query": "a ", "passage": "the ", "MyTask-query": "cat ", "MyTask": "dog ",
        "Retrieval-document": "house ", "Retrieval": "tree ", "usual": "paris ",
    }  # fmt: skip
    folder = sentence_folder(model_folder, prompts=prompts, default_prompt_name="usual")
    encoder = bothways.mteb_encoder(folder, device="cpu", dtype="fp32")
    for name, kind, role, expected in (
        ("MyTask", "Retrieval", PromptType.query, "cat "),
        ("MyTask", "Retrieval", PromptType.document, "dog "),
        ("Other", "Retrieval", PromptType.document, "house "),
        ("Other", "Retrieval", PromptType.query, "tree "),
        ("Other", "Reranking", "query", "a "),
        ("Other", "Reranking", "document", "the "),
        ("Other", "STS", None, "paris "),
        ("MyTask", "STS", None, "dog "),
    ):
        task = SimpleNamespace(name=name, type=kind)
        found = encoder.encode(batches(["berlin", "猫"]), task_metadata=task, prompt_type=role)
        assert np.abs(found - bothways.encode(["berlin", "猫"], folder, prompt=expected)).max() < 1e-6, (name, role)
    given = bothways.mteb_encoder(folder, query_prompt="big ", device="cpu", dtype="fp32")
    task = SimpleNamespace(name="MyTask", type="Retrieval")
    found = given.encode(batches(["berlin"]), task_metadata=task, prompt_type="query")
    assert np.abs(found - bothways.encode(["berlin"], folder, prompt="big ")).max() < 1e-6


def test_the_default_prompt_is_not_for_queries_and_documents(model_folder: Path) -> None:
    """As in sentence-transformers."""
    folder = sentence_folder(model_folder, prompts={"usual": "paris "}, default_prompt_name="usual")
    encoder = bothways.mteb_encoder(folder, device="cpu", dtype="fp32")
    for role, expected in (("query", ""), ("document", ""), (None, "paris ")):
        found = encoder.encode(batches(["berlin", "猫"]), prompt_type=role)
        assert np.abs(found - bothways.encode(["berlin", "猫"], folder, prompt=expected)).max() < 1e-6, role


def test_cut_texts_are_counted(model_folder: Path) -> None:
    encoder = bothways.mteb_encoder(model_folder, device="cpu", dtype="fp32")
    with pytest.warns(UserWarning, match="cut"):
        encoder.encode(batches(["the cat " * 60]))
    encoder.encode(batches(["the cat"]))  # without a warning
    assert encoder.tally.cut == 1
    with refused("too-long"):
        bothways.mteb_encoder(model_folder, long="error", device="cpu").encode(batches(["the cat " * 60]))


def test_mistakes(model_folder: Path) -> None:
    with refused("bad-input", "model"):
        bothways.mteb_encoder(model_folder, name="model")
    with refused("unknown-choice", "passage"):
        bothways.mteb_encoder(model_folder).encode(batches(["a"]), prompt_type="passage")
    with refused("unsupported-setting", "maxsim"):
        bothways.mteb_encoder(sentence_folder(model_folder, similarity_fn_name="maxsim"))


def test_without_mteb(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mteb.models.model_meta", None)
    with refused("missing-package", "mteb"):
        bothways.mteb_encoder(model_folder).mteb_model_meta  # noqa: B018


# ---------------------------------------------------------------------- mteb itself


def toy_tasks() -> list[Any]:
    """An STS and a retrieval task of mteb with data of their own."""
    import datasets
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.sts import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata

    def described(name: str, kind: str, score: str) -> TaskMetadata:
        where = {"path": "local/toy", "revision": "1"}
        return TaskMetadata(
            name=name, type=kind, main_score=score, dataset=where, description="toy", eval_langs=["eng-Latn"]
        )

    class ToySTS(AbsTaskSTS):  # type: ignore[misc]
        metadata = described("ToySTS", "STS", "cosine_spearman")

        def load_data(self, *_: Any, **__: Any) -> None:
            rows = [dict(zip(("sentence1", "sentence2", "score"), pair, strict=True)) for pair in PAIRS]
            self.dataset = {"test": datasets.Dataset.from_list(rows)}
            self.data_loaded = True

    class ToyRetrieval(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = described("ToyRetrieval", "Retrieval", "ndcg_at_10")

        def load_data(self, *_: Any, **__: Any) -> None:
            corpus = [{"id": name, "title": "", "text": text} for name, text in DOCUMENTS.items()]
            queries = [{"id": name, "text": text} for name, text in QUERIES.items()]
            data = {
                "corpus": datasets.Dataset.from_list(corpus),
                "queries": datasets.Dataset.from_list(queries),
                "relevant_docs": JUDGED,
                "top_ranked": None,
            }
            self.dataset = {"default": {"test": data}}
            self.data_loaded = True

    return [ToySTS(), ToyRetrieval()]


def toy_folder(path: Path) -> Path:
    """The same data as files."""
    (path / "capitals" / "qrels").mkdir(parents=True)
    (path / "sts.tsv").write_text(
        "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS), encoding="utf-8"
    )
    for name, rows in (("corpus", DOCUMENTS), ("queries", QUERIES)):
        lines = [json.dumps({"_id": key, "text": text}) + "\n" for key, text in rows.items()]
        (path / "capitals" / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    lines = [f"{query}\t{document}\t{grade}\n" for query, mine in JUDGED.items() for document, grade in mine.items()]
    (path / "capitals" / "qrels" / "test.tsv").write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore")  # of mteb and what it imports
def test_mteb_itself_drives_the_encoder(model_folder: Path, tmp_path: Path) -> None:
    """With the scores that we find on the same data, and those of sentence-transformers on the same folder."""
    mteb = pytest.importorskip("mteb")
    from mteb.models.models_protocols import CrossEncoderProtocol, EncoderProtocol
    from sentence_transformers import SentenceTransformer

    folder = sentence_folder(model_folder, prompts={"query": "the ", "document": ""})
    encoder = bothways.mteb_encoder(folder, device="cpu", dtype="fp32")
    assert isinstance(encoder, EncoderProtocol)
    assert not isinstance(encoder, CrossEncoderProtocol)
    assert (encoder.mteb_model_meta.name, encoder.mteb_model_meta.embed_dim) == ("local/sentence", 32)
    own = bothways.evaluate_vectors(toy_folder(tmp_path / "sets"), folder, device="cpu", dtype="fp32")
    scores = {one.kind: one.scores for one in own.sets}
    judge = SentenceTransformer(str(folder), device="cpu")
    for model in (encoder, judge):
        results = mteb.evaluate(model, toy_tasks(), cache=None, co2_tracker=False, show_progress_bar=False)
        found = {result.task_name: result.scores["test"][0] for result in results.task_results}
        assert abs(found["ToySTS"]["cosine_spearman"] - scores["sts"]["spearman"]) < 1e-6
        assert abs(found["ToySTS"]["cosine_pearson"] - scores["sts"]["pearson"]) < 1e-5
        for theirs, ours in (("ndcg_at_10", "ndcg@10"), ("map_at_100", "map@100"), ("recall_at_100", "recall@100")):
            assert abs(found["ToyRetrieval"][theirs] - scores["retrieval"][ours]) < 1e-5
