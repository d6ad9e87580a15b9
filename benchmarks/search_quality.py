"""Search by words, by meaning and by both, on judged collections: nDCG@10.

    python benchmarks/search_quality.py --model sentence --model DIR SET [SET …]

SET: a folder in BEIR's layout (corpus.jsonl, queries.jsonl, qrels/test.tsv), such as those in the folder eval that
benchmarks/vector_data.py makes. Every document is found by its best passage. Of fused rankings, 100 of each are fused.
"""

import argparse
import tempfile
from pathlib import Path

import bothways
from bothways.data.retrieval import read_collection
from bothways.scoring.retrieval import score_results
from bothways.search.search_options import Mode

MODES: tuple[Mode, ...] = ("bm25", "dense", "fused")


def scores(folder: Path, model: str) -> list[float]:
    """100 · nDCG@10 of each mode."""
    collection = read_collection(folder)
    with tempfile.TemporaryDirectory() as home:
        index = bothways.Index.build(collection.corpus_file, Path(home, "index"), model)
        found = []
        for mode in MODES:
            hits = index.search_many(list(collection.queries.values()), k=100, mode=mode)
            # The places decide: scores of fused rankings may be equal.
            results = {query: {hit.id: -float(i) for i, hit in enumerate(some) if hit.id != query}
                       for query, some in zip(collection.queries, hits, strict=True)}  # fmt: skip
            found.append(100 * score_results(collection.judgements, results, [10]).scores()["ndcg@10"])
        return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", action="append", required=True, metavar="DIR", help="may be repeated")
    options.add_argument("sets", nargs="+", type=Path, metavar="SET")
    asked = options.parse_args()
    print(f"| model | set | {' | '.join(MODES)} |\n|---|---|{'---|' * len(MODES)}")
    for model in asked.model:
        for folder in asked.sets:
            print(
                f"| {Path(model).name} | {folder.name} | {' | '.join(f'{one:.1f}' for one in scores(folder, model))} |"
            )


if __name__ == "__main__":
    main()
