"""Texts to distil sentence vectors from, pairs to train them on, and the sets they are judged by.

    python benchmarks/vector_data.py --data DIR --out OUT --leave-out simplify-wiki

--data: a folder with corpus/en (.txt, a paragraph on a line; files that begin with valid are not read), pairs (.jsonl
with columns a and b; names that begin with zh are Chinese and not read, of enzh only a is; nli-snli-mnli has a column
relation too) and labelled: sts12_16 (sts12 … sts16: .jsonl with sentence1, sentence2, score), glue_stsb (dev, test: the
same), sick (test and others: .jsonl with sentence_A, sentence_B, relatedness_score), scifact (corpus.jsonl,
queries.jsonl, qrels_test.tsv), flickr8k_captions (captions.jsonl: captions) and glue_qqp_subset (pairs.jsonl:
question1, question2, is_duplicate). All plain or .xz.

--out: a new folder, for
text-1, text-2 …  sentences, paragraphs, passages of several paragraphs, the texts of pairs and those of --more, each
    once, one on a line, as .txt.xz in folders of at most --mebibytes, so that they can be sent one by one. Sources give
    in proportion to the size of their files, science three times as much. Files are by subject (GROUPS) and have texts
    of all lengths: `bothways finetune embed` makes each step of one file, in which questions should meet passages.
embed             for benchmarks/embed_training.py: pairs.jsonl.xz (captions of a picture, entailments, duplicate
    questions) and sts.jsonl.xz (STS-B's dev part).
eval              sts (STS12 to STS16, the test parts of STS-B and SICK) and scifact, in BEIR's layout.

A text or pair that stands in STS12 to STS16, STS-B's dev or test part, SICK or SciFact is in none but the last;
neither case nor anything but letters and digits counts.
"""

import argparse
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from data_files import TextFolders, one, parts, rows, write, write_text

from bothways.text.sentences import split_sentences
from bothways.text.streams import read_lines

LABELLED = ("sts12_16", "glue_stsb", "sick", "scifact", "flickr8k_captions", "glue_qqp_subset")
MORE = 1.24
"""So many times what is wanted is drawn: some come twice, or are in the evaluation sets."""
GROUPS = {
    "science": ("abstracts", "textbooks", "title-abstract", "nli-scitail", "qa-medquad", "more"),
    "wiki": ("wiki", "paws"),
    "everyday": ("sent-", "requests", "dialog", "chat", "news", "comments", "forum", "stories", "howto", "paraphrase",
                 "nli-snli", "qa-stackexchange", "enzh"),
    "prose": (),
}  # fmt: skip
"""Subjects, and how the names of their sources begin; the last has what is left."""
SCIENCE = 3
SHORT = ("sent-", "requests", "dialog", "chat", "news-sent")
"""In the names of sources that have no paragraphs: they give more sentences instead."""
_PAIR = ("sentence1", "sentence2", "score")


def bare(text: str) -> str:
    """A text without what is often written in another way."""
    return re.sub(r"[^0-9a-z]", "", text.lower())


def evaluated(labelled: Path) -> set[str]:
    """Every text of the evaluation sets."""
    pairs = [*parts(labelled / "sts12_16", "sts"), *(one(labelled / "glue_stsb", part) for part in ("dev", "test"))]
    columns = [(file, ("sentence1", "sentence2")) for file in pairs]
    columns += [(file, ("sentence_A", "sentence_B")) for file in parts(labelled / "sick", ".jsonl")]
    found = {bare(row[key]) for file, keys in columns for row in rows(file) for key in keys}
    documents = (row for file in parts(labelled / "scifact", ".jsonl") for row in rows(file))
    return found | {bare(row[key]) for row in documents for key in ("title", "text") if key in row}


# ---------------------------------------------------------------------- texts to distil from


def group_of(name: str) -> str:
    return next((group for group, starts in GROUPS.items() if name.startswith(starts)), "prose")


def sampled(corpus: Path, rng: random.Random, counts: tuple[int, int, int]) -> dict[str, list[str]]:
    """Sentences, paragraphs and passages, by chance, from every source; by subject."""
    files = sorted(path for path in corpus.glob("*.txt*") if not path.name.startswith("valid"))
    weights = [path.stat().st_size * (SCIENCE if group_of(path.name) == "science" else 1) for path in files]
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for path, weight in zip(files, weights, strict=True):
        wanted, longer, longest = (int(MORE * count * weight / sum(weights)) for count in counts)
        if path.name.startswith(SHORT):
            wanted, longer, longest = wanted + 3 * longer, 0, 0
        lines = list(read_lines(path))
        passages = list(_passages(lines)) if longest else []
        rng.shuffle(passages)
        lines = [line for line in lines if line.strip()]
        rng.shuffle(lines)
        whole = [line for line in lines if 250 <= len(line) <= 1500][:longer]
        sentences = _sentences(lines, set(whole), wanted)
        rng.shuffle(sentences)
        found[group_of(path.name)] += sentences[:wanted] + whole + passages[:longest]
    return found


def _passages(lines: list[str]) -> Iterator[str]:
    """Neighbouring paragraphs of a document, as one text of 1,000 to 2,600 characters."""
    passage = ""
    for line in [*lines, ""]:
        if line.strip() and len(passage) + len(line) < 2600:
            passage = f"{passage} {line}".strip()
        else:
            if len(passage) >= 1000:
                yield passage
            passage = line.strip() if len(line) < 2600 else ""


def _sentences(lines: list[str], taken: set[str], wanted: int) -> list[str]:
    """Sentences of as many lines as it takes, without the lines that are taken as a whole."""
    found: list[str] = []
    for line in lines:
        if line not in taken:
            found += [sentence for sentence in split_sentences(line) if 25 <= len(sentence) <= 300]
            if len(found) >= wanted:
                break
    return found


def texts_of_pairs(folder: Path, left_out: list[str]) -> Iterator[tuple[str, str]]:
    """Each with its subject."""
    for path in sorted(folder.glob("*.jsonl*")):
        if path.name.startswith("zh") or path.name.partition(".")[0] in left_out:
            continue
        for row in rows(path):
            yield group_of(path.name), row["a"]
            if not path.name.startswith("enzh"):
                yield group_of(path.name), row["b"]


def clean(texts: Iterable[str], held_out: set[str], rng: random.Random) -> list[str]:
    """The texts that are not held out, each once, shuffled."""
    kept: dict[str, str] = {}
    for text in texts:
        key = bare(text)
        if len(key) >= 4 and key not in held_out:
            kept.setdefault(key, " ".join(text.split()))
    found = list(kept.values())
    rng.shuffle(found)
    return found


# ---------------------------------------------------------------------- pairs, and evaluation sets


def training_pairs(data: Path, held_out: set[str], rng: random.Random) -> list[tuple[str, str]]:
    """Captions of a picture, two by two, entailments of SNLI and MNLI, and duplicate questions."""
    pairs: list[tuple[str, str]] = []
    for row in rows(one(data / "labelled/flickr8k_captions", "captions")):
        captions = [caption for caption in row["captions"] if bare(caption) not in held_out]
        pairs += zip(captions[::2], captions[1::2], strict=False)
    entailed = rows(one(data / "pairs", "nli-snli-mnli"))
    pairs += [(row["a"], row["b"]) for row in entailed if row["relation"] == "entailment"]
    questions = rows(one(data / "labelled/glue_qqp_subset", "pairs"))
    pairs += [(row["question1"], row["question2"]) for row in questions if int(row["is_duplicate"]) == 1]
    keys = {pair: (bare(pair[0]), bare(pair[1])) for pair in pairs}
    found = [pair for pair, (a, b) in keys.items() if a != b and a not in held_out and b not in held_out]
    rng.shuffle(found)
    return found


def write_evaluation(labelled: Path, out: Path) -> None:
    for year in range(12, 17):
        write(out / f"sts/sts{year}.jsonl.xz", _scored(one(labelled / "sts12_16", f"sts{year}.")))
    write(out / "sts/stsb-test.jsonl.xz", _scored(one(labelled / "glue_stsb", "test")))
    sick = (
        (r["sentence_A"], r["sentence_B"], float(r["relatedness_score"])) for r in rows(one(labelled / "sick", "test"))
    )
    write(out / "sts/sick-test.jsonl.xz", (dict(zip(_PAIR, row, strict=True)) for row in sick))
    for part, name in (("corpus", "corpus.jsonl"), ("queries", "queries.jsonl"), ("qrels_test", "qrels/test.tsv")):
        lines = read_lines(one(labelled / "scifact", part))
        write_text(out / "scifact" / name, "".join(f"{line}\n" for line in lines))


def _scored(path: Path) -> Iterator[dict[str, Any]]:
    yield from ({key: row[key] for key in _PAIR} for row in rows(path))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, metavar="DIR")
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    options.add_argument("--leave-out", action="append", default=[], metavar="NAME", help="file of pairs to leave out")
    options.add_argument("--mebibytes", type=float, default=22, help="of a folder of text (%(default)s)")
    options.add_argument("--more", type=Path, action="append", default=[], metavar="FILE", help="of texts, one a line")
    options.add_argument("--sentences", type=int, default=700_000)
    options.add_argument("--paragraphs", type=int, default=120_000)
    options.add_argument("--passages", type=int, default=0)
    options.add_argument("--seed", type=int, default=7)
    asked = options.parse_args()
    labelled = asked.data / "labelled"
    needed = ("corpus/en", "pairs", *(f"labelled/{name}" for name in LABELLED))
    if missing := [name for name in needed if not (asked.data / name).is_dir()]:
        options.error(f"{asked.data} has no {', '.join(missing)}")
    if strange := set(asked.leave_out) - {path.name.partition(".")[0] for path in (asked.data / "pairs").iterdir()}:
        options.error(f"there are no pairs {', '.join(sorted(strange))}")
    if asked.out.exists():
        options.error(f"{asked.out} is there already: name a new folder")
    rng, held_out = random.Random(asked.seed), evaluated(labelled)
    texts = sampled(asked.data / "corpus/en", rng, (asked.sentences, asked.paragraphs, asked.passages))
    for group, text in texts_of_pairs(asked.data / "pairs", asked.leave_out):
        texts[group].append(text)
    for path in asked.more:
        texts["science"] += read_lines(path)
    folders = TextFolders(asked.out, asked.mebibytes)
    for group, some in texts.items():
        folders.add(group, clean(some, held_out, rng), "\n")
    pairs = training_pairs(asked.data, held_out, rng)
    write(asked.out / "embed/pairs.jsonl.xz", ({"a": a, "b": b} for a, b in pairs))
    write(asked.out / "embed/sts.jsonl.xz", _scored(one(labelled / "glue_stsb", "dev")))
    write_evaluation(labelled, asked.out / "eval")


if __name__ == "__main__":
    main()
