"""Random and damaged inputs in one process, bounded: `make fuzz` runs more of them, each in a fork with limits."""

import random
import shutil
from pathlib import Path

import pytest

import fuzz
from helpers.cli import Run

CASES_EACH = 12


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> fuzz.Sources:
    return fuzz.make_sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", range(len(fuzz.CASES)), ids=[case.__name__ for case in fuzz.CASES])
def test_every_input_ends_in_a_result_or_a_sentence(kind: int, sources: fuzz.Sources, run: Run, tmp_path: Path) -> None:
    for number in range(kind, CASES_EACH * len(fuzz.CASES), len(fuzz.CASES)):
        folder = tmp_path / "case"
        folder.mkdir()
        arguments = fuzz.CASES[kind](folder, sources, random.Random(number))
        done = run(*arguments)  # anything but a sentence is raised here
        assert done.returncode in (0, 1, 2), (number, arguments, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr, (number, arguments)
        shutil.rmtree(folder)
