"""bothways mine PAIRS --out FILE"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bothways.cli.options import (
    BaseModel,
    Device,
    Dtype,
    Encoding,
    OldField,
    PairColumn,
    PrintJson,
    RefusedLong,
    Sheet,
    TextColumn,
    Threads,
    VectorModel,
    vector_model,
)
from bothways.cli.output import print_json, require_jsonl, say, watch, write_jsonl
from bothways.errors import BothwaysError
from bothways.printable import counted

if TYPE_CHECKING:
    from bothways.text.columns import Columns


def mine(
    pairs: Annotated[
        Path,
        typer.Argument(
            metavar="PAIRS",
            help="File of pairs: .jsonl, .csv or .tsv (also .gz, .xz) with the columns anchor and positive, or others.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Output file: .jsonl.", show_default=False)],
    model: VectorModel = None,
    base: BaseModel = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File of texts that may be negatives too, beside the positives of all pairs.",
            show_default=False,
        ),
    ] = None,
    negatives: Annotated[
        int, typer.Option("--negatives", metavar="N", help="Number of negatives of each pair.", min=1)
    ] = 3,
    range_min: Annotated[int, typer.Option("--range-min", help="Number of the most similar texts to skip.", min=0)] = 0,
    range_max: Annotated[
        int | None,
        typer.Option(
            "--range-max",
            help="Number of the most similar texts to choose negatives from.  [default: as many as needed; random: 10 "
            "for each negative]",
            min=1,
            show_default=False,
        ),
    ] = None,
    max_score: Annotated[
        float | None, typer.Option("--max-score", help="Maximum cosine similarity of a negative.", show_default=False)
    ] = None,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Minimum cosine similarity of a negative.", show_default=False)
    ] = None,
    absolute_margin: Annotated[
        float | None,
        typer.Option(
            "--absolute-margin",
            help="Minimum difference between the cosine similarity of the positive and that of a negative.",
            show_default=False,
        ),
    ] = None,
    relative_margin: Annotated[
        float | None,
        typer.Option(
            "--relative-margin",
            help="The same, relative to the similarity of the positive: 0.05 is 5 %.",
            show_default=False,
        ),
    ] = None,
    sampling: Annotated[
        Literal["top", "random"], typer.Option(help="Take the most similar texts of the range, or random ones.")
    ] = "top",
    seed: Annotated[int, typer.Option(help="Seed of random sampling.", min=0)] = 0,
    text: TextColumn = None,
    pair: PairColumn = None,
    corpus_text: Annotated[
        str | None,
        typer.Option("--corpus-text", metavar="NAME", help="Name of the text column of --corpus.", show_default=False),
    ] = None,
    field: OldField = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    long: RefusedLong = "error",
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Find hard negatives for pairs of an anchor and a positive, to train sentence embeddings with.

    A hard negative is a text that the model finds similar to the anchor, and that is not a positive of it. If rows have
    the labels 0 and 1, pairs are those with 1. The output has anchor, positive, negative_1, negative_2 and so on. Pairs
    with too few negatives are left out.

    Example: bothways mine examples/pairs.jsonl --relative-margin 0.05 --negatives 1 --out triplets.jsonl
    """
    from bothways.search.mining import NegativeRules, mine_hard_negatives
    from bothways.text.files import read_texts, require_files

    require_jsonl(out, pairs, *([corpus] if corpus else []))
    rules = NegativeRules(
        num_negatives=negatives,
        range_min=range_min,
        range_max=range_max,
        max_score=max_score,
        min_score=min_score,
        absolute_margin=absolute_margin,
        relative_margin=relative_margin,
        sampling=sampling,
        seed=seed,
    )
    known, others = _read_pairs(pairs, text, pair)
    if corpus is not None:
        require_files([corpus])
        texts = watch(read_texts(corpus, corpus_text or field), "reading", [str(corpus)])
        others += [one for one in texts if one.strip()]
    loaded = vector_model(model, base, device, dtype)
    found = mine_hard_negatives(known, loaded, corpus=others, rules=rules, long=long, device=device, watch=watch)
    write_jsonl(out, (mined.row() for mined in found))
    left_out = len(dict.fromkeys(known)) - len(found)
    if as_json:
        print_json({"out": str(out), "pairs": len(known), "rows": len(found), "left_out": left_out})
    else:
        say(
            f"{counted(len(known), 'pair')} → {counted(len(found), 'row')} in {out}; "
            f"{left_out:,} with too few negatives are left out"
        )


def _read_pairs(file: Path, text: str | None, pair: str | None) -> tuple[list[tuple[str, str]], list[str]]:
    """The pairs of a file, without those that have an empty text; of rows with the label 0, the second text."""
    from bothways.data.texts import read_texts_labelled

    found, golds = [], set()
    columns = _columns(file, text, pair)
    for example in watch(read_texts_labelled([str(file)], columns), "reading", [str(file)]):
        if len(example.texts) != 2:
            raise BothwaysError(
                f"{example.where} has one text: mining needs pairs, so name the second text with `pair`",
                "not-pairs",
                example.where,
            )
        golds.add(example.gold)
        if all(part.strip() for part in example.texts):
            found.append((example.texts[0], example.texts[1], example.gold))
    positives, others = [(first, second) for first, second, _ in found], list[str]()
    if golds <= {"0", "1"}:
        positives = [(first, second) for first, second, gold in found if gold == "1"]
        others = [second for _, second, gold in found if gold == "0"]
    elif golds != {None}:
        warnings.warn(f"the labels of {file} are not used: each of its rows counts as a positive pair", stacklevel=2)
    if not positives:
        raise BothwaysError(f"no pairs were found in {file}", "no-text", file)
    return positives, others


def _columns(file: Path, text: str | None, pair: str | None) -> "Columns":
    """The columns that the user names, else those with usual names of a text and of one that belongs to it."""
    from bothways.data.related import find_roles
    from bothways.data.sources import first_rows
    from bothways.text.columns import Columns

    first = [] if text or not file.is_file() else first_rows(file)
    if not first or not isinstance(first[0], dict):
        return Columns(text, pair)
    roles = find_roles(Columns(), list(first[0]), str(file))
    if roles.positive:
        say(f"columns: text = {roles.anchor}, pair = {roles.positive}")
    return Columns(roles.anchor, pair or roles.positive)
