"""The data of benchmarks/inference.py: mixed texts, inputs of the tasks, and MiniLM with a head for each task."""

import json
import lzma
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from bothways.predict.likelihood import MinimalPair, read_minimal_pairs

SHORTEST, LONGEST = 8, 300
SKEW = 8.7
"""Most texts are short: 38 words on average, some 50 tokens."""
TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC")
ENTITIES = 0.15
"""Share of tokens that the made-up tagger takes for part of an entity, about that of CoNLL-2003."""


# ---------------------------------------------------------------------- texts


def make_texts(corpus: Path, out: Path, count: int) -> Path:
    """Write `texts.txt`: texts of 8 to 300 words, most of them short, from all *.txt.xz of a folder in equal parts."""
    files = sorted(corpus.glob("*.txt.xz"))
    if not files:
        raise SystemExit(f"{corpus} has no file *.txt.xz")
    each = -(-3 * count // (2 * len(files)))  # half more than wanted: small files run out
    found: list[str] = []
    for number, file in enumerate(files):
        pieces = cut_pieces(file, random.Random(number))
        found += [text for text, _ in zip(pieces, range(each), strict=False)]
    random.Random(0).shuffle(found)
    if len(found) < count:
        raise SystemExit(f"{corpus} has enough for {len(found):,} texts, and {count:,} are wanted")
    out.mkdir(parents=True, exist_ok=True)
    (out / "texts.txt").write_text("".join(f"{text}\n" for text in found[:count]), encoding="utf-8")
    return out / "texts.txt"


def draw_length(draws: random.Random) -> int:
    return int(SHORTEST + (LONGEST - SHORTEST) * draws.random() ** SKEW)


def cut_pieces(file: Path, draws: random.Random) -> Iterator[str]:
    """Consecutive texts of a file, each of as many words as drawn."""
    words: list[str] = []
    wanted = draw_length(draws)
    with lzma.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            words += line.split()
            while len(words) >= wanted:
                yield " ".join(words[:wanted])
                words, wanted = words[wanted:], draw_length(draws)


def existing(data: Path, name: str) -> Path:
    """A file of the data folder, plain or .xz."""
    for path in (data / name, data / f"{name}.xz"):
        if path.exists():
            return path
    raise FileNotFoundError(f"{data} has no {name} and no {name}.xz")


def read_texts(data: Path) -> list[str]:
    path = existing(data, "texts.txt")
    raw = path.read_bytes()
    text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8")
    return [line for line in text.split("\n") if line.strip()]


def read_pairs(data: Path, limit: int) -> list[MinimalPair]:
    return list(read_minimal_pairs(existing(data, "blimp.jsonl"), limit))


# ---------------------------------------------------------------------- inputs of the tasks


def short(texts: Sequence[str], count: int, low: int, high: int, seed: int = 0) -> list[str]:
    """The beginnings of `count` texts, of `low` to `high` words each."""
    draws = random.Random(seed)
    return [" ".join(texts[i % len(texts)].split()[: draws.randint(low, high)]) for i in range(count)]


def pairs(texts: Sequence[str], count: int) -> list[tuple[str, str]]:
    return list(zip(short(texts, count, 8, 40, 1), short(texts[::-1], count, 6, 20, 2), strict=True))


def questions(texts: Sequence[str], count: int) -> list[tuple[str, str]]:
    """A question of 6 to 15 words and a context of 200 to 300."""
    long = [text for text in texts if len(text.split()) >= 200] or list(texts)
    asked = short(texts[::-1], count, 6, 15, 3)
    return [(question, long[i % len(long)]) for i, question in enumerate(asked)]


def choices(texts: Sequence[str], count: int) -> list[tuple[str, tuple[str, ...]]]:
    """A text of 15 to 40 words and four ways to go on."""
    options = short(texts[::-1], 4 * count, 5, 20, 4)
    asked = short(texts, count, 15, 40, 5)
    return [(question, tuple(options[4 * i : 4 * i + 4])) for i, question in enumerate(asked)]


def masked(texts: Sequence[str], count: int, mask: str) -> list[str]:
    """Texts of 8 to 30 words, one of them replaced by the mask."""
    draws = random.Random(6)
    found = []
    for text in short(texts, count, 8, 30, 6):
        words = text.split()
        words[draws.randrange(len(words))] = mask
        found.append(" ".join(words))
    return found


# ---------------------------------------------------------------------- model folders


@dataclass(frozen=True)
class TaskFolder:
    """MiniLM's encoder and tokenizer with a random head."""

    classes: str
    labels: tuple[str, ...] = ()


FOLDERS = {
    "classify": TaskFolder("BertForSequenceClassification", ("negative", "neutral", "positive")),
    "nli": TaskFolder("BertForSequenceClassification", ("entailment", "neutral", "contradiction")),
    "tag": TaskFolder("BertForTokenClassification", TAGS),
    "answer": TaskFolder("BertForQuestionAnswering"),
    "choose": TaskFolder("BertForMultipleChoice"),
}


def write_folder(task: str, minilm: Path, out: Path, texts: Sequence[str]) -> Path:
    """A folder of transformers in fp32. A tagger is made to take most words for no entity, as real ones do."""
    made, folder = FOLDERS[task], out / task
    options: dict[str, Any] = {"id2label": dict(enumerate(made.labels))} if made.labels else {}
    torch.manual_seed(0)
    classes = getattr(transformers, made.classes)
    model = classes.from_pretrained(minilm, dtype=torch.float32, **options).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    head = getattr(model, "classifier", None) or model.qa_outputs
    torch.nn.init.normal_(head.weight, std=0.2)  # loud enough that answers are not ties
    if task == "tag":
        given = tokenizer(list(texts[:64]), padding=True, truncation=True, max_length=128, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**given).logits[given["attention_mask"].bool()]
        margins = logits[:, 1:].amax(1) - logits[:, 0]
        head.bias.data[0] += margins.quantile(1 - ENTITIES)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert not made.labels or tuple(config["id2label"].values()) == made.labels
    return folder
