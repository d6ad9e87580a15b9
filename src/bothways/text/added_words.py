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
    key = "additional_special_tokens"
    listed = settings.get(key, [])
    if not isinstance(listed, list):
        raise BothwaysError(f"{folder}: {key} should be a list, not {listed!r}", "bad-setting", key)
    special = [content_of(token) for token in listed]
    added = _from_file(folder, special) | _from_settings(folder, settings)
    for number, word in sorted(added.items()):
        known = backend.token_to_id(word.content)
        if number != (backend.get_vocab_size() if known is None else known):
            says = f"{folder} adds {word.content!r} with the id {number}, which does not fit its vocabulary"
            raise BothwaysError(says, "vocabulary-mismatch", (word.content, number))
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
    key = "added_tokens_decoder"
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    try:
        return {
            int(number): AddedToken(token["content"], **{flag: token[flag] for flag in flags if flag in token})
            for number, token in settings.get(key, {}).items()
        }
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise BothwaysError(f"{folder}: {key} should map ids to tokens", "bad-setting", key) from error


def _add(backend: tokenizers.Tokenizer, word: AddedToken) -> None:
    if word.special:
        backend.add_special_tokens([word])
    else:
        backend.add_tokens([word])
