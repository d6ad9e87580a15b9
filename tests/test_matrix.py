"""A part of the matrix: an even sample of its cases, all kinds of files for one family, and that it can fail.

`make matrix` runs the whole.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from bothways.errors import BothwaysError
from bothways.model.checkpoint import save as write
from bothways.model.families import FAMILIES
from bothways.model.load import load as read
from bothways.model.model import Model
from matrix import cases
from matrix.cases import BACK, EQUAL, FAILURES, FILES, FORTH, REFUSED, THEIRS, Outcome, Unit
from matrix.table import ROWS, STRANGERS

BASE = Unit("variant", "bert", "ForMaskedLM", "base", (FORTH, BACK))
SAMPLE = cases.sample(110)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    """Their progress bars are written for every folder."""
    transformers.logging.disable_progress_bar()
    yield
    transformers.logging.enable_progress_bar()


def one(unit: Unit) -> Outcome:
    (outcome,) = cases.run(unit)
    return outcome


def named(unit: Unit) -> str:
    return f"{unit} {unit.items[0]}"


# ---------------------------------------------------------------------- the table


def test_every_family_has_a_row() -> None:
    """Every family of which transformers has a class: others have no judge here."""
    judged = set(FAMILIES) & set(transformers.CONFIG_MAPPING)
    assert sorted(judged - set(cases.BY_ROW)) == []
    assert len(cases.BY_ROW) == len(ROWS)


def test_rows_are_about_families_that_transformers_has() -> None:
    for row in ROWS:
        kind = getattr(transformers, f"{row.classes}Config")
        assert kind.model_type == row.family
        assert set(row.only) <= set(row.variants)
        for name in row.variants:  # a misspelt variant would be the base under another name
            assert cases.settings_of(row, name) != dict(row.base), (row.family, name)
    assert set(STRANGERS) <= set(transformers.CONFIG_MAPPING)


def test_the_sample_has_every_family_and_every_kind_of_case() -> None:
    assert {unit.family for unit in SAMPLE} >= {row.family for row in cases.rows_here()}
    assert {unit.kind for unit in SAMPLE} >= {"variant", "activation", "files", "keys"}
    assert {unit.items[0] for unit in SAMPLE} >= {FORTH, BACK}


# ---------------------------------------------------------------------- the cases


@pytest.mark.parametrize("unit", SAMPLE, ids=named)
def test_equal_or_refused_by_the_name_of_the_key(unit: Unit) -> None:
    outcome = one(unit)
    assert outcome.outcome not in FAILURES, str(outcome)


@pytest.mark.parametrize("item", FILES)
def test_every_kind_of_file(item: str) -> None:
    outcome = one(Unit("files", "roberta", "ForSequenceClassification", "base", (item,)))
    assert outcome.outcome == EQUAL, str(outcome)


@pytest.mark.parametrize("name", [name for name in STRANGERS if name not in FAMILIES])
def test_a_stranger_is_refused_by_name(name: str) -> None:
    outcome = one(Unit("stranger", name, "Model", "", (FORTH,)))
    assert outcome.outcome == REFUSED, str(outcome)


# ---------------------------------------------------------------------- it can fail


def outcomes(unit: Unit) -> list[str]:
    return [outcome.outcome for outcome in cases.run(unit)]


def test_without_a_bug_both_directions_are_equal() -> None:
    assert outcomes(BASE) == [EQUAL, EQUAL]


def test_another_eps_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """1e-7 instead of 1e-12 is the smallest mistake that a default can make."""

    def load(folder: Path) -> Model:
        model = read(folder)
        for part in model.modules():
            if isinstance(part, torch.nn.LayerNorm):
                part.eps = 1e-7
        return model

    monkeypatch.setattr(cases, "load", load)
    assert outcomes(BASE) == ["wrong"]


def test_a_file_that_we_wrote_wrongly_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(model: Model, folder: Path) -> None:
        write(model, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))

    monkeypatch.setattr(cases, "save", save)
    assert outcomes(BASE) == [EQUAL, "wrong"]


def test_a_file_that_lacks_a_tensor_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(model: Model, folder: Path) -> None:
        write(model, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))

    monkeypatch.setattr(cases, "save", save)
    assert outcomes(BASE) == [EQUAL, "wrong"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BothwaysError("config.json has pad_token_id = None: expected a number"), REFUSED),
        (BothwaysError("a setting is not supported", "unsupported-setting", ("pad_token_id", None)), REFUSED),
        (BothwaysError("config.json has a setting that is not supported"), "wrong"),
        (BothwaysError("pad_token_id is null. It must be a number."), "wrong"),
        (BothwaysError("pad_token_id is null:\nexpected a number"), "wrong"),
        (TypeError("pad_token_id"), "crash"),
    ],
)
def test_refusals_name_the_key_in_one_sentence(error: Exception, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(folder: Path) -> Model:
        raise error

    monkeypatch.setattr(cases, "load", load)
    keys = Unit("keys", "bert", "ForMaskedLM", "uncommon", ("pad_token_id null",))
    assert outcomes(keys) == [outcome]


def test_a_crash_where_their_class_raises_is_a_crash_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Unit("keys", "bert", "ForMaskedLM", "uncommon", ("hidden_size missing",))
    assert outcomes(keys) == [THEIRS]

    def load(folder: Path) -> Model:
        raise TypeError

    monkeypatch.setattr(cases, "load", load)
    assert outcomes(keys) == ["crash"]


def test_missing_keys_are_missing_and_null_keys_are_null() -> None:
    row = cases.BY_ROW["modernbert"]
    config = {"layer_types": [1], "norm_eps": 1e-5, "rope_parameters": {}}
    assert cases.edited(config, row, "norm_eps missing") == {"layer_types": [1], "rope_parameters": {}}
    assert cases.edited(config, row, "norm_eps null") == {**config, "norm_eps": None}
    old = cases.edited(config, row, "of version 4")
    assert "layer_types" not in old
    assert old["local_rope_theta"] == 77.0


def test_a_unit_of_a_sample_is_one_case() -> None:
    assert all(len(unit.items) == 1 for unit in SAMPLE)
    assert len(set(SAMPLE)) == len(SAMPLE)
    back = replace(BASE, items=(BACK,))
    assert [outcome.item for outcome in cases.run(back)] == [BACK]
