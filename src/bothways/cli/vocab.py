"""bothways vocab train | show | extend | shrink"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bothways.cli.app import App
from bothways.cli.options import Encoding, OldField, Sheet, TextColumn, TokenizerModel
from bothways.cli.output import print_json, print_table, say
from bothways.errors import BothwaysError
from bothways.progress import Progress

app = App(help="Train, show, extend and shrink vocabularies.")


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
    size: Annotated[int, typer.Option(help="Vocabulary size, special tokens included.")] = 30_522,
    lower: Annotated[bool, typer.Option("--lower/--cased", help="Lower-case the text, or keep its case.")] = True,
    accents: Annotated[
        bool | None,
        typer.Option(
            "--keep-accents/--strip-accents",
            help="Keep or strip accents.  [default: strip them with --lower]",
            show_default=False,
        ),
    ] = None,
    split_cjk: Annotated[
        bool, typer.Option("--split-cjk/--join-cjk", help="Split Chinese text into single characters.")
    ] = True,
    minimum: Annotated[int, typer.Option(help="Minimum frequency of a pair to be merged into a token.", min=1)] = 2,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
) -> None:
    """Train a WordPiece vocabulary, with BERT's special tokens at BERT's ids.

    Streams the files: memory holds the distinct words only. Of more than 500 million characters, an even sample of the
    lines is used.

    Example: bothways vocab train examples/stories.txt --size 1600 --out my-vocabulary
    """
    from bothways import atomic
    from bothways.text.tokenizer import FILES
    from bothways.text.train_vocab import train_vocabulary

    strip = None if accents is None else not accents
    with Progress("training a vocabulary", unit="bytes") as bar:
        tokenizer = train_vocabulary(
            files,
            size=size,
            lower=lower,
            strip_accents=strip,
            split_cjk=split_cjk,
            minimum=minimum,
            text=text or field,
            on_bytes=bar.at,
        )
    with atomic.new_folder(out, replaces=FILES) as fresh:
        tokenizer.save(fresh)
    say(f"{tokenizer.size:,} tokens in {out}, fingerprint {tokenizer.fingerprint}")
    if tokenizer.size < size:
        say(f"fewer than --size {size:,}: the text has no more pairs that occur {minimum} times")


@app.command()
def show(
    text: Annotated[str, typer.Argument(help="The text.", show_default=False)],
    model: TokenizerModel = None,
    pair: Annotated[str | None, typer.Argument(help="The second text of a pair.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how a text is tokenized: tokens, ids, character offsets, words, segments.

    Example: bothways vocab show "Unbelievable!"
    """
    from bothways.model.readable import check_readable
    from bothways.text.tokenizer import Tokenizer

    assert model is not None  # as tokenizer_place sees to
    tokenizer, texts = Tokenizer.load(model), (text, pair or "")
    check_readable([texts], tokenizer)
    encoding = tokenizer(text, pair)
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
    for piece, token_id, (start, end), word, source, segment in columns:
        surface = "" if source is None else texts[source][start:end]
        rows.append((piece, token_id, start, end, surface, word, segment))
    if as_json:
        print_json([dict(zip(header, row, strict=True)) for row in rows])
    else:
        shown = [["" if cell is None else cell for cell in row] for row in rows]
        print_table(header, shown, right=("id", "start", "end", "word", "segment"))


_Model = Annotated[Path, typer.Argument(metavar="MODEL", help="A model folder.", show_default=False)]
_Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="The model folder to write.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_FROM_HELP = "Text files, folders or patterns."


@app.command()
def extend(
    model: _Model,
    out: _Out,
    words: Annotated[
        list[Path] | None,
        typer.Option("--words", metavar="FILE...", help="Files with one word per line.", show_default=False),
    ] = None,
    files: Annotated[
        list[Path] | None, typer.Option("--from", metavar="FILE...", help=_FROM_HELP, show_default=False)
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(help="Number of words of --from to add: those that save most tokens.", min=1, show_default=False),
    ] = None,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    as_json: _Json = False,
) -> None:
    """Add the words of a domain to a model's vocabulary: each becomes one token.

    Its embedding starts as the mean of those of its former tokens. A text without a new word gives the same ids and
    outputs as before, bit for bit. Chinese words, such as "新冠病毒", are matched anywhere in a text. Continue
    pretraining on text of the domain afterwards (bothways pretrain).

    Example: bothways vocab extend my-model --words words.txt --from notes.txt --count 500 --out my-larger-model
    """
    from bothways.model.checkpoint import save
    from bothways.model.load import load
    from bothways.model.vocabulary import extend_vocabulary
    from bothways.text.files import find_files, read_texts

    given = [word for file in (find_files(words) if words else ()) for word in read_texts(file, text or field)]
    with Progress("reading", unit="bytes") as bar:
        found = extend_vocabulary(
            load(model), given, files=files or (), count=count, text=text or field, on_bytes=bar.at
        )
    new = found.words
    if not new.added:
        raise BothwaysError(
            f"none of the {len(given):,} words is new: {len(new.known):,} are one token already, {new.empty:,} are "
            f"empty, {len(new.spaced) + len(new.refused):,} cannot be added",
            "no-new-words",
            len(given),
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
        ("one token already", len(new.known), new.known),
        ("duplicates", len(new.repeated), new.repeated),
        ("contain white space", len(new.spaced), new.spaced),
        ("spelled like another piece", len(new.refused), new.refused),
        ("empty", new.empty, ()),
    ]
    print_table(
        ("", "words", ""),
        [(what, f"{n:,}", _first(some)) for what, n, some in rows if n or what == "added"],
        ("words",),
    )
    if found.fertility:
        say(f"tokens per word: {found.fertility[0]:.3f} before, {found.fertility[1]:.3f} after")
    say(f"{report['pieces']:,} tokens in {out}, {report['rows']:,} token embeddings")


@app.command()
def shrink(
    model: _Model,
    out: _Out,
    files: Annotated[list[Path], typer.Option("--from", metavar="FILE...", help=_FROM_HELP, show_default=False)],
    minimum: Annotated[int, typer.Option(help="Minimum frequency of the tokens to keep.", min=1)] = 1,
    count: Annotated[
        int | None,
        typer.Option(
            "--keep-count", help="Maximum number of tokens: keep the most frequent.", min=1, show_default=False
        ),
    ] = None,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    as_json: _Json = False,
) -> None:
    """Remove tokens that a corpus does not use from a model's vocabulary: fewer embeddings, the same outputs.

    Special tokens and single characters are always kept, so that any text can still be tokenized. A text whose tokens
    were all kept gives the same outputs as before.

    Example: bothways vocab shrink my-multilingual-model --from german.txt --out my-german-model
    """
    from bothways.model.checkpoint import save
    from bothways.model.load import load
    from bothways.model.vocabulary import shrink_vocabulary

    with Progress("reading", unit="bytes") as bar:
        found = shrink_vocabulary(load(model), files, minimum=minimum, count=count, text=text or field, on_bytes=bar.at)
    save(found.model, out)
    if as_json:
        pairs = {"rows": found.rows, "parameters": found.parameters, "megabytes": found.megabytes}
        before = {f"{name}_before": pair[0] for name, pair in pairs.items()}
        after = {f"{name}_after": pair[1] for name, pair in pairs.items()}
        print_json({**before, **after, "covered": found.covered})
        return
    rows = [
        ("token embeddings", *(f"{n:,}" for n in found.rows)),
        ("parameters", *(f"{n:,}" for n in found.parameters)),
        ("MB", *(f"{n:,.1f}" for n in found.megabytes)),
    ]
    print_table(("", "before", "after"), rows, right=("before", "after"))
    say(f"{out}: the tokens kept cover {found.covered:.2%} of the text's tokens")


def _first(words: Sequence[str]) -> str:
    return ", ".join(words[:5]) + (", …" if len(words) > 5 else "")
