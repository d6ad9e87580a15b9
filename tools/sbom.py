"""A software bill of materials: what bothways needs, as it is installed here, in CycloneDX's JSON.

    python tools/sbom.py --extras torch --out build/bothways.cdx.json
    python tools/sbom.py --extras torch parquet --out build/bothways.cdx.json

The versions are those of this environment, so that the bill of an image is made inside the image. It holds no time and
no random number: the same environment gives the same bytes.
"""

import argparse
import json
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from installed import canonical, closure, needs

NAME = "bothways"


def component(found: Distribution, kind: str) -> dict[str, Any]:
    """One entry: name, version, its address as a package, its licence if it names one."""
    facts: Any = found.metadata  # an e-mail message, which its protocol tells only a part of
    address = _address(found)
    entry: dict[str, Any] = {
        "type": kind,
        "bom-ref": address,
        "name": canonical(facts["Name"]),
        "version": found.version,
    }
    if summary := facts.get("Summary"):
        entry["description"] = summary
    licence = facts.get("License-Expression") or ""
    named = [line.rpartition(" :: ")[2] for line in facts.get_all("Classifier", []) if line.startswith("License :: ")]
    if licence:
        entry["licenses"] = [{"expression": licence}]
    elif named:
        entry["licenses"] = [{"license": {"name": name}} for name in named]
    return {**entry, "purl": address}


def _address(found: Distribution) -> str:
    return f"pkg:pypi/{canonical(found.metadata['Name'])}@{found.version.replace('+', '%2B')}"


def bill(extras: Sequence[str] = ()) -> dict[str, Any]:
    """The whole bill."""
    own, others = distribution(NAME), closure(NAME, extras)

    def depends(found: Distribution, asked: Sequence[str] = ()) -> dict[str, Any]:
        names = {canonical(one.name) for one in needs(found, asked)}
        return {"ref": _address(found), "dependsOn": [_address(one) for key, one in others.items() if key in names]}

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(own, "library")},
        "components": [component(one, "library") for one in others.values()],
        "dependencies": [depends(own, extras), *map(depends, others.values())],
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True)
    options.add_argument("--extras", nargs="*", default=[])
    asked = options.parse_args()
    found = bill(asked.extras)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{asked.out}: {len(found['components'])} components")


if __name__ == "__main__":
    main()
