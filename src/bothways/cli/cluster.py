"""bothways cluster FILE"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.options import (
    BaseModel,
    Device,
    Dtype,
    Encoding,
    OldField,
    PrintJson,
    RefusedLong,
    Sheet,
    TextColumn,
    TextFile,
    Threads,
    VectorModel,
    vector_model,
)
from bothways.cli.output import print_json, print_table, read_rows, require_jsonl, say, shorten, watch, write_jsonl
from bothways.printable import counted

if TYPE_CHECKING:
    from bothways.search.cluster import Group


def cluster(
    file: TextFile,
    model: VectorModel = None,
    base: BaseModel = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="COSINE",
            help="Minimum cosine similarity of a text with the centroid of its group.  [default: 0.75]",
            show_default=False,
        ),
    ] = None,
    min_size: Annotated[
        int | None,
        typer.Option("--min-size", help="Minimum number of texts of a group.  [default: 3]", min=1, show_default=False),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option("--k", help="Number of groups, by k-means: every text is then in one.", min=1, show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of k-means.", min=0)] = 0,
    examples: Annotated[
        int, typer.Option(help="Number of texts to print of each group: the nearest to its centroid.", min=0)
    ] = 3,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the group of each text to a .jsonl file.", show_default=False
        ),
    ] = None,
    long: RefusedLong = "error",
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Cluster texts by similarity, and name each group by its most characteristic words.

    By default a group is a text and all others that are similar enough to it; texts that are similar to none are in no
    group. Empty texts are left out. A good threshold depends on the model: try several.

    Example: bothways cluster examples/reviews.tsv --k 5
    """
    from bothways.search.cluster import cluster as find_groups

    require_jsonl(out, file)
    texts, numbers = read_rows(file, text or field)
    loaded = vector_model(model, base, device, dtype)
    groups = find_groups(
        texts,
        loaded,
        threshold=threshold,
        min_size=min_size,
        k=k,
        seed=seed,
        long=long,
        device=device,
        watch=watch,
    )
    grouped = sum(map(len, groups))
    say(
        f"{counted(len(texts), 'text')}: {counted(len(groups), 'group')} with {counted(grouped, 'text')}, "
        f"{len(texts) - grouped:,} in no group"
    )
    if out is not None:
        write_jsonl(out, _by_text(texts, numbers, groups))
    if as_json:
        rows = [_described(group, texts, numbers, examples) for group in groups]
        print_json({"texts": len(texts), "grouped": grouped, "groups": rows})
    else:
        _print(groups, texts, examples)


def _described(group: "Group", texts: list[str], numbers: list[int], examples: int) -> dict[str, Any]:
    return {
        "name": group.name,
        "size": len(group),
        "rows": [numbers[i] for i in group.rows],
        "examples": [texts[i] for i in group.rows[:examples]],
    }


def _by_text(texts: list[str], numbers: list[int], groups: list["Group"]) -> Iterator[dict[str, Any]]:
    """A row for each text, in the order of the file."""
    found = {
        row: (number, group.name, score)
        for number, group in enumerate(groups)
        for row, score in zip(group.rows, group.scores, strict=True)
    }
    for i, text in enumerate(texts):
        group, name, score = found.get(i, (None, None, None))
        yield {"row": numbers[i], "text": text, "group": group, "name": name, "score": score}


def _print(groups: list["Group"], texts: list[str], examples: int) -> None:
    lines = []
    for group in groups:
        shown = [shorten(texts[i]) for i in group.rows[:examples]] or [""]
        lines += [(len(group), group.name, shown[0]), *(("", "", text) for text in shown[1:])]
    if lines:
        print_table(("size", "name", "nearest to the centre"), lines, right=("size",))
