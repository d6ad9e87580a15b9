"""bothways vocab train | show"""

import warnings
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.output import print_json, print_table, say

app = typer.Typer(help="Vocabularies: train one, look at one.", no_args_is_help=True)


@app.command()
def train(
    files: Annotated[
        list[Path],
        typer.Argument(
            help=".txt (a text on each line), .jsonl, .csv, .tsv (.gz, .xz too), .parquet; files, folders, patterns.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="The folder to write tokenizer.json and vocab.txt to.", show_default=False
        ),
    ],
    size: Annotated[int, typer.Option(help="How many pieces, specials included.")] = 30_522,
    lower: Annotated[bool, typer.Option("--lower/--cased", help="Lower-case the text, or keep capitals.")] = True,
    accents: Annotated[
        bool | None,
        typer.Option("--keep-accents/--strip-accents", help="Accents follow --lower unless said.", show_default=False),
    ] = None,
    split_cjk: Annotated[
        bool, typer.Option("--split-cjk/--join-cjk", help="Make every Chinese character a word of its own.")
    ] = True,
    minimum: Annotated[int, typer.Option(help="How often a pair must be seen to become one piece.", min=1)] = 2,
    field: Annotated[str, typer.Option(help="The field of .jsonl that holds the text.")] = "text",
) -> None:
    """Train a WordPiece vocabulary, with BERT's special tokens at BERT's ids.

    Files are streamed: memory holds the distinct words, not the text, and of more than 500 million characters an even
    sample of the lines.

    Example: bothways vocab train books/*.txt.gz --size 16000 --out my-vocabulary
    """
    from bothways import atomic
    from bothways.text.tokenizer import FILES
    from bothways.text.train_vocab import train_vocabulary

    strip = None if accents is None else not accents
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        tokenizer = train_vocabulary(
            files,
            size=size,
            lower=lower,
            strip_accents=strip,
            split_cjk=split_cjk,
            minimum=minimum,
            field=field,
            progress=True,
        )
    for warning in told:
        say(str(warning.message))
    with atomic.new_folder(out, replaces=FILES) as fresh:
        tokenizer.save(fresh)
    say(f"{tokenizer.size:,} pieces in {out}, fingerprint {tokenizer.fingerprint}")
    if tokenizer.size < size:
        say(f"{size:,} were asked for: the text has no more pairs that occur {minimum} times")


@app.command()
def show(
    text: Annotated[str, typer.Argument(help="The text.", show_default=False)],
    model: Annotated[
        Path,
        typer.Option("--model", metavar="DIR", help="A model folder, tokenizer.json or vocab.txt.", show_default=False),
    ],
    pair: Annotated[
        str | None, typer.Argument(help="A second text, as for a sentence pair.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show how a text is cut into pieces: ids, character offsets, words, segments.

    Example: bothways vocab show "Unbelievable!" --model my-model
    """
    from bothways.text.tokenizer import Tokenizer

    encoding = Tokenizer.load(model)(text, pair)
    texts = (text, pair or "")
    header = ("piece", "id", "start", "end", "text", "word", "segment")
    rows = []
    columns = zip(
        encoding.pieces,
        encoding.ids,
        encoding.offsets,
        encoding.words,
        encoding.sources,
        encoding.segments,
        strict=True,
    )
    for piece, number, (start, end), word, source, segment in columns:
        written = "" if source is None else texts[source][start:end]
        rows.append((piece, number, start, end, written, word, segment))
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        shown = [["" if cell is None else cell for cell in row] for row in rows]
        print_table(header, shown, right=("id", "start", "end", "word", "segment"))
