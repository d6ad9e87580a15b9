"""What is printed is safe: no text, name or label commands the terminal, JSON is JSON, quotes are short."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import markdown
import pytest

from bothways.cli.output import json_text, print_json, print_marked, print_table
from bothways.errors import BothwaysError
from bothways.marked_text import Colours, Mark, MarkedText
from bothways.model.card import Made, Score, model_card
from bothways.model.config import ModelConfig
from bothways.model.model import Model
from bothways.printable import printable
from bothways.tasks.folder import with_task
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, config_for
from helpers.cli import Run

EVIL = "\x1b[31mred\x07\x9b2J\u202e\x7f\r"
RAW = set(EVIL) - set("[31mred2J")


def is_safe(*shown: str) -> bool:
    return not any(set(text) & RAW for text in shown)


def test_control_characters_are_shown_and_text_is_not() -> None:
    assert is_safe(printable(EVIL))
    assert r"\u001b[31mred" in printable(EVIL)
    plain = "中文 é 👩‍👩‍👧 a\tb\nc"
    assert printable(plain) == plain


def test_texts_and_names_in_messages(run: Run, tmp_path: Path) -> None:
    done = run("similar", tmp_path / f"{EVIL}.txt")
    assert done.returncode == 1
    assert is_safe(done.stdout, done.stderr)
    done = run("predict", f"--{EVIL}")
    assert done.returncode == 2
    assert is_safe(done.stdout, done.stderr)
    (tmp_path / "a.csv").write_text(f"a{EVIL[:-1]},b\n1,2\n3,4\n", encoding="utf-8")
    done = run("doctor", tmp_path / "a.csv", "--label", f"x{EVIL}")
    assert done.returncode == 1
    assert is_safe(done.stdout, done.stderr)


def test_texts_in_results(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": f"the {EVIL} cat"}) + "\n", encoding="utf-8")
    done = run("similar", tmp_path / "a.jsonl", "--text", EVIL)
    assert done.returncode == 1
    assert is_safe(done.stdout, done.stderr)
    done = run("fill", f"the {EVIL} [MASK] sleeps")
    assert (done.returncode, is_safe(done.stdout, done.stderr)) == (0, True)
    assert "\\u001b" in done.stdout
    done = run("fill", f"the {EVIL} [MASK] sleeps", "--json")
    assert is_safe(done.stdout, done.stderr)
    assert "\x1b" in json.loads(done.stdout)[0]["text"]


def test_tables_and_marks(capfd: pytest.CaptureFixture[str]) -> None:
    print_table((EVIL, "b"), [(EVIL, 1)], title=EVIL)
    print_marked(MarkedText(EVIL + "Ada", (Mark(len(EVIL), len(EVIL) + 3, EVIL),), EVIL), Colours([EVIL]))
    shown = capfd.readouterr()
    assert is_safe(shown.out, shown.err)
    assert shown.out.count("u001b") == 6
    coloured = MarkedText(EVIL + "Ada", (Mark(len(EVIL), len(EVIL) + 3, EVIL),)).rich(Colours([EVIL]))
    assert is_safe(coloured.plain)


def test_json_stays_json(capfd: pytest.CaptureFixture[str]) -> None:
    value = {"x": float("nan"), "y": [float("inf"), -float("inf")], "text": EVIL + "中\udc80"}
    assert json.loads(json_text(value)) == {"x": None, "y": [None, None], "text": EVIL + "中\udc80"}
    print_json(value)
    out = capfd.readouterr().out
    assert is_safe(out)
    assert json.loads(out)["text"] == value["text"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_another_encoding_replaces_what_it_cannot_say(encoding: str, options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bothways", "fill", "北京是中国的首[MASK]。", "--model", "zh", *options],
        capture_output=True, check=False, timeout=120, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = done.stdout.decode(encoding)
    if options:
        assert json.loads(shown)[0]["text"].startswith("北京")
    else:
        assert "?" in shown


@pytest.mark.parametrize(
    ("message", "value"),
    [
        (lambda long: f"there is no label {long!r}: name another", None),
        (lambda long: f"there is no label {long}: name another", "itself"),
        (lambda long: f"there is no file /tmp/{long.replace(' ', '')}", None),
        (lambda long: f"config.json has x = {[long]!r}: expected a number", "in a list"),
        (lambda long: f"config.json has x = {{{long!r}: 1}}", None),
    ],
)
@pytest.mark.parametrize("letter", ["a", "a b ", "中", "'", '"', "\\"])
def test_a_message_quotes_little_of_an_input(message: Any, value: str | None, letter: str) -> None:
    long = letter * 10_000
    error = BothwaysError(message(long), "a-code", {"itself": long, "in a list": ("x", [long])}.get(str(value)))
    assert len(str(error)) < 400
    assert str(BothwaysError("short: 'a'", "a-code", "a")) == "short: 'a'"


def test_a_card_shows_labels_and_names_as_they_are(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Rendered as HTML by another library, nothing of a label or a name is markup."""
    evil = "<script>alert(1)</script> ![x](http://a/b.png) [y](javascript:1) **b** `c` <img src=x> | # h\n# h\n---\n```"
    model = with_task(Model.new(ModelConfig(TINY), tokenizer), config_for("classify", kind="single"), (evil, EVIL))
    made = Made(evil, evil, facts={"training data": evil}, scored_on=evil, score_note=evil, scores=(Score("accuracy", 1.0, shown=evil),))  # fmt: skip
    card = model_card(replace_name(model), tmp_path / "model", made)
    assert is_safe(card)
    body = card.split("\n---\n", 1)[1]
    page = markdown.markdown(body, extensions=["tables", "fenced_code"])
    code_free = "".join(part.partition("</code>")[2] for part in f"</code>{page}".split("<code"))
    for tag in ("<script", "<img", "<a ", "<strong", "<em"):
        assert tag not in code_free, tag
    assert code_free.count("<h1") == 1


def replace_name(model: Model) -> Model:
    model.config = replace(model.config, hf_config={**model.config.hf_config})
    return model
