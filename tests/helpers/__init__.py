"""What several test modules share: small loud models, a small vocabulary, tokenizers of every family."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.attention import Window
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.tasks.registry import TASKS, make_task, new_config
from bothways.tasks.task import Task, TaskConfig
from bothways.text.tokenizer import Tokenizer
from bothways.text.train_vocab import FIRST_PIECES

NETWORK = {
    "socket.__new__",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "socket.bind",
}
LOOPBACK: list[bool] = []
"""Not empty while a test may talk to this machine: the service is the one part that listens."""
_OWN = ("127.0.0.1", "::1", "localhost")


def leaves_the_process(event: str, arguments: tuple[Any, ...], may_loop_back: bool = False) -> bool:
    """Whether an audit event opens the network. A pair of Unix sockets, as event loops have, is a pipe."""
    if event not in NETWORK or (event == "socket.__new__" and int(arguments[1]) == socket.AF_UNIX):
        return False
    if not may_loop_back:
        return True
    if event in ("socket.connect", "socket.bind"):
        return not isinstance(arguments[1], tuple) or arguments[1][0] not in _OWN
    return event != "socket.__new__" and arguments[0] not in _OWN


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]

WORDS = """
the a of is in and to capital france paris germany berlin china beijing cat dog runs sleeps black white big
small house tree reads writes un believ able walk talk run ##s ##ing ##ed ##ly ##er ##able ##believ ! . , ? ' -
0 1 2 3 4 5 6 7 8 9 e n t o i r l d h s w k b c p f g m u v y x q j z ##e ##n ##t ##o ##i ##r ##l ##d ##h ##a
##w ##k ##b ##c ##p ##f ##g ##m ##u ##v ##y ##x ##q ##j ##z ##0 ##1 ##2 中 国 的 首 都 是 北 京 巴 黎 法 猫 狗 日 本 。 ， 😀 é ñ
""".split()  # noqa: SIM905
PIECES = [*FIRST_PIECES, *WORDS]

TINY = EncoderConfig(
    vocab_size=len(PIECES), width=32, layers=3, num_heads=4, ffn_width=64, positions=Learned(48), init_std=0.02
)


def families_with(*heads: str, is_judged: bool = True) -> list[str]:
    """The families that have these heads, and a class in transformers if `is_judged`."""
    unjudged = {"new", "neobert", "mosaic-bert", "jina-bert-v2"} if is_judged else set()
    return [name for name, family in FAMILIES.items() if set(heads) <= set(family.heads) and name not in unjudged]


def make_loud(module: torch.nn.Module, seed: int = 0) -> None:
    """Weights so large that every term of every equation shows in the output: a dropped bias, a swapped norm."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "embed_positions" in name:  # RoFormer's sines are a parameter, and no weights
                continue
            noise = torch.randn(parameter.shape, generator=draws)
            is_norm = "norm" in name.lower()
            loud = 1 + 0.3 * noise if is_norm and name.endswith("weight") else 0.25 * noise
            parameter.copy_(loud)


def config_for(task: str, kind: str = "", **values: Any) -> TaskConfig:
    """The config of a task; of options that other tasks have, nothing is taken."""
    known = {field.name for field in fields(TASKS[task].Options)} | {"window", "temperature", "thresholds"}
    given = {**values, "kind": kind} if kind else values
    return new_config(task, **{name: value for name, value in given.items() if name in known})


def task_of(kind: type[Task], model: Model) -> Any:
    """The task of a model, as it is for this kind."""
    task = make_task(model)
    assert type(task) is kind
    return task


_ANYTHING = object()


@contextmanager
def refused(code: str, value: object = _ANYTHING, names: str = "") -> Iterator[None]:
    """A block that must end in a BothwaysError of this code, about this value.

    How its sentence puts it is free; `names` is a pattern of what it must name: a file, a key, a number.
    """
    with pytest.raises(BothwaysError) as caught:
        yield
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    if value is not _ANYTHING:
        assert caught.value.value == value
    assert re.search(names, str(caught.value)), f"{names} is not in: {caught.value}"


# ---------------------------------------------------------------------- a tokenizer and a model of each family

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
    """The vocabulary and the merges of a byte-level BPE."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(TEXT, trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [(left, right) for left, right in model["merges"]]


@cache
def _unigram(specials: tuple[str, ...], unknown: str, lower: bool = False) -> list[tuple[str, float]]:
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    trainer = trainers.UnigramTrainer(
        vocab_size=170, special_tokens=list(specials), unk_token=unknown, show_progress=False
    )
    backend.train_from_iterator([text.lower() if lower else text for text in TEXT], trainer)
    return [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]


def hf_tokenizer(family: str) -> Any:
    """The family's own tokenizer class in transformers, with a small vocabulary; None if it is BERT's."""
    import transformers  # only here and in `judge`: it takes seconds

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
    """A small tokenizer of a family. It is shared: no test changes it."""
    own = hf_tokenizer(family)
    if own is None:
        return Tokenizer.from_pieces(PIECES)
    with TemporaryDirectory() as folder:
        own.save_pretrained(folder)
        return Tokenizer.load(Path(folder))


def model_of(family: str, heads: tuple[str, ...] = ("masked",)) -> Model:
    """A small loud model of a family."""
    tokenizer = tokenizer_of(family)
    shape = FAMILIES[family].fresh(replace(TINY, layers=2, vocab_size=tokenizer.size))
    model = Model.new(ModelConfig(shape, heads, family=family), tokenizer)
    make_loud(model)
    return model.eval()


def judge(folder: Path, texts: list[str]) -> tuple[list[list[int]], list[Any]]:
    """The ids and the masked language modelling logits of each text, by transformers with this folder."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids, logits = [], []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits.append(model(**inputs).logits[0])
        ids.append(inputs["input_ids"][0].tolist())
    return ids, logits


HEADS, DIM = 3, 16


RAGGED = (5, 33, 1, 32, 9, 9, 30)


EVEN = (12, 12, 12)


def random_batch(lengths: tuple[int, ...], device: str = "cpu") -> tuple[Batch, Tensor, Tensor, Tensor]:
    draws = torch.Generator().manual_seed(len(lengths))
    batch = Batch.pack([[1] * n for n in lengths]).to(device)
    q, k, v = (torch.randn(sum(lengths), HEADS, DIM, generator=draws).to(device) for _ in range(3))
    return batch, q, k, v


def distance_bias(h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """A bias that depends on all three numbers, and on the order of i and j."""
    return -0.3 * (h + 1) * (i - j).abs() + 0.2 * (i > j)


WINDOWS: list[Window | None] = [None, (2, 2), (-1, 0), (0, 5)]
