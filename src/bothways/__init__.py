"""BERT-family encoders: tokenizer training, pretraining, fine-tuning, inference, embeddings, search.

    import bothways
    bothways.fill("The capital of France is [MASK].")
    bothways.Predictor.load("emotion")("Thank you so much!")

Names are imported at first use: `import bothways` does not import torch.
"""

from typing import TYPE_CHECKING, Any

from bothways.errors import BothwaysError, StoppedError
from bothways.lazy import imported

if TYPE_CHECKING:
    from bothways.compression.compress import compress as compress
    from bothways.compression.steps import Compressed as Compressed
    from bothways.compression.steps import CompressionStep as CompressionStep
    from bothways.data.examples import Choice as Choice
    from bothways.data.examples import Question as Question
    from bothways.data.examples import Tagged as Tagged
    from bothways.data.examples import Text as Text
    from bothways.data.findings import Finding as Finding
    from bothways.doctor.check_data import check_data as check_data
    from bothways.doctor.data_report import DataReport as DataReport
    from bothways.engine.engine import Engine as Engine
    from bothways.engine.reader import Tally as Tally
    from bothways.engine.threads import set_threads as set_threads
    from bothways.export.folder import Exported as Exported
    from bothways.export.folder import export_onnx as export_onnx
    from bothways.model.batch import Batch as Batch
    from bothways.model.box import BoxedModel as BoxedModel
    from bothways.model.box import boxed as boxed
    from bothways.model.box import boxed_models as boxed_models
    from bothways.model.checkpoint import save as save
    from bothways.model.config import EncoderConfig as EncoderConfig
    from bothways.model.config import ModelConfig as ModelConfig
    from bothways.model.convert import convert as convert
    from bothways.model.encoder import Activations as Activations
    from bothways.model.load import load as load
    from bothways.model.model import Model as Model
    from bothways.model.pooling import Pooling as Pooling
    from bothways.model.sentence import Sentence as Sentence
    from bothways.model.static import StaticModel as StaticModel
    from bothways.model.static import load_static as load_static
    from bothways.model.static import save_static as save_static
    from bothways.model.vocabulary import Extended as Extended
    from bothways.model.vocabulary import Shrunk as Shrunk
    from bothways.model.vocabulary import extend_vocabulary as extend_vocabulary
    from bothways.model.vocabulary import shrink_vocabulary as shrink_vocabulary
    from bothways.page.write import Page as Page
    from bothways.page.write import write_page as write_page
    from bothways.predict.bertscore import BertScores as BertScores
    from bothways.predict.bertscore import bert_score as bert_score
    from bothways.predict.classifier import Classifier as Classifier
    from bothways.predict.encode import TokenVectors as TokenVectors
    from bothways.predict.encode import encode as encode
    from bothways.predict.encode import encode_tokens as encode_tokens
    from bothways.predict.evaluation import Evaluation as Evaluation
    from bothways.predict.evaluation import calibrate as calibrate
    from bothways.predict.evaluation import compare_models as compare_models
    from bothways.predict.evaluation import evaluate as evaluate
    from bothways.predict.fill import Filled as Filled
    from bothways.predict.fill import fill as fill
    from bothways.predict.late_interaction import LateInteraction as LateInteraction
    from bothways.predict.likelihood import MinimalPair as MinimalPair
    from bothways.predict.likelihood import MinimalPairScores as MinimalPairScores
    from bothways.predict.likelihood import read_minimal_pairs as read_minimal_pairs
    from bothways.predict.likelihood import score_minimal_pairs as score_minimal_pairs
    from bothways.predict.likelihood import sentence_scores as sentence_scores
    from bothways.predict.mteb_encoder import mteb_encoder as mteb_encoder
    from bothways.predict.predictor import Predictor as Predictor
    from bothways.predict.regressor import Regressor as Regressor
    from bothways.predict.rerank import Hit as Hit
    from bothways.predict.rerank import Reranker as Reranker
    from bothways.predict.token_table import distil_static as distil_static
    from bothways.pretraining.adapt import Adapted as Adapted
    from bothways.pretraining.adapt import adapt as adapt
    from bothways.pretraining.pack import PackReport as PackReport
    from bothways.pretraining.pack import pack as pack
    from bothways.pretraining.pretrain import Pretrained as Pretrained
    from bothways.pretraining.pretrain import pretrain as pretrain
    from bothways.pretraining.recipe import PretrainRecipe as PretrainRecipe
    from bothways.pretraining.recipe import pretrain_recipe as pretrain_recipe
    from bothways.pretraining.recipe import read_pretrain_recipe as read_pretrain_recipe
    from bothways.pretraining.recipe import read_recipe as read_recipe
    from bothways.scoring.significance import Comparison as Comparison
    from bothways.scoring.significance import Summary as Summary
    from bothways.search.cluster import Group as Group
    from bothways.search.cluster import cluster as cluster
    from bothways.search.index import Index as Index
    from bothways.search.mining import HardNegatives as HardNegatives
    from bothways.search.mining import NegativeRules as NegativeRules
    from bothways.search.mining import mine_hard_negatives as mine_hard_negatives
    from bothways.search.nearest import nearest as nearest
    from bothways.search.pairs import SimilarPair as SimilarPair
    from bothways.search.pairs import near_duplicates as near_duplicates
    from bothways.search.pairs import similar_pairs as similar_pairs
    from bothways.search.ranking import SearchHit as SearchHit
    from bothways.search.vector_evaluation import SetScores as SetScores
    from bothways.search.vector_evaluation import VectorEvaluation as VectorEvaluation
    from bothways.search.vector_evaluation import evaluate_vectors as evaluate_vectors
    from bothways.serve.app import asgi_app as asgi_app
    from bothways.serve.server import run_server as run_server
    from bothways.serve.settings import ServeSettings as ServeSettings
    from bothways.tasks.finetune import Finetuned as Finetuned
    from bothways.tasks.finetune import finetune as finetune
    from bothways.tasks.recipe import FinetuneData as FinetuneData
    from bothways.tasks.recipe import FinetuneRecipe as FinetuneRecipe
    from bothways.tasks.recipe import finetune_recipe as finetune_recipe
    from bothways.tasks.recipe import read_finetune_recipe as read_finetune_recipe
    from bothways.tasks.seeds import Seeds as Seeds
    from bothways.tasks.seeds import finetune_seeds as finetune_seeds
    from bothways.tasks.suites import BenchmarkScore as BenchmarkScore
    from bothways.tasks.suites import run_suite as run_suite
    from bothways.tasks.task import TaskConfig as TaskConfig
    from bothways.text.tokenizer import Encoding as Encoding
    from bothways.text.tokenizer import Tokenizer as Tokenizer
    from bothways.text.train_vocab import train_vocabulary as train_vocabulary

_MODULES = {
    "compression.compress": "compress",
    "compression.steps": "Compressed CompressionStep",
    "data.examples": "Choice Question Tagged Text",
    "data.findings": "Finding",
    "doctor.check_data": "check_data",
    "doctor.data_report": "DataReport",
    "model.batch": "Batch",
    "model.box": "BoxedModel boxed boxed_models",
    "model.checkpoint": "save",
    "model.config": "EncoderConfig ModelConfig",
    "model.convert": "convert",
    "model.encoder": "Activations",
    "model.load": "load",
    "model.model": "Model",
    "model.pooling": "Pooling",
    "model.sentence": "Sentence",
    "model.static": "StaticModel load_static save_static",
    "model.vocabulary": "Extended Shrunk extend_vocabulary shrink_vocabulary",
    "engine.engine": "Engine",
    "export.folder": "Exported export_onnx",
    "engine.reader": "Tally",
    "engine.threads": "set_threads",
    "page.write": "Page write_page",
    "predict.bertscore": "BertScores bert_score",
    "predict.classifier": "Classifier",
    "predict.encode": "TokenVectors encode encode_tokens",
    "predict.evaluation": "Evaluation calibrate compare_models evaluate",
    "predict.fill": "Filled fill",
    "predict.late_interaction": "LateInteraction",
    "predict.likelihood": "MinimalPair MinimalPairScores read_minimal_pairs score_minimal_pairs sentence_scores",
    "predict.mteb_encoder": "mteb_encoder",
    "predict.predictor": "Predictor",
    "predict.regressor": "Regressor",
    "predict.rerank": "Hit Reranker",
    "search.vector_evaluation": "SetScores VectorEvaluation evaluate_vectors",
    "predict.token_table": "distil_static",
    "pretraining.adapt": "Adapted adapt",
    "pretraining.pack": "PackReport pack",
    "pretraining.pretrain": "Pretrained pretrain",
    "pretraining.recipe": "PretrainRecipe pretrain_recipe read_pretrain_recipe read_recipe",
    "scoring.significance": "Comparison Summary",
    "search.index": "Index",
    "search.ranking": "SearchHit",
    "search.cluster": "Group cluster",
    "search.mining": "HardNegatives NegativeRules mine_hard_negatives",
    "search.nearest": "nearest",
    "search.pairs": "SimilarPair near_duplicates similar_pairs",
    "serve.app": "asgi_app",
    "serve.server": "run_server",
    "serve.settings": "ServeSettings",
    "tasks.finetune": "Finetuned finetune",
    "tasks.recipe": "FinetuneData FinetuneRecipe finetune_recipe read_finetune_recipe",
    "tasks.task": "TaskConfig",
    "tasks.seeds": "Seeds finetune_seeds",
    "tasks.suites": "BenchmarkScore run_suite",
    "text.tokenizer": "Encoding Tokenizer",
    "text.train_vocab": "train_vocabulary",
}
_HOMES = {name: f"bothways.{module}" for module, names in _MODULES.items() for name in names.split()}

__version__ = "0.2.0.dev0"
__all__ = ["BothwaysError", "StoppedError", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bothways' has no attribute {name!r}")
    found = getattr(imported(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
