"""The stories of the docs: the code of each page, in order, from a messy file to an answer that others can use."""

import codecs
import json
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from transformers import AutoConfig, pipeline

import bothways
from bothways import EncoderConfig, Model, ModelConfig
from bothways.model.config import Learned
from bothways.tasks.recipe import FinetuneData
from helpers.cli import Run

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Teller:
    """Tells a story in the current folder."""

    run: Run

    def tell(self, page: str, more: dict[str, list[str]] | None = None, base: str = "") -> dict[str, str]:
        """Run the blocks of a page in order; what each command printed, by verb (the last of each).

        A ```text block is printed by the commands before it, line by line; … stands for anything. To save time, `more`
        adds options to the commands of a verb, and `base` takes the place of the included models.
        """
        names: dict[str, object] = {}
        printed: dict[str, str] = {}
        last = ""
        for language, code in BLOCK.findall((ROOT / f"docs/stories/{page}.md").read_text(encoding="utf-8")):
            if language == "python":
                exec(compile(code, page, "exec"), names)
            elif language == "sh":
                last = ""
                for line in code.splitlines():
                    _, verb, *words = (
                        base if base and word in ("en", "zh") else word for word in shlex.split(line, comments=True)
                    )
                    printed[verb] = self.command(verb, *words, *(more or {}).get(verb, ()))
                    last += printed[verb]
            for line in code.splitlines() if language == "text" else ():
                parts = (re.escape(" ".join(part.split())) for part in line.split("…"))
                assert re.search(r"\s*.*?\s*".join(parts), last), f"{line!r} is not in {last!r}"
        return printed

    def command(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return " ".join(f"{done.stderr} {done.stdout}".split())


@pytest.fixture
def story(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Teller:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return Teller(run)


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    """What `examples/tiny.py` saves, untrained."""
    tokenizer = bothways.train_vocabulary([ROOT / "examples/sample.txt"], size=1600)
    shape = EncoderConfig(tokenizer.size, width=128, layers=2, num_heads=2, ffn_width=256, positions=Learned(64))
    bothways.save(Model.new(ModelConfig(shape, ("masked",)), tokenizer), tmp_path / "tiny-model")
    return tmp_path / "tiny-model"


def score(file: str, model: str, name: str, data: FinetuneData | None = None) -> float:
    found = bothways.evaluate([file], bothways.Predictor.load(model), data or FinetuneData())
    return found.scores[name]


def test_sentiment(story: Teller) -> None:
    story.tell("sentiment", {"finetune": ["--epochs", "2"]})
    assert score("dev.csv", "train-classify", "accuracy") > 0.6  # chance: a third
    answers = pd.read_csv("answers.csv").set_index("comment")
    assert list(answers["no"]) == list(pd.read_csv("open.csv")["no"])
    assert set(answers["predicted_label"]) <= {"negative", "neutral", "positive"}
    truth = pd.concat(pd.read_csv(f"examples/reviews{part}.tsv", sep="\t", quoting=3) for part in ("", "-dev"))
    known = answers.join(truth.set_index("text"), how="inner")
    assert (known["predicted_label"] == known["label"]).mean() > 0.6
    classify = pipeline("text-classification", "train-classify/model")
    assert [found["label"] for found in classify(list(answers.index))] == list(answers["predicted_label"])
    card = Path("train-classify/model/README.md").read_text(encoding="utf-8")
    assert "train.csv" in card
    assert "accuracy" in card


def test_chinese_entities(story: Teller, tiny_model: Path) -> None:
    story.tell("chinese-entities", {"finetune": ["--lr", "3e-3", "--epochs", "15"]}, base="tiny-model")
    assert score("dev.json", "train-tag", "f1") > 0.8  # untrained: 0
    answers = pd.read_csv("entities.csv", converters={"predicted_entities": json.loads})
    assert list(answers["id"]) == [19, 38, 57, 76, 95, 114, 133, 152]  # the tasks of Label Studio
    for text, found in zip(answers["text"], answers["predicted_entities"], strict=True):
        assert all(text[entity["start"] : entity["end"]] == entity["word"] for entity in found)
    types = pd.read_csv("for-excel.csv")["entity_group"]
    assert set(types) == {"人名", "地名", "机构"}
    assert Path("for-excel.csv").read_bytes().startswith(codecs.BOM_UTF8)
    assert "人名" in Path("entities.html").read_text(encoding="utf-8")
    labels = AutoConfig.from_pretrained("train-tag/model").id2label
    assert {name[2:] for name in labels.values()} == {"", "人名", "地名", "机构"}


@pytest.fixture
def reader_of_reviews(tmp_path: Path) -> str:
    """A small model that has read the reviews, and so has something to lose."""
    files = [ROOT / "examples" / name for name in ("sample.txt", "reviews.tsv")]
    tokenizer = bothways.train_vocabulary(files, size=1600)
    bothways.pack([ROOT / "examples/reviews.tsv"], tokenizer, tmp_path / "packed-reviews")
    changes = ["data.train=['packed-reviews']", "objectives=['mlm']", "run.steps=25"]
    bothways.pretrain(bothways.read_recipe("tiny", changes), tmp_path / "small")
    return "small/model"


def test_domain(story: Teller, reader_of_reviews: str) -> None:
    """A model this small learns faster, and needs more of what it is to keep."""
    faster = ["--lr", "1e-3", "--replay", "0.5", "--tolerance", "0.1", "--epochs", "2"]
    printed = story.tell("domain", {"adapt": faster, "finetune": ["--lr", "2e-3"]}, base=reader_of_reviews)
    rows = re.findall(r"(?:domain|general) (\d+\.\d+) (\d+\.\d+)", printed["adapt"].split("held-out loss")[-1])
    (before, after), (kept_before, kept_after) = [(float(left), float(right)) for left, right in rows]
    assert after < before - 0.5
    assert kept_after <= kept_before * 1.1
    data = FinetuneData(text="note", label="part")
    assert score("examples/workshop-dev.csv", "after", "accuracy", data) > 0.6  # chance: a third
    assert "accuracy of after" in printed["evaluate"]
    parts = pd.read_csv("parts.csv")
    assert len(parts) == len(Path("examples/workshop.txt").read_text(encoding="cp1252").splitlines())
    assert set(parts["predicted_label"]) <= {"brakes", "gears", "wheels"}
    assert "domain" in Path("workshop-model/model/README.md").read_text(encoding="utf-8")


def test_several_labels(story: Teller, tiny_model: Path) -> None:
    small = ["--model", "tiny-model", "--lr", "4e-3", "--epochs", "15"]
    story.tell("several-labels", {"finetune": small})
    topics = ["app", "billing", "defect", "delivery"]
    data = FinetuneData(label="+".join(topics))
    assert score("dev.xlsx", "train-classify", "micro_f1", data) > 0.7  # all labels for every text: 0.58
    waiting, done = pd.read_excel("open.xlsx"), pd.read_excel("sorted.xlsx")
    assert list(done["ticket"]) == list(waiting["ticket"])
    assert set(done[topics].to_numpy().ravel()) == {0, 1}
    answers = pd.read_csv("topics.csv")
    config = AutoConfig.from_pretrained("train-classify/model")
    assert sorted(config.id2label.values()) == topics
    classify = pipeline("text-classification", "train-classify/model", top_k=None)
    for text, row in zip(answers["message"], answers.itertuples(), strict=True):
        for found in classify([text])[0]:
            assert found["score"] == pytest.approx(getattr(row, f"probability_{found['label']}"), abs=1e-4)
    assert "threshold" in Path("train-classify/model/README.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore:.*(not UTF-8|no document|without text)")
def test_questions(story: Teller) -> None:
    story.tell("questions")
    answers = pd.read_csv("answers.csv")
    found = dict(zip(answers["question"], zip(answers["answer"], answers["place"], strict=True), strict=True))
    places = {"How many days of holiday do I have?": ("28", "leave.md:11"), "Who buys the train tickets?": ("Maria Lopez", "travel/trains.md:3"),
              "How much can I spend on meals?": ("£25", "travel/expenses.md:3"), "Where is the toner?": ("cupboard behind the reception", "printers.md:11"),
              "What colour is the badge of visitors?": ("yellow", "security.md:5")}  # fmt: skip
    for question, (answer, place) in places.items():
        assert found[question] == (answer, f"examples/handbook/{place}")
    assert len(answers) == 7  # the empty row is none
    assert Path("answers.csv").read_bytes().startswith(codecs.BOM_UTF8)
    assert "<mark" in Path("holiday.html").read_text(encoding="utf-8")
