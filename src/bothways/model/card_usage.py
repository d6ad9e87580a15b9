"""The part of a model card that says how to use the model: code for bothways and for the libraries that open it too."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from bothways.model.model import Model

Sample = TypeVar("Sample")
_TEXTS = {"Latin": "The film was a joy from start to finish.", "Chinese": "这部电影从头到尾都很精彩。"}
_PAIRS = {
    "Latin": ("A man plays the piano.", "Someone makes music."),
    "Chinese": ("一个男人在弹钢琴。", "有人在演奏音乐。"),
}
_NAMES = {"Latin": "Ada Lovelace lived in London.", "Chinese": "李白住在长安。"}
_SPACED = {"Latin": "Ada Lovelace lived in London .", "Chinese": "李 白 住 在 长 安 。"}
_QUESTIONS = {
    "Latin": ("Where does the cat sleep?", "The cat sleeps under the table."),
    "Chinese": ("猫睡在哪里？", "猫睡在桌子下面。"),
}
_OPTIONS = {
    "Latin": ("The cat is tired. What does it do?", ("It sleeps.", "It drives a car.")),
    "Chinese": ("猫累了，它会做什么？", ("它睡觉。", "它开车。")),
}
_MASKED = {"Latin": "The cat sleeps under the {}.", "Chinese": "猫在桌子下面{}觉。"}
_GRAPH = "This folder holds an ONNX graph, which ONNX Runtime and transformers.js run too."
_LONG = (
    "Texts beyond the maximum length are read in overlapping windows by bothways, and refused or truncated by other "
    "libraries."
)


@dataclass(frozen=True)
class Use:
    """How to use a model."""

    pipeline_tag: str
    """The task, as the Hub names it."""
    codes: Mapping[str, str]
    """Python, by the name of the library."""
    package: str = "transformers"
    tags: tuple[str, ...] = ()
    note: str = _LONG


def use_of(model: Model, folder: str) -> Use:
    """How to use a model in a folder: by its modules and its heads."""
    if model.late is not None:
        return _late(model, folder)
    if model.sentence is not None and not set(model.heads) & {"sequence", "token", "span", "choice"}:
        return _vectors(model, folder)
    for head, make in _BY_HEAD.items():
        if head in model.heads:
            return make(model, folder)
    texts = list(_samples(model, _TEXTS).values())
    theirs = _code(
        "from transformers import AutoModel, AutoTokenizer",
        f"tokenizer, model = AutoTokenizer.from_pretrained({_s(folder)}), AutoModel.from_pretrained({_s(folder)})",
        f'print(model(**tokenizer({_s(texts[0])}, return_tensors="pt")).last_hidden_state)',
    )
    return Use("feature-extraction", {"bothways": _encode(texts, folder), "transformers": theirs})


def use_of_graph(model: Model, folder: str, output: str) -> Use:
    """How to use a graph in an exported folder: by what it computes, whatever other heads the model has."""
    if output in _BY_HEAD:
        use = _BY_HEAD[output](model, folder)
    elif output in ("vectors", "states"):
        use = _vectors(model, folder)
    elif output == "replaced":
        use = _text_scores(model, folder)
    else:
        return Use("feature-extraction", {"ONNX Runtime": _runtime(model, folder)}, note=_GRAPH)
    ours = {"bothways": use.codes["bothways"]}
    return replace(use, codes=ours, note=f"{_GRAPH} Bothways answers from it without torch.")


def _samples(model: Model, texts: Mapping[str, Sample]) -> dict[str, Sample]:
    """Those in a script that the model's vocabulary has words of; the first if there is none."""
    known = model.tokenizer.scripts if model.tokenizer else frozenset[str]()
    return {script: text for script, text in texts.items() if script in known} or dict(list(texts.items())[:1])


def _s(value: object) -> str:
    """A text, or a list of texts, as Python."""
    return json.dumps(value, ensure_ascii=False)


def _code(*lines: str) -> str:
    imports = [line for line in lines if line.startswith(("import ", "from "))]
    return "\n".join([*imports, "", *(line for line in lines if line not in imports)])


def _ours(folder: str, given: str) -> str:
    return _code("import bothways", f"predict = bothways.Predictor.load({_s(folder)})", f"print(predict({given}))")


def _encode(texts: list[str], folder: str) -> str:
    return _code("import bothways", f"vectors = bothways.encode({_s(texts)}, {_s(folder)})", "print(vectors.shape)")


def _text_scores(model: Model, folder: str) -> Use:
    texts = list(_samples(model, _TEXTS).values())
    ours = _code("import bothways", f"print(list(bothways.sentence_scores({_s(texts)}, {_s(folder)})))")
    return Use("feature-extraction", {"bothways": ours})


def _runtime(model: Model, folder: str) -> str:
    """A graph without bothways, which has no use for its outputs."""
    text, *_ = _samples(model, _TEXTS).values()
    return _code(
        "from pathlib import Path",
        "import numpy, onnxruntime, tokenizers",
        f"folder = Path({_s(folder)})",
        f'read = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")).encode({_s(text)})',
        'feed = {"input_ids": read.ids, "attention_mask": read.attention_mask, "token_type_ids": read.type_ids}',
        'session = onnxruntime.InferenceSession(next(folder.glob("onnx/*.onnx")))',
        "given = {one.name: numpy.array([feed[one.name]]) for one in session.get_inputs()}",
        "print(session.run(None, given)[0].shape)",
    )


def _late(model: Model, folder: str) -> Use:
    (query, document), *_ = _samples(model, _QUESTIONS).values()
    ours = _code(
        "import bothways",
        f"ranker = bothways.LateInteraction({_s(folder)})",
        f"print(ranker.rank({_s(query)}, {_s([document])}))",
    )
    return Use("sentence-similarity", {"bothways": ours}, "sentence-transformers", ("ColBERT",))


def _vectors(model: Model, folder: str) -> Use:
    texts = list(_samples(model, _TEXTS).values())
    theirs = _code(
        "from sentence_transformers import SentenceTransformer",
        f"vectors = SentenceTransformer({_s(folder)}).encode({_s(texts)})",
        "print(vectors.shape)",
    )
    codes = {"bothways": _encode(texts, folder), "sentence-transformers": theirs}
    return Use("sentence-similarity", codes, "sentence-transformers", ("sentence-transformers", "feature-extraction"))


def _sequence(model: Model, folder: str) -> Use:
    problem = model.config.hf_config.get("problem_type")
    if len(model.config.labels) == 1 and problem != "regression":
        return _ranker(model, folder)
    kinds = {"multi_label_classification": ", top_k=None"}
    texts: list[object] = list(_samples(model, _TEXTS).values())
    given, theirs_given = _s(texts), _s(texts)
    stored = model.config.hf_config.get("bothways")
    if isinstance(stored, dict) and stored.get("texts") == 2:
        pairs = list(_samples(model, _PAIRS).values())
        given = f"[{', '.join(f'({_s(one)}, {_s(two)})' for one, two in pairs)}]"
        theirs_given = _s([{"text": one, "text_pair": two} for one, two in pairs])
    theirs = _code(
        "from transformers import pipeline",
        f'classify = pipeline("text-classification", {_s(folder)}{kinds.get(str(problem), "")})',
        f"print(classify({theirs_given}))",
    )
    note = _LONG
    if problem in kinds:
        note += " bothways returns the labels above their thresholds, and the pipeline all labels."
    return Use("text-classification", {"bothways": _ours(folder, given), "transformers": theirs}, note=note)


def _ranker(model: Model, folder: str) -> Use:
    (query, document), *_ = _samples(model, _QUESTIONS).values()
    pair = f"({_s(query)}, {_s(document)})"
    theirs = _code(
        "from sentence_transformers import CrossEncoder",
        f"model = CrossEncoder({_s(folder)})",
        f"print(model.predict([{pair}]))",
    )
    codes = {"bothways": _ours(folder, pair), "sentence-transformers": theirs}
    return Use("text-ranking", codes, "sentence-transformers", ("cross-encoder", "reranker"))


def _token(model: Model, folder: str) -> Use:
    """Words are tagged by their first token, which is what the aggregation "first" reads. Any other would also read
    tokens that were not trained."""
    knows_words = model.tokenizer is not None and model.tokenizer.kind == "WordPiece"
    texts = list(_samples(model, _NAMES if knows_words else _SPACED).values())
    has_entities = any(label == "B" or label.startswith("B-") for label in model.config.labels)
    how = ', aggregation_strategy="first"' if has_entities else ""
    theirs = _code(
        "from transformers import pipeline",
        f'tag = pipeline("token-classification", {_s(folder)}{how})',
        f"print(tag({_s(texts)}))",
    )
    note = f"{_LONG} The tag of a word is that of its first token"
    note += ', so the pipeline needs `aggregation_strategy="first"`.' if has_entities else ": ignore its other tokens."
    if not knows_words:
        note += " With this tokenizer, the pipeline takes what stands between spaces for a word."
    elif has_entities:
        note += " bothways keeps words such as `U.S.` and `don't` together or apart as treebanks do, and only returns "
        note += "valid sequences of tags."
    return Use("token-classification", {"bothways": _ours(folder, _s(texts)), "transformers": theirs}, note=note)


def _span(model: Model, folder: str) -> Use:
    (question, context), *_ = _samples(model, _QUESTIONS).values()
    theirs = _code(
        "import torch",
        "from transformers import AutoModelForQuestionAnswering, AutoTokenizer",
        f"tokenizer = AutoTokenizer.from_pretrained({_s(folder)})",
        f"model = AutoModelForQuestionAnswering.from_pretrained({_s(folder)})",
        f'inputs = tokenizer({_s(question)}, {_s(context)}, return_tensors="pt")',
        "with torch.no_grad():",
        "    outputs = model(**inputs)",
        "start, end = outputs.start_logits.argmax(), outputs.end_logits.argmax()",
        'print(tokenizer.decode(inputs["input_ids"][0, start : end + 1]))',
    )
    given = _s({"question": question, "context": context})
    note = f"{_LONG} bothways only returns spans of the context, and by the threshold in `config.json` none."
    return Use("question-answering", {"bothways": _ours(folder, given), "transformers": theirs}, note=note)


def _choice(model: Model, folder: str) -> Use:
    (question, options), *_ = _samples(model, _OPTIONS).values()
    theirs = _code(
        "from transformers import AutoModelForMultipleChoice, AutoTokenizer",
        f"tokenizer = AutoTokenizer.from_pretrained({_s(folder)})",
        f"model = AutoModelForMultipleChoice.from_pretrained({_s(folder)})",
        f"question, options = {_s(question)}, {_s(options)}",
        'inputs = tokenizer([question] * len(options), options, padding=True, return_tensors="pt")',
        "logits = model(**{name: rows.unsqueeze(0) for name, rows in inputs.items()}).logits",
        "print(options[logits.argmax()])",
    )
    given = _s({"question": question, "options": options})
    return Use("multiple-choice", {"bothways": _ours(folder, given), "transformers": theirs})


def _masked(model: Model, folder: str) -> Use:
    mask = (model.tokenizer.mask if model.tokenizer else None) or "[MASK]"
    text, *_ = _samples(model, _MASKED).values()
    ours = _code("import bothways", f"print(bothways.fill({_s(text.format('[MASK]'))}, {_s(folder)}))")
    theirs = _code(
        "from transformers import pipeline",
        f'fill = pipeline("fill-mask", {_s(folder)})',
        f"print(fill({_s(text.format(mask))}))",
    )
    return Use("fill-mask", {"bothways": ours, "transformers": theirs})


_BY_HEAD = {"sequence": _sequence, "token": _token, "span": _span, "choice": _choice, "masked": _masked}
