"""Numbers in config.json, recipes and the Python API have ranges, and nothing large is made before they are checked."""

import json
import math
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import safetensors.torch
import torch

from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.objectives import OBJECTIVES
from bothways.pretraining.recipe import PretrainRecipe, pretrain_recipe
from bothways.ranges import Bounded, Range, declared
from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe
from bothways.tasks.registry import TASKS, new_config
from bothways.tasks.task import TaskConfig
from bothways.text.tokenizer import Tokenizer
from bothways.train.strict_toml import read_table
from helpers import TINY, config_for, refused


@dataclass(frozen=True)
class _Sizes(Bounded):
    share: Annotated[float, Range(0, 1, below=True)] = 0.5
    many: tuple[Annotated[int, Range(1, 9)], ...] = ()
    by_name: dict[str, float] | None = None
    first: str | Annotated[int, Range(0, 9)] = "none"


@pytest.mark.parametrize(
    "wrong",
    [
        {"share": 1},
        {"share": math.nan},
        {"share": "0.1"},
        {"many": (1, 10)},
        {"many": (1.0,)},
        {"by_name": {"a": math.inf}},
        {"first": 10},
    ],
)
def test_a_field_says_what_it_may_hold(wrong: dict[str, Any]) -> None:
    _Sizes(0, (1, 9), {"a": 1e300}, 9)
    _Sizes(first="all")
    with refused("out-of-range", names=next(iter(wrong))):
        _Sizes(**wrong)


def _parts() -> Iterator[type]:
    """Every dataclass that a recipe or config.json fills."""
    kinds: list[Any] = [FinetuneRecipe, PretrainRecipe, TaskConfig, EncoderConfig]
    kinds += [one for task in TASKS.values() for one in (task.Settings, task.Options)]
    kinds += [one.Settings for one in OBJECTIVES.values()]
    seen: set[type] = set()
    while kinds:
        kind = kinds.pop()
        if typing.get_args(kind):
            kinds += typing.get_args(kind)
        elif isinstance(kind, type) and is_dataclass(kind) and kind not in seen:
            seen.add(kind)
            kinds += typing.get_type_hints(kind).values()
            yield kind


WITH_NUMBERS = sorted({kind for kind in _parts() if declared(kind)}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", WITH_NUMBERS)
def test_no_number_of_a_recipe_is_unbounded(kind: type) -> None:
    """NaN, infinity and more than 64 bits are refused for every number, also one that is added later."""
    needed: dict[str, Any] = {"steps": 1} if "minutes" in declared(kind) else {}
    needed |= {"sequences": 1} if kind.__name__ == "Phase" else {}
    needed |= {"task": "classify"} if kind is TaskConfig else {}
    for name, allowed in declared(kind).items():
        for wrong in (2**80, -(2**80)) if allowed.whole else (math.nan, math.inf, -math.inf, 10**400):
            hint = str(next(field.type for field in fields(kind) if field.name == name))
            value: Any = {"a": wrong} if "dict" in hint else (wrong, wrong) if "tuple" in hint else wrong
            with pytest.raises(BothwaysError) as caught:
                made = kind(**{**needed, name: value})
                EncoderConfig(positions=made)  # positions are checked by the encoder that has them
            assert caught.value.code == "out-of-range", (name, wrong)


@pytest.mark.parametrize(
    "setting",
    [
        "run.seed=36893488147419103232",
        "run.minutes=inf",
        "run.minutes=nan",
        "run.minutes=1e308",
        "run.epochs=1e308",
        "run.steps=-1",
        "run.evaluate_every=-1",
        "run.save_minutes=-1",
        "run.keep=0",
        "run.micro_tokens=0",
        "optim.lr=inf",
        "optim.lr=nan",
        "optim.warmup=nan",
        "optim.clip=inf",
        "window.length=99999999999",
        "lora.alpha=nan",
        "lora.rank=1000000000000",
    ],
)
def test_recipes_of_both_kinds_have_ranges(setting: str) -> None:
    readers: list[Callable[..., Any]] = [finetune_recipe, *([] if setting.startswith("window") else [pretrain_recipe])]
    for read in readers:
        with pytest.raises(BothwaysError) as caught:
            read({}, ["run.steps=1", setting])
        assert caught.value.code in ("out-of-range", "bad-length")


@pytest.mark.parametrize(
    "text",
    ["x = " + "[" * 5_000 + "]" * 5_000, "x = " + "9" * 5_000, "x." * 3_000 + "x = 1", "[run]\nsteps = 1979-05-27"],
)
def test_a_deep_or_huge_recipe_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BothwaysError):
        finetune_recipe(read_table(tmp_path / "recipe.toml"))


@pytest.mark.parametrize("temperature", [0, -1, math.nan, math.inf, 10**400])
def test_a_temperature_that_gives_no_probabilities_is_refused(temperature: float) -> None:
    with refused("out-of-range"):
        new_config("classify", temperature=temperature)


@pytest.mark.parametrize("temperature", ["0.0", "NaN", "-1", "Infinity"])
def test_a_folder_with_such_a_temperature_is_refused(tmp_path: Path, tokenizer: Tokenizer, temperature: str) -> None:
    from bothways.predict.predictor import Predictor
    from bothways.tasks.folder import with_task

    model = with_task(Model.new(ModelConfig(TINY), tokenizer), config_for("classify", kind="single"), ("a", "b"))
    save(model, tmp_path / "model")
    file = tmp_path / "model/config.json"
    text = file.read_text(encoding="utf-8")
    assert '"temperature": 1.0' in text
    file.write_text(text.replace('"temperature": 1.0', f'"temperature": {temperature}'), encoding="utf-8")
    with refused("out-of-range"):
        Predictor.load(tmp_path / "model")


# ---------------------------------------------------------------------- config.json


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    save(Model.new(ModelConfig(replace(TINY, layers=1), ("masked",)), tokenizer), tmp_path / "model")
    return tmp_path / "model"


def changed(folder: Path, **settings: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | settings), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "key", ["num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "type_vocab_size"]
)
@pytest.mark.parametrize("size", [2_000_000_000, 10**30, -1, 0.5, math.inf, "12", True, [12]])
def test_sizes_are_refused_before_anything_is_made(folder: Path, key: str, size: object) -> None:
    with pytest.raises(BothwaysError) as caught:
        load(changed(folder, **{key: size}))
    assert caught.value.code in ("unsupported-setting", "missing-tensors", "shape-mismatch")


def test_layers_that_the_weights_do_not_have_are_not_made(folder: Path) -> None:
    with refused("missing-tensors", 10_000):
        load(changed(folder, num_hidden_layers=10_000))


@pytest.mark.parametrize("labels", [{"0": "a", "2": "b"}, {"1": "a", "2": "b"}, {"0": "a", "00": "b"}, {"-1": "a"}])
def test_labels_have_all_numbers(folder: Path, labels: dict[str, str]) -> None:
    with refused("bad-labels", tuple(labels)):
        load(changed(folder, id2label=labels))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("modernbert", {"global_attn_every_n_layers": 0, "layer_types": None}),
        ("modernbert", {"local_attention": "128"}),
        ("modernbert", {"rope_parameters": [1]}),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_theta": "x"}}}),
        ("modernbert", {"layer_types": 3}),
        ("deberta-v2", {"position_buckets": "256"}),
        ("deberta-v2", {"max_relative_positions": 1e300}),
        ("deberta-v2", {"pos_att_type": 3}),
        ("deberta-v2", {"conv_kernel_size": [3]}),
        ("albert", {"num_hidden_groups": 2.0}),
        ("eurobert", {"num_key_value_heads": 0}),
        ("eurobert", {"head_dim": math.nan}),
        ("nomic_bert", {"rope_parameters": "default"}),
        ("ernie", {"use_task_id": True, "task_type_vocab_size": "3"}),
        ("roformer", {"embedding_size": math.inf}),
        ("bert", {"id2label": ["a"]}),
        ("bert", {"architectures": 5}),
        ("bert", {"rope_scaling": 5}),
    ],
)
def test_settings_of_another_kind_are_refused(
    bases: dict[str, Path], tmp_path: Path, family: str, settings: dict[str, Any]
) -> None:
    import shutil

    shutil.copytree(bases[family], tmp_path / "model")
    with pytest.raises(BothwaysError):
        load(changed(tmp_path / "model", **settings))


def test_a_pickle_cannot_repeat_one_number_into_many(folder: Path) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    name = "bert.embeddings.word_embeddings.weight"
    tensors[name] = torch.zeros(1).expand(2_000_000, 32)
    torch.save(tensors, folder / "pytorch_model.bin")
    assert (folder / "pytorch_model.bin").stat().st_size < 1e6
    with refused("damaged-file", folder / "pytorch_model.bin"):
        load(changed(folder, vocab_size=2_000_000))


def test_windows_and_positions_have_ranges() -> None:
    with refused("out-of-range", ("positions.rows", 2**40)):
        EncoderConfig(positions=Learned(2**40))
    with refused("out-of-range", -1):
        WindowSettings(overlap=-1)
