"""Which layers the patterns of adapter_config.json name, as PEFT matches them."""

from collections.abc import Mapping, Sequence
from typing import Any

from bothways.errors import BothwaysError
from bothways.model.linear_regex import LinearRegex

_MOST = 20_000
"""Most characters of all patterns together: each of them is tried on every layer."""


class AdapterPatterns:
    """The patterns of one adapter."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """`config`: adapter_config.json, whose values have the right kinds."""
        self._length = 0
        self._targets = config.get("target_modules") or ()
        self._excluded = config.get("exclude_modules") or ()
        self._target = self._compiled(self._targets) if isinstance(self._targets, str) else None
        self._excluding = self._compiled(self._excluded) if isinstance(self._excluded, str) else None
        self._saved = [self._compiled(rf"(^|.*\.){name}($|\..*)") for name in config.get("modules_to_save") or ()]
        layers = config.get("layers_to_transform")
        self._layers = [layers] if isinstance(layers, int) else layers or []
        stacks = config.get("layers_pattern") or ()
        stacks = [rf"(^|.*\.){name}\." for name in ([stacks] if isinstance(stacks, str) else stacks)]
        self._before_number = [self._compiled(pattern) for pattern in stacks or [r".*\.[^.]*\."]]
        self._by_key = {
            key: [(self._compiled(rf"(.*\.)?({name})$"), value) for name, value in (config.get(key) or {}).items()]
            for key in ("rank_pattern", "alpha_pattern")
        }

    def _compiled(self, pattern: str) -> LinearRegex:
        self._length += len(pattern)
        if self._length > _MOST:
            raise BothwaysError(
                f"the patterns of the adapter have more than {_MOST:,} characters: name the layers instead",
                "unsupported-pattern",
                pattern,
            )
        return LinearRegex(pattern)

    def targets(self, layer: str) -> bool:
        """Whether target_modules names a layer, which nothing else takes out again."""
        if self._excluding.fullmatch(layer) if self._excluding else _ends(layer, self._excluded):
            return False
        if any(saved.fullmatch(layer) for saved in self._saved):
            return False
        if self._target is not None:
            return self._target.fullmatch(layer)
        return _ends(layer, self._targets) and (not self._layers or self._number(layer) in self._layers)

    def _number(self, layer: str) -> int | None:
        """The number of the block that a layer is in: the first component that is a number, after a known name."""
        parts = layer.split(".")
        for pattern in self._before_number:
            for i, part in enumerate(parts[:-1]):
                if part.isdecimal() and i and pattern.fullmatch(".".join(parts[:i]) + "."):
                    return int(part)
        return None

    def value(self, key: str, layer: str, usual: Any) -> Any:
        """The value of the first pattern of rank_pattern or alpha_pattern that a layer's name matches."""
        return next((value for pattern, value in self._by_key[key] if pattern.fullmatch(layer)), usual)


def _ends(layer: str, names: Sequence[str]) -> bool:
    """Whether a layer is one of these, or one of these at its end."""
    return any(layer == name or layer.endswith(f".{name}") for name in names)
