"""Static models: a table with one vector for each token; the vector of a text is the mean of its tokens' vectors.

Folders are those of sentence-transformers with the module StaticEmbedding; those of Model2Vec are read too.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError, name_list
from bothways.json_files import read_json_file
from bothways.lazy import F, Lazy, Tensor, torch
from bothways.model.box import model_folder, no_such_model
from bothways.model.readable import check_readable
from bothways.model.sentence_files import MODULES
from bothways.model.weights import read_json, read_weights
from bothways.text.frames import not_a_text
from bothways.text.plain_ids import PlainIds
from bothways.text.tokenizer import Tokenizer

_SAFETENSORS = Lazy("safetensors.torch")
_KIND, _NORMALIZE = "StaticEmbedding", "Normalize"
_FILES = (
    MODULES,
    "config_sentence_transformers.json",
    "model.safetensors",
    "tokenizer.json",
    "README.md",
    "1_Normalize",
)
_TEXTS_AT_ONCE = 1024
_CARD = """---
library_name: sentence-transformers
tags:
- static-embeddings
- sentence-similarity
---
# {name}

A table of {rows:,} token vectors of {width} numbers, made by `bothways static`. The vector of a text is the mean of the
vectors of its tokens, divided by its length.

```python
import bothways

vectors = bothways.encode(["The cat sleeps.", "猫在睡觉。"], "{name}")
```

`sentence_transformers.SentenceTransformer("{name}")` opens the folder too.
"""


@dataclass(frozen=True)
class StaticModel:
    """A tokenizer and a table of token vectors."""

    tokenizer: Tokenizer
    table: Tensor
    """(tokens, width) in fp32."""
    normalizes: bool = True
    """Whether vectors are divided by their length."""

    @property
    def width(self) -> int:
        """The width of the vectors."""
        return self.table.shape[1]

    def encode(self, texts: Iterable[str]) -> NDArray[np.float32]:
        """One vector for each text: (texts, width). A text without tokens gets zeros."""
        rows = list(self.blocks(texts))
        return np.concatenate(rows) if rows else np.zeros((0, self.width), np.float32)

    def blocks(self, texts: Iterable[str]) -> Iterator[NDArray[np.float32]]:
        """`encode` as a stream, in constant memory: the vectors of some texts at a time."""
        if isinstance(texts, str):
            raise BothwaysError(
                "a list of texts was expected, and one string was given: put it in a list", "bad-input", texts
            )
        for some in _batched(texts):
            ids, counts = self.ids(some)
            starts = np.cumsum(counts) - counts
            with torch.inference_mode():
                found = F.embedding_bag(torch.from_numpy(ids), self.table, torch.from_numpy(starts), mode="mean")
                found = F.normalize(found, dim=1) if self.normalizes else found
            yield found.numpy()

    def token_ids(self, texts: Iterable[str]) -> Iterator[NDArray[np.int64]]:
        """The ids of the tokens of texts, without special tokens: those of some texts at a time."""
        return (self.ids(some)[0] for some in _batched(texts))

    def ids(self, texts: list[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Token ids of texts, one text after the other, without special tokens; and the length of each."""
        check_readable(texts, self.tokenizer, for_vectors=True)
        found = PlainIds(self.tokenizer).any_length(texts)
        return found.ids.astype(np.int64), found.lengths


def _batched(texts: Iterable[str]) -> Iterator[list[str]]:
    stream = iter(texts)
    while some := list(islice(stream, _TEXTS_AT_ONCE)):
        for text in some:
            if not isinstance(text, str):
                raise not_a_text(text)
        yield some


# ---------------------------------------------------------------------- reading


def is_static(folder: Path | str) -> bool:
    """Whether a folder, or the model of a name, is a static model."""
    return _place(model_folder(folder)) is not None


def load_static(folder: Path | str) -> StaticModel:
    """Open a static model: a folder of sentence-transformers (StaticEmbedding) or of Model2Vec, or a name as in
    `load`."""
    folder = model_folder(folder)
    place = _place(folder)
    if place is None:
        what = f"{folder} is not the folder of a static model" if folder.is_dir() else str(no_such_model(folder))
        raise BothwaysError(f"{what}; expected {_KIND} in {MODULES}, or Model2Vec's config.json", "not-static", folder)
    file = next((place / name for name in ("model.safetensors", "pytorch_model.bin") if (place / name).exists()), None)
    if file is None:
        raise BothwaysError(f"{place} has no weights: expected model.safetensors", "no-weights", place)
    table = _read_table(file)
    try:
        tokenizer = Tokenizer(tokenizers.Tokenizer.from_file(str(place / "tokenizer.json")))
    except Exception as error:  # the Rust library raises bare Exception
        raise BothwaysError(
            f"{place / 'tokenizer.json'} cannot be read as a tokenizer: {error}", "damaged-file", place
        ) from error
    if tokenizer.size > len(table):
        raise BothwaysError(
            f"{place}: the tokenizer has {tokenizer.size} tokens, and the table {len(table)} rows",
            "vocabulary-mismatch",
            (tokenizer.size, len(table)),
        )
    return StaticModel(tokenizer, table, _normalizes(folder))


def _listed(folder: Path) -> list[dict[str, Any]]:
    """The modules of a folder; none if they cannot be read."""
    try:
        found = read_json_file(folder / MODULES)
        return [{"kind": str(module["type"]).rpartition(".")[2], "path": str(module["path"])} for module in found]
    except (BothwaysError, KeyError, TypeError):
        return []


def _place(folder: Path) -> Path | None:
    """Where the table and its tokenizer are; None if this is no static model."""
    modules = _listed(folder)
    if modules and modules[0]["kind"] == _KIND:
        inner = Path(modules[0]["path"])
        return None if inner.is_absolute() or ".." in inner.parts else folder / inner
    config = folder / "config.json"
    is_model2vec = not modules and config.is_file() and read_json(config).get("model_type") == "model2vec"
    return folder if is_model2vec else None


def _normalizes(folder: Path) -> bool:
    modules = _listed(folder)
    if not modules:
        return read_json(folder / "config.json").get("normalize") is not False
    others = [module["kind"] for module in modules[1:]]
    if not set(others) <= {_NORMALIZE}:
        raise BothwaysError(
            f"{folder / MODULES} lists {', '.join(others)} after {_KIND}: only {_NORMALIZE} is supported",
            "unsupported-modules",
            tuple(others),
        )
    return bool(others)


def _read_table(file: Path) -> Tensor:
    """The rows by token id, from the tensors of either library."""
    tensors = read_weights(file)
    table = tensors.get("embedding.weight", tensors.get("embeddings"))
    if table is None or table.dim() != 2 or not (table.is_floating_point() or table.dtype == torch.int8):
        raise BothwaysError(
            f"{file} holds {name_list(sorted(tensors))}: expected the matrix embedding.weight or embeddings",
            "unexpected-tensors",
            tuple(sorted(tensors)),
        )
    table = table.float()
    if (mapping := tensors.get("mapping")) is not None:  # Model2Vec: several tokens share a row
        table = table[mapping.long()]
    if (weights := tensors.get("weights")) is not None:
        table = table * weights.float()[:, None]
    return table.contiguous()


# ---------------------------------------------------------------------- writing


def save_static(model: StaticModel, folder: Path | str) -> None:
    """Write a folder that sentence-transformers opens. The write is atomic: the folder is never half-written."""
    folder = Path(folder)
    kinds = [(_KIND, ""), *([(_NORMALIZE, "1_Normalize")] if model.normalizes else [])]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    with atomic.new_folder(folder, replaces=_FILES) as fresh:
        _write_json(fresh / MODULES, listed)
        _write_json(fresh / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
        if model.normalizes:
            (fresh / "1_Normalize").mkdir()
            _write_json(fresh / "1_Normalize" / "config.json", {})
        try:
            tensors = {"embedding.weight": model.table.contiguous()}
            _SAFETENSORS.save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
        except _SAFETENSORS.SafetensorError as error:  # safetensors wraps the OSError of a full disk
            raise OSError(None, str(error)) from error
        model.tokenizer.backend.save(str(fresh / "tokenizer.json"))
        card = _CARD.format(name=folder.name, rows=len(model.table), width=model.width)
        (fresh / "README.md").write_text(card, encoding="utf-8")


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
