"""RoBERTa by fairseq: the numbers are those of its equations, its tokens are its dictionary's, and no pickle runs code."""

import argparse
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.convert import convert

WORDS, WIDTH, HIDDEN, HEADS, LAYERS, POSITIONS = 25, 16, 24, 4, 2, 20
LETTERS = "ACDEFGHIKLMNPQRSTVWY"
IDS = [[0, 7, 21, 24, 9, 9, 2], [0, 4, 2]]
ARGUMENTS: dict[str, Any] = {
    "arch": "roberta_small",
    "task": "masked_lm",
    "encoder_layers": LAYERS,
    "encoder_embed_dim": WIDTH,
    "encoder_ffn_embed_dim": HIDDEN,
    "encoder_attention_heads": HEADS,
    "max_positions": POSITIONS,
    "activation_fn": "gelu",
    "pooler_activation_fn": "tanh",
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "activation_dropout": 0.0,
    "pooler_dropout": 0.3,
}

# ---------------------------------------------------------------------- fairseq, written down once more


def loud_weights(words: int = WORDS, classes: int = 0) -> dict[str, Tensor]:
    """A RoBERTa as today's fairseq names it."""
    body = "encoder.sentence_encoder"
    shapes: dict[str, tuple[int, ...]] = {
        f"{body}.embed_tokens.weight": (words, WIDTH),
        f"{body}.embed_positions.weight": (POSITIONS + 2, WIDTH),
        f"{body}.layernorm_embedding": (WIDTH,),
        "encoder.lm_head.dense": (WIDTH, WIDTH),
        "encoder.lm_head.layer_norm": (WIDTH,),
        "encoder.lm_head.bias": (words,),
    }
    for i in range(LAYERS):
        layer = f"{body}.layers.{i}"
        shapes |= {f"{layer}.self_attn.{part}_proj": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
        shapes |= {f"{layer}.{norm}": (WIDTH,) for norm in ("self_attn_layer_norm", "final_layer_norm")}
        shapes |= {f"{layer}.fc1": (HIDDEN, WIDTH), f"{layer}.fc2": (WIDTH, HIDDEN)}
    if classes:
        shapes |= {"classification_heads.mnli.dense": (WIDTH, WIDTH)}
        shapes |= {"classification_heads.mnli.out_proj": (classes, WIDTH)}
    draws = torch.Generator().manual_seed(0)
    weights: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        if name.endswith((".weight", ".bias")):
            weights[name] = torch.randn(shape, generator=draws) * 0.5
        else:
            weights[f"{name}.weight"] = torch.randn(shape, generator=draws) * 0.5 + (len(shape) == 1)
            weights[f"{name}.bias"] = torch.randn(shape[:1], generator=draws) * 0.5
    return weights | {"encoder.lm_head.weight": weights[f"{body}.embed_tokens.weight"]}


def states_of(weights: Mapping[str, Tensor], ids: list[int]) -> Tensor:
    """RoBERTa's equations on fairseq's own tensors."""
    body = "encoder.sentence_encoder"

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / spread * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights[f"{body}.embed_tokens.weight"][ids] + weights[f"{body}.embed_positions.weight"][2 : 2 + len(ids)]
    x = norm(x, f"{body}.layernorm_embedding")
    for i in range(LAYERS):
        layer, size = f"{body}.layers.{i}", WIDTH // HEADS
        q, k, v = (linear(x, f"{layer}.self_attn.{part}_proj").split(size, -1) for part in "qkv")
        heads = [(a @ b.T * size**-0.5).softmax(-1) @ c for a, b, c in zip(q, k, v, strict=True)]
        x = norm(x + linear(torch.cat(heads, -1), f"{layer}.self_attn.out_proj"), f"{layer}.self_attn_layer_norm")
        x = norm(x + linear(F.gelu(linear(x, f"{layer}.fc1")), f"{layer}.fc2"), f"{layer}.final_layer_norm")
    return x


def words_of(weights: Mapping[str, Tensor], ids: list[int]) -> Tensor:
    """What the masked-word head answers for each token."""
    x = states_of(weights, ids) @ weights["encoder.lm_head.dense.weight"].T + weights["encoder.lm_head.dense.bias"]
    scale, shift = weights["encoder.lm_head.layer_norm.weight"], weights["encoder.lm_head.layer_norm.bias"]
    x = F.layer_norm(F.gelu(x), (WIDTH,), scale, shift, 1e-5)
    return x @ weights["encoder.lm_head.weight"].T + weights["encoder.lm_head.bias"]


def as_in_2019(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names of the published RoBERTa models: a decoder, with query, key and value in one tensor."""
    old = {}
    for name, tensor in weights.items():
        if ".q_proj." in name:
            tensor = torch.cat([weights[name.replace("q_proj", f"{part}_proj")] for part in "qkv"])
            name = name.replace("q_proj.", "in_proj_")
        if ".k_proj." not in name and ".v_proj." not in name:
            old[re.sub("^encoder", "decoder", name).replace("layernorm_embedding", "emb_layer_norm")] = tensor
    return old


def as_in_2020(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The names between: a decoder with three tensors."""
    return {
        re.sub("^encoder", "decoder", n).replace("layernorm_embedding", "emb_layer_norm"): t for n, t in weights.items()
    }


def as_today(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {**weights, "encoder.sentence_encoder.version": torch.tensor([3.0])}


def write(folder: Path, weights: Mapping[str, Tensor], *, arguments: Mapping[str, Any] = ARGUMENTS) -> Path:
    """A checkpoint with what fairseq puts beside the weights."""
    folder.mkdir(exist_ok=True)
    beside = {"optimizer_history": [{"num_updates": 5}], "extra_state": {"val_loss": torch.tensor(1.5)}}
    torch.save({"args": argparse.Namespace(**arguments), "model": dict(weights), **beside}, folder / "model.pt")
    (folder / "dict.txt").write_text("".join(f"{letter} 1\n" for letter in LETTERS), encoding="utf-8")
    return folder / "model.pt"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "fairseq", as_today(loud_weights()))


# ---------------------------------------------------------------------- numbers


@pytest.mark.parametrize("layout", [as_in_2019, as_in_2020, as_today])
def test_the_numbers_are_fairseqs(tmp_path: Path, layout: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]) -> None:
    weights = loud_weights()
    convert(write(tmp_path / "fairseq", layout(weights)), tmp_path / "model")
    ours = bothways.load(tmp_path / "model", dtype=torch.float64)  # in which two ways to add up are no excuse
    judge, report = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    judge, weights = judge.double().eval(), {name: tensor.double() for name, tensor in weights.items()}
    with torch.no_grad():
        found = ours.masked(ours.encoder(Batch.pack(IDS))).split([len(ids) for ids in IDS])
        for ids, logits in zip(IDS, found, strict=True):
            expected = words_of(weights, ids)
            assert expected.std() > 1
            torch.testing.assert_close(logits, expected, atol=1e-10, rtol=0)
            torch.testing.assert_close(judge(torch.tensor([ids])).logits[0], expected, atol=1e-10, rtol=0)


def test_settings_are_kept(tmp_path: Path, file: Path) -> None:
    convert(file, tmp_path / "model")
    said = json.loads((tmp_path / "model" / "config.json").read_text())
    expected = {
        "model_type": "roberta",
        "architectures": ["RobertaForMaskedLM"],
        "vocab_size": WORDS,
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": HIDDEN,
        "max_position_embeddings": POSITIONS + 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.2,
        "classifier_dropout": 0.3,
        "layer_norm_eps": 1e-5,
        "pad_token_id": 1,
    }
    assert {key: said[key] for key in expected} == expected
    assert bothways.load(tmp_path / "model").config.encoder.max_length == POSITIONS


def test_a_classification_head_comes_along(tmp_path: Path) -> None:
    weights = loud_weights(classes=3)
    convert(write(tmp_path / "fairseq", as_in_2019(weights)), tmp_path / "model")
    ours = bothways.load(tmp_path / "model")
    assert set(ours.config.heads) == {"masked", "sequence"}
    batch = Batch.pack(IDS)
    with torch.no_grad():
        found = ours.logits("sequence", ours.encoder(batch), batch)
    head = "classification_heads.mnli"
    for ids, logits in zip(IDS, found, strict=True):
        first = states_of(weights, ids)[0]
        hidden = torch.tanh(weights[f"{head}.dense.weight"] @ first + weights[f"{head}.dense.bias"])
        expected = weights[f"{head}.out_proj.weight"] @ hidden + weights[f"{head}.out_proj.bias"]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [argparse.Namespace(**ARGUMENTS), ARGUMENTS])
def test_settings_of_newer_files_are_found(tmp_path: Path, file: Path, model: object) -> None:
    found = torch.load(file, weights_only=False)
    torch.save({"args": None, "cfg": {"task": {"_name": "masked_lm"}, "model": model}, "model": found["model"]}, file)
    assert convert(file, tmp_path / "model").config.encoder.num_heads == HEADS


def test_half_precision_is_read_and_the_folder_will_do(tmp_path: Path) -> None:
    weights = {name: tensor.half() for name, tensor in loud_weights().items()}
    convert(write(tmp_path / "fairseq", weights).parent, tmp_path / "model")
    found = bothways.load(tmp_path / "model").encoder.embeddings.tokens.weight
    assert torch.equal(found, weights["encoder.lm_head.weight"].float())


# ---------------------------------------------------------------------- tokenizers


def test_every_character_is_a_token(tmp_path: Path, file: Path) -> None:
    tokenizer = convert(file, tmp_path / "model").tokenizer
    assert tokenizer is not None
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    ids = {letter: i for i, letter in enumerate(LETTERS, 4)}
    for text, expected in {
        "EVQ": [0, ids["E"], ids["V"], ids["Q"], 2],
        " E V\nQ ": [0, ids["E"], ids["V"], ids["Q"], 2],
        "A<mask>A X e é": [0, ids["A"], 24, ids["A"], 3, 3, 3, 2],
        "": [0, 2],
    }.items():
        assert tokenizer(text).ids == expected
        assert theirs(text)["input_ids"] == expected
    assert tokenizer("A", "C").ids == [0, ids["A"], 2, 2, ids["C"], 2]
    assert tokenizer.decode([0, 7, 21, 2]) == "EV"
    assert [tokenizer.roles[f"{role}_token"] for role in ("pad", "unk", "cls", "sep", "mask")] == [
        "<pad>", "<unk>", "<s>", "</s>", "<mask>"
    ]  # fmt: skip
    answers = bothways.fill("EV<mask>L", bothways.load(tmp_path / "model"), top=2)
    assert {answer.words[0] for answer in answers} <= set(LETTERS)


@pytest.fixture
def gpt2(tmp_path: Path) -> transformers.GPT2Tokenizer:
    """A small GPT-2 vocabulary, its files beside the checkpoint."""
    from tokenizers import pre_tokenizers

    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "c"), ("Ġc", "a"), ("Ġca", "t"), ("å", "Į")]
    encoder = {piece: i for i, piece in enumerate([*pieces, *map("".join, merges), "<|endoftext|>"])}
    folder = tmp_path / "fairseq"
    folder.mkdir()
    (folder / "encoder.json").write_text(json.dumps(encoder))
    lines = "".join(f"{first} {second}\n" for first, second in merges)
    (folder / "vocab.bpe").write_text(f"#version: 0.2\n{lines}", encoding="utf-8")
    return transformers.GPT2Tokenizer(vocab=encoder, merges=merges)


def write_numbers(folder: Path, numbers: list[int]) -> Path:
    """A checkpoint whose dictionary holds GPT-2's ids, with two fillers."""
    path = write(folder, loud_weights(4 + len(numbers) + 2 + 1))
    lines = [f"{number} {1000 - i}" for i, number in enumerate(numbers)]
    (folder / "dict.txt").write_text("\n".join([*lines, "madeupword0000 0", "madeupword0001 0", ""]))
    return path


def test_gpt2s_pieces_have_the_ids_of_the_dictionary(tmp_path: Path, gpt2: transformers.GPT2Tokenizer) -> None:
    numbers = torch.randperm(len(gpt2), generator=torch.Generator().manual_seed(3)).tolist()
    tokenizer = convert(write_numbers(tmp_path / "fairseq", numbers), tmp_path / "model").tokenizer
    assert tokenizer is not None
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    place = {number: 4 + i for i, number in enumerate(numbers)}
    for text in ("the cat", " the  cat sat", "Thé 猫 the\ncats!", ""):
        expected = [0, *(place[number] for number in gpt2(text)["input_ids"]), 2]
        assert tokenizer(text).ids == expected
        assert theirs(text)["input_ids"] == expected
        assert tokenizer.decode(expected) == text
    mask = 4 + len(numbers) + 2
    assert tokenizer("the <mask>").ids == theirs("the <mask>")["input_ids"] == [0, tokenizer.id("the"), mask, 2]
    assert tokenizer("a", "b").ids == theirs("a", "b")["input_ids"]
    assert tokenizer.size == mask + 1


@pytest.mark.parametrize(
    ("lines", "remove", "reason"),
    [
        (None, "dict.txt", "dict.txt"),
        (None, "vocab.bpe", "vocab.bpe"),
        (None, "encoder.json", "encoder.json"),
        ([f"{i} 1" for i in range(100, 120)], "", "GPT-2"),
        ([f"▁{letter} 1" for letter in LETTERS], "", "GPT-2"),
    ],
)
def test_without_the_files_there_is_no_tokenizer_and_that_is_said(
    tmp_path: Path, gpt2: transformers.GPT2Tokenizer, lines: list[str] | None, remove: str, reason: str
) -> None:
    folder = tmp_path / "fairseq"
    path = write_numbers(folder, list(range(len(gpt2)))) if lines is None else write(folder, loud_weights())
    if lines is not None:
        (folder / "dict.txt").write_text("\n".join(lines), encoding="utf-8")
    if remove:
        (folder / remove).unlink()
    with pytest.warns(UserWarning, match=reason) as told:
        convert(path, tmp_path / "model")
    assert len(told) == 1
    assert bothways.load(tmp_path / "model").tokenizer is None
    assert not list((tmp_path / "model").glob("tokenizer*"))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"A 1\nC 1\n", ("7", "25")),
        (b"A\n", ("line 1", "'A'")),
        (b"A one\n", ("line 1", "'A one'")),
        (b"A 1\n" * 20, ("'A'",)),
        (b"\xff 1\n", ()),
    ],
)
def test_a_wrong_dictionary_is_refused(tmp_path: Path, file: Path, content: bytes, named: tuple[str, ...]) -> None:
    (file.parent / "dict.txt").write_bytes(content)
    message = str(refusal(file))
    assert all(part in message for part in (str(file.parent / "dict.txt"), *named))


def test_wrong_files_of_gpt2_are_refused(tmp_path: Path, gpt2: transformers.GPT2Tokenizer) -> None:
    path = write_numbers(tmp_path / "fairseq", list(range(len(gpt2))))
    (path.parent / "vocab.bpe").write_text("#version: 0.2\nx yz\n")
    assert "vocab.bpe" in str(refusal(path))
    (path.parent / "encoder.json").write_text("[1]")
    assert str(path.parent / "encoder.json") in str(refusal(path))


def test_the_command_tells_that_there_is_no_tokenizer(tmp_path: Path, file: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(file), str(tmp_path / "with")])
    assert done.exit_code == 0
    assert done.stderr.count("\n") == 1
    (file.parent / "dict.txt").unlink()
    done = CliRunner().invoke(app, ["convert", str(file), str(tmp_path / "without")])
    assert done.exit_code == 0
    assert str(file.parent / "dict.txt") in done.stderr
    assert bothways.load(tmp_path / "without").tokenizer is None


# ---------------------------------------------------------------------- what is refused


def refusal(source: Path) -> BothwaysError:
    target = source.parent / "target"
    with pytest.raises(BothwaysError) as caught:
        convert(source, target)
    assert "\n" not in str(caught.value)
    assert not target.exists()
    return caught.value


def assert_refused(source: Path, code: str, value: object) -> None:
    error = refusal(source)
    assert (error.code, error.value) == (code, value)


@pytest.mark.parametrize(
    ("key", "setting", "code", "value"),
    [
        ("encoder_normalize_before", True, "unsupported-setting", ("encoder_normalize_before", True)),
        ("layernorm_embedding", False, "unsupported-setting", ("layernorm_embedding", False)),
        ("untie_weights_roberta", True, "unsupported-setting", ("untie_weights_roberta", True)),
        ("activation_fn", "relu", "unsupported-setting", ("activation_fn", "relu")),
        ("arch", "bart_large", "unsupported-setting", ("arch", "bart_large")),
        ("arch", None, "unsupported-setting", ("arch", None)),
        ("max_positions", 512, "shape-mismatch", (512, 20)),
        ("encoder_attention_heads", 3, "shape-mismatch", (16, 3)),
        ("encoder_embed_dim", "16", "unsupported-setting", ("hidden_size", "16")),
        ("encoder_ffn_embed_dim", 12, "shape-mismatch", "encoder.layer.0.intermediate.dense.weight"),
    ],
)
def test_another_model_is_refused(tmp_path: Path, key: str, setting: object, code: str, value: object) -> None:
    assert_refused(write(tmp_path / "fairseq", loud_weights(), arguments=ARGUMENTS | {key: setting}), code, value)


@pytest.mark.parametrize(("layers", "code", "layer"), [(3, "missing-tensors", 2), (1, "unexpected-tensors", 1)])
def test_another_number_of_layers_is_refused(tmp_path: Path, layers: int, code: str, layer: int) -> None:
    error = refusal(write(tmp_path / "fairseq", loud_weights(), arguments=ARGUMENTS | {"encoder_layers": layers}))
    assert error.code == code
    assert isinstance(error.value, tuple)
    assert len(error.value) == 16
    assert all(name.startswith(f"encoder.layer.{layer}.") for name in error.value)


def test_settings_that_are_not_there_are_named(tmp_path: Path) -> None:
    arguments = {key: value for key, value in ARGUMENTS.items() if "heads" not in key}
    path = write(tmp_path / "fairseq", loud_weights(), arguments=arguments)
    assert_refused(path, "missing-setting", ("encoder_attention_heads",))


@pytest.mark.parametrize(
    ("extra", "code", "value"),
    [
        (
            {"encoder.sentence_encoder.layer_norm.weight": torch.ones(WIDTH)},
            "unexpected-tensors",
            ("layer_norm.weight",),
        ),
        (
            {"encoder.lm_head.weight": torch.ones(WORDS, WIDTH)},
            "tied-tensors-differ",
            ("lm_head.decoder.weight", "embeddings.word_embeddings.weight"),
        ),
        (
            {"classification_heads.a.dense.bias": torch.ones(1), "classification_heads.b.dense.bias": torch.ones(1)},
            "duplicate-tensor",
            "classifier.dense.bias",
        ),
        (
            {"encoder.sentence_encoder.embed_tokens.weight": torch.ones(WORDS)},
            "missing-tensors",
            ("word_embeddings",),
        ),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, extra: dict[str, Tensor], code: str, value: object) -> None:
    assert_refused(write(tmp_path / "fairseq", loud_weights() | extra), code, value)


class Code:
    """What a malicious pickle looks like: loading it would run a command."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.mark}",)


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path: Path, file: Path) -> None:
    found = torch.load(file, weights_only=False)
    torch.save(found | {"extra_state": Code(tmp_path / "mark")}, file)
    assert_refused(file, "unsafe-file", (file, f"{os.system.__module__}.system"))
    assert not (tmp_path / "mark").exists()
    with torch.serialization.safe_globals([]):
        assert argparse.Namespace not in torch.serialization.get_safe_globals()


def test_damage_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for content in (b"", b"no pickle", whole[: len(whole) // 2], whole[:-30]):
        file.write_bytes(content)
        assert_refused(file, "damaged-file", file)


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"args": argparse.Namespace(**ARGUMENTS)},
        {"model": {"x": 1}, "args": argparse.Namespace(**ARGUMENTS)},
        {"model": {"x": torch.ones(1)}},
    ],
)
def test_another_file_of_torch_is_refused(file: Path, content: object) -> None:
    torch.save(content, file)
    assert_refused(file, "not-fairseq", file)


def test_which_file_is_meant(tmp_path: Path, file: Path) -> None:
    (file.parent / "other.pt").write_bytes(b"")
    assert_refused(file.parent, "several-checkpoints", ("model.pt", "other.pt"))
    other = file.with_suffix(".bin")
    file.rename(other)
    assert_refused(other, "not-fairseq", other)
    (tmp_path / "empty").mkdir()
    assert_refused(tmp_path / "empty", "not-a-model", tmp_path / "empty")
    assert_refused(tmp_path / "nothing", "no-folder", tmp_path / "nothing")
