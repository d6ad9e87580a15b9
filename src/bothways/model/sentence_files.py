"""What a folder of sentence-transformers says about the vector of a text, without the weights of its modules.

modules.json lists the modules: the transformer, Pooling, then Dense and Normalize in any order. Further settings are in
sentence_bert_config.json and config_sentence_transformers.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from bothways.errors import BothwaysError
from bothways.json_files import read_json_file
from bothways.model.pooling import Pooling
from bothways.model.pooling_modes import PoolingMode
from bothways.model.weights import read_json

MODULES, SETTINGS, PROMPTS = "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"
OLDER_MODES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class Prompts:
    """The prompts in the settings of PROMPTS."""

    settings: dict[str, Any]

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        self.settings = dict(settings or {})

    @property
    def prompts(self) -> dict[str, str]:
        """Prompts by name."""
        found = self.settings.get("prompts") or {}
        if not isinstance(found, dict) or not all(text is None or isinstance(text, str) for text in found.values()):
            raise BothwaysError(
                f"the prompts of {PROMPTS} are {found!r}: expected texts by name",
                "unsupported-setting",
                ("prompts", found),
            )
        return {str(name): text or "" for name, text in found.items()}

    def prompt(self, name: str | None = None) -> str:
        """The prompt of this name; without a name, the folder's default, if it has one."""
        known, default = self.prompts, self.settings.get("default_prompt_name")
        if name is None and default is None:
            return ""
        wanted = default if name is None else name
        if wanted not in known:
            what = f"{PROMPTS} has default_prompt_name = {wanted!r}" if name is None else f"`prompt_name` is {wanted!r}"
            raise BothwaysError(
                f"{what}, and this model has {'the prompts ' + ', '.join(known) if known else 'no prompts'}",
                "unknown-choice",
                wanted,
            )
        return known[wanted]


@dataclass(frozen=True)
class DescribedVectors(Prompts):
    """How the vector of a text is made."""

    pooling: Pooling
    steps: tuple[tuple[str, Path], ...]
    """The modules after the pooling: the kind and the folder of each."""
    max_length: int | None
    include_prompt: bool
    settings: dict[str, Any]


def transformer_folder(folder: Path) -> Path:
    """The folder of the transformer itself: older folders of sentence-transformers have it inside."""
    if (folder / MODULES).exists() and not (folder / "config.json").exists():
        for module in listed(folder):
            if _kind(module) == "Transformer" and (folder / module_path(module) / "config.json").exists():
                return folder / module_path(module)
    return folder


def described_vectors(folder: Path) -> DescribedVectors | None:
    """What the folder says; None if it is not one of sentence-transformers with vectors of texts."""
    if not (folder / MODULES).exists():
        return None
    first, *others = listed(folder)
    kinds = [_kind(module) for module in (first, *others)]
    if kinds == ["Transformer"]:  # a cross-encoder
        return None
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= {"Dense", "Normalize"}:
        raise BothwaysError(
            f"{folder / MODULES} lists {', '.join(kinds)}, and only Transformer and Pooling, then Dense or Normalize, "
            "are supported: give `pool` to pool the hidden states of the Transformer",
            "unsupported-modules",
            tuple(kinds),
        )
    pooling = read_json(folder / module_path(others[0]) / "config.json")
    require_key(pooling, "include_prompt", (True, False, None), folder / module_path(others[0]))
    for module in others[1:]:
        place = folder / module_path(module)
        config = read_json(place / "config.json") if (place / "config.json").exists() else {}
        for key in ("module_input_name", "module_output_name"):
            require_key(config, key, ("sentence_embedding", None), place)
    found = DescribedVectors(
        Pooling(_modes(pooling, folder / module_path(others[0]))),
        tuple((_kind(module), folder / module_path(module)) for module in others[1:]),
        max_length_of(folder, folder / module_path(first)),
        pooling.get("include_prompt") is not False,
        read_json(folder / PROMPTS) if (folder / PROMPTS).exists() else {},
    )
    _require_settings(found)
    return found


def _require_settings(sentence: Prompts) -> None:
    """Refuse settings of PROMPTS that mean nothing, or another kind of model: now, and not at the first text."""
    sentence.prompt()
    kind = sentence.settings.get("model_type")
    if kind not in (None, "SentenceTransformer"):
        raise BothwaysError(
            f"{PROMPTS} has model_type = {kind!r}: only 'SentenceTransformer' has a vector for a text",
            "unsupported-setting",
            ("model_type", kind),
        )
    limit = sentence.settings.get("truncate_dim")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise BothwaysError(
            f"{PROMPTS} has truncate_dim = {limit!r}: expected a whole number, 1 or more",
            "unsupported-setting",
            ("truncate_dim", limit),
        )


def lowers_case(folder: Path) -> bool:
    """Whether texts are lower-cased before the tokenizer reads them."""
    found = [place / SETTINGS for place in (folder, transformer_folder(folder)) if (place / SETTINGS).exists()]
    return bool(found) and read_json(found[0]).get("do_lower_case") is True


def listed(folder: Path) -> list[dict[str, Any]]:
    try:
        modules: list[dict[str, Any]] = read_json_file(folder / MODULES)
        is_right = bool(modules) and all(isinstance(module[key], str) for module in modules for key in ("type", "path"))
    except (BothwaysError, KeyError, TypeError):
        is_right = False
    if not is_right:
        raise BothwaysError(
            f"{folder / MODULES} is not a list of modules with path and type", "damaged-file", folder / MODULES
        )
    return modules


def _kind(module: Mapping[str, Any]) -> str:
    """The class of a module. The packages inside sentence_transformers have changed with the versions."""
    package, _, name = str(module["type"]).rpartition(".")
    return name if package.split(".")[0] == "sentence_transformers" else str(module["type"])


def module_path(module: Mapping[str, Any]) -> str:
    """The folder of a module, which is inside the model's."""
    path = Path(module["path"])
    if "\0" in str(path) or path.is_absolute() or ".." in path.parts:
        raise BothwaysError(f"{MODULES} names the folder {path}, which is outside", "damaged-file", str(path))
    return str(path)


def _modes(config: Mapping[str, Any], place: Path) -> tuple[PoolingMode, ...]:
    named = config.get("pooling_mode")
    if named is None:
        for key in config:
            if key.startswith("pooling_mode_") and config[key] and key not in OLDER_MODES:
                raise BothwaysError(
                    f"{place / 'config.json'} has {key}: expected {', '.join(OLDER_MODES)}",
                    "unsupported-setting",
                    (key, config[key]),
                )
        return tuple(mode for key, mode in OLDER_MODES.items() if config.get(key)) or ("mean",)
    modes = tuple(named) if isinstance(named, list) else (named,)
    for mode in modes:
        if mode not in get_args(PoolingMode):
            raise BothwaysError(
                f"{place / 'config.json'} has the pooling_mode {mode!r}: expected {', '.join(get_args(PoolingMode))}",
                "unsupported-setting",
                ("pooling_mode", mode),
            )
    return modes


def max_length_of(folder: Path, transformer: Path) -> int | None:
    """max_seq_length; without it, as in sentence-transformers, the tokenizer's model_max_length."""
    for place, file, key in (
        (folder, SETTINGS, "max_seq_length"),
        (transformer, SETTINGS, "max_seq_length"),
        (transformer, "tokenizer_config.json", "model_max_length"),
    ):
        value = read_json(place / file).get(key) if (place / file).exists() else None
        if isinstance(value, int) and value > 0:
            return value
        if value is not None and key == "max_seq_length":
            says = f"{place / file} has {key} = {value!r}: expected a whole number, 1 or more"
            raise BothwaysError(says, "unsupported-setting", (key, value))
    return None


def require_key(config: Mapping[str, Any], key: str, allowed: tuple[object, ...], place: Path) -> None:
    if config.get(key) not in allowed:
        raise BothwaysError(
            f"{place / 'config.json'} has {key} = {config[key]!r}: only {allowed[0]!r} is supported",
            "unsupported-setting",
            (key, config[key]),
        )
