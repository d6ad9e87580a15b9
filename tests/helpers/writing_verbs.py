"""Every command that writes, as a table: tests/test_kills.py kills each of them, and fails if one is missing."""

import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.pretraining.pack import pack
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, WORDS, config_for, make_loud

READERS = {
    "info", "fill", "doctor", "models", "blimp", "rerank", "vocab show",
    "search query", "serve",
}  # fmt: skip
"""The commands that write nothing but a cache, and so are not killed here."""
WRITES = {"out", "target", "html", "picture", "calibrate"}
"""The parameters of commands that name what is written."""


@dataclass(frozen=True)
class Writer:
    """A command that is killed. `{data}` is the folder of the inputs, which no command changes."""

    command: str
    outputs: tuple[str, ...]
    """Files and folders that hold after a kill what they held before the command, or what they hold after it."""
    before: tuple[str, ...] = ()
    """Commands that come first: they write an older output, or what this command changes."""
    asks: str = ""
    """A command that reads the output. After a kill, it prints what it did before, or what it does afterwards."""
    varies: tuple[str, ...] = ()
    """Names of files that hold times, so that no two runs write the same bytes."""
    twice: int = 0
    """The exit code of the command when its work is done already."""


def _files(command: str, *outputs: str) -> Writer:
    """A command that replaces an older result of the same command on other texts."""
    return Writer(
        command.replace("{text}", "{data}/texts.txt"), outputs, (command.replace("{text}", "{data}/old.txt"),)
    )


_RUN = ("metrics.jsonl", "state.json", "curve.png")
_CPU = "--set run.device=cpu"
_STEPS = f"--set run.steps=4 --set run.save_every=2 --set run.evaluate_every=2 {_CPU}"
_TUNE = f"--train {{data}}/rows.tsv --dev {{data}}/rows.tsv --out run --set run.batch_size=4 {_STEPS}"
_PRETRAIN = f"pretrain {{data}}/recipe.toml --data {{data}}/packed --out run {_STEPS}"
_SUITE = f"--model {{data}}/model --out suite --seeds 1 --set run.steps=2 {_CPU}"
_BUILD = "search build {data}/old.txt --out index --model {data}/model --device cpu"
_HITS = 'search query "the black cat" --index index --device cpu --json'
_MODEL, _TUNED = "--model {data}/model --device cpu", "--model {data}/tuned --device cpu"

WRITERS = {
    "convert": Writer(
        "convert {data}/model out --dtype bf16", ("out",), ("convert {data}/model out",)
    ),
    "convert to google": Writer(
        "convert {data}/model out --to google", ("out",), ("convert {data}/tuned out --to google",)
    ),
    "export": Writer("export {data}/tuned --out graph", ("graph",)),
    "compress": Writer(
        "compress {data}/tuned --train {data}/rows.tsv --dev {data}/few.tsv --keep 0 --precision int8 --vocabulary pruned --out small --set run.steps=2 --device cpu",
        ("small/config.json", "small/onnx", "small/README.md", "small/tokenizer.json"),
        ("compress {data}/tuned --train {data}/rows.tsv --dev {data}/few.tsv --keep 0 --precision fp16 --layers 0 --vocabulary whole --out small --device cpu",),
        varies=("compress.json",),
    ),
    "page": Writer("page {data}/tuned --out site", ("site",)),
    "export of a second precision": Writer("export {data}/tuned --out graph --precision int8", ("graph/onnx",), ("export {data}/tuned --out graph",)),
    "encode": _files(f"encode {{text}} --out v.npy {_MODEL}", "v.npy"),
    "encode tokens": _files(f"encode {{text}} --per token --out v.npy {_MODEL}", "v.npy", "v.npy.jsonl"),
    "encode to jsonl": _files(f"encode {{text}} --out v.jsonl {_MODEL}", "v.jsonl"),
    "encode to parquet": _files(f"encode {{text}} --out v.parquet {_MODEL}", "v.parquet"),
    "encode several": Writer(f"encode {{data}}/texts.txt {{data}}/old.txt --out vs --rows-per-part 20 {_MODEL}", ("vs/texts.npy", "vs/old.npy")),
    "similar": _files(f"similar {{text}} --top 5 --out pairs.jsonl {_MODEL}", "pairs.jsonl"),
    "cluster": _files(f"cluster {{text}} --k 3 --out groups.jsonl {_MODEL}", "groups.jsonl"),
    "static": Writer("static {data}/model --out table --width 8 --device cpu", ("table",), ("static {data}/model --out table --width 16 --device cpu",)),
    "mine": Writer(f"mine {{data}}/pairs.jsonl --negatives 2 --out mined.jsonl {_MODEL}", ("mined.jsonl",), (f"mine {{data}}/pairs.jsonl --negatives 1 --out mined.jsonl {_MODEL}",)),
    "pack": _files("pack {text} --model {data}/model --valid 20% --each lines --out packed", "packed"),
    "pretrain": Writer(_PRETRAIN, ("run/model",), varies=_RUN),
    "pretrain with a generator": Writer(_PRETRAIN.replace("recipe", "generator"), ("run/model", "run/generator"), varies=_RUN),
    "pretrain lora": Writer(f"{_PRETRAIN} --set model.init={{data}}/model --set lora.rank=2", ("run/model",), varies=_RUN),
    "adapt": Writer(f"adapt {{data}}/texts.txt --out run --model {{data}}/model --each lines --valid 20% --set run.save_every=2 {_CPU} --epochs 1", ("run/model",), varies=_RUN),
    "finetune": Writer(f"finetune classify --model {{data}}/model {_TUNE}", ("run/model",), varies=_RUN),
    "finetune lora": Writer(f"finetune classify --model {{data}}/model {_TUNE} --set lora.rank=2", ("run/model",), varies=_RUN),
    "finetune seeds": Writer(f"finetune classify --model {{data}}/model {_TUNE} --seeds 2", ("run/model", "run/seed-0/model", "run/seed-1/model"), varies=_RUN),
    "finetune from a teacher": Writer(f"finetune classify --model {{data}}/model {_TUNE} --teacher {{data}}/tuned --set model.keep_layers=1", ("run/model",), varies=_RUN),
    "finetune embed": Writer(f"finetune embed --model {{data}}/model {_TUNE.replace('rows.tsv', 'related.jsonl')}", ("run/model",), varies=_RUN),
    "evaluate --calibrate": Writer("evaluate {data}/rows.tsv --model tuned --device cpu --calibrate", ("tuned/config.json",), ("convert {data}/tuned tuned",)),
    "evaluate --picture": Writer(f"evaluate {{data}}/rows.tsv --picture scores.svg {_TUNED}", ("scores.svg",), (f"evaluate {{data}}/few.tsv --picture scores.svg {_TUNED}",)),
    "evaluate-vectors": Writer(f"evaluate-vectors {{data}}/sets --out scores.json {_MODEL}", ("scores.json",), ("evaluate-vectors {data}/sets --out scores.json --model {data}/tuned --device cpu",)),
    "predict": _files(f"predict {{text}} --out answers.jsonl {_TUNED}", "answers.jsonl"),
    "predict to csv": _files(f"predict {{text}} --out answers.csv --rows-per-part 20 --probabilities {_TUNED}", "answers.csv"),
    "predict to parquet": _files(f"predict {{text}} --out answers.parquet --rows-per-part 20 {_TUNED}", "answers.parquet"),
    "predict several": Writer(f"predict {{data}}/texts.txt {{data}}/old.txt --out answers --rows-per-part 20 {_TUNED}", ("answers/texts.jsonl", "answers/old.jsonl")),
    "predict --html": _files("predict {text} --html page.html --model {data}/tagger --device cpu", "page.html"),
    "bertscore": _files(f"bertscore {{text}} {{data}}/texts.txt --out scores.csv {_MODEL}", "scores.csv"),
    "glue": Writer(f"glue {{data}}/glue --only cola {_SUITE}", ("suite/results.json", "suite/table.txt"), varies=_RUN),
    "squad": Writer(f"squad {{data}}/squad {_SUITE}", ("suite/results.json", "suite/table.txt"), varies=_RUN),
    "conll": Writer(f"conll {{data}}/conll {_SUITE}", ("suite/results.json", "suite/table.txt"), varies=_RUN),
    "vocab train": _files("vocab train {text} --size 300 --out vocabulary", "vocabulary"),
    "vocab extend": Writer("vocab extend {data}/model --words {data}/words.txt --out larger", ("larger",), ("convert {data}/model larger",)),
    "vocab shrink": Writer("vocab shrink {data}/model --from {data}/words.txt --out smaller", ("smaller",), ("convert {data}/model smaller",)),
    "search build": Writer(_BUILD, (), asks=_HITS),
    "search build with a graph": Writer(f"{_BUILD} --ann", (), asks=_HITS, varies=("graph.usearch",)),
    "search add": Writer("search add index {data}/texts.txt --device cpu", (), (_BUILD,), _HITS),
    "search delete": Writer("search delete index --id 1 --id 3", ("index/manifest.json",), (_BUILD,), _HITS, twice=1),
    "search compact": Writer("search compact index", ("index/manifest.json",), (_BUILD, "search add index {data}/texts.txt --device cpu", "search delete index --id 1"), _HITS),
}  # fmt: skip


_BAD = "{data}/bad.tsv"
_LATE = "{data}/texts.txt --model {data}/model"
REFUSED = [
    "convert {data}/model new/out --to google --dtype fp16",
    "convert {data}/sets new/out",
    "export {data}/sets --out new/graph",
    f"compress {{data}}/tuned --train {_BAD} --dev {{data}}/few.tsv --layers 0 --out new/small --device cpu",
    f"compress {{data}}/tuned --train {{data}}/rows.tsv --dev {_BAD} --layers 0 --out new/small --device cpu",
    "page {data}/tuned {data}/sets --out new/site",
    f"encode {{data}}/long.txt --out new/v.npy {_MODEL}",
    f"encode {{data}}/long.txt --out new/v.parquet --per token {_MODEL}",
    f"encode {_BAD} {{data}}/rows.tsv --out new/vs {_MODEL}",
    f"encode {_BAD} {{data}}/rows.tsv --text none --out new/vs --model {{data}}/model --devices cpu:2",
    f"similar {{data}}/long.txt --out new/pairs.jsonl {_MODEL}",
    f"cluster {{data}}/texts.txt --k 99 --out new/groups.jsonl {_MODEL}",
    "static {data}/sets --out new/table",
    f"mine {{data}}/texts.txt --out new/mined.jsonl {_MODEL}",
    f"pack {_BAD} --model {{data}}/model --out new/packed",
    f"pack {_BAD} --model {{data}}/model --out new/packed --devices cpu:2",
    "pack {data}/empty.txt --model {data}/model --out new/packed",
    "pack {data}/empty.txt --model {data}/model --out new/packed --devices cpu:1",
    f"pack {_LATE} --valid 99.99% --out new/packed --devices cpu:1",
    "pretrain {data}/recipe.toml --data {data}/sets --out new/run",
    "pretrain {data}/recipe.toml --data {data}/packed --out new/run --set optim.schedule=none",
    "adapt {data}/empty.txt --model {data}/model --out new/run",
    f"adapt {_LATE} --out new/run",
    f"adapt {_LATE} --each lines --valid 20% --out new/run --set no.key=1",
    f"adapt {_LATE} --each lines --valid 20% --out new/run --set phases.0.length=9999",
    f"finetune classify --train {_BAD} --model {{data}}/model --out new/run",
    f"finetune classify --train {{data}}/rows.tsv --dev {_BAD} --model {{data}}/model --out new/run",
    "finetune classify --train {data}/rows.tsv --model {data}/model --out new/run --set model.freeze=9",
    f"finetune classify --train {{data}}/rows.tsv --dev {_BAD} --model {{data}}/model --out new/run --seeds 2",
    "finetune classify --train {data}/rows.tsv --teacher {data}/tagger --model {data}/model --out new/run",
    f"evaluate {_BAD} --model {{data}}/tuned --picture new/scores.svg",
    "evaluate-vectors {data}/glue --out new/scores.json --model {data}/model",
    f"predict {_BAD} --out new/answers.csv {_TUNED}",
    f"predict {_BAD} {{data}}/rows.tsv --out new/answers {_TUNED}",
    f"predict {_BAD} --out new/answers.csv --model {{data}}/tuned --devices cpu:1",
    f"predict {{data}}/rows.tsv --keep none --out new/answers.jsonl {_TUNED}",
    "predict {data}/none.txt --html new/page.html --model {data}/tagger --device cpu",
    f"bertscore {{data}}/texts.txt {{data}}/few.tsv --out new/scores.csv {_MODEL}",
    "glue {data}/sets --model {data}/model --out new/suite",
    "squad {data}/sets --model {data}/model --out new/suite",
    "conll {data}/sets --model {data}/model --out new/suite",
    "vocab train {data}/empty.txt --size 300 --out new/vocabulary",
    "vocab extend {data}/model --words {data}/empty.txt --out new/larger",
    "vocab shrink {data}/model --from {data}/empty.txt --out new/smaller",
    "search build {data}/empty.txt --out new/index --model {data}/model",
    f"search build {{data}}/long.txt --out new/index --long error {_MODEL}",
    "search build {data}/long.txt --out new/index --long error --model {data}/model --devices cpu:2",
    "search add new/index {data}/texts.txt",
    "search delete new/index --id 1",
    "search compact new/index",
]  # fmt: skip
"""Commands that are refused, before or amid their work, and leave nothing of it."""


def texts(count: int, seed: int) -> list[str]:
    """Lines of words, Chinese ones too."""
    draws = random.Random(seed)
    plain = [word for word in WORDS if not word.startswith("##") and len(word) > 1] + ["中国", "北京", "猫"]
    return [" ".join(draws.choices(plain, k=draws.randint(3, 12))) for _ in range(count)]


def make_inputs(folder: Path, tokenizer: Tokenizer) -> None:
    """The models and files that the commands read."""
    _write_models(folder, tokenizer)
    lines = texts(48, 1)
    files = {
        "texts.txt": "\n".join(lines),
        "old.txt": "\n".join(texts(48, 2)),
        "long.txt": "the cat\n" + "the cat " * 99,
        "empty.txt": "",
        "bad.tsv": "a\tb\nthe\tcat\n",
        "words.txt": "blockchain\n区块链\n",
        "rows.tsv": _table([(line, "yes" if "cat" in line else "no") for line in lines[:24]]),
        "few.tsv": _table([(line, "yes" if i % 2 else "no") for i, line in enumerate(lines[:8])]),
        "recipe.toml": _RECIPE,
        "generator.toml": _RECIPE.replace('["mlm"]', '["mlm", "rtd"]').replace("[model]", '[model]\nfamily = "electra"'),
        "pairs.jsonl": _jsonl([{"anchor": a, "positive": b} for a, b in zip(lines[:24], lines[24:], strict=True)]),
        "related.jsonl": _jsonl([{"anchor": a, "positive": b} for a, b in zip(lines[:24], lines[24:], strict=True)]),
        "sets/similar.tsv": "sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{i % 6}\n" for i, (a, b) in enumerate(zip(lines[:24], lines[24:], strict=True))),
        "glue/CoLA/train.tsv": "".join(f"g\t{i % 2}\t\t{line}\n" for i, line in enumerate(lines[:16])),
        "glue/CoLA/dev.tsv": "".join(f"g\t{i % 2}\t\t{line}\n" for i, line in enumerate(lines[16:32])),
        "squad/train-v1.1.json": _squad(lines[:12]),
        "squad/dev-v1.1.json": _squad(lines[12:24]),
        "conll/train.txt": _conll(lines[:16]),
        "conll/dev.txt": _conll(lines[16:32]),
    }  # fmt: skip
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (folder / "raw.txt").write_text("\n\n".join(" . ".join(lines[i : i + 4]) for i in range(0, 48, 4)))
    pack([folder / "raw.txt"], tokenizer, folder / "packed", valid=0.3)


def _write_models(folder: Path, tokenizer: Tokenizer) -> None:
    encoder = replace(TINY, layers=2)
    model = Model.new(ModelConfig(encoder, ("pooler", "masked", "next")), tokenizer, seed=1)
    make_loud(model)
    save(model, folder / "model")
    for name, task, kind, labels in (
        ("tuned", "classify", "single", ("no", "yes")),
        ("tagger", "tag", "", ("O", "B-X", "I-X")),
    ):
        tuned = with_task(load(folder / "model"), config_for(task, kind), labels)
        make_loud(tuned, 2)
        save(tuned, folder / name)


def _table(rows: list[tuple[str, str]]) -> str:
    return "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows)


def _jsonl(rows: list[dict[str, str]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _conll(lines: list[str]) -> str:
    words = ["\n".join(f"{word} {'B-X' if word == 'cat' else 'O'}" for word in line.split()) for line in lines]
    return "\n\n".join(words) + "\n"


def _squad(lines: list[str]) -> str:
    asked = [
        {
            "context": line,
            "qas": [{"id": str(i), "question": "what?", "answers": [{"text": line.split()[1], "answer_start": line.index(" ") + 1}]}],
        }
        for i, line in enumerate(lines)
    ]  # fmt: skip
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": asked}]})


_RECIPE = """
objectives = ["mlm"]
[data]
valid_sequences = 8
[model]
width = 32
layers = 2
num_heads = 4
ffn_width = 64
positions = 48
[[phases]]
length = 32
tokens = 256
"""
