"""Open a model folder: a whole model, or an adapter together with its base model."""

from pathlib import Path

from bothways.errors import BothwaysError
from bothways.model.adapter_config import base_of
from bothways.model.box import model_folder, no_such_model
from bothways.model.checkpoint import load_model, with_sentence
from bothways.model.device import Device, Precision, find_device, find_dtype
from bothways.model.exported import graph_file, not_for_graphs
from bothways.model.lora import with_adapter
from bothways.model.model import Model
from bothways.model.sentence_files import MODULES
from bothways.model.static import is_static
from bothways.text.tokenizer import Tokenizer


def load(
    folder: Path | str | None = None,
    *,
    base: Path | str | None = None,
    device: Device = "cpu",
    dtype: Precision = "fp32",
) -> Model:
    """Open a model in evaluation mode. The default is the included model en.

    `folder` is a model folder, the folder of a complete run, the name of an included model, or the name on the Hugging
    Face Hub (org/name) of a model that is in its cache here: nothing is ever downloaded. If it is an adapter, `base` is
    its base model; by default the one that it names. `device` is cpu, cuda, cuda:1, mps, or auto: a GPU if there is
    one. The weights are converted to `dtype` (fp32, bf16, fp16, or auto: bf16 on a GPU that computes in it), whatever
    the precision of the file is.
    """
    target = find_device(device)
    precision = find_dtype(dtype, target)
    folder = model_folder(folder)
    if (graph := graph_file(folder)) is not None:
        raise not_for_graphs(graph, "this")
    if not folder.is_dir():
        raise no_such_model(folder)
    if is_static(folder):
        raise BothwaysError(
            f"{folder} is a static model, which has no encoder: it works in encode, search, similar, cluster, mine and "
            "evaluate-vectors",
            "static-model",
            folder,
        )
    if (found := base_of(folder, base)) is not None:
        model = with_adapter(load(found), folder)
        if (folder / MODULES).exists():  # an adapter of sentence-transformers has its own modules and tokenizer
            model.tokenizer = Tokenizer.load(folder) if (folder / "tokenizer.json").exists() else model.tokenizer
            model.sentence = None
            model = with_sentence(model, folder)
        return model.to(target, precision)
    return load_model(folder, precision).to(target)
