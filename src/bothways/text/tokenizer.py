"""Text to token ids and back, on top of the `tokenizers` library.

A `Tokenizer` reads what a model folder has: `vocab.txt` (WordPiece), any `tokenizer.json` (WordPiece, BPE, Unigram),
and older files. It truncates only on request, and then reports by how many tokens.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import AddedToken, decoders, normalizers
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel

from bothways.errors import BothwaysError, require_choice
from bothways.json_files import require_plain_files
from bothways.text.added_words import read_added_words
from bothways.text.encode_batch import BatchEncoder
from bothways.text.encoding import Encoding as Encoding
from bothways.text.encoding import TextInput as TextInput
from bothways.text.merges import read_merges, read_text
from bothways.text.scripts import known_scripts
from bothways.text.sentencepiece import SENTENCEPIECE, read_sentencepiece
from bothways.text.settings import fitting_class, read_class, read_settings
from bothways.text.specials import ROLES, bert_template, content_of, switch
from bothways.text.tokenizer_json import read_tokenizer_json
from bothways.text.word_cache import WordCache

Truncation = Literal["error", "cut"]

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
"""The files that `Tokenizer.save` writes."""
READ = ("tokenizer.json", "vocab.txt", "merges.txt", *SENTENCEPIECE)
"""The files that `Tokenizer.load` looks for, the best first; merges.txt comes with a vocab.json."""

BERT_SPECIALS = tuple(names[0] for names in ROLES.values())

_MOST_IDS = 2**24
"""A larger id is a mistake: every id below it takes memory."""
READS_SCRIPTS = "reads_scripts"
"""In tokenizer_config.json: writing systems that a model reads, though its vocabulary has few words of them."""
_EXTRA_SETTINGS = ("tokenizer_class", "model_input_names", READS_SCRIPTS)
"""Settings of tokenizer_config.json that are kept as they are: all but the last are for other libraries."""


class Tokenizer:
    """Encodes texts and pairs: `Tokenizer.load("folder")("Hello, world.").ids`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: dict[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """`settings` are those of tokenizer_config.json: `save` writes back those for other libraries."""
        # A tokenizer.json may hold the truncation and padding that its last user set: both would change inputs
        # silently (all-MiniLM-L6-v2 truncates at 128).
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        """Not to be changed: `with_backend` makes a tokenizer with another one."""
        self.extra_settings = {key: value for key, value in (settings or {}).items() if key in _EXTRA_SETTINGS}
        self.roles = {}
        for role, usual in ROLES.items():
            names = [roles[role]] if roles and role in roles else usual
            known = [name for name in names if backend.token_to_id(name) is not None]
            if known:
                self.roles[role] = known[0]

    # ------------------------------------------------------------------ loading and saving

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Load from a model folder, or from one of the files in `READ`."""
        path = Path(path)
        if path.is_dir():
            require_plain_files(path)
            for name in READ:
                if (path / name).exists():
                    return cls.load(path / name)
            raise BothwaysError(
                f"{path} has no tokenizer: expected one of {', '.join(READ)} in it", "no-tokenizer", path
            )
        if not path.exists():
            raise BothwaysError(f"there is no tokenizer file {path}", "no-file", path)
        folder, settings = path.parent, read_settings(path.parent)
        roles = {role: content_of(settings[role]) for role in ROLES if settings.get(role)}
        if path.name in ("merges.txt", "vocab.json"):
            read_class(settings, folder, path.name)
            backend = read_merges(folder, settings)
        elif path.suffix == ".model":
            read_class(settings, folder, path.name)
            backend = read_sentencepiece(path, settings)
        elif path.suffix == ".txt":
            read_class(settings, folder, "vocab.txt")
            backend = _from_vocabulary_file(path, settings)
        else:
            return cls(read_tokenizer_json(path, settings), roles, settings)
        read_added_words(backend, folder, settings)
        return cls(backend, roles, settings)

    def with_backend(self, backend: tokenizers.Tokenizer) -> "Tokenizer":
        """A copy with another backend, and the same special tokens and settings."""
        return Tokenizer(backend, self.roles, self.extra_settings)

    def with_special(self, pieces: Iterable[str]) -> "Tokenizer":
        """This tokenizer, with some of its pieces as special tokens: a text is split at them before anything else."""
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in pieces])
        return self.with_backend(backend)

    def lower_cased(self) -> "Tokenizer":
        """This tokenizer, with its texts lower-cased first."""
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        before: Any = backend.normalizer
        parts: list[Any] = [before] if before else []
        if type(before) is normalizers.Sequence:
            parts = list(before)  # type: ignore[call-overload]  # it is iterable, and its type does not say so
        if not any(isinstance(part, normalizers.Lowercase) for part in parts):
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *parts])
        return self.with_backend(backend)

    @classmethod
    def from_pieces(
        cls, pieces: Sequence[str], *, lower: bool = True, strip_accents: bool | None = None, split_cjk: bool = True
    ) -> "Tokenizer":
        """BERT's WordPiece with these pieces, whose ids are their positions. `strip_accents` defaults to `lower`."""
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        for special in ("[UNK]", "[CLS]", "[SEP]"):
            if special not in vocabulary:
                raise BothwaysError(f"the vocabulary has no {special} piece, which BERT needs", "no-piece", special)
        backend = tokenizers.Tokenizer(WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
        backend.normalizer = BertNormalizer(
            clean_text=True, handle_chinese_chars=split_cjk, strip_accents=strip_accents, lowercase=lower
        )
        backend.pre_tokenizer = BertPreTokenizer()
        backend.post_processor = bert_template(vocabulary["[CLS]"], vocabulary["[SEP]"])
        backend.decoder = WordPieceDecoder(prefix="##")
        backend.add_special_tokens([AddedToken(s, special=True) for s in BERT_SPECIALS if s in vocabulary])
        return cls(backend)

    def save(self, folder: Path, limit: int | None = None, segments: int = 2) -> None:
        """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json, and vocab.txt for WordPiece.

        `limit` is the maximum length of the model, and `segments` its number of segments: other libraries then prepare
        inputs that fit.
        """
        (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
        settings: dict[str, Any] = dict(self.roles)
        if limit is not None:
            settings["model_max_length"] = limit
        if segments < 2:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        settings |= self.switches | self.extra_settings
        if isinstance(self.backend.pre_tokenizer, ByteLevel):
            settings["add_prefix_space"] = self.backend.pre_tokenizer.add_prefix_space
        usual = "BertTokenizer" if self.kind == "WordPiece" else ""
        settings["tokenizer_class"] = fitting_class(self.backend, settings, settings.get("tokenizer_class", usual))
        if self.kind == "WordPiece":
            # Added tokens are matched before the text is split: in vocab.txt they would change other words.
            last = max(*self.backend.get_vocab(with_added_tokens=False).values(), *self.special_ids)
            lines = "".join(f"{piece}\n" for piece in self.pieces[: last + 1])
            (folder / "vocab.txt").write_text(lines, encoding="utf-8")
        _write_json(folder / "tokenizer_config.json", settings)
        _write_json(folder / "special_tokens_map.json", self.roles)

    # ------------------------------------------------------------------ encoding

    def __call__(
        self, text: str, pair: str | None = None, *, limit: int | None = None, long: Truncation = "error"
    ) -> Encoding:
        """Encode one text or pair.

        >>> from bothways.text.tokenizer import Tokenizer
        >>> letters = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"])
        >>> letters("ab", "a").pieces
        ['[CLS]', 'a', '##b', '[SEP]', 'a', '[SEP]']
        """
        return self.batch([text if pair is None else (text, pair)], limit=limit, long=long)[0]

    def batch(
        self,
        texts: Sequence[TextInput],
        *,
        limit: int | None = None,
        long: Truncation = "error",
        has_offsets: bool = True,
    ) -> list[Encoding]:
        """Encode many texts or pairs at once, on all cores. Without offsets (and words) it is faster by a half.

        Texts longer than `limit` tokens are an error. With `long="cut"` they are truncated as BERT does, at the end of
        the longer text of a pair, and `cut` of each result is the number of tokens cut off.
        """
        require_choice("long", long, get_args(Truncation))
        encodings = list(map(Encoding, self.raw_batch(texts, has_offsets=has_offsets)))
        if limit is None:
            return encodings
        too_long = [i for i, encoding in enumerate(encodings) if len(encoding) > limit]
        if too_long and long == "error":
            length = len(encodings[too_long[0]])
            says = f"text {too_long[0] + 1} has {length} tokens and this model reads {limit}: {length - limit} too many"
            raise BothwaysError(says, "too-long", (length, limit))
        for i, encoding in zip(too_long, self.cut([texts[i] for i in too_long], limit), strict=True):
            encodings[i] = encoding
        return encodings

    def raw_batch(
        self, texts: Sequence[TextInput], *, specials: bool = True, has_offsets: bool = True
    ) -> list[tokenizers.Encoding]:
        """As `batch`, in the objects of the `tokenizers` library."""
        return self._encode(texts, specials, has_offsets)

    @cached_property
    def words(self) -> WordCache | None:
        """The ids of words that were read before; None if this is not BERT's WordPiece."""
        return WordCache.of(self.backend)

    @cached_property
    def _encode(self) -> BatchEncoder:
        return BatchEncoder(self.backend)

    def cut(self, texts: Sequence[TextInput], limit: int, *, has_offsets: bool = True) -> list[Encoding]:
        """Encode texts or pairs that have more than `limit` tokens, truncated as by `batch`."""
        flat = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
        parts = iter(self.raw_batch(flat, specials=False, has_offsets=has_offsets))
        return [self._cut([next(parts) for _ in range(1 if isinstance(text, str) else 2)], limit) for text in texts]

    def _cut(self, parts: list[tokenizers.Encoding], limit: int) -> Encoding:
        room = limit - self.specials_around(len(parts))
        cut = sum(map(len, parts)) - room
        for part, length in zip(parts, kept_lengths(list(map(len, parts)), room, limit), strict=True):
            part.truncate(length)
        return Encoding(self.backend.post_process(parts[0], parts[1] if len(parts) == 2 else None), cut)

    # ------------------------------------------------------------------ facts

    def specials_around(self, texts: int) -> int:
        """The number of special tokens around one text, or around two."""
        return self.backend.num_special_tokens_to_add(texts == 2)

    @cached_property
    def around(self) -> tuple[int, int]:
        """The number of special tokens before a text, and after it."""
        sources = self("a").sources
        inside = [place for place, source in enumerate(sources) if source is not None]
        return inside[0], len(sources) - 1 - inside[-1]

    @property
    def kind(self) -> str:
        """WordPiece, BPE, Unigram or WordLevel."""
        return type(self.backend.model).__name__

    @property
    def size(self) -> int:
        """One more than the largest id."""
        return len(self.pieces)

    @cached_property
    def pieces(self) -> list[str]:
        """Every piece, by id. An id without a piece (some files have gaps) is shown as an unused one."""
        found = {i: piece for piece, i in self.backend.get_vocab(with_added_tokens=True).items()}
        last = max(found, default=-1)
        if last >= _MOST_IDS:
            says = f"the tokenizer gives {found[last]!r} the id {last}: expected ids below {_MOST_IDS:,}"
            raise BothwaysError(says, "out-of-range", last)
        return [found.get(i, f"[unused-id-{i}]") for i in range(last + 1)]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special) | {
            self.id(name) for name in self.roles.values()
        }

    @cached_property
    def wordless_ids(self) -> frozenset[int]:
        """The ids of specials and [unused] pieces: never predicted, never drawn as a random token."""
        unused = (i for i, piece in enumerate(self.pieces) if piece.startswith("[unused") and piece.endswith("]"))
        return self.special_ids | frozenset(unused)

    @cached_property
    def rest_ids(self) -> frozenset[int]:
        """The ids of WordPiece's continuation pieces, such as ##ing; none for other kinds."""
        marked = enumerate(self.pieces) if self.kind == "WordPiece" else ()
        return frozenset(i for i, piece in marked if piece.startswith("##"))

    @cached_property
    def scripts(self) -> frozenset[str]:
        """The writing systems that the vocabulary has words of, and those that its model reads by their pieces."""
        pieces: Sequence[str] = self.pieces
        if isinstance(self.backend.decoder, decoders.ByteLevel):
            pieces = self.backend.decode_batch([[i] for i in range(self.size)], skip_special_tokens=False)
        return known_scripts(pieces) | frozenset(self.extra_settings.get(READS_SCRIPTS, ()))

    @property
    def mask(self) -> str | None:
        """The mask token, or None if this tokenizer has none."""
        return self.roles.get("mask_token")

    @cached_property
    def mask_takes_space(self) -> bool:
        """Whether the mask token includes the white space before it, as RoBERTa's does."""
        added = self.backend.get_added_tokens_decoder().values()
        return any(token.lstrip for token in added if token.content == self.mask)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that differ whenever any text could be encoded differently."""
        # Unigram's scores change in their last digit when they are saved and loaded.
        state = json.loads(self.backend.to_str(), parse_float=lambda number: f"{float(number):.9g}")
        canonical = json.dumps(state, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def id(self, piece: str) -> int:
        """The id of a piece; an error if the vocabulary does not have it."""
        found = self.backend.token_to_id(piece)
        if found is None:
            raise BothwaysError(f"the vocabulary has no piece {piece!r}", "no-piece", piece)
        return found

    def piece(self, id: int) -> str:
        """The piece with this id."""
        found = self.backend.id_to_token(id) if id >= 0 else None
        if found is None:
            raise BothwaysError(f"no piece has the id {id}: this vocabulary has {self.size}", "out-of-range", id)
        return self.pieces[id]  # the library would return an added token in its normalised form

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids, without special tokens."""
        return self.backend.decode(list(ids))

    @property
    def switches(self) -> dict[str, Any]:
        """BERT's three normaliser settings under their names in tokenizer_config.json; empty for other kinds."""
        normalizer = self.backend.normalizer
        if not isinstance(normalizer, BertNormalizer):
            return {}
        return {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }


def _from_vocabulary_file(path: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    pieces = [piece.rstrip("\r") for piece in read_text(path, "utf-8-sig").split("\n")]
    if pieces and not pieces[-1]:
        pieces.pop()
    if not switch(settings, "do_basic_tokenize", True, path.parent):
        # Versions of transformers differ: some then split at spaces only, some ignore it.
        says = f"{path.parent}: do_basic_tokenize is false, and only true can be read: convert it to a tokenizer.json"
        raise BothwaysError(says, "unsupported-setting", ("do_basic_tokenize", False))
    # Without a setting the pieces decide: a tokenizer that lower-cases could never use "The" or "##ING".
    lower = switch(settings, "do_lower_case", not any(_has_capital(piece) for piece in pieces), path.parent)
    tokenizer = Tokenizer.from_pieces(
        pieces,
        lower=lower,
        strip_accents=None
        if settings.get("strip_accents") is None
        else switch(settings, "strip_accents", lower, path.parent),
        split_cjk=switch(settings, "tokenize_chinese_chars", True, path.parent),
    )
    return tokenizer.backend


def kept_lengths(lengths: Sequence[int], room: int, limit: int) -> list[int]:
    """The lengths of one text or two if the longer loses its last token until all fit; at a tie the second loses it."""
    if room < len(lengths):
        raise BothwaysError(
            f"a limit of {limit} tokens leaves no room for text beside the special tokens", "out-of-range", limit
        )
    if len(lengths) == 1:
        return [room]
    half = room // 2
    if lengths[1] <= half:
        return [room - lengths[1], lengths[1]]
    return [lengths[0], room - lengths[0]] if lengths[0] <= room - half else [room - half, half]


def _has_capital(piece: str) -> bool:
    is_special = piece.startswith("[") and piece.endswith("]")
    return not is_special and any("A" <= letter <= "Z" for letter in piece)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
