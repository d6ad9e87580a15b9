"""Similar pairs, near-duplicates and groups: as a plain loop over all pairs finds them."""

import json
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sentence_transformers.util import community_detection

from bothways.errors import BothwaysError
from bothways.model.load import load
from bothways.model.pooling import Pooling
from bothways.model.sentence import Normalize, Sentence
from bothways.predict.encode import encode
from bothways.progress import watch_nothing
from bothways.search.cluster import cluster
from bothways.search.communities import k_means
from bothways.search.pairs import near_duplicates, similar_pairs
from bothways.search.products import BUDGET
from bothways.search.topic_words import topic_words
from helpers.cli import Run, is_one_error

TEXTS = ["the cat sleeps", "a dog walks in paris", "北京是中国的首都", "the cat sleeps", "a cat", "中国的首都", "paris"]
BUDGETS = [8_000, 60_000, BUDGET]


def unit(rows: int, width: int = 24, seed: int = 0, kinds: int | None = None) -> NDArray[np.float32]:
    """Random vectors of length 1; with `kinds`, around so many centres."""
    draw = np.random.default_rng(seed)
    found = draw.standard_normal((rows, width))
    if kinds is not None:
        found = draw.standard_normal((kinds, width))[draw.integers(0, kinds, rows)] + 0.2 * found
    vectors: NDArray[np.float32] = (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)
    return vectors


def names(count: int) -> list[str]:
    return [f"text {i}" for i in range(count)]


def cosine(vectors: NDArray[np.float32], i: int, j: int) -> np.float32:
    return np.float32((vectors[i].astype(np.float64) * vectors[j].astype(np.float64)).sum())


def test_prompts_that_are_not_used_are_said(model_folder: Path) -> None:
    model = load(model_folder)
    model.sentence = Sentence(Pooling(("mean",)), [Normalize()])
    model.sentence.settings = {"prompts": {"query": "query: ", "document": ""}}
    for call in (similar_pairs, cluster):
        with pytest.warns(UserWarning, match=r"trained with prompts \(query\), and these texts get none"):
            call(TEXTS, model)


# ---------------------------------------------------------------------- pairs


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("top", [1, 30, 5000])
def test_the_most_similar_pairs(budget: int, top: int) -> None:
    vectors = unit(90, kinds=20)
    found = similar_pairs(names(90), vectors=vectors, top=top, budget=budget, device="cpu")
    everything = sorted((-cosine(vectors, i, j), i, j) for i, j in combinations(range(90), 2))
    assert [(pair.first, pair.second) for pair in found] == [(i, j) for _, i, j in everything[:top]]
    np.testing.assert_allclose([pair.score for pair in found], [-s for s, _, _ in everything[:top]], atol=1e-6)


@pytest.mark.parametrize("budget", BUDGETS)
def test_all_pairs_above_a_score(budget: int) -> None:
    vectors = unit(90, kinds=20)
    found = similar_pairs(names(90), vectors=vectors, above=0.9, budget=budget, device="cpu")
    expected = {(i, j) for i, j in combinations(range(90), 2) if cosine(vectors, i, j) >= 0.9}
    assert {(pair.first, pair.second) for pair in found} == expected
    assert expected
    assert similar_pairs(names(90), vectors=vectors, above=0.9, top=3, budget=budget, device="cpu") == found[:3]


def test_many_equal_scores_are_in_the_order_of_the_texts() -> None:
    vectors = np.tile(unit(3, seed=1), (40, 1))  # texts that differ, and vectors that do not
    found = similar_pairs(names(120), vectors=vectors, top=50, budget=60_000, device="cpu")
    other = similar_pairs(names(120), vectors=vectors, top=50, device="cpu")
    assert found == other
    assert all(pair.first % 3 == pair.second % 3 for pair in found)
    same = [pair for pair in found if pair.score == found[0].score]
    assert same == sorted(same, key=lambda pair: (pair.first, pair.second))


def test_more_pairs_than_are_kept_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.search.pairs.MOST", 5)
    with pytest.warns(UserWarning, match="more than 5 pairs"):
        assert len(similar_pairs(names(9), vectors=unit(9), above=-1, device="cpu")) == 5


def test_pairs_of_a_model(model_folder: Path) -> None:
    found = similar_pairs(TEXTS, model_folder, device="cpu")
    vectors = encode(TEXTS, model_folder, device="cpu")
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    distinct = [0, 1, 2, 4, 5, 6]  # the fourth text is equal to the first
    assert {(pair.first, pair.second) for pair in found} == set(combinations(distinct, 2))
    for pair in found:
        assert pair.score == pytest.approx(float(vectors[pair.first] @ vectors[pair.second]), abs=1e-5)
    assert [pair.score for pair in found] == sorted((pair.score for pair in found), reverse=True)


def test_no_texts_and_one_text(model_folder: Path) -> None:
    for texts in ([], ["a cat"]):
        assert similar_pairs(texts, model_folder) == []
        assert near_duplicates(texts, model_folder) == []
        assert cluster(texts, model_folder) == []


# ---------------------------------------------------------------------- duplicates


@pytest.mark.parametrize("budget", BUDGETS)
def test_near_duplicates_are_joined_by_chains(budget: int) -> None:
    vectors = unit(120, kinds=40)
    found = near_duplicates(names(120), vectors=vectors, threshold=0.9, budget=budget, device="cpu")
    groups = [{i} for i in range(120)]
    for i, j in combinations(range(120), 2):
        one, other = (next(group for group in groups if row in group) for row in (i, j))
        if cosine(vectors, i, j) >= 0.9 and one is not other:
            groups.remove(other)
            one |= other
    expected = sorted((sorted(group) for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))
    assert found == expected
    assert len(found) > 5


def test_equal_texts_are_duplicates_whatever_the_threshold() -> None:
    assert near_duplicates(["猫", "dog", "猫", "猫"], vectors=unit(4), threshold=1.0, device="cpu") == [[0, 2, 3]]


# ---------------------------------------------------------------------- groups


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("threshold", [0.6, 0.9])
def test_communities_are_those_of_sentence_transformers(budget: int, threshold: float) -> None:
    vectors = unit(150, kinds=12, seed=3)
    found = cluster(names(150), vectors=vectors, threshold=threshold, min_size=2, budget=budget, device="cpu")
    expected = community_detection(vectors, threshold=threshold, min_community_size=2)
    assert {frozenset(group.rows) for group in found} == {frozenset(map(int, group)) for group in expected}
    assert [len(group) for group in found] == sorted(map(len, expected), reverse=True)
    assert all(list(group.scores) == sorted(group.scores, reverse=True) for group in found)


def test_the_centre_comes_first() -> None:
    vectors = np.array([[1, 0], [0.99, 0.1], [0.98, 0.15], [0, 1], [0.1, 0.99], [-1, 0]], np.float32)
    groups = cluster(names(6), vectors=vectors, threshold=0.9, min_size=2, device="cpu")
    assert [sorted(group.rows) for group in groups] == [[0, 1, 2], [3, 4]]
    assert groups[0].scores[0] == pytest.approx(1)


@pytest.mark.parametrize("budget", BUDGETS)
def test_k_means_finds_clear_groups(budget: int) -> None:
    vectors = unit(200, kinds=5, seed=7)
    kinds = cluster(names(200), vectors=vectors, threshold=0.7, min_size=1, device="cpu")
    groups = cluster(names(200), vectors=vectors, k=5, budget=budget, device="cpu")
    assert {frozenset(group.rows) for group in groups} == {frozenset(group.rows) for group in kinds}
    assert cluster(names(200), vectors=vectors, k=5, seed=0, device="cpu") == groups


def test_k_means_of_as_many_groups_as_rows_and_of_equal_rows() -> None:
    assert sorted(k_means(unit(6), 6, 0, "cpu", BUDGET, watch_nothing).labels.tolist()) == list(range(6))
    equal = np.tile(unit(1), (5, 1))
    assert set(k_means(equal, 3, 0, "cpu", BUDGET, watch_nothing).labels.tolist()) == {0}


def test_function_words_name_a_group_only_if_it_has_no_others() -> None:
    texts = ["all of my tea", "tea of my aunt", "the car", "a car"]
    labels = np.array([0, 0, 1, 1])
    assert topic_words(texts, labels, 3) == [["tea", "aunt"], ["car"]]
    assert topic_words(["这个茶", "这个茶", "车"], np.array([0, 0, 1]), 1) == [["个茶"], ["车"]]
    assert topic_words(["the", "of it"], np.array([0, 1]), 3) == [["the"], ["it", "of"]]


def test_groups_are_named_by_their_own_words() -> None:
    texts = ["the cat sleeps", "the cat eats", "the old cat", "the train to paris", "the train", "a train leaves"]
    texts += ["北京的天气很好", "今天天气不错", "天气真冷", "the rest"]
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2, -1])
    words = topic_words(texts, labels, 2)
    assert [found[0] for found in words] == ["cat", "train", "天气"]
    assert all("the" not in found for found in words)
    assert topic_words([], np.zeros(0, np.int64), 2) == []


# ---------------------------------------------------------------------- errors, and the commands


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda: similar_pairs("one text"), "bad-input"),
        (lambda: similar_pairs(["a", 3]), "bad-input"),
        (lambda: similar_pairs(["a"], vectors=unit(2)), "length-mismatch"),
        (lambda: similar_pairs(["a"], vectors=np.ones(1)), "bad-shape"),
        (lambda: similar_pairs(["a"], vectors=unit(1), top=0), "out-of-range"),
        (lambda: similar_pairs(["a"], vectors=unit(1), above=2), "out-of-range"),
        (lambda: near_duplicates(["a"], vectors=unit(1), threshold=2), "out-of-range"),
        (lambda: cluster(["a"], vectors=unit(1), k=2), "out-of-range"),
        (lambda: cluster(["a"], vectors=unit(1), k=1, threshold=0.5), "bad-combination"),
        (lambda: cluster(["a"], vectors=unit(1), min_size=0), "out-of-range"),
    ],
)
def test_what_cannot_be_compared(call: object, code: str) -> None:
    assert callable(call)
    with pytest.raises(BothwaysError) as error:
        call()
    assert error.value.code == code


def test_the_command_finds_pairs(tmp_path: Path, model_folder: Path, run: Run) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "pairs.jsonl"
    file.write_text("\n".join(["", *TEXTS, ""]), encoding="utf-8")
    done = run("similar", file, "--model", model_folder, "--top", 3, "--json", "--out", out)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    expected = similar_pairs(TEXTS, model_folder, top=3)
    assert [row["rows"] for row in rows] == [[pair.first + 1, pair.second + 1] for pair in expected]
    assert rows[0]["texts"] == [TEXTS[expected[0].first], TEXTS[expected[0].second]]
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == rows
    table = run("similar", file, "--model", model_folder, "--above", -1)
    assert table.stdout.count("\n") >= 15  # of six texts, and a header
    assert "北京是中国的首都" in table.stdout


def test_the_command_finds_duplicates(tmp_path: Path, model_folder: Path, run: Run) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS), encoding="utf-8")
    rows = json.loads(run("similar", file, "--model", model_folder, "--duplicates", "--above", 1, "--json").stdout)
    assert rows == [{"size": 2, "rows": [0, 3], "texts": ["the cat sleeps"] * 2}]
    assert "the cat sleeps" in run("similar", file, "--model", model_folder, "--duplicates", "--above", 1).stdout
    assert run("similar", file, "--duplicates", "--top", 3).returncode == 2


@pytest.mark.parametrize("options", [["--threshold", "0.2", "--min-size", "2"], ["--k", "2"]])
def test_the_command_groups(options: list[str], tmp_path: Path, model_folder: Path, run: Run) -> None:
    file, out = tmp_path / "texts.txt", tmp_path / "groups.jsonl"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    done = run("cluster", file, "--model", model_folder, "--json", "--out", out, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["texts"] == 7
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["text"] for row in rows] == TEXTS
    for number, group in enumerate(found["groups"]):
        assert sorted(group["rows"]) == [row["row"] for row in rows if row["group"] == number]
        assert group["name"]
        assert group["examples"] == [TEXTS[i] for i in group["rows"][:3]]
    assert found["groups"][0]["name"] in run("cluster", file, "--model", model_folder, *options).stdout


def test_what_the_commands_refuse(tmp_path: Path, model_folder: Path, run: Run) -> None:
    file, empty = tmp_path / "texts.jsonl", tmp_path / "empty.txt"
    file.write_text('{"text": "a cat"}\n')
    empty.write_text("\n\n")
    for verb in ("similar", "cluster"):
        assert is_one_error(run(verb, empty, "--model", model_folder).stderr, str(empty))
        assert is_one_error(run(verb, file, "--model", model_folder, "--out", tmp_path / "a.csv").stderr, "a.csv")
        assert is_one_error(run(verb, file, "--model", model_folder, "--out", file).stderr, str(file))
    both = run("cluster", file, "--model", model_folder, "--k", 1, "--threshold", 0.5)
    assert is_one_error(both.stderr, "--k")
