"""The rows of the matrix: for each family its class in transformers, a small config, and the variants of it.

The variants are those that transformers' own model testers build, and those that published folders are known to have.
A row must exist for every family of ours: `test_matrix.py` checks it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]
GONE = "(removed)"
"""In an edit of config.json: the key is taken out."""

NONE = float("inf")

SIZES: dict[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 912,
}


@dataclass(frozen=True)
class Row:
    """One family."""

    family: str
    """The model_type, as bothways and config.json spell it."""
    classes: str
    """How the names of its classes in transformers begin."""
    base: Settings
    variants: Mapping[str, Settings]
    """What differs from `base`, under a name."""
    uncommon: Settings = field(default_factory=dict)
    """Values other than the defaults: a key that is removed or null must then mean the default, and show."""
    edits: Mapping[str, Settings] = field(default_factory=dict)
    """Other spellings of config.json, as they stand in the files of older versions."""
    activations: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"hidden_act": ("ForMaskedLM",)})
    """The settings that name an activation, and the endings of the classes that compute it."""
    offset: int = 0
    """The number of rows of the position table that no token uses, if pad_token_id does not tell."""
    counts_from_pad: bool = False
    """Whether positions are counted from pad_token_id + 1."""
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variants that only some classes can tell from the base: the endings."""
    exact: float = 1e-9
    """The limit in float64. It is higher where transformers computes a factor or the softmax in float32 whatever the
    weights are, and NONE where both sides rotate queries and keys in float32."""


# ---------------------------------------------------------------------- what most families have

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification")
LABELS: dict[str, Settings] = {
    "one label": {"num_labels": 1},
    "one label, regression": {"num_labels": 1, "problem_type": "regression"},
    "several labels at once": {"problem_type": "multi_label_classification"},
    "sixteen labels": {"num_labels": 16},
    "labels out of order": {"id2label": {2: "c", 0: "a", 1: "b"}, "label2id": {"c": 2, "a": 0, "b": 1}},
}
ONLY = {
    **dict.fromkeys(LABELS, CLASSIFIERS),
    **dict.fromkeys(("large initialisation", "no initialisation"), ("Model", "ForMaskedLM")),
}
USUAL: dict[str, Settings] = {
    **LABELS,
    "one layer": {"num_hidden_layers": 1},
    "five layers": {"num_hidden_layers": 5},
    "one attention head": {"num_attention_heads": 1},
    "wide feed-forward": {"intermediate_size": 130},
    "short table": {"max_position_embeddings": 42},
    "table of 512": {"max_position_embeddings": 512},
    "eps 1e-3": {"layer_norm_eps": 1e-3},
    "padding elsewhere": {"pad_token_id": 7},
    "padding null": {"pad_token_id": None},
    "no dropout": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
    "large initialisation": {"initializer_range": 1.0},
    "no initialisation": {"initializer_range": 0.0},
    "untied": {"tie_word_embeddings": False},
    "chunks": {"chunk_size_feed_forward": 4},
    "more outputs": {"output_hidden_states": True, "output_attentions": False, "return_dict": False},
    "half precision declared": {"dtype": "float16"},
}
CAUSAL: dict[str, Settings] = {
    "decoder": {"is_decoder": True},
    "decoder, cross attention": {"is_decoder": True, "add_cross_attention": True},
}
BERT_LIKE: dict[str, Settings] = {
    **USUAL,
    **CAUSAL,
    "sixteen segments": {"type_vocab_size": 16},
    "one segment": {"type_vocab_size": 1},
    "classifier dropout": {"classifier_dropout": 0.3},
    "relative key": {"position_embedding_type": "relative_key"},
    "relative key and query": {"position_embedding_type": "relative_key_query"},
    "absolute, said": {"position_embedding_type": "absolute"},
    "pruned heads": {"pruned_heads": {"0": [1]}},
}
NON_DEFAULT = {"layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.2, "hidden_act": "relu", "initializer_range": 0.03}
BERT_UNCOMMON = {**NON_DEFAULT, "type_vocab_size": 3, "classifier_dropout": 0.3, "pad_token_id": 5}
ROTARY: dict[str, Settings] = {
    "rotary base": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "rotary, linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "rotary, dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}},
    "rotary, yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "rotary, llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        }
    },
    "rotary, half of the head": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
    },
}
ROTARY_EDITS: dict[str, Settings] = {
    "rope_theta at the top": {"rope_parameters": GONE, "rope_theta": 700.0},
    "rope_scaling null": {"rope_parameters": GONE, "rope_theta": 700.0, "rope_scaling": None},
    "rope_scaling linear": {
        "rope_parameters": GONE,
        "rope_theta": 700.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
}
OLD_EDITS: dict[str, Settings] = {
    "torch_dtype": {"dtype": GONE, "torch_dtype": "float32"},
    "eps as an integer": {"layer_norm_eps": 1},
    "an unknown key": {"house_style": "plain"},
    "no architectures": {"architectures": None},
    "gradient_checkpointing": {"gradient_checkpointing": False},
}


def roberta(family: str, classes: str, variants: Settings | None = None) -> Row:
    """A row of RoBERTa's kind."""
    return Row(
        family,
        classes,
        SIZES,
        {**BERT_LIKE, "two segments": {"type_vocab_size": 2}, **(variants or {})},
        BERT_UNCOMMON,
        OLD_EDITS,
        counts_from_pad=True,
        only=ONLY,
    )


# ---------------------------------------------------------------------- ModernBERT and DeBERTa

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_MODERN = {**SIZES, "num_hidden_layers": 4, "local_attention": 8, "pad_token_id": 0}


def _bases(whole: float, near: float, **more: Any) -> dict[str, Any]:
    one = {"rope_type": "default", **more}
    return {"rope_parameters": {_GLOBAL: {**one, "rope_theta": whole}, _LOCAL: {**one, "rope_theta": near}}}


MODERN: dict[str, Settings] = {
    **{name: one for name, one in USUAL.items() if name not in ("eps 1e-3", "no dropout", "chunks", "padding null")},
    "eps 1e-3": {"norm_eps": 1e-3},
    "as the tester": {"num_hidden_layers": 2, "local_attention": 128, "mlp_dropout": 0.0, "classifier_dropout": 0.0},
    "dropout": {"mlp_dropout": 0.1, "attention_dropout": 0.1, "embedding_dropout": 0.2, "classifier_dropout": 0.3},
    "bias of the norms": {"norm_bias": True},
    "bias of the attention": {"attention_bias": True},
    "bias of the feed-forward": {"mlp_bias": True},
    "bias of both": {"attention_bias": True, "mlp_bias": True},
    "bias of the classifier": {"classifier_bias": True},
    "no bias of the decoder": {"decoder_bias": False},
    "mean": {"classifier_pooling": "mean"},
    "every second layer": {"global_attn_every_n_layers": 2},
    "layer types": {"layer_types": [_LOCAL, _LOCAL, _GLOBAL, _LOCAL]},
    "all near": {"layer_types": [_LOCAL] * 4},
    "all far": {"layer_types": [_GLOBAL] * 4},
    "odd window": {"local_attention": 7},
    "window of two": {"local_attention": 2},
    "window of one": {"local_attention": 1},
    "rotary bases": _bases(900.0, 77.0),
    "rotary, linear": _bases(900.0, 77.0, rope_type="linear", factor=4.0),
    "rotary, half of the head": _bases(900.0, 77.0, partial_rotary_factor=0.5),
    "rotary, yarn": _bases(900.0, 77.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=128),
    "sparse prediction": {"sparse_prediction": True},
    "padding null": {"pad_token_id": None},
}
_MODERN_OLD = {"layer_types": GONE, "rope_parameters": GONE}
_DISENTANGLED = {
    **SIZES,
    "relative_attention": True,
    "position_biased_input": False,
    "pos_att_type": ["c2p", "p2c"],
}
DEBERTA: dict[str, Settings] = {
    **USUAL,
    "as the tester": {
        "relative_attention": False,
        "position_biased_input": True,
        "pos_att_type": "None",
        "type_vocab_size": 16,
    },
    "absolute only": {"relative_attention": False, "position_biased_input": True, "pos_att_type": None},
    "two segments": {"type_vocab_size": 2},
    "sixteen segments": {"type_vocab_size": 16},
    "absolute as well": {"position_biased_input": True},
    "content to position": {"pos_att_type": ["c2p"]},
    "position to content": {"pos_att_type": ["p2c"]},
    "as a word": {"pos_att_type": "p2c|c2p"},
    "as a word with spaces": {"pos_att_type": "C2P | P2C"},
    "position to position": {"pos_att_type": ["c2p", "p2c", "p2p"]},
    "no terms": {"pos_att_type": []},
    "terms null": {"pos_att_type": None},
    "near distances": {"max_relative_positions": 16},
    "talking heads": {"talking_head": True},
    "narrow embeddings": {"embedding_size": 16},
    "pooler of tanh": {"pooler_hidden_act": "tanh"},
    "pooler dropout": {"pooler_dropout": 0.3, "cls_dropout": 0.2},
    "pooler of 16": {"pooler_hidden_size": 16},
    "not legacy": {"legacy": False},
}
DEBERTA_V2: dict[str, Settings] = {
    **DEBERTA,
    "as published": {
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "max_relative_positions": -1,
    },
    "buckets": {"position_buckets": 8},
    "buckets, near": {"position_buckets": 8, "max_relative_positions": 20},
    "shared": {"share_att_key": True},
    "norm of the distances": {"norm_rel_ebd": "layer_norm"},
    "shared, one term": {"share_att_key": True, "pos_att_type": ["p2c"], "position_buckets": 16},
    "convolution": {"conv_kernel_size": 3, "conv_act": "gelu", "position_buckets": 8, "share_att_key": True},
    "convolution, five": {"conv_kernel_size": 5},
    "convolution, even": {"conv_kernel_size": 4},
    "convolution, no relative attention": {
        "conv_kernel_size": 3,
        "relative_attention": False,
        "position_biased_input": True,
    },
    "convolution in groups": {"conv_kernel_size": 3, "conv_groups": 2},
    "wide attention heads": {"attention_head_size": 16},
}
_DEBERTA_UNCOMMON = {
    **NON_DEFAULT,
    "type_vocab_size": 2,
    "pooler_hidden_act": "tanh",
    "pooler_dropout": 0.2,
    "max_relative_positions": 24,
    "pad_token_id": 5,
}
_DEBERTA_ENDINGS = {
    "pooler of tanh": ("ForSequenceClassification", "ForMultipleChoice"),
    "pooler dropout": ("ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification"),
    "pooler of 16": ("ForSequenceClassification", "ForMultipleChoice", "Model"),
    "not legacy": ("ForMaskedLM", "Model"),
}
_DEBERTA_ACTS = {"hidden_act": ("ForMaskedLM",), "pooler_hidden_act": ("ForSequenceClassification",)}

# ---------------------------------------------------------------------- the rows

_EUROBERT = {**SIZES, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 4}
_NO_EPS = {name: one for name, one in USUAL.items() if name not in ("eps 1e-3", "no dropout", "chunks")}
_DISTIL = {
    "vocab_size": 99,
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 37,
    "max_position_embeddings": 912,
}
_DISTIL_NAMES = {"num_hidden_layers": "n_layers", "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}

ROWS: tuple[Row, ...] = (
    Row("bert", "Bert", SIZES, BERT_LIKE, BERT_UNCOMMON, OLD_EDITS, only=ONLY),
    roberta("roberta", "Roberta"),
    roberta("xlm-roberta", "XLMRoberta"),
    roberta("camembert", "Camembert"),
    Row(
        "albert",
        "Albert",
        {**SIZES, "embedding_size": 16},
        {
            **{name: one for name, one in BERT_LIKE.items() if name not in CAUSAL and name != "classifier dropout"},
            "as the tester": {
                "num_hidden_layers": 2,
                "num_hidden_groups": 2,
                "embedding_size": 8,
                "hidden_act": "gelu",
            },
            "one width": {"embedding_size": 32},
            "two groups of five": {"num_hidden_layers": 5, "num_hidden_groups": 2},
            "three groups of four": {"num_hidden_layers": 4, "num_hidden_groups": 3},
            "two layers in a group": {"inner_group_num": 2},
            "two layers in each of two groups": {"inner_group_num": 2, "num_hidden_groups": 2, "num_hidden_layers": 4},
            "classifier dropout": {"classifier_dropout_prob": 0.3},
            "old keys": {"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0},
        },
        {
            **NON_DEFAULT,
            "type_vocab_size": 3,
            "classifier_dropout_prob": 0.3,
            "pad_token_id": 5,
            "num_hidden_groups": 2,
        },
        OLD_EDITS,
        only=ONLY,
    ),
    Row(
        "distilbert",
        "DistilBert",
        _DISTIL,
        {
            **{
                name: {_DISTIL_NAMES.get(key, key): value for key, value in one.items()}
                for name, one in USUAL.items()
                if name not in ("eps 1e-3", "no dropout")
            },
            "sinusoids": {"sinusoidal_pos_embds": True},
            "dropout": {"dropout": 0.2, "attention_dropout": 0.0, "qa_dropout": 0.3, "seq_classif_dropout": 0.4},
            "old keys": {"tie_weights_": True, "output_past": True},
        },
        {
            "activation": "relu",
            "dropout": 0.2,
            "initializer_range": 0.03,
            "qa_dropout": 0.3,
            "seq_classif_dropout": 0.4,
        },
        {
            **{name: one for name, one in OLD_EDITS.items() if name != "eps as an integer"},
            "named as BERT's": {
                "dim": GONE,
                "n_layers": GONE,
                "n_heads": GONE,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
            },
        },
        {"activation": ("ForMaskedLM",)},
        only=ONLY,
    ),
    Row(
        "electra",
        "Electra",
        {**SIZES, "embedding_size": 16},
        {
            **BERT_LIKE,
            "one width": {"embedding_size": 32},
            "summary of the last": {"summary_type": "last"},
            "summary of the mean": {"summary_type": "mean"},
            "summary by index": {"summary_type": "cls_index"},
            "summary not projected": {"summary_use_proj": False},
            "summary to labels": {"summary_proj_to_labels": True},
            "summary without activation": {"summary_activation": None},
            "summary dropout": {"summary_last_dropout": 0.3, "summary_first_dropout": 0.2},
        },
        {**BERT_UNCOMMON, "summary_activation": "tanh", "summary_last_dropout": 0.2},
        OLD_EDITS,
        {"hidden_act": ("ForMaskedLM", "ForPreTraining"), "summary_activation": ("ForMultipleChoice",)},
        only={
            **ONLY,
            "summary of the last": ("ForMultipleChoice", "ForMaskedLM"),
            "summary of the mean": ("ForMultipleChoice",),
            "summary by index": ("ForMultipleChoice",),
            "summary not projected": ("ForMultipleChoice", "ForMaskedLM"),
            "summary to labels": ("ForMultipleChoice",),
            "summary without activation": ("ForMultipleChoice",),
            "summary dropout": ("ForMultipleChoice",),
        },
    ),
    Row(
        "mpnet",
        "MPNet",
        SIZES,
        {
            **USUAL,
            "as the tester": {"hidden_size": 64, "intermediate_size": 64},
            "sixteen buckets": {"relative_attention_num_buckets": 16},
            "sixty-four buckets": {"relative_attention_num_buckets": 64},
        },
        {**NON_DEFAULT, "pad_token_id": 5},
        OLD_EDITS,
        offset=2,
        only=ONLY,
    ),
    Row(
        "deberta",
        "Deberta",
        _DISENTANGLED,
        DEBERTA,
        _DEBERTA_UNCOMMON,
        OLD_EDITS,
        _DEBERTA_ACTS,
        only={**ONLY, **_DEBERTA_ENDINGS},
        exact=1e-5,
    ),
    Row(
        "deberta-v2",
        "DebertaV2",
        _DISENTANGLED,
        DEBERTA_V2,
        {
            **_DEBERTA_UNCOMMON,
            "position_buckets": 8,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "conv_kernel_size": 3,
            "conv_act": "gelu",
        },
        OLD_EDITS,
        {**_DEBERTA_ACTS, "conv_act": ("Model",)},
        only={**ONLY, **_DEBERTA_ENDINGS},
        exact=1e-6,
    ),
    Row(
        "modernbert",
        "ModernBert",
        _MODERN,
        MODERN,
        {
            "norm_eps": 1e-3,
            "norm_bias": True,
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_bias": True,
            "classifier_pooling": "mean",
            "classifier_activation": "relu",
            "hidden_activation": "silu",
            "embedding_dropout": 0.1,
            "layer_types": [_LOCAL, _GLOBAL, _LOCAL, _LOCAL],
            **_bases(900.0, 77.0),
        },
        {
            **{name: one for name, one in OLD_EDITS.items() if name != "eps as an integer"},
            "of version 4": {
                **_MODERN_OLD,
                "global_attn_every_n_layers": 2,
                "global_rope_theta": 900.0,
                "local_rope_theta": 77.0,
            },
            "of version 4, base null": {**_MODERN_OLD, "global_rope_theta": 900.0, "local_rope_theta": None},
            "layer types gone": {"layer_types": GONE, "global_attn_every_n_layers": 4},
            "one base gone": {"rope_parameters": {_GLOBAL: {"rope_type": "default", "rope_theta": 900.0}}},
            "base gone": {"rope_parameters": {_GLOBAL: {"rope_type": "default"}, _LOCAL: {"rope_type": "default"}}},
            "position type said": {"position_embedding_type": "absolute"},
            "compiled": {"reference_compile": True, "repad_logits_with_grad": False},
        },
        {"hidden_activation": ("ForMaskedLM",), "classifier_activation": ("ForMaskedLM", "ForSequenceClassification")},
        only={
            **ONLY,
            "no bias of the decoder": ("ForMaskedLM", "Model"),
            "sparse prediction": ("ForMaskedLM",),
            "mean": ("ForSequenceClassification", "ForMultipleChoice", "ForTokenClassification"),
        },
        exact=NONE,
    ),
    # ------------------------------------------------------------------ skipped until bothways has them
    Row(
        "nomic_bert",
        "NomicBert",
        SIZES,
        {
            **USUAL,
            **ROTARY,
            "sixteen segments": {"type_vocab_size": 16},
            "wide attention heads": {"head_dim": 16},
            "classifier dropout": {"classifier_dropout": 0.3},
        },
        {**NON_DEFAULT, "type_vocab_size": 3, "classifier_dropout": 0.3, **ROTARY["rotary base"]},
        {**OLD_EDITS, **ROTARY_EDITS},
        only=ONLY,
        exact=NONE,
    ),
    Row(
        "gte",
        "Gte",
        SIZES,
        {
            **USUAL,
            **ROTARY,
            "two segments": {"type_vocab_size": 2},
            "classifier dropout": {"classifier_dropout": 0.3},
        },
        {**NON_DEFAULT, "type_vocab_size": 3, "classifier_dropout": 0.3, **ROTARY["rotary base"]},
        {**OLD_EDITS, **ROTARY_EDITS},
        only=ONLY,
        exact=NONE,
    ),
    Row(
        "eurobert",
        "EuroBert",
        _EUROBERT,
        {
            **_NO_EPS,
            **ROTARY,
            "eps 1e-3": {"rms_norm_eps": 1e-3},
            "dropout": {"attention_dropout": 0.1},
            "two key heads": {"num_key_value_heads": 2},
            "one key head": {"num_key_value_heads": 1},
            "wide attention heads": {"head_dim": 16},
            "bias of the attention": {"attention_bias": True},
            "bias of the feed-forward": {"mlp_bias": True},
            "first": {"classifier_pooling": "bos"},
            "mean": {"classifier_pooling": "mean"},
            "tied": {"tie_word_embeddings": True},
        },
        {
            "rms_norm_eps": 1e-3,
            "hidden_act": "relu",
            "attention_bias": True,
            "mlp_bias": True,
            "classifier_pooling": "mean",
            "num_key_value_heads": 2,
            **ROTARY["rotary base"],
        },
        {**{name: one for name, one in OLD_EDITS.items() if name != "eps as an integer"}, **ROTARY_EDITS},
        only={**ONLY, "first": ("ForSequenceClassification",), "mean": ("ForSequenceClassification",)},
        exact=NONE,
    ),
    roberta("xlm-roberta-xl", "XLMRobertaXL"),
    Row(
        "ernie",
        "Ernie",
        SIZES,
        {
            **BERT_LIKE,
            "task ids": {"use_task_id": True},
            "task ids of five": {"use_task_id": True, "task_type_vocab_size": 5},
        },
        {**BERT_UNCOMMON, "use_task_id": True, "task_type_vocab_size": 5},
        OLD_EDITS,
        only=ONLY,
    ),
    roberta("data2vec-text", "Data2VecText"),
    Row(
        "splinter",
        "Splinter",
        {**SIZES, "vocab_size": 110, "question_token_id": 3},
        {
            **{name: one for name, one in USUAL.items() if name not in LABELS},
            "sixteen segments": {"type_vocab_size": 16},
            "another question token": {"question_token_id": 9},
        },
        {**NON_DEFAULT, "type_vocab_size": 3, "question_token_id": 9},
        OLD_EDITS,
        {"hidden_act": ("Model",)},
        only={name: by for name, by in ONLY.items() if name not in LABELS},
        exact=1e-5,
    ),
    Row(
        "roformer",
        "RoFormer",
        SIZES,
        {
            **BERT_LIKE,
            "narrow embeddings": {"embedding_size": 16},
            "values rotated": {"rotary_value": True},
        },
        {**NON_DEFAULT, "type_vocab_size": 3, "embedding_size": 16},
        OLD_EDITS,
        only=ONLY,
        exact=NONE,
    ),
)

STRANGERS = (
    "longformer", "big_bird", "mobilebert", "esm", "layoutlm", "funnel", "t5", "gpt2", "llama", "convbert", "rembert",
    "megatron-bert", "squeezebert", "xlm", "xlnet", "roberta-prelayernorm", "nystromformer", "bert-generation",
)  # fmt: skip
"""Types that transformers knows and we do not: refused by name."""
