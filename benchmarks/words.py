"""How often the words that a tagger finds in plain text are those of a treebank.

    python benchmarks/words.py --data FILE.conllu

--data: .conllu, plain, .gz or .xz, with the sentences' texts (`# text = …`) or SpaceAfter=No, as Universal Dependencies
has it.
"""

import argparse
from pathlib import Path

from bothways.data.tagged import read_tagged
from bothways.data.words import split_words


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True, help="a treebank, described above")
    asked = options.parse_args()
    right = found = wanted = 0
    for sentence in read_tagged(asked.data):
        ours, theirs = set(split_words(sentence.text)), set(sentence.words)
        right, found, wanted = right + len(ours & theirs), found + len(ours), wanted + len(theirs)
    if not wanted:
        raise SystemExit(f"{asked.data} has no words")
    print("| words | found | precision | recall | F1 |\n|---|---|---|---|---|")
    scores = (right / max(found, 1), right / wanted, 2 * right / (found + wanted))
    print(f"| {wanted:,} | {found:,} |" + "".join(f" {100 * score:.1f} |" for score in scores))


if __name__ == "__main__":
    main()
