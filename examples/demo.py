"""What the included models can do, in about two minutes, on a CPU and offline.

They fill masks, in English and in Chinese. The English one is fine-tuned on examples/reviews.tsv, which was written for
this demo, and scored on unseen reviews, with a 95 % interval. It classifies two texts and finds an answer in a folder.
The unseen reviews are searched by meaning, by an English query and a Chinese one. The weights of one attention head are
shown.

    python examples/demo.py [--out demo-reviews]
"""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

import bothways
from bothways import Model
from bothways.train import report

TRAIN, UNSEEN = (Path(__file__).parent / name for name in ("reviews.tsv", "reviews-dev.tsv"))
BLANKS = (
    "Paris is the [MASK] of France.",
    "He was born in New [MASK].",
    "She opened the [MASK] and walked in.",
)
CHINESE = ("酒店的服务态度很[MASK]。", "不要[MASK]费粮食。")
REVIEWS = ("Lovely place, we will come back.", "I waited for an hour and the food was cold.")
HANDBOOK, QUESTION = Path(__file__).parent / "handbook", "How many days of holiday do I have?"
SEARCHED = Path(__file__).parent / "reviews-dev.tsv"
QUERIES = {"sentence": "My bike light is broken.", "sentence-zh": "我的自行车灯坏了。"}
"""By the included model that makes the vectors."""
SENTENCE = "The children who live next door were playing in the garden"
console = Console(highlight=False)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--out", type=Path, default=Path("demo-reviews"), help="output folder (default demo-reviews)")
    options.add_argument("--steps", type=int, default=0, help="number of training steps (default: ten epochs)")
    asked = options.parse_args()
    model = bothways.load()
    size = sum(p.numel() for p in model.parameters())
    console.print(f"[bold]1. The included model[/] has {size / 1e6:.1f}M parameters. It fills masks:")
    fill_blanks(model, BLANKS)
    console.print("   The Chinese one is [bold]zh[/]:")
    fill_blanks(bothways.load("zh"), CHINESE)
    console.print("[bold]2. Fine-tuning[/] on 198 reviews, three labels")
    classify(asked.out, asked.steps)
    search(asked.out / "index")
    answer()
    look(model)
    tell(asked.out)


def fill_blanks(model: Model, blanks: Sequence[str]) -> None:
    for blank in blanks:
        best, *others = bothways.fill(blank, model, top=3)
        rest = ", ".join(f"{' '.join(o.words)} {o.score:.0%}" for o in others)
        console.print(f"   {best.score:4.0%}  {best.text}   (then {rest})", markup=False)


def classify(out: Path, steps: int) -> None:
    """Fine-tune on reviews, score with an interval, and classify two texts."""
    recipe = bothways.finetune_recipe(
        {"task": "classify", "data": {"train": [str(TRAIN)]}, "run": {"save_every": 10**6, "epochs": 10}},
        [f"run.steps={steps}"] if steps else [],
    )
    with report.Console(None, None) as progress:
        result = bothways.finetune(recipe, out, listen=[progress], say=progress.say)
    if not result.complete:
        raise SystemExit("interrupted: run the same command to resume")
    predictor = bothways.Predictor.load(result.folder)
    scored = bothways.evaluate([str(UNSEEN)], predictor)
    low, high = scored.interval
    console.print(
        f"   {scored.scores['accuracy']:.0%} of {scored.examples} unseen reviews are right (95 %: {low:.0%} to "
        f"{high:.0%}; chance is a third)"
    )
    for text in REVIEWS:
        answer = predictor(text)
        console.print(f"   {answer['label']:8}  {answer['score']:4.0%}  {text}", markup=False)


def search(folder: Path) -> None:
    """Search the unseen reviews by meaning: by the vectors of the texts."""
    console.print("[bold]3. Search[/] in the unseen reviews, with the embedding models")
    for model, query in QUERIES.items():
        (hit,) = bothways.Index.build(SEARCHED, folder / model, model).search(query, 1)
        console.print(f"   {query} → {hit.score:.2f}  {hit.passage}", markup=False)


def answer() -> None:
    """Answer a question from a folder of Markdown files."""
    with warnings.catch_warnings(action="ignore"):  # of a draft without text, and of an old encoding
        (found,) = bothways.Predictor.load(bothways.boxed("answer")).ask(QUESTION, HANDBOOK)
    place = f"{Path(found['file']).name}, line {found['line']}"
    console.print(f"[bold]4. A question[/] about the folder {HANDBOOK.name}: {QUESTION}")
    console.print(f"   {found['answer']} ({place}: {found['passage'].splitlines()[-1]})", markup=False)


def look(model: Model) -> None:
    """Print the attention weights of one head: the one that attends most to distant words."""
    encoding = model.require_tokenizer()(SENTENCE)
    every = range(1, model.config.encoder.layers + 1)
    with torch.no_grad():
        maps = model.encoder.activations(model.batch([encoding]), attentions=every).attentions
    heads = {(layer, head): weights for layer in every for head, weights in enumerate(maps[layer][0], 1)}
    (layer, head), weights = max(heads.items(), key=lambda one: sharpness(one[1][1:-1, 1:-1]))
    console.print(f"[bold]5. One attention head[/], number {head} of layer {layer}: where each word attends most")
    words = encoding.pieces[1:-1]
    for word, row in zip(words, weights[1:-1, 1:-1], strict=True):
        share, target = float(row.max()), words[int(row.argmax())]
        console.print(f"   {word:>10} → {target:10} {share:4.0%} {'█' * round(20 * share)}", markup=False)


def sharpness(weights: Tensor) -> float:
    """The sum over words of the largest attention weight that a word two or more places away gives to it."""
    place = torch.arange(len(weights))
    is_far = (place[None] - place[:, None]).abs() >= 2
    return float((weights * is_far).amax(0).sum())


def tell(out: Path) -> None:
    console.print("[bold]Try next[/]")
    lines = [
        'bothways fill "The cat sat on the [MASK]."',
        'bothways fill "我喜欢吃[MASK]果。" --model zh',
        f'bothways predict "What a lovely place!" --model {out}/model',
        'bothways predict "Thank you so much!" --task emotion',
        'bothways predict "Who buys the train tickets?" examples/handbook --task answer',
        "bothways finetune classify --train YOUR.csv --dev YOUR-dev.csv --out my-classifier",
        "bothways info",
    ]
    for line in lines:
        console.print(f"   .venv/bin/{line}", style="cyan", markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
