"""Small tokenizers of every kind, as the families have them, and small loud models that read with them."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import transformers
from tokenizers import models, pre_tokenizers, trainers

from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, TINY, make_loud

ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = [
    "The corona of the sun is hotter than the sun itself, and nobody knows why.",
    "A virus is small; the house is big. The viruses ran to the houses, running and talking.",
    "We walked and talked about the capital of France, which is Paris, and of Germany, which is Berlin.",
    "北京是中国的首都。巴黎是法国的首都。猫和狗在北京。日本的猫。",
    "unbelievable, believable, able, ability, abilities: the unable are not believed.",
    "Glucose and insulin, glucose or insulin; the insulin pump in the house of the cat.",
] * 3


@cache
def byte_level(specials: tuple[str, ...]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    told = json.loads(backend.to_str())["model"]
    return told["vocab"], [(left, right) for left, right in told["merges"]]


@cache
def _unigram(specials: tuple[str, ...], unknown: str, lower: bool = False) -> list[tuple[str, float]]:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=170, special_tokens=list(specials), unk_token=unknown, show_progress=False
    )
    backend.train_from_iterator([text.lower() if lower else text for text in TEXT], trainer)
    return [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]


def _theirs(family: str) -> Any:
    """The family's own tokenizer in transformers."""
    match family:
        case "roberta" | "modernbert":
            vocabulary, merges = byte_level(tuple(ROBERTA))
            return transformers.RobertaTokenizer(vocab=vocabulary, merges=merges)
        case "deberta":
            vocabulary, merges = byte_level(tuple(BERT))
            return transformers.DebertaTokenizer(vocab=vocabulary, merges=merges)
        case "xlm-roberta":
            return transformers.XLMRobertaTokenizer(vocab=_unigram(tuple(ROBERTA), "<unk>"))
        case "camembert":
            first = [
                ("<s>NOTUSED", 0.0),
                ("<pad>", 0.0),
                ("</s>NOTUSED", 0.0),
                ("<unk>", 0.0),
                ("<unk>NOTUSED", -100.0),
            ]
            rest = [row for row in _unigram(("<s>", "</s>", "<unk>"), "<unk>") if row[0] != "<unk>"]
            return transformers.CamembertTokenizer(vocab=[*first, *rest, ("<mask>", 0.0)])
        case "albert":
            scored = _unigram(("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"), "<unk>", lower=True)
            return transformers.AlbertTokenizer(vocab=scored)
        case "deberta-v2":
            return transformers.DebertaV2Tokenizer(vocab=_unigram(tuple(BERT), "[UNK]"))
    return None


@cache
def tokenizer_of(family: str) -> Tokenizer:
    """Nobody changes it: it is shared."""
    made = _theirs(family)
    if made is None:
        return Tokenizer.from_pieces(PIECES)
    with TemporaryDirectory() as folder:
        made.save_pretrained(folder)
        return Tokenizer.load(Path(folder))


def model_of(family: str, heads: tuple[str, ...] = ("masked",)) -> Model:
    tokenizer = tokenizer_of(family)
    shape = FAMILIES[family].fresh(replace(TINY, layers=2, vocab_size=tokenizer.size))
    model = Model.new(ModelConfig(shape, heads, family=family), tokenizer)
    make_loud(model)
    return model.eval()


def judge(folder: Path, texts: list[str]) -> tuple[list[list[int]], list[Any]]:
    """What transformers makes of these texts with the folder: ids, and masked-word logits of each."""
    import torch

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids, logits = [], []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits.append(model(**inputs).logits[0])
        ids.append(inputs["input_ids"][0].tolist())
    return ids, logits
