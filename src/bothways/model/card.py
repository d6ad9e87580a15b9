"""The README.md of a model folder."""

from bothways.model.model import Model


def model_card(model: Model, name: str, architecture: str) -> str:
    """A model card as on the Hugging Face Hub: what the model is and how to use it."""
    shape = model.config.encoder
    parameters = sum(p.numel() for p in model.parameters())
    heads = ", ".join(model.config.heads) or "none"
    labels = f"\n| labels | {', '.join(model.config.labels)} |" if model.config.labels else ""
    tokenizer = f"{model.tokenizer.kind}, {model.tokenizer.size:,} pieces" if model.tokenizer else "none"
    return f"""---
library_name: bothways
tags:
- {model.config.family}
---
# {name}

A {model.config.family} encoder saved by bothways. Fill in what it was trained on, for what, and how well it does it.

| | |
|---|---|
| architecture | {architecture} |
| parameters | {parameters:,} |
| layers × width | {shape.layers} × {shape.width}, {shape.num_heads} heads, feed-forward {shape.ffn_width} |
| longest input | {shape.max_length} tokens |
| heads | {heads} |{labels}
| tokenizer | {tokenizer} |

```python
import bothways

model = bothways.load("{name}")
```

The folder has Hugging Face's layout: `transformers` opens it with `{architecture}`.
"""
