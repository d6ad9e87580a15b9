"""From raw text to filled masks in about a minute, on a CPU.

Trains a WordPiece vocabulary on examples/sample.txt (English and Chinese, written for this), builds a tiny
BERT, trains it by masked language modelling (15 %, 80/10/10), saves it as a Hugging Face folder, loads it again and
fills masks. It memorises this text and generalises to nothing else.

    python examples/tiny.py [--steps 1100] [--out tiny-model]
"""

import argparse
import tempfile
from pathlib import Path

import torch
from rich.console import Console

import bothways
from bothways import Model, PretrainRecipe
from bothways.pretraining.recipe import Phase, PretrainData, PretrainModel
from bothways.train import report
from bothways.train.optim import OptimSettings
from bothways.train.settings import RunSettings

HERE = Path(__file__).parent
SAMPLE = HERE / "sample.txt"
BLANKS = ("The capital of France is [MASK].", "The day after Friday is [MASK].", "日本的首都是[MASK][MASK]。")
console = Console()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--steps", type=int, default=1100, help="number of training steps (default 1100)")
    options.add_argument("--out", type=Path, default=Path("tiny-model"), help="output folder (default tiny-model)")
    asked = options.parse_args()

    texts = SAMPLE.read_text(encoding="utf-8").splitlines()
    console.print(f"[bold]1. A vocabulary[/] from {len(texts):,} sentences of {SAMPLE.name}")
    tokenizer = bothways.train_vocabulary([SAMPLE], size=1_600)
    console.print(
        f"   {tokenizer.size:,} pieces: {' '.join(tokenizer('The kittens are sleeping. 北京很大').pieces)}",
        markup=False,
    )

    with tempfile.TemporaryDirectory() as folder:
        packed, run = Path(folder) / "packed", Path(folder) / "run"
        bothways.pack([SAMPLE], tokenizer, packed, each="lines")
        recipe = recipe_for(packed, asked.steps)
        console.print(
            f"[bold]2. Training[/] a tiny BERT for {asked.steps} steps on {torch.get_num_threads()} CPU threads"
        )
        with report.Console(asked.steps, None) as progress:
            result = bothways.pretrain(recipe, run, listen=[progress])
        if not result.complete:
            raise SystemExit("interrupted")
        bothways.save(bothways.load(run / "model"), asked.out)
    console.print(f"[bold]3. Saved[/] to {asked.out}, and loaded from there:")
    show(bothways.load(asked.out))
    console.print("The tiny model has memorised a few hundred sentences. Try it:")
    blank = "If today is Friday, tomorrow is [MASK]."
    console.print(
        f'   .venv/bin/bothways fill "{blank}" --model {asked.out}', style="cyan", markup=False, soft_wrap=True
    )
    console.print(f"   .venv/bin/bothways info {asked.out}", style="cyan", highlight=False)


def show(model: Model) -> None:
    model.eval()
    for blank in BLANKS:
        best, *others = bothways.fill(blank, model, top=3)
        rest = ", ".join(f"{' '.join(o.words)} {o.score:.0%}" for o in others)
        console.print(f"   {best.score:4.0%}  {best.text}   (then {rest})", highlight=False, markup=False)


def recipe_for(packed: Path, steps: int) -> PretrainRecipe:
    """Masked language modelling as in BERT, in small: 15 % of the tokens, 80/10/10."""
    return PretrainRecipe(
        objectives=("mlm",),
        data=PretrainData(train=(str(packed),)),
        # No dropout: the model is to memorise the text. A larger init_std than BERT's 0.02 saves time at this width.
        model=PretrainModel(
            width=128,
            layers=2,
            num_heads=2,
            ffn_width=256,
            positions=64,
            dropout=0.0,
            attention_dropout=0.0,
            init_std=0.08,
        ),
        optim=OptimSettings(lr=3e-3, betas=(0.9, 0.98), warmup=0.1),
        run=RunSettings(steps=steps, save_minutes=0),
        phases=(Phase(length=64, sequences=64),),
    )


if __name__ == "__main__":
    main()
