"""Lets `mteb` drive a model: an object with the methods that its EncoderProtocol asks for.

mteb itself is imported only where it asks for its own type of metadata.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bothways.engine.reader import Tally
from bothways.errors import BothwaysError, missing_package
from bothways.model.device import Device, Precision
from bothways.predict.encode import Vectors, warn_of_losses
from bothways.predict.encode_options import Long
from bothways.predict.roles import Role, RoleEncoder
from bothways.predict.source import AnyModel, open_source


class MtebEncoder:
    """A model as `mteb.evaluate` takes it. It has no `predict`: mteb would take it for a cross-encoder."""

    def __init__(self, encoder: RoleEncoder, name: str, revision: str) -> None:
        self._encoder, self._name, self._revision = encoder, name, revision

    @property
    def tally(self) -> Tally:
        """The numbers of texts and tokens read so far, and cut."""
        return self._encoder.tally

    def encode(
        self,
        inputs: Iterable[Mapping[str, Sequence[str]]],
        *,
        task_metadata: Any = None,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: str | None = None,
        **_: Any,
    ) -> Vectors:
        """One vector for each text of the batches, in order.

        Among the folder's prompts, that of the task and role is taken, of the task, of its type and role, of its type,
        or of the role, in this order, as mteb chooses them. The batch size of mteb does not matter here.
        """
        texts = (text for batch in inputs for text in batch["text"])
        role, lost = _role(prompt_type), self.tally.cut
        found = self._encoder.encode(texts, role, self._prompt(task_metadata, role))
        if self.tally.cut > lost:
            warn_of_losses(self.tally)
        return found

    def similarity(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """All similarities. (N, W), (M, W) → (N, M)."""
        return self._encoder.similarity(_matrix(embeddings1), _matrix(embeddings2))

    def similarity_pairwise(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """The similarity of each vector with that in the same place. (N, W) twice → (N,)."""
        return self._encoder.similarity_pairwise(_matrix(embeddings1), _matrix(embeddings2))

    @property
    def mteb_model_meta(self) -> Any:
        """What mteb writes about the model into its results."""
        try:
            module = import_module("mteb.models.model_meta")
        except ImportError:
            raise missing_package("this", "mteb") from None
        about = {
            "name": self._name,
            "revision": self._revision,
            "n_parameters": self._encoder.num_parameters,
            "max_tokens": self._encoder.max_length() or None,
            "embed_dim": self._encoder.width,
            "framework": ["PyTorch"],
            "similarity_fn_name": module.ScoringFunction(self._encoder.similarity_name),
        }
        return module.ModelMeta.create_empty(overwrites=about)

    def _prompt(self, task: Any, role: Role | None) -> str | None:
        """The folder's prompt for a task of mteb; None: that of the role, or the default."""
        if self._encoder.is_given(role):
            return None
        known, names = self._encoder.prompts, []
        for part in (getattr(task, "name", None), getattr(task, "type", None)):
            names += [name for name in (role and f"{part}-{role}", part) if part and name]
        return next((known[name] for name in names if name in known), None)


def mteb_encoder(
    model: AnyModel = None,
    *,
    name: str | None = None,
    revision: str = "local",
    prompt: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    long: Long = "cut",
    device: Device | None = None,
    dtype: Precision | None = None,
) -> MtebEncoder:
    """A model for `mteb.evaluate(bothways.mteb_encoder("folder"), tasks)`. The default model is `sentence`.

    `name` and `revision` are those in mteb's results; the default is local/ and the name of the folder. For the rest
    see `evaluate_vectors`.
    """
    if name is None:
        name = f"local/{Path(model).resolve().name if isinstance(model, Path | str) else 'bothways'}"
    if name.count("/") != 1:
        raise BothwaysError(f"`name` is {name!r}: expected one such as owner/model", "bad-input", name)
    source = open_source(model, device=device, dtype=dtype)
    encoder = RoleEncoder(source, prompt=prompt, query_prompt=query_prompt, document_prompt=document_prompt, long=long)
    return MtebEncoder(encoder, name, revision)


def _role(prompt_type: str | None) -> Role | None:
    """mteb's role, a string or an enumeration of strings."""
    match getattr(prompt_type, "value", prompt_type):
        case None:
            return None
        case "query":
            return "query"
        case "document":
            return "document"
    raise BothwaysError(f"the role is {prompt_type!r}: expected query or document", "unknown-choice", prompt_type)


def _matrix(vectors: ArrayLike | Tensor) -> Tensor:
    found = vectors if isinstance(vectors, Tensor) else torch.from_numpy(np.asarray(vectors, np.float32))
    return found.float().reshape(-1, found.shape[-1])
