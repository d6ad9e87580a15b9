"""Texts in a writing system that a vocabulary has no words of are said, on every way into a model."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import bothways
from bothways.errors import SaidOnceWarning
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.readable import _SAID
from bothways.predict.token_table import distil_static
from bothways.scale.worker import SayOnce, warned
from bothways.text.scripts import SCRIPTS, find_strange, known_scripts, starts_of
from bothways.text.tokenizer import BERT_SPECIALS, Tokenizer
from helpers.cli import Run
from helpers.tasks import base_model

LETTERS = [*"abcdefghijklmnopqrstuvwxyz", *"абвгд", *"あいう", "中", "国"]
WORDS = ["the", "cat", "sleeps", *(f"{a}{b}{c}" for a in "bcdfghklmn" for b in "aeiou" for c in "bcdfghklmnprstvwxz")]
ENGLISH = [*BERT_SPECIALS, *LETTERS, *dict.fromkeys(WORDS), *(f"##{word}" for word in WORDS[:200])]
CHINESE = "北京是中国的首都"


@pytest.fixture
def english(tmp_path: Path) -> Model:
    """A model whose vocabulary has the letters of many scripts, and words of one."""
    base_model(tmp_path / "english", Tokenizer.from_pieces(ENGLISH), vocab_size=len(ENGLISH))
    return load(tmp_path / "english")


def test_letters_alone_are_no_knowledge_of_a_script() -> None:
    assert known_scripts(ENGLISH) == {"Latin"}
    russian = [*ENGLISH, *(a + b + c for a in "бвгд" for b in "аеио" for c in "клмнпрст")]
    assert known_scripts(russian) == {"Latin", "Cyrillic"}
    assert known_scripts(ENGLISH[:200]) == set(SCRIPTS)  # a toy is not judged


def test_enough_characters_are_knowledge_of_chinese() -> None:
    words = [f"word{chr(97 + i % 26) * (1 + i // 26)}" for i in range(15_000)]
    some = [chr(0x4E00 + i) for i in range(800)]
    assert known_scripts([*words, *some, *(f"##{one}" for one in some)]) == {"Latin"}
    assert known_scripts([*words, *(chr(0x4E00 + i) for i in range(2_000))]) == {"Latin", "Chinese"}
    assert known_scripts([*words[:900], *(chr(0x4E00 + i) for i in range(2_000))]) == {"Chinese"}  # names and brands
    assert known_scripts([*ENGLISH, *some]) == {"Latin", "Chinese"}


def test_pieces_of_bytes_are_read_as_text() -> None:
    """RoBERTa's: 北 is three bytes, and the letters that stand for them are no Latin ones."""
    texts = [" ".join(WORDS), CHINESE * 9]
    backend = tokenizers.ByteLevelBPETokenizer()
    backend.train_from_iterator(texts, vocab_size=1_200, min_frequency=1, show_progress=False)
    raw = tokenizers.Tokenizer.from_str(backend.to_str())
    assert Tokenizer(raw).scripts == {"Latin"}


@pytest.mark.parametrize(
    ("text", "script"),
    [
        (CHINESE, "Chinese"),
        ("世界こんにちは", "Japanese"),
        ("Привет, мир", "Cyrillic"),
        ("안녕하세요", "Korean"),
        ("γειά σου Κόσμε", "Greek"),
        (("the cat", "北京是中国的首都，也是中国的政治中心"), "Chinese"),
        ("[_]{|} 猫猫", "Chinese"),
        ("the cat 猫", None),
        ("the service was 很好 indeed", "Chinese"),
        ("Moscow (Russian: Москва, tr. Moskva) is the capital and largest city of Russia", None),
        ("Größe café", None),
        ("123 😀 …", None),
        ("中", None),
        ("", None),
    ],
)
def test_the_script_of_a_text(text: Any, script: str | None) -> None:
    known = frozenset({"Latin"})
    found = find_strange(starts_of(["the cat", text], known), known)
    assert (found and found.script) == script
    if script:
        both = known | {script}
        assert find_strange(starts_of([text], both), both) is None


@pytest.mark.parametrize(
    ("text", "is_strange"),
    [
        ("The food was delicious and the staff were friendly.", True),
        ("Das Essen war ausgezeichnet", True),
        ("iPhone手机壳", False),
        ("电脑预装了Windows Vista，速度太慢", False),
        ("OK", False),
        ("1234567890 http", False),
    ],
)
def test_a_reader_of_chinese_says_that_it_reads_no_english(text: str, is_strange: bool) -> None:
    known = frozenset({"Chinese"})
    found = find_strange(starts_of([text], known), known)
    assert bool(found) == is_strange
    assert found is None or found.script == "Latin"


def test_text_that_is_partly_unreadable_is_counted(english: Model) -> None:
    mixed = "the service 很好吃 was good"
    with pytest.warns(
        UserWarning, match=r"is partly Chinese, which this model cannot read \(2 of 5 texts\): .* zh can"
    ):
        bothways.encode(["the cat", "a dog", mixed, "naïve café", CHINESE], english)


CALLS: dict[str, Callable[[Model, str], Any]] = {
    "encode": lambda model, text: bothways.encode([text], model),
    "encode many": lambda model, text: bothways.encode(["the cat"] * 40 + [text], model),
    "encode_tokens": lambda model, text: bothways.encode_tokens([text], model),
    "fill": lambda model, text: list(bothways.fill([f"{text} [MASK]"], model)),
    "sentence_scores": lambda model, text: list(bothways.sentence_scores([text], model)),
    "bert_score": lambda model, text: bothways.bert_score([text], [text], model),
    "similar_pairs": lambda model, text: bothways.similar_pairs([text, "the cat"], model),
    "static": lambda model, text: distil_static(model, device="cpu").encode([text]),
}


@pytest.mark.parametrize("name", CALLS)
def test_every_way_into_a_model_says_so_once(name: str, english: Model) -> None:
    CALLS[name](english, "the cat sleeps")
    with pytest.warns(UserWarning, match="北京是中国的首都.* is Chinese, which this model cannot read") as seen:
        CALLS[name](english, CHINESE)
    assert len([one for one in seen if "cannot read" in str(one.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert english.tokenizer in _SAID
        CALLS[name](english, CHINESE)


VERBS = {
    "fill": "今天[MASK]气很好 --model {model}",
    "encode": "{texts} --model {model} --out {out}.npy",
    "encode --devices": "{texts} --model {model} --out {out}.npy --devices cpu:2 --rows-per-part 3",
    "pack --devices": "{texts} --model {model} --out {out} --devices cpu:2 --rows-per-part 3",
    "search build --devices": "{texts} --model {model} --out {out} --devices cpu:2 --rows-per-part 3",
    "similar": "{texts} --model {model}",
    "cluster": "{texts} --model {model}",
    "bertscore": "{texts} {texts} --model {model}",
    "blimp": "{minimal} --model {model}",
    "static": "{model} --texts {texts} --out {out}",
    "mine": "{pairs} --model {model} --out {out}.jsonl",
    "search build": "{texts} --model {model} --out {out}",
    "pack": "{texts} --model {model} --out {out}",
    "adapt": "{texts} --model {model} --out {out} --each lines --valid 50% --set run.steps=1",
    "finetune": "classify --train {rows} --model {model} --out {out} --set run.steps=1 --set run.epochs=0",
    "doctor": "{rows} --model {model}",
    "vocab show": "北京是中国的首都 --model {model}",
}
"""All that read texts, but for those of fine-tuned models, which read them as `finetune` does."""


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_so_once(verb: str, english: Model, tmp_path: Path, run: Run) -> None:
    texts = [f"{CHINESE}{place}" for place in ("上海", "广州", "深圳", "天津", "武汉", "成都")]
    files: dict[str, list[dict[str, str]]] = {
        "minimal": [{"sentence_good": text, "sentence_bad": text[::-1], "UID": "a"} for text in texts],
        "pairs": [{"anchor": text, "positive": f"{text}吗"} for text in texts],
        "rows": [{"text": text, "label": "ab"[i % 2]} for i, text in enumerate(texts)],
        "texts": [{"text": text} for text in texts],
    }
    for name, rows in files.items():
        lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        (tmp_path / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    places = {name: tmp_path / f"{name}.jsonl" for name in files}
    command = VERBS[verb].format(model=tmp_path / "english", out=tmp_path / "out", **places)
    found = run(*verb.removesuffix(" --devices").split(), *command.split())
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("is Chinese, which this model cannot read") == 1


def test_workers_say_once_what_each_words_by_its_own_texts() -> None:
    about = [SaidOnceWarning(f"{text} cannot be read") for text in ("'北京' …", "'上海' …")]
    found = [warned(one) for one in (*about, UserWarning("a.txt is odd"), UserWarning("b.txt is odd"))]
    say = SayOnce()
    with pytest.warns(UserWarning, match="odd|read") as seen:
        say([*found, *json.loads(json.dumps(found))])  # as they come over Ray
    assert [str(one.message) for one in seen] == ["'北京' … cannot be read", "a.txt is odd", "b.txt is odd"]


def test_driver_and_workers_name_a_file_alike(
    english: Model, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what both find, they say once."""
    monkeypatch.chdir(tmp_path)
    Path("texts.txt").write_text(f"{CHINESE}\n" * 40, encoding="gb18030")
    found = run("search", "build", "texts.txt", "--model", "english", "--out", "index", "--devices", "cpu:1")
    assert found.returncode == 0, found.stderr
    assert found.stderr.count("texts.txt is not UTF-8") == 1


def test_the_included_model_says_that_it_reads_no_chinese(run: Run) -> None:
    found = run("fill", "今天天气很[MASK]。")
    assert found.returncode == 0
    assert "warning: '今天天气很 。' … is Chinese, which this model cannot read" in found.stderr
    found = run("fill", "The food was [MASK] and the staff were friendly.", "--model", "zh")
    assert "is in Latin letters, which this model cannot read (33 letters): the included model en can" in found.stderr
    assert run("fill", "Paris is the [MASK] of France, très belle.").stderr.count("cannot read") == 0


def test_of_a_pair_the_text_that_cannot_be_read_is_named() -> None:
    known = frozenset({"Latin"})
    found = find_strange(starts_of([("When is it open?", "食堂的开放时间是上午十一点半到下午两点。")], known), known)
    assert found is not None
    assert found.start.startswith("食堂的开放时间")
