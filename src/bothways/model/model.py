"""An encoder with its heads, its tokenizer and its label names: what a folder holds.

N tokens in the batch · B sequences · M asked places · W width · V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.config import ModelConfig
from bothways.model.encoder import Encoder, initialise
from bothways.model.families import FAMILIES
from bothways.text.tokenizer import Encoding, Tokenizer


class Model(nn.Module):
    """`model.encoder` gives states; `model.masked` and `model.logits` turn them into answers."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer | None = None) -> None:
        """Weights are not set: `Model.new` draws them, `checkpoint.load` reads them."""
        super().__init__()
        if tokenizer is not None and tokenizer.size > config.encoder.vocab_size:
            raise BothwaysError(
                f"the tokenizer has {tokenizer.size} pieces and the model only {config.encoder.vocab_size} "
                f"token rows: they do not belong together"
            )
        self.config = config
        self.tokenizer = tokenizer
        self.encoder = Encoder(config.encoder)
        known = FAMILIES[config.family].heads
        for name in config.heads:
            if name not in known:
                raise BothwaysError(f"{config.family} has no head {name!r}: it has {', '.join(known)}")
            if known[name].has_labels and not config.labels:
                raise BothwaysError(f"the head {name!r} needs the names of its labels")
            for need in known[name].needs:
                if need not in config.heads:
                    raise BothwaysError(f"the head {name!r} needs the head {need!r} beside it")
        self.heads = nn.ModuleDict({name: known[name].build(config) for name in config.heads})

    @classmethod
    def new(cls, config: ModelConfig, tokenizer: Tokenizer | None = None, *, seed: int = 0) -> "Model":
        """A model with fresh random weights: the same seed gives the same ones."""
        with torch.device("meta"):  # the layers' own draws would cost time and the global generator's state
            model = cls(config, tokenizer)
        model.to_empty(device="cpu")
        initialise(model, config.encoder.init_std, torch.Generator().manual_seed(seed))
        return model

    def with_head(self, name: str, labels: Sequence[str] = (), *, keep: Sequence[str] = (), seed: int = 0) -> "Model":
        """This model's encoder with one more, freshly drawn head; the weights of the rest are shared.

        A head whose tensors a folder would call by the same names gives way to it, unless it is one to `keep`.
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
        return model.train(self.training)

    def with_layers(self, taken: int | Sequence[int]) -> "Model":
        """A model of some of this one's layers, counted from 1, or of so many, evenly spread from the first to the last
        (of twelve, six: 1, 3, 5, 8, 10, 12, DistilBERT's choice). Weights are shared."""
        shape = self.config.encoder
        if isinstance(taken, int) and not 0 < taken <= shape.layers:
            raise BothwaysError(f"{taken} layers cannot be taken of a model that has {shape.layers}")
        numbers = spread(shape.layers, taken) if isinstance(taken, int) else list(taken)
        if not numbers or sorted(set(numbers)) != numbers or not 1 <= numbers[0] <= numbers[-1] <= shape.layers:
            raise BothwaysError(f"some of the layers 1 to {shape.layers}, in this order, can be taken, not {numbers}")
        if numbers[0] > 1 and shape.norm_first:
            raise BothwaysError(f"the first layer of {self.config.family} must be kept: it alone reads embeddings")
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
        return model.train(self.training)

    def require_tokenizer(self) -> Tokenizer:
        """Its tokenizer; an error if its folder had none."""
        if self.tokenizer is None:
            raise BothwaysError("this model has no tokenizer: put its tokenizer.json or vocab.txt into the folder")
        return self.tokenizer

    @property
    def device(self) -> torch.device:
        return self.encoder.embeddings.tokens.weight.device

    def batch(self, encodings: Sequence[Encoding]) -> Batch:
        """Encodings as one batch on the model's device, refused if this model cannot read them."""
        limit, vocabulary, segments = (
            self.config.encoder.max_length,
            self.config.encoder.vocab_size,
            self.config.encoder.segments,
        )
        for i, encoding in enumerate(encodings, 1):
            if len(encoding) > limit:
                raise BothwaysError(f"text {i} has {len(encoding)} tokens and this model reads {limit}")
        ids = [encoding.ids for encoding in encodings]
        kinds = [encoding.segments for encoding in encodings]
        highest = max(max(row) for row in ids)
        if highest >= vocabulary:
            raise BothwaysError(f"the token id {highest} is out of range: this model has {vocabulary} token rows")
        if segments and max(max(row) for row in kinds) >= segments:
            raise BothwaysError(f"a pair of texts needs two segments, and this model has {segments}")
        return Batch.pack(ids, kinds).to(self.device)

    def summary(self, states: Tensor, batch: Batch) -> Tensor:
        """One vector for each sequence: its [CLS] state, through the pooler if there is one. (N, W) → (B, W)."""
        first = states[batch.first]
        return self.heads["pooler"](first) if "pooler" in self.heads else first

    def masked(self, asked: Tensor) -> Tensor:
        """Masked-word logits for the states at the asked places only: (M, W) → (M, V)."""
        logits: Tensor = self._head("masked")(asked, self.encoder.embeddings.tokens.weight)
        return logits

    def logits(self, head: str, states: Tensor, batch: Batch) -> Tensor:
        """A classifier's output: (B, outputs) for "next", "sequence", "choice", (N, outputs) for "token", "span"."""
        match FAMILIES[self.config.family].heads[head].reads_in(self.config):
            case "tokens":
                read = states
            case "tokens + first":
                read = states + states[batch.first][batch.owners]
            case "first":
                read = states[batch.first]
            case "mean":
                read = mean_of(states, batch)
            case "pooled":
                read = self.summary(states, batch)
        logits: Tensor = self._head(head)(read)
        return logits

    def _head(self, name: str) -> nn.Module:
        if name not in self.heads:
            has = ", ".join(self.heads) or "none"
            raise BothwaysError(f"this model has no {name!r} head (it has: {has})")
        return self.heads[name]


def spread(total: int, count: int) -> list[int]:
    """So many of the numbers from 1 to `total`, as evenly as can be, the first and the last among them."""
    if count < 2:
        return list(range(1, min(count, total) + 1))
    return [round(i * (total - 1) / (count - 1)) + 1 for i in range(count)]


def mean_of(states: Tensor, batch: Batch) -> Tensor:
    """The mean of each sequence's tokens: (N, W) → (B, W)."""
    sums = states.new_zeros(batch.size, states.shape[1], dtype=torch.float32)
    sums = sums.index_add(0, batch.owners, states.float())
    return (sums / batch.lengths.clamp(min=1)[:, None]).to(states.dtype)
