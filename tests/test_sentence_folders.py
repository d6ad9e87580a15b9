"""Folders of sentence-transformers: encoded by their own words, as sentence-transformers encodes them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from torch import nn

from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.model.vocabulary import extend_vocabulary
from bothways.predict.encode import encode
from bothways.text.windows import windows
from helpers import make_loud, refused

TEXTS = ["The cat sleeps.", "北京是中国的首都。", "Unbelievable walking! " * 3, "a", "the DOG runs in paris", ""]
LIMIT = 1e-5
MODES = ["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]

Modules = dict[str, Any]


def made(base: Path, folder: Path, *more: nn.Module, **settings: Any) -> SentenceTransformer:
    """A folder as sentence-transformers writes it."""
    pooling = settings.pop("pooling", "mean")
    include_prompt = settings.pop("include_prompt", True)
    transformer = Transformer(str(base), max_seq_length=settings.pop("max_seq_length", None))
    width = transformer.get_embedding_dimension()
    model = SentenceTransformer(
        modules=[transformer, Pooling(width, pooling_mode=pooling, include_prompt=include_prompt), *more],
        device="cpu",
        **settings,
    )
    model.save_pretrained(str(folder))
    return model.eval()


def dense(inputs: int, outputs: int, activation: nn.Module, bias: bool = True) -> Dense:
    layer = Dense(inputs, outputs, bias=bias, activation_function=activation)
    make_loud(layer)
    return layer


CASES: dict[str, Any] = {
    **{mode: {"pooling": mode} for mode in MODES},
    "several": {"pooling": ("mean", "cls", "max")},
    "normalised": {"more": lambda w: [Normalize()]},
    "dense": {"pooling": "cls", "more": lambda w: [dense(w, 7, nn.Tanh())]},
    "dense of several, no bias, normalised": {
        "pooling": ("max", "lasttoken"),
        "more": lambda w: [dense(2 * w, 9, nn.Identity(), False), Normalize()],
    },
    "normalised, then dense twice": {"more": lambda w: [Normalize(), dense(w, 9, nn.GELU()), dense(9, 5, nn.ReLU())]},
    "shortened": {"more": lambda w: [Normalize()], "truncate_dim": 11},
    "prompts": {"prompts": {"query": "the cat runs: ", "passage": "a "}, "default_prompt_name": "query"},
    "prompts that are not pooled": {
        "pooling": "weightedmean",
        "include_prompt": False,
        "prompts": {"query": "the cat runs: "},
        "default_prompt_name": "query",
    },
    "first token after the prompt": {
        "pooling": "cls",
        "include_prompt": False,
        "prompts": {"query": "the cat runs: "},
        "default_prompt_name": "query",
    },
}


def built(name: str, base: Path, folder: Path) -> SentenceTransformer:
    case = dict(CASES[name])
    width = load(base).config.encoder.width
    return made(base, folder, *case.pop("more", lambda w: [])(width), **case)


@pytest.fixture
def loud(base: Path, tmp_path: Path) -> Path:
    model = load(base)
    make_loud(model)
    save(model.with_only([]), tmp_path / "loud")
    return tmp_path / "loud"


def close(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> bool:
    return ours.shape == theirs.shape and bool(np.abs(ours - theirs).max() <= LIMIT * max(1, np.abs(theirs).max()))


@pytest.mark.parametrize("name", CASES)
def test_a_folder_is_encoded_by_its_own_words(name: str, loud: Path, tmp_path: Path) -> None:
    theirs = built(name, loud, tmp_path / "theirs")
    assert close(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS))


@pytest.mark.parametrize("name", CASES)
def test_what_we_save_is_the_same_to_both(name: str, loud: Path, tmp_path: Path) -> None:
    theirs = built(name, loud, tmp_path / "theirs")
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    save(load(tmp_path / "ours"), tmp_path / "ours")  # over itself
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert close(again.encode(TEXTS), theirs.encode(TEXTS))
    assert close(encode(TEXTS, tmp_path / "ours"), theirs.encode(TEXTS))
    assert again.prompts == theirs.prompts
    assert again.default_prompt_name == theirs.default_prompt_name
    assert again.max_seq_length == theirs.max_seq_length


@pytest.mark.parametrize("mode", MODES)
def test_older_keys_of_the_pooling_mean_the_same(mode: str, loud: Path, tmp_path: Path) -> None:
    theirs = made(loud, tmp_path / "theirs", pooling=mode)
    older = {"cls": "cls_token", "lasttoken": "lasttoken", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens"}
    keys = {f"pooling_mode_{older.get(one, f'{one}_tokens')}": one == mode for one in MODES}
    (tmp_path / "theirs/1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, **keys}))
    assert close(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS))


def test_an_older_folder_has_the_transformer_inside(loud: Path, tmp_path: Path) -> None:
    theirs = made(loud, tmp_path / "theirs", pooling="cls")
    inner = tmp_path / "theirs/0_Transformer"
    inner.mkdir()
    for file in [f for f in (tmp_path / "theirs").iterdir() if f.is_file() and f.name != "modules.json"]:
        file.rename(inner / file.name)
    modules = json.loads((tmp_path / "theirs/modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (tmp_path / "theirs/modules.json").write_text(json.dumps(modules))
    assert close(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS))


@pytest.mark.parametrize("where", ["sentence_bert_config.json", "tokenizer_config.json"])
def test_the_maximum_length_is_theirs_and_nothing_is_cut_silently(where: str, loud: Path, tmp_path: Path) -> None:
    theirs = made(loud, tmp_path / "theirs", max_seq_length=6)
    key = {"sentence_bert_config.json": "max_seq_length", "tokenizer_config.json": "model_max_length"}
    for file, name in key.items():
        path = tmp_path / "theirs" / file
        config = {k: v for k, v in json.loads(path.read_text()).items() if k != name}
        path.write_text(json.dumps({**config, **({name: 6} if file == where else {})}))
    with refused("too-long"):
        encode(TEXTS, tmp_path / "theirs")
    with pytest.warns(UserWarning, match="cut"):
        assert close(encode(TEXTS, tmp_path / "theirs", long="cut"), theirs.encode(TEXTS))


@pytest.mark.parametrize("mode", MODES)
def test_a_long_text_in_windows_is_pooled_over_all_of_them(mode: Any, loud: Path) -> None:
    """Every token counts once, in the window that is its own; of each window the first or last token counts."""
    model = load(loud)
    text = "the cat sleeps in paris " * 20
    cls, *inside, sep = model.require_tokenizer()(text).ids
    limit = model.config.encoder.max_length
    starts, ends, rows = [], [], []
    spans = windows(len(inside), limit - 2, (limit - 2) // 4)
    assert len(spans) > 2
    for span in spans:
        with torch.no_grad():
            states = model.encoder(Batch.pack([[cls, *inside[span.start : span.end], sep]])).double().numpy()
        starts.append(states[0])
        ends.append(states[-1])
        rows += list(states[1 + span.own - span.start : 1 + span.own_end - span.start])
    all_rows = np.stack([starts[0], *rows, ends[-1]])
    weights = np.arange(1, len(all_rows) + 1)[:, None]
    expected = {
        "cls": np.mean(starts, 0),
        "lasttoken": np.mean(ends, 0),
        "max": all_rows.max(0),
        "mean": all_rows.mean(0),
        "mean_sqrt_len_tokens": all_rows.sum(0) / np.sqrt(len(all_rows)),
        "weightedmean": (weights * all_rows).sum(0) / weights.sum(),
    }[mode]
    assert close(encode([text], model, pool=mode, long="window")[0], expected)
    both = encode([text], model, pool=["cls", mode], long="window")[0]
    assert close(both, np.concatenate([np.mean(starts, 0), expected]))


def test_prompts_by_name_and_by_text(loud: Path, tmp_path: Path) -> None:
    theirs = made(loud, tmp_path / "theirs", prompts={"query": "the cat: ", "passage": "a dog "})
    for options in ({"prompt": ""}, {"prompt_name": "query"}, {"prompt_name": "passage"}, {"prompt": "in paris "}):
        assert close(encode(TEXTS, tmp_path / "theirs", **options), theirs.encode(TEXTS, **options))  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="trained with prompts"):
        assert close(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS))
    with refused("unknown-choice", "document-x"):
        encode(TEXTS, tmp_path / "theirs", prompt_name="document-x")
    with refused("unknown-choice", "query"):  # a plain folder has none
        encode(TEXTS, loud, prompt_name="query")


def test_asking_for_features_leaves_the_modules_out(loud: Path, tmp_path: Path) -> None:
    built("dense", loud, tmp_path / "theirs")
    assert close(encode(TEXTS, tmp_path / "theirs", pool="mean"), encode(TEXTS, loud))
    assert close(encode(TEXTS, tmp_path / "theirs", layers=[1]), encode(TEXTS, loud, layers=[1], pool="cls"))


def test_texts_are_lower_cased_where_the_folder_says_so(loud: Path, tmp_path: Path) -> None:
    tokenizer = json.loads((loud / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    (loud / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((loud / "tokenizer_config.json").read_text())
    (loud / "tokenizer_config.json").write_text(json.dumps({**settings, "do_lower_case": False}))
    made(loud, tmp_path / "theirs")
    path = tmp_path / "theirs/sentence_bert_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "do_lower_case": True}))
    theirs = SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    assert close(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS))
    assert not close(encode(TEXTS, tmp_path / "theirs"), encode(TEXTS, loud))
    save(load(tmp_path / "theirs"), tmp_path / "ours")
    assert close(encode(TEXTS, tmp_path / "ours"), theirs.encode(TEXTS))


def edited(folder: Path, file: str, change: dict[str, Any]) -> Path:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    return folder


UNSUPPORTED = [
    ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.PReLU"}, "activation_function"),
    ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name"),
    ("2_Dense/config.json", {"use_residual": True}, "use_residual"),
    ("2_Dense/config.json", {"in_features": 31}, "in_features"),
    ("config_sentence_transformers.json", {"prompts": ["query: "]}, "prompts"),
    ("config_sentence_transformers.json", {"truncate_dim": "all"}, "truncate_dim"),
    ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "model_type"),
    ("sentence_bert_config.json", {"max_seq_length": "22"}, "max_seq_length"),
    ("1_Pooling/config.json", {"include_prompt": "no"}, "include_prompt"),
    ("1_Pooling/config.json", {"pooling_mode": 3}, "pooling_mode"),
    ("1_Pooling/config.json", {"pooling_mode": "median"}, "pooling_mode"),
    ("1_Pooling/config.json", {"pooling_mode": None, "pooling_mode_weird": True}, "pooling_mode_weird"),
]


@pytest.mark.parametrize(("file", "change", "key"), UNSUPPORTED)
def test_what_we_do_not_compute_is_refused_by_its_key(
    file: str, change: dict[str, Any], key: str, loud: Path, tmp_path: Path
) -> None:
    built("dense", loud, tmp_path / "theirs")
    edited(tmp_path / "theirs", file, change)
    with refused("unsupported-setting", (key, change[key])):
        encode(TEXTS, tmp_path / "theirs")
    assert encode(TEXTS, tmp_path / "theirs", pool="mean").shape == (len(TEXTS), 32)  # the transformer itself is read


@pytest.mark.parametrize("kind", ["WeightedLayerPooling", "CNN", "SpladePooling", "LSTM", "custom_code.Pooling"])
def test_a_module_that_we_do_not_have_is_refused_by_its_name(kind: str, loud: Path, tmp_path: Path) -> None:
    made(loud, tmp_path / "theirs")
    path = tmp_path / "theirs/modules.json"
    modules = json.loads(path.read_text())
    modules[1]["type"] = kind if "." in kind else f"sentence_transformers.models.{kind}"
    path.write_text(json.dumps(modules))
    with refused("unsupported-modules", names=kind):
        encode(TEXTS, tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    assert model.config.encoder.width == 32
    with pytest.warns(UserWarning, match="without the modules"):  # nothing is lost silently
        save(model, tmp_path / "ours")


@pytest.mark.parametrize("content", ["[]", "{}", "[1]", "not json", '[{"idx": 0, "type": "Transformer"}]'])
def test_a_damaged_list_of_modules_is_refused(content: str, loud: Path, tmp_path: Path) -> None:
    made(loud, tmp_path / "theirs")
    (tmp_path / "theirs/modules.json").write_text(content)
    with refused("damaged-file", tmp_path / "theirs/modules.json"):
        encode(TEXTS, tmp_path / "theirs")


def test_modules_are_in_the_order_of_the_list(loud: Path, tmp_path: Path) -> None:
    built("dense of several, no bias, normalised", loud, tmp_path / "theirs")
    path = tmp_path / "theirs/modules.json"
    modules = json.loads(path.read_text())
    path.write_text(json.dumps([{**module, "idx": 9 - i} for i, module in enumerate(modules)]))
    theirs = SentenceTransformer(str(tmp_path / "theirs"), device="cpu")
    assert close(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS))


def test_a_default_prompt_that_is_not_there_is_refused(loud: Path, tmp_path: Path) -> None:
    made(loud, tmp_path / "theirs")
    edited(tmp_path / "theirs", "config_sentence_transformers.json", {"default_prompt_name": "query-x"})
    with refused("unknown-choice", "query-x"):
        encode(TEXTS, tmp_path / "theirs")


def test_a_module_outside_the_folder_is_refused(loud: Path, tmp_path: Path) -> None:
    made(loud, tmp_path / "theirs")
    path = tmp_path / "theirs/modules.json"
    path.write_text(path.read_text().replace("1_Pooling", "../1_Pooling"))
    with refused("damaged-file", "../1_Pooling"):
        encode(TEXTS, tmp_path / "theirs")


def test_a_cross_encoder_is_no_sentence_folder(loud: Path, tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig.from_pretrained(loud)
    config.num_labels = 1
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "plain")
    load(loud).require_tokenizer().save(tmp_path / "plain")
    CrossEncoder(str(tmp_path / "plain"), device="cpu").save_pretrained(str(tmp_path / "theirs"))
    assert load(tmp_path / "theirs").sentence is None
    assert encode(TEXTS, tmp_path / "theirs").shape == (len(TEXTS), 32)


def test_changes_of_a_model_keep_its_modules(loud: Path, tmp_path: Path) -> None:
    built("dense", loud, tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    before = encode(TEXTS, model)
    assert np.array_equal(encode(TEXTS, extend_vocabulary(model, ["zebrafish"]).model), before)
    assert np.array_equal(encode(TEXTS, model.with_only([])), before)
    assert encode(TEXTS, model.with_layers(1)).shape == before.shape
    assert encode(TEXTS, model.with_head("sequence", ["a", "b"])).shape[1] == 32  # a classifier is no sentence model


def test_an_adapter_of_sentence_transformers_has_its_own_modules(loud: Path, tmp_path: Path) -> None:
    theirs = made(
        loud,
        tmp_path / "whole",
        Normalize(),
        pooling="cls",
        prompts={"query": "the cat: "},
        default_prompt_name="query",
    )
    theirs.add_adapter(peft.LoraConfig(r=2, target_modules=["query", "value"]))
    for name, parameter in theirs.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(str(tmp_path / "adapter"))
    assert (tmp_path / "adapter/adapter_config.json").exists()
    assert close(encode(TEXTS, load(tmp_path / "adapter", base=loud)), theirs.eval().encode(TEXTS))


def test_gradients_flow_through_every_mode() -> None:
    from bothways.model.pooling import Pooling as Ours

    batch = Batch.pack([[1, 2, 3], [4], [5, 6]])
    torch.manual_seed(0)  # near a tie, the maximum has no gradient
    states = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    for mode in MODES:
        assert torch.autograd.gradcheck(lambda x, m=mode: Ours((m,))(x, batch), states, eps=1e-3, atol=1e-2)
