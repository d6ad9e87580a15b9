"""The distributions that another one needs, as they are installed in this environment."""

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement


def canonical(name: str) -> str:
    """A name as indexes compare it.

    >>> canonical("ast_serialize")
    'ast-serialize'
    """
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(found: Distribution, extras: Iterable[str] = ()) -> list[Requirement]:
    """What a distribution requires here, with these extras."""
    written = [Requirement(line) for line in found.requires or ()]
    asked = [{"extra": extra} for extra in ("", *extras)]
    return [one for one in written if one.marker is None or any(one.marker.evaluate(extra) for extra in asked)]


def closure(name: str, extras: Iterable[str] = ()) -> dict[str, Distribution]:
    """All that a distribution needs, and what that needs, by canonical name; without itself."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(f"{name}[{','.join(extras)}]")]
    while waiting:
        one = waiting.pop()
        for extra in {"", *one.extras}:
            if (canonical(one.name), extra) in seen:
                continue
            seen.add((canonical(one.name), extra))
            try:
                installed = distribution(one.name)
            except PackageNotFoundError:
                raise SystemExit(f"{one.name} is not installed: run `make setup` first") from None
            found[canonical(one.name)] = installed
            waiting += needs(installed, [extra] if extra else [])
    found.pop(canonical(name))
    return dict(sorted(found.items()))
