"""Chinese text to pretrain on, a vocabulary for it, and the labelled data of the Chinese tasks of pilots.py.

    python benchmarks/chinese_data.py --data DIR --out OUT --mend zh-wikicore --leave-out zh-lctt

--data: a folder with corpus/zh and labelled. corpus/zh: the sources as NAME-000.txt, NAME-001.txt …, a paragraph on a
line and an empty line between documents; files that begin with valid are held out. labelled: chnsenticorp (train, dev,
test: .jsonl with text_a, label), ocnli (train, dev), lcqmc (dev, test), atec (train) and zh_stsb (valid, test: all
.jsonl with sentence1, sentence2, label), cmrc2018 (train, dev, trial) and xquad (zh: .json as SQuAD), c3 (d and m:
train, dev, test: .json), msra_ner (train, dev: .conll), resume_ner (train, dev, test: .bmes) and ud_chinese_gsdsimp
(dev, test: .conllu). All plain or .xz.

--out: a new folder, for
text-1, text-2 …  the training text as .txt.xz, in folders of at most --mebibytes, so that they can be sent one by one.
    A paragraph is left out if it has a sentence of 12 characters or more of a held-out part of the labelled data;
    punctuation, width and case do not count. They are compared as they are written: a sentence in traditional
    characters is not found in simplified text (the text of PILOTS.md was made with OpenCC, which finds it).
    --mend names a source that a converter left with 著 where simplified Chinese writes 着.
valid.txt.xz      the held-out files, joined.
labelled          a folder for each task. LCQMC and GSD are trained on dev and scored on test, and of ATEC a tenth is
    held out.
vocabulary        WordPiece of --size entries, of the training text alone: Chinese characters that occur five times,
    other characters that occur twenty times, usual punctuation, and the rest merged from what is not Chinese.
"""

import argparse
import json
import re
import shutil
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from chinese_particle import mend, zhao_verbs
from data_files import TextFolders, one, parts, rows, write, write_text

from bothways.text.files import read_documents
from bothways.text.streams import read_lines
from bothways.text.tokenizer import Tokenizer
from bothways.text.train_vocab import FIRST_PIECES, learn_pieces

HELD_OUT = {
    "chnsenticorp": ("dev", "test"),
    "lcqmc": ("dev", "test"),
    "resume_ner": ("dev", "test"),
    "ud_chinese_gsdsimp": ("dev", "test"),
    "c3": ("dev", "test"),
    "zh_stsb": ("valid", "test"),
    "ocnli": ("dev",),
    "atec": ("train",),
    "msra_ner": ("dev",),
    "cmrc2018": ("dev", "trial"),
    "xquad": ("zh",),
}
SHORTEST = 12
"""Characters of a sentence that is looked for: shorter ones stand in many texts by chance."""
_ENDS = re.compile(r"[。！？!?；;…\n\r]+")
_NO_LETTERS = re.compile(r"[\W_]+")
_OLD = "novels"
"""In the names of sources that write both characters, and from which nothing is learned about them."""


# ---------------------------------------------------------------------- held-out sentences


def texts_of(path: Path) -> Iterator[str]:
    """The texts of a labelled file."""
    kind = Path(path.name.removesuffix(".xz")).suffix
    if kind == ".jsonl":
        yield from (row[key] for row in rows(path) for key in ("text_a", "sentence1", "sentence2") if key in row)
    elif kind == ".json":
        yield from _json_texts(json.loads("\n".join(read_lines(path))))
    elif kind == ".conllu":
        yield from (line[9:] for line in read_lines(path) if line.startswith("# text = "))
    else:  # a character on a line
        for is_sentence, lines in groupby(read_lines(path), key=lambda line: bool(line.strip())):
            if is_sentence:
                yield "".join(line.split()[0] for line in lines)


def _json_texts(found: Any) -> Iterator[str]:
    if isinstance(found, dict):  # SQuAD
        for paragraph in (paragraph for article in found["data"] for paragraph in article["paragraphs"]):
            yield paragraph["context"]
            yield from (question["question"] for question in paragraph["qas"])
    else:  # C3
        for turns, questions, _ in found:
            yield from turns
            for question in questions:
                yield from (question["question"], *question["choice"])


def bare(text: str) -> str:
    """A text without what is often written in another way."""
    return _NO_LETTERS.sub("", unicodedata.normalize("NFKC", text)).lower().replace("著", "着")


class HeldOut:
    """The sentences of the held-out parts of labelled data."""

    def __init__(self, labelled: Path) -> None:
        self.by_start: dict[str, set[str]] = defaultdict(set)
        for folder, names in HELD_OUT.items():
            for path in (path for name in names for path in parts(labelled / folder, name)):
                for sentence in (bare(cut) for text in texts_of(path) for cut in _ENDS.split(text)):
                    if len(sentence) >= SHORTEST:
                        self.by_start[sentence[:SHORTEST]].add(sentence)

    def is_in(self, paragraph: str) -> bool:
        letters = bare(paragraph)
        return any(
            letters.startswith(sentence, i)
            for i in range(len(letters) - SHORTEST + 1)
            for sentence in self.by_start.get(letters[i : i + SHORTEST], ())
        )


# ---------------------------------------------------------------------- what is written


def sources(corpus: Path) -> dict[str, list[Path]]:
    """The files of each source, by its name: what is before -000.txt."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(p for p in corpus.glob("*.txt*") if not p.name.startswith("valid")):
        found[re.sub(r"(-\d+)?\.txt.*", "", path.name)].append(path)
    return found


def documents(files: Iterable[Path]) -> Iterator[str]:
    yield from (document for file in files for document in read_documents(file, longest=10**8))


def write_training_text(asked: argparse.Namespace, found: dict[str, list[Path]]) -> None:
    held_out, folders = HeldOut(asked.data / "labelled"), TextFolders(asked.out, asked.mebibytes)
    learned = (file for name, files in found.items() if name != asked.mend and _OLD not in name for file in files)
    verbs = zhao_verbs(learned) if asked.mend else set()
    for name, files in found.items():
        kept, dropped = [], 0
        for document in documents(files):
            paragraphs = [line for line in document.split("\n") if line.strip()]
            clean = [line for line in paragraphs if not held_out.is_in(line)]
            dropped += len(paragraphs) - len(clean)
            if clean:
                text = "\n".join(clean)
                kept.append(mend(text, verbs) if name == asked.mend else text)
        if dropped:
            print(f"{name:24} {dropped:9,} paragraphs left out", flush=True)
        folders.add(name, kept, "\n\n")


def write_labelled(data: Path, out: Path) -> None:
    for part in ("train", "dev", "test"):
        found = rows(one(data / "chnsenticorp", part))
        write(out / f"chnsenticorp/{part}.jsonl.xz", ({"text": r["text_a"], "label": r["label"]} for r in found))
    for part in ("train", "dev"):
        write(out / f"ocnli/{part}.jsonl.xz", _pairs(r for r in rows(one(data / "ocnli", part)) if r["label"] != "-"))
    atec: dict[str, list[dict[str, Any]]] = {"train": [], "dev": []}
    for row in rows(one(data / "atec", "train")):
        pair = "\t".join(sorted((row["sentence1"].strip(), row["sentence2"].strip())))
        atec["dev" if zlib.crc32(pair.encode()) % 10 == 0 else "train"].append(row)
    for part, others in atec.items():
        write(out / f"atec/{part}.jsonl.xz", _pairs(others))
    for part, source in (("train", "dev"), ("dev", "test")):
        write(out / f"lcqmc/{part}.jsonl.xz", rows(one(data / "lcqmc", source)))
        file = one(data / "ud_chinese_gsdsimp", source)
        _copy(file, out / "ud_chinese_gsdsimp" / f"{part}{''.join(file.suffixes)}")
    for folder, names in (("cmrc2018", ()), ("c3", ()), ("msra_ner", ()), ("resume_ner", ("test",))):
        for file in (file for part in ("train", "dev", *names) for file in parts(data / folder, part)):
            _copy(file, out / folder / file.name)


def _pairs(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    yield from ({key: row[key] for key in ("sentence1", "sentence2", "label")} for row in found)


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


_USUAL = frozenset(
    "0123456789abcdefghijklmnopqrstuvwxyz!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~，。、；：？！“”‘’（）《》〈〉【】「」『』…—·～￥％"
)
_HAN = re.compile("[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_CHINESE = re.compile("[\u3400-\u9fff，。、；：？！“”‘’（）《》「」]+")


def vocabulary(files: list[Path], size: int) -> Tokenizer:
    shape, raw, counts = Tokenizer.from_pieces(FIRST_PIECES, lower=True), Counter[str](), Counter[str]()
    for line in (line for file in files for line in read_lines(file)):
        raw.update(line)
    for letter, n in raw.items():
        for normal in shape.backend.normalizer.normalize_str(letter).replace(" ", ""):
            counts[normal] += n
    letters = sorted({x for x, n in counts.items() if n >= (5 if _HAN.match(x) else 20)} | _USUAL)
    texts = (_CHINESE.sub(" ", line).strip() for file in files for line in read_lines(file))
    pieces = learn_pieces(filter(None, texts), letters, shape, size=size)
    print(
        f"vocabulary: {len(pieces):,} entries, {sum(bool(_HAN.match(x)) for x in letters):,} of them Chinese characters"
    )
    return Tokenizer.from_pieces(pieces, lower=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, metavar="DIR")
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    options.add_argument("--mend", metavar="NAME", help="source in which 著 is written for 着")
    options.add_argument("--leave-out", action="append", default=[], metavar="NAME", help="source to leave out")
    options.add_argument("--mebibytes", type=float, default=22, help="of a folder of text (%(default)s)")
    options.add_argument("--size", type=int, default=10_240, help="of the vocabulary (%(default)s)")
    asked = options.parse_args()
    if missing := [n for n in ("corpus/zh", *(f"labelled/{n}" for n in HELD_OUT)) if not (asked.data / n).is_dir()]:
        options.error(f"{asked.data} has no {', '.join(missing)}")
    if asked.out.exists():
        options.error(f"{asked.out} is there already: name a new folder")
    found = sources(asked.data / "corpus/zh")
    if strange := {*asked.leave_out, *filter(None, [asked.mend])} - found.keys():
        options.error(f"there is no source {', '.join(sorted(strange))}: there are {', '.join(found)}")
    write_training_text(asked, {name: files for name, files in found.items() if name not in asked.leave_out})
    held_out = sorted((asked.data / "corpus/zh").glob("valid*.txt*"))
    write_text(asked.out / "valid.txt.xz", "\n\n".join(documents(held_out)) + "\n")
    write_labelled(asked.data / "labelled", asked.out / "labelled")
    tokenizer = vocabulary(sorted(asked.out.glob("text-*/*.txt.xz")), asked.size)
    (asked.out / "vocabulary").mkdir()
    tokenizer.save(asked.out / "vocabulary")


if __name__ == "__main__":
    main()
