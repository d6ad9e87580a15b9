"""Known vulnerabilities of the installed packages, by pip-audit: fails only for those that a newer version mends.

    python tools/audit.py

Where no database can be reached, it says so within seconds and succeeds.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CONNECT, WHOLE = 5, 120
"""Seconds: to wait for an answer of the database, and for all of them."""


def findings(report: dict[str, Any]) -> list[tuple[str, str]]:
    """A line for each vulnerability, and the versions that mend it."""
    return [
        (f"{package['name']} {package['version']}: {one['id']}", ", ".join(one["fix_versions"]))
        for package in report["dependencies"]
        for one in package.get("vulns", ())
    ]


def audit(command: list[str]) -> dict[str, Any] | str:
    """The report of pip-audit, or why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "audit.json"
        try:
            done = subprocess.run(
                [*command, "--output", str(out)], check=False, capture_output=True, text=True, timeout=WHOLE
            )
        except subprocess.TimeoutExpired:
            return f"the database did not answer within {WHOLE} s"
        if out.exists() and out.stat().st_size:
            found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
            return found
        return (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1][:200]


def main() -> None:
    plain = ["--format", "json", "--progress-spinner", "off", "--skip-editable", "--timeout", str(CONNECT)]
    report = audit([sys.executable, "-m", "pip_audit", *plain])
    if isinstance(report, str):
        print(f"audit: skipped, as there is no database of vulnerabilities here ({report})")
        return
    found = findings(report)
    for what, mended in found:
        print(f"audit: {what}, " + (f"mended in {mended}" if mended else "no version mends it yet"))
    print(f"audit: {len(report['dependencies'])} packages, {len(found)} known vulnerabilities")
    sys.exit(any(mended for _, mended in found))


if __name__ == "__main__":
    main()
