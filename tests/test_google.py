"""Google's checkpoints: what TensorFlow wrote and what this file's own writer wrote is read, damage is refused."""

import contextlib
import json
import math
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from bothways.errors import BothwaysError
from bothways.model import google
from bothways.model.batch import Batch
from bothways.model.load import load
from helpers import refused

REAL = Path(__file__).parent / "data" / "tf1_tiny"
CONFIG = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 12,
    "initializer_range": 0.02,
    "intermediate_size": 20,
    "max_position_embeddings": 10,
    "num_attention_heads": 3,
    "num_hidden_layers": 3,
    "type_vocab_size": 2,
    "vocab_size": 30,
}

# ---------------------------------------------------------------------- a writer of the format, after its specification

_NUMBER_TYPES = {torch.float32: 1, torch.int32: 3, torch.int64: 9, torch.bfloat16: 14, torch.float16: 19}
_LITTLE, _BIG, _PLAIN, _SNAPPY = 0, 1, 0, 1


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC = [_crc_of_byte(byte) for byte in range(256)]


def masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


def varint(number: int) -> bytes:
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def field(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def entry(
    data: bytes, number_type: int, shape: Sequence[int], shard: int = 0, offset: int = 0, crc: int | None = None
) -> bytes:
    """A BundleEntryProto. Zeros are left out, as protocol buffers do."""
    sizes = b"".join(field(2, field(1, size)) for size in shape)
    numbers = [(3, shard), (4, offset), (5, len(data))]
    there = b"".join(field(place, number) for place, number in numbers if number)
    crc = masked_crc(data) if crc is None else crc
    return field(1, number_type) + field(2, sizes) + there + b"\x35" + struct.pack("<I", crc)


def block(rows: Sequence[tuple[bytes, bytes]], interval: int = 3) -> bytes:
    """Keys and values, each key shortened by what it shares with the last but every third whole."""
    body, restarts, last = b"", [], b""
    for i, (key, value) in enumerate(rows):
        shared = 0
        if i % interval == 0:
            restarts.append(len(body))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        body += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return body + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(blocks: Mapping[bytes, bytes], compression: int = _PLAIN) -> bytes:
    """A whole index file, from its data blocks by their last keys."""
    out, handles = b"", []

    def put(content: bytes) -> bytes:
        nonlocal out
        handle = varint(len(out)) + varint(len(content))
        kind = bytes([compression])
        out += content + kind + struct.pack("<I", masked_crc(content + kind))
        return handle

    handles = [(key, put(content)) for key, content in blocks.items()]
    footer = put(block([])) + put(block(handles, interval=1))
    return out + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def index_of(values: Mapping[str, bytes], header: bytes, rows_per_block: int = 4, compression: int = _PLAIN) -> bytes:
    rows = [(b"", header), *sorted((name.encode(), value) for name, value in values.items())]
    cuts = [rows[i : i + rows_per_block] for i in range(0, len(rows), rows_per_block)]
    return table({cut[-1][0]: block(cut) for cut in cuts}, compression)


def header_of(shards: int, endianness: int = _LITTLE) -> bytes:
    return field(1, shards) + (field(2, endianness) if endianness else b"") + field(3, field(1, 1))


def write(folder: Path, variables: Mapping[str, Tensor], *, name: str = "bert_model.ckpt", shards: int = 1) -> Path:
    """A folder as Google publishes them, the variables dealt out to the shards in turn."""
    folder.mkdir(exist_ok=True)
    files, entries = [b""] * shards, {}
    for i, (variable, tensor) in enumerate(sorted(variables.items())):
        shard = i % shards
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        entries[variable] = entry(data, _NUMBER_TYPES[tensor.dtype], tensor.shape, shard, len(files[shard]))
        files[shard] += data
    for i, content in enumerate(files):
        (folder / f"{name}.data-{i:05}-of-{shards:05}").write_bytes(content)
    (folder / f"{name}.index").write_bytes(index_of(entries, header_of(shards)))
    (folder / "bert_config.json").write_text(json.dumps(CONFIG))
    return folder


# ---------------------------------------------------------------------- tiny models


def theirs(config: Mapping[str, Any]) -> BertForPreTraining:
    """Hugging Face's model with loud random weights."""
    model = BertForPreTraining(BertConfig(**config)).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return model


def google_name(name: str) -> str:
    """A tensor of Hugging Face's BertForPreTraining, as Google called it."""
    stem, _, kind = name.replace(".layer.", ".layer_").rpartition(".")
    stem = stem.replace(".", "/")
    if stem.endswith("_embeddings"):
        return stem
    if stem.endswith("LayerNorm"):
        return f"{stem}/{'gamma' if kind == 'weight' else 'beta'}"
    if stem in ("cls/predictions", "cls/seq_relationship"):
        return f"{stem}/output_{'weights' if kind == 'weight' else 'bias'}"
    return f"{stem}/{'kernel' if kind == 'weight' else 'bias'}"


def weights(model: BertForPreTraining) -> dict[str, Tensor]:
    """What a checkpoint holds of it, in Hugging Face's names: the tied output matrix only once, and no buffers."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if ".decoder." not in name}


def variables(model: BertForPreTraining) -> dict[str, Tensor]:
    """The same as Google stores it."""
    named = {google_name(name): tensor for name, tensor in weights(model).items()}
    return {name: tensor.T if name.endswith("/kernel") else tensor for name, tensor in named.items()}


@pytest.fixture(scope="module")
def model() -> BertForPreTraining:
    return theirs(CONFIG)


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def assert_answers_alike(folder: Path, judge: BertForPreTraining) -> None:
    """The model in `folder` answers as Hugging Face's does."""
    ours = load(folder)
    ids, segments = [[2, 7, 9, 4, 3, 8, 3], [2, 11, 3]], [[0, 0, 0, 0, 0, 1, 1], [0, 0, 0]]
    batch = Batch.pack(ids, segments)
    with torch.no_grad():
        states = ours.encoder(batch)
        words, following = ours.masked(states), ours.logits("next", states, batch)
        for i, (row, kinds) in enumerate(zip(ids, segments, strict=True)):
            expected = judge(input_ids=torch.tensor([row]), token_type_ids=torch.tensor([kinds]))
            start = int(batch.cu_seqlens[i])
            torch.testing.assert_close(
                words[start : start + len(row)], expected.prediction_logits[0], atol=1e-5, rtol=0
            )
            torch.testing.assert_close(following[i], expected.seq_relationship_logits[0], atol=1e-5, rtol=0)


# ---------------------------------------------------------------------- what TensorFlow itself wrote


def real_value(variable: str, shape: Sequence[int]) -> Tensor:
    """The numbers that tests/data/tf1_tiny/README.md says are in it."""
    whole = (np.arange(math.prod(shape), dtype=np.int64) * 7919 + zlib.crc32(variable.encode())) % 2001
    return torch.from_numpy(((whole - 1000) / 1000).astype(np.float32)).reshape(*shape)


def real_weights() -> dict[str, Tensor]:
    expected = {}
    for name, tensor in weights(theirs(real_config())).items():
        variable = google_name(name)
        is_kernel = variable.endswith("/kernel")
        value = real_value(variable, tensor.T.shape if is_kernel else tensor.shape)
        expected[name] = value.T if is_kernel else value
    return expected


def real_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((REAL / "bert_config.json").read_text())
    return config


def test_every_number_that_tensorflow_wrote_is_read() -> None:
    config, found = google.read(REAL, real_config())
    assert same(found, real_weights())
    assert config == real_config() | {"model_type": "bert", "layer_norm_eps": 1e-12}


def test_a_folder_by_tensorflow_answers_as_the_judge_does() -> None:
    judge = theirs(real_config())
    judge.load_state_dict(real_weights(), strict=False)  # the tied output matrix is not there twice
    assert_answers_alike(REAL, judge)
    tokenizer = load(REAL).tokenizer
    assert tokenizer is not None
    assert tokenizer("abc h").pieces == ["[CLS]", "a", "##b", "##c", "h", "[SEP]"]


# ---------------------------------------------------------------------- what our writer wrote


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_every_tensor_is_read_from_any_number_of_shards(tmp_path: Path, model: BertForPreTraining, shards: int) -> None:
    folder = write(tmp_path / "google", variables(model), shards=shards)
    _, found = google.read(folder, CONFIG)
    assert same(found, weights(model))


def test_a_folder_answers_as_the_judge_does(tmp_path: Path, model: BertForPreTraining) -> None:
    assert_answers_alike(write(tmp_path / "google", variables(model)), model)


def test_what_the_config_says_is_kept(tmp_path: Path, model: BertForPreTraining) -> None:
    own = {"layer_norm_eps": 1e-5, "hidden_act": "relu", "directionality": "bidi"}
    config, _ = google.read(write(tmp_path / "google", variables(model)), CONFIG | own)
    assert config == CONFIG | own | {"model_type": "bert"}


def test_tensors_outlive_the_files(tmp_path: Path, model: BertForPreTraining) -> None:
    folder = write(tmp_path / "google", variables(model))
    _, found = google.read(folder, CONFIG)
    shutil.rmtree(folder)
    for tensor in found.values():
        tensor.mul_(2)
    assert same(found, {name: tensor * 2 for name, tensor in weights(model).items()})
    assert all(tensor.is_contiguous() for tensor in found.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4), (130_001,)])
def test_all_number_types_and_shapes_are_read(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(2)) * 100).to(dtype)
    _, found = google.read(write(tmp_path / "google", {"strange/kind": tensor}), CONFIG)
    assert same(found, {"strange.kind": tensor})
    assert found["strange.kind"].dtype == dtype


@pytest.mark.parametrize(
    "slot",
    [
        "global_step",
        "beta1_power",
        "bert/pooler/dense/kernel/adam_m",
        "bert/pooler/dense/kernel/adam_v",
        "bert/pooler/dense/kernel/Adam",
        "bert/pooler/dense/kernel/Adam_1",
        "bert/pooler/dense/kernel/AdamWeightDecayOptimizer",
        "bert/pooler/dense/bias/AdamWeightDecayOptimizer_1",
        "bert/pooler/dense/bias/lamb_m",
        "bert/pooler/dense/bias/LAMBOptimizer_1",
    ],
)
def test_the_optimisers_variables_are_left_out(tmp_path: Path, model: BertForPreTraining, slot: str) -> None:
    folder = write(tmp_path / "google", variables(model) | {slot: torch.ones(3)})
    _, found = google.read(folder, CONFIG)
    assert same(found, weights(model))


def test_a_fine_tuned_classifier_is_found(tmp_path: Path, model: BertForPreTraining) -> None:
    body = {name: tensor for name, tensor in variables(model).items() if name.startswith("bert/")}
    head = {"output_weights": torch.randn(4, 12), "output_bias": torch.randn(4)}
    folder = write(tmp_path / "google", body | head, name="model.ckpt-1000")
    _, found = google.read(folder, CONFIG)
    assert torch.equal(found["classifier.weight"], head["output_weights"])
    assert torch.equal(found["classifier.bias"], head["output_bias"])
    loaded = load(folder)
    assert set(loaded.config.heads) == {"pooler", "sequence"}
    assert len(loaded.config.labels) == 4


def test_a_question_answering_head_is_found(tmp_path: Path, model: BertForPreTraining) -> None:
    body = {name: tensor for name, tensor in variables(model).items() if name.startswith("bert/")}
    head = {"cls/squad/output_weights": torch.randn(2, 12), "cls/squad/output_bias": torch.randn(2)}
    folder = write(tmp_path / "google", body | head)
    _, found = google.read(folder, CONFIG)
    assert torch.equal(found["qa_outputs.weight"], head["cls/squad/output_weights"])
    assert torch.equal(found["qa_outputs.bias"], head["cls/squad/output_bias"])
    assert "span" in load(folder).config.heads


def test_an_unexpected_variable_is_named(tmp_path: Path, model: BertForPreTraining) -> None:
    folder = write(tmp_path / "google", variables(model) | {"bert/encoder/layer_0/gate/kernel": torch.ones(2, 3)})
    _, found = google.read(folder, CONFIG)
    assert found["bert.encoder.layer.0.gate.weight"].shape == (3, 2)
    with refused("unexpected-tensors", ("encoder.layer.0.gate.weight",)):
        load(folder)


def test_two_variables_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "google", {"x/gamma": torch.ones(2), "x/kernel": torch.ones(2)})
    assert_refused(folder, "duplicate-tensor", "x.weight")


# ---------------------------------------------------------------------- which checkpoint


def test_the_usual_name_comes_first(tmp_path: Path) -> None:
    write(tmp_path, {"x": torch.zeros(1)}, name="a.ckpt")
    write(tmp_path, {"x": torch.ones(1)})
    assert google.read(tmp_path, CONFIG)[1]["x"] == 1


@pytest.mark.parametrize("name", ["model.ckpt-1000", "my.bert.ckpt", "weights"])
def test_another_name_will_do_if_it_is_the_only_one(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"x": torch.ones(1)}, name=name)
    assert google.read(tmp_path, CONFIG)[1]["x"] == 1


@pytest.mark.parametrize("stem", ["", "gs://somewhere/out/"])
def test_of_several_the_one_that_tensorflow_noted_is_read(tmp_path: Path, stem: str) -> None:
    for step in (1000, 2000, 3000):
        write(tmp_path, {"x": torch.tensor(float(step))}, name=f"model.ckpt-{step}")
    note = [f'model_checkpoint_path: "{stem}model.ckpt-2000"', f'all_model_checkpoint_paths: "{stem}model.ckpt-1000"']
    (tmp_path / "checkpoint").write_text("\n".join(note))
    assert google.read(tmp_path, CONFIG)[1]["x"] == 2000


@pytest.mark.parametrize("note", [None, "", 'model_checkpoint_path: "gone"', "\xff"])
def test_several_without_a_note_are_named(tmp_path: Path, note: str | None) -> None:
    for step in (1000, 2000):
        write(tmp_path, {"x": torch.ones(1)}, name=f"model.ckpt-{step}")
    if note is not None:
        (tmp_path / "checkpoint").write_bytes(note.encode("latin-1"))
    assert_refused(tmp_path, "several-checkpoints", ("model.ckpt-1000.index", "model.ckpt-2000.index"))


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path, "no-weights", tmp_path)


# ---------------------------------------------------------------------- damage

INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"


def assert_refused(folder: Path, code: str, value: object, number: object = "") -> None:
    with pytest.raises(BothwaysError) as caught:
        google.read(folder, CONFIG)
    assert (caught.value.code, caught.value.value) == (code, value)
    assert str(number) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Four variables, in two blocks."""
    return write(tmp_path / "google", {name: torch.randn(4) for name in ("bert/a", "bert/b", "cls/c", "cls/d")})


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_a_file_cut_short_anywhere_is_refused(small: Path, name: str) -> None:
    whole = (small / name).read_bytes()
    for length in range(len(whole)):
        (small / name).write_bytes(whole[:length])
        assert_refused(small, "damaged-file", small / name)


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_a_flipped_bit_anywhere_is_refused_or_harmless(small: Path, name: str) -> None:
    """Harmless in a block that nobody reads (9 bytes), and perhaps in the footer before its magic number (40)."""
    whole = (small / name).read_bytes()
    _, expected = google.read(small, CONFIG)
    refusals: list[object] = []
    for place in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[place] ^= 1 << place % 8
        (small / name).write_bytes(spoiled)
        try:
            assert same(google.read(small, CONFIG)[1], expected)
        except BothwaysError as error:
            refusals.append(error.value)
    assert all(str(small) in str(value) for value in refusals)
    assert len(refusals) >= len(whole) - (0 if name == DATA else 9 + 40)


@pytest.mark.parametrize("name", [INDEX, DATA])
@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), lambda path: path.mkdir(), lambda path: None])
def test_an_empty_or_missing_file_is_refused(small: Path, name: str, damage: Callable[[Path], None]) -> None:
    (small / name).unlink()
    damage(small / name)
    with pytest.raises(BothwaysError) as caught:
        google.read(small, CONFIG)
    is_missing = name == INDEX and not (small / name).exists()
    is_empty = (small / name).is_file()
    expected = (
        ("no-weights", small) if is_missing else ("damaged-file" if is_empty else "unreadable-file", small / name)
    )
    assert (caught.value.code, caught.value.value) == expected


def write_index(folder: Path, index: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / INDEX).write_bytes(index)
    (folder / DATA).write_bytes(bytes(16))
    return folder


def test_features_that_are_not_supported_are_named(tmp_path: Path) -> None:
    plain = entry(bytes(16), 1, [4])
    good = {"x": plain}
    for file, feature, index in (
        (INDEX, "Snappy compression", index_of(good, header_of(1), compression=_SNAPPY)),
        (INDEX, "big-endian numbers", index_of(good, header_of(1, _BIG))),
        (DATA, "slices", index_of({"x": plain + field(7, b"")}, header_of(1))),
        (DATA, "dtype 7", index_of({"x": entry(bytes(16), 7, [4])}, header_of(1))),
        (INDEX, "the format of TensorFlow 2", index_of({"_CHECKPOINTABLE_OBJECT_GRAPH": plain}, header_of(1))),
    ):
        assert_refused(write_index(tmp_path, index), "unsupported-format", (tmp_path / file, feature))


def test_an_entry_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    for code, file, number, value in (
        ("damaged-file", DATA, "[5]", entry(bytes(16), 1, [5])),
        ("damaged-file", DATA, f"[0, {2**63}]", entry(b"", 1, [0, 2**63])),
        ("damaged-file", DATA, 17, entry(bytes(16), 1, [4], offset=1)),
        ("damaged-file", DATA, 2**64 + 15, entry(bytes(16), 1, [4], offset=2**64 - 1)),
        ("unreadable-file", DATA.replace("00000", "00003"), "", entry(bytes(16), 1, [4], shard=3)),
        ("damaged-file", DATA, "", entry(bytes(16), 1, [4], crc=5)),
        ("damaged-file", INDEX, "", b"\x12" + varint(2**64 - 1)),
        ("damaged-file", INDEX, 64, b"\x08" + b"\xff" * 11),
    ):
        folder = write_index(tmp_path, index_of({"x": value}, header_of(1)))
        assert_refused(folder, code, tmp_path / file, number)


def assert_only_refuses(index: bytes) -> None:
    """Any exception but the one that users see fails the test."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / INDEX).write_bytes(index)
        (Path(folder) / DATA).write_bytes(bytes(16))
        with contextlib.suppress(BothwaysError):
            google.read(Path(folder), CONFIG)


GOOD_BLOCK = block([(b"", header_of(1)), (b"x", entry(bytes(16), 1, [4])), (b"xy", entry(bytes(16), 1, [2, 2]))])


@given(value=st.binary(max_size=40) | st.integers(0, 30).map(lambda cut: entry(bytes(16), 1, [2, 2])[:cut]))
@settings(max_examples=150)
def test_no_entry_breaks_the_reader(value: bytes) -> None:
    assert_only_refuses(index_of({"x": value}, header_of(1)))


@given(data=st.data())
@settings(max_examples=150)
def test_no_block_breaks_the_reader(data: st.DataObject) -> None:
    """Blocks with changed bytes and right checksums, as only somebody who means harm would write them."""
    changed = bytearray(GOOD_BLOCK)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    assert_only_refuses(table({b"xy": bytes(changed)}))


@given(content=st.binary(max_size=60))
@settings(max_examples=150)
def test_no_file_breaks_the_reader(content: bytes) -> None:
    assert_only_refuses(content + struct.pack("<Q", 0xDB4775248B80FB57))
