"""The checks of `bothways doctor`: planted faults are found with their lines, and clean data give no warning."""

import html
import json
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from itertools import islice, product
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bothways.cli.doctor import doctor
from bothways.data.findings import Finding
from bothways.data.label_checks import alike
from bothways.doctor import hashes
from bothways.doctor.check_data import check_data, guess_task
from bothways.doctor.data_report import DataReport
from bothways.model.box import boxed_for
from bothways.model.checkpoint import save
from bothways.model.config import Learned, ModelConfig
from bothways.model.model import Model
from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe
from bothways.text.tokenizer import Tokenizer
from helpers import TINY, refused

SUBJECTS = ["the cat", "a dog", "the big house", "a small tree", "the black dog", "a white cat"]
VERBS = ["runs to", "walks to", "sleeps in", "reads in", "writes in"]
PLACES = ["paris", "berlin", "beijing", "china", "france", "germany"]


def english() -> Iterator[str]:
    """180 sentences in words of the small vocabulary, none like another."""
    return (" ".join(words) + "." for words in product(SUBJECTS, VERBS, PLACES))


def chinese() -> Iterator[str]:
    return (
        f"{a}的{b}是{c}的首都{d}。"
        for a, b, c, d in product("中法日本", "猫狗", ["中国", "法国", "日本"], ["北京", "巴黎"])
    )


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def table(path: Path, rows: list[tuple[str, str]]) -> Path:
    return write(path, "text\tlabel", *("\t".join(row) for row in rows))


def write_json(path: Path, *rows: object) -> Path:
    return write(path, *(json.dumps(row, ensure_ascii=False) for row in rows))


def labelled(texts: Iterator[str], *labels: str) -> list[tuple[str, str]]:
    return [(text, labels[i % len(labels)]) for i, text in enumerate(texts)]


@pytest.fixture(autouse=True)
def no_box(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tokens of an included model, but where a test is about them: the checks take a fraction of the time."""
    if "included" not in request.node.name:
        monkeypatch.setattr("bothways.doctor.check_data.has_box", lambda: False)


@pytest.mark.parametrize(("texts", "model"), [(english, "en"), (chinese, "zh")])
def test_the_included_model_that_reads_the_text_checks_its_tokens(
    texts: Callable[[], Iterator[str]], model: str, tmp_path: Path
) -> None:
    rows = [(text, label) for text, label in labelled(texts(), "好", "坏")][:60]
    found, named = (check_data(table(tmp_path / "a.tsv", rows), model=name) for name in (None, model))
    assert found.reading is not None
    assert named.reading is not None
    assert found.reading == replace(named.reading, model=model)
    assert found.plan is None
    assert "training time: add `model`" in found.not_checked
    assert found.reading.unknown_share < 0.05


def test_a_report_is_shown_in_a_notebook_and_a_terminal(tmp_path: Path) -> None:
    rows = [*labelled(english(), "good", "bad"), ("", "<b>"), ("a cat", "good")]
    found = check_data(table(tmp_path / "a.tsv", rows))
    shown, page = repr(found), found._repr_html_()
    assert shown.startswith(f"DataReport(classify, single: {len(rows)} rows, {len(rows)} labelled; ")
    assert the(found, "empty").says in shown
    assert "Finding(" not in shown
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert found.command in html.unescape(page)


def the(found: DataReport, what: str) -> Finding:
    """The one finding of a kind."""
    (finding,) = [finding for finding in found.findings if finding.what == what]
    return finding


def complaints(found: DataReport) -> list[str]:
    return [f"{finding.severity}: {finding.says}" for finding in found.findings if finding.severity != "ok"]


# ------------------------------------------------------------------ clean data


@pytest.mark.parametrize("texts", [english, chinese])
@pytest.mark.parametrize("labels", [("good", "bad"), ("体育", "财经", "科技"), ("-1", "0", "1"), ("c", "c++", "c#")])
def test_clean_data_are_left_in_peace(tmp_path: Path, texts: object, labels: tuple[str, ...]) -> None:
    rows = labelled(texts(), *labels)  # type: ignore[operator]
    train, dev = table(tmp_path / "train.tsv", rows[:-10]), table(tmp_path / "dev.tsv", rows[-10:])
    found = check_data([train], [dev])
    assert complaints(found) == []
    assert (found.task, found.kind, found.rows, found.dev_rows) == ("classify", "single", len(rows) - 10, 10)
    assert {label.name for label in found.labels} == set(labels)
    assert sum(label.share for label in found.labels) == pytest.approx(1)
    assert found.cjk_share == 0 if texts is english else found.cjk_share > 0.9
    model = "" if texts is english else f"--model {boxed_for('Chinese') or 'DIR'} "  # the default one reads English
    assert found.command == f"bothways finetune classify --train {train} --dev {dev} {model}--out train-classify"
    assert len(found.not_checked) == 1
    assert "`model`" in found.not_checked[0]


def test_clean_data_of_all_tasks(tmp_path: Path) -> None:
    texts = list(english())
    multi = write_json(
        tmp_path / "m.jsonl", *({"text": t, "labels": ["joy", "awe"][: i % 3]} for i, t in enumerate(texts))
    )
    numbers = table(tmp_path / "n.tsv", [(t, f"{i % 50 / 10:.1f}") for i, t in enumerate(texts)])
    sentences = [f"{a} B-PER\n{b} I-PER\nin O\n{c} B-LOC\n" for a, b, c in product("abc", "xyz", PLACES)]
    tags = write(tmp_path / "t.conll", *sentences)
    questions = write_json(
        tmp_path / "q.jsonl",
        *({"id": str(i), "question": "who?", "context": t, "answers": [{"text": t[:5], "answer_start": 0}]} for i, t in enumerate(texts)),
    )  # fmt: skip
    choices = write_json(
        tmp_path / "c.jsonl",
        *({"question": t, "options": ["a", "b", "c"], "label": i % 3} for i, t in enumerate(texts)),
    )
    for file, task, kind in (
        (multi, "classify", "multi"),
        (numbers, "classify", "regression"),
        (tags, "tag", "entities"),
        (questions, "answer", ""),
        (choices, "choose", ""),
    ):
        found = check_data([file])
        assert (found.task, found.kind) == (task, kind)
        assert complaints(found) == []
        assert found.command.startswith(f"bothways finetune {task} ")
    assert {label.name: label.count for label in check_data([tags]).labels} == {"PER": 54, "LOC": 54}
    assert check_data([numbers]).labels[0].name == "0 to 0.98"


# ------------------------------------------------------------------ rows


def test_empty_unlabelled_and_damaged_rows(tmp_path: Path) -> None:
    rows = labelled(english(), "good", "bad")
    rows[3] = ("  ", "good")
    rows[7] = (rows[7][0], "")
    rows[9] = ("the caf\ufffd is good.", "good")
    found = check_data([table(tmp_path / "a.tsv", rows)])
    for what, line, severity in (("empty", 5, "error"), ("unlabelled", 9, "warning"), ("damaged", 11, "warning")):
        finding = the(found, what)
        assert (finding.count, finding.places, finding.severity) == (1, (f"line {line}",), severity)
    assert found.labelled == found.rows - 1
    assert len(complaints(found)) == 3  # the reader has noted the first two as well, and they are told once


def test_rows_that_the_reader_leaves_out_are_told(tmp_path: Path) -> None:
    rows = labelled(english(), "good", "bad")
    rows[5] = ("two\ttexts", "good")
    finding = the(check_data([table(tmp_path / "a.tsv", rows)]), "reader")
    assert finding.severity == "error"
    assert finding.places == ("line 7",)
    assert finding.count == 1
    assert "2 columns" in finding.says


def test_nothing_to_learn_from(tmp_path: Path, model_folder: Path) -> None:
    unlabelled = write(tmp_path / "plain.txt", *english())
    found = check_data([unlabelled], model=model_folder)
    assert the(found, "unlabelled").severity == "error"
    assert found.command == ""
    assert found.plan is None
    one = check_data([table(tmp_path / "a.tsv", labelled(english(), "good"))], model=model_folder)
    assert "'good'" in the(one, "labels").says
    assert one.command == ""
    ids = check_data([table(tmp_path / "b.tsv", [(t, f"id-{i}") for i, t in enumerate(english())])])
    assert (the(ids, "labels").severity, the(ids, "labels").count) == ("error", 180)


# ------------------------------------------------------------------ labels


def test_balance(tmp_path: Path) -> None:
    rows = [(text, "rare" if i % 20 == 0 else "usual") for i, text in enumerate(english())]
    found = check_data([table(tmp_path / "a.tsv", rows)])
    finding = the(found, "balance")
    assert finding.severity == "warning"
    assert finding.count == 9
    assert all(value in finding.says for value in ("'rare'", "9", "'usual'", "171", "19.0"))
    assert finding.settings == ("classify.class_weights=balanced", "classify.metric=macro_f1")
    assert found.command.endswith("--set classify.class_weights=balanced --set classify.metric=macro_f1")
    recipe = finetune_recipe({}, ["classify.class_weights=balanced", "classify.metric=macro_f1"])
    assert isinstance(recipe, FinetuneRecipe)
    even = [(text, "rare" if i % 11 == 0 else "usual") for i, text in enumerate(islice(english(), 110))]
    assert the(check_data([table(tmp_path / "b.tsv", even)]), "balance").severity == "ok"
    misspelt = [*even[:-1], (even[-1][0], f"{even[-1][1]}X")]  # to be corrected, not to be weighted
    found = check_data([table(tmp_path / "c.tsv", misspelt)])
    assert the(found, "balance").severity == "ok"
    assert the(found, "typos").count == 1


@pytest.mark.parametrize(
    ("usual", "typo", "severity"),
    [
        ("positive", "Positive", "error"),
        ("not spam", "not  spam", "error"),
        ("体育", "体育。", "error"),
        ("NBA", "ＮＢＡ", "error"),
        ("positive", "postive", "warning"),
        ("negative", "negativ", "warning"),
        ("sports", "sprots", ""),
        ("体育", "教育", ""),
        ("label-1", "label-2", ""),
        ("east", "west", ""),
        ("1", "-1", ""),
    ],
)
def test_typos(tmp_path: Path, usual: str, typo: str, severity: str) -> None:
    rows = labelled(english(), usual, "something else")
    rows[40] = (rows[40][0], typo)
    found = check_data([table(tmp_path / "a.tsv", rows)])
    typos = [finding for finding in found.findings if finding.what == "typos"]
    if typo in ("sprots", "教育", "label-2", "west", "-1"):
        assert typos == []
        return
    assert typos[0].severity == severity
    assert typos[0].places == (f"line 42 ({typo})",)
    assert repr(typo) in typos[0].says
    assert repr(usual) in typos[0].says


def test_names_that_differ_only_in_case_are_one_however_frequent(tmp_path: Path) -> None:
    found = check_data([table(tmp_path / "a.tsv", labelled(english(), "Spam", "spam", "ham"))])
    assert the(found, "typos").count == 60
    assert alike("spam", "ham") == ""


def test_amounts_taken_for_names(tmp_path: Path) -> None:
    whole = check_data([table(tmp_path / "a.tsv", [(t, str(i % 60)) for i, t in enumerate(english())])])
    assert "from 0 to 59" in the(whole, "labels").says
    assert "classify.kind=regression" in the(whole, "labels").do
    rows = [(t, f"{i % 5}.5") for i, t in enumerate(english())]
    rows[10] = (rows[10][0], "four")
    odd = the(check_data([table(tmp_path / "b.tsv", rows)]), "labels")
    assert (odd.severity, odd.places) == ("error", ("line 12 (four)",))
    cities = labelled(english(), "france", "paris, france", "berlin, germany")
    several = the(check_data([table(tmp_path / "c.tsv", cities)]), "labels")
    assert (several.severity, several.count) == ("warning", 1)
    assert "'paris, france'" in several.says
    assert "classify.kind=multi" in several.do


@pytest.mark.parametrize("column", ["score", "similarity_score", "Similarity"])
def test_whole_numbers_in_a_column_of_scores(tmp_path: Path, column: str) -> None:
    rows = [f"{text}\t{i % 6}" for i, text in enumerate(english())]
    path = write(tmp_path / "a.tsv", f"text\t{column}", *rows)
    found = the(check_data([path], label=column if column == "Similarity" else ""), "labels")
    assert (found.severity, found.count) == ("warning", 6)
    assert "from 0 to 5" in found.says
    assert "classify.kind=regression" in found.do
    assert complaints(check_data([write(tmp_path / "b.tsv", "text\tlabel", *rows)])) == []
    bits = [f"{text}\t{i % 2}" for i, text in enumerate(english())]
    assert complaints(check_data([write(tmp_path / "c.tsv", "text\tscore", *bits)])) == []


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_scores_without_end(tmp_path: Path, name: str, model_folder: Path) -> None:
    """Infinite numbers are found in training and development data, and nothing is trained on them."""
    numbers = [f"{i % 50 / 10}" for i in range(180)]
    bad = [*numbers[:7], "-Infinity" if name == "a.jsonl" else "-inf", *numbers[8:]]
    files = []
    for part, some in (("train", numbers), ("dev", bad)):
        rows = [f"{text}{part},{number}" for text, number in zip(english(), some, strict=True)]
        lines = ["text,score", *rows]
        if name == "a.jsonl":
            lines = [f'{{"text": "{row.split(",")[0]}", "score": {row.split(",")[1]}}}' for row in rows]
        files.append(write(tmp_path / f"{part}-{name}", *lines))
    line = 8 if name == "a.jsonl" else 9
    found = check_data([files[1]], model=model_folder)
    assert (found.kind, found.command) == ("regression", "")
    assert the(found, "labels").count == 1
    assert (the(found, "labels").severity, the(found, "labels").places) == ("error", (f"line {line} (-inf)",))
    dev = the(check_data([files[0]], [files[1]]), "labels")
    assert (dev.severity, dev.count, dev.places) == ("error", 1, (f"line {line} (-inf)",))
    assert "development" in dev.says


def test_missing_numbers_are_unlabelled_rows(tmp_path: Path) -> None:
    rows = [(text, "NaN" if i == 3 else f"{i % 50 / 10}") for i, text in enumerate(english())]
    found = check_data([table(tmp_path / "a.tsv", rows)])
    assert (found.kind, found.labelled, the(found, "unlabelled").places) == ("regression", 179, ("line 5",))


def test_texts_with_one_label_are_not_for_a_tagger(tmp_path: Path) -> None:
    path = table(tmp_path / "a.tsv", labelled(english(), "good", "bad"))
    with refused("no-tags", names=r"a\.tsv .*label"):
        check_data([path], task="tag")


def test_score_needs_numbers_and_pairs(tmp_path: Path) -> None:
    rows = [{"text1": text, "text2": "the cat", "score": i / 180} for i, text in enumerate(english())]
    fine = write_json(tmp_path / "a.jsonl", *rows)
    found = check_data([fine], task="score")
    assert (found.kind, complaints(found)) == ("regression", [])
    named = write_json(tmp_path / "b.jsonl", *({**row, "score": "high"} for row in rows))
    assert the(check_data([named], task="score"), "labels").severity == "error"
    single = write_json(tmp_path / "c.jsonl", *({"text": row["text1"], "score": row["score"]} for row in rows))
    assert the(check_data([single], task="score"), "pairs").count == 180


# ------------------------------------------------------------------ rows against each other


def test_copies_and_conflicts(tmp_path: Path) -> None:
    rows = labelled(english(), "good", "bad")
    rows[20] = (rows[10][0].upper().replace(" ", "   "), rows[10][1])
    rows[31] = (rows[12][0], "bad")
    found = check_data([table(tmp_path / "a.tsv", rows)])
    copies = the(found, "duplicates")
    assert (copies.severity, copies.count) == ("warning", 2)
    assert [place.partition(":")[0] for place in copies.places] == [
        "line 22 repeats line 12",
        "line 33 repeats line 14",
    ]
    conflicts = the(found, "conflicts")
    assert (conflicts.severity, conflicts.count) == ("error", 2)
    assert conflicts.places == (f"line 14 (good) and line 33 (bad): {rows[12][0]}",)


def test_copies_of_chinese_and_of_short_texts(tmp_path: Path) -> None:
    rows = labelled(chinese(), "体育", "财经")
    rows[8] = (rows[2][0], rows[2][1])
    copies = the(check_data([table(tmp_path / "a.tsv", rows)]), "duplicates")
    assert copies.severity == "warning"
    assert copies.places[0].startswith("line 10 repeats line 4")
    rows = [*labelled(chinese(), "体育", "财经"), *[("谢谢", "体育")] * 5]
    found = check_data([table(tmp_path / "b.tsv", rows)])
    assert complaints(found) == []  # a thank-you comes up again by itself
    assert the(found, "duplicates").count == 4


def test_annotators_may_differ_in_numbers(tmp_path: Path) -> None:
    rows = [(text, f"{i % 50 / 10:.1f}") for i, text in enumerate(english())]
    rows[9] = (rows[4][0], "0.900")
    finding = the(check_data([table(tmp_path / "a.tsv", rows)]), "conflicts")
    assert (finding.count, finding.severity) == (2, "warning")
    rows[9] = (rows[4][0], "0.400")  # line 6 has 0.4
    assert the(check_data([table(tmp_path / "b.tsv", rows)]), "conflicts").count == 0


def test_leakage_and_unknown_labels(tmp_path: Path) -> None:
    rows = labelled(english(), "good", "bad")
    train = table(tmp_path / "train.tsv", rows[:150])
    dev = table(tmp_path / "dev.tsv", [rows[7], *rows[150:], (rows[8][0], "bad"), ("the cat talks.", "odd")])
    found = check_data([train], [dev])
    leak = the(found, "leakage")
    assert (leak.severity, leak.count) == ("error", 2)
    assert all(value in leak.says for value in ("2 of 33", "6.1 %", "1 of them"))
    assert leak.places == (
        f"dev.tsv, line 2 and train.tsv, line 9: {rows[7][0]}",
        f"dev.tsv, line 33 (bad) and train.tsv, line 10 (good): {rows[8][0]}",
    )
    unknown = the(found, "unknown labels")
    assert (unknown.severity, unknown.count, unknown.places) == ("error", 1, ("line 34 (odd)",))
    assert "'odd'" in unknown.says


def test_pairs_leak_whatever_their_order_and_punctuation(tmp_path: Path) -> None:
    texts = list(english())
    pairs = [(texts[2 * i], texts[2 * i + 1], f"{i % 6}.5") for i in range(len(texts) // 2)]
    train = write_json(tmp_path / "train.jsonl", *_pairs(pairs[:60]))
    first, second, score = pairs[7]
    swapped = (second.upper().replace(".", " !"), first.rstrip("."), score)
    dev = write_json(tmp_path / "dev.jsonl", *_pairs([*pairs[60:], swapped]))
    leak = the(check_data([train], [dev]), "leakage")
    assert leak.count == 1
    assert leak.places[0].startswith(f"dev.jsonl, line {len(pairs) - 60 + 1} and train.jsonl, line 8")


def test_single_sentences_of_pairs_that_stand_in_the_training_data(tmp_path: Path) -> None:
    texts, chinese_texts = list(english()), list(chinese())
    pairs = [(texts[2 * i], texts[2 * i + 1], f"{i % 6}.5") for i in range(len(texts) // 2)]
    train = write_json(tmp_path / "train.jsonl", *_pairs(pairs[:60]), *_pairs([(chinese_texts[0], texts[0], "1.5")]))
    mixed = [(pairs[3][0].lower().rstrip("."), pairs[70][1], "2.5"), (texts[-1], chinese_texts[0].rstrip("。"), "3.5")]
    dev = write_json(tmp_path / "dev.jsonl", *_pairs([*pairs[60:], *mixed]))
    found = check_data([train], [dev])
    shared = the(found, "shared sentences")
    assert (shared.severity, shared.count) == ("warning", 2)
    assert "in 2 more rows" in shared.says
    assert [place.partition(":")[0] for place in shared.places] == [
        f"dev.jsonl, line {len(pairs) - 60 + i}" for i in (1, 2)
    ]
    clean = write_json(tmp_path / "clean.jsonl", *_pairs(pairs[60:]))
    assert not [finding for finding in check_data([train], [clean]).findings if finding.what == "shared sentences"]


def _pairs(rows: list[tuple[str, str, str]]) -> list[dict[str, object]]:
    return [{"sentence1": first, "sentence2": second, "score": float(score)} for first, second, score in rows]


def test_questions_on_the_same_text_leak_it(tmp_path: Path) -> None:
    def rows(words: str, contexts: list[str]) -> list[dict[str, object]]:
        return [
            {"id": f"{words}{i}", "question": words, "context": c, "answers": [{"text": c[:3], "answer_start": 0}]}
            for i, c in enumerate(contexts)
        ]

    texts = list(english())
    train = write_json(tmp_path / "train.jsonl", *rows("who runs to the house?", texts[:50]))
    dev = write_json(tmp_path / "dev.jsonl", *rows("where is it?", texts[40:60]))
    found = check_data([train], [dev])
    assert the(found, "leakage").count == 0
    assert the(found, "shared texts").count == 10


def test_questions_without_a_text_share_none(tmp_path: Path) -> None:
    rows = [{"question": t, "options": ["a", "b"], "label": i % 2} for i, t in enumerate(english())]
    train, dev = write_json(tmp_path / "a.jsonl", *rows[:100]), write_json(tmp_path / "b.jsonl", *rows[100:])
    assert complaints(check_data([train], [dev])) == []


def test_faults_of_dev_are_told_as_such(tmp_path: Path) -> None:
    rows = labelled(english(), "good", "bad")
    train = table(tmp_path / "train.tsv", rows[:150])
    found = check_data([train], [table(tmp_path / "dev.tsv", [*rows[150:], ("", "good")])])
    (finding,) = found.of("error")
    assert (finding.what, finding.count, finding.places) == ("empty", 1, ("line 32",))
    assert "development" in finding.says
    rows[3] = ("", "bad")
    found = check_data([table(tmp_path / "train.tsv", rows[:150])], [table(tmp_path / "dev.tsv", rows[150:])])
    assert the(found, "empty").places == ("line 5",)  # the file need not be named: it is not in --dev


@pytest.mark.parametrize("at_a_time", [1_000, 70])
def test_equal_hashes_are_found_as_by_a_plain_loop(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "AT_A_TIME", at_a_time)
    draws = np.random.default_rng(0)
    texts, marks = draws.integers(0, 40, 300).astype(np.uint64), draws.integers(0, 3, 300).astype(np.uint64)
    first: dict[int, int] = {}
    expected = []
    for row, text in enumerate(texts.tolist()):
        if text and text in first:
            expected.append((row, first[text]))
        first.setdefault(text, row)
    assert list(zip(*(rows.tolist() for rows in hashes.repeats(texts)), strict=True)) == expected
    golds: dict[int, set[int]] = {}
    for text, mark in zip(texts.tolist(), marks.tolist(), strict=True):
        if text and mark:
            golds.setdefault(text, set()).add(mark)
    rows, pairs = hashes.contradictions(texts, marks, 5)
    assert len(pairs) == 5
    assert rows.tolist() == [i for i in range(300) if texts[i] and marks[i] and len(golds[int(texts[i])]) > 1]
    assert all(texts[a] == texts[b] and marks[a] != marks[b] for a, b in pairs)
    others = draws.integers(0, 60, 90).astype(np.uint64)
    known = set(texts.tolist()) - {0}
    assert hashes.among(others, texts).tolist() == [other in known for other in others.tolist()]


# ------------------------------------------------------------------ tags, answers, options


def test_broken_tags_with_the_line_of_the_word(tmp_path: Path) -> None:
    good = ["张 B-PER", "三 I-PER", "在 O", "北 B-LOC", "京 I-LOC", ""]
    bad = ["王 O", "五 I-PER", "去 O", "巴 B-LOC", "黎 I-PER", ""]
    found = check_data([write(tmp_path / "a.bio", *good * 3, *bad)])
    finding = the(found, "tags")
    assert (finding.severity, finding.count) == ("error", 2)
    assert finding.places == ("line 20: I-PER after O", "line 23: I-PER after B-LOC")
    assert found.lengths["words in a sentence"].longest == 5
    # The tags are judged as they are in the file, not in the BIO that is made of them.
    bmes = ["张 B-PER", "三 E-PER", "在 O", "北 B-LOC", "京 M-LOC", ""]
    finding = the(check_data([write(tmp_path / "a.bmes", *["李 S-PER", ""], *bmes)]), "tags")
    assert finding.places == ("line 7: M-LOC at the end, though no entity of BMES ends with it",)
    in_json = write_json(
        tmp_path / "a.jsonl",
        {"tokens": ["a", "b"], "tags": ["B-PER", "O"]},
        {"tokens": ["c", "d"], "tags": ["O", "I-PER"]},
    )
    assert the(check_data([in_json]), "tags").places == ("line 2, word 2: I-PER after O",)


def test_tags_that_are_none_of_the_scheme(tmp_path: Path) -> None:
    found = check_data([write(tmp_path / "a.conll", "Ann B-PER", "runs O", "", "Bob PER", "sleeps O", "")])
    assert found.kind == "plain"
    reader = the(found, "reader")
    assert reader.severity == "error"
    assert reader.places[0].startswith("line 4")
    assert "PER" in f"{reader.says} {reader.places[0]}"


def test_answers(tmp_path: Path) -> None:
    def row(number: int, text: str, start: int) -> dict[str, object]:
        context = f"北京是中国的首都，巴黎是法国的首都，这是第{number}个。"
        answers = [{"text": text, "answer_start": start}] if text else []
        return {"id": str(number), "question": "中国的首都是哪里？", "context": context, "answers": answers}

    rows = [row(0, "北京", 0), row(1, "东京", 0), row(2, "巴黎", 3), row(3, "", 0)]
    found = check_data([write_json(tmp_path / "a.jsonl", *rows)])
    lost = the(found, "answers")
    assert (lost.severity, lost.places) == ("error", ("line 2 ('东京')",))
    moved = the(found, "reader")
    assert (moved.severity, moved.places) == ("warning", ("line 3",))
    assert {label.name: label.share for label in found.labels} == {"an answer": 0.75, "no answer": 0.25}
    assert found.lengths["words in a question"].longest == 9


def test_options(tmp_path: Path) -> None:
    texts = list(english())
    rows = [
        {"question": text, "options": ["甲", "乙", "丙", "丁"], "label": 0 if i % 2 else i % 4}
        for i, text in enumerate(texts)
    ]
    rows[6] = {"question": texts[6], "options": ["甲", "乙", "甲"], "label": 1}
    rows[8] = {"question": texts[8], "options": ["甲", "乙"], "answer": "丙"}
    found = check_data([write_json(tmp_path / "a.jsonl", *rows)])
    assert the(found, "options").places == ("line 7",)
    reader = the(found, "reader")
    assert (reader.severity, reader.count) == ("error", 1)
    assert reader.places[0].startswith("line 9")
    position = the(found, "position")
    assert position.severity == "warning"
    assert "Option 1" in position.says


# ------------------------------------------------------------------ which task


GUESSES = {
    "a.conll": ("EU B-ORG\nrejects O\n", "tag"),
    "b.txt": ("高 B-NAME\n勇 E-NAME\n： O\n\n男 O\n", "tag"),
    "c.tsv": ("EU\tB-ORG\nrejects\tO\n", "tag"),
    "d.tsv": ("sentence\tlabel\nfine .\t1\n", "classify"),
    "e.jsonl": ('{"text": "a", "labels": ["joy"]}\n', "classify"),
    "f.jsonl": ('{"text": "Ann runs", "labels": []}\n{"text": "Ann runs", "labels": [[0, 3, "PER"]]}\n', "tag"),
    "g.json": ('{"version": "1.1", "data": [{"paragraphs": []}]}', "answer"),
    "h.json": ('[[["text"], [{"question": "q", "choice": ["a", "b"], "answer": "a"}], "1"]]', "choose"),
    "i.csv": ("sent1,sent2,ending0,ending1,label\na,b,c,d,0\n", "choose"),
    "j.txt": ("__label__joy what a day\n", "classify"),
    "k.jsonl": ('{"question": "a", "sentence": "b", "label": "entailment"}\n', "classify"),
    "l.jsonl": ('{"tokens": ["a"], "ner_tags": ["O"]}\n', "tag"),
    "m.jsonl": ('{"question": {"stem": "q", "choices": []}, "answerKey": "A"}\n', "choose"),
    "n.txt": ("I O\nI O\n", "tag"),
    "p.json": ('[{"context_id": "1", "context_text": "t", "qas": [{"query_id": "1"}]}]', "answer"),
    "q.csv": ("question,context,answer\nWhere?,In France.,France\n", "answer"),
    "r.jsonl": ('{"question": "q", "context": "c", "options": ["a", "b"], "answer": "a"}\n', "choose"),
    "s.txt": ("我 S\r\n喜 B\r\n欢 E\r\n\r\n", "tag"),
    "t.txt": ("vitamin B\nvitamin B\n", "classify"),
    "o.txt": ("a plain line\nanother plain O\n", "classify"),
}


@pytest.mark.parametrize("name", GUESSES)
def test_the_task_is_guessed(tmp_path: Path, name: str) -> None:
    held, task = GUESSES[name]
    (tmp_path / name).write_text(held, encoding="utf-8")
    assert guess_task(str(tmp_path / name)).name == task


# ------------------------------------------------------------------ with a model


def test_with_a_model(tmp_path: Path, model_folder: Path) -> None:
    rows = labelled(english(), "good", "bad")
    rows[50] = ("the cat " * 60 + ".", "good")
    train = table(tmp_path / "train.tsv", rows)
    found = check_data([train], model=model_folder)
    assert found.reading is not None
    assert found.plan is not None
    assert (found.reading.limit, found.reading.beyond, found.reading.where) == (48, 1, "line 52")
    assert found.reading.longest == 60 * 2 + 3
    assert found.reading.sequences == 179 + 4  # 121 tokens in windows of 46 that share 11
    assert found.reading.unknown_share == 0
    assert 1 < found.reading.tokens_per_word < 1.1  # walk ##s
    assert (found.plan.batch, found.plan.lr, found.plan.epochs) == (16, 5e-4, 10)
    assert found.plan.steps == 10 * -(-183 // 16)
    assert "10 epochs for 183 examples with 2 labels" in found.plan.why
    assert 0 < found.plan.seconds < 600
    assert found.command == (
        f"bothways finetune classify --train {train} --model {model_folder} --out train-classify "
        "--batch 16 --lr 0.0005 --epochs 10"
    )
    assert complaints(found) == []


def test_a_model_that_cannot_read_the_language(tmp_path: Path, model_folder: Path) -> None:
    rows = labelled((text.replace("首都", "省会") for text in chinese()), "体育", "财经")
    finding = the(check_data([table(tmp_path / "a.tsv", rows)], model=model_folder), "unknown tokens")
    assert finding.severity == "error"
    assert finding.do


@pytest.mark.parametrize(
    ("unknown", "severity", "says", "do"),
    [
        ("🪿🪿", "warning", "Unknown characters: 🪿 (80 times).", "emoji"),
        ("間評", "error", "Unknown characters: 間 (40 times) 評 (40 times).", "simplified"),
        ("ψω", "error", "Unknown characters: ψ (40 times) ω (40 times).", "covers this language"),
    ],
)
def test_unknown_characters_are_named(
    unknown: str, severity: str, says: str, do: str, tmp_path: Path, model_folder: Path
) -> None:
    rows = labelled((f"the cat {unknown} the dog" for _ in range(40)), "good", "bad")
    finding = the(check_data([table(tmp_path / "a.tsv", rows)], model=model_folder), "unknown tokens")
    assert (finding.severity, finding.says.partition(". ")[2]) == (severity, says)
    assert do in finding.do


@pytest.mark.parametrize("name", ["N/A", "nan", "-", "未标注", "未標註"])
def test_labels_that_stand_for_none(name: str, tmp_path: Path) -> None:
    rows = [*labelled(english(), "good", "bad"), ("a cat", name), ("the dog runs", name)]
    found = check_data([table(tmp_path / "a.tsv", rows)])
    assert f"{name!r} (2 times) looks like a missing label" in the(found, "missing labels").says
    assert "class_weights" not in found.command
    assert not any(one.what == "missing labels" for one in check_data([table(tmp_path / "b.tsv", rows[:-2])]).findings)


@pytest.mark.parametrize("task", ["tag", "answer", "choose", "score", "multi"])
def test_every_task_is_tokenized_and_timed(tmp_path: Path, model_folder: Path, task: str) -> None:
    texts = list(english())[:20]
    rows: dict[str, list[dict[str, object]]] = {
        "tag": [{"tokens": t.split(), "tags": ["O"] * (len(t.split()) - 1) + ["B-LOC"]} for t in texts],
        "answer": [{"question": "who?", "context": t, "answers": [{"text": t, "answer_start": 0}]} for t in texts],
        "choose": [{"question": t, "options": ["cat", "dog"], "label": i % 2} for i, t in enumerate(texts)],
        "score": [{"text1": t, "text2": "the cat", "score": i / 20} for i, t in enumerate(texts)],
        "multi": [{"text": t, "labels": ["a", "b"][: i % 3]} for i, t in enumerate(texts)],
    }
    file = write_json(tmp_path / "a.jsonl", *rows[task])
    found = check_data([file], task="score" if task == "score" else None, model=model_folder)
    assert found.plan is not None
    assert found.reading is not None
    assert found.reading.sequences == (40 if task == "choose" else 20)
    assert 1 <= found.reading.tokens_per_word < 1.5


def test_answers_too_long_to_give(tmp_path: Path, tokenizer: Tokenizer) -> None:
    shape = replace(TINY, positions=Learned(400), layers=1)
    save(Model.new(ModelConfig(shape, ("pooler",)), tokenizer, seed=0), tmp_path / "model")
    text = "the cat runs . " * 15
    rows = [{"question": "who?", "context": f"{text}{i % 10} {i // 10}", "answers": [{"text": text[: 11 if i % 4 else 151], "answer_start": 0}]} for i in range(40)]  # fmt: skip
    found = check_data([write_json(tmp_path / "a.jsonl", *rows)], model=tmp_path / "model")
    finding = the(found, "long answers")
    assert (finding.severity, finding.count, finding.places[0]) == ("warning", 10, "line 1")
    assert "30 tokens" in finding.says
    assert finding.settings == ("answer.max_answer_length=41",)
    assert found.command.endswith(
        "--set answer.max_answer_length=41"
    )  # 151 characters are ten sentences of four tokens, and "t"
    assert found.reading is not None
    assert found.reading.limit == 384


def test_pairs_that_leave_no_room(tmp_path: Path, model_folder: Path) -> None:
    rows = [{"text1": text, "text2": "the cat", "label": f"{i % 2}"} for i, text in enumerate(english())]
    rows[30] = {"text1": "the cat " * 40, "text2": "a dog " * 40, "label": "0"}
    found = check_data([write_json(tmp_path / "a.jsonl", *rows)], model=model_folder)
    (finding,) = found.of("error")
    assert (finding.what, finding.count, finding.places) == ("long", 1, ("line 31",))
    assert found.plan is not None


# ------------------------------------------------------------------ the command


def run(*arguments: object) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(doctor)
    done = CliRunner().invoke(app, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout, done.stderr


def test_the_command(tmp_path: Path, model_folder: Path) -> None:
    rows = labelled(english(), "good", "bad")
    rows[4] = ("", "good")
    train = table(tmp_path / "train.tsv", rows)
    code, out, err = run(train, "--dev", table(tmp_path / "dev.tsv", [("it is new", "good")]), "--model", model_folder)
    assert code == 0  # whatever is found
    for words in (
        "classify, single",
        "error",
        "1 of 180 rows",
        "line 6",
        "good",
        "█",
        "ok",
        "50.0 %",
    ):
        assert words in out
    assert out.strip().splitlines()[-1].startswith("bothways finetune classify --train")
    assert "next" in err
    code, out, err = run(write(tmp_path / "plain.txt", *english()))
    assert "--label" in out  # arguments are shown as options
    assert "--dev" in err
    assert "`" not in out + err
    code, out, _ = run(train, "--json")
    held = json.loads(out)
    assert code == 0
    assert held["rows"] == 180
    assert held["findings"][0]["places"] == ["line 6"]
    assert held == json.loads(json.dumps(asdict(check_data([train])), ensure_ascii=False))


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with refused("no-file", names=r"none\.tsv"):
        check_data([tmp_path / "none.tsv"])
    with refused("standard-input"):
        check_data(["-"])
    with refused("no-data"):
        check_data([])
    with refused("no-examples"):
        check_data([write(tmp_path / "empty.tsv", "text\tlabel")])
    with refused("unknown-task", "dance"):
        check_data([table(tmp_path / "a.tsv", [("a", "b")])], task="dance")
    with refused("no-column"):
        check_data([tmp_path / "a.tsv"], label="nothing")


def test_columns_by_name_are_in_the_command(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "words,kind", *(f"{text},{label}" for text, label in labelled(english(), "good", "bad")))
    found = check_data([tmp_path / "a.csv"], text="words", label="kind")
    assert complaints(found) == []
    assert "--text words --label kind" in found.command


@pytest.mark.slow
def test_memory_does_not_hold_the_texts(tmp_path: Path) -> None:
    """2 MB of text, of which about 25 bytes a row are kept."""
    rows = [(f"{i} " + "the cat sleeps " * 130, ("good", "bad")[i % 2]) for i in range(1_000)]
    file = table(tmp_path / "a.tsv", rows)
    check_data([file])
    tracemalloc.start()
    check_data([file])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert file.stat().st_size > 1_900_000
    assert peak < 700_000


def test_one_file_needs_no_list(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text("text\tlabel\n" + "\n".join(f"text number {i}\t{i % 2}" for i in range(8)), encoding="utf-8")
    assert check_data(str(file), file) == check_data([file], [file])
