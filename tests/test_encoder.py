"""The encoder: BERT's sizes, the worked example, what can be seen inside, training."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bothways.model.activations import FastGelu
from bothways.model.attention import AttentionPlan, Bias
from bothways.model.batch import Batch
from bothways.model.config import BASE, LARGE, Bucketed, EncoderConfig, Learned, ModelConfig
from bothways.model.dropout import Dropout
from bothways.model.encoder import Encoder
from bothways.model.model import Model
from bothways.model.positions import LayerPositions, PositionTables, QueryKey
from helpers import DEVICES, TINY, make_loud, refused

IDS = [[101, 5, 6, 7, 102], [101, 8, 102], [101, 9, 10, 11, 12, 13, 102]]


def loud_encoder() -> Encoder:
    encoder = Encoder(TINY).eval()
    make_loud(encoder)
    return encoder


# ---------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("config", "heads", "parameters"),
    [
        # google-research/bert: 110M and 340M "parameters", to the last one. The pretraining heads add the masked
        # head's dense (768² + 768), norm (2 · 768), output bias (30,522), and next-sentence (2 · 768 + 2).
        (BASE, ("pooler",), 109_482_240),
        (LARGE, ("pooler",), 335_141_888),
        (BASE, ("pooler", "masked", "next"), 109_482_240 + 768**2 + 768 + 2 * 768 + 30_522 + 2 * 768 + 2),
        (LARGE, ("pooler", "masked", "next"), 335_141_888 + 1024**2 + 1024 + 2 * 1024 + 30_522 + 2 * 1024 + 2),
    ],
)
def test_presets_have_the_originals_number_of_parameters(
    config: EncoderConfig, heads: tuple[str, ...], parameters: int
) -> None:
    with torch.device("meta"):
        model = Model(ModelConfig(config, heads))
    assert sum(p.numel() for p in model.parameters()) == parameters


# ---------------------------------------------------------------------- the worked example


def test_the_four_token_example() -> None:
    """Attention by hand, for four tokens of width four, one head, Q = K = V = the input itself.

    Input = token + segment + position:
        x1 = (.1 .2 .3 .4) + (.01 .02 .01 .02) + (.10 .00 .10 .00) = (.21 .22 .41 .42)
        x2 = (.5 .1 .2 .3) + (.01 .02 .01 .02) + (.04 .08 .04 .08) = (.55 .20 .25 .40)
        x3 = (.3 .4 .1 .5) + (.01 .02 .01 .02) + (.01 .05 .01 .05) = (.32 .47 .12 .57)
        x4 = (.2 .3 .4 .1) + (.01 .02 .01 .02) + (.00 .03 .00 .03) = (.21 .35 .41 .15)

    Scores = x xᵀ / √4. For the first token:
        x1·x1 = .0441 + .0484 + .1681 + .1764 = .4370   / 2 = .21850
        x1·x2 = .1155 + .0440 + .1025 + .1680 = .4300   / 2 = .21500
        x1·x3 = .0672 + .1034 + .0492 + .2394 = .4592   / 2 = .22960
        x1·x4 = .0441 + .0770 + .1681 + .0630 = .3522   / 2 = .17610

    Softmax over all four, those to the right included (no causal mask):
        e^.21850 = 1.24421, e^.21500 = 1.23986, e^.22960 = 1.25810, e^.17610 = 1.19256; sum 4.93473
        weights .25213 .25125 .25495 .24167

    Output = weights · x:
        first number: .25213·.21 + .25125·.55 + .25495·.32 + .24167·.21 = .32347
    """
    config = EncoderConfig(
        vocab_size=4,
        width=4,
        layers=1,
        num_heads=1,
        ffn_width=4,
        segments=1,
        positions=Learned(4),
        dropout=0,
        attention_dropout=0,
    )
    encoder = Encoder(config).eval()
    table = encoder.embeddings
    with torch.no_grad():
        table.tokens.weight.copy_(
            torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.2, 0.3], [0.3, 0.4, 0.1, 0.5], [0.2, 0.3, 0.4, 0.1]])
        )
        table.segments.weight.copy_(torch.tensor([[0.01, 0.02, 0.01, 0.02]]))
        rows = [[0.10, 0.0, 0.10, 0.0], [0.04, 0.08, 0.04, 0.08], [0.01, 0.05, 0.01, 0.05], [0.0, 0.03, 0.0, 0.03]]
        table.positions.get_submodule("rows").weight.copy_(torch.tensor(rows))  # type: ignore[operator, union-attr]
        attention = encoder.blocks[0].attention
        attention.qkv.weight.copy_(torch.eye(4).repeat(3, 1))
        attention.qkv.bias.zero_()
        attention.out.weight.copy_(torch.eye(4))
        attention.out.bias.zero_()
    table.norm = nn.Identity()  # type: ignore[assignment]  # the example has no norm
    batch = Batch.pack([[0, 1, 2, 3]])

    inputs = torch.tensor(
        [[0.21, 0.22, 0.41, 0.42], [0.55, 0.20, 0.25, 0.40], [0.32, 0.47, 0.12, 0.57], [0.21, 0.35, 0.41, 0.15]]
    )
    seen = encoder.activations(batch, hidden_states=[0], attentions=[1])
    assert torch.allclose(seen.hidden_states[0], inputs, atol=1e-6)
    weights = torch.tensor([0.25213, 0.25125, 0.25495, 0.24167])
    assert torch.allclose(seen.attentions[1][0][0, 0], weights, atol=1e-5)
    out = attention(inputs, encoder._embed(batch)[1])
    assert out[0, 0].item() == pytest.approx(0.32347, abs=1e-5)
    assert torch.allclose(out, torch.softmax(inputs @ inputs.T / 2, -1) @ inputs, atol=1e-6)


# ---------------------------------------------------------------------- looking inside


def test_every_layer_can_be_seen_and_the_last_is_the_output() -> None:
    encoder, batch = loud_encoder(), Batch.pack(IDS)
    seen = encoder.activations(batch, hidden_states=range(4))
    assert torch.equal(seen.hidden_states[3], encoder(batch))
    assert torch.equal(seen.hidden_states[0], encoder.embeddings(batch))
    assert len({state.sum().item() for state in seen.hidden_states.values()}) == 4


def test_asking_for_maps_changes_no_state_and_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    from bothways.model import attention

    encoder, batch = loud_encoder(), Batch.pack(IDS)
    expected = encoder(batch)
    ran: list[str] = []
    original = attention._dense

    def watched(*arguments: Any) -> torch.Tensor:
        ran.append("dense")
        return original(*arguments)

    monkeypatch.setattr(attention, "_dense", watched)
    seen = encoder.activations(batch, hidden_states=[3], attentions=[2])
    assert ran == ["dense"] * 3  # all three layers on the fast path, the one with the map too
    assert torch.equal(seen.hidden_states[3], expected)
    assert set(seen.attentions) == {2}
    assert [tuple(m.shape) for m in seen.attentions[2]] == [(4, 5, 5), (4, 3, 3), (4, 7, 7)]


def test_layers_above_the_asked_ones_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, batch = loud_encoder(), Batch.pack(IDS)
    monkeypatch.setattr(encoder.blocks[2], "forward", lambda *a: pytest.fail("the last layer ran"))
    encoder.activations(batch, hidden_states=[0, 2])


@pytest.mark.parametrize(("hidden", "maps"), [([4], []), ([-1], []), ([], [0]), ([], [9])])
def test_layers_that_do_not_exist_are_refused(hidden: list[int], maps: list[int]) -> None:
    with refused("no-such-layer", [*hidden, *maps][0]):
        loud_encoder().activations(Batch.pack(IDS), hidden_states=hidden, attentions=maps)


# ---------------------------------------------------------------------- the seam for positions


class Added(PositionTables):
    """A row at the input."""

    def forward(self, batch: Batch) -> Tensor:
        return batch.positions[:, None] * torch.linspace(-1, 1, TINY.width)


class Rotated(LayerPositions):
    """A sign at each odd position, a penalty for distance."""

    def rotate(self, q: Tensor, k: Tensor, plan: AttentionPlan) -> tuple[Tensor, Tensor]:
        sign = 1 - 2 * (plan.batch.positions % 2)[:, None, None]
        return q * sign, k

    def bias(self, q: Tensor, k: Tensor, plan: AttentionPlan, project: QueryKey) -> Bias:
        return lambda h, i, j: -0.1 * (h + 1) * (i - j).abs()


@pytest.mark.parametrize("hook", ["forward", "rotate", "bias"])
def test_every_hook_of_the_seam_is_used(hook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, batch = loud_encoder(), Batch.pack(IDS)
    encoder.embeddings.positions = Added(TINY)
    for block in encoder.blocks:
        block.attention.positions = Rotated()
    whole = encoder(batch)
    encoder.backend = "reference"
    assert torch.allclose(encoder(batch), whole, atol=1e-5)
    seam, base = (Added, PositionTables) if hook == "forward" else (Rotated, LayerPositions)
    monkeypatch.setattr(seam, hook, getattr(base, hook))
    assert not torch.allclose(encoder(batch), whole, atol=1e-2)


def test_a_model_whose_positions_bias_scores_refuses_backends_that_cannot() -> None:
    encoder = Encoder(replace(TINY, positions=Bucketed(48)))
    encoder.backend = "varlen"
    with refused("unsupported-backend", ("varlen", "device", "dtype", "bias")):
        encoder(Batch.pack(IDS))


# ---------------------------------------------------------------------- batches


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_answer_whatever_the_batch(device: str) -> None:
    encoder = loud_encoder().to(device)
    together = encoder(Batch.pack(IDS).to(device)).split([len(ids) for ids in IDS])
    for ids, expected in zip(IDS, together, strict=True):
        alone = encoder(Batch.pack([ids]).to(device))
        assert torch.allclose(alone, expected, atol=1e-5)


def test_a_batch_needs_tokens() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Batch.pack([])
    with pytest.raises(ValueError, match="at least one"):
        Batch.pack([[1], []])


# ---------------------------------------------------------------------- training


def test_every_parameter_gets_a_gradient() -> None:
    model = Model.new(ModelConfig(TINY, ("pooler", "masked", "next", "sequence", "span", "token"), ("a", "b")), seed=0)
    batch = Batch.pack(IDS, [[0] * 2 + [1] * (len(ids) - 2) for ids in IDS])
    states = model.encoder(batch)
    loss = model.masked(states).square().sum()
    for head in ("next", "sequence", "span", "token"):
        loss = loss + model.logits(head, states, batch).square().sum()
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum()] == []


def test_recomputing_activations_changes_no_gradient() -> None:
    gradients = []
    for recompute in (False, True):
        encoder = loud_encoder().train()
        encoder.gradient_checkpointing = recompute
        torch.manual_seed(4)  # dropout draws the same both times, and again when recomputed
        encoder(Batch.pack(IDS)).square().sum().backward()
        gradients.append([p.grad for p in encoder.parameters()])
    for plain, again in zip(*gradients, strict=True):
        assert plain is not None
        assert again is not None
        assert torch.equal(plain, again)


def test_recomputing_saves_memory() -> None:
    """Fewer tensors are kept for the backward pass."""

    def kept(recompute: bool) -> int:
        encoder = loud_encoder().train()
        encoder.gradient_checkpointing = recompute
        count = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            encoder(Batch.pack(IDS))
        return count

    assert kept(True) < 0.3 * kept(False)


def test_dropout_stands_where_bert_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the embeddings, after attention and after feed-forward in each layer; and on the attention weights."""
    seen: list[tuple[int, ...]] = []

    def watched(module: Dropout, x: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return x

    monkeypatch.setattr(Dropout, "forward", watched)
    encoder, batch = loud_encoder().train(), Batch.pack(IDS)
    first, second = encoder(batch), encoder(batch)
    assert seen == [(15, TINY.width)] * (1 + 2 * TINY.layers) * 2
    assert not torch.allclose(first, second)  # with the others silenced, attention's own dropout is left


def test_dropout_is_for_training_only() -> None:
    encoder, batch = loud_encoder(), Batch.pack(IDS)
    assert torch.equal(encoder(batch), encoder(batch))
    encoder.train()
    assert not torch.allclose(encoder(batch), encoder(batch))


@pytest.mark.slow
def test_the_encoder_compiles() -> None:
    """As one graph. test_fit compiles a training to machine code, which takes half a minute."""
    encoder, batch = Encoder(replace(TINY, layers=1)).eval(), Batch.pack([[5] * 8, [6] * 8])
    make_loud(encoder)
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(batch), encoder(batch), atol=1e-5)


# ---------------------------------------------------------------------- fresh weights


def test_fresh_weights_are_berts() -> None:
    model = Model.new(ModelConfig(TINY, ("masked",)), seed=1)
    for name, parameter in model.named_parameters():
        if "norm.weight" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert parameter.abs().max().item() <= 2 * TINY.init_std, name
            off = 4 / parameter.numel() ** 0.5  # the standard deviation of a sample's is below 1 / √n
            assert parameter.std().item() == pytest.approx(0.88 * TINY.init_std, rel=off), name  # cut at two deviations


def test_fresh_weights_are_a_function_of_the_seed() -> None:
    first, again, other = (Model.new(ModelConfig(TINY), seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.encoder.embeddings.tokens.weight, other.encoder.embeddings.tokens.weight)


def test_fresh_weights_draw_nothing_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    Model.new(ModelConfig(TINY, ("masked", "span")), seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_new_head_leaves_the_rest_alone() -> None:
    model = Model.new(ModelConfig(TINY, ("pooler",)), seed=1)
    grown = model.with_head("sequence", ("good", "bad"))
    assert grown.config.labels == ("good", "bad")
    assert grown.encoder is model.encoder
    assert grown.heads["pooler"] is model.heads["pooler"]
    with refused("missing-head", "pooler"):
        Model.new(ModelConfig(TINY)).with_head("sequence", ("good", "bad"))


@pytest.mark.parametrize(
    ("change", "code", "value"),
    [
        ({"num_heads": 5}, "shape-mismatch", (768, 5)),
        ({"layers": 0}, "out-of-range", ("layers", 0)),
        ({"width": "768"}, "out-of-range", ("width", "768")),
        ({"dropout": 1.5}, "out-of-range", ("dropout", 1.5)),
        ({"activation": "selu"}, "unknown-choice", "selu"),
        ({"positions": Learned(0)}, "out-of-range", ("positions.rows", 0)),
        ({"positions": Learned(2, offset=2)}, "out-of-range", ("positions.rows", 2)),
        ({"windows": (1, 2)}, "shape-mismatch", ("windows", 2)),
        ({"layer_map": (0, 2) * 6}, "out-of-range", ("layer_map", [0, 2])),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, object], code: str, value: object) -> None:
    with refused(code, value):
        EncoderConfig(**change)  # type: ignore[arg-type]


def test_fast_gelu_is_the_exact_one() -> None:
    """GPUs use it under the compiler; value and gradient against erf in fp64."""
    x = torch.linspace(-12, 12, 100_001, requires_grad=True)
    exact = x.detach().double().requires_grad_()
    fast, reference = FastGelu.apply(x), torch.nn.functional.gelu(exact)  # type: ignore[no-untyped-call]
    (slope,), (expected,) = (torch.autograd.grad(y.sum(), z) for y, z in ((fast, x), (reference, exact)))
    assert float((fast - reference).detach().abs().max()) < 5e-7  # fp32 itself carries 12 to 1e-6
    assert float((slope - expected).abs().max()) < 5e-7
