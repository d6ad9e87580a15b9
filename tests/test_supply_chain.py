"""What the library is installed from: bounds, hashes, the bill of materials, known vulnerabilities."""

import importlib.util
import json
import re
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> object:
    """Imports a script of tools/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"tool_{name}", ROOT / "tools" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_dependencies_have_bounds_that_hold_here() -> None:
    """Upper bounds are what `make newest` tests within."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for line in [*project["dependencies"], *(line for name in extras if name != "dev" for line in extras[name])]:
        one = Requirement(line)
        if one.name == project["name"]:  # with extras, whose lines have bounds of their own
            assert one.extras <= set(extras), line
            continue
        assert {part.operator for part in one.specifier} == {">=", "<"}, line
        if importlib.util.find_spec({"onnxruntime": "onnxruntime"}.get(one.name, one.name)):
            assert version(one.name) in one.specifier, line


def hashed(file: Path) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes by name."""
    text = file.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    found = {}
    for pin, *hashes in lines:
        name, _, number = pin.partition("==")
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", one) for one in hashes), pin
        found[name] = (number, hashes)
    return found


@pytest.mark.parametrize("name", ["core", "dev"])
def test_hashes_are_those_of_the_constraints(name: str, tool: object) -> None:
    """`make hashes` writes them anew after a change."""
    hashes = tool("hashes")  # type: ignore[operator]
    pins, found = hashes.pins(), hashed(ROOT / "hashes" / f"{name}.txt")
    assert {key: number for key, (number, _) in found.items()} == {key: pins[key] for key in found}
    assert all(files for _, files in found.values())
    assert "torch" not in found
    assert set(hashes.needed(hashes.EXTRAS[name])) <= set(found), "not in hashes/: make hashes"


def test_the_bill_of_materials(tmp_path: Path, tool: object, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "build" / "bothways.cdx.json"
    monkeypatch.setattr(sys, "argv", ["sbom.py", "--extras", "torch", "--out", str(out)])
    bill = tool("sbom")  # type: ignore[operator]
    bill.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    parts = {part["name"]: part["version"] for part in found["components"]}
    assert {"torch", "numpy", "tokenizers", "safetensors", "typer", "rich"} <= set(parts)
    assert parts["numpy"] == version("numpy")
    assert not {"bothways", "pytest", "transformers", "pyarrow"} & set(parts)
    known = {part["bom-ref"] for part in [*found["components"], found["metadata"]["component"]]}
    assert {edge["ref"] for edge in found["dependencies"]} == known
    assert all(set(edge["dependsOn"]) <= known for edge in found["dependencies"])
    before = out.read_bytes()
    bill.main()
    assert out.read_bytes() == before
    assert "pyarrow" in {part["name"] for part in bill.bill(["parquet"])["components"]}


def test_the_bill_is_read_by_cyclonedx(tool: object) -> None:
    model = pytest.importorskip("cyclonedx.model.bom")
    bill = tool("sbom").bill()  # type: ignore[operator]
    read = model.Bom.from_json(bill)
    assert {part.name for part in read.components} == {part["name"] for part in bill["components"]}
    assert {str(part.purl) for part in read.components} == {part["purl"] for part in bill["components"]}
    assert read.metadata.component.name == "bothways"


REPORT = {
    "dependencies": [
        {"name": "fine", "version": "1", "vulns": []},
        {"name": "old", "version": "1", "vulns": [{"id": "X-1", "fix_versions": ["2"]}]},
        {"name": "odd", "version": "1", "vulns": [{"id": "X-2", "fix_versions": []}]},
    ]
}


def test_a_vulnerability_that_a_newer_version_mends_fails(tool: object, monkeypatch: pytest.MonkeyPatch) -> None:
    audit = tool("audit")  # type: ignore[operator]
    for report, code in ((REPORT, 1), ({"dependencies": REPORT["dependencies"][::2]}, 0)):
        monkeypatch.setattr(audit, "audit", lambda _, report=report: report)
        with pytest.raises(SystemExit) as stopped:
            audit.main()
        assert stopped.value.code == code


def test_without_a_database_the_audit_succeeds(
    tool: object, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    audit = tool("audit")  # type: ignore[operator]
    fails = [sys.executable, "-c", "import sys; sys.exit('no connection')"]
    assert audit.audit(fails) == "no connection"
    monkeypatch.setattr(audit, "WHOLE", 0.01)
    assert isinstance(audit.audit([sys.executable, "-c", "import time; time.sleep(60)"]), str)
    monkeypatch.setattr(audit, "audit", lambda _: "no connection")
    audit.main()
    assert "skipped" in capsys.readouterr().out
