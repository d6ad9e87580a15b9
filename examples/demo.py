"""From raw text to a filled blank in about a minute, on a CPU.

Trains a WordPiece vocabulary on examples/sample.txt (English and Chinese, written for this demo), builds a tiny
BERT, trains it as BERT was trained (masked words, 15 %, 80/10/10), saves it as a Hugging Face folder, loads it
again and fills blanks. It learns this text by heart, and nothing else: a real model needs real text.

    python examples/demo.py [--steps 1100] [--out demo-model]
"""

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor
from torch.nn import functional as F

import bothways
from bothways import EncoderConfig, Model, ModelConfig, Tokenizer
from bothways.model.batch import Batch
from bothways.model.config import Learned

SAMPLE = Path(__file__).parent / "sample.txt"
BLANKS = ("The capital of France is [MASK].", "The day after Friday is [MASK].", "日本的首都是[MASK][MASK]。")
PEAK = 3e-3  # learning rate
console = Console()


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--steps", type=int, default=1100, help="how long to train (default 1100)")
    options.add_argument("--out", type=Path, default=Path("demo-model"), help="where to save it (default demo-model)")
    asked = options.parse_args()

    texts = SAMPLE.read_text(encoding="utf-8").splitlines()
    console.print(f"[bold]1. A vocabulary[/] from {len(texts):,} sentences of {SAMPLE.name}")
    tokenizer = bothways.train_vocabulary([SAMPLE], size=1_600)
    console.print(
        f"   {tokenizer.size:,} pieces: {' '.join(tokenizer('The kittens are sleeping. 北京很大').pieces)}",
        markup=False,
    )

    # No dropout: the text is to be learned by heart. Louder first weights than BERT's 0.02 save time at this width.
    shape = EncoderConfig(
        tokenizer.size, width=128, layers=2, heads=2, hidden=256, positions=Learned(64),
        dropout=0, attention_dropout=0, init_std=0.08,
    )  # fmt: skip
    model = Model.new(ModelConfig(shape, heads=("masked",)), tokenizer)
    console.print(f"[bold]2. A tiny BERT[/] of {sum(p.numel() for p in model.parameters()):,} random numbers")
    show(model)

    console.print(f"[bold]3. Training[/] for {asked.steps} steps on {torch.get_num_threads()} CPU threads")
    train(model, tokenizer, texts, asked.steps)

    bothways.save(model, asked.out)
    console.print(f"[bold]4. Saved[/] to {asked.out}, and loaded from there:")
    show(bothways.load(asked.out))
    console.print("It knows these sentences by heart, and nothing else. Try it yourself:")
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


def train(model: Model, tokenizer: Tokenizer, texts: list[str], steps: int) -> None:
    """AdamW on masked sentences, the rate rising for a tenth of the steps and then falling to zero."""
    encoded = [encoding.ids for encoding in tokenizer.batch(texts)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    draws = torch.Generator().manual_seed(0)
    columns = (TextColumn("   {task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    smooth = 0.0
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps)
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = PEAK * min(10 * step / steps, (1 - step / steps) / 0.9)
            chosen = torch.randint(len(encoded), (64,), generator=draws).tolist()
            loss = masked_loss(model.train(), tokenizer, [encoded[i] for i in chosen], draws)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            smooth += (loss.item() - smooth) * max(0.02, 1 / step)
            bar.update(task, advance=1, description=f"step {step:4}   loss {smooth:.2f}")


def masked_loss(model: Model, tokenizer: Tokenizer, sentences: list[list[int]], draws: torch.Generator) -> Tensor:
    """BERT's first objective: 15 % of the tokens are asked for; of these 80 % are masked, 10 % changed, 10 % kept."""
    batch = Batch.pack(sentences)
    special = torch.isin(batch.ids, torch.tensor(sorted(tokenizer.special_ids)))
    asked = (torch.rand(batch.ids.shape, generator=draws) < 0.15) & ~special
    fate = torch.rand(batch.ids.shape, generator=draws)
    ids = batch.ids.clone()
    ids[asked & (fate < 0.8)] = tokenizer.id("[MASK]")
    changed = asked & (fate >= 0.8) & (fate < 0.9)
    ids[changed] = torch.randint(104, tokenizer.size, (int(changed.sum()),), generator=draws)
    states = model.encoder(Batch(ids, batch.segments, batch.positions, batch.cu, batch.longest))
    return F.cross_entropy(model.masked(states[asked]), batch.ids[asked])


if __name__ == "__main__":
    main()
