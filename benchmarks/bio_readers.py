"""What bio_sources.py reads: the texts of articles, questions, abstracts, pathways, textbooks and terms."""

import csv
import io
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from xml.etree import ElementTree

LONGEST = 2600
"""Characters of a text."""
FORMULA = "\0"
"""Stands where one was."""
Document = list[str]
"""The texts of one article, question, term …"""
Reader = Callable[..., Iterable[Document]]
"""Of a file's path and what it says, and of the numbers that bio_sources.tsv has."""


# ---------------------------------------------------------------------- prose


_CITATION = re.compile(
    r"\s*[(\[][^()\[\]]*?(?:et al\.?,?|\b[A-Z][^\s()\[\],;]*,?)\s*(?:19|20)\d\d[a-z]?[^()\[\]]*[)\]]"
)
_POINTER = re.compile(
    r"\s*[(\[](?:see |also |as shown in |e\.g\.,? |shown in |and |data not shown[;,] ?)*"
    r"(?:Extended |Supplement\w* |Additional |Appendix|Online )?(?:Fig|Table|Tbl|Video|Movie|Box|Appendix|Source|File|"
    r"Data|Equation|Eq\b|Eqs\b|Text|Methods|Materials|Section|Supp|S\d|Reviewed|Note|Panel|Scheme)[^()\[\]]*[)\]]",
    re.IGNORECASE,
)
_HOLLOW = re.compile(
    r"\s*[(\[](?:[\s,;:.–—-]|and|see|e\.g|i\.e|review(?:ed)? in|also|for|a|reviews?|but|cf|refs?)*[)\]]"
)
_REFERENCES = re.compile(r"\s*\[[\d\s,;–-]*\](?:[\s,;–-]*\[[\d\s,;–-]*\])*")
_MENDS = [(re.compile(pattern), new) for pattern, new in (
    (r"\s*(?:Electronic s|S)upplementary material:? The online version of this article .*? authori[sz]ed users\.", ""),
    (r"([(\[])[\s;,]+", r"\1"),
    (r"[\s;,]+([)\]])", r"\1"),
    (r"\s+([,.;:?!%)\]])(?!\d)", r"\1"),
    (r"[,;–-]+([.,;:])", r"\1"),
    (r"\.\.+", "."),
)]  # fmt: skip
_BROKEN = re.compile(rf"{FORMULA}|https?:|www\.|doi\.org|\\[a-z]+|[<>]/|\$|[({{]\)|\b(?:by|in|of|see) [.,;]")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z0-9“\"(\[])")
_ABBREVIATED = re.compile(
    r"(?:\b(?:al|Fig|Figs|Eq|e\.g|i\.e|vs|cf|ca|approx|Dr|St|No|spp?|subsp|var|resp|Ref|Refs|Inc|Ltd|Co)|\b[A-Z])\.$"
)
_STOCK = re.compile(
    r"The Human Phenotype Ontology provides the following|Signs and Symptoms Approximate number of patients"
    r"|These resources address the diagnosis or management|what research \(or clinical trials\) is being done"
)
"""What hundreds of MedQuAD's answers and questions say."""


def cleaned(text: str) -> str:
    """The text without references, citations and pointers to figures."""
    text = " ".join(text.replace("\u00ad", "").replace("\u200b", "").split())
    for _ in range(2):
        for pattern in (_REFERENCES, _CITATION, _POINTER, _HOLLOW):
            text = pattern.sub("", text)
        for pattern, new in _MENDS:
            text = pattern.sub(new, text)
    return text.strip()


def sentences(text: str) -> list[str]:
    found: list[str] = []
    for piece in _SENTENCE_END.split(text):
        if found and _ABBREVIATED.search(found[-1]):
            found[-1] += " " + piece
        else:
            found.append(piece)
    return found


def shortened(text: str) -> str:
    """The first sentences, as many as LONGEST allows."""
    found = sentences(text)
    while found and sum(map(len, found)) + len(found) - 1 > LONGEST:
        found.pop()
    return " ".join(found)


def readable(text: str) -> bool:
    """Whether this is English prose, as far as can be told."""
    return (
        sum(map(str.isalpha, text)) > 0.7 * len(text)
        and text.count("(") == text.count(")")
        and not _BROKEN.search(text)
        and len(re.findall(r"\b(?:the|of|and|in|is|are|to|a|for|with|by|that|was|were)\b", text)) > len(text) / 100
    )


def good_sentences(text: str) -> list[str]:
    good = re.compile(r"[A-Z0-9“\"].*[.?!]$")
    return [part for part in sentences(text) if 40 <= len(part) <= 300 and good.match(part) and readable(part)]


def some(found: list[str], count: int, seed: str | random.Random) -> list[str]:
    rng = random.Random(seed) if isinstance(seed, str) else seed
    return rng.sample(found, min(count, len(found)))


def titled(title: str, text: str) -> str:
    stop = "" if title.endswith((".", "?", "!")) else "."
    return shortened(f"{title}{stop} {text}" if title else text)


# ---------------------------------------------------------------------- articles (JATS)


_SKIPPED = {"table-wrap", "fig", "disp-formula", "fn", "caption", "supplementary-material", "label", "media", "list"}
_FORMULAS = {"inline-formula", "math", "tex-math", "inline-graphic"}
_BLOCKS = {"p", "title", "sec", "break", "para", "item"}
_BACK_MATTER = re.compile(
    r"acknowledg|ethic|funding|competing|conflict|contribution|availab|consent|abbreviation|supplement|disclos"
    r"|pre-publication|additional|key resources|code\b|software|sponsor|trial registration",
    re.IGNORECASE,
)
_FREE = re.compile(
    r"licenses/by(?:-sa)?/|publicdomain/(?:zero|mark)|licenses/publicdomain|\bcc[- ]by\b|\bcc0\b|creativecommonsby\b"
    r"|creative\s+commons\s+attribution(?:[\s-]+share\s?alike)?(?:\s+\d\.\d)?(?:\s+(?:international|unported|generic))?"
    r"(?:\s+public)?\s+\(?(?:cc by\)? )?licen[cs]e"
)
_UNFREE = re.compile(r"by-n[cd]|-n[cd]\b|by-sa-nc|non[\s-]?commercial|no[\s-]?deriv|cc by n[cd]")


def words(node: ElementTree.Element) -> str:
    """What a node says, without citations by number, formulas, figures and tables."""
    said = [node.text or ""]
    for child in node:
        name, inner = local(child), "".join(child.itertext())
        cites = child.get("ref-type") == "bibr" or any(part.get("ref-type") == "bibr" for part in child.iter("xref"))
        if name in _FORMULAS:
            said.append(FORMULA)
        elif name in _BLOCKS:
            said += [" ", words(child), " "]
        elif name in ("xref", "sup") and cites:
            said.append(words(child) if re.search(r"[A-Za-z]{2}|\d{4}", inner) else "")
        elif name == "sup" and re.search(r"(?<![\d.])10$", said[-1]) and re.fullmatch(r"[-−–]?\d+\s*", inner):
            said.append(f"^{inner}")
        elif name not in _SKIPPED:
            said.append(words(child))
        said.append(child.tail or "")
    return "".join(said)


def local(node: ElementTree.Element) -> str:
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""


def paragraphs(section: ElementTree.Element) -> Iterator[ElementTree.Element]:
    for child in section:
        if child.tag == "p":
            yield child
        elif child.tag == "sec" and not _BACK_MATTER.search(child.findtext("title") or ""):
            yield from paragraphs(child)


def freely_licensed(meta: ElementTree.Element) -> bool:
    nodes = [node for licence in meta.iterfind("permissions/license") for node in licence.iter()]
    terms = " ".join(part for node in nodes for part in (*node.attrib.values(), node.text or "", node.tail or ""))
    return bool(_FREE.search(terms.lower())) and not _UNFREE.search(terms.lower())


def article(path: str, said: str, most_paragraphs: int, most_sentences: int) -> Iterator[Document]:
    said = re.sub(r"^\s*<\?xml[^>]*\?>|<!DOCTYPE[^>\[]*>", "", said, count=2)
    if "<article" in said[:2000] and "</body>" in said:
        said = said.partition("</body>")[0] + "</body></article>"  # without references and reviews
    try:
        root = ElementTree.fromstring(said)
    except ElementTree.ParseError:
        return
    root = next(root.iter("article"), root)
    meta = root.find("front/article-meta")
    if meta is None or not freely_licensed(meta) or re.search("correction|retraction", root.get("article-type") or ""):
        return
    node = meta.find("title-group/article-title")
    title = cleaned(words(node)) if node is not None else ""
    title = title if title.isascii() or readable(title) else ""
    whole, summary = "", ""
    for node in meta.iterfind("abstract"):
        kind = node.get("abstract-type") or ""
        text = cleaned(" ".join(words(part) for part in node if part.tag in ("p", "sec")))
        if kind in ("", "summary", "abstract") and readable(text):
            whole = whole or text
        elif kind in ("executive-summary", "plain-language-summary", "author-summary", "editor") and readable(text):
            summary = summary or text
    body, rng = root.find("body"), random.Random(path)
    nodes = list(paragraphs(body)) if body is not None else []
    long: list[str] = []
    rest: list[str] = []
    for node in rng.sample(nodes, min(len(nodes), 3 * (most_paragraphs + most_sentences))):
        text = cleaned(words(node))
        good = 250 <= len(text) <= 1500 and text[-1] in ".?!" and text[0].isupper() and readable(text)
        if good and len(long) < most_paragraphs:
            long.append(text)
        else:
            rest += some(good_sentences(text), 2, rng)
        if len(long) == most_paragraphs and len(rest) >= most_sentences:
            break
    of_abstract = some(good_sentences(whole), most_sentences // 2, rng)
    rest = some(rest, most_sentences - most_sentences // 2, rng)
    titles = [title] if len(title) >= 40 else []
    yield [titled(title, whole) if whole else "", *titles, shortened(summary), *long, *of_abstract, *rest]


# ---------------------------------------------------------------------- other kinds


def medquad(path: str, said: str) -> Iterator[Document]:
    for pair in ElementTree.fromstring(said).iter("QAPair"):
        question = " ".join((pair.findtext("Question") or "").replace("(are) ", "").split()).replace(" ?", "?")
        answer = cleaned((pair.findtext("Answer") or "").strip())
        if len(answer) > 60 and readable(answer):
            texts = [shortened(answer), question, *some(good_sentences(answer), 3, path)]
            yield [text for text in texts if not _STOCK.search(text)]


def pubmedqa(_: str, said: str) -> Iterator[Document]:
    for entry in json.loads(said).values():
        question, whole = entry["QUESTION"], cleaned(" ".join([*entry["CONTEXTS"], entry["LONG_ANSWER"]]))
        yield [question, shortened(f"{question} {whole}"), *good_sentences(whole)[:4]]


def abstracts(path: str, said: str) -> Iterator[Document]:
    """Rows with a title and an abstract, or both in one (medical_abstract)."""
    for row in csv.DictReader(io.StringIO(said)):
        title = cleaned(row.get("title") or "")
        whole = cleaned(row.get("abstract") or row.get("medical_abstract") or "")
        if len(whole) > 150 and readable(whole):
            yield [titled(title, whole), title, *some(good_sentences(whole), 3, path + title)]


def tagged(_: str, said: str) -> Iterator[Document]:
    """Sentences given a word a line with its tag, an empty line between."""
    for block in re.split(r"\n\s*\n", said):
        text = " ".join(line.split("\t")[0] for line in block.splitlines())
        for pattern, new in (
            (r" ([,.;:?!%)\]])", r"\1"),
            (r"([(\[]) ", r"\1"),
            (r" ([/'’]) ", r"\1"),
            (r" (-+) ", r"\1"),
            (r" ' s\b", "'s"),
            (r"(\d) ?([.,]) ?(\d)", r"\1\2\3"),
        ):
            text = re.sub(pattern, new, text)
        yield good_sentences(_REFERENCES.sub("", text))


def pathway(_: str, said: str) -> Iterator[Document]:
    entry = json.loads(said)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", entry.get("description") or "")
    text = cleaned(re.sub(r"https?://\S+|[*_#]{1,3}|Source:.*|Proteins on this pathway.*|Last[- ]modified.*", "", text))
    title = entry.get("title") or ""
    if readable(text):
        yield [shortened(f"{title}: {text}" if title else text), *good_sentences(text)[:4]]


def textbook(path: str, said: str) -> Iterator[Document]:
    for node in ElementTree.fromstring(said).iter():
        if local(node) == "definition":
            term, meaning = ("".join([words(part) for part in node if local(part) == name][:1])
                             for name in ("term", "meaning"))  # fmt: skip
            if term and len(meaning) > 15:
                yield [cleaned(f"{term}: {meaning}")]
        elif local(node) == "para":
            text = cleaned(words(node))
            if readable(text) and len(text) > 150 and "[link]" not in text:
                yield [shortened(text), *some(good_sentences(text), 1, path + text)]


_IDS = "DOID|UBERON|CL|CHEBI|MP|EFO|MONDO|PATO|ENVO|OBI"
_QUOTED = r'"((?:[^"\\]|\\.)+)"'
_ABOUT = r'AnnotationAssertion\((?:Annotation\((?:[^"()]|"[^"]*")*\) )*'


def definition(name: str, text: str) -> Document:
    text = re.sub(r"\s*\[[^\]]*\]$|\[(?:PMID|database_cross)[^\]]*\]|\((?:PMID|DOI|ISBN)[^)]*\)|OBSOLETE\.?", "", text)
    text = re.sub(r"\s*\[[A-Z]\w*[^\]]*\]", "", text.partition(" // ")[0]).replace("_", " ")
    text = " ".join(_REFERENCES.sub("", text).replace('\\"', '"').replace("\\n", " ").split())
    return [shortened(f"{name}: {text}")] if len(text) > 30 and "http" not in text and name else []


def terms(path: str, said: str) -> Iterator[Document]:
    """Of OBO's format, OWL's functional syntax, or RDF."""
    if path.endswith(".obo"):
        for term in said.split("[Term]")[1:]:
            name = re.search(r"^name: (.+)", term, re.MULTILINE)
            meaning = re.search(rf"^def: {_QUOTED}", term, re.MULTILINE)
            if name and meaning and re.search(rf"^id: (?:{_IDS}):", term, re.MULTILINE):
                yield definition(name[1], meaning[1])
    elif said.startswith("Prefix("):
        names = dict(re.findall(rf'{_ABOUT}rdfs:label (\S+) "([^"]+)"', said))
        for term, text in re.findall(rf"{_ABOUT}obo:IAO_0000115 (\S+) {_QUOTED}", said):
            yield definition(names.get(term, ""), text)
    else:
        try:
            root = ElementTree.fromstring(said)
        except ElementTree.ParseError:
            return
        for node in root.iter("{http://www.w3.org/2002/07/owl#}Class"):
            about = node.get("{http://www.w3.org/1999/02/22-rdf-syntax-ns#}about") or ""
            if re.search(rf"/(?:{_IDS})_\d+$", about):
                label = node.findtext("{http://www.w3.org/2000/01/rdf-schema#}label") or ""
                yield definition(label, node.findtext("{http://purl.obolibrary.org/obo/}IAO_0000115") or "")


READERS: dict[str, Reader] = {
    "article": article, "medquad": medquad, "pubmedqa": pubmedqa, "abstracts": abstracts, "tagged": tagged,
    "pathway": pathway, "textbook": textbook, "terms": terms,
}  # fmt: skip


def read(job: tuple[str, str, str]) -> list[Document]:
    reader, path, said = job
    name, *numbers = reader.split()
    return list(READERS[name](path, said, *map(int, numbers)))
