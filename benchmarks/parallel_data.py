"""Chinese texts with English ones of the same meaning, and Chinese pairs, for `bothways finetune embed`.

    python benchmarks/parallel_data.py --data DIR --dictionary cedict.json --more FILE… --out OUT

--data: a folder with corpus/zh (.txt, a paragraph on a line; files that begin with valid are not read), pairs
(enzh-translation*, zh-*: .jsonl with columns a and b) and labelled: zh_stsb (train, valid, test: .jsonl with sentence1,
sentence2, score), glue_stsb (train, dev, test: the same, and filename), cmrc2018 (train: SQuAD's json) and xquad
(xquad.en, xquad.zh: the same), plain or .xz. --dictionary: CC-CEDICT as JSON, a list of objects with simplified and
english (a list). --more: files of rows with a, English, and b, Chinese, such as those that parallel_sources.py makes.
--everyday: the same, of talk and news.

--out: a new folder, for
translations.jsonl.xz  English, Chinese: those of --more, and the words of the dictionary.
everyday.jsonl.xz      the same: those of pairs and of --everyday, and STS-B's training part beside that of zh-STS-B.
glosses.jsonl.xz       Chinese sentences beside what they say word by word in English, by the dictionary's first senses:
                       a weak translation, but of any text.
related.jsonl.xz       Chinese texts that belong together: questions and paragraphs, a sentence and the rest of its
                       paragraph.
sts.jsonl.xz           the training part of zh-STS-B, but for Microsoft's texts, which are for research only.
eval                   zh-STS-B's test part, and Chinese questions over English paragraphs, and the other way round
                       (XQuAD), in BEIR's layout.

A Chinese text of zh-STS-B's dev or test part, and a sentence of XQuAD, is in none but the last.
"""

import argparse
import json
import math
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from data_files import one, parts, rows, write, write_text

from bothways.text.sentences import split_sentences
from bothways.text.streams import read_lines

SENTENCES, RELATED = 420_000, 60_000
RESEARCH_ONLY = ("MSRvid", "MSRpar")
"""In the file names of STS-B's rows: texts whose licence forbids what a published model may be used for."""
Row = dict[str, Any]
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


def bare(text: str) -> str:
    return re.sub(r"\W", "", text.lower())


def is_chinese(text: str, share: float = 0.3) -> bool:
    return len(_CHINESE.findall(text)) >= max(2, share * len(text))


def held_out(labelled: Path) -> set[str]:
    found = {bare(row[key]) for part in ("valid", "test") for row in rows(one(labelled / "zh_stsb", part))
             for key in ("sentence1", "sentence2")}  # fmt: skip
    found |= {bare(row[key]) for part in ("dev", "test") for row in rows(one(labelled / "glue_stsb", part))
              for key in ("sentence1", "sentence2")}  # fmt: skip
    for language in ("zh", "en"):
        for paragraph in paragraphs(one(labelled / "xquad", f"xquad.{language}")):
            found |= {bare(sentence) for sentence in split_sentences(paragraph["context"])}
            found |= {bare(question["question"]) for question in paragraph["qas"]}
    return found


def paragraphs(path: Path) -> list[dict[str, Any]]:
    articles = json.loads("\n".join(read_lines(path)))["data"]
    return [paragraph for article in articles for paragraph in article["paragraphs"]]


# ---------------------------------------------------------------------- translations


def dictionary(path: Path) -> dict[str, list[str]]:
    """Chinese words with their English senses, without remarks, references and surnames."""
    found: dict[str, list[str]] = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        for sense in row["english"]:
            sense = re.sub(r"\([^)]*\)|\[[^\]]*\]|CL:.*", " ", sense)
            sense = " ".join(sense.split()).strip(" ,;")
            if sense and not re.search(r"variant of|surname |^see |^used in|[\u4e00-\u9fff]|abbr\. |old form", sense):
                found.setdefault(row["simplified"], []).append(sense)
    return found


def aligned(chinese: list[Row], english: list[Row]) -> list[tuple[Row, Row]]:
    """Rows of zh-STS-B with those of STS-B that they translate: in the same order, but some English ones are missing.

    What agrees is the score without its decimals, about the lengths, and the numbers.
    """
    skipped, lost = 1.5, 8.0  # what it costs to leave out an English row, and a Chinese one
    n = len(chinese)
    scores = np.array([int(row["score"]) for row in chinese])
    keys = ("sentence1", "sentence2")
    lengths = [np.log([1 + len(row[key]) for row in chinese]) for key in keys]
    digits = np.array([zlib.crc32(" ".join(_numbers(row)).encode()) for row in chinese])
    costs = np.arange(n + 1) * lost
    came = np.zeros((len(english) + 1, n + 1), np.int8)  # 0: a Chinese row was left out, 1: an English one, 2: neither
    for i, row in enumerate(english, 1):
        match = (scores != int(row["score"])) * 6.0 + (digits != zlib.crc32(" ".join(_numbers(row)).encode())) * 1.0
        for key, zh in zip(keys, lengths, strict=True):
            match += np.abs(zh - np.log(1 + len(row[key]) / 3.2))
        both = np.concatenate([[np.inf], costs[:-1] + match])
        best = np.minimum(costs + skipped, both)
        steps = np.arange(n + 1) * lost
        reached = np.minimum.accumulate(best - steps) + steps
        came[i] = np.where(reached < best - 1e-9, 0, np.where(both <= costs + skipped, 2, 1))
        costs = reached
    found, i, j = [], len(english), n
    while i and j:
        step = came[i, j]
        if step == 2:
            found.append((chinese[j - 1], english[i - 1]))
        i, j = i - (step != 0), j - (step != 1)
    return [pair for pair in reversed(found) if _agree(*pair)]


def _agree(zh: Row, en: Row) -> bool:
    apart = [abs(math.log(3.2 * len(zh[key]) / len(en[key]))) for key in ("sentence1", "sentence2")]
    return int(zh["score"]) == int(en["score"]) and max(apart) < 0.6 and _numbers(zh) == _numbers(en)


def _numbers(row: Row) -> list[str]:
    return sorted(re.findall(r"[0-9]+", f"{row['sentence1']} {row['sentence2']}"))


# ---------------------------------------------------------------------- Chinese alone


def sentences(corpus: Path, rng: random.Random, count: int) -> Iterator[tuple[str, str]]:
    """Sentences of every source in proportion to its size, each with its paragraph."""
    files = sorted(path for path in corpus.glob("*.txt*") if not path.name.startswith("valid"))
    total = sum(path.stat().st_size for path in files)
    for path in files:
        wanted = count * path.stat().st_size // total
        lines = [line for line in read_lines(path) if is_chinese(line)]
        rng.shuffle(lines)
        for line in lines:
            found = [s for s in split_sentences(line) if 8 <= len(s) <= 90 and is_chinese(s, 0.5)]
            rng.shuffle(found)
            for sentence in found[:3]:
                yield sentence, line
                wanted -= 1
            if wanted <= 0:
                break


_COMMON = {
    "的": "", "了": "", "着": "", "过": "", "地": "", "得": "", "们": "", "个": "", "把": "", "就": "", "之": "of",
    "是": "is", "在": "in", "和": "and", "与": "and", "及": "and", "而": "and", "也": "also", "都": "all", "不": "not",
    "没": "not", "没有": "not have", "有": "have", "我": "I", "你": "you", "您": "you", "他": "he", "她": "she",
    "它": "it", "我们": "we", "你们": "you", "他们": "they", "这": "this", "那": "that", "一个": "a", "一": "one",
    "被": "by", "由": "by", "对": "to", "从": "from", "到": "to", "为": "for", "中": "in", "上": "on", "下": "under",
    "年": "year", "月": "month", "日": "day", "会": "will", "将": "will", "可": "can", "等": "etc", "以": "with",
    "于": "in", "人": "person", "说": "say", "来": "come", "去": "go", "让": "let", "给": "give", "时": "time",
    "吗": "?", "呢": "?", "吧": "", "啊": "", "，": ",", "。": ".", "、": ",", "？": "?", "！": "!", "：": ":",
    "；": ";", "（": "(", "）": ")", "「": '"', "」": '"', "“": '"', "”": '"', "《": '"', "》": '"',
}  # fmt: skip
"""The commonest words and marks, whose first sense in a dictionary is often a rare one."""


def plain_words(senses: dict[str, list[str]]) -> dict[str, str]:
    """One English word or two for each Chinese one: the shorter of its first two senses."""
    found = {}
    for word, some in senses.items():
        heads = [re.split(r"[;/]", sense)[0].strip().removeprefix("to ") for sense in some[:2]]
        if heads := [head for head in heads if head and "~" not in head and len(head) < 40]:
            found[word] = min(heads, key=len)
    return found | _COMMON


def glossed(text: str, words: dict[str, str], longest: int = 7) -> str:
    """What a text says, by the longest words from left to right; "" if too much of it is unknown."""
    found, place, unknown = [], 0, 0
    while place < len(text):
        size = next((n for n in range(longest, 0, -1) if text[place : place + n] in words), 0)
        if size:
            found.append(words[text[place : place + size]])
        elif _CHINESE.match(text[place]):
            unknown += 1
        else:  # Latin letters and digits
            size = len(re.match(r"[\w.%-]*", text[place:], re.ASCII)[0]) or 1  # type: ignore[index]
            found.append(text[place : place + size])
        place += size or 1
    return " ".join(word for word in found if word.strip()) if 8 * unknown < len(text) else ""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, metavar="DIR")
    options.add_argument("--dictionary", type=Path, required=True, metavar="FILE")
    options.add_argument("--more", type=Path, nargs="*", default=[], metavar="FILE")
    options.add_argument("--everyday", type=Path, nargs="*", default=[], metavar="FILE")
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    options.add_argument("--glosses", type=int, default=150_000, help="at most so many glosses")
    options.add_argument("--seed", type=int, default=7)
    asked = options.parse_args()
    if asked.out.exists():
        options.error(f"{asked.out} is there already: name a new folder")
    rng, labelled = random.Random(asked.seed), asked.data / "labelled"
    hidden = held_out(labelled)
    senses = dictionary(asked.dictionary)
    both = aligned(list(rows(one(labelled / "zh_stsb", "train"))), list(rows(one(labelled / "glue_stsb", "train"))))
    both = [(zh, en) for zh, en in both if en["filename"] not in RESEARCH_ONLY]
    keys = ("sentence1", "sentence2", "score")
    everyday = [(row["a"], row["b"]) for file in [*asked.everyday, *parts(asked.data / "pairs", "enzh-translation")]
                for row in rows(file)]  # fmt: skip
    everyday += [(en[key], zh[key]) for zh, en in both for key in keys[:2]]
    pairs = [(row["a"], row["b"]) for file in asked.more for row in rows(file)]
    pairs += [(sense, word) for word, some in senses.items() for sense in some[:2]]
    seen: set[tuple[str, str]] = set()
    for name, some in (("everyday", everyday), ("translations", pairs)):
        kept = {
            (a, b): None
            for a, b in some
            if 2 <= len(a) <= 900
            and is_chinese(b, 0.2)
            and not is_chinese(a, 0.02)
            and hidden.isdisjoint(map(bare, [a, b, *split_sentences(a), *split_sentences(b)]))
        }
        write(asked.out / f"{name}.jsonl.xz", ({"a": a, "b": b} for a, b in kept if (a, b) not in seen))
        seen |= set(kept)

    words = plain_words(senses)
    drawn = [(s, p) for s, p in sentences(asked.data / "corpus/zh", rng, SENTENCES) if bare(s) not in hidden]
    rng.shuffle(drawn)
    questions = [question["question"] for paragraph in paragraphs(one(labelled / "cmrc2018", "train"))
                 for question in paragraph["qas"]]  # fmt: skip
    texts = dict.fromkeys([sentence for sentence, _ in drawn] + questions)
    made = [(gloss, text) for text in texts if (gloss := glossed(text, words))]
    chosen = random.Random(asked.seed).sample(made, min(asked.glosses, len(made)))
    write(asked.out / "glosses.jsonl.xz", ({"a": a, "b": b} for a, b in chosen))

    found = [(q["question"], p["context"]) for p in paragraphs(one(labelled / "cmrc2018", "train")) for q in p["qas"]]
    for file in (file for file in parts(asked.data / "pairs", "zh-") if file.name.startswith("zh-")):
        found += [(row["a"], row["b"]) for row in rows(file)]
    for sentence, paragraph in drawn[:RELATED]:
        rest = paragraph.replace(sentence, "")
        if len(rest) >= 60:
            found.append((sentence, rest[:700]))
    rng.shuffle(found)
    write(asked.out / "related.jsonl.xz", ({"a": a, "b": b} for a, b in found if bare(a) not in hidden | {bare(b)}))
    scored = [zh for zh, _ in both if not hidden & {bare(zh["sentence1"]), bare(zh["sentence2"])}]
    write(asked.out / "sts.jsonl.xz", ({key: row[key] for key in keys} for row in scored))
    write(asked.out / "eval/sts/zh-stsb-test.jsonl.xz",
          ({key: row[key] for key in keys} for row in rows(one(labelled / "zh_stsb", "test"))))  # fmt: skip
    for asks, reads in (("zh", "en"), ("en", "zh"), ("zh", "zh"), ("en", "en")):
        write_xquad(labelled / "xquad", asks, reads, asked.out / f"eval/xquad-{asks}-{reads}")


def write_xquad(folder: Path, asks: str, reads: str, out: Path) -> None:
    """The questions of one language over the paragraphs of the other, which stand in the same order."""
    questions, documents, relevant = [], [], ["query-id\tcorpus-id\tscore\n"]
    both = zip(paragraphs(one(folder, f"xquad.{asks}")), paragraphs(one(folder, f"xquad.{reads}")), strict=True)
    for i, (asking, read) in enumerate(both):
        documents.append({"_id": f"p{i}", "title": "", "text": read["context"]})
        for question in asking["qas"]:
            questions.append({"_id": question["id"], "text": question["question"]})
            relevant.append(f"{question['id']}\tp{i}\t1\n")
    write(out / "corpus.jsonl", documents)
    write(out / "queries.jsonl", questions)
    write_text(out / "qrels/test.tsv", "".join(relevant))


if __name__ == "__main__":
    main()
