"""Settings beside the weights that change what a model computes: obeyed as transformers obeys them, or refused by key."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.checkpoint import require_storable, save
from bothways.model.config import EncoderConfig, Learned, ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from helpers import PIECES, make_loud, refused

LIMIT = 2e-5
USUAL: dict[str, Any] = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 42, "pad_token_id": 1,
}  # fmt: skip
DISTIL = {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 42}
IDS = [[5, 9, 30, 2, 77, 12, 41], [8], [60, 2, 3, 99]]


def theirs(kind: str, ending: str, **changes: Any) -> Any:
    sizes = DISTIL if kind == "DistilBert" else USUAL
    model = getattr(transformers, kind + ending)(getattr(transformers, f"{kind}Config")(**{**sizes, **changes}))
    make_loud(model)
    return model.eval()


def their_logits(model: Any, ids: list[list[int]]) -> Tensor:
    """One sequence at a time: nothing is padded."""
    with torch.no_grad():
        found = [model(torch.tensor([row])) for row in ids]
    return torch.cat([getattr(out, "logits", out[0])[0] for out in found])


def our_logits(model: Model, ids: list[list[int]], head: str = "masked") -> Tensor:
    batch = Batch.pack(ids)
    with torch.no_grad():
        states: Tensor = model.encoder(batch)
        if not head:
            return states
        return model.masked(states) if head == "masked" else model.logits(head, states, batch)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= LIMIT * max(1.0, float(theirs.abs().max()))


def edited(folder: Path, *, drop: tuple[str, ...] = (), **changes: Any) -> Path:
    path = folder / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key not in drop}
    path.write_text(json.dumps({**config, **changes}))
    return folder


# ---------------------------------------------------------------------- the output words

TIED = ["Bert", "Roberta", "Albert", "DistilBert", "Electra", "MPNet", "Deberta", "DebertaV2", "ModernBert", "RoFormer"]


@pytest.mark.parametrize("kind", [*TIED, "NomicBert", "Gte", "EuroBert"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_output_words_are_those_of_the_file(kind: str, tied: bool, tmp_path: Path) -> None:
    model = theirs(kind, "ForMaskedLM", tie_word_embeddings=tied)
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert_close(our_logits(ours, IDS), their_logits(model, IDS))
    save(ours, tmp_path / "ours")
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]
    assert_close(our_logits(ours, IDS), their_logits(again.eval(), IDS))


def test_a_classifier_needs_no_tied_words(tmp_path: Path) -> None:
    model = theirs("Bert", "ForSequenceClassification", tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    assert load(tmp_path).config.heads == ("pooler", "sequence")


def test_words_that_differ_from_what_they_are_tied_to_are_refused(tmp_path: Path) -> None:
    theirs("Bert", "ForMaskedLM", tie_word_embeddings=False).save_pretrained(tmp_path)
    edited(tmp_path, tie_word_embeddings=True)
    with refused("tied-tensors-differ", names="tie_word_embeddings"):
        load(tmp_path)


def test_masked_words_without_a_bias(tmp_path: Path) -> None:
    model = theirs("ModernBert", "ForMaskedLM", decoder_bias=False)
    model.save_pretrained(tmp_path)
    assert_close(our_logits(load(tmp_path), IDS), their_logits(model, IDS))


# ---------------------------------------------------------------------- biases, activations, positions


@pytest.mark.parametrize("attention", [True, False])
@pytest.mark.parametrize("mlp", [True, False])
@pytest.mark.parametrize("kind", ["ModernBert", "EuroBert"])
def test_biases_of_attention_and_feed_forward_are_two_settings(
    kind: str, mlp: bool, attention: bool, tmp_path: Path
) -> None:
    model = theirs(kind, "ForMaskedLM", attention_bias=attention, mlp_bias=mlp)
    model.save_pretrained(tmp_path)
    assert_close(our_logits(load(tmp_path), IDS), their_logits(model, IDS))


@pytest.mark.parametrize(
    "name", ["quick_gelu", "gelu_10", "gelu_python", "mish", "leaky_relu", "relu2", "relu6", "linear", "sigmoid"]
)
@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
def test_activations_by_their_names(kind: str, name: str, tmp_path: Path) -> None:
    key = "hidden_activation" if kind == "ModernBert" else "hidden_act"
    model = theirs(kind, "ForMaskedLM", **{key: name})
    model.save_pretrained(tmp_path)
    assert_close(our_logits(load(tmp_path), IDS), their_logits(model, IDS))


@pytest.mark.parametrize("name", ["xielu", "prelu", "selu"])  # the first two have weights, the third nobody knows
def test_other_activations_are_refused_by_key(name: str, tmp_path: Path) -> None:
    theirs("Bert", "Model").save_pretrained(tmp_path)
    with refused("unsupported-setting", ("hidden_act", name)):
        load(edited(tmp_path, hidden_act=name))


@pytest.mark.parametrize("kind", ["Roberta", "XLMRoberta", "Camembert", "MPNet", "Data2VecText", "XLMRobertaXL"])
def test_padding_tokens_inside_a_text_are_not_counted(kind: str, tmp_path: Path) -> None:
    """RoBERTa counts positions by ids, so that a pad token in the text itself has the row of padding."""
    model = theirs(kind, "Model")
    model.save_pretrained(tmp_path)
    rows = [[5, 1, 9, 1, 1, 30], [1], [7, 8], [1, 40]]
    assert_close(our_logits(load(tmp_path), rows, ""), their_logits_of_states(model, rows))


def their_logits_of_states(model: Any, ids: list[list[int]]) -> Tensor:
    with torch.no_grad():
        found = [model(torch.tensor([row]), torch.ones(1, len(row))).last_hidden_state[0] for row in ids]
    return torch.cat(found)


def test_a_batch_counts_each_text_by_itself() -> None:
    shape = EncoderConfig(100, 32, 1, 4, ffn_width=48, positions=Learned(42, 2, skips_padding=True))
    model = Model.new(ModelConfig(shape, family="roberta"))
    make_loud(model)
    rows = [[5, 1, 9], [1, 1], [7, 1, 8, 1]]
    together = our_logits(model.eval(), rows, "")
    apart = torch.cat([our_logits(model, [row], "") for row in rows])
    assert_close(together, apart)


# ---------------------------------------------------------------------- DeBERTa

DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}


@pytest.mark.parametrize("kind", ["Deberta", "DebertaV2"])
@pytest.mark.parametrize(
    "missing", ["pos_att_type", "layer_norm_eps", "relative_attention", "type_vocab_size", "hidden_act"]
)
def test_deberta_without_a_key_has_their_default(kind: str, missing: str, tmp_path: Path) -> None:
    theirs(kind, "ForMaskedLM", **{k: v for k, v in DEBERTA.items() if k != missing}).save_pretrained(tmp_path)
    edited(tmp_path, drop=(missing,))
    model = getattr(transformers, f"{kind}ForMaskedLM").from_pretrained(tmp_path).eval()
    assert_close(our_logits(load(tmp_path), IDS), their_logits(model, IDS))


@pytest.mark.parametrize("kind", ["Deberta", "DebertaV2"])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("terms", [None, ["c2p"], ["p2c", "c2p"]])
def test_deberta_without_relative_attention(kind: str, biased: bool, terms: Any, tmp_path: Path) -> None:
    model = theirs(kind, "ForMaskedLM", relative_attention=False, position_biased_input=biased, pos_att_type=terms)
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert_close(our_logits(ours, IDS), their_logits(model, IDS))
    save(ours, tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    assert_close(our_logits(ours, IDS), their_logits(again, IDS))


# ---------------------------------------------------------------------- ELECTRA's multiple choice


@pytest.mark.parametrize("activation", ["gelu", "tanh", "relu"])
def test_electra_s_multiple_choice_has_the_activation_of_its_config(activation: str, tmp_path: Path) -> None:
    model = theirs("Electra", "ForMultipleChoice", summary_activation=activation)
    model.save_pretrained(tmp_path)
    rows = [row[:4] + [9] * (4 - len(row)) for row in IDS]
    with torch.no_grad():
        expected = model(torch.tensor([rows])).logits[0][:, None]
    assert_close(our_logits(load(tmp_path), rows, "choice"), expected)


@pytest.mark.parametrize("change", [{"summary_type": "mean"}, {"summary_type": "last"}, {"summary_use_proj": False}])
def test_other_summaries_are_refused_by_key(change: dict[str, Any], tmp_path: Path) -> None:
    theirs("Electra", "ForMultipleChoice").save_pretrained(tmp_path)
    with refused("unsupported-setting", next(iter(change.items()))):
        load(edited(tmp_path, **change))
    theirs("Electra", "ForSequenceClassification").save_pretrained(tmp_path / "other")
    load(edited(tmp_path / "other", **change))  # there it has no meaning


# ---------------------------------------------------------------------- architectures that we do not read

UNREAD: dict[str, dict[str, Any]] = {
    "Longformer": {"attention_window": [4, 4]},
    "BigBird": {},
    "MobileBert": {"embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "Esm": {"mask_token_id": 2},
    "LayoutLM": {},
}


@pytest.mark.parametrize("kind", UNREAD)
def test_another_architecture_is_refused_by_its_name(kind: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{kind}Config")(**USUAL, **UNREAD[kind])
    getattr(transformers, f"{kind}Model")(config).save_pretrained(tmp_path)
    with refused("unknown-family", config.model_type, names=f"(?i)this is an? {kind}, which bothways does not read"):
        load(tmp_path)


def test_a_type_that_nobody_knows_is_refused_by_its_type(tmp_path: Path) -> None:
    theirs("Bert", "Model").save_pretrained(tmp_path)
    with refused("unknown-family", "bert-of-tomorrow", names="bert-of-tomorrow"):
        load(edited(tmp_path, model_type="bert-of-tomorrow"))


def test_splinter_s_own_tokenizer_is_read(tmp_path: Path) -> None:
    pieces = {piece: i for i, piece in enumerate([*PIECES, "[QUESTION]"])}
    transformers.SplinterTokenizer(vocab=pieces).save_pretrained(tmp_path)
    theirs("Splinter", "Model", vocab_size=len(pieces) + 3).save_pretrained(tmp_path)
    judge, ours = transformers.AutoTokenizer.from_pretrained(tmp_path), load(tmp_path).require_tokenizer()
    for texts in (("The cat sleeps.",), ("北京是 big",), ("the cat", "a dog [QUESTION]")):
        assert ours(*texts).ids == judge(*texts)["input_ids"]


def test_splinter_s_head_is_left_out_aloud(tmp_path: Path) -> None:
    model = theirs("Splinter", "ForQuestionAnswering", question_token_id=3)
    model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="span selection"):
        ours = load(tmp_path)
    assert ours.config.heads == ()
    assert_close(our_logits(ours, IDS, ""), their_logits_of_states(model.splinter, IDS))


def test_sizes_that_are_missing_are_named(tmp_path: Path) -> None:
    theirs("Bert", "Model").save_pretrained(tmp_path)
    with refused("missing-setting", ("num_attention_heads",)):
        load(edited(tmp_path, drop=("num_attention_heads",)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("change", [{}, {"causal": True}, {"norm_eps": 3e-6}, {"activation": "relu"}])
def test_what_a_config_cannot_hold_is_refused_before_training(family: str, change: dict[str, Any]) -> None:
    """A causal ALBERT, say, was opened as a bidirectional one after saving."""
    shape = FAMILIES[family].fresh(EncoderConfig(99, 32, 2, 4, 48))
    config = ModelConfig(replace(shape, **change), family=family)
    found = None
    try:
        require_storable(config)
    except BothwaysError as error:
        refusal = error.code
    else:
        refusal = ""
        found = FAMILIES[family].read_config(FAMILIES[family].write_config(config.encoder))
    assert refusal in (("unsupported-by-family", "unsupported-setting", "") if change else ("",))
    if found is not None:
        assert replace(found, dropout=0, attention_dropout=0) == replace(config.encoder, dropout=0, attention_dropout=0)
