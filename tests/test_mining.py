"""Hard negatives: as a plain loop finds them, and never closer to the anchor than a positive."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.errors import BothwaysError
from bothways.model.static import StaticModel
from bothways.search.mining import HardNegatives, NegativeRules, mine_hard_negatives
from bothways.search.nearest import Scores
from bothways.search.products import BUDGET
from bothways.text.tokenizer import BERT_SPECIALS, Tokenizer
from helpers.cli import Run, is_one_error


def stub(vectors: dict[str, tuple[float, ...]]) -> StaticModel:
    """A model that gives each word a vector of its own."""
    rows = [[0.0] * len(next(iter(vectors.values())))] * len(BERT_SPECIALS)
    table = torch.tensor([*rows, *map(list, vectors.values())], dtype=torch.float32)
    return StaticModel(Tokenizer.from_pieces([*BERT_SPECIALS, *vectors]), table)


def at(cosine: float) -> tuple[float, float]:
    """A vector with this cosine with (1, 0)."""
    return cosine, (1 - cosine**2) ** 0.5


def negatives_of(scores: dict[str, float], rules: NegativeRules, positives: tuple[str, ...] = ("p",)) -> list[str]:
    """The negatives of an anchor with which the texts have these cosines."""
    model = stub({"q": (1.0, 0.0), **{text: at(score) for text, score in scores.items()}})
    found = mine_hard_negatives([("q", positive) for positive in positives], model, corpus=list(scores), rules=rules)
    assert len({row.negatives for row in found}) <= 1
    return list(found[0].negatives) if found else []


# ---------------------------------------------------------------------- margins


def test_a_relative_margin_of_a_negative_score_lets_nothing_closer_in() -> None:
    """s · (1 - r) is greater than s if s is below 0: a candidate at -0.49 was taken beside a positive at -0.50."""
    scores = {"p": -0.50, "near": -0.49, "far": -0.80}
    assert negatives_of(scores, NegativeRules(1, relative_margin=0.05)) == ["far"]
    assert negatives_of(scores, NegativeRules(1, relative_margin=0.0)) == ["far"]
    assert negatives_of(scores, NegativeRules(1)) == ["near"]


def test_a_margin_that_depends_on_the_sign_of_the_score_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in sentence-transformers before its issue 3819."""

    def wrong(rules: NegativeRules, positives: Scores) -> Scores:
        if rules.relative_margin is None:
            return np.full_like(positives, np.inf)
        return positives * np.float32(1 - rules.relative_margin)

    monkeypatch.setattr(NegativeRules, "caps", wrong)
    test_a_relative_margin_of_a_positive_score()  # which does not see it
    with pytest.raises(AssertionError):
        test_a_relative_margin_of_a_negative_score_lets_nothing_closer_in()


def test_a_relative_margin_of_a_positive_score() -> None:
    scores = {"p": 0.80, "inside": 0.77, "outside": 0.75}
    assert negatives_of(scores, NegativeRules(1, relative_margin=0.05)) == ["outside"]


def test_margins_are_those_of_the_least_similar_positive() -> None:
    scores = {"p": 0.8, "other": 0.5, "n": 0.6, "m": 0.4}
    assert negatives_of(scores, NegativeRules(1, absolute_margin=0.05), ("p", "other")) == ["m"]
    assert negatives_of(scores, NegativeRules(1, absolute_margin=0.05), ("p",)) == ["n"]


@settings(max_examples=60)
@given(
    st.lists(st.floats(-0.999, 0.999), min_size=4, max_size=12, unique=True),
    st.sampled_from([None, 0.0, 0.01, 0.2]),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_no_margin_lets_a_negative_in_that_is_closer_than_the_positive(
    cosines: list[float], absolute: float | None, relative: float
) -> None:
    letters = [chr(ord("a") + i) for i in range(len(cosines))]
    model = stub({"q": (1.0, 0.0), **{letter: at(c) for letter, c in zip(letters, cosines, strict=True)}})
    rules = NegativeRules(1, absolute_margin=absolute, relative_margin=relative)
    for row in mine_hard_negatives([("q", "a")], model, corpus=letters, rules=rules):
        positive, negative = row.scores
        assert negative <= positive - relative * abs(positive)
        assert negative <= positive - (absolute or 0.0)


# ---------------------------------------------------------------------- what is taken


@pytest.mark.parametrize("budget", [5_000, BUDGET])
@pytest.mark.parametrize(
    "rules",
    [
        NegativeRules(2),
        NegativeRules(2, absolute_margin=0.1),
        NegativeRules(2, relative_margin=0.3, range_min=1),
        NegativeRules(1, max_score=0.3, min_score=0.1),
        NegativeRules(3, range_min=2, range_max=6, sampling="random", seed=1),
    ],
)
def test_negatives_are_those_of_a_plain_loop(rules: NegativeRules, budget: int) -> None:
    draw = np.random.default_rng(0)
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(60)]
    vectors = draw.standard_normal((60, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    model = stub({word: tuple(map(float, row)) for word, row in zip(words, vectors, strict=True)})
    pairs = [(words[i], words[20 + (i * 7) % 25]) for i in range(20)] + [(words[3], words[50])]
    found = mine_hard_negatives(pairs, model, corpus=words[40:], rules=rules, budget=budget)
    assert found
    for row in found:
        anchor = vectors[words.index(row.anchor)]
        own = [positive for other, positive in pairs if other == row.anchor]
        lowest = min(float(anchor @ vectors[words.index(positive)]) for positive in own)
        candidates = {positive for _, positive in pairs} | set(words[40:])
        ranked = sorted(candidates - {*own, row.anchor}, key=lambda word: -float(anchor @ vectors[words.index(word)]))
        kept = []
        for word in ranked:
            score = float(anchor @ vectors[words.index(word)])
            limits = [
                rules.absolute_margin is None or score <= lowest - rules.absolute_margin,
                rules.relative_margin is None or score <= lowest - abs(lowest) * rules.relative_margin,
                rules.max_score is None or score <= rules.max_score,
                rules.min_score is None or score >= rules.min_score,
            ]
            if all(limits):
                kept.append(word)
        kept = kept[rules.range_min : rules.range_max]
        if rules.sampling == "top":
            assert list(row.negatives) == kept[: rules.num_negatives]
        else:
            assert [word for word in kept if word in row.negatives] == list(row.negatives)
        assert len(set(row.negatives)) == rules.num_negatives
        assert row.scores[0] == pytest.approx(float(anchor @ vectors[words.index(row.positive)]), abs=1e-6)


def test_random_sampling_depends_on_the_seed_alone() -> None:
    scores = {"p": 0.9, **{chr(ord("a") + i): 0.8 - i / 40 for i in range(12)}}
    first, again, other = (negatives_of(scores, NegativeRules(3, sampling="random", seed=seed)) for seed in (0, 0, 5))
    assert first == again
    assert first != other
    assert [scores[text] for text in first] == sorted((scores[text] for text in first), reverse=True)


def test_texts_that_are_the_same_as_a_positive_or_the_anchor_are_no_negatives() -> None:
    """Whatever their case, white space and punctuation."""
    model = stub({"cat": (1.0, 0.0), "猫": (0.9, 0.1), "dog": (0.0, 1.0)})
    pairs = [("cat", "猫"), ("cat", "猫"), ("Cat!", "猫。")]
    found = mine_hard_negatives(pairs, model, corpus=["CAT", "猫！", " cat ", "dog", "Dog."], rules=NegativeRules(1))
    assert [(row.anchor, row.positive, row.negatives) for row in found] == [
        ("cat", "猫", ("dog",)),
        ("Cat!", "猫。", ("dog",)),
    ]
    assert mine_hard_negatives(pairs, model, corpus=["dog", "Dog."], rules=NegativeRules(2)) == []


def test_a_pair_without_enough_negatives_is_left_out() -> None:
    assert negatives_of({"p": 0.5, "a": 0.4}, NegativeRules(2)) == []
    assert mine_hard_negatives([], stub({"a": (1.0, 0.0)})) == []


def test_the_row_of_a_file() -> None:
    row = HardNegatives("a", "b", ("c", "d"), (1.0, 0.5, 0.4)).row()
    assert row == {"anchor": "a", "positive": "b", "negative_1": "c", "negative_2": "d"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_negatives": 0},
        {"range_min": -1},
        {"range_min": 5, "range_max": 5},
        {"num_negatives": 3, "range_max": 2},
        {"absolute_margin": -0.1},
        {"relative_margin": -0.1},
        {"relative_margin": float("nan")},
        {"sampling": "bottom"},
    ],
)
def test_rules_that_make_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(BothwaysError):
        NegativeRules(**wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- the command


@pytest.mark.parametrize("labels", [None, (1, 1, 0)])
def test_the_command(labels: tuple[int, ...] | None, tmp_path: Path, model_folder: Path, run: Run) -> None:
    pairs = [("the cat sleeps", "a cat"), ("北京", "中国的首都"), ("the dog walks", "a dog")]
    file, corpus, out = tmp_path / "pairs.jsonl", tmp_path / "corpus.txt", tmp_path / "mined.jsonl"
    rows = [{"anchor": a, "positive": b} | ({"label": labels[i]} if labels else {}) for i, (a, b) in enumerate(pairs)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    corpus.write_text("paris\n\ngermany walks\n")
    done = run("mine", file, "--model", model_folder, "--corpus", corpus, "--negatives", 2, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    used = pairs[:2] if labels else pairs
    others = [*(["a dog"] if labels else []), "paris", "germany walks"]
    expected = mine_hard_negatives(used, model_folder, corpus=others, rules=NegativeRules(2))
    assert found == [row.row() for row in expected]
    assert len(found) == len(used)
    assert json.loads(done.stdout) == {"out": str(out), "pairs": len(used), "rows": len(used), "left_out": 0}


@pytest.mark.parametrize("names", ["问题,答案,分类", "問題,答案,分類", "Question,Answer,Category"])
def test_questions_and_answers_are_pairs(names: str, tmp_path: Path, model_folder: Path, run: Run) -> None:
    file, corpus, out = tmp_path / "a.csv", tmp_path / "c.csv", tmp_path / "out.jsonl"
    file.write_text(f"{names}\nthe cat,a cat,x\nthe dog,a dog,y\n", encoding="utf-8")
    corpus.write_text("body,note\na,paris\nb,germany\n", encoding="utf-8")
    done = run("mine", file, "--corpus", corpus, "--corpus-text", "note", "--model", model_folder, "--negatives", 1,
               "--out", out)  # fmt: skip
    assert done.returncode == 0, done.stderr
    first = names.split(",")
    assert f"columns: text = {first[0]}, pair = {first[1]}\n" in done.stderr
    assert [json.loads(line)["positive"] for line in out.read_text(encoding="utf-8").splitlines()] == ["a cat", "a dog"]


def test_what_the_command_refuses(tmp_path: Path, model_folder: Path, run: Run) -> None:
    file, single, out = tmp_path / "pairs.jsonl", tmp_path / "single.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"anchor": "a cat", "positive": "the cat", "label": "odd"}\n{"anchor": "b", "positive": "dog"}\n')
    single.write_text('{"text": "a cat"}\n')
    assert is_one_error(run("mine", single, "--model", model_folder, "--out", out).stderr, "--pair")
    assert is_one_error(run("mine", file, "--model", model_folder, "--out", file).stderr, str(file))
    assert is_one_error(run("mine", file, "--model", model_folder, "--out", tmp_path / "a.csv").stderr, "a.csv")
    bad = run("mine", file, "--model", model_folder, "--out", out, "--range-max", 2)
    assert is_one_error(bad.stderr, "--range-max")
    odd = run("mine", file, "--model", model_folder, "--out", out, "--negatives", 1)
    assert odd.returncode == 0
    assert "warning: the labels of" in odd.stderr
