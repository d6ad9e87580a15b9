"""What sentence-transformers and transformers do in benchmarks/inference.py, each the way its users would write it.

Every function opens a model once and returns a call that takes a list of inputs. Weights are always opened in the dtype
asked for: transformers would otherwise keep that of the file.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MAX_LENGTH, STRIDE = 512, 128
"""Tokens of a window and of the overlap with the next one, as ours are by default."""
N_BEST, MAX_ANSWER_LENGTH = 20, 30
"""The defaults of transformers' run_qa."""

Call = Callable[[list[Any]], Any]
Vectors = NDArray[np.float32]


# ---------------------------------------------------------------------- embeddings


def sentence_vectors(folder: Path, device: str, dtype: str, batch: int, attention: str = "") -> Call:
    """SentenceTransformer.encode: numpy vectors."""
    from sentence_transformers import SentenceTransformer

    options: dict[str, Any] = {"dtype": DTYPES[dtype]}
    if attention:
        options["attn_implementation"] = attention
    model = SentenceTransformer(str(folder), device=device, model_kwargs=options)
    if attention and not getattr(model[0], "can_flatten_inputs", False):
        raise RuntimeError(f"sentence-transformers does not unpad with {attention}")

    def call(texts: list[Any]) -> Any:
        return model.encode(texts, batch_size=batch, show_progress_bar=False)

    return call


def mean_vectors(folder: Path, device: str, dtype: str, batch: int) -> Call:
    """AutoModel and AutoTokenizer, with the mean over tokens: what a model's card shows."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=DTYPES[dtype]).to(device).eval()

    @torch.inference_mode()
    def call(texts: list[Any]) -> Vectors:
        found = []
        for some in batches(texts, batch):
            given = tokenizer(some, padding=True, truncation=True, max_length=256, return_tensors="pt").to(device)
            states, mask = model(**given).last_hidden_state, given["attention_mask"][..., None]
            found.append(((states * mask).sum(1) / mask.sum(1)).float().cpu().numpy())
        return np.concatenate(found)

    return call


def batches(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield list(items[start : start + size])


# ---------------------------------------------------------------------- tasks


def pipeline(task: str, folder: Path, device: str, dtype: str, batch: int, **options: Any) -> Call:
    """A pipeline of transformers. A pair is given as a tuple."""
    if task == "text-classification":
        options["truncation"] = True
    made = transformers.pipeline(task, model=str(folder), device=device, dtype=DTYPES[dtype], **options)

    def call(inputs: list[Any]) -> Any:
        given = [{"text": item[0], "text_pair": item[1]} if isinstance(item, tuple) else item for item in inputs]
        return made(given, batch_size=batch)

    return call


def open_model(classes: str, folder: Path, device: str, dtype: str) -> tuple[Any, Any]:
    model = getattr(transformers, classes).from_pretrained(folder, dtype=DTYPES[dtype]).to(device).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)


def padded(tokenizer: Any, rows: list[dict[str, Any]], device: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = tokenizer.pad(rows, return_tensors="pt").to(device, non_blocking=True)
    return found


def choices(folder: Path, device: str, dtype: str, batch: int) -> Call:
    """(question, options) → the index of the best option. The loop of transformers' run_swag."""
    model, tokenizer = open_model("AutoModelForMultipleChoice", folder, device, dtype)

    def collate(rows: list[list[dict[str, Any]]]) -> dict[str, Tensor]:
        flat = tokenizer.pad([option for row in rows for option in row], return_tensors="pt")
        return {name: value.view(len(rows), -1, value.shape[-1]) for name, value in flat.items()}

    @torch.inference_mode()
    def call(inputs: list[Any]) -> list[int]:
        width = len(inputs[0][1])
        first = [question for question, options in inputs for _ in options]
        second = [option for _, options in inputs for option in options]
        encoded = tokenizer(first, second, truncation=True, max_length=MAX_LENGTH)
        rows = [{name: values[i] for name, values in encoded.items()} for i in range(len(first))]
        grouped = [rows[i : i + width] for i in range(0, len(rows), width)]
        found: list[int] = []
        for given in torch.utils.data.DataLoader(grouped, batch, collate_fn=collate):  # type: ignore[arg-type]
            logits = model(**{name: value.to(device) for name, value in given.items()}).logits
            found += logits.float().argmax(1).tolist()
        return found

    return call


def answers(folder: Path, device: str, dtype: str, batch: int) -> Call:
    """(question, context) → the best span. The loop of transformers' run_qa: windows, batches, best spans."""
    model, tokenizer = open_model("AutoModelForQuestionAnswering", folder, device, dtype)
    names = ("input_ids", "token_type_ids", "attention_mask")

    @torch.inference_mode()
    def call(inputs: list[Any]) -> list[dict[str, Any]]:
        encoded = tokenizer(
            [question for question, _ in inputs], [context for _, context in inputs], truncation="only_second",
            max_length=MAX_LENGTH, stride=STRIDE, return_overflowing_tokens=True, return_offsets_mapping=True,
        )  # fmt: skip
        rows = [{name: encoded[name][i] for name in names} for i in range(len(encoded["input_ids"]))]
        collate = partial(padded, tokenizer, device=device)
        loader: Any = torch.utils.data.DataLoader(rows, batch, collate_fn=collate)  # type: ignore[arg-type]
        starts: list[NDArray[np.float32]] = []
        ends: list[NDArray[np.float32]] = []
        for given in loader:
            found = model(**given)
            starts += list(found.start_logits.float().cpu().numpy())
            ends += list(found.end_logits.float().cpu().numpy())
        windows: dict[int, list[int]] = {}
        for window, owner in enumerate(encoded["overflow_to_sample_mapping"]):
            windows.setdefault(owner, []).append(window)
        spans = {
            window: [place if source == 1 else None for place, source in zip(places, sources, strict=True)]
            for window, places in enumerate(encoded["offset_mapping"])
            for sources in (encoded.sequence_ids(window),)
        }
        return [
            best_span(context, [(starts[w], ends[w], spans[w]) for w in windows[number]])
            for number, (_, context) in enumerate(inputs)
        ]

    return call


def best_span(context: str, windows: list[tuple[Any, Any, list[Any]]]) -> dict[str, Any]:
    """The likeliest span among the 20 best starts and ends of every window."""
    listed: list[tuple[float, int, int]] = []
    for starts, ends, places in windows:
        best_ends = np.argsort(ends)[: -N_BEST - 1 : -1].tolist()
        for first in np.argsort(starts)[: -N_BEST - 1 : -1].tolist():
            for last in best_ends:
                if first >= len(places) or last >= len(places) or places[first] is None or places[last] is None:
                    continue
                if first <= last < first + MAX_ANSWER_LENGTH:
                    listed.append((float(starts[first] + ends[last]), places[first][0], places[last][1]))
    listed = sorted(listed, reverse=True)[:N_BEST] or [(0.0, 0, 0)]
    scores = np.exp([score - listed[0][0] for score, _, _ in listed])
    _, start, end = listed[0]
    return {"score": float(1 / scores.sum()), "start": start, "end": end, "answer": context[start:end]}


# ---------------------------------------------------------------------- sentence scores


def sentence_scores(folder: Path, device: str, dtype: str, batch: int) -> Call:
    """Pseudo-log-likelihoods: a copy of the text for each of its tokens, that token masked, in padded batches."""
    model, tokenizer = open_model("AutoModelForMaskedLM", folder, device, dtype)

    @torch.inference_mode()
    def call(texts: list[Any]) -> list[float]:
        copies = []
        for number, ids in enumerate(tokenizer(texts)["input_ids"]):
            copies += [(number, ids, place) for place in range(1, len(ids) - 1)]
        copies.sort(key=lambda copy: len(copy[1]))
        sums = torch.zeros(len(texts), dtype=torch.double)
        for some in batches(copies, batch):
            given = tokenizer.pad({"input_ids": [ids for _, ids, _ in some]}, return_tensors="pt").to(device)
            rows = torch.arange(len(some), device=device)
            places = torch.tensor([place for _, _, place in some], device=device)
            tokens = given["input_ids"][rows, places]
            given["input_ids"][rows, places] = tokenizer.mask_token_id
            logs = model(**given).logits[rows, places].float().log_softmax(-1)[rows, tokens]
            sums.index_add_(0, torch.tensor([number for number, _, _ in some]), logs.double().cpu())
        return sums.tolist()

    return call


# ---------------------------------------------------------------------- the bare encoder


def base_encoder(shape: Any, device: str, dtype: str) -> Any:
    """A BertModel with random weights and SDPA attention."""
    config = transformers.BertConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.num_heads,
        intermediate_size=shape.ffn_width,
        attn_implementation="sdpa",
    )
    model = transformers.BertModel(config, add_pooling_layer=False)
    return model.to(device=device, dtype=DTYPES[dtype]).eval()


def padded_batches(sequences: Sequence[Sequence[int]], batch: int, device: str) -> list[dict[str, Tensor]]:
    """In order of length. A mask that hides nothing is left out, which lets their attention take its fastest path."""
    found = []
    for some in batches(sorted(sequences, key=len), batch):
        longest = max(map(len, some))
        grid = torch.tensor([[*row, *[0] * (longest - len(row))] for row in some])
        given = {"input_ids": grid.to(device)}
        if min(map(len, some)) < longest:
            given["attention_mask"] = (torch.arange(longest) < torch.tensor([[len(row)] for row in some])).to(device)
        found.append(given)
    return found
