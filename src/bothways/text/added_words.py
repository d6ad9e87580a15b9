"""Reads added tokens, which folders without a tokenizer.json keep apart from the vocabulary."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from bothways.errors import BothwaysError
from bothways.text.merges import read_pieces
from bothways.text.specials import ROLES, content_of


def read_added_words(backend: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any]) -> None:
    """Add the tokens of added_tokens.json and tokenizer_config.json to the tokenizer."""
    listed = settings.get("additional_special_tokens", [])
    if not isinstance(listed, list):
        raise BothwaysError(
            f"{folder}: additional_special_tokens must be a list, not {listed!r}",
            "bad-setting",
            "additional_special_tokens",
        )
    special = [content_of(token) for token in listed]
    added = _from_file(folder, special) | _from_settings(folder, settings)
    for number, word in sorted(added.items()):
        known = backend.token_to_id(word.content)
        if number != (backend.get_vocab_size() if known is None else known):
            raise BothwaysError(
                f"{folder} adds {word.content!r} with the id {number}, which does not fit its vocabulary",
                "vocabulary-mismatch",
                (word.content, number),
            )
        _add(backend, word)
    names = {word.content for word in added.values()}
    for name in special:
        if name not in names:
            _add(backend, AddedToken(name, special=True, normalized=False))


def _from_file(folder: Path, special: list[str]) -> dict[int, AddedToken]:
    """The tokens of added_tokens.json, by id."""
    file = folder / "added_tokens.json"
    names = {*special, *(name for names in ROLES.values() for name in names)}
    found = read_pieces(file) if file.exists() else {}
    return {i: AddedToken(word, special=word in names, normalized=word not in names) for word, i in found.items()}


def _from_settings(folder: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens of tokenizer_config.json with their flags, by id."""
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    try:
        return {
            int(number): AddedToken(token["content"], **{flag: token[flag] for flag in flags if flag in token})
            for number, token in settings.get("added_tokens_decoder", {}).items()
        }
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise BothwaysError(
            f"{folder}: added_tokens_decoder must map ids to tokens", "bad-setting", "added_tokens_decoder"
        ) from error


def _add(backend: tokenizers.Tokenizer, word: AddedToken) -> None:
    if word.special:
        backend.add_special_tokens([word])
    else:
        backend.add_tokens([word])
