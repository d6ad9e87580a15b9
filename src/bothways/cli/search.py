"""bothways search "query" --index DIR; search build | add | delete | compact"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bothways.cli.app import App, Group
from bothways.cli.options import (
    BaseModel,
    Device,
    Devices,
    Dtype,
    Encoding,
    OldField,
    On,
    PrintJson,
    RowsPerPart,
    Sheet,
    TextColumn,
    Threads,
    VectorModel,
)
from bothways.cli.output import parts_progress, print_json, print_table, say, watch
from bothways.errors import BothwaysError
from bothways.predict.encode_options import Long
from bothways.printable import counted
from bothways.progress import Progress
from bothways.scale.bulk_options import DOCUMENTS_PER_PART
from bothways.search.search_options import Mode, Quantize, Similarity

if TYPE_CHECKING:
    from bothways.search.index import Index
    from bothways.search.ingest import PartMaker

_SHOWN = 300  # characters of a passage in the table


class _QueryByDefault(Group):
    """Without the name of a subcommand, the first argument is a query."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["query", *args]
        return super().parse_args(ctx, args)


app = App(
    cls=_QueryByDefault,
    help='Search a corpus by meaning, by words, or by both: bothways search "query" --index DIR.',
)

IndexModel = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="DIR",
        help="Folder of the model that built the index, if it has moved.  [default: where it was]",
        show_default=False,
    ),
]
Home = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.", show_default=False)]
Corpus = Annotated[
    list[Path],
    typer.Argument(
        metavar="CORPUS...",
        help="Documents: lines of .txt, rows of .jsonl, .csv, .tsv (also .gz, .xz), .xlsx or .parquet with the columns "
        "id or _id, title and text; a folder in BEIR's layout; a folder of .txt, .md, .html and .pdf files.",
        show_default=False,
    ),
]


@app.command()
def query(
    text: Annotated[str, typer.Argument(metavar="QUERY", help="The query.", show_default=False)],
    index: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the index.", show_default=False)],
    k: Annotated[int, typer.Option("-k", "--top", help="Number of documents to print.", min=1)] = 10,
    mode: Annotated[
        Mode,
        typer.Option(
            help="By vectors (dense), by words (bm25, needs the extra bm25), or by both: the mean of the "
            "scaled scores (fused)."
        ),
    ] = "dense",
    rerank: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Cross-encoder that reranks the best documents.", show_default=False),
    ] = None,
    depth: Annotated[
        int, typer.Option(help="Number of documents to rerank, and of each ranking to fuse.", min=1)
    ] = 100,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare all vectors, even if the index is quantized or has a graph.")
    ] = False,
    model: IndexModel = None,
    base: BaseModel = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    as_json: PrintJson = False,
) -> None:
    """Print the best documents for a query, each with its best passage.

    The word query may be left out, unless the query is the name of another subcommand.

    Example: bothways search query "a trip to the sea" --index stories-index
    """
    from bothways.search.index import Index

    with Progress("searching"):
        opened = Index.open(index, model, base=base, device=device, dtype=dtype)
        hits = opened.search(text, k, mode=mode, exact=exact, rerank=rerank, depth=depth)
    if as_json:
        found = [{"rank": rank, **vars(hit)} for rank, hit in enumerate(hits, 1)]
        print_json({"query": text, "mode": mode, "documents": len(opened), "hits": found})
        return
    rows = [(rank, f"{hit.score:.4f}", hit.id, _shown(hit.passage)) for rank, hit in enumerate(hits, 1)]
    print_table(("rank", "score", "id", "passage"), rows, right=("rank", "score"))
    if not hits:
        say(f"no document of {index} has a word of the query" if mode == "bm25" else f"{index} has no documents")


def _shown(passage: str) -> str:
    """A passage on one line; of a long one the beginning."""
    line = " ".join(passage.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


@app.command()
def build(
    corpus: Corpus,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the index.", show_default=False)],
    model: VectorModel = None,
    base: BaseModel = None,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    long: Annotated[
        Long,
        typer.Option(
            help="Documents longer than the model's maximum length: split them into passages, truncate them (cut) or "
            "refuse them."
        ),
    ] = "window",
    similarity: Annotated[
        Similarity | None,
        typer.Option(
            help="How to compare vectors.  [default: as the model's folder says, else cosine]", show_default=False
        ),
    ] = None,
    query_prompt: Annotated[
        str | None,
        typer.Option(help="Text before queries.  [default: the folder's prompt `query`]", show_default=False),
    ] = None,
    document_prompt: Annotated[
        str | None,
        typer.Option(help="Text before documents.  [default: the folder's prompt `document`]", show_default=False),
    ] = None,
    quantize: Annotated[
        Quantize | None,
        typer.Option(help="Also store quantized vectors, which find candidates faster.", show_default=False),
    ] = None,
    ann: Annotated[
        bool | None,
        typer.Option(
            "--ann/--no-ann",
            help="Build an HNSW graph for approximate search (needs the extra ann).  [default: beyond a million "
            "passages, if usearch is installed]",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    devices: Devices = "",
    on: On = "",
    rows_per_part: RowsPerPart = DOCUMENTS_PER_PART,
    as_json: PrintJson = False,
) -> None:
    """Build an index of a corpus. If interrupted, the same command resumes.

    Example: bothways search build examples/stories.txt --out stories-index
    """
    from bothways.search.index import Index

    with Progress("building the index"), _parts(device, dtype, devices, on, rows_per_part) as (own, make_parts):
        built = Index.build(
            corpus,
            out,
            model,
            base=base,
            text=text or field,
            long=long,
            similarity=similarity,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            quantize=quantize,
            ann=ann,
            device=own,
            dtype=dtype,
            watch=watch,
            make_parts=make_parts,
        )
    _report(built, as_json)


@app.command()
def add(
    index: Home,
    corpus: Corpus,
    model: IndexModel = None,
    base: BaseModel = None,
    text: TextColumn = None,
    encoding: Encoding = None,
    sheet: Sheet = None,
    field: OldField = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    devices: Devices = "",
    on: On = "",
    rows_per_part: RowsPerPart = DOCUMENTS_PER_PART,
    as_json: PrintJson = False,
) -> None:
    """Add documents to an index. What it has is not embedded again. If interrupted, the same command resumes.

    Example: bothways search add stories-index more-stories.txt
    """
    from bothways.search.index import Index

    with Progress("adding"), _parts(device, dtype, devices, on, rows_per_part) as (own, make_parts):
        opened = Index.open(index, model, base=base, device=own, dtype=dtype)
        opened.add(corpus, text=text or field, watch=watch, make_parts=make_parts)
    _report(opened, as_json)


@contextmanager
def _parts(device: str, dtype: str, devices: str, on: str, rows_per_part: int) -> "Iterator[tuple[str, PartMaker]]":
    """The device of this process, and what makes parts: this process, or workers."""
    from bothways.scale.indexing import index_workers
    from bothways.search.ingest import InOrder

    if not devices and not on:
        yield device, InOrder()
        return
    if device != "auto":
        raise BothwaysError(
            f"`device` is {device}, which is for one process: leave it out, or leave out `devices` and `on`",
            "bad-combination",
            device,
        )
    with parts_progress("embedding") as on_progress:
        # The driver computes one vector only, and leaves the GPUs to the workers.
        yield "cpu", index_workers(devices, on, rows_per_part=rows_per_part, dtype=dtype, on_progress=on_progress)


@app.command()
def delete(
    index: Home,
    id: Annotated[
        list[str],
        typer.Option("--id", metavar="ID", help="Id of a document to delete; may be repeated.", show_default=False),
    ],
    as_json: PrintJson = False,
) -> None:
    """Delete documents from an index: all that are named, or none if it lacks one.

    Example: bothways search delete stories-index --id 3 --id 7
    """
    from bothways.search.index import Index

    opened = Index.open(index)
    with Progress("deleting"):
        opened.delete(id)
    _report(opened, as_json, is_read=False)


@app.command()
def compact(index: Home, as_json: PrintJson = False) -> None:
    """Free the space of deleted documents, and join what was added later to one matrix.

    Example: bothways search compact stories-index
    """
    from bothways.search.index import Index

    opened = Index.open(index)
    with Progress("compacting"):
        opened.compact()
    _report(opened, as_json, is_read=False)


def _report(index: "Index", as_json: bool, is_read: bool = True) -> None:
    tally = index.tally
    counts = {"documents": len(index), "passages": index.passages, "width": index.width}
    if as_json:
        print_json({"index": str(index.home), **counts, "read": vars(tally)})
    else:
        read = f"{tally} → " if is_read else ""
        say(f"{read}{counted(len(index), 'document')}, {index.passages:,} × {index.width} in {index.home}")
