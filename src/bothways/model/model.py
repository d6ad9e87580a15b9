"""A model: an encoder with its heads, its tokenizer and its label names.

N tokens in the batch · B sequences · M masked positions · W width · V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.encoder import Encoder, initialise
from bothways.model.facts import the_tokenizer
from bothways.model.families import FAMILIES
from bothways.model.late import Late
from bothways.model.pooling import Pooling
from bothways.model.sentence import Sentence
from bothways.text.tokenizer import Encoding, Tokenizer

_FIRST, _MEAN = Pooling(("cls",)), Pooling(("mean",))


class Model(nn.Module):
    """`model.encoder` computes hidden states; `model.masked` and `model.logits` compute logits from them."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer | None = None) -> None:
        """Leaves weights uninitialised: `Model.new` initialises them, `load` reads them from a folder."""
        super().__init__()
        if tokenizer is not None and tokenizer.size > config.encoder.vocab_size:
            raise BothwaysError(
                f"the tokenizer has {tokenizer.size} tokens, and the model only {config.encoder.vocab_size} token "
                f"embeddings: they do not belong together",
                "vocabulary-mismatch",
                (tokenizer.size, config.encoder.vocab_size),
            )
        self.config = config
        self.tokenizer = tokenizer
        self.encoder = Encoder(config.encoder)
        known = FAMILIES[config.family].heads
        for name in config.heads:
            if name not in known:
                raise BothwaysError(
                    f"{config.family} has no head {name!r}: expected one of {', '.join(known)}", "no-such-head", name
                )
            if known[name].has_labels and not config.labels:
                raise BothwaysError(f"the head {name!r} needs `labels`, the names of its labels", "no-labels", name)
            for need in known[name].needs:
                if need not in config.heads:
                    raise BothwaysError(f"the head {name!r} needs the head {need!r} too", "missing-head", need)
        self.heads = nn.ModuleDict({name: known[name].build(config) for name in config.heads})
        self.sentence: Sentence | None = None
        """How a folder of sentence-transformers makes the vector of a text."""
        self.late: Late | None = None
        """How a ColBERT makes the vectors of tokens."""
        self.sentence_error: BothwaysError | None = None
        """Why the modules of such a folder are not supported."""

    def __repr__(self) -> str:
        """One line; the layers are shown by `model.encoder` and `model.heads`."""
        shape, heads = self.config.encoder, ", ".join(self.config.heads)
        count = sum(parameter.numel() for parameter in self.parameters())
        size = f"{count / 1e6:,.1f}M" if count >= 1e6 else f"{count:,}"
        return (
            f"Model({self.config.family}, {size} parameters, {shape.layers} layers, width {shape.width}, "
            f"{shape.vocab_size:,} tokens, reads {shape.max_length:,}{f', heads: {heads}' if heads else ''}, "
            f"{str(self.dtype).removeprefix('torch.')} on {self.device})"
        )

    @classmethod
    def new(cls, config: ModelConfig, tokenizer: Tokenizer | None = None, *, seed: int = 0) -> "Model":
        """A model with random weights. The same seed gives the same weights."""
        model = cls.unfilled(config, tokenizer)
        initialise(model, config.encoder.init_std, torch.Generator().manual_seed(seed))
        return model

    @classmethod
    def unfilled(cls, config: ModelConfig, tokenizer: Tokenizer | None = None) -> "Model":
        """A model whose weights are whatever the memory held: all of them are to be set."""
        with torch.device("meta"):  # the layers' own initialisation would take time and change torch's global generator
            model = cls(config, tokenizer)
        return model.to_empty(device="cpu")

    def with_head(self, name: str, labels: Sequence[str] = (), *, keep: Sequence[str] = (), seed: int = 0) -> "Model":
        """This model with one more, newly initialised head. The other weights are shared.

        A head whose tensors have the same names in a file is dropped, unless it is in `keep`.
        """
        known = FAMILIES[self.config.family].heads
        names = {head: {row.theirs for row in known[head].rows} for head in (name, *self.config.heads)}
        kept = tuple(head for head in self.config.heads if head in keep or not names[head] & names[name])
        config = replace(self.config, heads=(*kept, name), labels=tuple(labels) or self.config.labels)
        grown = Model.new(config, self.tokenizer, seed=seed)
        grown.encoder = self.encoder
        grown.heads.update({head: self.heads[head] for head in kept})
        return grown

    def with_only(self, heads: Sequence[str]) -> "Model":
        """This model without its other heads; weights are shared."""
        with torch.device("meta"):
            model = Model(replace(self.config, heads=tuple(heads)), self.tokenizer)
        model.encoder = self.encoder
        model.heads.update({name: self.heads[name] for name in heads})
        model.sentence, model.sentence_error, model.late = self.sentence, self.sentence_error, self.late
        return model.train(self.training)

    def with_layers(self, taken: int | Sequence[int]) -> "Model":
        """A model of some of this model's layers, counted from 1; the weights are shared.

        `taken` is a list of layers, or a number of layers, which are spaced evenly from the first to the last: 6 of 12
        are 1, 3, 5, 8, 10, 12, as for DistilBERT.
        """
        shape = self.config.encoder
        if isinstance(taken, int) and not 0 < taken <= shape.layers:
            raise BothwaysError(
                f"{taken} layers cannot be taken from a model with {shape.layers}", "no-such-layer", taken
            )
        numbers = spread(shape.layers, taken) if isinstance(taken, int) else list(taken)
        if not numbers or sorted(set(numbers)) != numbers or not 1 <= numbers[0] <= numbers[-1] <= shape.layers:
            raise BothwaysError(
                f"the layers {numbers} cannot be taken: expected some of 1 to {shape.layers}, in ascending order",
                "no-such-layer",
                tuple(numbers),
            )
        if numbers[0] > 1 and not shape.first_norm:
            raise BothwaysError(
                f"the first layer of {self.config.family} must be kept: only its attention has no LayerNorm",
                "missing-first-layer",
                tuple(numbers),
            )
        blocks = [shape.layer_map[n - 1] if shape.layer_map else n - 1 for n in numbers]
        kept = sorted(set(blocks))
        smaller = replace(
            shape,
            layers=len(numbers),
            windows=tuple(shape.windows[n - 1] for n in numbers) if shape.windows else (),
            layer_map=tuple(kept.index(block) for block in blocks) if shape.layer_map else (),
        )
        with torch.device("meta"):
            model = Model(replace(self.config, encoder=smaller), self.tokenizer)
        for name, part in self.encoder.named_children():
            setattr(model.encoder, name, part)
        model.encoder.blocks = nn.ModuleList(self.encoder.blocks[block] for block in kept)
        model.heads = self.heads
        model.sentence, model.sentence_error, model.late = self.sentence, self.sentence_error, self.late
        return model.train(self.training)

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer, or an error if there is none."""
        return the_tokenizer(self)

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.embeddings.tokens.weight.dtype

    def batch(self, encodings: Sequence[Encoding]) -> Batch:
        """Encodings as one batch on the model's device. Inputs that the model cannot read are refused."""
        shape = self.config.encoder
        for i, encoding in enumerate(encodings, 1):
            if len(encoding) > shape.max_length:
                raise BothwaysError(
                    f"text {i} has {len(encoding)} tokens and this model reads {shape.max_length}",
                    "too-long",
                    (len(encoding), shape.max_length),
                )
        ids = [encoding.ids for encoding in encodings]
        segments = [encoding.segments for encoding in encodings]
        highest = max(max(row) for row in ids)
        if highest >= shape.vocab_size:
            raise BothwaysError(
                f"there is no token id {highest}: this model has {shape.vocab_size}", "out-of-range", highest
            )
        if shape.segments and max(max(row) for row in segments) >= shape.segments:
            raise BothwaysError(
                f"a pair of texts needs two segments, and this model has {shape.segments}",
                "too-few-segments",
                shape.segments,
            )
        return Batch.pack(ids, segments).to(self.device)

    def summary(self, states: Tensor, batch: Batch) -> Tensor:
        """One vector per sequence: the state of [CLS], through the pooler if there is one. (N, W) → (B, W)."""
        first = _FIRST(states, batch)
        pooled: Tensor = self.heads["pooler"](first) if "pooler" in self.heads else first
        return pooled

    def masked(self, states: Tensor) -> Tensor:
        """Logits over the vocabulary, for the hidden states of the masked positions: (M, W) → (M, V)."""
        logits: Tensor = self._head("masked")(states, self.encoder.embeddings.tokens.weight)
        return logits

    def logits(self, head: str, states: Tensor, batch: Batch) -> Tensor:
        """The output of a head: (B, outputs) for "next", "sequence", "choice"; (N, outputs) for "token", "span"."""
        match FAMILIES[self.config.family].heads[head].reads_in(self.config):
            case "tokens":
                read = states
            case "tokens + first":
                read = states + states[batch.first][batch.owners]
            case "first":
                read = _FIRST(states, batch)
            case "mean":
                read = _MEAN(states, batch)
            case "pooled":
                read = self.summary(states, batch)
            case "late":
                averaged: Tensor = _MEAN(self._head(head)(states), batch)
                return averaged
        logits: Tensor = self._head(head)(read)
        return logits

    def _head(self, name: str) -> nn.Module:
        if name not in self.heads:
            has = ", ".join(self.heads) or "none"
            raise BothwaysError(f"this model has no {name!r} head (its heads: {has})", "no-such-head", name)
        return self.heads[name]


def spread(total: int, count: int) -> list[int]:
    """`count` evenly spaced numbers from 1 to `total`, both included."""
    if count < 2:
        return list(range(1, min(count, total) + 1))
    return [round(i * (total - 1) / (count - 1)) + 1 for i in range(count)]
