"""One layout into another: no bit changes, TensorFlow's files are written as TensorFlow writes them, the rest is said."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.errors import BothwaysError
from bothways.model import bundle
from bothways.model.checkpoint import save
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.convert import convert
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, families_with, make_loud, refused

REAL = Path(__file__).parent / "data" / "tf1_tiny"
"""Written by TensorFlow itself: see its README.md."""
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"
NOTHING = re.compile("(?!)")


def loud_model(
    heads: Sequence[str], tokenizer: Tokenizer | None, *, shape: EncoderConfig = TINY, family: str = "bert"
) -> Model:
    labels = ("no", "yes") if "sequence" in heads or "token" in heads else ()
    model = Model.new(ModelConfig(shape, tuple(heads), labels, family), tokenizer)
    make_loud(model)
    return model


def weights(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---------------------------------------------------------------------- there and back


@pytest.mark.parametrize(
    "heads", [("pooler", "masked", "next"), ("masked",), ("pooler",), (), ("pooler", "sequence"), ("span",)]
)
def test_to_google_and_back_changes_no_bit(tmp_path: Path, tokenizer: Tokenizer, heads: tuple[str, ...]) -> None:
    save(loud_model(heads, tokenizer), tmp_path / "first")
    convert(tmp_path / "first", tmp_path / "google", to="google")
    convert(tmp_path / "google", tmp_path / "second", to="hf")
    assert same(weights(tmp_path / "first"), weights(tmp_path / "second"))
    for name in ("config.json", "tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        first, second = ((tmp_path / folder / name).read_text() for folder in ("first", "second"))
        assert (json.loads(first) == json.loads(second)) if name.endswith(".json") else first == second


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("accents", [None, True, False])
def test_the_tokenizer_stays_the_same(tmp_path: Path, tokenizer: Tokenizer, lower: bool, accents: bool | None) -> None:
    own = Tokenizer.from_pieces(tokenizer.pieces, lower=lower, strip_accents=accents, split_cjk=lower)
    save(loud_model(("masked",), own), tmp_path / "first")
    convert(tmp_path / "first", tmp_path / "google", to="google")
    assert {path.name for path in (tmp_path / "google").iterdir()} == {
        "bert_config.json", "vocab.txt", "tokenizer_config.json", INDEX, DATA
    }  # fmt: skip
    found = load(tmp_path / "google").tokenizer
    assert found is not None
    assert found.fingerprint == own.fingerprint


def test_without_a_tokenizer_there_is_no_vocabulary(tmp_path: Path) -> None:
    save(loud_model(("masked",), None), tmp_path / "first")
    convert(tmp_path / "first", tmp_path / "google", to="google")
    assert {path.name for path in (tmp_path / "google").iterdir()} == {"bert_config.json", INDEX, DATA}
    assert load(tmp_path / "google").tokenizer is None


def test_transformers_opens_what_came_from_google(tmp_path: Path) -> None:
    convert(REAL, tmp_path / "model")
    judge, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert same(
        weights(tmp_path / "model"),
        {name: tensor for name, tensor in judge.state_dict().items() if ".decoder." not in name},
    )
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "model")("abc h")["input_ids"]


@pytest.mark.parametrize("family", families_with("masked", is_judged=False))
def test_every_family_is_written_in_our_layout(tmp_path: Path, family: str) -> None:
    """From transformers' older file."""
    shape = FAMILIES[family].fresh(TINY)
    model = loud_model(("masked",), None, shape=shape, family=family)
    save(model, tmp_path / "first")
    torch.save(weights(tmp_path / "first"), tmp_path / "first" / "pytorch_model.bin")
    expected = weights(tmp_path / "first")
    (tmp_path / "first" / "model.safetensors").unlink()
    found = convert(tmp_path / "first", tmp_path / "second")
    assert found.config.family == family
    assert same(weights(tmp_path / "second"), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fewer_bits(tmp_path: Path, model_folder: Path, dtype: torch.dtype) -> None:
    bothways.convert(model_folder, tmp_path / "half", dtype=dtype)
    expected = {name: tensor.to(dtype) for name, tensor in weights(model_folder).items()}
    assert same(weights(tmp_path / "half"), expected)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == str(dtype).removeprefix("torch.")
    convert(tmp_path / "half", tmp_path / "google", to="google")  # in float32, where each of them has its place
    convert(tmp_path / "google", tmp_path / "again", dtype=dtype)
    assert same(weights(tmp_path / "again"), expected)


# ---------------------------------------------------------------------- TensorFlow's files


def test_tensorflows_own_files_are_written_again_byte_for_byte(tmp_path: Path) -> None:
    """Optimiser's variables, a scalar of 64 bits and all."""
    variables = dict(bundle.read(REAL / INDEX, skip=NOTHING))
    assert "global_step" in variables
    bundle.write(tmp_path / INDEX, dict(reversed(variables.items())))
    for name in (INDEX, DATA):
        assert (tmp_path / name).read_bytes() == (REAL / name).read_bytes()


def test_a_model_has_googles_names_in_googles_order(tmp_path: Path) -> None:
    convert(REAL, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "google", to="google")
    ours = dict(bundle.read(tmp_path / "google" / INDEX, skip=NOTHING))
    theirs = dict(bundle.read(REAL / INDEX, skip=re.compile("adam|global_step")))
    assert list(ours) == list(theirs)
    assert same(ours, theirs)
    for name in ("bert_config.json", "vocab.txt"):
        ours_said, said = ((folder / name).read_text().strip() for folder in (tmp_path / "google", REAL))
        assert ours_said == said


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33, 400])
def test_any_number_of_variables_is_written(tmp_path: Path, count: int) -> None:
    """Sixteen share a place where a search of the index may begin."""
    variables = {f"layer_{i}/{'x' * (i % 7)}": torch.randn(i % 5 + 1) for i in range(count)} | {"z": torch.tensor(1)}
    bundle.write(tmp_path / "some.index", variables)
    found = dict(bundle.read(tmp_path / "some.index", skip=NOTHING))
    assert same(found, variables)
    assert list(found) == sorted(variables)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64])
def test_all_number_types_are_written(tmp_path: Path, dtype: torch.dtype) -> None:
    variables = {"a/kernel": (torch.randn(70_000, 3) * 100).to(dtype).T, "ß": torch.tensor(3).to(dtype)}
    bundle.write(tmp_path / "some.index", variables)
    assert same(dict(bundle.read(tmp_path / "some.index", skip=NOTHING)), variables)


# ---------------------------------------------------------------------- what is refused


def assert_refused(source: Path, target: Path, code: str, value: object, **options: object) -> None:
    with pytest.raises(BothwaysError) as caught:
        convert(source, target, **options)  # type: ignore[arg-type]
    assert (caught.value.code, caught.value.value) == (code, value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"bert"}))
def test_google_has_bert_only(tmp_path: Path, family: str) -> None:
    save(loud_model((), None, shape=FAMILIES[family].fresh(TINY), family=family), tmp_path / "model")
    assert_refused(tmp_path / "model", tmp_path / "out", "unsupported-family", family, to="google")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("heads", "change", "code", "value"),
    [
        (("token",), {}, "unsupported-head", "token"),
        (("pooler", "choice"), {}, "unsupported-head", "choice"),
        (("masked",), {"norm_eps": 1e-5}, "unsupported-setting", ("layer_norm_eps", 1e-5)),
        (("masked",), {"activation": "gelu_new"}, "unsupported-setting", ("hidden_act", "gelu_new")),
        (("masked",), {"causal": True}, "unsupported-setting", ("is_decoder", True)),
    ],
)
def test_what_googles_code_would_compute_otherwise(
    tmp_path: Path, heads: tuple[str, ...], change: dict[str, object], code: str, value: object
) -> None:
    save(loud_model(heads, None, shape=replace(TINY, **change)), tmp_path / "model")  # type: ignore[arg-type]
    assert_refused(tmp_path / "model", tmp_path / "out", code, value, to="google")
    assert not (tmp_path / "out").exists()


def test_another_tokenizer_is_not_googles(tmp_path: Path) -> None:
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    shape = replace(TINY, vocab_size=2, positions=Learned(8))
    save(loud_model((), Tokenizer(backend), shape=shape), tmp_path / "model")
    assert_refused(tmp_path / "model", tmp_path / "out", "unsupported-tokenizer", "WordLevel", to="google")


def test_a_folder_with_other_files_stays(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years")
    for to in ("hf", "google"):
        with refused("other-files", names=r"thesis\.txt"):
            convert(model_folder, tmp_path / "out", to=to)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    convert(model_folder, tmp_path / "google", to="google")
    convert(model_folder, tmp_path / "google", to="google")  # what it wrote itself is replaced
    with refused("other-files", names=r"bert_config\.json"):
        convert(model_folder, tmp_path / "google", to="hf")


def test_wrong_calls(tmp_path: Path, model_folder: Path) -> None:
    file = model_folder / "config.json"
    assert_refused(model_folder, tmp_path / "out", "unknown-choice", "onnx", to="onnx")
    assert_refused(model_folder, model_folder, "same-folder", model_folder, to="hf")
    assert_refused(model_folder, tmp_path / "out", "unsupported-dtype", torch.float16, to="google", dtype=torch.float16)
    assert_refused(file, tmp_path / "out", "not-fairseq", file)
    assert_refused(tmp_path / "nothing", tmp_path / "out", "no-folder", tmp_path / "nothing")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [INDEX, DATA])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, model_folder: Path, name: str) -> None:
    convert(model_folder, tmp_path / "google", to="google")
    whole = bytearray((tmp_path / "google" / name).read_bytes())
    whole[40] ^= 1
    (tmp_path / "google" / name).write_bytes(whole)
    assert_refused(tmp_path / "google", tmp_path / "out", "damaged-file", tmp_path / "google" / name)


# ---------------------------------------------------------------------- the command


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command(tmp_path: Path, model_folder: Path) -> None:
    code, out, err = run(model_folder, tmp_path / "google", "--to", "google")
    assert (code, out) == (0, "")
    parameters = sum(t.numel() for t in weights(model_folder).values())
    assert err.count("\n") == 1
    for part in (tmp_path / "google", f"{parameters:,}", "bert", "pooler, masked, next"):
        assert str(part) in err
    assert run(tmp_path / "google", tmp_path / "half", "--dtype", "bf16")[0] == 0
    assert {tensor.dtype for tensor in weights(tmp_path / "half").values()} == {torch.bfloat16}
    assert run(model_folder, tmp_path / "other", "--to", "onnx")[0] == 2
    with refused("unsupported-dtype", torch.float16):
        run(model_folder, tmp_path / "other", "--to", "google", "--dtype", "fp16")
    with refused("not-fairseq", model_folder / "config.json"):
        run(model_folder / "config.json", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_words_that_were_added_are_not_written_for_google(model_folder: Path, tmp_path: Path) -> None:
    """In vocab.txt they would change how other words are cut."""
    grown = bothways.extend_vocabulary(bothways.load(model_folder), ["glucosuria", "新冠病毒"]).model
    bothways.save(grown, tmp_path / "grown")
    with refused("added-words", ("glucosuria", "新冠病毒")):
        bothways.convert(tmp_path / "grown", tmp_path / "google", to="google")
    assert not (tmp_path / "google").exists()
