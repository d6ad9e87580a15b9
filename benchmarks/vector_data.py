"""Texts to distil sentence vectors from, pairs to train them on, and the sets they are judged by.

    python benchmarks/vector_data.py --data DIR --out OUT --leave-out simplify-wiki

--data: a folder with corpus/en (.txt, a paragraph on a line; files that begin with valid are not read), pairs (.jsonl
with columns a and b; names that begin with zh are Chinese and not read, of enzh only a is; nli-snli-mnli has a column
relation too) and labelled: sts12_16 (sts12 … sts16: .jsonl with sentence1, sentence2, score), glue_stsb (dev, test: the
same), sick (test and others: .jsonl with sentence_A, sentence_B, relatedness_score), scifact (corpus.jsonl,
queries.jsonl, qrels_test.tsv), flickr8k_captions (captions.jsonl: captions) and glue_qqp_subset (pairs.jsonl:
question1, question2, is_duplicate). All plain or .xz.

--out: a new folder, for
text-1, text-2 …  sentences, paragraphs and the texts of pairs, each once, one on a line, as .txt.xz in folders of at
    most --mebibytes, so that they can be sent one by one. Sources give in proportion to the size of their files.
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


def sampled(corpus: Path, rng: random.Random, count: int, long: int) -> tuple[list[str], list[str]]:
    """Sentences and paragraphs, by chance, from every source in proportion to the size of its file."""
    files = sorted(path for path in corpus.glob("*.txt*") if not path.name.startswith("valid"))
    total = sum(path.stat().st_size for path in files)
    sentences, paragraphs = [], []
    for path in files:
        size = path.stat().st_size
        wanted, longer = int(MORE * count * size / total), int(MORE * long * size / total)
        if any(name in path.name for name in SHORT):
            wanted, longer = wanted + 3 * longer, 0
        lines = [line for line in read_lines(path) if line.strip()]
        rng.shuffle(lines)
        whole = [line for line in lines if 250 <= len(line) <= 1500][:longer]
        found = _sentences(lines, set(whole), wanted)
        rng.shuffle(found)
        sentences += found[:wanted]
        paragraphs += whole
    return sentences, paragraphs


def _sentences(lines: list[str], taken: set[str], wanted: int) -> list[str]:
    """Sentences of as many lines as it takes, without the lines that are taken as a whole."""
    found: list[str] = []
    for line in lines:
        if line not in taken:
            found += [sentence for sentence in split_sentences(line) if 25 <= len(sentence) <= 300]
            if len(found) >= wanted:
                break
    return found


def texts_of_pairs(folder: Path, left_out: list[str]) -> Iterator[str]:
    for path in sorted(folder.glob("*.jsonl*")):
        if path.name.startswith("zh") or path.name.partition(".")[0] in left_out:
            continue
        for row in rows(path):
            yield row["a"]
            if not path.name.startswith("enzh"):
                yield row["b"]


def clean(texts: Iterable[str], held_out: set[str], rng: random.Random) -> list[str]:
    """The texts that are not held out, each once, shuffled."""
    kept: dict[str, str] = {}
    for text in texts:
        key = bare(text)
        if len(key) >= 12 and key not in held_out:
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
    options.add_argument("--sentences", type=int, default=700_000)
    options.add_argument("--paragraphs", type=int, default=120_000)
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
    sentences, paragraphs = sampled(asked.data / "corpus/en", rng, asked.sentences, asked.paragraphs)
    folders = TextFolders(asked.out, asked.mebibytes)
    folders.add("sentences", clean(sentences, held_out, rng)[: asked.sentences], "\n")
    folders.add("paragraphs", clean(paragraphs, held_out, rng)[: asked.paragraphs], "\n")
    folders.add("pair-texts", clean(texts_of_pairs(asked.data / "pairs", asked.leave_out), held_out, rng), "\n")
    pairs = training_pairs(asked.data, held_out, rng)
    write(asked.out / "embed/pairs.jsonl.xz", ({"a": a, "b": b} for a, b in pairs))
    write(asked.out / "embed/sts.jsonl.xz", _scored(one(labelled / "glue_stsb", "dev")))
    write_evaluation(labelled, asked.out / "eval")


if __name__ == "__main__":
    main()
