"""Vectors of queries and documents: each role has its own prompt, and the model's folder says how vectors are compared.

N, M vectors · W width
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.model.static import StaticModel
from bothways.predict.encode import Vectors, encode_blocks
from bothways.predict.encode_options import Long
from bothways.predict.features import Features, TextRecipe, text_recipe
from bothways.predict.source import Source

Role = Literal["query", "document"]
PROMPT_NAMES: dict[Role, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""The prompts of a folder that are for a role; the first that it has is taken."""


Similarity = Callable[[Tensor, Tensor], Tensor]
SIMILARITIES: dict[str, Similarity] = {
    "cosine": lambda first, second: F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T,
    "dot": lambda first, second: first @ second.T,
    # Without matrix products, whose rounding errors depend on the number of vectors.
    "euclidean": lambda first, second: -torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist"),
    "manhattan": lambda first, second: -torch.cdist(first, second, p=1.0),
}
"""All pairs, by the names of sentence-transformers: larger is more similar. (N, W), (M, W) → (N, M)."""
PAIRWISE: dict[str, Similarity] = {
    "cosine": lambda first, second: F.cosine_similarity(first, second, dim=-1),
    "dot": lambda first, second: (first * second).sum(-1),
    "euclidean": lambda first, second: -(first - second).norm(dim=-1),
    "manhattan": lambda first, second: -(first - second).abs().sum(-1),
}
"""The same of vectors in the same place. (N, W) twice → (N,)."""


def similarity_of(source: Source) -> str:
    """What the model's folder compares vectors by; cosine if it says nothing."""
    sentence = None if isinstance(source, StaticModel) else source.model.sentence
    named = (sentence.settings.get("similarity_fn_name") if sentence is not None else "") or "cosine"
    if named not in SIMILARITIES:
        raise BothwaysError(
            f"the model's folder compares vectors by {named!r}: expected {', '.join(SIMILARITIES)}",
            "unsupported-setting",
            named,
        )
    return str(named)


class RoleEncoder:
    """Encodes texts with the prompt of their role.

    Without a prompt given here, a query gets the folder's prompt "query" and a document its prompt "document",
    "passage" or "corpus", if it has one. Texts without a role get the folder's default prompt. Static models have no
    prompts.
    """

    def __init__(
        self,
        source: Source,
        *,
        prompt: str | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        long: Long = "cut",
    ) -> None:
        self.source, self.tally, self._features = source, Tally(), Features(long=long)
        self._given: dict[Role | None, str | None] = {None: prompt, "query": query_prompt, "document": document_prompt}
        self.prompts: dict[str, str] = {}
        if isinstance(source, StaticModel):
            if any(self._given.values()):
                raise BothwaysError("a static model takes no prompts", "bad-combination")
            self.device, self.width = torch.device("cpu"), source.width
        else:
            if source.model.sentence is not None:
                self.prompts = source.model.sentence.prompts
            # Modules that are not supported are an error before any work.
            self.device, self.width = (
                torch.device(str(source.device)),
                self._recipe(source).width(source.model.config.encoder),
            )
        self.similarity_name = similarity_of(source)

    def prompt(self, role: Role | None = None) -> str | None:
        """What is put before a text of this role; None: the folder's default prompt, if it has one."""
        if role is None or self.is_given(role):
            return self._given[role]
        # As in sentence-transformers, the default prompt is not for queries and documents.
        return next((self.prompts[name] for name in PROMPT_NAMES[role] if name in self.prompts), "")

    def is_given(self, role: Role | None) -> bool:
        """Whether the caller gave a prompt for this role."""
        return self._given[role] is not None

    @property
    def num_parameters(self) -> int:
        if isinstance(self.source, StaticModel):
            return self.source.table.numel()
        return sum(parameter.numel() for parameter in self.source.weights("the number of parameters").parameters())

    def max_length(self, role: Role | None = None) -> int:
        """Tokens of the longest text, its prompt included; 0: there is no limit."""
        if isinstance(self.source, StaticModel):
            return 0
        return self._recipe(self.source, role).max_length or self.source.model.config.encoder.max_length

    def _recipe(self, engine: Engine, role: Role | None = None, prompt: str | None = None) -> TextRecipe:
        return text_recipe(engine.model, self._features, prompt=self.prompt(role) if prompt is None else prompt)

    def blocks(
        self, texts: Iterable[str], role: Role | None = None, prompt: str | None = None, tally: Tally | None = None
    ) -> Iterator[Vectors]:
        """The vectors as a stream: those of some texts at a time.

        `prompt`: another one than that of the role. Counts are added to `tally`, by default to that of this object.
        """
        if isinstance(self.source, StaticModel):
            return self.source.blocks(texts)
        tally = self.tally if tally is None else tally
        return encode_blocks(texts, self.source, self._recipe(self.source, role, prompt), tally)

    def encode(
        self, texts: Iterable[str], role: Role | None = None, prompt: str | None = None, tally: Tally | None = None
    ) -> Vectors:
        """One vector for each text. (texts, W)."""
        return np.concatenate([np.zeros((0, self.width), np.float32), *self.blocks(texts, role, prompt, tally)])

    def similarity(self, first: Tensor, second: Tensor) -> Tensor:
        """All similarities, by the folder's function or by cosine. (N, W), (M, W) → (N, M)."""
        return SIMILARITIES[self.similarity_name](first, second)

    def similarity_pairwise(self, first: Tensor, second: Tensor) -> Tensor:
        """The similarity of vectors in the same place. (N, W) twice → (N,)."""
        return PAIRWISE[self.similarity_name](first, second)
