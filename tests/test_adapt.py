"""Adapting a model to a domain: what is learned, what must not be forgotten, and when it stops."""

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.model.checkpoint import save
from bothways.model.config import BASE, ModelConfig
from bothways.model.model import Model
from bothways.pretraining.adapt import Adapted, adapt, default_lr
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, refused
from helpers.runs import PlugError

GENERAL = ["The cat sleeps in the house.", "A small cat reads.", "The cat reads in the house."]
DOMAIN = ["The dog runs to the tree.", "北京是中国的首都。", "A dog sleeps."]
QUICK = ["run.device=cpu", "data.valid_sequences=16", "phases.0.length=16", "phases.0.tokens=256", "run.steps=60",
         "run.evaluate_every=6", "run.save_every=6"]  # fmt: skip


def write(path: Path, sentences: list[str]) -> Path:
    draws = random.Random(0)
    documents = [" ".join(draws.choices(sentences, k=draws.randint(2, 5))) for _ in range(150)]
    path.write_text("\n".join(documents), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("texts")
    return {"general": write(folder / "general.txt", GENERAL), "domain": write(folder / "domain.txt", DOMAIN)}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, texts: dict[str, Path]) -> Path:
    """A model that has learned the general text."""
    folder = tmp_path_factory.mktemp("reader")
    shape = replace(TINY, dropout=0.0, attention_dropout=0.0)
    save(Model.new(ModelConfig(shape, ("masked",)), tokenizer, seed=1), folder / "new")
    found = adapt(texts["general"], folder / "new", folder / "run", each="lines", valid="20%", lr=5e-3, settings=QUICK)
    assert found.after["domain"] < 0.8 * found.before["domain"]
    return found.folder


def run(reader: Path, out: Path, texts: dict[str, Path], **changed: object) -> Adapted:
    options = {"each": "lines", "valid": "20%", "lr": 3e-3, "settings": QUICK, **changed}
    return adapt(texts["domain"], reader, out, general=[texts["general"]], **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_domain_is_learned_and_general_text_is_kept(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    found = run(reader, tmp_path / "out", texts, tolerance=0.2)
    assert found.complete
    assert found.after["domain"] < 0.8 * found.before["domain"]
    assert found.after["general"] <= 1.2 * found.before["general"]
    recipe = bothways.read_recipe(tmp_path / "out/recipe.toml")
    assert recipe.data.weights == {"domain": 0.7, "general": 0.3}
    assert (found.folder / "config.json").exists()


def test_it_stops_before_general_text_is_forgotten(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    """With hardly any general text read again, its loss rises; the model that is kept is from before."""
    found = run(reader, tmp_path / "out", texts, replay=0.001, tolerance=0.02)
    assert found.complete
    assert "general text rose" in found.stopped
    assert found.after["general"] <= 1.02 * found.before["general"]
    assert found.best_step is not None
    assert found.best_step < found.steps


def test_a_rate_that_ruins_the_model_leaves_it_as_it_was(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    found = adapt(texts["general"], reader, tmp_path / "out", each="lines", valid="20%", lr=1.0, settings=QUICK)
    assert (found.best_step, found.after) == (0, found.before)
    assert "fell no further" in found.stopped
    before, after = (bothways.load(folder).state_dict() for folder in (reader, found.folder))
    assert all((before[name] == after[name]).all() for name in before)


def test_several_domains_are_reported_apart(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    found = adapt(
        {"first": [texts["domain"]], "second": [texts["general"]]},
        reader, tmp_path / "out", each="lines", valid="20%", lr=1e-3, settings=[*QUICK, "run.steps=6"],
    )  # fmt: skip
    assert list(found.after) == ["first", "second"]


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_model(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    whole = run(reader, tmp_path / "whole", texts, tolerance=0.2)

    def pull(event: object) -> None:
        if getattr(event, "step", 0) == 14:
            raise PlugError

    with pytest.raises(PlugError):
        run(reader, tmp_path / "out", texts, tolerance=0.2, listen=[pull])
    found = run(reader, tmp_path / "out", texts, tolerance=0.2)
    assert (found.before, found.after, found.best_step) == (whole.before, whole.after, whole.best_step)
    assert (found.folder / "model.safetensors").read_bytes() == (whole.folder / "model.safetensors").read_bytes()


def test_the_rate_follows_the_models_advice_or_its_width(tokenizer: Tokenizer) -> None:
    advised = Model.new(ModelConfig(TINY, advice="[optim]\nlr = 4e-4\n"), tokenizer)
    assert default_lr(advised) == pytest.approx(2e-4)
    assert default_lr(Model.new(ModelConfig(TINY), tokenizer)) == pytest.approx(1e-4 * (768 / TINY.width) ** 0.5)
    assert BASE.width == 768


def test_what_cannot_be_watched_is_refused(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    with refused("nothing-held-out", "domain", names="the text of domain is one document, .* `each` lines"):
        adapt(texts["domain"], reader, tmp_path / "one", settings=QUICK)  # all lines are one document
    with refused("all-held-out", 1, names="one document"):
        adapt(texts["domain"], reader, tmp_path / "one", valid=0.9999, settings=QUICK)
    (tmp_path / "line.txt").write_text("the tree", encoding="utf-8")  # held out from a share of 71 % on
    (tmp_path / "empty.txt").touch()
    for more, code, valid in (
        ("line", "nothing-held-out", 0.2),
        ("line", "all-held-out", 0.9),
        ("empty", "no-text", 0.2),
    ):
        with refused(code, "more"):
            both = {"domain": [texts["domain"]], "more": [tmp_path / f"{more}.txt"]}
            adapt(both, reader, tmp_path / "one", each="lines", valid=valid, settings=QUICK)
    with refused("out-of-range"):
        run(reader, tmp_path / "two", texts, replay=1.0)
    with refused("bad-combination", names="general"):
        adapt(texts["domain"], reader, tmp_path / "two", replay=0.5, settings=QUICK)
    with refused("repeated-source"):
        adapt({"general": [texts["domain"]]}, reader, tmp_path / "three", settings=QUICK)
    with refused("no-input"):
        adapt([], reader, tmp_path / "four", settings=QUICK)


def test_it_goes_on_with_the_files_that_it_began_with(
    reader: Path, texts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if they are gone; the card names what was read."""
    for name, path in texts.items():
        (tmp_path / path.name).write_bytes(path.read_bytes())
        texts = {**texts, name: tmp_path / path.name}
    first = run(reader, tmp_path / "out", texts)
    with refused("other-data", names="domains.txt"):
        run(reader, tmp_path / "out", {**texts, "domain": tmp_path / "domains.txt"})
    with refused("other-data", names="nothing"):
        adapt(texts["domain"], reader, tmp_path / "out", settings=QUICK)
    texts["domain"].unlink()
    assert run(reader, tmp_path / "out", texts).after == first.after
    card = (first.folder / "README.md").read_text(encoding="utf-8")
    assert "domain: domain.txt; general: general.txt" in card


def test_little_text_is_said(reader: Path, tmp_path: Path) -> None:
    (tmp_path / "little.txt").write_text("\n".join(DOMAIN), encoding="utf-8")
    said: list[str] = []
    found = adapt(tmp_path / "little.txt", reader, tmp_path / "out", each="lines", valid="40%",
                  settings=["run.device=cpu"], say=said.append)  # fmt: skip
    assert found.steps <= 10
    assert [line for line in said if "tokens are little: 10 steps of 256 are" in line and "not 3" in line]


def test_a_model_without_a_head_for_words_is_refused(
    tokenizer: Tokenizer, texts: dict[str, Path], tmp_path: Path
) -> None:
    save(Model.new(ModelConfig(TINY), tokenizer), tmp_path / "bare")
    with refused("no-head", names="bare"):
        adapt(texts["domain"], tmp_path / "bare", tmp_path / "out", settings=QUICK)
    assert not (tmp_path / "out").exists()


def test_the_model_is_that_of_the_step_that_is_named(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    """Training goes on for a while after general text was unlearned."""
    words = ["adapt", str(texts["domain"]), "--general", str(texts["general"]), "--model", str(reader), "--out",
             str(tmp_path / "out"), "--each", "lines", "--valid", "20%", "--lr", "3e-3", "--tolerance", "0.001",
             *(word for setting in QUICK for word in ("--set", setting))]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    state = json.loads((tmp_path / "out/state.json").read_text())
    card = (tmp_path / "out/model/README.md").read_text(encoding="utf-8")
    assert f"{state['best_step']:,} steps, the best of {state['step']:,}" in card
    assert "domain/loss" in card
    assert "mlm\\_loss" not in card  # of the only objective: it is the loss
    assert "the held-out loss of general text rose" in done.output


def test_the_command_prints_a_table(reader: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    words = ["adapt", str(texts["domain"]), "--general", str(texts["general"]), "--model", str(reader), "--out",
             str(tmp_path / "out"), "--each", "lines", "--valid", "20%",
             *(word for setting in QUICK for word in ("--set", setting))]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "held-out loss" in done.stdout
    assert "general" in done.stdout
    again = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert again["complete"] is True
    assert set(again["after"]) == {"domain", "general"}
