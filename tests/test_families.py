"""Every family against its class in transformers, head by head, on loud weights; and the contracts all of them keep.

The same comparisons run for every family. For BERT they also run with bugs planted in our model: a comparison that a bug
does not break proves nothing.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from torch.nn import functional as F

from bothways.model.attention import attend
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.load import load
from bothways.model.model import Model
from helpers import TINY, make_loud

LIMIT = 1e-5
LABELS = ("no", "maybe", "yes")
# Ragged, so that padding would show. The second one fills the table of learned positions.
LENGTHS = (7, 40, 1, 20)
VOCABULARY = TINY.vocab_size

USUAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
OFFSET = {**USUAL, "max_position_embeddings": 42}  # the first two positions are not used
SHAPES: dict[str, dict[str, Any]] = {
    "Bert": USUAL,
    "Roberta": OFFSET,
    "XLMRoberta": OFFSET,
    "Camembert": {**OFFSET, "layer_norm_eps": 1e-5},
    "Albert": {**USUAL, "embedding_size": 16, "num_hidden_groups": 1},
    "Albert, two groups": {**USUAL, "num_hidden_layers": 5, "embedding_size": 32, "num_hidden_groups": 2},
    "DistilBert": {
        "vocab_size": VOCABULARY,
        "dim": 32,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 64,
        "max_position_embeddings": 40,
    },
    "Electra": {**USUAL, "embedding_size": 16},
    "Electra, one width": {**USUAL, "embedding_size": 32},
    "MPNet": OFFSET,
    "ModernBert": {**USUAL, "local_attention": 8, "num_hidden_layers": 5, "pad_token_id": 0},
    "ModernBert, mean": {
        **USUAL,
        "local_attention": 6,
        "num_hidden_layers": 4,
        "pad_token_id": 0,
        "classifier_pooling": "mean",
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "global_attn_every_n_layers": 2,
    },
}
DEBERTA = {**USUAL, "relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
SHAPES |= {
    "Deberta": {**DEBERTA, "type_vocab_size": 0, "layer_norm_eps": 1e-7},
    "Deberta, all at the input": {
        **DEBERTA,
        "position_biased_input": True,
        "type_vocab_size": 2,
        "max_relative_positions": 16,
        "pos_att_type": "c2p",
    },
    "DebertaV2": {**DEBERTA, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    "DebertaV2, convolution": {
        **DEBERTA,
        "position_buckets": 8,
        "share_att_key": True,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
        "max_relative_positions": 20,
        "type_vocab_size": 2,
    },
    "DebertaV2, apart": {**DEBERTA, "pos_att_type": ["p2c"], "embedding_size": 16, "position_biased_input": True},
}
SHAPES |= {
    "XLMRobertaXL": {**OFFSET, "type_vocab_size": 2},
    "Data2VecText": OFFSET,
    "Ernie": {**USUAL, "use_task_id": True},
    "Splinter": USUAL,
    "RoFormer": {**USUAL, "embedding_size": 16},
    "RoFormer, one width": USUAL,
    "NomicBert": USUAL,
    "Gte": {**USUAL, "type_vocab_size": 2},
    "Gte, scaled": {
        **USUAL,
        "type_vocab_size": 0,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 1.7},
    },
    "EuroBert": {**USUAL, "num_key_value_heads": 2, "pad_token_id": 0},
    "EuroBert, biased": {
        **USUAL,
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "classifier_pooling": "mean",
        "pad_token_id": 0,
    },
}
ENDINGS: dict[str, tuple[str, ...]] = {
    "Model": (),
    "ForMaskedLM": ("masked",),
    "ForPreTraining": ("pooler", "masked", "next"),
    "ForNextSentencePrediction": ("next",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("token",),
    "ForQuestionAnswering": ("span",),
    "ForMultipleChoice": ("choice",),
}
POOLED = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Albert", "MPNet", "XLMRobertaXL", "Data2VecText", "Ernie")
CLASSIFIER_ON_POOLER = ("Albert", "Bert", "Ernie", "NomicBert", "Gte")
# Heads of theirs that we do not read: the file tells why.
WITHOUT = {("Splinter", "ForPreTraining"), ("Splinter", "ForQuestionAnswering"), ("RoFormer", "ForMultipleChoice")}
CASES = [
    (shape, ending)
    for shape in SHAPES
    for ending in ENDINGS
    if hasattr(transformers, shape.split(",")[0] + ending) and (shape.split(",")[0], ending) not in WITHOUT
]
MASKED = [shape for shape, ending in CASES if ending == "ForMaskedLM"]
BERT_ENDINGS = [ending for shape, ending in CASES if shape == "Bert"]


def heads_of(shape: str, ending: str) -> set[str]:
    kind = shape.split(",")[0]
    heads = set(ENDINGS[ending])
    if ending == "ForPreTraining" and kind == "Electra":
        heads = {"replaced"}
    if kind.startswith("Deberta") and ending in ("ForSequenceClassification", "ForMultipleChoice"):
        heads.add("pooler")
    pooled = ["Model", "ForMultipleChoice", "ForNextSentencePrediction"]
    if kind in POOLED and ending in (*pooled,):
        heads.add("pooler")
    if kind in CLASSIFIER_ON_POOLER and ending == "ForSequenceClassification":
        heads.add("pooler")
    return heads


def theirs(shape: str, ending: str) -> torch.nn.Module:
    kind = shape.split(",")[0]
    config = getattr(transformers, f"{kind}Config")(
        **SHAPES[shape], id2label=dict(enumerate(LABELS)), label2id={label: i for i, label in enumerate(LABELS)}
    )
    if ending in ("ForQuestionAnswering", "ForPreTraining"):
        config.num_labels = 2
    model: torch.nn.Module = getattr(transformers, kind + ending)(config)
    make_loud(model)
    return model.eval()


def rows_of_ids() -> list[list[int]]:
    """Over the whole vocabulary but for 0 and 1, each of which is the padding of some family."""
    draws = torch.Generator().manual_seed(3)
    return [torch.randint(2, VOCABULARY, (n,), generator=draws).tolist() for n in LENGTHS]


def segments_for(model: torch.nn.Module) -> list[list[int]]:
    two = (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    return [[int(i >= n // 2 and two) for i in range(n)] for n in LENGTHS]


def padded_grid(model: torch.nn.Module) -> dict[str, Tensor]:
    """The sequences as their classes take them."""
    longest, pad = max(LENGTHS), int(model.config.pad_token_id or 0)
    grid = {
        "input_ids": torch.tensor([row + [pad] * (longest - len(row)) for row in rows_of_ids()]),
        "attention_mask": torch.tensor([[1] * n + [0] * (longest - n) for n in LENGTHS]),
    }
    if getattr(model.config, "type_vocab_size", 0):
        grid["token_type_ids"] = torch.tensor([row + [0] * (longest - len(row)) for row in segments_for(model)])
    return grid


def their_outputs(model: torch.nn.Module, ending: str) -> list[Tensor]:
    """What their class returns for the padded grid, padding removed: (N, …) or (B, …)."""
    grid = padded_grid(model)
    real = grid["attention_mask"].bool()
    if ending == "ForMultipleChoice":
        grid = {key: value[None] for key, value in grid.items()}
    with torch.no_grad():
        outputs = model(**grid, return_dict=True)
    per_token = {"last_hidden_state", "start_logits", "end_logits", "prediction_logits"}
    is_detector = isinstance(model, transformers.ElectraForPreTraining)
    if ending in ("ForMaskedLM", "ForTokenClassification") or is_detector:
        per_token.add("logits")
    return [value[real] if key in per_token else value for key, value in outputs.items()]


def our_outputs(model: Model, ending: str, segments: list[list[int]]) -> list[Tensor]:
    """The same from ours, in the same order."""
    batch = Batch.pack(rows_of_ids(), segments)
    with torch.no_grad():
        states = model.encoder(batch)
        match ending:
            case "Model":
                return [states, *([model.summary(states, batch)] if "pooler" in model.heads else [])]
            case "ForMaskedLM":
                return [model.masked(states)]
            case "ForPreTraining" if "replaced" in model.heads:
                return [model.logits("replaced", states, batch)[:, 0]]
            case "ForPreTraining":
                return [model.masked(states), model.logits("next", states, batch)]
            case "ForQuestionAnswering":
                return list(model.logits("span", states, batch).unbind(-1))
            case "ForMultipleChoice":
                return [model.logits("choice", states, batch).view(1, -1)]
        return [model.logits(ENDINGS[ending][0], states, batch)]


def distance(ours: list[Tensor], theirs: list[Tensor]) -> float:
    assert [o.shape for o in ours] == [t.shape for t in theirs]
    """Relative to the largest output, where that is above 1."""
    pairs = list(zip(ours, theirs, strict=True))
    return max(float((o - t).abs().max() / t.abs().max().clamp(min=1)) for o, t in pairs)


@pytest.mark.parametrize(("shape", "ending"), CASES)
def test_we_compute_what_they_compute(shape: str, ending: str, tmp_path: Path) -> None:
    model = theirs(shape, ending)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    expected = heads_of(shape, ending)
    assert ours.config.heads == tuple(name for name in FAMILIES[ours.config.family].heads if name in expected)
    assert distance(our_outputs(ours, ending, segments_for(model)), their_outputs(model, ending)) <= LIMIT


@pytest.mark.parametrize(("shape", "ending"), CASES)
def test_they_open_what_we_write_and_a_round_trip_changes_no_bit(shape: str, ending: str, tmp_path: Path) -> None:
    model = theirs(shape, ending)
    model.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    save(ours, tmp_path / "same")
    kind = type(model)
    again, report = kind.from_pretrained(tmp_path / "same", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert again.config.architectures == [kind.__name__]
    assert again.config.id2label == model.config.id2label
    make_loud(ours, seed=5)  # weights that never were in their file
    save(ours, tmp_path / "loud")
    opened = kind.from_pretrained(tmp_path / "loud").eval()
    assert distance(our_outputs(ours, ending, segments_for(model)), their_outputs(opened, ending)) <= LIMIT


@pytest.mark.parametrize("said", [None, {"0": "LABEL_0", "1": "LABEL_1"}])
@pytest.mark.parametrize("shape", [shape for shape, ending in CASES if ending == "ForSequenceClassification"])
def test_labels_that_nobody_named_are_counted_by_the_classifier(
    shape: str, said: dict[str, str] | None, tmp_path: Path
) -> None:
    model = theirs(shape, "ForSequenceClassification")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": said, "label2id": None}))
    assert load(tmp_path).config.labels == tuple(f"LABEL_{i}" for i in range(len(LABELS)))


# ---------------------------------------------------------------------- planted bugs

Bug = Callable[[Model], None]


def _swap_segments(model: Model) -> None:
    weight = model.encoder.embeddings.segments.weight
    weight.data = weight.data.flip(0)


def _shift_positions(model: Model) -> None:
    rows = model.encoder.embeddings.positions.rows.weight
    rows.data = rows.data.roll(1, 0)


def _tanh_gelu(model: Model) -> None:
    for block in model.encoder.blocks:
        block.feed_forward.activation = lambda x: F.gelu(x, approximate="tanh")


def _larger_eps(model: Model) -> None:
    for part in model.modules():
        if isinstance(part, torch.nn.LayerNorm):
            part.eps = 1e-3


def _swap_norms(model: Model) -> None:
    block = model.encoder.blocks[0]
    block.attention_norm, block.feed_forward_norm = block.feed_forward_norm, block.attention_norm


def _swap_query_and_key(model: Model) -> None:
    bias = model.encoder.blocks[0].attention.qkv.bias
    q, k, v = bias.data.chunk(3)
    bias.data = torch.cat([k, q, v])


def _no_scale(model: Model) -> None:
    for block in model.encoder.blocks:
        block.attention.scale = 1.0


def _drop_output_bias(model: Model) -> None:
    model.encoder.blocks[0].attention.out.bias.data.zero_()


def _left_to_right(model: Model) -> None:
    for block in model.encoder.blocks:
        block.attention.forward = lambda x, plan, a=block.attention: a.out(
            attend(*a.project(x, plan)[:3], plan, scale=a.scale, window=(-1, 0)).flatten(1)
        )


BODY_BUGS: list[Bug] = [
    _swap_segments, _shift_positions, _tanh_gelu, _larger_eps, _swap_norms, _swap_query_and_key, _no_scale,
    _drop_output_bias, _left_to_right,
]  # fmt: skip


def _zero(parameter: str) -> Bug:
    def bug(model: Model) -> None:
        model.get_parameter(parameter).data.zero_()

    return bug


def _no_tanh(model: Model) -> None:
    pooler = model.heads["pooler"]
    pooler.forward = pooler.dense.forward


def _no_activation(model: Model) -> None:
    model.heads["masked"].activation = lambda x: x


def _pool_the_second_token(model: Model) -> None:
    original = model.summary
    model.summary = lambda states, batch: original(states.roll(-1, 0), batch)


HEAD_BUGS: list[tuple[str, Bug]] = [
    ("Model", _no_tanh),
    ("Model", _zero("heads.pooler.dense.bias")),
    ("Model", _pool_the_second_token),
    ("ForMaskedLM", _zero("heads.masked.bias")),
    ("ForMaskedLM", _zero("heads.masked.norm.bias")),
    ("ForMaskedLM", _no_activation),
    ("ForPreTraining", _no_tanh),
    ("ForPreTraining", _zero("heads.next.linear.bias")),
    ("ForNextSentencePrediction", _zero("heads.next.linear.bias")),
    ("ForNextSentencePrediction", _no_tanh),
    ("ForSequenceClassification", _zero("heads.sequence.linear.bias")),
    ("ForSequenceClassification", _pool_the_second_token),
    ("ForTokenClassification", _zero("heads.token.linear.bias")),
    ("ForQuestionAnswering", _zero("heads.span.linear.bias")),
    ("ForMultipleChoice", _zero("heads.choice.linear.bias")),
    ("ForMultipleChoice", _pool_the_second_token),
]


def assert_bug_shows(ending: str, bug: Bug, tmp_path: Path) -> None:
    model = theirs("Bert", ending)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    bug(ours)
    assert distance(our_outputs(ours, ending, segments_for(model)), their_outputs(model, ending)) > 3 * LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("bug", BODY_BUGS, ids=lambda bug: bug.__name__.strip("_"))
@pytest.mark.parametrize("ending", BERT_ENDINGS)
def test_a_bug_in_the_body_of_bert_would_show(ending: str, bug: Bug, tmp_path: Path) -> None:
    assert_bug_shows(ending, bug, tmp_path)


@pytest.mark.parametrize(("ending", "bug"), HEAD_BUGS)
def test_a_bug_in_a_head_of_bert_would_show(ending: str, bug: Bug, tmp_path: Path) -> None:
    assert_bug_shows(ending, bug, tmp_path)


# ---------------------------------------------------------------------- contracts


def loaded(shape: str, ending: str, tmp_path: Path) -> Model:
    theirs(shape, ending).save_pretrained(tmp_path)
    return load(tmp_path)


def close(one: Tensor, other: Tensor) -> bool:
    """States that no norm has been over may be large: their last digits then weigh more."""
    return float((one - other).abs().max()) <= LIMIT * max(1.0, float(other.abs().max()))


def two_segments(model: Model) -> list[list[int]]:
    return [[int(i >= n // 2 and model.config.encoder.segments > 1) for i in range(n)] for n in LENGTHS]


@pytest.mark.parametrize("shape", MASKED)
def test_every_number_matters(shape: str, tmp_path: Path) -> None:
    """A bug planted into each parameter changes the output: otherwise the comparisons above would prove nothing.

    The key's part of a bias is the exception: it shifts all scores of a query alike, and softmax removes it.
    """
    model = loaded(shape, "ForMaskedLM", tmp_path)
    segments = two_segments(model)
    before = our_outputs(model, "ForMaskedLM", segments)
    dead = []
    for name, parameter in model.named_parameters():
        kept = parameter.data.clone()
        parameter.data = kept.roll(1, 0) + 0.1
        if distance(our_outputs(model, "ForMaskedLM", segments), before) < 3 * LIMIT:
            dead.append(name)
        parameter.data = kept
    assert dead == []


@pytest.mark.parametrize("shape", [shape for shape, ending in CASES if ending == "ForSequenceClassification"])
def test_gradients_are_theirs(shape: str, tmp_path: Path) -> None:
    """Of a loss over a classifier's logits, through the whole body; ours are written as if they were weights."""
    ending = "ForSequenceClassification"
    judge, model = theirs(shape, ending), loaded(shape, ending, tmp_path / "theirs")
    their_loss(judge).backward()
    batch = Batch.pack(rows_of_ids(), segments_for(judge))
    model.logits("sequence", model.encoder(batch), batch).square().sum().backward()
    weights = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
    model.load_state_dict(weights)
    save(model, tmp_path / "gradients")
    found = dict(type(judge).from_pretrained(tmp_path / "gradients").named_parameters())
    for name, parameter in judge.named_parameters():
        if parameter.grad is None:
            continue
        limit = 1e-4 * max(1.0, float(parameter.grad.abs().max()))
        assert float((found[name].detach() - parameter.grad).abs().max()) <= limit, name


def their_loss(model: torch.nn.Module) -> Tensor:
    """The sum of the squares of a classifier's logits for the padded grid."""
    loss: Tensor = model(**padded_grid(model)).logits.square().sum()
    return loss


@pytest.mark.parametrize("shape", MASKED)
def test_every_parameter_gets_a_gradient(shape: str, tmp_path: Path) -> None:
    model = loaded(shape, "ForMaskedLM", tmp_path).train()
    batch = Batch.pack(rows_of_ids(), two_segments(model))
    model.masked(model.encoder(batch)).square().mean().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


@pytest.mark.parametrize("shape", MASKED)
def test_the_same_answer_whatever_the_batch_and_the_backend(shape: str, tmp_path: Path) -> None:
    model = loaded(shape, "ForTokenClassification", tmp_path)
    ids, segments = rows_of_ids(), two_segments(model)
    with torch.no_grad():
        together = model.encoder(Batch.pack(ids, segments))
        alone = torch.cat([model.encoder(Batch.pack([i], [s])) for i, s in zip(ids, segments, strict=True)])
        even = model.encoder(Batch.pack([ids[1]] * 3, [segments[1]] * 3))
        model.encoder.backend = "reference"
        slow = model.encoder(Batch.pack(ids, segments))
    assert close(together, alone)
    assert close(together, slow)
    assert close(even[-LENGTHS[1] :], alone[LENGTHS[0] : LENGTHS[0] + LENGTHS[1]])


@pytest.mark.parametrize("shape", MASKED)
def test_layers_and_maps_are_theirs(shape: str, tmp_path: Path) -> None:
    """The hidden states of all layers, and the attention weights, as transformers gives them."""
    model = theirs(shape, "Model")
    model.save_pretrained(tmp_path)
    model.set_attn_implementation("eager")
    ours, row = load(tmp_path), rows_of_ids()[1]
    kinds = segments_for(model)[1]
    extra = {"token_type_ids": torch.tensor([kinds])} if getattr(model.config, "type_vocab_size", 0) else {}
    with torch.no_grad():
        expected = model(torch.tensor([row]), output_hidden_states=True, output_attentions=True, **extra)
        layers = ours.config.encoder.layers
        seen = ours.encoder.activations(
            Batch.pack([row], [kinds]), hidden_states=range(layers + 1), attentions=range(1, layers + 1)
        )
    for layer in range(layers + 1):
        assert close(seen.hidden_states[layer], expected.hidden_states[layer][0])
    for layer in range(1, layers + 1):
        assert close(seen.attentions[layer][0], expected.attentions[layer - 1][0])


@pytest.mark.parametrize("shape", MASKED)
def test_one_compiled_program_serves_batches_of_other_lengths(shape: str, tmp_path: Path) -> None:
    """Without a break, and without compiling again when lengths change and shapes do not."""
    model = loaded(shape, "Model", tmp_path)
    torch.compiler.reset()
    counter = CompileCounter()
    run = torch.compile(model.encoder, backend=counter, fullgraph=True, dynamic=False)
    ids = rows_of_ids()[0]
    for lengths in ((5, 3, 4), (2, 5, 5)):
        whole = Batch.pack([ids[:n] for n in lengths])
        batch = Batch(whole.ids, whole.segments, whole.positions, whole.cu_seqlens, 5)
        with torch.no_grad():
            assert close(run(batch), model.encoder(whole))
    assert counter.frame_count == 1


def test_the_detector_of_deberta_v3_is_that_of_its_paper(tmp_path: Path) -> None:
    """transformers has no class for it: the equation written out, LayerNorm([CLS] + state), dense, bend, one number."""
    model = loaded("DebertaV2", "Model", tmp_path).with_head("replaced")
    make_loud(model, seed=2)
    save(model, tmp_path / "ours")
    model = load(tmp_path / "ours")
    assert model.config.heads == ("replaced",)
    head, batch = model.heads["replaced"], Batch.pack(rows_of_ids())
    with torch.no_grad():
        states = model.encoder(batch)
        found = model.logits("replaced", states, batch)[:, 0].split(list(LENGTHS))
        for own, logits in zip(states.split(list(LENGTHS)), found, strict=True):
            x = torch.nn.functional.layer_norm(own[0] + own, (32,), head.norm.weight, head.norm.bias, 1e-7)
            x = torch.nn.functional.gelu(x @ head.dense.weight.T + head.dense.bias)
            expected = (x @ head.linear.weight.T + head.linear.bias)[:, 0]
            assert float((logits - expected).abs().max()) <= LIMIT


def test_the_mask_head_of_deberta_is_read_under_both_its_names(tmp_path: Path) -> None:
    config = transformers.DebertaV2Config(**SHAPES["DebertaV2"], legacy=False)
    model = transformers.DebertaV2ForMaskedLM(config)
    make_loud(model)
    model.eval().save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    expected = their_outputs(model, "ForMaskedLM")
    assert distance(our_outputs(ours, "ForMaskedLM", segments_for(model)), expected) <= LIMIT
    save(ours, tmp_path / "ours")
    again = transformers.DebertaV2ForMaskedLM.from_pretrained(tmp_path / "ours").eval()
    assert distance(their_outputs(again, "ForMaskedLM"), expected) <= LIMIT


def test_albert_base_has_twelve_million_parameters() -> None:
    """11,683,584 in the body with its pooler, as transformers counts them, whatever the number of layers."""
    config = transformers.AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=12
    )
    encoder = FAMILIES["albert"].read_config(config.to_dict())
    with torch.device("meta"):
        ours = Model(ModelConfig(encoder, ("pooler",), family="albert"))
        judge = transformers.AlbertModel(config)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in judge.parameters()) == 11_683_584
