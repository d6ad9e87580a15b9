"""The shape of the library: imports point one way, nothing foreign is imported, all public names exist."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bothways
from bothways.errors import EXTRAS

SOURCE = Path(bothways.__file__).parent

# A part may import from itself and from those before it.
ORDER = [
    ["errors"],
    ["lazy"],
    [
        "atomic",
        "prefetch",
        "hash_rng",
        "json_files",
        "printable",
        "ragged",
        "ranges",
        "progress_displays",
        "progress",
        "fonts",
    ],
    ["plots", "marked_text"],
    ["text"],
    ["data"],
    ["scoring"],
    ["model"],
    ["engine"],
    ["train"],
    ["pretraining"],
    ["tasks"],
    ["export"],
    ["doctor"],
    ["predict"],
    ["compression"],
    ["search"],
    ["scale"],
    ["page"],
    ["serve"],
    ["cli", "__main__"],
]
ALLOWED = {
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "typer",
    "rich",
    "pyarrow",
    "matplotlib",
    "jieba",
    "ray",
    "bm25s",
    "usearch",
    "openpyxl",
    "onnx",
    "onnxruntime",
    "pypdf",
    "mlflow",
    "wandb",
    "starlette",
    "uvicorn",
    "bothways",
}
JUDGES = {"transformers", "sentence_transformers", "peft"}


def test_answers_do_not_load_the_compiler() -> None:
    """It takes longer than all the rest of `bothways fill` but torch."""
    code = (
        "import bothways, sys; bothways.fill('a [MASK]'); bothways.encode(['a']); print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == "False\n"


def modules() -> dict[str, set[str]]:
    """Every file of the library and the full names it imports."""
    found = {}
    for file in SOURCE.rglob("*.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file}: relative imports hide the direction"
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
        found[".".join(file.relative_to(SOURCE).with_suffix("").parts)] = names
    return found


def level(part: str) -> int:
    return next(i for i, parts in enumerate(ORDER) if part in parts)


def test_imports_point_one_way() -> None:
    for name, imports in modules().items():
        part = name.split(".")[0]
        if part == "__init__":
            continue
        for imported in imports:
            root, *rest = imported.split(".")
            if root != "bothways" or not rest:
                continue
            if rest[0] in {p for parts in ORDER for p in parts}:
                assert level(rest[0]) <= level(part), f"{name} imports {imported}"
            else:
                assert part == "cli", f"{name} imports {imported} from the package itself"


def test_the_heart_of_the_model_is_apart_from_files() -> None:
    """What computes knows nothing of how it is stored, and families know nothing of each other's users."""
    found = modules()
    for name in ("attention", "batch", "blocks", "encoder", "heads", "positions", "config"):
        assert not {
            i
            for i in found[f"model.{name}"]
            if "bothways.model.checkpoint" in i or "families" in i or "bothways.text" in i
        }


def test_only_the_declared_dependencies_are_imported() -> None:
    import sys

    for name, imports in modules().items():
        roots = {imported.split(".")[0] for imported in imports}
        assert not roots & JUDGES, name
        assert roots <= ALLOWED | set(sys.stdlib_module_names), (name, roots)


def test_every_extra_is_imported_somewhere() -> None:
    """An extra that nothing imports installs what the library does not use."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imported = {part for imports in modules().values() for name in imports for part in name.split(".")}
    for extra, packages in project["optional-dependencies"].items():
        for package in packages if extra != "dev" else ():
            assert re.split(r"[^\w-]", package)[0] in imported, extra


def test_every_public_name_is_importable_and_listed() -> None:
    assert len(set(bothways.__all__)) == len(bothways.__all__)
    for name in bothways.__all__:
        assert getattr(bothways, name) is not None
    assert set(bothways.__all__) <= set(dir(bothways))
    assert bothways.read_recipe is bothways.read_pretrain_recipe


def test_the_three_lists_of_public_names_agree() -> None:
    """What is imported at first use, what type checkers see, and `__all__`: the same names from the same modules."""
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    assert len(blocks) == 1
    seen = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in blocks[0].body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    lazy = {name: (home, name) for name, home in bothways._HOMES.items()}
    assert seen == lazy
    assert set(bothways.__all__) == {*lazy, "BothwaysError", "StoppedError"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        bothways.nonsense  # noqa: B018


def test_no_public_name_is_hidden_by_a_module() -> None:
    """`import bothways.x` would put the module in place of a function `bothways.x`."""
    names = {file.stem for file in SOURCE.iterdir()} & set(bothways.__all__)
    assert names == set()


def test_every_module_says_what_it_is() -> None:
    for file in SOURCE.rglob("*.py"):
        assert ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))), file


def test_files_stay_readable() -> None:
    """The encoder is read in one sitting; a file that outgrows a few hundred lines holds two ideas."""
    lengths = {file: len(file.read_text(encoding="utf-8").splitlines()) for file in SOURCE.rglob("*.py")}
    assert {str(file): n for file, n in lengths.items() if n > 400} == {}


ERRORS = {"BothwaysError", "StoppedError", "EstimatorError", "NotFittedError"}


def test_every_error_has_a_code() -> None:
    """Programs and tests match codes, so that sentences can be improved."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                where = f"{file.name}, line {node.lineno}"
                assert len(node.args) > 1, where
                code = node.args[1]
                if isinstance(code, ast.Constant):
                    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", str(code.value)), where


def test_library_errors_name_no_flags() -> None:
    """Messages name Python's arguments in backticks; the command line makes its options of them."""
    for file in SOURCE.rglob("*.py"):
        if "cli" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS:
                message = ast.unparse(node.args[0])
                assert not re.search(r"(?<![\w-])--[a-z]", message), f"{file.name}, line {node.lineno}: {message}"


def test_test_modules_do_not_import_each_other() -> None:
    for file in Path(__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith(("test_", "conftest"))], file.name


def test_missing_packages_are_told_in_one_place() -> None:
    """`needs` in errors.py knows the extra of each package, and pyproject.toml has that extra."""
    texts = {file.name: file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py")}
    assert [name for name, text in texts.items() if "pip install" in text] == ["errors.py"]
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    for package, extra in EXTRAS.items():
        assert any(re.match(rf"{package}\b", line) for line in extras[extra]), package
