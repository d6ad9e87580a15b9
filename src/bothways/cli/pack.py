"""bothways pack"""

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from bothways.cli.options import Encoding, OldField, On, Sheet, TextColumn, TokenizerModel, named_devices
from bothways.cli.output import parts_progress, print_json, print_table, say, watch
from bothways.printable import counted
from bothways.progress import Progress
from bothways.scale.bulk_options import DOCUMENTS_PER_PART
from bothways.text.files import Each
from bothways.text.segment import WordBoundaries


def pack(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]PATH...",
            help="Files, folders or patterns of .txt, .jsonl, .csv and .tsv (also .gz and .xz), .xlsx or .parquet, "
            "folders of Hugging Face datasets, or - for standard input. NAME= sets the name of the source.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="The folder to write the shards to.", show_default=False)
    ],
    model: TokenizerModel = None,
    valid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SHARE|FILE...",
            help="Hold out this share of the documents, or the documents of one file or several.",
            show_default=False,
        ),
    ] = None,
    dedup: Annotated[bool, typer.Option("--dedup", help="Drop exact copies of earlier documents.")] = False,
    each: Annotated[
        Each, typer.Option(help="What a document is in .txt files: the lines up to an empty line, or each line.")
    ] = "paragraphs",
    words: Annotated[
        WordBoundaries,
        typer.Option(
            help="Word segmentation for whole-word masking. Chinese: jieba (needs the extra chinese), or spaces if the "
            "text has spaces between words."
        ),
    ] = "pieces",
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    devices: Annotated[
        str,
        typer.Option(
            callback=named_devices,
            metavar="cpu:N",
            help="Tokenise in several processes: cpu:8 for eight. The result is the same.",
            show_default=False,
        ),
    ] = "",
    on: On = "",
    rows_per_part: Annotated[
        int,
        typer.Option(
            "--rows-per-part", help="Number of documents of a part of the work, with --devices or --on.", min=1
        ),
    ] = DOCUMENTS_PER_PART,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tokenise raw text into shards for pretraining.

    Streams in constant memory. The folder is written atomically and includes the tokenizer.

    Example: bothways pack examples/stories.txt --model my-vocabulary --valid 10% --out packed
    """
    from bothways.pretraining.pack import default_source
    from bothways.pretraining.pack import pack as run
    from bothways.scale.packing import pack_files
    from bothways.text.tokenizer import Tokenizer

    assert model is not None  # as tokenizer_place sees to
    sources = sources_of(inputs, default_source(out))
    held_out = _held_out(valid or [])
    options: dict[str, Any] = {**held_out, "dedup": dedup, "text": text or field, "each": each, "words": words}
    if devices or on:
        with parts_progress("packing", "bytes") as on_progress:
            where: dict[str, Any] = {"devices": devices, "on": on, "rows_per_part": rows_per_part}
            report = pack_files(sources, model, out, **options, **where, on_progress=on_progress, watch=watch)
    else:
        with Progress("packing", unit="bytes") as bar:
            report = run(sources, Tokenizer.load(model), out, **options, on_bytes=bar.at)
    if as_json:
        print_json(asdict(report))
        return
    rows = [
        ("documents", f"{report.documents:,}"),
        ("sentences", f"{report.sentences:,}"),
        ("tokens", f"{report.tokens:,}"),
        ("tokens per word", f"{report.tokens_per_word:.2f}"),
        ("unknown", f"{report.unknown:.3%}"),
        ("exact duplicates", f"{report.duplicates:.2%}" + (" dropped" if dedup else "")),
        ("held out", f"{counted(report.valid_documents, 'document')}, {counted(report.valid_tokens, 'token')}"),
        ("unigram entropy", f"{report.entropy:.2f} nats: the loss of a model that knows only token frequencies"),
    ]
    print_table(("", ""), rows)
    most = max(report.lengths.values())
    bars = [(f"{name} tokens", f"{n:,}", "▇" * round(40 * n / most)) for name, n in report.lengths.items()]
    print_table(("document length", "documents", ""), bars, right=("documents",))
    if report.split:
        say(f"{report.split} documents were longer than a million characters and were packed in parts")
    if report.documents == len([s for paths in sources.values() for s in paths]) and each == "paragraphs":
        say("every file is one document: if each line is a document, pack again with --each lines")
    if valid and not report.valid_documents:
        say(f"no document was held out: {' '.join(valid)} of {report.documents:,} documents is too small a share")
    say(f"{out} is ready: bothways pretrain tiny --data {out} --out my-run")


def _held_out(valid: Sequence[str]) -> dict[str, Any]:
    """What --valid says: a share, or files."""
    if len(valid) == 1 and not Path(valid[0]).exists() and re.fullmatch(r"[\d.]+%?", valid[0]):
        return {"valid": valid[0]}
    return {"valid_files": valid}


def sources_of(inputs: Sequence[str], default: str) -> dict[str, list[Path | str]]:
    """Paths by the name of their source: NAME=PATH, or PATH for the default source."""
    found: dict[str, list[Path | str]] = {}
    for written in inputs:
        match = None if Path(written).exists() else re.fullmatch(r"([\w.-]+)=(.+)", written)
        name, path = (match[1], match[2]) if match else (default, written)
        found.setdefault(name, []).append(path)
    return found
