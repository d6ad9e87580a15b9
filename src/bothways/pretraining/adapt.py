"""Adapts a model to text of a domain by continued pretraining, and watches that it forgets nothing.

Gururangan et al. 2020 (Don't Stop Pretraining); general text is replayed if it is given.
"""

import math
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bothways import atomic
from bothways.errors import BothwaysError, require_range
from bothways.model.box import DEFAULT, lasting_name, model_folder
from bothways.model.card import file_names
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.run_folder import RECIPE
from bothways.pretraining.pack import ALL_HELD_OUT, NO_TEXT, pack
from bothways.pretraining.pretrain import Pretrained, pretrain
from bothways.pretraining.recipe import PretrainRecipe, pretrain_recipe
from bothways.pretraining.shards import Corpus, Packed, open_packed
from bothways.pretraining.trainable import risen
from bothways.text.files import Each, find_files
from bothways.train.session import PACKED, Listener, Say, last_scores

GENERAL = "general"
"""The name of the source that is replayed."""
_REPLAY, _TOLERANCE = 0.3, 0.05
_LENGTH = 256
_EVALUATIONS = 10
_SMALLEST, _USUAL, _LARGEST = 256, 2_048, 32_768
"""Tokens of a step; fewer than usual only if there would not be enough steps."""
_STEPS_PER_EPOCH = 50
_RATE = 1e-4
"""Learning rate of a model of BERT-Base's width that advises none; it grows as the width shrinks."""
_OF_ADVISED = 0.5
"""Share of the learning rate that a model advises for fine-tuning."""


@dataclass(frozen=True)
class Adapted:
    """The result of `adapt`."""

    folder: Path
    """The adapted model."""
    before: dict[str, float] = field(default_factory=dict)
    """Held-out loss of each source, before."""
    after: dict[str, float] = field(default_factory=dict)
    """Held-out loss of each source, of the adapted model."""
    steps: int = 0
    best_step: int | None = None
    """The step of the adapted model; 0: it is the model as it was, since nothing better was found."""
    complete: bool = True
    """False if it was interrupted: the same call continues."""
    stopped: str = ""
    """Why it ended before its time, or why the model is not that of the last step, in a sentence."""


def adapt(
    texts: Path | str | Sequence[Path | str] | Mapping[str, Sequence[Path | str]],
    model: Path | str | None,
    out: Path | str,
    *,
    general: Sequence[Path | str] = (),
    replay: float = _REPLAY,
    tolerance: float = _TOLERANCE,
    valid: float | str = "5%",
    epochs: float = 3.0,
    lr: float | None = None,
    text: str | None = None,
    each: Each = "paragraphs",
    settings: Sequence[str] = (),
    listen: Sequence[Listener] = (),
    say: Say = lambda words: None,
    on_bytes: Callable[[int, int], None] | None = None,
) -> Adapted:
    """Continue the pretraining of a model on text of a domain (masked language modelling). The same call resumes.

    `texts` are files, or files by the name of their domain. A share `valid` of the documents is held out, and the loss
    on them is measured before, ten times during, and after. The result is the best model seen, which may be the one it
    began with; one whose loss on `general` text has risen by more than `tolerance` is never the best. Training stops
    early when three evaluations in a row find nothing better. General text makes up the share `replay` of what is read.

    `lr` is by default half of the rate in the model's finetune.toml, else 1e-4 · √(768 / width). All chosen tokens
    become [MASK], which every masked language model has seen: with BERT's random tokens, a model that never saw those
    would seem to get better on any text. `settings` are any keys of a pretraining recipe, as in ["lora.rank=8"].
    """
    out, source = Path(out), lasting_name(model) or DEFAULT
    if not general and (replay, tolerance) != (_REPLAY, _TOLERANCE):
        raise BothwaysError("`replay` and `tolerance` are of general text: give some by `general`", "bad-combination")
    require_range("replay", replay, 0 < replay < 1, "between 0 and 1")
    require_range("epochs", epochs, epochs > 0, "above 0")
    start = load(model_folder(model))
    if start.tokenizer is None:
        raise BothwaysError(f"{model} has no tokenizer, so it cannot read text", "no-tokenizer", model)
    if "masked" not in start.heads:
        raise BothwaysError(
            f"{source} has no masked language modelling head, and a new one would start from random weights: adapt the "
            "model that it was fine-tuned from, and fine-tune that again",
            "no-head",
            source,
        )
    packed = out / PACKED
    sources = _sources(texts, general)
    with _beginning(out, packed):
        if not (out / RECIPE).exists():
            pack(sources, start.tokenizer, packed, valid=valid, text=text, each=each, on_bytes=on_bytes)
        else:
            _require_same_files(open_packed(packed, verify=False).manifest["sources"], sources, out)
            say(f"continues with the text in {packed}, as it was read and held out then")
        opened = open_packed(packed, verify=False)
        _require_both(opened, sources)
        domains = [name for name in sources if name != GENERAL]
        recipe = pretrain_recipe(
            _table(start, source, packed, domains, replay, tolerance, epochs, lr, say),
            settings,
        )
        names = "; ".join(f"{name}: {file_names(files)}" for name, files in opened.manifest["sources"].items())
        result = pretrain(recipe, out, texts=names, listen=listen, say=say)
    before, after = (_losses(scores, sources) for scores in (result.before, result.after))
    stopped = _why(recipe, result, last_scores(out)) if result.complete else ""
    return Adapted(out / "model", before, after, result.steps, result.best_step, result.complete, stopped)


@contextmanager
def _beginning(out: Path, packed: Path) -> Iterator[None]:
    """After an error before the run has begun, its text does not stay."""
    is_new = not packed.exists()
    with atomic.made_folder(out):
        try:
            yield
        except BaseException:
            if is_new and not (out / RECIPE).exists():
                shutil.rmtree(packed, ignore_errors=True)
            raise


def _sources(texts: Any, general: Sequence[Path | str]) -> dict[str, Sequence[Path | str]]:
    if isinstance(texts, Mapping):
        found = dict(texts)
    else:
        found = {"domain": [texts] if isinstance(texts, Path | str) else list(texts)}
    if not any(found.values()):
        raise BothwaysError("no text to adapt to was given", "no-input")
    if GENERAL in found:
        raise BothwaysError(
            f"a domain is named {GENERAL}: give general text by `general`, or name the domain otherwise",
            "repeated-source",
            GENERAL,
        )
    return found | ({GENERAL: list(general)} if general else {})


def _require_same_files(
    known: Mapping[str, Sequence[str]], given: Mapping[str, Sequence[Path | str]], out: Path
) -> None:
    """Refuse to go on with other files than a run has read; these may be gone by now."""
    names = {name: [Path(file).name for file in _files(paths)] for name, paths in given.items()}
    for name in {**known, **names}:
        if sorted(known.get(name, ())) != sorted(names.get(name, ())):
            before, now = (file_names(found[name]) if name in found else "nothing" for found in (known, names))
            raise BothwaysError(
                f"{out} was begun with {before} as {name}, not with {now}: name another `out`", "other-data", out
            )


def _require_both(opened: Packed, sources: Mapping[str, Any]) -> None:
    """Every source needs text to train on, and held-out text."""
    train, valid = (opened.corpora(split) for split in ("train", "valid"))
    for name in sources:
        if name in train and name in valid:
            continue
        if name not in train and name not in valid:
            raise BothwaysError(f"no text was found in {name}", NO_TEXT, name)
        if name in valid:
            says, code, size = f"all text of {name} is held out, so none is left to train on", ALL_HELD_OUT, "smaller"
        else:
            says, code, size = f"no document of {name} was held out to watch its loss", "nothing-held-out", "larger"
        if Corpus((train if name in train else valid)[name]).documents == 1:
            says, size = (
                f"the text of {name} is one document, and some documents must be held out to watch its loss",
                "",
            )
        advice = f", or a {size} `valid`" if size else ""
        raise BothwaysError(
            f"{says}: give `each` lines if every line is a document, or more text, with empty lines between its "
            f"documents{advice}",
            code,
            name,
        )


def _files(paths: Sequence[Path | str]) -> Sequence[Path | str]:
    """The files in folders and patterns; a continued run may find none, as it does not read them again."""
    try:
        return find_files(paths)
    except BothwaysError:
        return paths


def _table(
    model: Model,
    source: str,
    packed: Path,
    domains: Sequence[str],
    replay: float,
    tolerance: float,
    epochs: float,
    lr: float | None,
    say: Say,
) -> dict[str, Any]:
    """The recipe."""
    shards = open_packed(packed, verify=False).corpora("train")
    corpora = {name: Corpus(found).tokens for name, found in shards.items()}
    of_domains = sum(corpora[name] for name in domains)
    is_mixed = GENERAL in corpora
    share = 1 - replay if is_mixed else 1.0
    tokens = epochs * of_domains / share
    step = min(max(of_domains // _STEPS_PER_EPOCH, _USUAL), _LARGEST, max(int(tokens / _EVALUATIONS), _SMALLEST))
    steps = max(_EVALUATIONS, math.ceil(tokens / step))
    if steps * step > 1.5 * tokens:
        made = steps * step * share / of_domains
        say(f"{of_domains:,} tokens are little: {steps} steps of {step} are {made:.0f} epochs of them, not {epochs:g}")
    every = math.ceil(steps / _EVALUATIONS)
    weights = {name: share * corpora[name] / of_domains for name in domains} | ({GENERAL: replay} if is_mixed else {})
    return {
        "objectives": ["mlm"],
        "mlm": {"mask": 1.0, "random": 0.0},
        "data": {
            "train": [str(packed)],
            "weights": weights,
            "keep": {GENERAL: tolerance} if is_mixed else {},
        },
        "model": {"init": source},
        "optim": {"lr": lr or default_lr(model), "warmup": 0.1, "schedule": "linear", "weight_decay": 0.01},
        "run": {
            "steps": steps,
            "evaluate_every": every,
            "save_every": every,
            "save_first": True,
            "patience": 3,
            "keep": 1,
            "micro_tokens": min(step, 8_192),
        },
        "phases": [{"length": min(_LENGTH, model.config.encoder.max_length), "tokens": step}],
    }


def default_lr(model: Model) -> float:
    """A learning rate that is safe for continued pretraining: by what the model advises, else by its width."""
    advised = tomllib.loads(model.config.advice).get("optim", {}).get("lr") if model.config.advice else None
    return float(advised) * _OF_ADVISED if advised else _RATE * math.sqrt(768 / model.config.encoder.width)


def _losses(scores: Mapping[str, float], sources: Mapping[str, Any]) -> dict[str, float]:
    """The loss of each source. Without a prefix if there is one source only."""
    if len(sources) == 1 and "loss" in scores:
        return {next(iter(sources)): scores["loss"]}
    return {name: scores[f"{name}/loss"] for name in sources if f"{name}/loss" in scores}


def _why(recipe: PretrainRecipe, result: Pretrained, last: Mapping[str, float]) -> str:
    """Why it stopped early, or why the last step is not the best."""
    early, before = result.steps < recipe.run.steps, result.before
    if risen(recipe.data.keep, before, last):
        a, b = before[f"{GENERAL}/loss"], last[f"{GENERAL}/loss"]
        return (
            f"{'stopped at' if early else 'by'} step {result.steps:,}: the held-out loss of general text rose from "
            f"{a:.3f} to {b:.3f}; a lower `lr`, or more general text, forgets less"
        )
    return f"stopped at step {result.steps:,}: the held-out loss of the domain fell no further" if early else ""
