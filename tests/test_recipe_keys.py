"""Every key of a recipe changes something or is refused: a key that is read and forgotten misleads its user.

The keys are those of the dataclasses, so a new one fails here until it has a row below: a changed value, the settings
with which it has an effect, and what that effect is.
"""

import dataclasses
import hashlib
import json
import random
import tomllib
import typing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import bothways.pretraining.shards
from bothways.errors import BothwaysError
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.sentence import Normalize, Sentence
from bothways.pretraining.objectives import OBJECTIVES
from bothways.pretraining.pack import pack
from bothways.pretraining.pretrain import pretrain
from bothways.pretraining.recipe import PretrainModel, PretrainRecipe, pretrain_recipe
from bothways.tasks.finetune import finetune
from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe
from bothways.tasks.registry import TASKS
from bothways.text.tokenizer import Tokenizer
from bothways.train.protocol import Evaluated, Event, Saved, Started, Stepped
from bothways.train.ranks import parallelize
from helpers import TINY, WORDS, make_loud, refused

SHAPE = replace(TINY, width=16, ffn_width=16, layers=2, num_heads=2)


@dataclass(frozen=True)
class Change:
    """A changed value of one key."""

    value: str
    """As after --set; {x} is the path of the file or folder x."""
    effect: str = "losses"
    """The part of `Seen` that must differ, or the code of the error."""
    given: tuple[str, ...] = ()
    """Settings, before and after, with which the key has an effect."""


@dataclass
class Seen:
    """What a run did."""

    losses: Any = None
    """Of every step, and the scores of every evaluation."""
    events: Any = None
    """The kinds of all events, with their steps."""
    files: Any = None
    """The names of all files of the run, and the content of its models; but not its recipe, which always differs."""
    calls: Any = None
    """What was asked of torch, for keys that must not change a loss."""
    result: Any = None


def c(value: str, *given: str, effect: str = "losses") -> Change:
    return Change(value, effect, given)


# ---------------------------------------------------------------------- the changed values

MUON, INIT, LORA = "optim.name=muon", "model.init={base}", "lora.rank=2"
OPTIM = {
    "optim.name": c("muon"),
    "optim.lr": c("2e-3"),
    "optim.betas": c("[0.5, 0.999]"),
    "optim.eps": c("1e-2"),
    "optim.weight_decay": c("0.9"),
    "optim.clip": c("0.01"),
    "optim.schedule": c("constant"),
    "optim.warmup": c("2"),
    "optim.cooldown": c("0.9", "optim.schedule=wsd"),
    "optim.head_lr": c("1e-2"),
    "optim.layer_decay": c("0.5"),
    "optim.muon_lr": c("0.2", MUON),
    "optim.muon_momentum": c("0.1", MUON),
    "optim.muon_weight_decay": c("3.0", MUON),
}
RUN = {
    "run.steps": c("2", effect="events"),
    "run.minutes": c("1e-6", effect="events"),
    "run.patience": c("1", "run.evaluate_every=1", "optim.lr=1e-30", effect="events"),
    "run.seed": c("4"),
    "run.device": c("cuda", effect="no-gpu"),
    "run.precision": c("bf16"),
    "run.compile": c("true", effect="calls"),
    "run.gradient_checkpointing": c("true", effect="calls"),
    "run.deterministic": c("true", effect="calls"),
    "run.micro_tokens": c("40"),
    "run.parallel": c("fsdp", effect="calls"),
    "run.evaluate_every": c("1", effect="events"),
    "run.save_every": c("1", effect="events"),
    "run.save_minutes": c("1e-9", effect="events"),
    "run.save_first": c("true", effect="events"),
    "run.keep": c("1", "run.save_every=1", "run.keep_state=true", effect="files"),
    "run.keep_state": c("true", effect="files"),
    **{
        f"run.{name}": c("true", effect="files" if find_spec(name) else "missing-package")
        for name in ("tensorboard", "mlflow", "wandb")
    },
}
DISTILL = {
    "distill.teacher": c("{teacher}"),
    "distill.hard": c("9.0"),
    "distill.soft": c("9.0"),
    "distill.cosine": c("9.0"),
    "distill.relations": c("9.0"),
    "distill.temperature": c("9.0"),
    "distill.relation_layer": c("1", "distill.relations=1.0"),
    "distill.relation_heads": c("4", "distill.relations=1.0"),
}
DISTILL = {
    key: replace(one, given=("distill.teacher={teacher}", *one.given)) if key != "distill.teacher" else one
    for key, one in DISTILL.items()
}
ONLY_MLM = 'objectives=["mlm"]'
SPANS = "mlm.select=span"
MODERN = "model.family=modernbert"
RTD = ("model.family=electra", 'objectives=["mlm", "rtd"]')
KEPT = (*RTD, "rtd.masked=0.5")
PRETRAINING = {
    **OPTIM,
    **RUN,
    "run.epochs": c("1", effect="bad-length"),
    "run.evaluate_first": c("true", effect="events"),
    **{key: replace(one, given=(ONLY_MLM, *one.given)) for key, one in DISTILL.items()},
    "distill.over": c("all", ONLY_MLM, "distill.teacher={teacher}"),
    "objectives": c('["mlm", "nsp"]'),
    "data.train": c('["{other packed}"]'),
    "data.rows": c("stream"),
    "data.weights": c("{first = 9.0, second = 1.0}"),
    "data.keep": c("{third = 0.0}", effect="unknown-source"),
    "data.valid_sequences": c("1"),
    "data.verify": c("false", effect="calls"),
    "model.init": c("{base}"),
    "model.keep_layers": c("1", INIT),
    "model.family": c("modernbert"),
    "model.embedding_width": c("8", "model.family=electra"),
    "model.width": c("8"),
    "model.layers": c("1"),
    "model.num_heads": c("4"),
    "model.ffn_width": c("8"),
    "model.activation": c('"relu"'),
    "model.positions": c("48"),
    "model.dropout": c("0.4"),
    "model.attention_dropout": c("0.4"),
    "model.norm_eps": c("0.01"),
    "model.init_std": c("0.2"),
    "model.window": c("2", MODERN),
    "model.rotary": c("100.0", MODERN),
    "model.causal": c("true"),
    "lora.rank": c("2", INIT, effect="files"),
    "lora.alpha": c("99.0", INIT, LORA),
    "lora.dropout": c("0.5", INIT, LORA),
    "lora.targets": c('["key"]', INIT, LORA),
    "phases.share": c("9.0"),
    "phases.length": c("12"),
    "phases.tokens": c("96", "phases.0={share = 0.5, length = 24, tokens = 72}"),
    "phases.sequences": c("3"),
    "phases.rate": c("0.5"),
    "finetune": c("{optim = {lr = 0.1}}", effect="files"),
    "mlm.rate": c("0.4"),
    "mlm.select": c("span"),
    "mlm.mask": c("0.1"),
    "mlm.random": c("0.0"),
    "mlm.static": c("1", 'data.train=["{other packed}"]', "phases=[{length = 24, sequences = 12}]"),
    "mlm.span_mean": c("1.1", SPANS),
    "mlm.span_longest": c("1", SPANS),
    "mlm.span_shares": c("[0.0, 0.0, 1.0]", SPANS),
    "nsp.short": c("1.0", 'objectives=["mlm", "nsp"]'),
    "sop.short": c("1.0", 'objectives=["mlm", "sop"]'),
    "rtd.weight": c("1.0", *RTD),
    "rtd.width": c("1.0", *RTD),
    "rtd.layers": c("0.5", *RTD),
    "rtd.temperature": c("1e-3", *RTD),
    "rtd.embeddings": c("own", *RTD),
    "rtd.generator": c("{generator}", *RTD, "rtd.width=1.0"),
    "rtd.masked": c("0.5", *RTD),
    "rtd.masked_by": c("sequence", *KEPT),
    "rtd.fill": c("9.0", *KEPT),
}
ANSWER = ("task=answer", 'data.train=["{asked}"]', 'data.dev=["{asked}"]')
SETS = 'embed.sets=[{file = "related.jsonl"}]'
EMBED = ("task=embed", 'data.train=["{related}"]', 'data.dev=["{related}"]')
FINETUNING = {
    **OPTIM,
    **RUN,
    "run.epochs": c("1", effect="events"),
    "run.evaluate_first": c("true", effect="events"),
    "run.batch_size": c("2"),
    **DISTILL,
    "distill.over": c("all", "distill.teacher={teacher}", effect="pretraining-only"),
    "task": c("score"),
    "data.train": c('["{other rows}"]'),
    "data.dev": c('["{other rows}"]'),
    "data.text": c("third"),
    "data.pair": c("third", "data.text=text"),
    "data.label": c("other"),
    "data.encoding": c("klingon", effect="unknown-encoding"),
    "model.init": c("{teacher}"),
    "model.freeze": c("embeddings"),
    "model.keep_layers": c("1"),
    "model.pooling": c("mean", "model.init={modern}"),
    "model.dropout": c("0.4"),
    "model.attention_dropout": c("0.4"),
    "window.length": c("16"),
    "window.overlap": c("0", "window.length=16"),
    "window.long": c("cut", "window.length=16"),
    "lora.rank": c("2", effect="files"),
    "lora.alpha": c("99.0", LORA),
    "lora.dropout": c("0.5", LORA),
    "lora.targets": c('["key"]', LORA),
    "classify.kind": c("regression"),
    "classify.separator": c(";", "classify.kind=multi", effect="files"),
    "classify.tune_thresholds": c("false", "classify.kind=multi"),
    "classify.label_smoothing": c("0.5"),
    "classify.focal_gamma": c("2.0"),
    "classify.class_weights": c("balanced"),
    "classify.metric": c("macro_f1", effect="result"),
    "score.loss": c("listnet", "task=score", 'data.train=["{ranked}"]', 'data.dev=["{ranked}"]'),
    "answer.max_answer_length": c("1", *ANSWER),
    "embed.loss": c("triplet", *EMBED),
    "embed.scale": c("5.0", *EMBED),
    "embed.symmetric": c("true", *EMBED),
    "embed.margin": c("1.0", *EMBED, "embed.loss=triplet"),
    "embed.matryoshka": c("[8]", *EMBED),
    "embed.pooling": c("cls", *EMBED),
    "embed.normalize": c("false", *EMBED, effect="files"),
    "embed.query_prompt": c("the cat", *EMBED),
    "embed.document_prompt": c("the cat", *EMBED),
    "embed.guide": c("{vectors}", *EMBED),
    "embed.guide_margin": c("0.9", *EMBED, "embed.guide={vectors}"),
    "embed.teachers": c('["{vectors}"]', *EMBED),
    "embed.teacher_vectors": c("/dev/null/kept", *EMBED, 'embed.teachers=["{vectors}"]', effect="unwritable"),
    "embed.center": c("0.5", *EMBED, 'embed.teachers=["{vectors}"]'),
    "embed.translations": c("true", *EMBED, 'embed.teachers=["{vectors}"]'),
    "embed.similarity": c("1.0", *EMBED, 'embed.teachers=["{vectors}"]'),
    "sets.file": c("none.jsonl", *EMBED, SETS, effect="no-such-file"),
    "sets.loss": c("triplet", *EMBED, SETS),
    "sets.weight": c("3.0", *EMBED, SETS),
    "sets.translations": c("true", *EMBED, SETS, 'embed.teachers=["{vectors}"]'),
    "sets.query_prompt": c("the cat", *EMBED, SETS),
    "sets.document_prompt": c("the cat", *EMBED, SETS),
}


# ---------------------------------------------------------------------- the keys


def keys_of(kind: type, prefix: str = "") -> Iterator[str]:
    """The keys of a dataclass, and of the dataclasses in it."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        inner = typing.get_args(hint)[0] if typing.get_origin(hint) is tuple else hint
        if dataclasses.is_dataclass(inner):
            yield from keys_of(typing.cast(type, inner), f"{field.name}.")
        elif field.name != "settings":  # each objective and each task has its own part instead
            yield prefix + field.name


def test_every_key_has_a_row() -> None:
    objectives = {key for name, one in OBJECTIVES.items() for key in keys_of(one.Settings, f"{name}.")}
    tasks = {key for name, one in TASKS.items() for key in keys_of(one.Settings, f"{name}.")}
    assert set(keys_of(PretrainRecipe)) | objectives == set(PRETRAINING)
    assert set(keys_of(FinetuneRecipe)) | tasks == set(FINETUNING)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_of_the_shape_changes_every_family_or_is_refused(family: str) -> None:
    model = PretrainModel(family=family, width=16, layers=3, num_heads=2, ffn_width=16, positions=32)
    usual = model.encoder(99)
    for key in keys_of(PretrainModel):
        if key not in ("init", "keep_layers", "family"):
            value = tomllib.loads(f"value = {PRETRAINING[f'model.{key}'].value}")["value"]
            with suppress(BothwaysError):
                assert replace(model, **{key: value}).encoder(99) != usual, key


def test_the_settings_of_a_task_are_no_key_of_their_own() -> None:
    for read in (finetune_recipe, pretrain_recipe):
        with refused("unknown-key", "settings"):
            read({"settings": {"kind": "multi"}})


# ---------------------------------------------------------------------- the runs


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, str]:
    """Models, packed text and labelled rows."""
    folder, draws = tmp_path_factory.mktemp("places"), random.Random(0)
    words = [word for word in WORDS if word.isascii() and word.isalpha() and len(word) > 1]

    def sentences(count: int) -> str:
        made = (" ".join(draws.choices(words, k=draws.randint(3, 5))) for _ in range(count))
        return " ".join(f"{sentence.capitalize()}." for sentence in made)

    for name, seed, shape in (("base", 1, SHAPE), ("teacher", 2, SHAPE)):
        model = Model.new(ModelConfig(shape, ("pooler", "masked", "sequence"), ("0", "1")), tokenizer, seed=seed)
        make_loud(model, seed)
        save(model, folder / name)
    model.sentence = Sentence(Pooling(("mean",)), [Normalize()])
    save(model, folder / "vectors")
    for name, count in (("packed", 24), ("other packed", 4)):
        for source in ("first", "second"):
            (folder / f"{source}.txt").write_text("\n\n".join(sentences(4) for _ in range(count)))
        texts = {source: [folder / f"{source}.txt"] for source in ("first", "second")}
        pack(texts, tokenizer, folder / name, valid=0.2)
    for name in ("rows", "other rows"):
        rows = [
            {
                "text": sentences(3),
                "text_pair": sentences(1),
                "third": sentences(1),
                "label": i % 3 // 2,
                "other": i % 2,
            }
            for i in range(8)
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    asked = [{"question": sentences(1), "context": (text := sentences(2)), "answers": [text[:9]]} for _ in range(4)]
    (folder / "asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    lists = [
        {"query": sentences(1), "documents": [sentences(1) for _ in range(3)], "labels": [0, 1, 0]} for _ in range(4)
    ]
    (folder / "ranked.jsonl").write_text("\n".join(map(json.dumps, lists)))
    related = [{"anchor": sentences(1), "positive": sentences(1), "negative": sentences(1)} for _ in range(8)]
    (folder / "related.jsonl").write_text("\n".join(map(json.dumps, related)))
    found = {path.name.removesuffix(".jsonl"): str(path) for path in folder.iterdir()}
    table = settings_of(PRETRAIN, [*RTD, "rtd.width=1.0"], found)
    pretrain(pretrain_recipe({}, table), folder / "electra")
    pretrain(pretrain_recipe({}, settings_of(PRETRAIN, [MODERN], found)), folder / "modern run")
    return found | {"generator": str(folder / "electra/generator"), "modern": str(folder / "modern run/model")}


LENGTH = ("run.steps=3", "run.device=cpu", "run.save_minutes=0", "optim.lr=1e-3", "optim.warmup=0")
PRETRAIN = (
    *LENGTH,
    ONLY_MLM,
    'data.train=["{packed}"]',
    "data.valid_sequences=4",
    "model.width=16",
    "model.layers=2",
    "model.num_heads=2",
    "model.ffn_width=16",
    "model.positions=32",
    "run.evaluate_first=false",
    "phases=[{share = 0.5, length = 24, sequences = 4}, {share = 0.5, length = 16, sequences = 3}]",
)
FINETUNE = (*LENGTH, 'data.train=["{rows}"]', 'data.dev=["{rows}"]', "model.init={base}", "run.batch_size=4")


def settings_of(base: Sequence[str], changes: Sequence[str], places: dict[str, str]) -> list[str]:
    found = [*base, *changes]
    for name, path in places.items():
        found = [setting.replace(f"{{{name}}}", path) for setting in found]
    return found


_SEEN: dict[tuple[str, ...], Seen] = {}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of torch, in order; the compiler is not started."""
    found: list[str] = []

    def compiled(module: Any, **options: Any) -> Any:
        found.append("compile")
        return module

    def recomputed(*arguments: Any, **options: Any) -> Any:
        found.append("checkpoint")
        return checkpoint(*arguments, **options)

    def parallel(module: Any, blocks: Any, ranks: Any, kind: str, half: Any) -> Any:
        found.append(kind)  # which only matters with several processes: tests/test_ranks.py
        return parallelize(module, blocks, ranks, kind, half)  # type: ignore[arg-type]

    def summed(file: Path) -> int:
        found.append("checksum")
        return checksum(file)

    monkeypatch.setattr("bothways.pretraining.trainable.pseudo_perplexity", lambda *_: 0.0)  # slow, and no key's own
    checksum = bothways.pretraining.shards.checksum
    monkeypatch.setattr("torch.compile", compiled)
    monkeypatch.setattr("bothways.model.encoder.checkpoint", recomputed)
    monkeypatch.setattr("bothways.train.fit.parallelize", parallel)
    monkeypatch.setattr("bothways.pretraining.shards.checksum", summed)
    monkeypatch.setattr("torch.use_deterministic_algorithms", lambda wanted: found.append(f"deterministic {wanted}"))
    return found


def observe(kind: str, settings: Sequence[str], out: Path, calls: list[str]) -> Seen:
    calls.clear()
    losses: list[Any] = []
    events: list[Any] = []

    def listen(event: Event) -> None:
        events.append((type(event).__name__, event.step))
        match event:
            case Started():
                events[-1] += (event.device, event.precision)
            case Stepped():
                losses.append(event.losses)
            case Evaluated():
                losses.append(event.scores)
            case Saved():
                events[-1] += (event.folder.name,)

    if kind == "pretrain":
        pretrain(pretrain_recipe({}, settings), out, listen=[listen])
        result = None
    else:
        done = finetune(finetune_recipe({}, settings), out, listen=[listen])
        result = (done.task, done.labels, done.metric)
    files = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        place = path.relative_to(out)
        is_model = place.parts[0] in ("model", "adapter", "generator")
        files[str(place)] = hashlib.sha256(path.read_bytes()).hexdigest() if is_model else ""
    return Seen(losses, events, files, list(calls), result)


@pytest.mark.filterwarnings("ignore:mkldnn")  # a CPU without bf16
@pytest.mark.parametrize(("kind", "key"), [("pretrain", key) for key in PRETRAINING] + [("finetune", key) for key in FINETUNING])  # fmt: skip
def test_every_key_changes_something_or_is_refused(
    kind: str, key: str, places: dict[str, str], tmp_path: Path, calls: list[str]
) -> None:
    base, changes = (PRETRAIN, PRETRAINING) if kind == "pretrain" else (FINETUNE, FINETUNING)
    change = changes[key]
    before = tuple(settings_of(base, change.given, places))
    path = key.replace("phases.", "phases.0.").replace("sets.", "embed.sets.0.")
    after = [*before, *settings_of([f"{path}={change.value}"], [], places)]
    if not hasattr(Seen(), change.effect):
        observe_refused(kind, after, tmp_path / "after", calls, change.effect)
        return
    if (kind, *before) not in _SEEN:
        _SEEN[kind, *before] = observe(kind, before, tmp_path / "before", calls)
    found = observe(kind, after, tmp_path / "after", calls)
    assert getattr(found, change.effect) != getattr(_SEEN[kind, *before], change.effect)


def observe_refused(kind: str, settings: Sequence[str], out: Path, calls: list[str], code: str) -> None:
    if code == "no-gpu" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(BothwaysError) as caught:
        observe(kind, settings, out, calls)
    assert caught.value.code == code
