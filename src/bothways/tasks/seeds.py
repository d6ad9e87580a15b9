"""The same recipe with several seeds: single runs vary."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.model.card_text import CARD, markdown, with_section
from bothways.progress import Watch, watch_nothing
from bothways.scoring.significance import Summary, summary
from bothways.tasks.finetune import Finetuned, finetune
from bothways.tasks.recipe import FinetuneRecipe
from bothways.tasks.trainable import selection_loss
from bothways.train.session import Listener, Say


@dataclass(frozen=True)
class Seeds:
    """The result of several runs."""

    folder: Path
    """The model of the best run on the development data."""
    runs: list[Finetuned]
    metric: str
    best: int
    """The seed of that run."""
    scores: dict[str, Summary]
    """Mean, standard deviation and number of runs of every score."""

    @property
    def complete(self) -> bool:
        return all(run.complete for run in self.runs)


def finetune_seeds(
    recipe: FinetuneRecipe,
    out: Path | str,
    seeds: Sequence[int],
    *,
    listen: Callable[[int], Sequence[Listener]] = lambda seed: (),
    say: Say = lambda words: None,
    watch: Watch = watch_nothing,
) -> Seeds:
    """Fine-tune once with every seed, in out/seed-0 and so on; out/model is the best of them on development data.

    After an interruption, the same call continues and skips finished runs.
    """
    if not recipe.data.dev:
        raise BothwaysError("several seeds are compared on development data: set data.dev", "no-data")
    out, runs = Path(out), list[Finetuned]()
    for seed in seeds:
        one = replace(recipe, run=replace(recipe.run, seed=seed))
        runs.append(
            finetune(one, out / f"seed-{seed}", listen=listen(seed), say=say, watch=watch, name=out.absolute().name)
        )
        if not runs[-1].complete:
            break
    metric = runs[0].metric
    place = min(range(len(runs)), key=lambda i: selection_loss(runs[i].scores, metric))
    scores = {name: summary([run.scores[name] for run in runs if run.scores]) for name in runs[0].scores}
    found = Seeds(out / "model", runs, metric, seeds[place], scores)
    if found.complete:
        atomic.copy_folder(runs[place].folder, out / "model")
        card = out / "model" / CARD
        with atomic.new_file(card) as fresh:
            text = with_section(card.read_text(encoding="utf-8"), "Scores over seeds", _rows(found))
            fresh.write_text(text, encoding="utf-8")
    return found


def _rows(found: Seeds) -> list[str]:
    """The table of a card: mean and standard deviation of each score, the main one first."""
    order = sorted(found.scores, key=lambda name: name != found.metric)
    best = f"The model above is the best of them on the development data, of seed {found.best}."
    table = [f"| {markdown(name)} | {found.scores[name].mean:.4f} ± {found.scores[name].sd:.4f} |" for name in order]
    return [f"{len(found.runs)} runs. {best}", "", "| score | mean ± standard deviation |", "|---|---|", *table]
