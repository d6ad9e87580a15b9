"""Text to token ids and back to characters, over the `tokenizers` library.

A `Tokenizer` is whatever a model folder carries: WordPiece from `vocab.txt`, or any `tokenizer.json`
(WordPiece, BPE, Unigram). It never truncates unless told to, and then says by how much.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import AddedToken
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bothways.errors import BothwaysError, require_choice
from bothways.text.added_words import read_added_words
from bothways.text.files import mended
from bothways.text.merges import read_merges
from bothways.text.sentencepiece import SENTENCEPIECE, read_sentencepiece
from bothways.text.specials import ROLES, bert_template, content_of, switch

Long = Literal["error", "cut"]
Text = str | tuple[str, str]

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
"""What `Tokenizer.save` writes."""
READ = ("tokenizer.json", "vocab.txt", "merges.txt", *SENTENCEPIECE)
"""What `Tokenizer.load` looks for in a folder, the best first; beside merges.txt is a vocab.json."""

BERT_SPECIALS = tuple(names[0] for names in ROLES.values())

_KEPT = ("tokenizer_class", "model_input_names")
"""What tokenizer_config.json may say to other readers, and means nothing here."""


@dataclass(frozen=True)
class Encoding:
    """One text, or one pair of texts, as the model reads it. All lists have one entry per token."""

    raw: tokenizers.Encoding
    cut: int = 0
    """How many tokens were dropped to fit; 0 unless `long="cut"` was asked for."""

    def __len__(self) -> int:
        return len(self.raw)

    @property
    def ids(self) -> list[int]:
        return self.raw.ids

    @property
    def segments(self) -> list[int]:
        return self.raw.type_ids

    @property
    def pieces(self) -> list[str]:
        # The library shows a mask that takes the space before it with that space, which no piece has.
        return [piece.strip(" ") or piece for piece in self.raw.tokens]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token stands in its own original text: text[start:end]. (0, 0) for specials."""
        return self.raw.offsets

    @property
    def words(self) -> list[int | None]:
        """The number of the word that each token is a piece of, counted in its own text; None for specials."""
        return self.raw.word_ids

    @property
    def sources(self) -> list[int | None]:
        """0 for the first text, 1 for the second, None for the specials around them."""
        return self.raw.sequence_ids


class Tokenizer:
    """Encodes texts and pairs: `Tokenizer.load("folder")("Hello, world.").ids`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: dict[str, str] | None = None,
        said: Mapping[str, Any] | None = None,
    ) -> None:
        """`said` is what tokenizer_config.json tells other readers, such as `tokenizer_class`: it is written back."""
        # A tokenizer.json may carry a truncation and a padding that its last user had set: both would
        # change texts behind our user's back (all-MiniLM-L6-v2 cuts at 128).
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.said = {key: value for key, value in (said or {}).items() if key in _KEPT}
        self.roles = {}
        for role, usual in ROLES.items():
            names = [roles[role]] if roles and role in roles else usual
            known = [name for name in names if backend.token_to_id(name) is not None]
            if known:
                self.roles[role] = known[0]

    # ------------------------------------------------------------------ making and storing

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """From a model folder, or one of the files that `READ` names."""
        path = Path(path)
        if path.is_dir():
            for name in READ:
                if (path / name).exists():
                    return cls.load(path / name)
            raise BothwaysError(f"{path} has no tokenizer: expected one of {', '.join(READ)} in it")
        if not path.exists():
            raise BothwaysError(f"there is no tokenizer file {path}")
        settings = _read_settings(path.parent)
        roles = {role: content_of(settings[role]) for role in ROLES if settings.get(role)}
        if path.name in ("merges.txt", "vocab.json"):
            backend = read_merges(path.parent, settings)
        elif path.suffix == ".model":
            backend = read_sentencepiece(path, settings)
        elif path.suffix == ".txt":
            backend = _from_vocabulary_file(path, settings)
        else:
            try:
                return cls(tokenizers.Tokenizer.from_file(str(path)), roles, settings)
            except Exception as error:  # the Rust library raises bare Exception for whatever is wrong with the file
                raise BothwaysError(f"{path} cannot be read as a tokenizer: {error}") from error
        read_added_words(backend, path.parent, settings)
        return cls(backend, roles, settings)

    def with_backend(self, backend: tokenizers.Tokenizer) -> "Tokenizer":
        """The same in all but how texts are cut."""
        return Tokenizer(backend, self.roles, self.said)

    @classmethod
    def from_pieces(
        cls, pieces: Sequence[str], *, lower: bool = True, strip_accents: bool | None = None, split_cjk: bool = True
    ) -> "Tokenizer":
        """BERT's WordPiece over `pieces`, whose ids are their places. Accents follow `lower` unless said."""
        vocabulary = {piece: i for i, piece in enumerate(pieces)}
        for special in ("[UNK]", "[CLS]", "[SEP]"):
            if special not in vocabulary:
                raise BothwaysError(f"the vocabulary has no {special} piece, which every BERT needs")
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

        `limit` is the longest input of the model they belong to, and `segments` how many kinds it tells apart: other
        readers then give it what it can take.
        """
        (folder / "tokenizer.json").write_text(self.backend.to_str(pretty=True), encoding="utf-8")
        settings: dict[str, Any] = dict(self.roles)
        if limit is not None:
            settings["model_max_length"] = limit
        if segments < 2:
            settings["model_input_names"] = ["input_ids", "attention_mask"]
        if self.kind == "WordPiece":
            settings |= {"tokenizer_class": "BertTokenizer"} | self.switches | self.said
            # Words that were added are matched before the text is cut: in vocab.txt they would change other words.
            last = max(*self.backend.get_vocab(with_added_tokens=False).values(), *self.special_ids)
            lines = "".join(f"{piece}\n" for piece in self.pieces[: last + 1])
            (folder / "vocab.txt").write_text(lines, encoding="utf-8")
        else:  # a family's own class would make of it what that family usually has
            settings |= {"tokenizer_class": "PreTrainedTokenizerFast"} | self.said
        _write_json(folder / "tokenizer_config.json", settings)
        _write_json(folder / "special_tokens_map.json", self.roles)

    # ------------------------------------------------------------------ encoding

    def __call__(
        self, text: str, pair: str | None = None, *, limit: int | None = None, long: Long = "error"
    ) -> Encoding:
        """Encode one text or pair.

        >>> from bothways.text.tokenizer import Tokenizer
        >>> letters = Tokenizer.from_pieces(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"])
        >>> letters("ab", "a").pieces
        ['[CLS]', 'a', '##b', '[SEP]', 'a', '[SEP]']
        """
        return self.batch([text if pair is None else (text, pair)], limit=limit, long=long)[0]

    def batch(self, texts: Sequence[Text], *, limit: int | None = None, long: Long = "error") -> list[Encoding]:
        """Encode many texts or pairs at once, on all cores.

        Texts longer than `limit` tokens are an error, or with `long="cut"` are shortened as BERT
        does (from the longer of a pair, at its end), each result's `cut` saying by how many tokens.
        """
        require_choice("long", long, get_args(Long))
        encodings = [Encoding(raw) for raw in self._encode(texts, specials=True)]
        if limit is None:
            return encodings
        for i, encoding in enumerate(encodings):
            if len(encoding) <= limit:
                continue
            if long == "error":
                raise BothwaysError(
                    f"text {i + 1} has {len(encoding)} tokens and this model reads {limit}: "
                    f"{len(encoding) - limit} too many"
                )
            encodings[i] = self._cut(texts[i], limit)
        return encodings

    def _encode(self, texts: Sequence[Text], *, specials: bool) -> list[tokenizers.Encoding]:
        try:
            return self.backend.encode_batch(list(texts), add_special_tokens=specials)
        except (TypeError, UnicodeEncodeError):
            # Half of a surrogate pair is a Python string but not Unicode text; one character for one keeps offsets.
            return self.backend.encode_batch([_whole(text) for text in texts], add_special_tokens=specials)

    def _cut(self, text: Text, limit: int) -> Encoding:
        parts = self._encode([text] if isinstance(text, str) else list(text), specials=False)
        room = limit - self.specials_around(len(parts))
        if room < len(parts):
            raise BothwaysError(f"a limit of {limit} tokens leaves no room for text beside the special tokens")
        lengths = [len(part) for part in parts]
        while sum(lengths) > room:  # the longer of the two loses its last token; at a tie the second
            longest = 0 if len(lengths) == 1 or lengths[0] > lengths[1] else 1
            lengths[longest] -= 1
        cut = sum(map(len, parts)) - room
        for part, length in zip(parts, lengths, strict=True):
            part.truncate(length)
        return Encoding(self.backend.post_process(parts[0], parts[1] if len(parts) == 2 else None), cut)

    # ------------------------------------------------------------------ facts

    def specials_around(self, texts: int) -> int:
        """How many special tokens are put around one text, or around two."""
        return self.backend.num_special_tokens_to_add(texts == 2)

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
        """Every piece, by id. An id that no piece has (files with gaps exist) shows as an unused one."""
        found = {i: piece for piece, i in self.backend.get_vocab(with_added_tokens=True).items()}
        return [found.get(i, f"[unused-id-{i}]") for i in range(max(found) + 1)]

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that are markers rather than text."""
        added = self.backend.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special) | {
            self.id(name) for name in self.roles.values()
        }

    @cached_property
    def wordless_ids(self) -> frozenset[int]:
        """The specials and the spare [unused] rows: never an answer, never drawn as a random word."""
        spare = (i for i, piece in enumerate(self.pieces) if piece.startswith("[unused") and piece.endswith("]"))
        return self.special_ids | frozenset(spare)

    @cached_property
    def rest_ids(self) -> frozenset[int]:
        """The pieces that go on with a word, where they are marked: WordPiece's ##ing."""
        marked = enumerate(self.pieces) if self.kind == "WordPiece" else ()
        return frozenset(i for i, piece in marked if piece.startswith("##"))

    @property
    def mask(self) -> str | None:
        """The mask token as it is written in a text, or None if this tokenizer has none."""
        return self.roles.get("mask_token")

    @cached_property
    def mask_takes_space(self) -> bool:
        """Whether the white space before a mask is read as a part of it, as RoBERTa's is."""
        added = self.backend.get_added_tokens_decoder().values()
        return any(token.lstrip for token in added if token.content == self.mask)

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits that differ whenever any text could be encoded differently."""
        # Unigram's scores change in their last digit when they are written and read again.
        told = json.loads(self.backend.to_str(), parse_float=lambda number: f"{float(number):.9g}")
        canonical = json.dumps(told, sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def id(self, piece: str) -> int:
        """The id of a piece that must exist."""
        found = self.backend.token_to_id(piece)
        if found is None:
            raise BothwaysError(f"the vocabulary has no piece {piece!r}")
        return found

    def piece(self, id: int) -> str:
        """The piece with this id."""
        found = self.backend.id_to_token(id) if id >= 0 else None
        if found is None:
            raise BothwaysError(f"no piece has the id {id}: this vocabulary has {self.size}")
        return self.pieces[id]  # the library would give an added word as its normaliser leaves it

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, without specials."""
        return self.backend.decode(list(ids))

    @property
    def switches(self) -> dict[str, Any]:
        """BERT's three switches under the names that tokenizer_config.json uses; empty for any other kind."""
        normalizer = self.backend.normalizer
        if not isinstance(normalizer, BertNormalizer):
            return {}
        return {
            "do_lower_case": normalizer.lowercase,
            "strip_accents": normalizer.strip_accents,
            "tokenize_chinese_chars": normalizer.handle_chinese_chars,
        }


def _from_vocabulary_file(path: Path, settings: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        pieces = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BothwaysError(f"{path} cannot be read as a vocabulary: {error}") from error
    pieces = [piece.rstrip("\r") for piece in pieces]
    if pieces and not pieces[-1]:
        pieces.pop()
    # Without a setting the pieces themselves tell: a tokenizer that lower-cases could never use "The" or "##ING".
    lower = switch(settings, "do_lower_case", not any(_has_capital(piece) for piece in pieces), path.parent)
    tokenizer = Tokenizer.from_pieces(
        pieces,
        lower=lower,
        strip_accents=switch(settings, "strip_accents", lower, path.parent) if "strip_accents" in settings else None,
        split_cjk=switch(settings, "tokenize_chinese_chars", True, path.parent),
    )
    return tokenizer.backend


def _has_capital(piece: str) -> bool:
    is_special = piece.startswith("[") and piece.endswith("]")
    return not is_special and any("A" <= letter <= "Z" for letter in piece)


def _read_settings(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json over special_tokens_map.json; what neither says is left out."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        file = folder / name
        if not file.exists():
            continue
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise BothwaysError(f"{file} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise BothwaysError(f"{file} should hold a JSON object")
        settings |= {key: value for key, value in found.items() if value is not None}
    return settings


def _whole(text: Text) -> Text:
    if isinstance(text, tuple):
        first, second = text
        return mended(first), mended(second)
    return mended(text)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
