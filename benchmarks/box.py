"""Make models of the box of run folders: 16-bit weights, adapters that point to their encoder, one table of sizes.

    python benchmarks/box.py --model en=RUN/model --card en=docs/box.md --task en-emotion=RUN/adapter \\
        --out src/bothways/box
    python benchmarks/box.py --model sentence-zh=RUN/model --reads sentence-zh=Latin --out src/bothways/box

--model: pretrained model folders, with a finetune.toml unless they make sentence vectors. --task: adapters of them, as
`bothways finetune` leaves with lora.rank; the name begins with that of the encoder. --card: what is to be known about a
model; its pictures are left out. --reads: a script that a model has learned to read by pieces, with few words. Other
models in --out stay as they are. Nothing is written if the box would become too large: 110 MB, all files together. What
`bothways models` tells of each is in models.json, which is written by hand.
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import safetensors.torch
import torch

from bothways.model.adapter_config import CONFIG, WEIGHTS
from bothways.model.checkpoint import describe, save
from bothways.model.load import load
from bothways.tasks.recipe import advice_file, finetune_recipe

MOST_BYTES = 110_000_000


def squeeze(file: Path) -> None:
    """The same JSON without the white space, which is a third of a tokenizer's."""
    said = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(said, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def halve_adapter(source: Path, target: Path, base: str) -> None:
    """An adapter of the encoder beside it, in 16 bit."""
    target.mkdir()
    tensors = safetensors.torch.load_file(source / WEIGHTS)
    halves = {name: tensor.half() for name, tensor in tensors.items()}
    safetensors.torch.save_file(halves, target / WEIGHTS, metadata={"format": "pt"})
    said = json.loads((source / CONFIG).read_text(encoding="utf-8")) | {"base_model_name_or_path": f"../{base}"}
    (target / CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(source / "config.json", target / "config.json")
    model = load(target)  # which fails if it is not one of this encoder
    (target / "config.json").write_text(json.dumps(describe(model, torch.float16), indent=2) + "\n", encoding="utf-8")


def halve_model(source: Path, target: Path, card: Path | None) -> None:
    """An encoder in 16 bit, with its card."""
    model = load(source)
    if model.sentence is None:
        if advice_file(str(source)) is None:
            raise SystemExit(f"{source} does not say how it is best fine-tuned: put a finetune.toml into it")
        if "masked" not in model.heads:
            raise SystemExit(f"{source} fills no masks: train it with the objective mlm too")
    save(model, target, dtype=torch.float16)
    squeeze(target / "tokenizer.json")
    finetune_recipe({"model": {"init": str(target)}})  # which fails if its advice is none
    if card is not None:
        lines = card.read_text(encoding="utf-8").splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith("!["))
        (target / "README.md").write_text(text, encoding="utf-8")


def add_script(file: Path, script: str) -> None:
    """Say in tokenizer_config.json that the model reads a script."""
    said = json.loads(file.read_text(encoding="utf-8")) | {"reads_scripts": [script]}
    file.write_text(json.dumps(said, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def make(asked: argparse.Namespace, out: Path) -> None:
    """Write the models to `out`, which holds a copy of the box."""
    cards = dict(asked.card)
    for name, source in asked.model:
        shutil.rmtree(out / name, ignore_errors=True)
        halve_model(Path(source), out / name, Path(cards[name]) if name in cards else None)
    for name, script in asked.reads:
        add_script(out / name / "tokenizer_config.json", script)
    for name, source in asked.task:
        base = name.rpartition("-")[0]
        if not (out / base).is_dir():
            raise SystemExit(f"{name} is an adapter of {base!r}, which the box does not have")
        shutil.rmtree(out / name, ignore_errors=True)
        halve_adapter(Path(source), out / name, base)
    folders = [folder for folder in sorted(out.iterdir()) if folder.is_dir()]
    sizes = {folder.name: sum(one.stat().st_size for one in folder.rglob("*.*")) for folder in folders}
    for name, size in [*sizes.items(), ("all", sum(sizes.values()))]:
        print(f"{name:16} {size / 1e6:8.2f} MB")
    if sum(sizes.values()) > MOST_BYTES:
        raise SystemExit(f"too large: {MOST_BYTES / 1e6:.0f} MB are allowed")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "task", "card", "reads"):
        options.add_argument(
            f"--{name}", action="append", default=[], metavar="NAME=PATH", type=lambda words: tuple(words.split("=", 1))
        )
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "box"
        shutil.copytree(asked.out, made) if asked.out.exists() else made.mkdir()
        make(asked, made)
        shutil.rmtree(asked.out, ignore_errors=True)
        shutil.copytree(made, asked.out)


if __name__ == "__main__":
    main()
