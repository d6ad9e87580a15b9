"""tokenizer_config.json beside a tokenizer.json: obeyed as transformers obeys it, or refused where the two contradict.

transformers opens a tokenizer.json as it is only for the classes `AS_IT_IS`. A class of a family puts the settings of
tokenizer_config.json, or else its own defaults, in place of what tokenizer.json says:

- A setting that versions 4 and 5 both put in its place is obeyed: the three switches of BERT's normaliser, and
  `add_prefix_space` of byte-level classes.
- A setting that only one of them obeys, or a default that differs from tokenizer.json, is refused: the folder does not
  say which of the two its model was trained with.
- So is a tokenizer.json with parts that the class does not have: version 4 keeps them, version 5 replaces them.

Two things follow tokenizer.json where version 5 does not, because published folders depend on them: how a SentencePiece
class splits words and maps characters, and the number of separators in the pairs of the first DeBERTa.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from tokenizers.models import BPE, Unigram, WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer, ByteLevel

from bothways.errors import BothwaysError
from bothways.json_files import read_json_file
from bothways.text.specials import ROLES, content_of, switch


@dataclass(frozen=True)
class TokenizerClass:
    """What a class of transformers has."""

    older: tuple[str, ...]
    """The files that it reads where there is no tokenizer.json."""
    model: type
    ends: tuple[tuple[str, str], tuple[str, str]] | None
    """The roles and usual names of the tokens before and after a text; None if tokenizer.json alone decides."""
    separators: tuple[int, ...] = (1,)
    """The number of separators between two texts."""
    switches: Mapping[str, bool] = field(default_factory=dict)
    """The settings that only version 5 obeys, with their defaults."""
    unspaced: str = "never"
    """The scheme of Metaspace without `add_prefix_space`."""


_BERT_ENDS = ("cls_token", "[CLS]"), ("sep_token", "[SEP]")
_ROBERTA_ENDS = ("cls_token", "<s>"), ("sep_token", "</s>")
_XLM_ENDS = ("bos_token", "<s>"), ("eos_token", "</s>")
_MERGES = ("merges.txt", "vocab.json")

_BERT = TokenizerClass(("vocab.txt",), WordPiece, _BERT_ENDS)
_ROBERTA = TokenizerClass(_MERGES, BPE, _ROBERTA_ENDS, (2,))
_XLM = TokenizerClass(("sentencepiece.bpe.model",), Unigram, _XLM_ENDS, (2,))

CLASSES: dict[str, TokenizerClass] = {
    "BertTokenizer": _BERT,
    "DistilBertTokenizer": _BERT,
    "ElectraTokenizer": _BERT,
    "MobileBertTokenizer": _BERT,
    "SqueezeBertTokenizer": _BERT,
    "LayoutLMTokenizer": _BERT,
    "LxmertTokenizer": _BERT,
    "MPNetTokenizer": TokenizerClass(("vocab.txt",), WordPiece, _ROBERTA_ENDS, (2,)),
    "RobertaTokenizer": _ROBERTA,
    "LongformerTokenizer": _ROBERTA,
    "BartTokenizer": _ROBERTA,
    "DebertaTokenizer": TokenizerClass(_MERGES, BPE, _BERT_ENDS, (1, 2)),
    "DebertaV2Tokenizer": TokenizerClass(
        ("spm.model",),
        Unigram,
        _BERT_ENDS,
        switches={"do_lower_case": False, "split_by_punct": False},
        unspaced="first",
    ),
    "AlbertTokenizer": TokenizerClass(
        ("spiece.model",), Unigram, None, switches={"do_lower_case": True, "keep_accents": False}
    ),
    "XLMRobertaTokenizer": _XLM,
    "CamembertTokenizer": _XLM,
}
"""The classes with settings of their own, without the suffix Fast. All others, such as BertJapaneseTokenizer (which
splits words with MeCab) and HerbertTokenizer, are refused: ids of another rule would be wrong without any sign."""

AS_IT_IS = frozenset({"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"})
"""The classes for any tokenizer.json, without the suffix Fast."""

_ANY = "PreTrainedTokenizerFast"

_BY_MODEL = {
    "bert": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer", "nomic_bert": "BertTokenizer",
    "ernie": "BertTokenizer", "megatron-bert": "BertTokenizer", "roberta-prelayernorm": "RobertaTokenizer",
    "mpnet": "MPNetTokenizer", "roberta": "RobertaTokenizer", "deberta": "DebertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer", "albert": "AlbertTokenizer", "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer", "xlm-roberta-xl": "XLMRobertaTokenizer", "data2vec-text": "RobertaTokenizer",
}  # fmt: skip
"""The class of a `model_type` whose folder does not name one."""

_READ_AS_IT_IS = ("modernbert", "splinter")
"""The `model_type` of folders whose tokenizer.json is read as it is, whatever class they name."""


# ---------------------------------------------------------------------- reading


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of tokenizer_config.json and special_tokens_map.json, without nulls."""
    told = _read_object(folder / "tokenizer_config.json")
    # The map is of an older format: where the settings list their added tokens, transformers does not read it.
    names = {} if "added_tokens_decoder" in told else _read_object(folder / "special_tokens_map.json")
    for role in ROLES:
        if told.get(role) is not None:
            content_of(told[role])  # refused if it is odd, even where the map has another
    settings = {key: value for file in (told, names) for key, value in file.items() if value is not None}
    if "strip_accents" in told:  # here null is a value: as `do_lower_case` says
        settings["strip_accents"] = told["strip_accents"]
    return settings


def _read_object(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    found = read_json_file(file)
    if not isinstance(found, dict):
        raise BothwaysError(f"{file} should hold a JSON object", "not-an-object", file)
    return found


def read_class(settings: Mapping[str, Any], folder: Path, file: str) -> str | None:
    """The class that transformers takes for a file of this name, without the suffix Fast; None if nothing tells."""
    try:
        config = _read_object(folder / "config.json")
    except BothwaysError:  # the model's reader says what is wrong with it
        config = {}
    is_whole = file == "tokenizer.json"
    if is_whole and config.get("model_type") in _READ_AS_IT_IS:
        return "TokenizersBackend"
    told = settings.get("tokenizer_class", config.get("tokenizer_class"))
    if told is None:
        return _BY_MODEL.get(str(config.get("model_type"))) if is_whole else None
    name = str(told).removesuffix("Fast")
    if name in AS_IT_IS or (name in CLASSES and (is_whole or file in CLASSES[name].older)):
        return name
    says = f"{folder}: the tokenizer_class {told} is not supported for {file}"
    if is_whole:
        says += f": set it to {_ANY} if that file is all there is to it"
    raise BothwaysError(says, "unsupported-tokenizer", told)


# ---------------------------------------------------------------------- obeying


def obey(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str | None, folder: Path
) -> tokenizers.Tokenizer:
    """The tokenizer of a tokenizer.json, with the settings that the class `name` puts in place of its own."""
    if name is None:
        return backend
    if name in AS_IT_IS:
        _check_prefix_space(backend, settings, folder)
        return backend
    rules = CLASSES[name]
    if not isinstance(backend.model, rules.model):
        _refuse_part(folder, name, "model", type(backend.model).__name__)
    if rules.model is WordPiece:
        _obey_switches(backend, settings, name, folder)
    elif rules.model is BPE:
        backend = _obey_prefix_space(backend, settings, name, folder)
    else:
        _check_switches(backend, settings, name, folder)
    _check_ends(backend, settings, name, folder)
    return backend


def _obey_switches(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str, folder: Path) -> None:
    """The settings of BERT's normaliser."""
    normalizer = backend.normalizer
    if not isinstance(normalizer, BertNormalizer) or not normalizer.clean_text:
        _refuse_part(folder, name, "normalizer", normalizer)
    if not isinstance(backend.pre_tokenizer, BertPreTokenizer):
        _refuse_part(folder, name, "pre_tokenizer", backend.pre_tokenizer)
    model = backend.model
    found = model.continuing_subword_prefix, model.max_input_chars_per_word
    if found != ("##", 100):
        _refuse_part(folder, name, "model", found)
    unknown = content_of(settings.get("unk_token", "[UNK]"))
    if model.unk_token != unknown:
        _refuse(folder, "unk_token", settings.get("unk_token"), model.unk_token, unknown)
    for key, own in (("do_lower_case", "lowercase"), ("tokenize_chinese_chars", "handle_chinese_chars")):
        value = switch(settings, key, True, folder)
        if key not in settings and value != getattr(normalizer, own):
            _refuse(folder, key, None, getattr(normalizer, own), value)
        setattr(normalizer, own, value)
    if settings.get("strip_accents") is not None:
        normalizer.strip_accents = switch(settings, "strip_accents", True, folder)
    elif normalizer.strip_accents not in (None, normalizer.lowercase):
        if "strip_accents" not in settings:
            _refuse(folder, "strip_accents", None, normalizer.strip_accents, normalizer.lowercase)
        normalizer.strip_accents = None
    backend.normalizer = normalizer


def _obey_prefix_space(
    backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str, folder: Path
) -> tokenizers.Tokenizer:
    """`add_prefix_space` of byte-level BPE."""
    if backend.normalizer is not None:
        _refuse_part(folder, name, "normalizer", backend.normalizer)
    split = backend.pre_tokenizer
    if not isinstance(split, ByteLevel) or not split.use_regex:
        _refuse_part(folder, name, "pre_tokenizer", split)
    if backend.model.continuing_subword_prefix or backend.model.end_of_word_suffix:
        _refuse_part(folder, name, "model", backend.model.end_of_word_suffix)
    value = switch(settings, "add_prefix_space", False, folder)
    if value == split.add_prefix_space:
        return backend
    if "add_prefix_space" not in settings:
        _refuse(folder, "add_prefix_space", None, split.add_prefix_space, value)
    state = json.loads(backend.to_str())
    # The post-processor too: it trims the spaces off the offsets, and must know which one is not in the text.
    after = state["post_processor"] or {}
    for part in (state["pre_tokenizer"], after, *after.get("processors", ())):
        if "add_prefix_space" in part:
            part["add_prefix_space"] = value
    return tokenizers.Tokenizer.from_str(json.dumps(state))


# ---------------------------------------------------------------------- checking


def _check_prefix_space(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], folder: Path) -> None:
    """The last versions 4 obey `add_prefix_space` for every class, version 5 does not."""
    split, told = backend.pre_tokenizer, settings.get("add_prefix_space")
    if isinstance(split, ByteLevel) and told is not None and told != split.add_prefix_space:
        _refuse(folder, "add_prefix_space", told, split.add_prefix_space)


def _check_switches(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str, folder: Path) -> None:
    """The settings of SentencePiece classes: version 5 obeys them, version 4 follows tokenizer.json."""
    rules, normal, split = CLASSES[name], _parts(backend.normalizer), _parts(backend.pre_tokenizer)
    accents = {"NFKD", "StripAccents"} & normal.keys()
    found = {
        "do_lower_case": "Lowercase" in normal,
        "keep_accents": not accents,
        "split_by_punct": "Punctuation" in split,
    }
    for key, has in found.items():
        default = rules.switches.get(key)
        if default is None and has != (key == "keep_accents"):
            part = "pre_tokenizer" if key == "split_by_punct" else "normalizer"
            _refuse_part(folder, name, part, getattr(backend, part))
        if default is not None and has != switch(settings, key, default, folder):
            _refuse(folder, key, settings.get(key), has, default)
    if len(accents) == 1:
        _refuse_part(folder, name, "normalizer", backend.normalizer)
    scheme = split.get("Metaspace", {}).get("prepend_scheme")
    if scheme != ("always" if switch(settings, "add_prefix_space", True, folder) else rules.unspaced):
        _refuse(folder, "add_prefix_space", settings.get("add_prefix_space"), scheme, True)


def _check_ends(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str, folder: Path) -> None:
    """The tokens around a text and between two: version 5 puts the class's own, version 4 those of tokenizer.json."""
    rules = CLASSES[name]
    if rules.ends is None:
        return
    found = _layout(backend.encode("a"))
    for (role, usual), token in zip(rules.ends, (found[0], found[-1]), strict=True):
        if content_of(settings.get(role, usual)) != token:
            _refuse(folder, role, settings.get(role), token if isinstance(token, str) else None, usual)
    first, last = found[0], found[-1]
    two = backend.encode("a", "a")
    texts = [[0], [1]] if 0 in found else [[], []]  # BPE may have no piece for the letter
    pairs = [[first, *texts[0], *[last] * count, *texts[1], last] for count in rules.separators]
    fits = found == [first, *texts[0], last] and _layout(two) in pairs
    fits &= [two.ids[0], two.ids[-1]] == [backend.token_to_id(str(token)) for token in (first, last)]
    if rules.separators == (1,):  # in two segments
        fits &= two.type_ids == sorted(two.type_ids) and two.type_ids[-1] == 1
    if not fits:
        _refuse_part(folder, name, "post_processor", type(backend.post_processor).__name__)


def _layout(encoding: tokenizers.Encoding) -> list[str | int | None]:
    """The special tokens, and 0 and 1 in the places of the two texts; None where there is nothing."""
    found: list[str | int | None] = []
    for token, source in zip(encoding.tokens, encoding.sequence_ids, strict=True):
        if source is None or found[-1:] != [source]:
            found.append(token if source is None else source)
    return found or [None]


def _parts(component: Any) -> dict[str, dict[str, Any]]:
    """The parts of a normaliser or pre-tokenizer, by type."""
    if component is None:
        return {}
    state = json.loads(component.__getstate__())
    inner = [part for key in ("normalizers", "pretokenizers") for part in state.get(key, ())]
    return {part["type"]: part for part in (inner or [state])}


def _refuse_part(folder: Path, name: str, part: str, found: object) -> NoReturn:
    raise BothwaysError(
        f"{folder}: the tokenizer_class {name} does not have the {part} of tokenizer.json ({str(found)[:80]}): set it "
        f"to {_ANY} if tokenizer.json is right",
        "contradicting-settings",
        ("tokenizer_class", name, part),
    )


def _refuse(folder: Path, key: str, told: Any, found: Any, default: Any = None) -> NoReturn:
    says = f"has {key} {told!r}" if told is not None else f"has no {key}, which transformers then takes as {default!r},"
    raise BothwaysError(
        f"{folder}: tokenizer_config.json {says} and tokenizer.json has {found!r}: make the two agree",
        "contradicting-settings",
        (key, told, found),
    )


# ---------------------------------------------------------------------- writing


def fitting_class(backend: tokenizers.Tokenizer, settings: Mapping[str, Any], name: str) -> str:
    """This class, if every version of transformers then reads the tokenizer as it is; else the one for any."""
    rules = CLASSES.get(name.removesuffix("Fast"))
    # Version 5 has word splitting and separators of its own for the others.
    if rules is not None and rules.model is not Unigram and len(rules.separators) == 1:
        try:
            obey(backend, settings, name.removesuffix("Fast"), Path())
        except BothwaysError:
            return _ANY
        return name
    return _ANY
