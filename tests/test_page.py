"""The page for browsers: its scripts read and answer as Python does. They run in node; `make page-test` runs a browser."""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.numpy
import torch

import bothways
from bothways.data.words import split_words
from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.lora import adapt, save_adapter
from bothways.model.model import Model
from bothways.page.describe import describe
from bothways.page.weights import Weights, low_rank
from bothways.page.write import STATIC, write_page
from bothways.predict.predictor import Predictor
from bothways.tasks.folder import with_task
from bothways.tasks.registry import make_task, new_config
from bothways.tasks.task import TaskConfig
from bothways.text.scripts import _RANGES, SCRIPTS, find_strange, starts_of
from bothways.text.tokenizer import Tokenizer
from helpers import PIECES, TINY, make_loud, refused
from helpers.cli import Run
from helpers.strings import many_strings

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="node is not installed: the page's scripts cannot run")
BROWSER = Path(__file__).parent / "browser"
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
TEXTS = [
    "the cat didn't sleep in Paris, the capital of France!",
    "北京是中国的首都。 😀 a dog",
    "the big house " * 40 + "and the cat",
    "?",
    "the dog run't in the house",
]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's scripts, where node takes them for modules."""
    folder = tmp_path_factory.mktemp("scripts")
    shutil.copytree(STATIC / "scripts", folder, dirs_exist_ok=True)
    (folder / "package.json").write_text('{"type": "module"}')
    return folder


def call(scripts: Path, tokenizers: Sequence[Tokenizer | dict[str, Any]], calls: list[Any]) -> list[Any]:
    """What functions of the scripts return."""
    files = [json.loads(one.backend.to_str()) if isinstance(one, Tokenizer) else one for one in tokenizers]
    given, found = scripts / "given.json", scripts / "found.json"
    given.write_text(json.dumps({"tokenizers": files, "calls": calls}), encoding="utf-8")
    assert NODE is not None
    subprocess.run([NODE, BROWSER / "functions.mjs", scripts, given, found], check=True, timeout=120)
    answers: list[Any] = json.loads(found.read_text(encoding="utf-8"))
    return answers


def units(text: str) -> list[int]:
    """The place of each character, and of the end, in UTF-16 units: JavaScript counts in these."""
    sizes = [1 + (ord(character) > 0xFFFF) for character in text]
    return [0, *np.cumsum(sizes).tolist()]


OPTIONS: list[dict[str, bool]] = [
    {"lower": True},
    {"lower": False},
    {"lower": False, "strip_accents": True, "split_cjk": False},
]


@needs_node
def test_tokens_equal_ours(scripts: Path) -> None:
    """12,000 strings, with their offsets; a tokenizer with another option gives others."""
    texts = many_strings()
    tokenizers = [Tokenizer.from_pieces(PIECES, **options) for options in OPTIONS]
    found = call(
        scripts,
        tokenizers,
        [["encode", 0, text] for text in texts] + [["encode", n, text] for n in (1, 2) for text in texts[:3000]],
    )
    asked = [(0, text) for text in texts] + [(n, text) for n in (1, 2) for text in texts[:3000]]
    expected = [iter(tokenizers[n].raw_batch([text for m, text in asked if m == n], specials=False)) for n in range(3)]
    wrong = []
    for (n, text), ours in zip(asked, found, strict=True):
        theirs, at = next(expected[n]), units(text)
        offsets = [[at[start], at[end]] for start, end in theirs.offsets]
        if (ours["ids"], ours["offsets"]) != (theirs.ids, offsets):
            wrong.append((n, text, ours["ids"], theirs.ids))
    assert wrong == []
    assert [one["ids"] for one in found[: len(texts)]][:3000] != [one["ids"] for one in found[len(texts) :][:3000]]


@needs_node
def test_words_equal_ours(scripts: Path) -> None:
    sentences = [
        "Don't go to John's, Mr. O'Brien can't; we cannot. U.S. 3.14, 10:30!", "Mail a.b@c.org or see https://x.org/a?b=c.", ":-) (a) ... -- e.g. it's 1990's",
        "rock'n'roll o'clock ma'am D'Arcy naïve’s n’t 北京的U.S.店 👍🏽s http://é.org www.x", "x@y :P :p ;) ==> a.k.a. St. st.",
    ]  # fmt: skip
    texts = [*sentences, *many_strings(3000)]
    expected = []
    for text in texts:
        at = units(text)
        expected.append([[at[start], at[end]] for start, end in split_words(text)])
    found = call(scripts, [], [["words", text] for text in texts])
    assert [(text, f, e) for text, f, e in zip(texts, found, expected, strict=True) if f != e] == []


@needs_node
def test_texts_that_a_model_cannot_read_are_those_of_python(scripts: Path) -> None:
    """Random strings, mixtures of two scripts, and all borders of the ranges of letters."""
    mixed = [
        "北京" * chinese + "a cat " * latin + "кот " * cyrillic + "ねこ" * japanese
        for chinese in range(4) for latin in range(4) for cyrillic in range(3) for japanese in range(2)
    ]  # fmt: skip
    borders = [chr(code) * 3 for first, last, _ in _RANGES for code in (first - 1, first, last, last + 1)]
    texts = [*mixed, *borders, "😀" * 127 + "北京" * 9, "", *many_strings(3000)]
    known = [["Latin"], ["Chinese"], ["Chinese", "Latin"], [*SCRIPTS]]
    calls = [(text, scripts_of_model) for scripts_of_model in known for text in texts]
    found = call(scripts, [], [["strange", *one] for one in calls])
    expected = [find_strange(starts_of([text], frozenset(own)), frozenset(own)) is not None for text, own in calls]
    assert 100 < sum(expected) < len(expected) / 2
    assert [(one, f) for one, f, e in zip(calls, found, expected, strict=True) if f != e] == []


# ---------------------------------------------------------------------- from logits to answers

CONFIGS: list[tuple[TaskConfig, tuple[str, ...]]] = [
    (new_config("classify", kind="single", temperature=1.7), ("a", "b", "c")),
    (new_config("classify", kind="multi", thresholds={"a": 0.3}, texts=1), ("a", "b", "c")),
    (new_config("classify", kind="regression"), ("score",)),
    (new_config("classify", kind="single", texts=2), ("a", "b", "c")),
    (new_config("tag", temperature=0.8), TAGS),
    (new_config("tag", temperature=0.8), ("ADJ", "NOUN", "VERB")),
    (new_config("answer", max_answer_length=4, temperature=1.3), ()),
    (new_config("answer", max_answer_length=30, thresholds={"null": -6.0}), ()),
    (new_config("answer", max_answer_length=9, window=WindowSettings(length=30, overlap=5)), ()),
    (new_config("classify", kind="single", window=WindowSettings(length=20, long="cut")), ("a", "b")),
]


def task_model(config: TaskConfig, labels: tuple[str, ...], tokenizer: Tokenizer) -> Model:
    model = with_task(Model.new(ModelConfig(replace(TINY, layers=2)), tokenizer, seed=2), config, labels).eval()
    make_loud(model)
    return model


def inputs_of(config: TaskConfig) -> list[Any]:
    if config.task == "answer":
        return [("the cat?", text) for text in TEXTS]
    return [(text, "a dog runs to the house") for text in TEXTS] if getattr(config.options, "texts", 0) == 2 else TEXTS


@needs_node
def test_answers_from_recorded_logits_equal_ours(scripts: Path, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """The same windows of tokens, and from the same logits the same answers: of every task and setting."""
    random = np.random.default_rng(0)
    calls, expected = [], []
    for config, labels in CONFIGS:
        model = task_model(config, labels, tokenizer)
        task = make_task(model)
        about = describe(model, "m", tmp_path, "")
        for given in inputs_of(config):
            item = task.encode([task.parse(given)])[0]
            sizes = [(len(view), 2 if config.task == "answer" else len(labels)) for view in item.views]
            outputs = [3 * random.normal(size=size if task.per_token else size[1]).astype(np.float32) for size in sizes]
            decoded = task.decode(item, outputs)
            expected.append(
                (
                    given,
                    [view.ids.tolist() for view in item.views],
                    task.answer(item, decoded, 3 if task.has_ranking else 1),
                )
            )
            texts = [given] if isinstance(given, str) else list(given)
            calls.append(
                [
                    "decode",
                    {
                        "tokenizer": 0,
                        "model": about,
                        "task": config.task,
                        "texts": texts,
                        "logits": [one.tolist() for one in outputs],
                    },
                ]
            )
    found = call(scripts, [tokenizer], calls)
    assert sum(len(ids) > 1 for _, ids, _ in expected) >= 8
    for (given, ids, answer), ours in zip(expected, found, strict=True):
        assert ours["ids"] == ids
        assert_same(ours["answer"], answer, given)


def assert_same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], given: Any, limit: float = 1e-6) -> None:
    """The page's answers, and Python's."""
    text = given if isinstance(given, str) else given[-1]
    at = units(text)
    for one, two in zip(ours, theirs, strict=len(theirs) != 3):  # of labels, Python was asked for the best three
        assert one["score"] == pytest.approx(two["score"], abs=limit), (given, ours, theirs)
        assert one.get("label") == two.get("label", two.get("entity_group"))
        if "start" in two:
            assert (one["start"], one["end"]) == (at[two["start"]], at[two["end"]])


# ---------------------------------------------------------------------- the page as a whole


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> dict[str, Path]:
    """An encoder, a LoRA adapter of it, and models for other tasks."""
    home = tmp_path_factory.mktemp("models")
    encoder = Model.new(ModelConfig(TINY, ("masked",)), tokenizer, seed=1).eval()
    make_loud(encoder)
    save(encoder, home / "encoder")
    for name, (config, labels) in {"pairs": CONFIGS[3], "tags": CONFIGS[4], "answers": CONFIGS[7]}.items():
        save(task_model(config, labels, tokenizer), home / name)
    adapted = with_task(bothways.load(home / "encoder"), CONFIGS[1][0], CONFIGS[1][1])
    adapt(adapted, LoraShape())
    make_loud(adapted.heads)
    for name, parameter in adapted.named_parameters():
        if ".up." in name:
            make_loud_parameter(parameter)
    save_adapter(adapted, str(home / "encoder"), home / "adapter")
    return {folder.name: folder for folder in home.iterdir()}


class LoraShape:
    rank, alpha, dropout, targets = 2, 4.0, 0.0, ("all-linear",)


def make_loud_parameter(parameter: Any) -> None:
    import torch

    with torch.no_grad():
        parameter.copy_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))


@pytest.fixture(scope="module")
def page(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "page"
    written = write_page(out, [folders[name] for name in ("adapter", "pairs", "tags", "answers")])
    assert written.models == ("encoder", "adapter", "pairs", "tags", "answers")
    assert written.size == sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    return out


Question = dict[str, Any]
FILLS = ["the [MASK] sleeps in the house", "play[MASK]", "中国的[MASK][MASK]是北京。", "the [MASK] in [MASK] 😀"]
LINES = ["the dog runs.", "猫", "the black cat"]
REFUSED: dict[str, Question] = {
    "noMask": {"task": "fill", "model": "encoder", "given": {"text": "no blank"}},
    "tooLong": {"task": "fill", "model": "encoder", "given": {"text": "[MASK] " + "the " * 60}},
    "empty": {"task": "tag", "model": "tags", "given": {"text": " "}},
    "noRoom": {"task": "answer", "model": "answers", "given": {"question": "the cat " * 30, "text": "the dog"}},
}
NOTED: dict[str, Question] = {
    "cutLines": {"task": "similar", "model": "encoder", "given": {"text": "the cat", "lines": "the dog " * 40}},
    "cut": {"task": "attention", "model": "encoder", "given": {"text": "the dog " * 40}},
    "windows": {"task": "tag", "model": "tags", "given": {"text": TEXTS[2]}},
    "strange": {"task": "classify", "model": "adapter", "given": {"text": "北京是中国的首都。"}},
    "strangeLines": {
        "task": "similar",
        "model": "encoder",
        "given": {"text": "the cat", "lines": "北京是中国的首都。"},
    },
}
OTHERS: list[Question] = [
    *({"task": "fill", "model": "encoder", "given": {"text": text}} for text in FILLS),
    {"task": "similar", "model": "encoder", "given": {"text": "the cat", "lines": "\n".join(LINES)}},
    {"task": "attention", "model": "encoder", "given": {"text": TEXTS[0]}},
]
PREDICTED = [
    ("classify", "adapter", 1), ("classify", "pairs", 3), ("tag", "tags", 4), ("answer", "answers", 7),
]  # fmt: skip
"""The tab, the model, and its place in `CONFIGS`."""


def predictions() -> list[tuple[str, Any, Question]]:
    """Inputs of the tasks: the model, what Python is given, and what the page is."""
    found = []
    for task, model, place in PREDICTED:
        for given in inputs_of(CONFIGS[place][0])[:3]:
            first, second = given if isinstance(given, tuple) else (given, "")
            values = {"question": first, "text": second} if task == "answer" else {"text": first, "second": second}
            found.append((model, given, {"task": task, "model": model, "given": values}))
    return found


@pytest.fixture(scope="module")
def answered(page: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the worker answers to all questions: to predictions, others, refused and noted ones."""
    home = tmp_path_factory.mktemp("worker")
    shutil.copytree(page, home / "page")
    (home / "page" / "package.json").write_text('{"type": "module"}')
    index = json.loads((page / "models.json").read_text(encoding="utf-8"))
    for model in index["models"]:  # a toy vocabulary is taken to have words of all scripts
        assert set(model["scripts"]) == set(SCRIPTS)
        model["scripts"] = ["Latin"]
    (home / "page" / "models.json").write_text(json.dumps(index), encoding="utf-8")
    questions = [*(one for *_, one in predictions()), *OTHERS, *REFUSED.values(), *NOTED.values()]
    (home / "questions.json").write_text(json.dumps(questions), encoding="utf-8")
    assert NODE is not None
    files = (BROWSER / "worker.mjs", home / "page", home / "questions.json", home / "answers.json")
    subprocess.run([NODE, *map(str, files)], check=True, timeout=300)
    found: list[dict[str, Any]] = json.loads((home / "answers.json").read_text(encoding="utf-8"))
    return sorted(found, key=lambda answer: int(answer["id"]))


FP16 = 3e-3
"""Probabilities from weights in 16 bits."""


@needs_node
def test_the_worker_predicts_as_python_does(answered: list[dict[str, Any]], folders: dict[str, Path]) -> None:
    """ONNX Runtime for browsers, in node: every task, an adapter on its encoder's weights, windows."""
    for (model, given, _), ours in zip(predictions(), answered, strict=False):
        predict = Predictor.load(folders[model])
        theirs = predict(given, top=3 if predict.task.has_ranking else 1)
        assert_same(ours["found"]["results"], theirs, given, FP16)


@needs_node
def test_the_worker_fills_compares_and_attends_as_python_does(
    answered: list[dict[str, Any]], folders: dict[str, Path]
) -> None:
    first = len(predictions())
    *fills, similar, attention = [one["found"] for one in answered[first : first + len(OTHERS)]]
    encoder = bothways.load(folders["encoder"])
    for text, ours in zip(FILLS, fills, strict=True):
        theirs = bothways.fill(text, encoder)
        assert [one["score"] for one in ours["results"]] == pytest.approx([one.score for one in theirs], abs=FP16)
        texts = ["".join(part["text"] for part in one["parts"]) for one in ours["results"]]
        assert texts == [one.text for one in theirs]
    vectors = bothways.encode(["the cat", *LINES], encoder)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = dict(zip(LINES, (vectors[1:] @ vectors[0]).tolist(), strict=True))
    assert {one["text"]: one["score"] for one in similar["results"]} == pytest.approx(cosines, abs=FP16)
    batch = encoder.batch(encoder.require_tokenizer().batch([TEXTS[0]]))
    maps = encoder.encoder.activations(batch, attentions=[1, 2, 3]).attentions
    assert len(attention["maps"]) == 3
    for layer, own in enumerate(attention["maps"], 1):
        assert np.abs(np.array(own) - maps[layer][0].detach().numpy().reshape(-1)).max() < FP16


@needs_node
def test_the_worker_says_what_it_does_not_read(answered: list[dict[str, Any]]) -> None:
    last = answered[len(predictions()) + len(OTHERS) :]
    assert [one["error"]["code"] for one in last[: len(REFUSED)]] == list(REFUSED)
    assert [one["found"]["notes"][0][0] for one in last[len(REFUSED) :]] == list(NOTED)


def test_graphs_and_weights_make_the_model(page: Path, folders: dict[str, Path]) -> None:
    """Read as the formats say, without our scripts: of an encoder, and of an adapter that stores what it adds."""
    about = {one["name"]: one for one in json.loads((page / "models.json").read_text())["models"]}
    weights = {name: safetensors.numpy.load_file(page / one["weights"]) for name, one in about.items()}
    assert about["adapter"]["base"] == "encoder"
    assert all(array.dtype == np.float16 for array in weights["encoder"].values())
    assert any(name.endswith(".up") for name in weights["adapter"])
    encoder, adapter = ((page / about[name]["weights"]).stat().st_size for name in ("encoder", "adapter"))
    assert adapter < encoder / 2
    for name, model in ((name, bothways.load(folders[name])) for name in ("encoder", "adapter")):
        # Nothing is stored under the name of one graph, though a graph may have the rows of a matrix apart.
        state = tuple(f"{key}{end}" for key in model.state_dict() for end in (".", "\n"))
        strange = [key for key in weights[name] if not f"{key}\n".startswith(state)]
        assert not strange, name
    model = bothways.load(folders["adapter"])
    encoding = model.require_tokenizer()(TEXTS[0])
    graph = about["adapter"]["graphs"]["sequence"]
    options = onnxruntime.SessionOptions()
    arrays = [tensor_of(name, weights["adapter"], weights["encoder"]) for name in graph["tensors"]]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in arrays]
    names = initializer_names(page / graph["file"], graph["tensors"])
    options.add_external_initializers([name for name, _ in names], [values[i] for _, i in names])
    session = onnxruntime.InferenceSession(page / graph["file"], options)
    ids = np.array([encoding.ids])
    (logits, *maps) = session.run(
        None, {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    )
    batch = model.batch([encoding])
    expected = model.logits("sequence", model.encoder(batch), batch).detach().numpy()
    assert len(maps) == 3
    assert np.abs(logits - expected).max() < 5e-3 * np.abs(expected).max()


def tensor_of(name: str, own: dict[str, Any], base: dict[str, Any]) -> Any:
    if name in own:
        return own[name].astype(np.float32)
    found = base[name].astype(np.float32)
    return (
        found + own[f"{name}.up"].astype(np.float32) @ own[f"{name}.down"].astype(np.float32)
        if f"{name}.up" in own
        else found
    )


def initializer_names(file: Path, tensors: list[str]) -> list[tuple[str, int]]:
    """The initializers that are outside of a graph, with the place of their weights in a list."""
    import onnx

    graph = onnx.load(file, load_external_data=False).graph
    return [(one.name, tensors.index(one.external_data[0].value)) for one in graph.initializer if one.external_data]


def test_low_rank() -> None:
    random = np.random.default_rng(1)
    found = low_rank(random.normal(size=(60, 3)) @ random.normal(size=(3, 50)))
    assert found is not None
    assert found[0].shape == (60, 3)
    assert low_rank(random.normal(size=(60, 50))) is None
    assert low_rank(random.normal(size=60)) is None


# ---------------------------------------------------------------------- the files


def test_parts_of_matrices_are_found_where_rows_begin_alike(tokenizer: Tokenizer) -> None:
    """A graph has the queries' part of three stacked matrices, and the first rows of several parts are zeros."""
    model = Model.new(ModelConfig(replace(TINY, vocab_size=len(PIECES), width=64), ("pooler",)), tokenizer)
    names = [name for name, tensor in model.named_parameters() if tensor.ndim == 2]
    with torch.no_grad():
        for tensor in (parameter for parameter in model.parameters() if parameter.ndim == 2):
            tensor[::16] = 0.0  # all parts begin alike
    state = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    given = {f"whole {name}": state[name] for name in names} | {f"part {name}": state[name][16:48] for name in names}
    given = {name: array for name, array in given.items() if array.size >= 1_024}
    given["other"] = np.ones((40, 64), np.float32)
    graph = onnx.helper.make_graph([], "tiny", [], [], [onnx.numpy_helper.from_array(a, n) for n, a in given.items()])
    weights = Weights(model)
    found = weights.take_out(onnx.helper.make_model(graph), "output")
    wanted = [name.removeprefix("whole ") if "whole" in name else f"{name[5:]}.16-48" for name in given]
    assert found == [*wanted[:-1], "output.other"]
    for name, array in zip(found, given.values(), strict=True):
        assert np.allclose(weights.stored[name], array, atol=1e-3)


def test_nothing_is_requested_from_elsewhere() -> None:
    """The policy of the page, and no address of another host in our own files."""
    index = (STATIC / "index.html").read_text(encoding="utf-8")
    policy = dict(
        part.strip().partition(" ")[::2] for part in re.findall(r'Policy" content="([^"]*)"', index)[0].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert not re.search(r"<script(?! type=\"module\" src)|\sstyle=|\son\w+=", index)
    for file in [STATIC / "index.html", STATIC / "page.css", *(STATIC / "scripts").iterdir()]:
        assert "://" not in file.read_text(encoding="utf-8").replace("\\/\\/", ""), file.name
    assert "sourceMappingURL" not in (STATIC / "runtime" / "ort.js").read_text(encoding="utf-8")


def test_the_files_are_small() -> None:
    """What the package carries for the page, beyond the models."""
    assert sum(file.stat().st_size for file in STATIC.rglob("*") if file.is_file()) < 5e6
    for file in (STATIC / "scripts").iterdir():
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 400


@needs_node
def test_both_languages_say_everything(scripts: Path) -> None:
    """The same keys and placeholders, in English and Chinese."""
    assert NODE is not None
    code = "import {TEXTS} from './texts.js'; console.log(JSON.stringify(TEXTS))"
    done = subprocess.run(
        [NODE, "--input-type=module", "-e", code], cwd=scripts, capture_output=True, check=True, encoding="utf-8"
    )
    texts = json.loads(done.stdout)

    def keys(value: Any, path: str = "") -> dict[str, set[str]]:
        if isinstance(value, str):
            return {path: set(re.findall(r"\{\w+\}", value))}
        return {name: own for key, one in value.items() for name, own in keys(one, f"{path}.{key}").items()}

    assert keys(texts["en"]) == keys(texts["zh"])


def test_what_a_page_cannot_show_is_refused(tmp_path: Path, tokenizer: Tokenizer, folders: dict[str, Path]) -> None:
    save(task_model(new_config("score"), ("score",), tokenizer), tmp_path / "scores")
    with refused("unsupported-task", "score"):
        write_page(tmp_path / "page", [tmp_path / "scores"])
    with refused("no-folder"):
        write_page(tmp_path / "page", [tmp_path / "nothing"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with refused("other-files", tmp_path / "full"):
        write_page(tmp_path / "full", [folders["tags"]])
    assert not (tmp_path / "page").exists()


def test_other_tokenizers_are_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    from helpers import byte_level

    vocabulary, merges = byte_level(("<s>", "<pad>", "</s>", "<unk>", "<mask>"))
    backend = Backend(models.BPE(vocabulary, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    model = Model.new(ModelConfig(replace(TINY, vocab_size=380), ("masked",)), Tokenizer(backend))
    save(model, tmp_path / "bytes")
    with refused("unsupported-tokenizer", "BPE"):
        write_page(tmp_path / "page", [tmp_path / "bytes"])


def test_command(run: Run, folders: dict[str, Path], tmp_path: Path) -> None:
    done = run("page", folders["tags"], "--out", tmp_path / "page", "--json")
    assert json.loads(done.stdout)["models"] == ["tags"]
    assert (tmp_path / "page" / "index.html").exists()
    assert (tmp_path / "page" / "runtime" / "LICENSE").exists()
    again = run("page", folders["encoder"], "--out", tmp_path / "page", "--json")
    assert json.loads(again.stdout)["models"] == ["encoder"]
    assert not (tmp_path / "page" / "models" / "tags").exists()
