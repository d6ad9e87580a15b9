"""BERT and its family: text in, vocabulary, encoder, answers.

    import bothways
    model = bothways.load("path/to/model")
    bothways.fill("The capital of France is [MASK].", model)

Names are imported when first used: `import bothways` alone costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError

if TYPE_CHECKING:
    from bothways.model.box import boxed
    from bothways.model.checkpoint import save
    from bothways.model.config import EncoderConfig, ModelConfig
    from bothways.model.convert import convert
    from bothways.model.load import load
    from bothways.model.model import Model
    from bothways.model.vocabulary import extend_vocabulary, shrink_vocabulary
    from bothways.predict.classifier import Classifier
    from bothways.predict.encode import encode, encode_tokens
    from bothways.predict.evaluation import evaluate
    from bothways.predict.fill import fill
    from bothways.predict.likelihood import sentence_scores
    from bothways.predict.predictor import Predictor
    from bothways.pretraining.pack import pack
    from bothways.pretraining.pretrain import pretrain
    from bothways.pretraining.recipe import PretrainRecipe, read_recipe
    from bothways.tasks.finetune import finetune
    from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe
    from bothways.text.tokenizer import Tokenizer
    from bothways.text.train_vocab import train_vocabulary

_HOMES = {
    "boxed": "bothways.model.box",
    "load": "bothways.model.load",
    "save": "bothways.model.checkpoint",
    "convert": "bothways.model.convert",
    "fill": "bothways.predict.fill",
    "sentence_scores": "bothways.predict.likelihood",
    "encode": "bothways.predict.encode",
    "encode_tokens": "bothways.predict.encode",
    "train_vocabulary": "bothways.text.train_vocab",
    "extend_vocabulary": "bothways.model.vocabulary",
    "shrink_vocabulary": "bothways.model.vocabulary",
    "pack": "bothways.pretraining.pack",
    "pretrain": "bothways.pretraining.pretrain",
    "read_recipe": "bothways.pretraining.recipe",
    "PretrainRecipe": "bothways.pretraining.recipe",
    "finetune": "bothways.tasks.finetune",
    "finetune_recipe": "bothways.tasks.recipe",
    "FinetuneRecipe": "bothways.tasks.recipe",
    "Predictor": "bothways.predict.predictor",
    "Classifier": "bothways.predict.classifier",
    "evaluate": "bothways.predict.evaluation",
    "Model": "bothways.model.model",
    "ModelConfig": "bothways.model.config",
    "EncoderConfig": "bothways.model.config",
    "Tokenizer": "bothways.text.tokenizer",
}

__version__ = "0.1.0"
__all__ = [
    "BothwaysError",
    "Classifier",
    "EncoderConfig",
    "FinetuneRecipe",
    "Model",
    "ModelConfig",
    "Predictor",
    "PretrainRecipe",
    "Tokenizer",
    "boxed",
    "convert",
    "encode",
    "encode_tokens",
    "evaluate",
    "extend_vocabulary",
    "fill",
    "finetune",
    "finetune_recipe",
    "load",
    "pack",
    "pretrain",
    "read_recipe",
    "save",
    "sentence_scores",
    "shrink_vocabulary",
    "train_vocabulary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bothways' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
