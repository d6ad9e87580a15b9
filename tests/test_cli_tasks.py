"""finetune, evaluate and predict from the command line say what the library says from Python."""

import csv
import json
import math
import os
import re
import shutil
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bothways
from bothways.data.notes import Notes
from bothways.engine.reader import WindowSettings
from bothways.model.checkpoint import save
from bothways.model.config import ModelConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.evaluation import compare_models
from bothways.predict.predictor import Predictor
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneData, read_finetune_recipe
from bothways.tasks.registry import TASKS
from bothways.text.columns import Columns
from bothways.text.tokenizer import Tokenizer
from bothways.train.protocol import Event, Stepped
from bothways.train.report import Console
from helpers import config_for, make_loud
from helpers.cli import Run, is_one_error, run_apart
from helpers.tasks import KINDS, LABELS, SMALL, near, written

Models = dict[str, Path]
Feed = Callable[[str], None]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Models:
    """Two loud models of each kind, as in "tag" and "tag, another"; nobody writes into them."""
    folder, found = tmp_path_factory.mktemp("models"), Models()
    for name, (task, kind, labels) in KINDS.items():
        for seed, own in ((0, name), (1, f"{name}, another")):
            start = Model.new(ModelConfig(SMALL, ("pooler",)), tokenizer)
            config = config_for(task, kind, window=WindowSettings(32, 8), range=(-1.0, 3.0))
            model = with_task(start, config, LABELS.get(name, labels))
            make_loud(model, seed)
            found[own] = folder / own
            save(model, found[own])
    return found


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    """Puts a text on standard input."""
    with ExitStack() as stack:

        def put(text: str) -> None:
            path = tmp_path / "standard-input"
            path.write_bytes(text.encode())
            monkeypatch.setattr(sys, "stdin", stack.enter_context(path.open(encoding="utf-8")))

        yield put


WORDS = ("the cat", "a dog", "北京", "unbelievable", "paris", "狗", "the white tree", "walking")


def write_rows(path: Path, count: int = 24, labels: Sequence[str] = LABELS["single"]) -> str:
    """Labelled texts, English and Chinese."""
    rows = [
        {"text": f"{WORDS[i % 8]} {WORDS[i * 5 % 7]} {i}", "label": labels[i * i % 11 % len(labels)]}
        for i in range(count)
    ]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    return str(path)


def strict(text: str) -> Any:
    """JSON as the standard has it, which knows no NaN."""

    def refuse(word: str) -> NoReturn:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def plain(value: Any) -> Any:
    """What a result is in JSON: lists for tuples, null for what is no number."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def lines(text: str) -> list[str]:
    """Without rules, blank lines and the white space that makes columns."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() and "─" not in line]


# ---------------------------------------------------------------------- evaluate


@pytest.mark.parametrize("name", KINDS)
def test_evaluate_says_what_the_library_says(name: str, models: Models, tmp_path: Path, run: Run) -> None:
    path = str(written(tmp_path, name))
    predictor = Predictor.load(models[name])
    expected = bothways.evaluate([path], predictor, worst=5)
    done = run("evaluate", path, "--model", models[name], "--json")
    assert done.returncode == 0, done.stderr
    told = strict(done.stdout)
    assert near(told, {**plain(asdict(expected)), "labels": list(predictor.labels)})
    shown = run("evaluate", path, "--model", models[name])
    assert shown.returncode == 0, shown.stderr
    table = lines(shown.stdout)
    assert table[0] == f"{expected.examples} examples score 95 % CI"
    for score, value in expected.scores.items():
        ends = expected.intervals.get(score)
        between = f" {ends[0]:.4f} to {ends[1]:.4f}" if ends else ""
        assert f"{score} {value:.4f}{between}" in table
    assert expected.read in shown.stderr


def test_tags_that_the_model_does_not_know_are_told(models: Models, tmp_path: Path, run: Run) -> None:
    known = Predictor.load(models["tag"]).labels[0]
    (tmp_path / "dev.tsv").write_text(f"Paris\tB-NEW\n\nthe\t{known}\n")
    done = run("evaluate", tmp_path / "dev.tsv", "--model", models["tag"])
    assert done.returncode == 0
    assert re.search(rf"\b1\b.*{re.escape(str(tmp_path / 'dev.tsv'))}, line 1 \(B-NEW\)", done.stderr)
    (tmp_path / "dev.tsv").write_text(f"the\t{known}\n")
    done = run("evaluate", tmp_path / "dev.tsv", "--model", models["tag"])
    assert "dev.tsv" not in done.stderr
    assert lines(done.stdout)[0] == "1 example score 95 % CI"


def test_what_is_to_be_answered_needs_no_label(models: Models, tmp_path: Path, run: Run) -> None:
    (tmp_path / "in.csv").write_text("text,pair\nthe cat,a dog\n")
    done = run("predict", tmp_path / "in.csv", "--model", models["score"])
    columns, tally = done.stderr.splitlines()
    assert columns == "columns: text = text, pair = pair"
    assert "7 tokens" in tally
    assert done.stdout.endswith("\tthe cat\ta dog\n")


def test_the_tables_of_labels(models: Models, tmp_path: Path, run: Run) -> None:
    """Precision, recall, f1 and support of each; and what was taken for what."""
    path = write_rows(tmp_path / "rows.jsonl")
    found = bothways.evaluate([path], Predictor.load(models["single"]))
    table = lines(run("evaluate", path, "--model", models["single"], "--worst", 0).stdout)
    assert "precision recall f1 support" in table
    assert table[table.index("Confusion matrix") + 1] == "gold ↓ predicted → bad good so-so"
    assert found.confusion is not None
    assert sum(map(sum, found.confusion)) == 24
    for label, counts in zip(LABELS["single"], found.confusion, strict=True):
        detail = found.details[label]
        assert sum(counts) == detail["support"]
        scores = " ".join(f"{detail[score]:.4f}" for score in ("precision", "recall", "f1"))
        assert f"{label} {scores} {detail['support']}" in table
        assert f"{label} {' '.join(map(str, counts))}" in table


def test_several_files_are_scored_as_one(models: Models, tmp_path: Path, run: Run) -> None:
    whole = write_rows(tmp_path / "rows.jsonl")
    rows = Path(whole).read_text().splitlines(keepends=True)
    parts = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    parts[0].write_text("".join(rows[:7]))
    parts[1].write_text("".join(rows[7:]))
    told = [strict(run("evaluate", *some, "--model", models["single"], "--json").stdout) for some in ([whole], parts)]
    assert told[0]["scores"] == pytest.approx(told[1]["scores"])
    assert told[1]["examples"] == 24


def test_columns_can_be_named(models: Models, tmp_path: Path, run: Run) -> None:
    """With names that are not the usual ones, and a pair."""
    usual, odd = tmp_path / "usual.csv", tmp_path / "odd.csv"
    for path, header in ((usual, ["sentence1", "sentence2", "label"]), (odd, ["left", "right", "verdict"])):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows([[f'{WORDS[i]}, "{i}"', WORDS[-i], LABELS["single"][i % 3]] for i in range(8)])
    expected = strict(run("evaluate", usual, "--model", models["single"], "--json").stdout)
    named = ("--text", "left", "--pair", "right", "--label", "verdict")
    told = strict(run("evaluate", odd, "--model", models["single"], "--json", *named).stdout)
    assert near(told["scores"], expected["scores"])
    single = strict(run("evaluate", odd, "--model", models["single"], "--json", *named[:2], *named[4:]).stdout)
    assert single["scores"]["brier"] != pytest.approx(expected["scores"]["brier"], abs=1e-4)


def test_against_another_model(models: Models, tmp_path: Path, run: Run) -> None:
    """The difference is that of `compare_models`, positive if the first is better."""
    path = write_rows(tmp_path / "rows.jsonl")
    first, second = models["single"], models["single, another"]
    accuracies = [bothways.evaluate([path], Predictor.load(folder)).scores["accuracy"] for folder in (first, second)]
    assert abs(accuracies[0] - accuracies[1]) > 0.04
    for one, other, sign in ((first, second, 1), (second, first, -1)):
        expected = compare_models([path], Predictor.load(one), Predictor.load(other))
        assert expected.difference == pytest.approx(sign * (accuracies[0] - accuracies[1]))
        done = run("evaluate", path, "--model", one, "--against", other)
        assert done.returncode == 0, done.stderr
        numbers = (f"{expected.difference:+.4f}", f"{expected.low:+.4f}", f"{expected.high:+.4f}", f"{expected.p:.3f}")
        shown = next(line for line in done.stderr.splitlines() if str(one) in line and str(other) in line)
        assert re.fullmatch(".*".join(["", "accuracy", *map(re.escape, numbers), ""]), shown)
        told = strict(run("evaluate", path, "--model", one, "--against", other, "--json").stdout)
        assert told["against"] == pytest.approx(asdict(expected))
        assert told["scores"]["accuracy"] == accuracies[0 if sign == 1 else 1]
    assert strict(run("evaluate", path, "--model", first, "--json").stdout)["against"] is None


def test_against_predicts_once_with_each_model(
    models: Models, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_rows(tmp_path / "rows.jsonl")
    seen: Counter[int] = Counter()
    decode = Predictor.decode_all

    def counted(self: Predictor, examples: Iterable[Any]) -> Iterator[Any]:
        for found in decode(self, examples):
            seen[id(self)] += 1
            yield found

    monkeypatch.setattr(Predictor, "decode_all", counted)
    first, second = models["single"], models["single, another"]
    done = run("evaluate", path, "--model", first, "--against", second, "--json")
    assert done.returncode == 0, done.stderr
    rows = strict(done.stdout)["examples"]
    assert list(seen.values()) == [rows, rows]


def test_the_positive_label_is_named(base: Path, tmp_path: Path, run: Run) -> None:
    """Of two labels F1 is that of the second: tables and JSON say which that is."""
    rows = write_rows(tmp_path / "rows.jsonl", 8, ("no", "yes"))
    command = ("finetune", "classify", "--train", rows, "--dev", rows, "--model", base, *SHORT)
    for more in ((), ("--seeds", 2)):
        out = tmp_path / f"out{len(more)}"
        done = run(*command, "--out", out, *more)
        assert "positive_f1 (yes) " in done.stdout, done.stderr
        told = strict(run(*command, "--out", out, *more, "--json").stdout)
        assert (told["positive_label"], "positive_f1" in told["scores"]) == ("yes", True)
    model = tmp_path / "out0/model"
    assert "positive_f1 (yes) " in run("evaluate", rows, "--model", model).stdout
    told = strict(run("evaluate", rows, "--model", model, "--json").stdout)
    assert (told["positive_label"], "positive_f1" in told["scores"]) == ("yes", True)


@pytest.mark.parametrize("labels", [LABELS["single"], ("good", "good", "good")])
def test_a_calibrated_folder_needs_no_calibration(
    labels: Sequence[str], models: Models, tmp_path: Path, run: Run
) -> None:
    """Whatever the temperature is: what is found is compared with what the folder has."""
    folder, rows = tmp_path / "model", write_rows(tmp_path / "rows.jsonl", labels=labels)
    shutil.copytree(models["single"], folder)
    if labels[0] == labels[1]:  # rows on which it makes no error at all, and no temperature is cold enough
        predictor = Predictor.load(folder)
        texts = [json.loads(line)["text"] for line in Path(rows).read_text().splitlines()]
        told = [{"text": text, "label": answer["label"]} for text, answer in zip(texts, predictor(texts), strict=True)]
        Path(rows).write_text("\n".join(map(json.dumps, told)))
    (folder / "README.md").write_text("# A model\n\n## Usage\n\nSo.\n", encoding="utf-8")
    before = run("evaluate", rows, "--model", folder, "--calibrate")
    assert "a temperature of" in before.stderr
    run("evaluate", rows, "--model", folder, "--calibrate")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.count("## Calibration") == 1, "the card says that other libraries give other probabilities"
    assert card.index("| temperature | ") < card.index("## Usage")
    after = run("evaluate", rows, "--model", folder)
    assert after.returncode == 0, after.stderr
    assert "temperature" not in after.stderr


def test_against_itself_there_is_no_difference(models: Models, tmp_path: Path, run: Run) -> None:
    path = write_rows(tmp_path / "rows.jsonl")
    told = strict(run("evaluate", path, "--model", models["single"], "--against", models["single"], "--json").stdout)
    assert told["against"] == {"difference": 0.0, "low": 0.0, "high": 0.0, "p": 1.0}


@pytest.mark.parametrize("count", [0, 1, 4, 100])
def test_the_worst_errors_come_first(count: int, models: Models, tmp_path: Path, run: Run) -> None:
    """Wrong labels by their probability; right ones are no errors, however improbable."""
    path = write_rows(tmp_path / "rows.jsonl")
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    predictor = Predictor.load(models["single"])
    answers = predictor([row["text"] for row in rows])
    wrong = [
        (answer["score"], row["text"], i)
        for i, (row, answer) in enumerate(zip(rows, answers, strict=True), 1)
        if answer["label"] != row["label"]
    ]
    assert 4 < len(wrong) < len(rows)
    errors = sorted(wrong, reverse=True)[:count]
    told = strict(run("evaluate", path, "--model", models["single"], "--worst", count, "--json").stdout)
    assert [one["texts"] for one in told["worst"]] == [[text] for _, text, _ in errors]
    assert [one["where"] for one in told["worst"]] == [f"{path}, line {line}" for _, _, line in errors]
    assert [one["error"] for one in told["worst"]] == pytest.approx([error for error, _, _ in errors], abs=1e-5)
    shown = run("evaluate", path, "--model", models["single"], "--worst", count).stdout
    assert ("Most confident errors\n" in shown) == bool(count)
    assert re.findall(r"^(\d\.\d{3})  .+, line (\d+): gold ", shown, re.MULTILINE) == [
        (f"{error:.3f}", str(line)) for error, _, line in errors
    ]
    for one in told["worst"]:
        answer = one["answer"]
        assert f"gold '{one['gold']}', predicted {answer['label']} {answer['score']:.3f}\n" in shown
        assert f"       {one['texts'][0]}\n" in shown


def test_rows_without_a_label_are_left_out_and_said(models: Models, tmp_path: Path, run: Run) -> None:
    whole = write_rows(tmp_path / "rows.jsonl", 8)
    rows = Path(whole).read_text().splitlines()
    part = tmp_path / "part.jsonl"
    part.write_text(
        "\n".join([*rows[:2], '{"text": "北京", "label": ""}', *rows[2:], '{"text": "a dog", "label": null}'])
    )
    done = run("evaluate", part, "--model", models["single"], "--json")
    assert done.returncode == 0, done.stderr
    assert re.search(rf"\b2\b.*{re.escape(str(part))}, line 3\b", done.stderr)
    told = strict(done.stdout)
    assert told["examples"] == 8
    assert near(told["scores"], strict(run("evaluate", whole, "--model", models["single"], "--json").stdout)["scores"])


# ---------------------------------------------------------------------- predict

ASKED = (
    "the cat",
    "",
    "北京是中国的首都。",
    'a "big" dog, and é',
    "the black cat sleeps in paris " * 12,
    "  unbelievable   walks  ",
    "猫" * 50,
)
"""An empty one, Chinese, a quote, and two that are longer than a window."""


def write_texts(folder: Path, ending: str) -> Path:
    path = folder / f"texts{ending}"
    match ending:
        case ".txt":
            path.write_text("".join(f"{text}\n" for text in ASKED), encoding="utf-8")
        case ".jsonl":
            rows = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(ASKED)]
            path.write_text("\n".join(rows), encoding="utf-8")
        case ".csv":
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([("id", "text"), *enumerate(ASKED)])
        case ".tsv":
            rows = ["id\ttext", *(f"{i}\t{text}" for i, text in enumerate(ASKED))]
            path.write_text("\r\n".join(rows), encoding="utf-8")
    return path


def as_line(answers: Sequence[dict[str, Any]], text: str) -> str:
    return ", ".join(f"{one['label']} {one['score']:.3f}" for one in answers) + "\t" + " ".join(text.split())


@pytest.mark.parametrize("source", [".txt", ".jsonl", ".csv", ".tsv", "standard input", "standard input by name"])
def test_predict_answers_every_line_in_order(source: str, models: Models, tmp_path: Path, run: Run, feed: Feed) -> None:
    """From whatever the texts come, the lines are those of a Predictor."""
    expected = Predictor.load(models["single"])(list(ASKED))
    assert len({answer["label"] for answer in expected}) > 1
    given: list[object] = ["-"] if source.endswith("name") else []
    if source.startswith("."):
        given = [write_texts(tmp_path, source)]
    for more in ([], ["--json"]):
        if not source.startswith("."):
            feed("\n".join(ASKED))  # without an end of the last line
        done = run("predict", *given, "--model", models["single"], *more)
        assert done.returncode == 0, done.stderr
        told = done.stdout.split("\n")
        assert told.pop() == ""
        if more:
            assert near([strict(line) for line in told], expected)
        else:
            assert told == [as_line([answer], text) for answer, text in zip(expected, ASKED, strict=True)]
        assert re.search(r"\b7 texts\b.*\b2\b.* windows", done.stderr)


def test_predict_gives_the_likeliest_few(models: Models, tmp_path: Path, run: Run) -> None:
    path = write_texts(tmp_path, ".txt")
    expected = Predictor.load(models["single"])(list(ASKED), top=2)
    told = run("predict", path, "--model", models["single"], "--top", 2).stdout.splitlines()
    assert told == [as_line(answers, text) for answers, text in zip(expected, ASKED, strict=True)]
    told = run("predict", path, "--model", models["single"], "--top", 2, "--json").stdout.splitlines()
    assert near([strict(line) for line in told], expected)
    assert [len(answers) for answers in expected] == [2] * 7


@pytest.mark.parametrize("name", KINDS)
def test_predict_answers_rows_of_every_task(name: str, models: Models, tmp_path: Path, run: Run) -> None:
    """Pairs, sentences in words, questions, choices: with what a Predictor makes of the same rows."""
    path = written(tmp_path, name)
    predictor = Predictor.load(models[name])
    examples = list(TASKS[predictor.name].read([str(path)], Columns(), Notes()))
    expected = list(predictor.stream(examples))
    done = run("predict", path, "--model", models[name], "--json")
    assert done.returncode == 0, done.stderr
    assert near([strict(line) for line in done.stdout.splitlines()], expected)
    shown = run("predict", path, "--model", models[name])
    assert shown.returncode == 0, shown.stderr
    assert len(shown.stdout.splitlines()) == len(examples)
    for line, answer in zip(shown.stdout.splitlines(), expected, strict=True):
        for one in answer if isinstance(answer, list) else [answer]:
            assert f"{one['score']:.3f}" in line.partition("\t")[0]


def test_predict_tags_plain_lines(models: Models, run: Run, feed: Feed) -> None:
    texts = ["Paris walks in 北京", "", "the cat, unbelievable talking dog in Berlin"]
    feed("\n".join(texts) + "\n")
    done = run("predict", "--model", models["tag"])
    assert done.returncode == 0, done.stderr
    expected = Predictor.load(models["tag"])(texts)
    assert any(expected)
    assert done.stdout.split("\n")[:-1] == [
        (", ".join(f"{one['word']}/{one['entity_group']} {one['score']:.3f}" for one in answers) or "-") + f"\t{text}"
        for answers, text in zip(expected, texts, strict=True)
    ]


def test_predict_tags_rows_of_standard_input_as_those_of_files(
    models: Models, tmp_path: Path, run: Run, feed: Feed
) -> None:
    rows = [{"tokens": ["Paris", "walks", "in", "北", "京"], "tags": ["O"] * 5}, {"tokens": []}, {"text": "the Cat"}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = run("predict", path, "--model", models["tag"], "--json").stdout
    assert near([strict(line) for line in expected.splitlines()], Predictor.load(models["tag"])(["Paris walks in 北京", "", "the Cat"]))  # fmt: skip
    feed(path.read_text())
    done = run("predict", "-", "--model", models["tag"], "--json")
    assert (done.returncode, done.stdout) == (0, expected)
    feed('{"tokens": ["a"]}\n{"words\n')
    done = run("predict", "-", "--model", models["tag"])
    assert done.returncode == 1
    assert is_one_error(done.stderr, "standard input, line 2")


@pytest.mark.parametrize(
    ("name", "given", "told"),
    [
        ("tag", ("Paris walks.", "The cat."), " 2 "),
        ("score", ("a", "b", "c"), " 3 "),
        ("tag", (" ",), "empty"),
        ("answer", ("Who?", ""), "empty"),
        ("score", ("in.txt", "b"), "in.txt"),
    ],
)
def test_what_cannot_be_answered_at_once(
    name: str,
    given: tuple[str, ...],
    told: str,
    models: Models,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two texts to a tagger are not two words, and the name of a file beside a text is no text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("the cat\n")
    done = run("predict", *given, "--model", models[name])
    assert (done.returncode, done.stdout) == (1, "")
    assert is_one_error(done.stderr, told)


@pytest.mark.parametrize(
    ("task", "file", "options"),
    [
        ("tag", "rows.jsonl", ["--pair"]),
        ("tag", "lines.txt", ["--text"]),
    ],
)
def test_columns_that_nobody_would_read_are_refused(
    task: str, file: str, options: list[str], models: Models, tmp_path: Path, run: Run
) -> None:
    """They were passed over in silence."""
    (tmp_path / file).write_text("{}\n")
    for option in options:
        done = run("predict", tmp_path / file, "--model", models[task], option, "body")
        assert is_one_error(done.stderr, f"{option} names the column 'body'")
    done = run("finetune", task, "--train", tmp_path / file, "--pair", "body", "--out", tmp_path / "out")
    assert is_one_error(done.stderr.splitlines(keepends=True)[-1], "--pair names the column 'body'")


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("rows.csv", 'text,label\n"Paris, walks in 北京",1\nthe Cat,0\n'),
        ("rows.tsv", "text\tlabel\nParis, walks in 北京\t1\nthe Cat\t0\n"),
        ("texts.tsv", "text\nParis, walks in 北京\nthe Cat\n"),
    ],
)
def test_predict_tags_the_texts_of_a_table(models: Models, tmp_path: Path, run: Run, name: str, rows: str) -> None:
    (tmp_path / name).write_text(rows, encoding="utf-8")
    expected = Predictor.load(models["tag"])(["Paris, walks in 北京", "the Cat"])
    for option in ((), ("--text", "text")):
        done = run("predict", tmp_path / name, "--model", models["tag"], "--json", *option)
        assert near([strict(line) for line in done.stdout.splitlines()], expected)


def test_predict_tags_the_texts_of_a_table_without_spaces(models: Models, tmp_path: Path, run: Run) -> None:
    (tmp_path / "rows.tsv").write_text("text\tlabel\n猫在北京\t1\n", encoding="utf-8")
    done = run("predict", tmp_path / "rows.tsv", "--model", models["tag"], "--json")
    assert near(strict(done.stdout), Predictor.load(models["tag"])("猫在北京"))


@pytest.mark.parametrize("first", ["Review", "text"])
def test_predict_tags_columns_of_words_that_are_called_as_columns_are(
    models: Models, tmp_path: Path, run: Run, first: str
) -> None:
    (tmp_path / "words.tsv").write_text(f"{first}\tO\nwalks\tO\n\nCat\tO\n")
    done = run("predict", tmp_path / "words.tsv", "--model", models["tag"], "--json")
    expected = Predictor.load(models["tag"])([f"{first} walks", "Cat"])
    assert near([strict(line) for line in done.stdout.splitlines()], expected)


def test_predict_answers_every_row_or_says_which_it_cannot(models: Models, run: Run, tmp_path: Path) -> None:
    """An answer too few would shift all that come after it."""
    (tmp_path / "a.tsv").write_text("text\tlabel\nthe cat\tx\nno tab\na dog\ty\n")
    done = run("predict", tmp_path / "a.tsv", "--model", models["single"], "--json")
    assert done.returncode == 1
    assert f"{tmp_path / 'a.tsv'}, line 3 has 1 column, and its first line names 2" in done.stderr


def test_standard_input_is_called_so(models: Models, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").write_bytes(b"ok\n\xff\xfe\n")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        done = run("predict", "-", "--model", models["tag"])
    assert done.stderr.startswith("bothways: standard input, line 2 is not UTF-8 text")


def test_predict_reads_the_columns_that_are_named(models: Models, tmp_path: Path, run: Run) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("left,right\nthe cat,北京\na dog,the tree\n", encoding="utf-8")
    done = run("predict", path, "--model", models["score"], "--text", "right", "--pair", "left", "--json")
    assert done.returncode == 0, done.stderr
    expected = Predictor.load(models["score"])([("北京", "the cat"), ("the tree", "a dog")])
    assert near([strict(line) for line in done.stdout.splitlines()], expected)
    done = run("predict", path, "--model", models["single"], "--text", "right", "--json")
    expected = Predictor.load(models["single"])(["北京", "the tree"])
    assert near([strict(line) for line in done.stdout.splitlines()], expected)


def test_predict_answers_rows_that_annotators_disagreed_on(models: Models, tmp_path: Path, run: Run) -> None:
    """A label is none of its business: every row has its line."""
    path = tmp_path / "pairs.tsv"
    path.write_text("sentence1\tsentence2\tgold_label\nthe cat\ta dog\t-\na dog\tthe cat\tgood\n")
    done = run("predict", path, "--model", models["single"], "--json")
    expected = Predictor.load(models["single"])([("the cat", "a dog"), ("a dog", "the cat")])
    assert near([strict(line) for line in done.stdout.splitlines()], expected)


@pytest.mark.slow
def test_predict_in_a_pipe(models: Models) -> None:
    """In a process of its own: words go to standard error, the network is not touched."""
    done = run_apart("predict", "--model", models["single"], "--json", stdin="\n".join(ASKED))
    assert done.returncode == 0, done.stderr
    assert near([strict(line) for line in done.stdout.splitlines()], Predictor.load(models["single"])(list(ASKED)))


# ---------------------------------------------------------------------- finetune

SHORT = ("--set", "run.steps=2", "--set", "run.device=cpu", "--set", "optim.warmup=0", "--lr", "1e-2", "--batch", 8)


def weights_equal(one: Path, other: Path) -> bool:
    ours, theirs = load(one).state_dict(), load(other).state_dict()
    return ours.keys() == theirs.keys() and all(bool((ours[name] == theirs[name]).all()) for name in ours)


def test_finetune_does_what_the_library_does(base: Path, tmp_path: Path, run: Run) -> None:
    """The same scores in table, JSON and Python, of the same weights; `evaluate` finds them again."""
    train, dev = write_rows(tmp_path / "train.jsonl"), write_rows(tmp_path / "dev.jsonl", 12)
    recipe = bothways.finetune_recipe(
        {"task": "classify", "data": {"train": [train], "dev": [dev]}, "model": {"init": str(base)}},
        ["run.steps=2", "run.device=cpu", "optim.warmup=0", "optim.lr=1e-2", "run.batch_size=8"],
    )
    expected = bothways.finetune(recipe, tmp_path / "python")
    command = (
        "finetune",
        "classify",
        "--train",
        train,
        "--dev",
        dev,
        "--model",
        base,
        "--out",
        tmp_path / "cli",
        *SHORT,
    )
    done = run(*command)
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout) == [
        f"on the development data step {expected.best_step}",
        *(f"{name} {value:.4f}" for name, value in expected.scores.items()),
    ]
    assert f"bothways predict --model {tmp_path / 'cli/model'}" in done.stderr
    assert weights_equal(tmp_path / "cli/model", tmp_path / "python/model")
    told = strict(run(*command, "--json").stdout)  # the run is done, and only looked at
    assert told == {**plain(asdict(expected)), "folder": str(tmp_path / "cli/model")}
    scores = strict(run("evaluate", dev, "--model", tmp_path / "cli/model", "--json").stdout)["scores"]
    assert near(scores, expected.scores)


def test_options_become_the_recipe(base: Path, tmp_path: Path, run: Run) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("id,one,two,verdict\n1,the cat,北京,yes\n2,a dog,the tree,no\n", encoding="utf-8")
    options: dict[str, object] = {
        "--train": rows,
        "--dev": rows,
        "--model": base,
        "--text": "two",
        "--pair": "one",
        "--label": "verdict",
        "--epochs": 2,
        "--batch": 1,
        "--lr": 1e-3,
        "--seed": 9,
    }
    given = [word for pair in options.items() for word in pair]
    done = run("finetune", "classify", *given, "--out", tmp_path / "out", "--set", "optim.weight_decay=0.25")
    assert done.returncode == 0, done.stderr
    recipe = read_finetune_recipe(tmp_path / "out/recipe.toml")
    assert recipe.data == FinetuneData((str(rows),), (str(rows),), "two", "one", "verdict")
    assert (recipe.run.epochs, recipe.run.batch_size, recipe.run.seed) == (2.0, 1, 9)
    assert (recipe.optim.lr, recipe.optim.weight_decay, recipe.model.init) == (1e-3, 0.25, str(base))
    assert Predictor.load(tmp_path / "out/model").labels == ("no", "yes")


def test_options_come_before_a_recipe_file_and_settings_before_options(base: Path, tmp_path: Path, run: Run) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", 6)
    file = tmp_path / "mine.toml"
    file.write_text(
        'task = "classify"\n[run]\nsteps = 1\nbatch = 2\nseed = 3\ndevice = "cpu"\n[optim]\nlr = 1e-3\ndecay = 0.5\n'
    )
    arguments = ("--train", rows, "--model", base, "--out", tmp_path / "out", "--batch", 3, "--seed", 4)
    done = run("finetune", file, *arguments, "--set", "run.seed=5", "--json")
    assert done.returncode == 0, done.stderr
    recipe = read_finetune_recipe(tmp_path / "out/recipe.toml")
    assert (recipe.run.steps, recipe.run.batch_size, recipe.run.seed) == (1, 3, 5)
    assert (recipe.optim.lr, recipe.optim.weight_decay) == (1e-3, 0.5)
    told = strict(done.stdout)
    assert (told["best_step"], told["scores"], told["steps"]) == (None, {}, 1)


def test_several_seeds(base: Path, tmp_path: Path, run: Run) -> None:
    """A table of means and deviations, by hand from the runs in JSON; the best of them is the model."""
    rows = write_rows(tmp_path / "rows.jsonl")
    command = ("finetune", "classify", "--train", rows, "--dev", rows, "--model", base, "--out", tmp_path / "out",
               "--seeds", 3, *SHORT)  # fmt: skip
    done = run(*command)
    assert done.returncode == 0, done.stderr
    told = strict(run(*command, "--json").stdout)
    runs = [one["scores"] for one in told["runs"]]
    assert len(runs) == 3
    assert lines(done.stdout) == [
        "3 runs, development data mean sd",
        *(
            f"{name} {statistics.mean(one[name] for one in runs):.4f} {statistics.stdev(one[name] for one in runs):.4f}"
            for name in runs[0]
        ),
    ]
    best = max(range(3), key=lambda seed: runs[seed]["accuracy"])
    assert (told["best"], told["metric"], told["folder"]) == (best, "accuracy", str(tmp_path / "out/model"))
    assert weights_equal(tmp_path / "out/model", tmp_path / f"out/seed-{best}/model")
    assert re.search(rf"{re.escape(str(tmp_path / 'out/model'))}.* {best}\b", done.stderr)


def test_an_interrupted_run_says_how_to_go_on(
    base: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl")
    command = ("finetune", "classify", "--train", rows, "--model", base, "--out", tmp_path / "out", *SHORT)
    hear = Console.__call__

    def interrupt(self: Console, event: Event) -> None:
        hear(self, event)
        if isinstance(event, Stepped) and event.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Console, "__call__", interrupt)
        done = run(*command)
    assert (done.returncode, done.stdout) == (130, "")
    assert re.search(rf"\b1\b.*: bothways {re.escape(' '.join(map(str, command)))}\n", done.stderr)
    assert not (tmp_path / "out/model").exists()
    assert run(*command).returncode == 0
    run(*[tmp_path / "whole" if word == tmp_path / "out" else word for word in command])
    assert weights_equal(tmp_path / "out/model", tmp_path / "whole/model")


def test_a_score_that_does_not_exist_is_shown_all_the_same(base: Path, tmp_path: Path, run: Run) -> None:
    """No row of the development data has a label: there is no average precision."""
    train, dev = tmp_path / "train.jsonl", tmp_path / "dev.jsonl"
    train.write_text('{"text": "the cat", "label": ["a", "b"]}\n{"text": "a dog", "label": ["a"]}\n')
    dev.write_text('{"text": "the cat", "label": []}\n{"text": "a dog", "label": []}\n')
    command = ("finetune", "classify", "--train", train, "--dev", dev, "--model", base, *SHORT)
    done = run(*command, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "micro_f1" in done.stdout
    assert strict(run(*command, "--out", tmp_path / "out", "--json").stdout)["complete"]
    assert run(*command, "--out", tmp_path / "seeds", "--seeds", 2).returncode == 0


# ---------------------------------------------------------------------- what cannot be done

LEARN = ["finetune", "classify", "--train", "{rows}", "--model", "{base}", "--out", "{out}"]
BAD: dict[str, tuple[Any, ...]] = {
    "evaluate: no file": (["evaluate", "{tmp}/none.jsonl", "--model", "{single}"], "{tmp}/none.jsonl"),
    "evaluate: no column": (
        ["evaluate", "{table}", "--model", "{single}", "--text", "body"],
        "{table}",
        "'body'",
        "--text",
    ),
    "evaluate: no label": (
        ["evaluate", "{table}", "--model", "{single}", "--label", "gold"],
        "{table}",
        "'gold'",
        "--label",
    ),
    "evaluate: unlabelled": (["evaluate", "{texts}", "--model", "{single}"], "label"),
    "evaluate: unknown label": (["evaluate", "{strange}", "--model", "{single}"], "line 2", "'怪'", "bad, good, so-so"),
    "evaluate: not JSON": (["evaluate", "{broken}", "--model", "{single}"], "{broken}, line 2"),
    "evaluate: no head": (["evaluate", "{rows}", "--model", "{base}"], "pooler, masked"),
    "evaluate: no model": (["evaluate", "{rows}", "--model", "{tmp}/none"], "{tmp}/none"),
    "evaluate: not a model": (["evaluate", "{rows}", "--model", "{tmp}"], "{tmp}", "config.json"),
    "evaluate: against no head": (
        ["evaluate", "{rows}", "--model", "{single}", "--against", "{base}"],
        "pooler, masked",
    ),
    "evaluate: against another task": (
        ["evaluate", "{rows}", "--model", "{single}", "--against", "{answer}"],
        "{single}",
        "{answer}",
        "classify",
    ),
    "evaluate: no tags in rows": (["evaluate", "{rows}", "--model", "{tag}"], "{rows}", "tags"),
    "evaluate: no tags in a table": (["evaluate", "{table}", "--model", "{tag}"], "{table}", "tags"),
    "evaluate: a score without end": (["evaluate", "{endless}", "--model", "{regression}"], "{endless}, line 3", "inf"),
    "evaluate: no kind of picture": (
        ["evaluate", "{rows}", "--model", "{single}", "--picture", "{tmp}/x.foo"],
        "{tmp}/x.foo",
    ),
    "evaluate: calibrate the box": (
        ["evaluate", "{rows}", "--task", "emotion", "--calibrate"],
        "--calibrate",
        "COPY/en-emotion",
    ),
    "evaluate: calibrate an included model": (
        ["evaluate", "{rows}", "--model", "en-emotion", "--calibrate"],
        "--calibrate",
        "COPY/en-emotion",
    ),
    "evaluate: no such task in the box": (["evaluate", "{rows}", "--task", "dance"], "'dance'", "emotion"),
    "predict: no file": (["predict", "{tmp}/none.txt", "--model", "{single}"], "{tmp}/none.txt"),
    "predict: no file to tag": (["predict", "{tmp}/none.txt", "--model", "{tag}"], "{tmp}/none.txt"),
    "predict: no column": (
        ["predict", "{table}", "--model", "{single}", "--text", "body"],
        "{table}",
        "'body'",
        "--text",
    ),
    "predict: no head": (["predict", "{texts}", "--model", "{base}"], "pooler, masked"),
    "predict: no model": (["predict", "{texts}", "--model", "{tmp}/none"], "{tmp}/none"),
    "predict: one text of two": (["predict", "{texts}", "--model", "{score}"], "one text"),
    "predict: no questions": (["predict", "{rows}", "--model", "{answer}"], "{rows}"),
    "predict: not UTF-8": (["predict", "{binary}", "--model", "{single}"], "{binary}", "2"),
    "finetune: unknown task": (["finetune", "dance", *LEARN[2:]], "dance"),
    "finetune: a task misspelt": (["finetune", "clasify", *LEARN[2:]], "clasify", "did you mean classify"),
    "finetune: no recipe": (["finetune", "none.toml", *LEARN[2:]], "none.toml"),
    "finetune: no tags in a table": (["finetune", "tag", "--train", "{table}", *LEARN[4:]], "{table}", "tags"),
    "finetune: no tags in .parquet": (["finetune", "tag", "--train", "{parquet}", *LEARN[4:]], "{parquet}", "tags"),
    "finetune: a score without end": (
        ["finetune", "classify", "--train", "{endless}", *LEARN[4:]],
        "{endless}, line 3",
        "inf",
    ),
    "finetune: no end of a score to learn": (
        ["finetune", "score", "--train", "{endless}", *LEARN[4:]],
        "{endless}, line 3",
        "inf",
    ),
    "finetune: no file": ([*LEARN, "--dev", "{tmp}/none.jsonl"], "{tmp}/none.jsonl"),
    "finetune: no column": ([*LEARN, "--label", "gold"], "'gold'", "--label"),
    "finetune: nothing to learn": ([*LEARN[:2], *LEARN[4:]], "train"),
    "finetune: no model": ([*LEARN, "--model", "{tmp}/none"], "{tmp}/none"),
    "finetune: no labels": (["finetune", "classify", "--train", "{texts}", *LEARN[4:]], "2"),
    "finetune: strange dev": ([*LEARN, "--dev", "{strange}"], "'怪'"),
    "finetune: unknown key": ([*LEARN, "--set", "optim.rate=1"], "optim.rate"),
    "finetune: seeds without dev": ([*LEARN, "--seeds", "2"], "dev"),
    "finetune: broken recipe": (["finetune", "{broken}", *LEARN[2:]], "{broken}"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_gets_one_sentence_and_exit_code_1(
    what: str, base: Path, models: Models, tmp_path: Path, run: Run
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    files = {
        "rows": write_rows(work / "rows.jsonl", 6),
        "table": work / "table.csv",
        "texts": work / "texts.txt",
        "strange": work / "strange.jsonl",
        "broken": work / "broken.jsonl",
        "binary": work / "binary.txt",
        "endless": work / "endless.csv",
        "parquet": work / "rows.parquet",
    }
    (work / "endless.csv").write_text("text,label\nthe cat,0.5\na dog,inf\n")
    pq.write_table(pa.table({"text": ["the cat", "a dog"], "label": [0, 1]}), work / "rows.parquet")
    (work / "table.csv").write_text("sentence,label\nthe cat,good\n")
    (work / "texts.txt").write_text("the cat\na dog\n")
    (work / "strange.jsonl").write_text(
        '{"text": "a", "label": "good"}\n{"text": "b", "label": "怪"}\n', encoding="utf-8"
    )
    (work / "broken.jsonl").write_text('{"text": "a", "label": "good"}\n{"text": "b", "label"\n')
    (work / "binary.txt").write_bytes(b"ok\n\xff\xfe\x00\n")
    before = {path.name: path.read_bytes() for path in work.iterdir()}
    places = {**models, **files, "base": base, "tmp": work, "out": work / "out"}
    arguments, *values = BAD[what]
    done = run(*[word.format(**places) for word in arguments])
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    for value in values:
        assert is_one_error(done.stderr, value.format(**places)), done.stderr
    assert {path.name: path.read_bytes() for path in work.iterdir()} == before  # no run was begun


USAGE = {
    "evaluate without a file": ["evaluate", "--model", "m"],
    "evaluate without a model": ["evaluate", "a.jsonl"],
    "evaluate with fewer than none": ["evaluate", "a.jsonl", "--model", "m", "--worst", "-1"],
    "predict without a model": ["predict", "a.txt"],
    "predict with no answers": ["predict", "a.txt", "--model", "m", "--top", "0"],
    "finetune without out": ["finetune", "classify", "--train", "a.jsonl"],
    "finetune with no seeds": ["finetune", "classify", "--out", "o", "--seeds", "0"],
    "finetune with words for numbers": ["finetune", "classify", "--out", "o", "--epochs", "many"],
}


@pytest.mark.parametrize("what", USAGE)
def test_wrong_usage_is_exit_code_2(what: str, run: Run) -> None:
    done = run(*USAGE[what])
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
