"""The labelled data of the adapters in the box, as `bothways finetune` reads them.

    python benchmarks/box_data.py --data DIR --out OUT

--data: a folder with goemotions (train, dev, test: .jsonl with text and labels as numbers; labels.txt), sms_spam
(all.jsonl with text and label), snli (train*, dev*: .jsonl with premise, hypothesis, label), ud_english_ewt (*train*,
*dev*: .conllu), squad1 (train*, dev*: .json), plain or .xz. --out: a folder for emotion, spam, nli, pos and answer,
each with train and dev files.
"""

import argparse
import shutil
import zlib
from pathlib import Path

from data_files import one, rows, write


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


def nli(data: Path, out: Path) -> None:
    for part in ("train", "dev"):
        kept = (r for r in rows(one(data, part)) if r["label"] in ("entailment", "neutral", "contradiction"))
        write(out / f"{part}.jsonl", kept)


def copied(data: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev"):
        for file in sorted(p for p in data.iterdir() if part in p.name):
            shutil.copyfile(file, out / f"{part}-{file.name}")
            print(f"{out.name:8} {part}-{file.name}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, metavar="DIR")
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    asked = options.parse_args()
    needed = ("goemotions", "sms_spam", "snli", "ud_english_ewt", "squad1")
    if missing := [name for name in needed if not (asked.data / name).is_dir()]:
        options.error(f"{asked.data} has no {', '.join(missing)}")
    emotion(asked.data / "goemotions", asked.out / "emotion")
    spam(asked.data / "sms_spam", asked.out / "spam")
    nli(asked.data / "snli", asked.out / "nli")
    copied(asked.data / "ud_english_ewt", asked.out / "pos")
    copied(asked.data / "squad1", asked.out / "answer")


if __name__ == "__main__":
    main()
