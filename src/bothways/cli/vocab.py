"""bothways vocab train | show | extend | shrink"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.output import bytes_bar, print_json, print_table, say, warnings_said
from bothways.errors import BothwaysError

app = typer.Typer(help="Vocabularies: train, look at, extend by new words, shrink.", no_args_is_help=True)


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
    with warnings_said():
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
    with atomic.new_folder(out, replaces=FILES) as fresh:
        tokenizer.save(fresh)
    say(f"{tokenizer.size:,} pieces in {out}, fingerprint {tokenizer.fingerprint}")
    if tokenizer.size < size:
        say(f"{size:,} were asked for: the text has no more pairs that occur {minimum} times")


@app.command()
def show(
    text: Annotated[str, typer.Argument(help="The text.", show_default=False)],
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="DIR",
            help="A model folder, tokenizer.json or vocab.txt.  [default: the one in the box]",
            show_default=False,
        ),
    ] = None,
    pair: Annotated[
        str | None, typer.Argument(help="A second text, as for a sentence pair.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show how a text is cut into pieces: ids, character offsets, words, segments.

    Example: bothways vocab show "Unbelievable!" --model my-model
    """
    from bothways.model.box import boxed
    from bothways.text.tokenizer import Tokenizer

    encoding = Tokenizer.load(model or boxed())(text, pair)
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


_Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.", show_default=False)]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The model folder to write.", show_default=False)]
_Field = Annotated[str, typer.Option(help="The field or column that holds the text.")]
_Json = Annotated[bool, typer.Option("--json", help="The report for programs.")]


@app.command()
def extend(
    model: _Model,
    out: _Out,
    words: Annotated[
        Path | None,
        typer.Option("--words", metavar="FILE", help="A file with one word on each line.", show_default=False),
    ] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Text to look at: a file, folder or pattern; several times.",
            show_default=False,
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(help="Add so many words of --from: those that cost the most pieces.", min=1, show_default=False),
    ] = None,
    field: _Field = "text",
    as_json: _Json = False,
) -> None:
    """Add the words of a domain to a model: each becomes one piece, which begins as the mean of those it was cut into.

    A text without a new word gives the same ids and outputs as before, bit for bit. Chinese words are found wherever
    they stand: "新冠病毒" on a line of FILE. Train on text of the domain afterwards (bothways pretrain).

    Example: bothways vocab extend my-model --words words.txt --from notes.txt --count 500 --out my-larger-model
    """
    from bothways.model.checkpoint import save
    from bothways.model.load import load
    from bothways.model.vocabulary import extend_vocabulary
    from bothways.text.files import read_texts, require_files

    said = list(read_texts(require_files([words])[0], field)) if words else []
    with bytes_bar("reading") as on_bytes:
        found = extend_vocabulary(load(model), said, files=files or (), count=count, field=field, on_bytes=on_bytes)
    new = found.words
    if not new.added:
        raise BothwaysError(
            f"none of the {len(said):,} words is new: {len(new.known):,} are one piece already, {new.empty:,} are "
            f"empty, {len(new.spaced) + len(new.refused):,} cannot be added"
        )
    save(found.model, out)
    report = {
        "added": len(new.added),
        "known": len(new.known),
        "repeated": len(new.repeated),
        "spaced": len(new.spaced),
        "refused": len(new.refused),
        "empty": new.empty,
        "pieces": found.model.tokenizer.size if found.model.tokenizer else 0,
        "rows": found.model.config.encoder.vocab_size,
    }
    if as_json:
        before, after = found.fertility or (None, None)
        print_json({**report, "pieces_per_word_before": before, "pieces_per_word_after": after, "words": new.added})
        return
    rows = [
        ("added", len(new.added), new.added),
        ("one piece already", len(new.known), new.known),
        ("the same as another", len(new.repeated), new.repeated),
        ("with white space inside", len(new.spaced), new.spaced),
        ("spelt as another piece", len(new.refused), new.refused),
        ("empty", new.empty, ()),
    ]
    print_table(
        ("", "words", ""), [(what, f"{n:,}", _some(some)) for what, n, some in rows if n or what == "added"], ("words",)
    )
    if found.fertility:
        say(f"pieces per word: {found.fertility[0]:.3f} before, {found.fertility[1]:.3f} after")
    say(f"{report['pieces']:,} pieces in {out}, {report['rows']:,} rows in its token table")


@app.command()
def shrink(
    model: _Model,
    out: _Out,
    files: Annotated[
        list[Path],
        typer.Option(
            "--from",
            metavar="FILE",
            help="Text to look at: a file, folder or pattern; several times.",
            show_default=False,
        ),
    ],
    minimum: Annotated[int, typer.Option(help="Keep the pieces that the text uses so many times.", min=1)] = 1,
    count: Annotated[
        int | None,
        typer.Option("--keep-count", help="Keep so many pieces at most: the most used.", min=1, show_default=False),
    ] = None,
    field: _Field = "text",
    as_json: _Json = False,
) -> None:
    """Drop the pieces that a text does not use from a model: a smaller token table, the same answers.

    The specials and all single characters stay, so that any text can still be spelt. Texts made of pieces that stayed
    give the same outputs.

    Example: bothways vocab shrink my-multilingual-model --from german.txt --out my-german-model
    """
    from bothways.model.checkpoint import save
    from bothways.model.load import load
    from bothways.model.vocabulary import shrink_vocabulary

    with bytes_bar("reading") as on_bytes:
        found = shrink_vocabulary(load(model), files, minimum=minimum, count=count, field=field, on_bytes=on_bytes)
    save(found.model, out)
    if as_json:
        pairs = {"rows": found.rows, "parameters": found.parameters, "megabytes": found.megabytes}
        before = {f"{name}_before": pair[0] for name, pair in pairs.items()}
        after = {f"{name}_after": pair[1] for name, pair in pairs.items()}
        print_json({**before, **after, "covered": found.covered})
        return
    rows = [
        ("rows of the token table", *(f"{n:,}" for n in found.rows)),
        ("parameters", *(f"{n:,}" for n in found.parameters)),
        ("MB", *(f"{n:,.1f}" for n in found.megabytes)),
    ]
    print_table(("", "before", "after"), rows, right=("before", "after"))
    say(f"{found.covered:.2%} of the text's tokens are pieces that stayed; the smaller model is in {out}")


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:5]) + (", …" if len(words) > 5 else "")
