"""Shared by all tests: no network, small loud models, a small vocabulary."""

import gc
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tensors are tiny: threads would spend their time meeting
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # its pool of processes would load torch in each
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import hypothesis
import pytest
import tokenizers
import torch
from tokenizers.processors import TemplateProcessing

from bothways.cli import main
from bothways.model.checkpoint import save
from bothways.model.config import Learned, ModelConfig
from bothways.model.families import FAMILIES
from bothways.model.model import Model
from bothways.text.tokenizer import Tokenizer
from bothways.train.curve import draw_curve
from helpers import LOOPBACK, PIECES, TINY, WORDS, leaves_the_process, make_loud
from helpers.cli import Done, Run

FSYNC = os.fsync
gc.disable()  # while tests are collected: what is imported stays, and looking through it takes seconds

hypothesis.settings.register_profile("patient", deadline=None)  # machines that are shared are slow now and then
hypothesis.settings.load_profile("patient")

collect_ignore = [] if torch.cuda.is_available() else ["test_gpu.py"]


# Modules that train, judge or start processes in most of their tests: `make quick` leaves them out.
SLOW = {
    "test_adapter_base", "test_benchmarks", "test_box", "test_boxed_model", "test_cli_tasks", "test_compress", "test_convert",
    "test_distill", "test_estimators", "test_fairseq", "test_families", "test_families_tasks", "test_finetune", "test_fit",
    "test_google", "test_kills", "test_late_interaction", "test_lora", "test_lora_peft", "test_matrix", "test_older_tokenizers", "test_one_score", "test_pack",
    "test_predictor", "test_pretrain", "test_pretrain_lora", "test_published_families", "test_ranking_losses", "test_recipe_keys",
    "test_references", "test_rerank", "test_rtd", "test_scale", "test_serve", "test_scoring_classification", "test_search", "test_sentence_folders", "test_settings_of_others",
    "test_stories", "test_suites", "test_tasks_classifier", "test_tokenizer_settings",
    "test_tasks_folders", "test_vocab_extend", "test_vocab_shrink",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="files and their tests in another order")


def pytest_collection_finish() -> None:
    gc.freeze()  # nor is it looked through again
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker("slow")
    seed = config.getoption("--shuffle")
    if seed is not None:  # the tests of a file stay together: its fixtures are made once
        draws = random.Random(seed)
        draws.shuffle(items)
        places = {path: draws.random() for path in sorted({item.path for item in items})}
        items.sort(key=lambda item: places[item.path])


def _no_network(event: str, arguments: tuple[Any, ...]) -> None:
    if leaves_the_process(event, arguments, bool(LOOPBACK)):
        raise AssertionError(f"something opened the network: {event} {arguments[1:]}")


@pytest.fixture(scope="session", autouse=True)
def _hurry() -> Iterator[None]:
    """Drawing the curve and waiting for the disk take longer than most runs here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        patch.setattr("bothways.train.session.draw_curve", lambda *_: True)
        yield


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of that, for once."""
    monkeypatch.setattr("os.fsync", FSYNC)
    monkeypatch.setattr("bothways.train.session.draw_curve", draw_curve)


# An audit hook sees every socket of the process, whoever opens it, and cannot be taken off again.
sys.addaudithook(_no_network)


@pytest.fixture
def loopback() -> Iterator[None]:
    """This test may talk to 127.0.0.1."""
    LOOPBACK.append(True)
    yield
    LOOPBACK.pop()


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_pieces(PIECES)


@pytest.fixture
def model_folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A small model with all the pretraining heads, on disk."""
    model = Model.new(ModelConfig(TINY, ("pooler", "masked", "next")), tokenizer, seed=1)
    make_loud(model)
    save(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """Packed text of 120 documents in two sources, a tenth of it held out."""
    from bothways.pretraining.pack import pack

    folder = tmp_path_factory.mktemp("text")
    draws = random.Random(0)
    words = [word for word in WORDS if word.isascii() and word.isalpha() and len(word) > 1]
    for name in ("first", "second"):
        documents = []
        for _ in range(60):
            sentences = [
                " ".join(draws.choices(words, k=draws.randint(3, 9))).capitalize() + "."
                for _ in range(draws.randint(2, 9))
            ]
            documents.append(" ".join(sentences))
        (folder / f"{name}.txt").write_text("\n\n".join(documents), encoding="utf-8")
    pack({name: [folder / f"{name}.txt"] for name in ("first", "second")}, tokenizer, folder / "packed", valid=0.15)
    return folder / "packed"


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """To start from; nobody writes into it."""
    from helpers.tasks import base_model  # which loads transformers

    return base_model(tmp_path_factory.mktemp("base") / "base", tokenizer)


@pytest.fixture(scope="session")
def bases(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    """A small loud body of every family, with a tokenizer that tells two texts apart only where the model does."""
    folder = tmp_path_factory.mktemp("bases")
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    specials = [(name, tokenizer.id(name)) for name in ("[CLS]", "[SEP]")]
    backend.post_processor = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", specials)
    for name, family in FAMILIES.items():
        shape = replace(
            TINY, width=24, ffn_width=48, layers=2, positions=Learned(64), dropout=0.0, attention_dropout=0.0
        )
        encoder = family.fresh(
            replace(shape, embedding_width=12) if name in ("electra", "albert", "deberta-v2") else shape
        )
        own = tokenizer if encoder.segments > 1 else Tokenizer(backend)
        model = Model.new(ModelConfig(encoder, (), family=name), own, seed=1)
        make_loud(model)
        save(model, folder / name)
    return {name: folder / name for name in FAMILIES}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: the same `main`, without waiting for torch each time."""

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["bothways", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0
        out, err = capfd.readouterr()
        return subprocess.CompletedProcess(sys.argv, code, out, err)

    return call
