"""Make the model in the box of run folders: 16-bit weights, adapters that point to their reader, one table of sizes.

    python benchmarks/box.py --reader RUN/model --fill RUN/adapter --task emotion=RUN/adapter \\
        --card docs/box.md --out src/bothways/box

--reader: a pretrained model folder, with a finetune.toml. --fill, unless the reader fills blanks itself, and --task:
adapters of it, as `bothways pretrain` and `bothways finetune` leave with lora.rank. --card: what is to be known about
it; its pictures are left out. Nothing is written if it would be too large: 16M parameters or 32 MB, all files together.
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

MOST_PARAMETERS, MOST_BYTES = 16_000_000, 32_000_000


def squeeze(file: Path) -> None:
    """The same JSON without the white space, which is a third of a tokenizer's."""
    said = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(said, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def halve_adapter(source: Path, target: Path) -> int:
    """An adapter of the reader beside it, in 16 bit; how many parameters it has."""
    target.mkdir()
    tensors = safetensors.torch.load_file(source / WEIGHTS)
    halves = {name: tensor.half() for name, tensor in tensors.items()}
    safetensors.torch.save_file(halves, target / WEIGHTS, metadata={"format": "pt"})
    said = json.loads((source / CONFIG).read_text(encoding="utf-8")) | {"base_model_name_or_path": "../reader"}
    (target / CONFIG).write_text(json.dumps(said, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(source / "config.json", target / "config.json")
    model = load(target)  # which fails if it is not one of this reader
    (target / "config.json").write_text(json.dumps(describe(model, torch.float16), indent=2) + "\n", encoding="utf-8")
    return sum(tensor.numel() for tensor in tensors.values())


def make(asked: argparse.Namespace, out: Path) -> None:
    reader = load(asked.reader)
    save(reader, out / "reader", dtype=torch.float16)
    squeeze(out / "reader" / "tokenizer.json")
    if advice_file(str(asked.reader)) is None:
        raise SystemExit(f"{asked.reader} does not say how it is best fine-tuned: put a finetune.toml into it")
    finetune_recipe({"model": {"init": str(out / "reader")}})  # which fails if its advice is none
    lines = asked.card.read_text(encoding="utf-8").splitlines(keepends=True)
    card = "".join(line for line in lines if not line.startswith("!["))
    (out / "reader" / "README.md").write_text(card, encoding="utf-8")
    counts = {"reader": sum(p.numel() for p in reader.parameters())}
    if asked.fill is None and "masked" not in reader.heads:
        raise SystemExit("the reader fills no blanks: give --fill, an adapter of it that does")
    adapters = ({"fill": asked.fill} if asked.fill else {}) | {name: Path(path) for name, path in asked.task}
    counts |= {name: halve_adapter(path, out / name) for name, path in adapters.items()}
    sizes = {name: sum(f.stat().st_size for f in (out / name).iterdir()) for name in counts}
    for name, count in counts.items():
        print(f"{name:12} {count:12,} parameters {sizes[name] / 1e6:8.2f} MB")
    total, size = sum(counts.values()), sum(sizes.values())
    print(f"{'all':12} {total:12,} parameters {size / 1e6:8.2f} MB")
    if total > MOST_PARAMETERS or size > MOST_BYTES:
        raise SystemExit(f"too large: {MOST_PARAMETERS:,} parameters and {MOST_BYTES / 1e6:.0f} MB are allowed")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--reader", type=Path, required=True, metavar="DIR")
    options.add_argument("--fill", type=Path, metavar="DIR")
    options.add_argument(
        "--task", action="append", default=[], metavar="NAME=DIR", type=lambda words: tuple(words.split("=", 1))
    )
    options.add_argument("--card", type=Path, required=True, metavar="FILE")
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as made:
        make(asked, Path(made))
        for folder in sorted(Path(made).iterdir()):
            shutil.rmtree(asked.out / folder.name, ignore_errors=True)
            shutil.copytree(folder, asked.out / folder.name)


if __name__ == "__main__":
    main()
