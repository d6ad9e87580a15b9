"""Patterns for the names of layers: as `re` matches them, in bounded time; layers as PEFT finds them."""

import re
from typing import Any

import peft
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from bothways.errors import BothwaysError
from bothways.model.layer_patterns import AdapterPatterns
from bothways.model.linear_regex import LinearRegex
from helpers import refused

ATOMS = ["a", "b", ".", r"\.", r"\d", r"\w", r"\s", r"\D", r"\W", "[ab]", "[^a]", r"[a-c\d]", r"[^\w.]", "^", "$", r"\b",
         r"\B", r"\A", r"\Z", "0", "(?:ab|)", "é"]  # fmt: skip


def _patterns() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda two: f"(?:{two[0]}|{two[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{,2}"])).map(
                lambda one: f"({one[0]}){one[1]}"
            ),
            inner.map(lambda one: f"(?={one})"),
            inner.map(lambda one: f"(?!{one})"),
        )

    return st.recursive(st.sampled_from(ATOMS), larger, max_leaves=8)


@given(_patterns(), st.lists(st.text("ab.0 \né_-", max_size=7), max_size=8))
def test_texts_match_as_re_matches_them(pattern: str, texts: list[str]) -> None:
    ours = LinearRegex(pattern)
    for text in texts:
        assert ours.fullmatch(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize("pattern", [r"(a+)+b", r"(a|a)*b", r"(a*)*b", r"(.*.*)*x", r"(?:a?){60}a{60}b", r"((a+)+)+b"])
def test_a_catastrophic_pattern_takes_no_time(pattern: str) -> None:
    assert not LinearRegex(pattern).fullmatch("a" * 200 + "c")


@pytest.mark.parametrize(
    "pattern",
    ["(a)\\1", "(?<=a)b", "(?i)a", "(?i:a)", "((((a{99}){99}){99}){99})", "a{0,99999999}", "(", "*", "[", "a" * 10_001, "("
     * 5_000, "(?>a)", "a++", "(?P<x>a)(?P=x)"],
)  # fmt: skip
def test_what_cannot_be_matched_in_linear_time_is_refused(pattern: str) -> None:
    with refused("unsupported-pattern", pattern):
        LinearRegex(pattern)


# ---------------------------------------------------------------------- PEFT is the judge

LAYERS = [
    f"bert.encoder.layer.{i}.{name}"
    for i in (0, 1, 2, 11)
    for name in (
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "intermediate.dense", "output.dense",
    )
] + ["bert.pooler.dense", "classifier", "0.auto_model.layers.3.1.fc"]  # fmt: skip
CONFIGS: list[dict[str, Any]] = [
    {"target_modules": ["query"]},
    {"target_modules": ["dense"]},
    {"target_modules": ["bert.pooler.dense", "output.dense"]},
    {"target_modules": r".*\.(query|value)"},
    {"target_modules": r"bert\.encoder\.layer\.1.*dense$"},
    {"target_modules": r"(?!.*output).*dense"},
    {"target_modules": ["dense"], "exclude_modules": ["pooler.dense"]},
    {"target_modules": ["dense"], "exclude_modules": r".*\.0\..*"},
    {"target_modules": ["dense", "classifier"], "modules_to_save": ["classifier", "pooler"]},
    {"target_modules": ["dense"], "modules_to_save": [r"layer\.1"]},
    {"target_modules": ["dense"], "layers_to_transform": [1]},
    {"target_modules": ["query"], "layers_to_transform": 11},
    {"target_modules": ["query"], "layers_to_transform": [0, 2], "layers_pattern": "layer"},
    {"target_modules": ["query", "fc"], "layers_to_transform": [1, 3], "layers_pattern": ["layers", "layer"]},
    {"target_modules": ["query"], "layers_to_transform": [1], "layers_pattern": "lay.r"},
    {"target_modules": ["query"], "layers_to_transform": [1], "layers_pattern": []},
    {"target_modules": ["fc", "query"], "layers_to_transform": [3]},
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_layers_are_found_as_peft_finds_them(config: dict[str, Any]) -> None:
    theirs = peft.LoraConfig(**config)
    ours = AdapterPatterns(config)
    found = [layer for layer in LAYERS if ours.targets(layer)]
    assert found == [layer for layer in LAYERS if check_target_module_exists(theirs, layer) is not False
                     and bool(check_target_module_exists(theirs, layer))]  # fmt: skip
    assert 0 < len(found) < len(LAYERS)


PATTERNS = [
    "query",
    r"layer\.0\..*query",
    "^bert.encoder.layer.1.output.dense",
    r".*1.*",
    "output.dense",
    "ense",
    r"layer\.1$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_ranks_and_alphas_are_found_as_peft_finds_them(key: str, pattern: str) -> None:
    ours = AdapterPatterns({key: {"nothing": 1, pattern: 7}})
    for layer in LAYERS:
        is_theirs = get_pattern_key(["nothing", pattern], layer) == pattern
        assert (ours.value(key, layer, 3) == 7) == is_theirs, layer


@pytest.mark.parametrize(
    "key", ["target_modules", "exclude_modules", "modules_to_save", "layers_pattern", "rank_pattern"]
)
def test_hostile_patterns_are_refused_wherever_they_are(key: str) -> None:
    hostile = "(" * 3_000
    config: dict[str, Any] = {"target_modules": ["query"], "layers_to_transform": [1], key: hostile}
    if key in ("modules_to_save", "layers_pattern"):
        config[key] = [hostile]
    if key == "rank_pattern":
        config[key] = {hostile: 3}
    with pytest.raises(BothwaysError) as caught:
        AdapterPatterns(config)
    assert caught.value.code == "unsupported-pattern"
