"""BERT and its family: vocabularies, pretraining, fine-tuning, predictions, embeddings.

    import bothways
    model = bothways.load("path/to/model")
    bothways.fill("The capital of France is [MASK].", model)

Names are imported at first use: `import bothways` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError, StoppedError

if TYPE_CHECKING:
    from bothways.engine.engine import Engine
    from bothways.engine.reader import Tally
    from bothways.model.batch import Batch
    from bothways.model.box import boxed
    from bothways.model.checkpoint import save
    from bothways.model.config import EncoderConfig, ModelConfig
    from bothways.model.convert import convert
    from bothways.model.encoder import Activations
    from bothways.model.load import load
    from bothways.model.model import Model
    from bothways.model.vocabulary import extend_vocabulary, shrink_vocabulary
    from bothways.predict.classifier import Classifier
    from bothways.predict.encode import TokenVectors, encode, encode_tokens
    from bothways.predict.evaluation import Evaluation, calibrate, compare_models, evaluate
    from bothways.predict.fill import Filled, fill
    from bothways.predict.likelihood import (
        MinimalPair,
        MinimalPairScores,
        read_minimal_pairs,
        score_minimal_pairs,
        sentence_scores,
    )
    from bothways.predict.predictor import Predictor
    from bothways.pretraining.pack import Report as PackReport
    from bothways.pretraining.pack import pack
    from bothways.pretraining.pretrain import Pretrained, pretrain
    from bothways.pretraining.recipe import PretrainRecipe, pretrain_recipe, read_pretrain_recipe, read_recipe
    from bothways.scoring.significance import Comparison, Summary
    from bothways.tasks.finetune import Finetuned, finetune
    from bothways.tasks.recipe import FinetuneRecipe, finetune_recipe, read_finetune_recipe
    from bothways.tasks.seeds import Seeds, finetune_seeds
    from bothways.tasks.suites import BenchmarkScore, run_suite
    from bothways.text.tokenizer import Encoding, Tokenizer
    from bothways.text.train_vocab import train_vocabulary

_MODULES = {
    "model.batch": "Batch",
    "model.box": "boxed",
    "model.checkpoint": "save",
    "model.config": "EncoderConfig ModelConfig",
    "model.convert": "convert",
    "model.encoder": "Activations",
    "model.load": "load",
    "model.model": "Model",
    "model.vocabulary": "extend_vocabulary shrink_vocabulary",
    "engine.engine": "Engine",
    "engine.reader": "Tally",
    "predict.classifier": "Classifier",
    "predict.encode": "TokenVectors encode encode_tokens",
    "predict.evaluation": "Evaluation calibrate compare_models evaluate",
    "predict.fill": "Filled fill",
    "predict.likelihood": "MinimalPair MinimalPairScores read_minimal_pairs score_minimal_pairs sentence_scores",
    "predict.predictor": "Predictor",
    "pretraining.pack": "PackReport pack",
    "pretraining.pretrain": "Pretrained pretrain",
    "pretraining.recipe": "PretrainRecipe pretrain_recipe read_pretrain_recipe read_recipe",
    "scoring.significance": "Comparison Summary",
    "tasks.finetune": "Finetuned finetune",
    "tasks.recipe": "FinetuneRecipe finetune_recipe read_finetune_recipe",
    "tasks.seeds": "Seeds finetune_seeds",
    "tasks.suites": "BenchmarkScore run_suite",
    "text.tokenizer": "Encoding Tokenizer",
    "text.train_vocab": "train_vocabulary",
}
_HOMES = {name: f"bothways.{module}" for module, names in _MODULES.items() for name in names.split()}
_NAMES_AT_HOME = {"PackReport": "Report"}

__version__ = "0.1.0"
__all__ = [
    "Activations",
    "Batch",
    "BenchmarkScore",
    "BothwaysError",
    "Classifier",
    "Comparison",
    "EncoderConfig",
    "Encoding",
    "Engine",
    "Evaluation",
    "Filled",
    "FinetuneRecipe",
    "Finetuned",
    "MinimalPair",
    "MinimalPairScores",
    "Model",
    "ModelConfig",
    "PackReport",
    "Predictor",
    "PretrainRecipe",
    "Pretrained",
    "Seeds",
    "StoppedError",
    "Summary",
    "Tally",
    "TokenVectors",
    "Tokenizer",
    "boxed",
    "calibrate",
    "compare_models",
    "convert",
    "encode",
    "encode_tokens",
    "evaluate",
    "extend_vocabulary",
    "fill",
    "finetune",
    "finetune_recipe",
    "finetune_seeds",
    "load",
    "pack",
    "pretrain",
    "pretrain_recipe",
    "read_finetune_recipe",
    "read_minimal_pairs",
    "read_pretrain_recipe",
    "read_recipe",
    "run_suite",
    "save",
    "score_minimal_pairs",
    "sentence_scores",
    "shrink_vocabulary",
    "train_vocabulary",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bothways' has no attribute {name!r}")
    found = getattr(import_module(_HOMES[name]), _NAMES_AT_HOME.get(name, name))
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
