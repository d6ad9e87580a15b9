"""The model in the box itself: it is the one that was measured, it computes what transformers computes, it is shipped."""

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import peft
import pytest
import sentence_transformers
import torch
import transformers
from typer.testing import CliRunner

import bothways
from bothways.cli import app
from bothways.model.box import BOX, boxed_names
from helpers import refused
from helpers.cli import Run

ROOT = Path(__file__).parents[1]
MEASURED = {
    "en": "d60a4272ce77db93d8308b93f4c4f46b57462c794f466124157a24b9de618d42",
    "en-answer": "11443fbd2c263159da4791798c079712a80f73c530490964133754b9e8d02fa0",
    "en-emotion": "4af81733712c6001194dd8e6d672475bd17c3405f08fcdfaa1dff0c55fdc6de4",
    "en-ner": "3d5ad8c202c5fad8471a20685c883452691446487f196dc2c30e6b0e605302f9",
    "en-nli": "14a8cf78892ea0408764c224126f593ebec610ee9c2eab49085c891bb634c02d",
    "en-pos": "1ee456c64395666253e8eb6529c03ad633a4df1a3a928528829204129984e8de",
    "en-sentiment": "da444a7f250743c1df56d3fece2f48c820f5f0e7b49d67cef54f05facc1fab90",
    "en-spam": "d3829091f99b013739eb53eba9019af6f810ebc3bc25cadcc2da5a572683df3b",
    "sentence": "d6f57fa486aaaa4b007c9c235aeaa31c0e6e87cd35456043720ef528dae3da50",
    "sentence-zh": "688f42487bc78efb7711fd8a735183e16810fba40d4895eca8d17e32e4ff8463",
    "zh": "c85579608a3c0c215db062872ba4b2e2a879124e9cfdc121f13f3856f794c36e",
    "zh-answer": "6ef52e6e60d51e5544f07fc9009122e7d913028caa96dd45ccbc3342141d3e8d",
    "zh-ner": "a0c9b1c5ace168ffdca526ec6a501c02e8de4b6bd6df362ce9a269754a66e405",
    "zh-pos": "e78b0fc495e68bdffa5e492308822a962a244c43127f20bff5f3c159edf9cca3",
    "zh-sentiment": "cbae142892ef77b17ca6b14827ee248add67c8523b906dffa515f638b64c25f1",
}
"""The sha256 of each folder's files, but for the card."""
PAGES = {"en": "box.md", "zh": "box-zh.md", "sentence": "box-sentence.md", "sentence-zh": "box-sentence.md"}
STATES = [-0.174690, -0.652240, -0.839026, -0.150744]
TEXTS = ["Paris is the capital of France.", "The children who live next door were playing in the garden, weren't they?"]


@pytest.fixture(scope="module")
def model() -> bothways.Model:
    return bothways.load().eval()


@pytest.mark.parametrize("name", boxed_names())
def test_it_is_the_one_that_was_measured(name: str) -> None:
    """Weights, thresholds, vocabulary and all: who changes one of them measures again, and says so in the card."""
    files = [file for file in sorted((BOX / name).rglob("*.*")) if file.name != "README.md"]
    assert hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest() == MEASURED[name]


def test_it_computes_what_it_computed_then(model: bothways.Model) -> None:
    """A change of the tokenizer, or of any sum on the way, shows here."""
    with torch.no_grad():
        states = model.encoder(model.batch([model.require_tokenizer()(TEXTS[0])]))
    assert states.shape == (9, 256)
    assert states[[0, 3, 5, 8], [0, 100, 200, 255]].tolist() == pytest.approx(STATES, abs=2e-4)


@pytest.mark.parametrize("name", ["spam", "nli"])
def test_peft_opens_its_adapters_with_equal_answers(name: str) -> None:
    """The classifier reads the mean, which peft knows from the encoder's config.json alone."""
    predictor = bothways.Predictor.load(bothways.boxed(name))
    labels = predictor.model.config.labels
    body = transformers.AutoModelForSequenceClassification.from_pretrained(
        BOX / "en", num_labels=len(labels), dtype=torch.float32
    )
    theirs = peft.PeftModel.from_pretrained(body, BOX / f"en-{name}").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(BOX / "en")
    given = {"spam": ["WIN a free prize now, call 0800!"], "nli": ["A man is asleep.", "Somebody sleeps."]}[name]
    with torch.no_grad():
        chances = theirs(**tokenizer(*given, return_tensors="pt")).logits.softmax(-1)[0].tolist()
    (answer,) = predictor([tuple(given) if len(given) > 1 else given[0]])
    assert answer["label"] == labels[int(np.argmax(chances))]
    assert name != "spam" or answer["label"] == "spam"
    if name == "spam":  # nli's are calibrated
        assert answer["score"] == pytest.approx(max(chances), abs=1e-5)


def test_transformers_opens_it_with_equal_outputs(model: bothways.Model) -> None:
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(BOX / "en", dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(BOX / "en")
    for text in TEXTS:
        batch = model.batch([model.require_tokenizer()(text)])
        given = tokenizer(text, return_tensors="pt")
        assert given["input_ids"][0].tolist() == batch.ids.tolist()
        with torch.no_grad():
            expected = theirs(given["input_ids"], attention_mask=given["attention_mask"]).logits[0]
            found = model.masked(model.encoder(batch))
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.parametrize("name", boxed_names())
def test_its_configs_name_its_own_tokens(name: str, model: bothways.Model) -> None:
    """And not those of ModernBERT's vocabulary, of which transformers warns."""
    config = transformers.AutoConfig.from_pretrained(BOX / name)
    tokenizer = model.require_tokenizer()
    for role in ("pad", "cls", "sep"):
        assert getattr(config, f"{role}_token_id") == tokenizer.id(tokenizer.roles[f"{role}_token"])


def test_it_fills_blanks() -> None:
    assert bothways.fill("Paris is the [MASK] of France.")[0].words == ("capital",)
    assert bothways.fill("She opened the [MASK] and walked in.")[0].words == ("door",)


@pytest.mark.parametrize(
    ("task", "text", "label"),
    [
        ("emotion", "I cannot believe it, thank you so much!", "gratitude"),
        ("spam", "WINNER!! Call now to claim your prize of 1000 pounds", "spam"),
        ("spam", "You have won a prize! Call now.", "spam"),
        ("spam", "See you at lunch.", "ham"),
        ("spam", "The train leaves at 7:45 from platform 6, see you there", "ham"),
        ("nli", ("A man plays the piano.", "Someone makes music."), "entailment"),
        ("nli", ("A man plays the piano.", "The man is asleep."), "contradiction"),
        ("nli", ("A man is not sleeping.", "A man is sleeping."), "contradiction"),
        ("nli", ("The dog barks.", "The dog doesn't bark."), "contradiction"),
        ("nli", ("It is not raining.", "It is not raining."), "entailment"),
        ("sentiment", "I wanted to like it, but it broke after a day.", "negative"),
        ("sentiment", "Not bad at all!", "positive"),
    ],
)
def test_it_answers_at_once(task: str, text: str | tuple[str, str], label: str) -> None:
    answer = bothways.Predictor.load(bothways.boxed(task))(text)
    assert (answer[0] if isinstance(answer, list) else answer)["label"] == label


def test_no_emotion_is_an_answer_too() -> None:
    assert (
        CliRunner().invoke(app, ["predict", "我很高兴见到你。", "--task", "emotion"]).stdout == "-\t我很高兴见到你。\n"
    )


def test_it_finds_sentences_likely() -> None:
    good, bad = bothways.sentence_scores(["The children are asleep.", "The children is asleep."])
    assert good > bad


def test_it_wants_as_many_texts_as_it_learned_from() -> None:
    with pytest.raises(bothways.BothwaysError):
        bothways.Predictor.load(bothways.boxed("nli"))("A man plays.")
    with pytest.raises(bothways.BothwaysError):
        bothways.Predictor.load(bothways.boxed("spam"))(("a", "b"))


def test_it_tags_words() -> None:
    tags = bothways.Predictor.load(bothways.boxed("pos"))("She doesn't live in London.")
    assert [tag["word"] for tag in tags] == ["She", "does", "n't", "live", "in", "London", "."]
    assert [tag["entity_group"] for tag in tags] == ["PRON", "AUX", "PART", "VERB", "ADP", "PROPN", "PUNCT"]


def test_it_finds_answers() -> None:
    text = "Owls hunt at night. By day they sleep in hollow trees."
    answer = bothways.Predictor.load(bothways.boxed("answer"))(("Where do owls sleep?", text))
    assert answer["answer"] == "hollow trees"
    assert bothways.Predictor.load(bothways.boxed("answer"))(("Who wrote Hamlet?", text))["answer"] == ""


def test_it_finds_names() -> None:
    found = bothways.Predictor.load(bothways.boxed("ner"))("Angela Merkel visited Google in Paris.")
    assert [(one["word"], one["entity_group"]) for one in found] == [
        ("Angela Merkel", "PER"),
        ("Google", "ORG"),
        ("Paris", "LOC"),
    ]


@pytest.mark.parametrize(
    ("task", "given", "wanted"),
    [
        ("sentiment", ("服务态度很好，房间干净。",), "positive"),
        ("sentiment", ("太差了，再也不来了。",), "negative"),
        ("ner", ("鲁迅出生于浙江绍兴。",), "浙江/LOC"),
        ("pos", ("鲁迅出生于浙江绍兴。",), "出生/VERB"),
        (
            "answer",
            ("猫头鹰白天在哪里睡觉？", "猫头鹰是夜行性动物，白天在树洞里睡觉，晚上出来捕食老鼠。它们的听力非常灵敏。"),
            "树洞",
        ),
        ("answer", ("谁写了《红楼梦》？", "猫头鹰白天在树洞里睡觉，晚上出来捕食老鼠。"), "no answer"),
    ],
)
def test_the_chinese_tasks_answer(task: str, given: tuple[str, ...], wanted: str, run: Run) -> None:
    assert wanted in run("predict", *given, "--task", task, "--model", "zh").stdout.replace("\t", " ")


def test_it_splits_chinese_words() -> None:
    found = bothways.Predictor.load(bothways.boxed("pos", "zh"))("昨天在超市买了三斤苹果。")
    assert [one["word"] for one in found] == ["昨天", "在", "超市", "买", "了", "三", "斤", "苹果", "。"]
    assert [one["entity_group"] for one in found[2:]] == ["NOUN", "VERB", "AUX", "NUM", "NOUN", "NOUN", "PUNCT"]


def test_what_is_not_in_it_is_named(run: Run) -> None:
    done = run("predict", "服务很好", "--model", "zh")
    assert done.returncode == 1
    assert "zh answers with one of its tasks: answer, ner, pos, sentiment, similarity (--task NAME" in done.stderr
    done = run("predict", "服务很好", "--task", "pos", "--model", "zhh")
    assert done.returncode == 2
    assert "--model is zhh: name one of en, zh, sentence, sentence-zh, or leave --task out" in " ".join(
        done.stderr.replace("│", " ").split()
    )
    with refused("no-such-model", "中文"):
        bothways.boxed("pos", "中文")
    with refused("no-such-model", "poss"):
        bothways.boxed("poss", "zh")


def test_info_names_its_labels() -> None:
    told = " ".join(CliRunner().invoke(app, ["info"]).stdout.split())
    assert "classify texts (bothways predict --task emotion): admiration, amusement, anger, 25 more" in told
    assert "classify texts (bothways predict --task nli): contradiction, entailment, neutral" in told


def test_info_names_what_an_adapter_belongs_to() -> None:
    told = [
        json.loads(CliRunner().invoke(app, ["info", str(BOX / name), "--json"]).stdout) for name in ("en-pos", "en")
    ]
    assert [one["adapter_of"] for one in told] == [str(BOX / "en"), None]
    assert f"adapter of {BOX / 'en'}" in " ".join(CliRunner().invoke(app, ["info", str(BOX / "en-pos")]).stdout.split())


def test_all_of_it_is_small() -> None:
    assert sum(file.stat().st_size for file in BOX.rglob("*") if file.is_file()) <= 110_000_000


@pytest.mark.parametrize(("name", "page"), PAGES.items())
def test_its_card_is_the_page_of_the_docs(name: str, page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    card = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("!["))
    assert (BOX / name / "README.md").read_text(encoding="utf-8") == card


def test_the_chinese_model_fills_masks_and_is_named_to_those_who_need_it(run: Run) -> None:
    found = run("fill", "不要[MASK]费粮食。", "--model", "zh", "--top", 1)
    assert found.stdout.split()[1] == "浪"
    assert not found.stderr.strip()
    assert "the included model zh can" in run("fill", "不要[MASK]费粮食。").stderr


def test_what_belongs_together_is_near() -> None:
    """And what does not is far, in English, in Chinese, and from one to the other."""
    groups = (
        ("sentence", ("A cat sleeps on the sofa.", "A kitten is napping on the couch.", "The train leaves at nine.")),
        ("sentence-zh", ("猫在沙发上睡觉。", "一只小猫在长椅上打盹。", "火车九点开。")),
        ("sentence-zh", ("北京是中国的首都。", "Beijing is the capital of China.", "The train leaves at nine.")),
    )
    for model, texts in groups:
        same, other, strange = bothways.encode(texts, model)
        assert same @ other > 0.8
        assert same @ strange < 0.5


def test_the_models_for_vectors_read_both_languages_or_say_who_does(run: Run) -> None:
    words = ("--task", "similarity", "--model", "zh")
    assert "cannot read" not in run("predict", "你多大了？", "How old are you?", *words).stderr
    assert (
        "the included model sentence-zh can" in run("predict", "你多大了？", "你几岁？", "--task", "similarity").stderr
    )


def test_workers_find_it_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("She likes it.\nHe hates it.\n")
    bothways.scale.encode_files(tmp_path / "texts.txt", tmp_path / "out.npy", "sentence-zh", devices="cpu")
    expected = bothways.encode(["She likes it.", "He hates it."], "sentence-zh")
    assert (np.load(tmp_path / "out.npy") == expected).all()


@pytest.mark.parametrize("name", ["sentence", "sentence-zh"])
def test_sentence_transformers_opens_them_with_equal_vectors(name: str) -> None:
    texts = ["A kitten is napping on the couch.", "火车九点开。", "word " * 200]
    theirs = sentence_transformers.SentenceTransformer(
        str(BOX / name), device="cpu", model_kwargs={"dtype": torch.float32}
    )
    ours = bothways.encode(texts, name, long="cut", device="cpu", dtype="fp32")
    assert np.abs(ours - theirs.encode(texts)).max() < 1e-5


@pytest.mark.slow
def test_a_wheel_has_it(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(tmp_path)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = {name.removeprefix("bothways/box/") for name in zipfile.ZipFile(wheel).namelist() if "/box/" in name}
    assert inside == {str(file.relative_to(BOX)) for file in BOX.rglob("*") if file.is_file()}
