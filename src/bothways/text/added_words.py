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
    special = _special(folder, settings)
    _place(backend, folder, _from_file(folder, special) | _from_settings(folder, settings), special)


def read_words_beside(
    backend: tokenizers.Tokenizer, folder: Path, settings: Mapping[str, Any], *, is_rebuilt: bool
) -> None:
    """Add the tokens of these files to those of a tokenizer.json; the flags of tokenizer_config.json replace its own.

    `is_rebuilt`: whether transformers 5 drops those of tokenizer.json that tokenizer_config.json does not list.
    """
    special, listed = _special(folder, settings), _from_settings(folder, settings)
    own = backend.get_added_tokens_decoder()
    if listed and is_rebuilt:
        roles = (content_of(settings[role]) for role in ROLES if role in settings)
        names = {*special, *roles, *(word.content for word in listed.values())}
        for word in own.values():
            if word.content not in names:
                says = f"{folder}: tokenizer.json adds {word.content!r}, which added_tokens_decoder does not list"
                raise BothwaysError(says, "contradicting-settings", ("added_tokens_decoder", None, word.content))
    told = listed or {i: word for i, word in _from_file(folder, special).items() if i not in own}
    known = [word.content for word in own.values()]
    changed = {i: word for i, word in told.items() if repr(own.get(i)) != repr(word)}
    _place(backend, folder, changed, [name for name in special if name not in known])
    _add_roles(backend, settings, is_rebuilt)


def _add_roles(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], is_rebuilt: bool) -> None:
    """Make the pieces with a role special tokens, as transformers does with those that a folder or a class names."""
    known = {word.content for word in backend.get_added_tokens_decoder().values()}
    for role in (*ROLES, "bos_token", "eos_token"):
        usual = ROLES.get(role, ()) if is_rebuilt and known.isdisjoint(ROLES.get(role, ())) else ()
        names = (content_of(settings[role]),) if role in settings else usual
        found = [name for name in names if backend.token_to_id(name) is not None and name not in known]
        if found:
            backend.add_special_tokens([AddedToken(found[0], special=True, normalized=False)])


def _special(folder: Path, settings: Mapping[str, Any]) -> list[str]:
    """The special tokens without a role; newer files have them under another name, and there may name them."""
    key = "additional_special_tokens"
    listed = settings.get(key) or settings.get("extra_special_tokens", [])
    if isinstance(listed, dict):
        listed = list(listed.values())
    if not isinstance(listed, list):
        raise BothwaysError(f"{folder}: {key} should be a list, not {listed!r}", "bad-setting", key)
    return [content_of(token) for token in listed]


def _place(backend: tokenizers.Tokenizer, folder: Path, added: dict[int, AddedToken], special: list[str]) -> None:
    """Add these tokens at their ids, then the special ones among these names that are not there yet."""
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
