"""The versions of constraints.txt with the hashes of their files, for `pip install --require-hashes`.

    python tools/hashes.py --index ADDRESS

Writes hashes/core.txt, what the library needs with torch, and hashes/dev.txt, what tests and docs need too. `--index`
is the address of a package index that tells hashes (PEP 503). torch is left out: each of its indexes (CPU, one for each
CUDA) has a wheel of its own under the same version, so its hash depends on where it comes from. So are the
CUDA packages that come with it.
"""

import argparse
import re
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote

from installed import canonical, closure

ROOT = Path(__file__).parents[1]
LEFT_OUT = {"torch", "pip"}
"""pip-audit needs pip, which is that of the environment."""
CUDA = re.compile(r"(cuda|nvidia)-|triton$")
"""What only torch's builds for CUDA need."""
EXTRAS = {"core": ["torch"], "dev": ["dev"]}
"""The extras of each file: what torch needs is in both."""
HEAD = """# Made by tools/hashes.py from constraints.txt. torch is not here: its wheels differ from index to index.
#   pip install --require-hashes --no-deps -r {name}
#   pip install --no-deps torch=={torch}    # from the index of your choice
"""


def pins(file: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Versions by canonical name."""
    lines = [line.partition("#")[0].strip() for line in file.read_text(encoding="utf-8").splitlines()]
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def hashes_of(index: str, name: str, version: str) -> list[str]:
    """The SHA-256 of every wheel of a version, or of its source if it has no wheel."""
    with urllib.request.urlopen(f"{index.rstrip('/')}/{name}/", timeout=30) as answer:
        page = answer.read().decode()
    files = {unquote(file): sha for file, sha in re.findall(r"/([^/\"#]+)#sha256=([0-9a-f]{64})", page)}
    wheels = {sha for file, sha in files.items() if file.endswith(".whl") and file.split("-")[1] == version}
    return sorted(wheels) or [sha for file, sha in files.items() if file.endswith(f"-{version}.tar.gz")]


def needed(extras: Iterable[str]) -> list[str]:
    """The names of what the library needs with these extras, but torch and what only some of its builds need."""
    return [name for name in closure("bothways", extras) if name not in LEFT_OUT and not CUDA.match(name)]


def write(path: Path, names: Iterable[str], versions: dict[str, str], index: str) -> None:
    lines = [HEAD.format(name=path.relative_to(ROOT), torch=versions["torch"])]
    for name in names:
        if name not in versions:
            raise SystemExit(f"{name} is not in constraints.txt: add its version")
        try:
            found = hashes_of(index, name, versions[name])
        except OSError as error:
            raise SystemExit(f"the index did not tell the wheels of {name} ({error}): try again") from error
        if not found:
            raise SystemExit(f"the index does not have {name} {versions[name]}")
        lines.append(
            f"{name}=={versions[name]} \\\n" + " \\\n".join(f"    --hash=sha256:{one}" for one in found) + "\n"
        )
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(lines) - 1} packages")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--index", required=True)
    asked = options.parse_args()
    versions = pins()
    for name, extras in EXTRAS.items():
        write(ROOT / "hashes" / f"{name}.txt", needed(extras), versions, asked.index)


if __name__ == "__main__":
    main()
