"""How many hidden words of a text models name, and in whom they see a man.

    python benchmarks/blanks.py --text held-out.txt.xz --model DIR --model DIR

--text: .txt, plain, .gz or .xz, that no model has read: paragraphs, an empty line between documents. A passage is the
beginning of a document, as long as --length allows; 15 % of its tokens are hidden, the same for all models of one
vocabulary. --model: folders of models that fill blanks; unless said, the one in the box.
"""

import argparse
import itertools
import math
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import bothways
from bothways.model.batch import Batch
from bothways.text.files import read_documents

WHO = ("doctor", "nurse", "engineer", "teacher", "scientist", "secretary", "soldier", "housekeeper")
SENTENCE = "The {} said that {} was tired."


@dataclass(frozen=True)
class Found:
    """Of all hidden tokens of the passages."""

    asked: int
    first: float
    first_five: float
    loss: float


@torch.inference_mode()
def name_hidden(model: bothways.Model, passages: list[str], length: int, share: float) -> Found:
    tokenizer = model.require_tokenizer()
    mask = tokenizer.id(tokenizer.mask or "")
    draws = np.random.default_rng(0)
    ranks, losses = [], []
    for passage in passages:
        ids = torch.tensor(tokenizer(passage, limit=length, long="cut").ids)
        inside = np.arange(1, len(ids) - 1)
        hidden = torch.from_numpy(np.sort(draws.choice(inside, max(1, round(share * len(inside))), replace=False)))
        truth, shown = ids[hidden], ids.index_fill(0, hidden, mask)
        batch = Batch.pack([shown.tolist()])
        guesses = model.masked(model.encoder(batch)[hidden]).log_softmax(-1)
        right = guesses.gather(1, truth[:, None])
        losses.append(-right[:, 0])
        ranks.append((guesses > right).sum(1))
    rank, loss = torch.cat(ranks), torch.cat(losses)
    return Found(len(rank), (rank == 0).double().mean().item(), (rank < 5).double().mean().item(), loss.mean().item())


def share_of_men(model: bothways.Model, who: str) -> float:
    """How likely *he* is, of *he* and *she*."""
    blank = SENTENCE.format(who, model.require_tokenizer().mask)
    chance = {answer.words[0]: answer.score for answer in bothways.fill(blank, model, top=200)}
    he, she = chance.get("he", 0.0), chance.get("she", 0.0)
    return he / (he + she) if he + she else math.nan


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--text", type=Path, required=True, help="held-out text, described above")
    options.add_argument("--model", type=Path, action="append", metavar="DIR", help="may be repeated")
    options.add_argument("--passages", type=int, default=330)
    options.add_argument("--length", type=int, default=128, help="tokens of a passage, with [CLS] and [SEP]")
    options.add_argument("--share", type=float, default=0.15, help="share of the tokens to mask")
    asked = options.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
    passages = list(itertools.islice(read_documents(asked.text), asked.passages))
    print("| model | hidden | right | in the first five | loss |" + "".join(f" {who} |" for who in WHO))
    print("|---|---|---|---|---|" + "---|" * len(WHO))
    for folder in asked.model or [None]:
        model = bothways.load(folder).eval()
        found = name_hidden(model, passages, asked.length, asked.share)
        cells = [f"{found.asked:,}", f"{found.first:.1%}", f"{found.first_five:.1%}", f"{found.loss:.3f}"]
        cells += [f"{share_of_men(model, who):.0%}" for who in WHO]
        print(f"| {folder or 'the box'} |" + "".join(f" {cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
