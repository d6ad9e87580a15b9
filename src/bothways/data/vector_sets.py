"""Finds the evaluation sets of a folder, each recognised by its content, and reads those of reranking and clustering.

sts              a file with two texts and a number
retrieval        a folder in BEIR's layout
reranking        a file of JSON with a query, its positives and its negatives
clustering       a file with a text and a label
classification   a folder with a train and a test file, each with a text and a label
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bothways.data.labels import number_of
from bothways.data.notes import Notes, row_error
from bothways.data.sources import ROWS, first_rows, kind_of, read_plain, rows_of, text_of
from bothways.data.texts import read_texts_labelled
from bothways.errors import BothwaysError, name_list
from bothways.text.columns import Columns, find_columns, plain_name
from bothways.text.streams import COMPRESSED

Kind = Literal["sts", "retrieval", "reranking", "clustering", "classification"]
POSITIVES, NEGATIVES = ("positive", "positives", "pos"), ("negative", "negatives", "neg")
TEXTS, LABELS = ("sentences", "texts"), ("labels",)
"""Columns of lists: each row is a clustering of its own, as in MTEB."""
SPLITS = ("test", "dev", "validation")


@dataclass(frozen=True)
class VectorSet:
    """One evaluation set."""

    name: str
    """Its path in the folder."""
    kind: Kind
    path: Path
    """The file that is scored; for retrieval the folder."""
    train: Path | None = None
    """The training file of classification."""
    split: str = "test"
    """Which judgements of a retrieval folder are used."""


@dataclass(frozen=True)
class Candidates:
    """A query with the documents to rank."""

    query: str
    positives: tuple[str, ...]
    negatives: tuple[str, ...]
    where: str = ""


@dataclass(frozen=True)
class LabelledTexts:
    """Texts to be clustered together, each with its label."""

    texts: list[str]
    labels: list[str]


# ---------------------------------------------------------------------- finding


def find_vector_sets(folder: Path | str) -> tuple[list[VectorSet], dict[str, str]]:
    """The evaluation sets of a folder and its subfolders by name; and by path, why other files were left out.

    A subfolder in BEIR's layout is one set, and so is one with a train and a test file. In other folders each file is
    a set. Hidden files are ignored.
    """
    root = Path(folder)
    if not root.exists():
        raise BothwaysError(f"there is no folder {root}", "no-folder", root)
    left_out: dict[str, str] = {}
    found = list(_inside(root, root if root.is_dir() else root.parent, left_out))
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "it is empty"
        raise BothwaysError(f"there is no evaluation set in {root} ({reasons})", "no-known-files", root)
    return found, left_out


def _inside(path: Path, root: Path, left_out: dict[str, str]) -> Iterator[VectorSet]:
    name = path.relative_to(root).as_posix() if path != root else path.resolve().name
    if path.is_file():
        kind = _kind_of_file(path)
        if isinstance(kind, _Unknown):
            left_out[name] = kind.reason
        else:
            yield VectorSet(name, kind, path)
    elif _exists(path, "corpus.jsonl") and _exists(path, "queries.jsonl"):
        split = _judged_split(path)
        yield VectorSet(name if split == "test" else f"{name} ({split})", "retrieval", path, split=split)
    elif (train := _split(path, "train")) and (test := _split(path, "test")):
        kind = _kind_of_file(test)
        others = [child.name for child in sorted(path.iterdir()) if child not in (train, test)]
        left_out |= {f"{name}/{other}": "beside a train and a test file" for other in others if other[0] != "."}
        if isinstance(kind, _Unknown):
            left_out[name] = kind.reason
        elif kind == "clustering":
            yield VectorSet(name, "classification", test, train)
        else:
            yield VectorSet(name, kind, test)
    else:
        for child in sorted(path.iterdir()):
            if not child.name.startswith("."):
                yield from _inside(child, root, left_out)


def _exists(folder: Path, name: str) -> bool:
    return any((folder / f"{name}{suffix}").is_file() for suffix in ("", *COMPRESSED))


def _judged_split(folder: Path) -> str:
    """The first split with judgements; test if there is none, which the reader reports."""
    for split in SPLITS:
        if _exists(folder, f"qrels/{split}.tsv") or _exists(folder, f"qrels_{split}.tsv"):
            return split
    return "test"


def _split(folder: Path, split: str) -> Path | None:
    files = [file for file in sorted(folder.iterdir()) if file.is_file() and kind_of(file) in ROWS]
    return next((file for file in files if file.name.partition(".")[0] == split), None)


@dataclass(frozen=True)
class _Unknown:
    reason: str


def _kind_of_file(path: Path) -> Kind | _Unknown:
    """What a file is for, by the columns of its first row."""
    if kind_of(path) not in ROWS:
        return _Unknown(f"expected {', '.join(ROWS)}")
    row = next(iter(first_rows(path)), None)
    if not isinstance(row, dict):
        return _Unknown(_fault_of(path))
    if _column(row, ("query",)) and isinstance(row.get(_column(row, POSITIVES) or ""), list):
        return "reranking"
    if isinstance(row.get(_column(row, TEXTS) or ""), list) and _column(row, LABELS):
        return "clustering"
    try:
        columns = find_columns(Columns(), tuple(row), path.name)
    except BothwaysError as error:
        return _Unknown(str(error))
    if columns.label is None:
        return _Unknown(f"it has no label or score, only {name_list(row)}")
    if len(columns.texts) == 1:
        return "clustering"
    label = row[columns.label]
    is_score = label is None or label == "" or number_of(str(label).strip()) is not None
    return "sts" if is_score else _Unknown(f"its pairs have the label {label!r}: expected a score")


def _fault_of(path: Path) -> str:
    """Why a file has no row that can be read."""
    try:
        next(rows_of(path, kind_of(path), read_plain(path), Notes()), None)
    except BothwaysError as error:
        return str(error)
    return "it has no rows"


def _column(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """The first of these columns that a row has. Case does not matter."""
    own = {plain_name(str(name)): name for name in row}
    return next((own[name] for name in map(plain_name, names) if name in own), None)


# ---------------------------------------------------------------------- reading


def read_candidates(path: Path, notes: Notes) -> Iterator[Candidates]:
    """Stream the queries of a reranking file with their positives and negatives, each a list of texts."""
    for where, row in rows_of(path, kind_of(path), read_plain(path), notes):
        query, positives = _column(row, ("query",)), _column(row, POSITIVES)
        if query is None or positives is None:
            raise row_error(where, f"has no query or positive: its fields are {name_list(row)}", "no-column")
        negatives = _column(row, NEGATIVES)
        yield Candidates(
            text_of(row[query], where, query),
            _texts(row, positives, where),
            _texts(row, negatives, where) if negatives is not None else (),
            where,
        )


def _texts(row: dict[str, Any], name: str, where: str) -> tuple[str, ...]:
    value = row[name]
    if not isinstance(value, list):
        raise row_error(where, f"has no list of texts under {name}: expected one", "bad-input")
    return tuple(text_of(one, where, name) for one in value)


def read_clusterings(path: Path, notes: Notes) -> list[LabelledTexts]:
    """The texts and labels of a file: all its rows together, or each row by itself if it holds lists, as in MTEB."""
    first: dict[str, Any] = next(iter(first_rows(path)), {})
    names = _column(first, TEXTS), _column(first, LABELS)
    if names[0] is None or names[1] is None or not isinstance(first[names[0]], list):
        texts, labels = read_labelled(path, notes)
        return [LabelledTexts(texts, labels)]
    found = []
    for where, row in rows_of(path, kind_of(path), read_plain(path), notes):
        labels_of_row = row.get(names[1])
        texts_of_row = _texts(row, names[0], where)
        if not isinstance(labels_of_row, list) or len(labels_of_row) != len(texts_of_row):
            raise row_error(where, f"has no list under {names[1]} with a label for each text", "length-mismatch")
        found.append(LabelledTexts(list(texts_of_row), list(map(str, labels_of_row))))
    return found


def read_labelled(path: Path, notes: Notes) -> tuple[list[str], list[str]]:
    """The texts of a file and their labels. Rows without a label are left out and noted."""
    texts, labels = [], []
    for example in read_texts_labelled(path, kind="single", notes=notes):
        if example.gold is None:
            notes.add("unlabelled-row", example.where)
            continue
        texts.append(example.texts[0])
        labels.append(str(example.gold))
    if not texts:
        raise BothwaysError(f"{path} has no labelled rows to evaluate on", "no-labels", path)
    return texts, labels


def read_scored_pairs(path: Path, notes: Notes) -> tuple[list[tuple[str, str]], list[float]]:
    """The pairs of a file and their scores. Pairs without a score are left out and noted."""
    pairs, scores = [], []
    for example in read_texts_labelled(path, kind="regression", notes=notes):
        if example.gold is None:
            notes.add("unlabelled-row", example.where)
            continue
        assert isinstance(example.gold, float)
        if len(example.texts) != 2:
            raise row_error(example.where, "has one text: expected two and their score", "bad-input")
        pairs.append((example.texts[0], example.texts[1]))
        scores.append(example.gold)
    if not pairs:
        raise BothwaysError(f"{path} has no pairs with a score to evaluate on", "no-labels", path)
    return pairs, scores
