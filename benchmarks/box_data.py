"""The labelled data of the adapters in the box, as `bothways finetune` reads them.

    python benchmarks/box_data.py --data DIR --pairs DIR --entities DIR --out OUT

--data: a folder with goemotions (train, dev, test: .jsonl with text and labels as numbers; labels.txt), sms_spam
(all.jsonl with text and label), snli (train*, dev*, test*: .jsonl with premise, hypothesis, label), glue_mnli
(dev_matched: the same), ud_english_ewt (*train*, *dev*: .conllu), squad1_train_part (train*), squad1_dev (dev*) and
squad2_dev (dev*: SQuAD's .json), glue_sst2 (train, dev: sentence, label), cad_imdb (train, dev: Text, Sentiment),
glue_stsb (train, dev, test: sentence1, sentence2, score); Chinese: chnsenticorp (train, dev, test: text_a, label),
msra_ner (train, dev: .conll), zh_stsb (train, valid, test), ud_chinese_gsdsimp (dev, test), cmrc2018 (train, dev,
trial). --pairs: a folder with nli-snli-mnli* and nli-scitail* (.jsonl with a, b, relation). --entities: files in
CoNLL's columns, wikigold*, btc-*, wnut17-*, sec-*. All plain or .xz. --out: a folder for each adapter, each with train
and dev files, and test files where there are some.
"""

import argparse
import json
import lzma
import random
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data_files import one, parts, rows, write, write_text

from bothways.data.tagged import read_tagged
from bothways.data.words import split_words
from bothways.text.streams import read_lines

RELATIONS = ("entailment", "neutral", "contradiction")


# ---------------------------------------------------------------------- English


def emotion(data: Path, out: Path) -> None:
    names = (data / "labels.txt").read_text(encoding="utf-8").split()
    for part in ("train", "dev", "test"):
        found = rows(one(data, part))
        write(out / f"{part}.jsonl", ({"text": r["text"], "labels": [names[i] for i in r["labels"]]} for r in found))


def spam(data: Path, out: Path) -> None:
    """A tenth is held out, by the text itself: the same message is never on both sides.

    Nearly all spam of the collection has a number in it, and little else has. So that a number by itself tells nothing,
    there are copies to learn from: of the spam without its numbers, and of as many others with one.
    """
    found = list(rows(one(data, "all")))
    held_out = [zlib.crc32(" ".join(r["text"].lower().split()).encode()) % 10 == 0 for r in found]
    learned = [r for r, held in zip(found, held_out, strict=True) if not held]
    unwanted, wanted = ([r for r in learned if (r["label"] == "spam") is is_spam] for is_spam in (True, False))
    for row, other in zip(unwanted, wanted, strict=False):
        words = row["text"].split()
        numbers = [word for word in words if any(map(str.isdigit, word))]
        if numbers:
            learned.append({"text": " ".join(word for word in words if word not in numbers), "label": "spam"})
            learned.append({"text": f"{other['text']} {numbers[-1]}", "label": other["label"]})
    write(out / "train.jsonl", (r for r in learned if r["text"].strip()))
    write(out / "dev.jsonl", (r for r, held in zip(found, held_out, strict=True) if held))


def sentiment(data: Path, out: Path) -> None:
    """Phrases and sentences of films' reviews, and whole reviews with copies that say the opposite."""
    for part in ("train", "dev"):
        short = ((r["sentence"].strip(), ("negative", "positive")[int(r["label"])])
                 for r in rows(one(data / "glue_sst2", part)))  # fmt: skip
        long = ((r["Text"], r["Sentiment"].lower()) for r in rows(one(data / "cad_imdb", part)))
        for name, found in (("sst2", short), ("imdb", long)):
            write(out / f"{part}-{name}.jsonl", ({"text": text, "label": label} for text, label in found))


def similarity(data: Path, out: Path, parts_: Iterable[tuple[str, str]]) -> None:
    for part, theirs in parts_:
        found = rows(one(data, theirs))
        write(out / f"{part}.jsonl", ({k: r[k] for k in ("sentence1", "sentence2", "score")} for r in found))


def entities(folder: Path, out: Path) -> None:
    """People, places and organisations; a fifth of each file is held out, in blocks of fifty sentences."""
    names = {"person": "PER", "location": "LOC", "group": "ORG", "corporation": "ORG"}
    kept: dict[str, list[str]] = {"train": [], "dev": []}
    for file in sorted(folder.iterdir()):
        if file.name.startswith(("wnut17-test", "sec-test")):
            continue
        text = "\n".join(read_lines(file))
        for i, sentence in enumerate(filter(None, re.split(r"\n\s*\n", text))):
            lines, before = [], "O"
            for line in sentence.splitlines():
                if not line.split() or line.startswith("-DOCSTART-"):
                    continue
                word, tag = line.split()[0], line.split()[-1]
                kind = names.get(tag[2:], tag[2:])
                kind = kind if kind in ("PER", "LOC", "ORG") else ""
                # IOB1 begins with I-
                start = "I" if tag.startswith("I-") and before == kind else "B"
                lines.append(f"{word} {f'{start}-{kind}' if kind else 'O'}")
                before = kind
            if lines:
                kept["dev" if i // 50 % 5 == 4 else "train"].append("\n".join(lines))
    for part, found in kept.items():
        write_text(out / f"{part}.conll", "\n\n".join(found) + "\n")
        print(f"{out.name:8} {part:12} {len(found):7,} sentences")


# ---------------------------------------------------------------------- natural language inference


_CAN_NEGATE = re.compile(r"\b(is|are|was|were|can|could|will|would|has|have|had|should|may|might|must)\b(?! not)", re.I)
_SHORT = {"can": "cannot", "will": "won't"}


def negated(sentence: str, short: bool = False) -> str:
    """The sentence with "not" after its first auxiliary; "" if it has none or is negated already."""
    if re.search(r"\b(not|no|never|nobody|none|nothing|without)\b|n't", sentence, re.I):
        return ""
    found = _CAN_NEGATE.search(sentence)
    if not found:
        return ""
    word = found[1]
    if re.match(r"(some|several|a|an|many|two|three)\b", sentence[found.end() :].strip(), re.I) and re.match(
        r"there", sentence, re.I
    ):
        rest = re.sub(r"^\s*(some|several|an?|many|two|three)\b", " no", sentence[found.end() :])
        return sentence[: found.end()] + rest
    if short and word.lower() not in ("may", "might"):
        return sentence[: found.start()] + _SHORT.get(word.lower(), f"{word}n't") + sentence[found.end() :]
    return f"{sentence[: found.end()]} not{sentence[found.end() :]}"


def with_negated(pairs: list[tuple[str, str, str]], rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """The pairs, and copies in which one side or both are negated, so that "not" by itself tells nothing.

    What a premise entails, it contradicts when negated; what it contradicts, it entails; what is open stays open. A
    sentence contradicts its own negation, both ways, and entails itself.
    """
    yield from pairs
    swapped = {"entailment": "contradiction", "contradiction": "entailment", "neutral": "neutral"}
    for premise, hypothesis, relation in pairs:
        chance = rng.random()
        if chance < 0.22 and (other := negated(hypothesis, rng.random() < 0.5)):
            yield premise, other, swapped[relation]
        elif chance < 0.34 and (other := negated(hypothesis, rng.random() < 0.5)):
            both = [(hypothesis, other, "contradiction"), (other, hypothesis, "contradiction")]
            yield both[int(rng.random() < 0.5)]
            same = other if rng.random() < 0.6 else hypothesis
            yield same, same, "entailment"
        elif chance < 0.40 and (other := negated(premise)) and relation == "neutral":
            yield other, hypothesis, "neutral"


def inference(data: Path, pairs: Path, out: Path) -> None:
    """SNLI, MNLI's part and SciTail, with negated copies; SNLI's and MNLI's development sets are held out."""
    rng = random.Random(3)
    held = {_bare(r[key]) for folder, part in (("snli", "dev"), ("snli", "test"), ("glue_mnli", "dev_matched"))
            for r in rows(one(data / folder, part)) for key in ("premise", "hypothesis")
            if len(_bare(r[key])) > 30}  # fmt: skip
    found = [(r["premise"], r["hypothesis"], r["label"]) for r in rows(one(data / "snli", "train"))]
    for name in ("nli-snli-mnli", "nli-scitail"):
        found += [(r["a"], r["b"], r["relation"]) for r in rows(one(pairs, name))]
    kept = [row for row in dict.fromkeys(found) if row[2] in RELATIONS and not held & {_bare(row[0]), _bare(row[1])}]
    made = list(with_negated(kept, rng))
    rng.shuffle(made)
    keys = ("premise", "hypothesis", "label")
    write(out / "train.jsonl", (dict(zip(keys, row, strict=True)) for row in made))
    for part, folder, theirs in (("dev", "snli", "dev"), ("test-mnli", "glue_mnli", "dev_matched")):
        some = (r for r in rows(one(data / folder, theirs)) if r["label"] in RELATIONS)
        write(out / f"{part}.jsonl", ({key: r[key] for key in keys} for r in some))


def _bare(text: str) -> str:
    return re.sub(r"\W", "", text.lower())


# ---------------------------------------------------------------------- questions


def answers(train: Iterable[Path], dev: Iterable[Path], out: Path) -> None:
    """Questions with their paragraphs, and two in five of them again with another paragraph, which has no answer."""
    rng, articles = random.Random(5), []
    for file in train:
        articles += [article["paragraphs"] for article in json.loads("\n".join(read_lines(file)))["data"]]
    everything = [paragraph["context"] for article in articles for paragraph in article]
    found: list[dict[str, Any]] = []
    for article in articles:
        contexts = [paragraph["context"] for paragraph in article]
        for paragraph in article:
            found.append(paragraph)
            asked = (question for question in paragraph["qas"] if rng.random() < 0.4)
            found += [
                _unanswerable(question, contexts if rng.random() < 0.7 else everything, rng) for question in asked
            ]
    found = [paragraph for paragraph in found if paragraph]
    document = {"version": "", "data": [{"title": "", "paragraphs": found}]}
    write_text(out / "train.json", json.dumps(document, ensure_ascii=False))
    counts = [bool(question["answers"]) for paragraph in found for question in paragraph["qas"]]
    print(f"{out.name:8} train.json   {len(counts):7,} questions, {counts.count(False):,} of them without an answer")
    copied(next(iter(dev)).parent, out, [("dev", file.name) for file in dev])


def _unanswerable(question: dict[str, Any], contexts: list[str], rng: random.Random) -> dict[str, Any]:
    """A question with one of the paragraphs that have none of its answers; empty if there is none."""
    texts = [answer["text"] for answer in question["answers"]]
    others = [
        context for context in rng.sample(contexts, min(20, len(contexts))) if not any(t in context for t in texts)
    ]
    if not others or not texts:
        return {}
    asked = {"id": f"{question['id']}-none", "question": question["question"], "answers": [], "is_impossible": True}
    return {"context": others[0], "qas": [asked]}


# ---------------------------------------------------------------------- Chinese, and what needs no change


def chinese_sentiment(data: Path, out: Path) -> None:
    for part in ("train", "dev", "test"):
        found = rows(one(data, part))
        write(out / f"{part}.jsonl", ({"text": r["text_a"], "label": ("negative", "positive")[int(r["label"])]}
                                      for r in found))  # fmt: skip


def chinese_words(data: Path, out: Path) -> None:
    """Words and their parts of speech: each character, number and Latin word with B-VERB or I-VERB, as Chinese text has
    no spaces. The development set is learned and the test set held out: the training set is not among the data."""
    for part, theirs in (("train", "dev"), ("dev", "test")):
        sentences = []
        for sentence in read_tagged([one(data, theirs)], "UPOS"):
            lines = []
            for (first, last), kind in zip(sentence.words, sentence.gold or (), strict=True):
                word = sentence.text[first:last]
                pieces = [word[start:end] for start, end in split_words(word)]
                lines += [f"{piece}\t{'I' if n else 'B'}-{kind}\n" for n, piece in enumerate(pieces)]
            sentences.append("".join(lines))
        write_text(out / f"{part}.conll", "\n".join(sentences))
        print(f"{out.name:8} {part}.conll  {len(sentences):7,} sentences")


def copied(data: Path, out: Path, names: Iterable[tuple[str, str]] = (("train", "train"), ("dev", "dev"))) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for part, theirs in names:
        for file in (p for p in parts(data, theirs) if not p.name.startswith(("predictions", "expected"))):
            name = f"{part}-{file.name.removesuffix('.xz')}"
            found = file.read_bytes()
            (out / name).write_bytes(lzma.decompress(found) if file.suffix == ".xz" else found)
            print(f"{out.name:8} {name}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("data", "pairs", "entities", "out"):
        options.add_argument(f"--{name}", type=Path, required=True, metavar="DIR")
    asked = options.parse_args()
    data, out = asked.data, asked.out
    needed = ("goemotions", "sms_spam", "snli", "glue_mnli", "ud_english_ewt", "squad1_train_part", "squad2_dev",
              "glue_sst2", "cad_imdb", "glue_stsb", "chnsenticorp", "msra_ner", "zh_stsb", "ud_chinese_gsdsimp",
              "cmrc2018")  # fmt: skip
    if missing := [name for name in needed if not (data / name).is_dir()]:
        options.error(f"{data} has no {', '.join(missing)}")
    emotion(data / "goemotions", out / "emotion")
    spam(data / "sms_spam", out / "spam")
    sentiment(data, out / "sentiment")
    similarity(data / "glue_stsb", out / "similarity", (("train", "train"), ("dev", "dev"), ("test", "test")))
    entities(asked.entities, out / "ner")
    inference(data, asked.pairs, out / "nli")
    copied(data / "ud_english_ewt", out / "pos")
    answers(parts(data / "squad1_train_part", "train"), [*parts(data / "squad2_dev", "dev-v2")], out / "answer")
    chinese_sentiment(data / "chnsenticorp", out / "zh-sentiment")
    similarity(data / "zh_stsb", out / "zh-similarity", (("train", "train"), ("dev", "valid"), ("test", "test")))
    copied(data / "msra_ner", out / "zh-ner")
    chinese_words(data / "ud_chinese_gsdsimp", out / "zh-pos")
    answers(parts(data / "cmrc2018", "train"), parts(data / "cmrc2018", "dev"), out / "zh-answer")


if __name__ == "__main__":
    main()
