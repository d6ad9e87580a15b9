"""Evaluation of vectors over a folder: each kind of set against scikit-learn, scipy, or all similarities by hand."""

import gzip
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, v_measure_score  # type: ignore[import-untyped]

import bothways
from bothways.data.notes import Notes
from bothways.data.vector_sets import SPLITS, find_vector_sets
from bothways.predict.kmeans import kmeans
from bothways.scoring.retrieval import score_results
from bothways.scoring.significance import compare
from bothways.search.vector_tasks import METRICS, SEEDS
from helpers import make_loud, refused
from helpers.cli import Run, is_one_error

SETS = Path(__file__).parent.parent / "examples" / "vector-sets"
STS = [
    ("the cat sleeps", "a cat sleeps in the house", 4.5),
    ("paris is the capital of france", "the capital of france is paris", 4.0),
    ("北京是中国的首都。", "中国的首都是北京。", 5.0),
    ("a big black dog runs", "berlin", 0.5),
    ("猫", "日本的首都", 1.0),
    ("the tree is big", "the dog walks", 2.0),
    ("the tree is big", "the cat", 2.0),
]
ANIMALS = ["the cat sleeps", "a dog runs", "猫和狗", "the black cat", "a white dog walks", "狗是猫的"]
CITIES = [
    "paris is in france",
    "berlin",
    "北京是中国的首都。",
    "the capital of china",
    "巴黎是法国的首都",
    "beijing is big",
]
RERANKING: list[dict[str, Any]] = [
    {"query": "the cat", "positive": ["a black cat sleeps", "猫"], "negative": ["berlin", "the capital of france"]},
    {"query": "中国的首都", "positive": ["北京是中国的首都。"], "negative": ["狗", "a dog runs", "the tree"]},
    {"query": "a dog", "positive": ["the white dog walks"], "negative": ["paris", "北京"]},
]


def lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_sts(path: Path) -> Path:
    return write(path, "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{score}\n" for a, b, score in STS))


def write_labelled(path: Path, rows: Iterable[tuple[str, str]]) -> Path:
    return write(path, lines({"text": text, "label": label} for text, label in rows))


def write_beir(
    folder: Path, corpus: dict[str, str], queries: dict[str, str], judged: dict[str, dict[str, int]]
) -> Path:
    write(folder / "corpus.jsonl", lines({"_id": name, "text": text} for name, text in corpus.items()))
    write(folder / "queries.jsonl", lines({"_id": name, "text": text} for name, text in queries.items()))
    rows = [f"{query}\t{document}\t{grade}\n" for query, mine in judged.items() for document, grade in mine.items()]
    write(folder / "qrels" / "test.tsv", "".join(rows))
    return folder


def evaluated(folder: Path, model: Path, **settings: Any) -> bothways.SetScores:
    """The one set of a folder."""
    found = bothways.evaluate_vectors(folder, model, device="cpu", dtype="fp32", **settings)
    assert not found.left_out
    (one,) = found.sets
    return one


def unit(texts: Iterable[str], model: Path, **settings: Any) -> Any:
    vectors = bothways.encode(list(texts), model, device="cpu", dtype="fp32", **settings).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def with_prompts(model_folder: Path, **settings: Any) -> Path:
    model = bothways.load(model_folder)
    model.sentence = bothways.Sentence(bothways.Pooling(("mean",)), settings=settings)
    folder = model_folder.with_name("prompted")
    bothways.save(model, folder)
    return folder


# ---------------------------------------------------------------------- which set is what


def test_sets_are_recognised_by_their_content(tmp_path: Path) -> None:
    write_sts(tmp_path / "a.tsv")
    write(tmp_path / "nested" / "b.csv", "question1,question2,is_duplicate\nx,y,1\n")
    write_sts(tmp_path / "stsb" / "train.tsv")
    write_sts(tmp_path / "stsb" / "test.tsv")
    write_sts(tmp_path / "stsb" / "dev.tsv")
    write_beir(tmp_path / "beir", {"d": "x"}, {"q": "y"}, {"q": {"d": 1}})
    write(tmp_path / "rerank.jsonl", lines(RERANKING))
    write(tmp_path / "rerank-too.jsonl", lines([{"query": "a", "pos": ["b"], "neg": ["c"]}]))
    write_labelled(tmp_path / "topics.jsonl", [("a", "b")])
    write(tmp_path / "mteb.jsonl", lines([{"sentences": ["a", "b"], "labels": [1, 2]}]))
    write_labelled(tmp_path / "classes" / "train.jsonl", [("a", "b")])
    write(tmp_path / "classes" / "test.csv", "text,label\na,b\n")
    write(tmp_path / ".hidden.tsv", "text\tlabel\na\tb\n")
    write(tmp_path / "README.md", "about")
    write(tmp_path / "nli.tsv", "premise\thypothesis\tlabel\na\tb\tentailment\n")
    write(tmp_path / "plain.tsv", "text\nabc\n")
    write(tmp_path / "odd.tsv", "one\ttwo\na\tb\n")
    write(tmp_path / "broken.jsonl", '{"text": "a", "lab\n')
    write(tmp_path / "empty.jsonl", "")
    found, left_out = find_vector_sets(tmp_path)
    assert {one.name: one.kind for one in found} == {
        "a.tsv": "sts",
        "nested/b.csv": "sts",
        "stsb": "sts",
        "beir": "retrieval",
        "rerank.jsonl": "reranking",
        "rerank-too.jsonl": "reranking",
        "topics.jsonl": "clustering",
        "mteb.jsonl": "clustering",
        "classes": "classification",
    }
    assert {one.name: one.path.name for one in found if one.train or one.name == "stsb"} == {
        "stsb": "test.tsv",
        "classes": "test.csv",
    }
    names = {"README.md", "nli.tsv", "plain.tsv", "odd.tsv", "stsb/dev.tsv", "broken.jsonl", "empty.jsonl"}
    assert set(left_out) == names
    assert "JSON" in left_out["broken.jsonl"]
    assert "entailment" in left_out["nli.tsv"]


def test_the_folder_itself_may_be_a_set(tmp_path: Path) -> None:
    folder = write_beir(tmp_path / "beir", {"d": "x"}, {"q": "y"}, {"q": {"d": 1}})
    (one,), _ = find_vector_sets(folder)
    assert (one.name, one.kind, one.split) == ("beir", "retrieval", "test")
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes()))
    (folder / "corpus.jsonl").unlink()
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "dev.tsv")
    (one,), _ = find_vector_sets(folder)
    assert (one.name, one.kind, one.split) == ("beir (dev)", "retrieval", SPLITS[1])
    (one,), _ = find_vector_sets(write_sts(tmp_path / "one.tsv"))
    assert (one.name, one.kind) == ("one.tsv", "sts")


def test_folders_without_sets(tmp_path: Path) -> None:
    with refused("no-folder", tmp_path / "none"):
        find_vector_sets(tmp_path / "none")
    with refused("no-known-files", tmp_path):
        find_vector_sets(tmp_path)
    write(tmp_path / "x.tsv", "one\ttwo\na\tb\n")
    with refused("no-known-files", tmp_path, r"x\.tsv"):
        find_vector_sets(tmp_path)


# ---------------------------------------------------------------------- each kind


def test_sts_is_the_correlation_of_cosines(tmp_path: Path, model_folder: Path) -> None:
    write_sts(tmp_path / "sets" / "sts.tsv")
    one = evaluated(tmp_path / "sets", model_folder)
    first, second = (unit([str(pair[i]) for pair in STS], model_folder) for i in (0, 1))
    cosines, gold = (first * second).sum(1), [score for *_, score in STS]
    assert abs(one.scores["spearman"] - spearmanr(cosines, gold).statistic) < 1e-9
    assert abs(one.scores["pearson"] - pearsonr(cosines, gold).statistic) < 1e-6
    assert (one.metric, one.counts) == ("spearman", {"pairs": 7})
    assert one.interval[0] < one.scores["spearman"] < one.interval[1]


def corpus_with_ties() -> tuple[dict[str, str], dict[str, str], dict[str, dict[str, int]]]:
    """150 documents, most of them several times: the cut at 100 falls between equal ones."""
    words = ["cat", "dog", "house", "tree", "paris", "berlin", "猫", "北京"]
    corpus = {f"d{i}": f"the {words[i % 8]} is {words[i % 3]}" for i in range(150)}
    queries = {"q1": "the cat", "d7": "the 北京 is dog", "d8": "中国", "q2": "a house"}
    judged = {
        "q1": {f"d{i}": 1 + i % 2 for i in range(0, 150, 7)},
        "d7": {f"d{i}": 1 for i in range(150) if i != 7},
        "d8": {"d8": 2, "d9": 1},
        "q2": {"d149": 1, "d148": 1, "d3": 1, "missing": 1},
    }
    return corpus, queries, judged


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_retrieval_equals_the_ranking_of_the_whole_corpus(
    tmp_path: Path, model_folder: Path, similarity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the blocks: with all ties, and without the document that is the query itself."""
    corpus, queries, judged = corpus_with_ties()
    folder = write_beir(tmp_path / "sets" / "beir", corpus, queries, judged)
    model = with_prompts(model_folder, similarity_fn_name=similarity)
    asked, documents = (
        bothways.encode(list(texts.values()), model, device="cpu", dtype="fp32").astype(np.float64)
        for texts in (queries, corpus)
    )
    if similarity == "cosine":
        asked, documents = (
            (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32).astype(np.float64)
            for rows in (asked, documents)
        )
    products = asked @ documents.T
    if similarity == "euclidean":
        products = -np.linalg.norm(asked[:, None] - documents, axis=2)
    rounded = np.round(products, 5)  # what differs by rounding only is equal
    results = {query: dict(zip(corpus, row, strict=True)) for query, row in zip(queries, rounded.tolist(), strict=True)}
    del results["d7"]["d7"]  # BEIR's rule; d8 is judged to be relevant to d8
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 37})
    expected = score_results(judged, results, cutoffs=(10, 100)).scores()
    one = evaluated(folder.parent, model)
    assert one.counts == {"queries": 4, "documents": 150, "own documents left out": 1}
    for name in METRICS["retrieval"]:
        assert abs(one.scores[name] - expected[name]) < 1e-9, name


def test_queries_and_documents_get_their_prompts(tmp_path: Path, model_folder: Path) -> None:
    corpus = {"d1": "the cat sleeps", "d2": "paris", "d3": "北京是中国的首都。", "d4": "a dog runs"}
    queries = {"q1": "cat", "q2": "首都"}
    write_beir(tmp_path / "sets" / "beir", corpus, queries, {"q1": {"d1": 1, "d4": 1}, "q2": {"d3": 2, "d2": 1}})
    prompts = {"query": "the big ", "passage": "中国 ", "usual": "tree tree "}
    model = with_prompts(model_folder, prompts=prompts, default_prompt_name="usual")

    def expected(query: str, document: str) -> float:
        scores = unit(queries.values(), model, prompt=query) @ unit(corpus.values(), model, prompt=document).T
        results = {
            name: dict(zip(corpus, row, strict=True)) for name, row in zip(queries, scores.tolist(), strict=True)
        }
        return score_results({"q1": {"d1": 1, "d4": 1}, "q2": {"d3": 2, "d2": 1}}, results).scores()["ndcg@10"]

    found = [
        evaluated(tmp_path / "sets", model).score,
        evaluated(tmp_path / "sets", model, query_prompt="").score,
        evaluated(tmp_path / "sets", model, query_prompt="", document_prompt="dog ").score,
    ]
    assert (
        np.abs(np.array(found) - [expected("the big ", "中国 "), expected("", "中国 "), expected("", "dog ")]).max()
        < 1e-9
    )
    write_sts(tmp_path / "other" / "sts.tsv")
    plain = evaluated(tmp_path / "other", model, prompt="")
    assert evaluated(tmp_path / "other", model).scores != plain.scores, "the default prompt is for all other texts"
    assert abs(plain.score - evaluated(tmp_path / "other", model_folder).score) < 1e-9


def test_reranking_is_the_mean_average_precision(tmp_path: Path, model_folder: Path) -> None:
    none = {"query": "a", "positive": [], "negative": ["b"]}
    write(tmp_path / "sets" / "r.jsonl", lines([*RERANKING, none]))
    one = evaluated(tmp_path / "sets", model_folder)
    precisions, ranks = [], []
    for row in RERANKING:
        positive, negative = row["positive"], row["negative"]
        scores = unit([*positive, *negative], model_folder) @ unit([str(row["query"])], model_folder)[0]
        gold = [1] * len(positive) + [0] * len(negative)
        precisions.append(average_precision_score(gold, scores))
        ranks.append(1 + min(int(np.flatnonzero(np.argsort(-scores) == i)[0]) for i in range(len(positive))))
    assert abs(one.scores["map"] - np.mean(precisions)) < 1e-9
    assert abs(one.scores["mrr@10"] - np.mean(1 / np.array(ranks))) < 1e-9
    assert one.counts == {"queries": 4, "documents": 12, "without a positive": 1}


def test_of_equal_candidates_the_negative_comes_first(tmp_path: Path, model_folder: Path) -> None:
    texts = ["the cat sleeps " * times for times in range(1, 6)]
    rows = [{"query": "a dog", "positive": [text], "negative": [text, text]} for text in texts]
    write(tmp_path / "sets" / "r.jsonl", lines(rows))
    assert evaluated(tmp_path / "sets", model_folder).scores == pytest.approx({"map": 1 / 3, "mrr@10": 1 / 3})


def test_clustering_is_the_mean_v_measure_of_the_seeds(tmp_path: Path, model_folder: Path) -> None:
    rows = [(text, "animals") for text in ANIMALS] + [(text, "城市") for text in CITIES] + [("berlin", "城市")]
    write_labelled(tmp_path / "sets" / "topics.jsonl", rows)
    one = evaluated(tmp_path / "sets", model_folder)
    vectors = bothways.encode([text for text, _ in rows], model_folder, device="cpu", dtype="fp32")
    gold = [label for _, label in rows]
    expected = np.mean([v_measure_score(gold, kmeans(vectors, 2, seed)) for seed in SEEDS])
    assert abs(one.scores["v_measure"] - expected) < 1e-9
    assert one.counts == {"texts": 13, "labels": 2}


def test_rows_of_lists_are_clustered_one_by_one(tmp_path: Path, model_folder: Path) -> None:
    """As in MTEB."""
    groups: list[dict[str, Any]] = [
        {"sentences": [*ANIMALS, *CITIES], "labels": [0] * 6 + [1] * 6},
        {"sentences": [*ANIMALS[:3], *CITIES[:4]], "labels": ["a"] * 3 + ["b"] * 4},
    ]
    write(tmp_path / "sets" / "mteb.jsonl", lines(groups))
    one = evaluated(tmp_path / "sets", model_folder)
    expected = []
    for group in groups:
        vectors = bothways.encode([str(text) for text in group["sentences"]], model_folder, device="cpu", dtype="fp32")
        expected += [v_measure_score(group["labels"], kmeans(vectors, 2, seed)) for seed in SEEDS]
    assert abs(one.score - np.mean(expected)) < 1e-9
    assert one.counts["groups"] == 2
    write(tmp_path / "sets" / "mteb.jsonl", lines([{"sentences": ["a", "b"], "labels": [1]}]))
    with refused("length-mismatch", names="mteb.jsonl, line 1"):
        evaluated(tmp_path / "sets", model_folder)


@pytest.mark.parametrize("classes", [2, 3])
def test_classification_is_a_linear_probe(tmp_path: Path, model_folder: Path, classes: int) -> None:
    train = [(text, f"类{i % classes}") for i, text in enumerate([*ANIMALS, *CITIES])]
    test = [("the cat runs", "类0"), ("北京", "类1"), ("berlin is big", "类1"), ("a dog", "类0"), ("paris", "unseen")]
    write_labelled(tmp_path / "sets" / "task" / "train.jsonl", train)
    write_labelled(tmp_path / "sets" / "task" / "test.jsonl", test)
    one = evaluated(tmp_path / "sets", model_folder)
    vectors, unseen = (
        bothways.encode([text for text, _ in rows], model_folder, device="cpu", dtype="fp32").astype(np.float64)
        for rows in (train, test)
    )
    judge = LogisticRegression(tol=1e-10, max_iter=10_000).fit(vectors, [label for _, label in train])
    predicted, gold = judge.predict(unseen), [label for _, label in test]
    assert abs(one.scores["accuracy"] - accuracy_score(gold, predicted)) < 1e-9
    assert abs(one.scores["macro_f1"] - f1_score(gold, predicted, average="macro")) < 1e-9
    assert one.counts == {"training texts": 12, "texts": 5, "labels": classes + 1}


# ---------------------------------------------------------------------- several sets, two models


def other_model(model_folder: Path) -> Path:
    model = bothways.load(model_folder)
    make_loud(model, seed=7)
    bothways.save(model, model_folder.with_name("other"))
    return model_folder.with_name("other")


def test_two_models_are_compared_on_every_set(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def spy(first: Any, second: Any, name: str) -> Any:
        seen.append((first.scores()[name], second.scores()[name]))
        return compare(first, second, name)

    monkeypatch.setattr("bothways.search.vector_evaluation.compare", spy)
    other = other_model(model_folder)
    both = bothways.evaluate_vectors(SETS, model_folder, other, long="window", device="cpu", dtype="fp32")
    alone = bothways.evaluate_vectors(SETS, other, long="window", device="cpu", dtype="fp32")
    assert {one.kind for one in both.sets} == set(METRICS)
    assert both.against_means == alone.means
    for one, second, values in zip(both.sets, alone.sets, seen, strict=True):
        assert one.against is not None
        assert one.against_scores == second.scores
        assert values == (one.score, second.score)
        assert abs(one.against.difference - (one.score - second.score)) < 1e-9
        assert one.against.low <= one.against.high
        assert 0 < one.against.p <= 1
    assert any(one.against and one.against.difference for one in both.sets)
    for kind, mean in both.means.items():
        assert abs(mean - np.mean([one.score for one in both.sets if one.kind == kind])) < 1e-12


def test_a_model_does_not_differ_from_itself(model_folder: Path) -> None:
    found = bothways.evaluate_vectors(SETS, model_folder, bothways.load(model_folder), long="window")
    assert {(one.against.difference, one.against.p) for one in found.sets if one.against} == {(0.0, 1.0)}


def test_cut_texts_are_reported(tmp_path: Path, model_folder: Path) -> None:
    write(tmp_path / "sets" / "s.tsv", f"sentence1\tsentence2\tscore\n{'the cat ' * 60}\ta\t1\na\tb\t0.5\nc\td\t0\n")
    with pytest.warns(UserWarning, match="1 text cut"):
        found = bothways.evaluate_vectors(tmp_path / "sets", model_folder)
    assert "1 text cut" in found.read[0]
    assert "windows" in bothways.evaluate_vectors(tmp_path / "sets", model_folder, long="window").read[0]
    with refused("too-long"):
        bothways.evaluate_vectors(tmp_path / "sets", model_folder, long="error")


def test_each_text_is_encoded_once(tmp_path: Path, model_folder: Path) -> None:
    write_sts(tmp_path / "sets" / "sts.tsv")
    found = bothways.evaluate_vectors(tmp_path / "sets", model_folder)
    assert found.read[0].startswith("13 texts")


def test_rows_without_a_label_are_noted(tmp_path: Path, model_folder: Path) -> None:
    write_sts(tmp_path / "sets" / "sts.tsv")
    with (tmp_path / "sets" / "sts.tsv").open("a", encoding="utf-8") as stream:
        stream.write("a\tb\t\n")
    write_labelled(tmp_path / "sets" / "topics.jsonl", [*((text, "a") for text in ANIMALS), ("b", ""), ("c", "c")])
    notes = Notes()
    found = bothways.evaluate_vectors(tmp_path / "sets", model_folder, model_folder, notes=notes)
    assert notes.counts["unlabelled-row"] == 2
    assert [one.counts for one in found.sets] == [{"pairs": 7}, {"texts": 7, "labels": 2}]


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("s.tsv", "sentence1\tsentence2\tscore\na\tb\t\n", "no-labels"),
        ("s.tsv", "sentence1\tsentence2\tscore\na\tb\t1\na\tb\tx\n", "not-a-number"),
        ("t.tsv", "text\tlabel\na\t\n", "no-labels"),
        ("r.jsonl", '{"query": "a", "positive": ["b"]}\n{"query": "a"}\n', "no-column"),
        ("r.jsonl", '{"query": "a", "positive": ["b"]}\n{"query": "a", "positive": "b"}\n', "bad-input"),
    ],
)
def test_damaged_sets(tmp_path: Path, model_folder: Path, name: str, text: str, code: str) -> None:
    write(tmp_path / "sets" / name, text)
    with refused(code, names=name):
        bothways.evaluate_vectors(tmp_path / "sets", model_folder)


def test_one_class_cannot_be_probed(tmp_path: Path, model_folder: Path) -> None:
    for split in ("train", "test"):
        write_labelled(tmp_path / "sets" / f"{split}.jsonl", [("a", "x"), ("b", "x")])
    with refused("bad-labels", 1):
        bothways.evaluate_vectors(tmp_path / "sets", model_folder)


def test_progress_is_shown(model_folder: Path) -> None:
    seen: list[str] = []

    def watch(items: Iterable[Any], what: str, files: Any = ()) -> Iterable[Any]:
        seen.append(what)
        assert not files or Path(files[0]).name == "corpus.jsonl"
        return items

    bothways.evaluate_vectors(SETS, model_folder, long="window", watch=watch)
    assert {"encoding similar.tsv", "searching capitals", "clustering topics.tsv", "fitting the probe"} <= set(seen)


# ---------------------------------------------------------------------- the command


def test_the_command(tmp_path: Path, model_folder: Path, run: Run) -> None:
    shutil.copytree(SETS, tmp_path / "sets")
    write(tmp_path / "sets" / "notes.md", "about")
    other, out = other_model(model_folder), tmp_path / "found.json"
    words = ("evaluate-vectors", tmp_path / "sets", "--model", model_folder, "--device", "cpu", "--long", "window")
    done = run(*words, "--json", "--out", out, "--against", other)
    assert done.returncode == 0, done.stderr
    assert "notes.md" in done.stderr
    report = json.loads(done.stdout)
    assert report == json.loads(out.read_text(encoding="utf-8"))
    expected = bothways.evaluate_vectors(SETS, model_folder, long="window", device="cpu", dtype="fp32")
    assert {one["name"]: one["scores"] for one in report["sets"]} == {one.name: one.scores for one in expected.sets}
    assert set(report["sets"][0]["against"]) == {"difference", "low", "high", "p"}
    done = run(*words, "--against", other)
    for word in (*METRICS, "ndcg@10", "capitals", "similar-zh.tsv", "difference", "mean"):
        assert word in done.stdout


def test_mistakes_of_the_command(tmp_path: Path, model_folder: Path, run: Run) -> None:
    write(tmp_path / "sets" / "s.tsv", f"sentence1\tsentence2\tscore\n{'the cat ' * 60}\ta\t1\na\tb\t0.5\n")
    for words, named in (
        ([tmp_path / "none"], "none"),
        ([tmp_path / "sets", "--out", tmp_path / "x.csv"], "x.csv"),
        ([tmp_path / "sets", "--long", "error"], "--long"),
    ):
        done = run("evaluate-vectors", *words, "--model", model_folder)
        assert done.returncode == 1
        assert is_one_error(done.stderr, named), done.stderr
    done = run("evaluate-vectors", tmp_path / "sets", "--model", model_folder)
    assert done.returncode == 0
    assert "1 text cut" in done.stderr
