"""BERTScore against the package bert_score 0.3.13: its values on a small model, its formula, and itself if it is there."""

import csv
import json
import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

import bothways
from bothways.engine.engine import Engine
from bothways.model.batch import Batch
from bothways.model.checkpoint import save
from bothways.predict import bertscore
from bothways.predict.bertscore import BertScores, bert_score
from bothways.predict.encode import PackedStates, iter_states
from bothways.predict.features import Features
from bothways.predict.published_scores import best_layer, read_baseline
from helpers import model_of, refused
from helpers.cli import Run, is_one_error

ENGLISH = (
    ["The cat sleeps.", "paris is the capital of france", "a big black dog runs", "the house"],
    ["The black cat sleeps in the house.", "the capital of france is paris!", "a small cat walks", "the tree is big"],
)
CHINESE = (
    ["北京是中国的首都。", "法国的首都是巴黎。", "猫和狗", "日本"],
    ["中国的首都是北京。", "巴黎是法国的首都。", "狗是猫的", "日本的首都"],
)
BASELINE = "LAYER,P,R,F\n0,0.1,0.2,0.15\n1,0.2,0.3,0.25\n2,0.3,0.25,0.28\n3,0.4,0.35,0.37\n"

# Precision, recall and F1 by the package with batch_size=1, by language, layer and idf.
PUBLISHED = {
    ("english", 1, False): [[0.892939, 0.87599, 0.844642, 0.802045], [0.830264, 0.866474, 0.822996, 0.768397], [0.860462, 0.871206, 0.833678, 0.78486]],
    ("english", 1, True): [[0.874971, 0.87933, 0.837122, 0.825297], [0.825776, 0.860856, 0.823199, 0.77933], [0.849662, 0.869995, 0.830102, 0.801656]],
    ("english", 3, False): [[0.890853, 0.967372, 0.970061, 0.702597], [0.907479, 0.962237, 0.966592, 0.701461], [0.899089, 0.964798, 0.968323, 0.702029]],
    ("english", 3, True): [[0.882178, 0.966991, 0.970704, 0.681344], [0.905253, 0.962431, 0.967669, 0.699938], [0.893566, 0.964705, 0.969184, 0.690516]],
    ("chinese", 1, False): [[0.841445, 0.869044, 0.843591, 0.887966], [0.846673, 0.857297, 0.803488, 0.806089], [0.844051, 0.863131, 0.823051, 0.845049]],
    ("chinese", 1, True): [[0.835934, 0.8707, 0.824521, 0.887966], [0.841433, 0.859513, 0.863935, 0.861419], [0.838674, 0.86507, 0.843768, 0.874491]],
    ("chinese", 3, False): [[0.93867, 0.963698, 0.788935, 0.804877], [0.91459, 0.961659, 0.773304, 0.77778], [0.926474, 0.962677, 0.781041, 0.791096]],
    ("chinese", 3, True): [[0.93938, 0.962908, 0.791165, 0.804877], [0.910363, 0.960462, 0.780179, 0.772677], [0.924644, 0.961684, 0.785634, 0.788448]],
}  # fmt: skip
# With two references, each and the next one, rescaled, layer 2.
RESCALED = {
    "english": [[0.838418, 0.838522, 0.839601, 0.78689], [0.840484, 0.84132, 0.885613, 0.695059], [0.838355, 0.838844, 0.861686, 0.734874]],
    "chinese": [[0.87094, 0.854948, 0.868338, 0.849597], [0.888902, 0.840682, 0.785633, 0.741636], [0.87938, 0.846384, 0.822477, 0.789126]],
}  # fmt: skip
PAIRS = {"english": ENGLISH, "chinese": CHINESE}


def far(found: BertScores, expected: Any) -> float:
    return float(np.abs(np.array(list(found)) - np.array(expected)).max())


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    (tmp_path / "baseline.tsv").write_text(BASELINE, encoding="utf-8")
    return tmp_path / "baseline.tsv"


# ---------------------------------------------------------------------- the judge


@pytest.mark.parametrize(("language", "layer", "idf"), PUBLISHED)
def test_equals_values_of_the_package(model_folder: Path, language: str, layer: int, idf: bool) -> None:
    found = bert_score(*PAIRS[language], model_folder, layer=layer, idf=idf)
    assert far(found, PUBLISHED[language, layer, idf]) < 1e-5
    assert found.layer == layer


def with_the_next(references: list[str]) -> list[list[str]]:
    return [[own, other] for own, other in zip(references, references[1:] + references[:1], strict=True)]


@pytest.mark.parametrize("language", PAIRS)
def test_equals_the_package_with_several_references_and_a_baseline(
    model_folder: Path, baseline: Path, language: str
) -> None:
    candidates, references = PAIRS[language]
    found = bert_score(candidates, with_the_next(references), model_folder, layer=2, baseline=baseline)
    assert far(found, RESCALED[language]) < 1e-5


@pytest.mark.parametrize("idf", [False, True], ids=["plain", "idf"])
@pytest.mark.parametrize("layer", [0, 2, 3])
def test_equals_the_package_itself(model_folder: Path, baseline: Path, layer: int, idf: bool) -> None:
    judge = pytest.importorskip("bert_score")
    from bert_score.utils import get_idf_dict, get_tokenizer

    candidates, references = ENGLISH[0] + CHINESE[0], ENGLISH[1] + CHINESE[1]
    weights = get_idf_dict(references, get_tokenizer(str(model_folder)), nthreads=0) if idf else False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = judge.score(
            candidates, references, model_type=str(model_folder), num_layers=layer, idf=weights, device="cpu",
            batch_size=1, rescale_with_baseline=True, lang="en", baseline_path=str(baseline),
        )  # fmt: skip
    found = bert_score(candidates, references, model_folder, layer=layer, idf=idf, baseline=baseline)
    assert far(found, [part.numpy() for part in theirs]) < 1e-5


class Plain:
    """The paper's formula: transformers' hidden states, one pair and one token at a time."""

    def __init__(self, folder: Path, layer: int, corpus: list[str] | None = None) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model: Any = transformers.AutoModel.from_pretrained(folder)
        self.model: Any = model.eval()
        self.layer = layer
        having = Counter(token for text in corpus or [] for token in set(self.tokenizer(text).input_ids))
        outside = (self.tokenizer.cls_token_id, self.tokenizer.sep_token_id)
        self.weight: Callable[[int], float] = lambda token: float(token not in outside)
        if corpus is not None:
            self.weight = lambda token: math.log((len(corpus) + 1) / (having[token] + 1))

    def states(self, text: str) -> tuple[NDArray[Any], list[float]]:
        inputs = self.tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            found = self.model(**inputs, output_hidden_states=True).hidden_states[self.layer][0].double().numpy()
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found, [self.weight(token) for token in inputs["input_ids"][0].tolist()]

    def __call__(self, candidate: str, reference: str) -> list[float]:
        (x, w), (y, v) = self.states(candidate), self.states(reference)
        precision = sum(a * max(float(i @ j) for j in y) for i, a in zip(x, w, strict=True)) / sum(w)
        recall = sum(b * max(float(i @ j) for i in x) for j, b in zip(y, v, strict=True)) / sum(v)
        return [precision, recall, 2 * precision * recall / (precision + recall)]


@pytest.mark.parametrize("corpus", [None, ["the cat in the house is black", "北京的狗", "a capital!"]])
@pytest.mark.parametrize("layer", [1, -1])
def test_equals_the_formula(model_folder: Path, layer: int, corpus: list[str] | None) -> None:
    candidates, references = ENGLISH[0] + CHINESE[0], ENGLISH[1] + CHINESE[1]
    found = bert_score(candidates, references, model_folder, layer=layer, idf=corpus or False)
    plain = Plain(model_folder, layer, corpus)
    expected = [plain(*pair) for pair in zip(candidates, references, strict=True)]
    assert far(found, np.transpose(expected)) < 1e-5


@pytest.mark.parametrize("family", ["electra", "albert", "deberta-v2", "xlm-roberta"])
def test_other_families_equal_the_formula(tmp_path: Path, family: str) -> None:
    """Also of layers that share their weights, and with Unigram tokenizers."""
    save(model_of(family, ()), tmp_path / family)
    for layer in (1, 2):
        plain = Plain(tmp_path / family, layer, ENGLISH[1])
        expected = [plain(*pair) for pair in zip(*ENGLISH, strict=True)]
        assert far(bert_score(*ENGLISH, tmp_path / family, layer=layer, idf=True), np.transpose(expected)) < 1e-5


def test_a_final_norm_follows_the_layer() -> None:
    """The package drops the layers above, and the norm after the last layer stays."""
    model = model_of("modernbert", ())
    seen = (
        model.encoder.activations(Batch.pack([model.require_tokenizer()(f" {text}").ids]), hidden_states={1})
        for text in ("the cat", "a house in paris")
    )
    assert model.encoder.norm is not None
    with torch.no_grad():
        x, y = (torch.nn.functional.normalize(model.encoder.norm(part.hidden_states[1])) for part in seen)
    found = bert_score(["the cat"], ["a house in paris"], model, layer=1)
    assert abs(found.precision[0] - float((x @ y.T).amax(1)[1:-1].mean())) < 1e-6
    assert abs(found.recall[0] - float((x @ y.T).amax(0)[1:-1].mean())) < 1e-6


def test_roberta_reads_the_first_word_as_after_a_space(tmp_path: Path) -> None:
    """The package asks its tokenizer for it; a folder that does so by itself gets the same scores."""
    model = model_of("roberta", ())
    tokenizer = model.require_tokenizer()
    assert tokenizer("the cat").ids != tokenizer(" the cat").ids
    save(model, tmp_path / "plain")
    save(model, tmp_path / "spaced")
    settings = tmp_path / "spaced" / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"add_prefix_space": True}))
    assert far(bert_score(*ENGLISH, tmp_path / "plain"), list(bert_score(*ENGLISH, tmp_path / "spaced"))) < 1e-6
    assert far(bert_score([" the cat"], ["the  "], model), list(bert_score(["the cat"], ["the"], model))) == 0


# ---------------------------------------------------------------------- what the user gets


def test_each_score_is_the_best_over_the_references(model_folder: Path) -> None:
    """Each by itself, as in the package: the three need not come from the same reference."""
    candidate = "the black cat sleeps in the big house"
    choices = ["the cat", "a black cat sleeps and walks to the capital of france", "the dog runs"]
    single = np.array([list(bert_score([candidate], [text], model_folder)) for text in choices])[:, :, 0]
    found = bert_score([candidate], [choices], model_folder)
    assert far(found, single.max(0)[:, None]) < 1e-6
    assert len(set(single.argmax(0))) > 1


def test_the_same_texts_match_perfectly(model_folder: Path) -> None:
    found = bert_score(ENGLISH[0], ENGLISH[0], model_folder)
    assert far(found, np.ones((3, 4))) < 1e-6


def test_swapping_candidates_and_references_swaps_precision_and_recall(model_folder: Path) -> None:
    corpus = [*ENGLISH[1], "the cat"]
    there = bert_score(*ENGLISH, model_folder, idf=corpus)
    back = bert_score(ENGLISH[1], ENGLISH[0], model_folder, idf=corpus)
    assert np.abs(there.precision - back.recall).max() < 1e-6
    assert np.abs(there.precision - there.recall).max() > 1e-2


def test_repeated_references_count_again(model_folder: Path) -> None:
    """Documents are counted as often as they are given, though they are read once."""
    candidates, references = ["the cat", "the dog", "a tree"], ["the cat sleeps", "the cat sleeps", "a house"]
    plain = Plain(model_folder, 3, references)
    expected = [plain(*pair) for pair in zip(candidates, references, strict=True)]
    assert far(bert_score(candidates, references, model_folder, idf=True), np.transpose(expected)) < 1e-5
    assert far(bert_score(candidates, references, model_folder, idf=references), np.transpose(expected)) < 1e-5


@pytest.mark.parametrize("idf", [False, True])
def test_empty_texts_score_0_with_a_warning(model_folder: Path, idf: bool) -> None:
    with pytest.warns(UserWarning, match="weight 0: 1"):
        found = bert_score(
            ["", "the cat", "  \n", "a dog"], ["a cat", "", "the", "a dog sleeps"], model_folder, idf=idf
        )
    assert (np.array(list(found))[:, :3] == 0).all()
    assert found.f1[3] > 0


def test_a_text_without_weight_scores_0(model_folder: Path) -> None:
    """With one reference, idf gives all its tokens the weight 0; the package returns NaN."""
    with pytest.warns(UserWarning, match="weight 0: 1"):
        found = bert_score(["the cat sleeps"], ["the cat"], model_folder, idf=True)
    assert found.recall.tolist() == [0]
    assert found.f1.tolist() == [0]
    assert found.precision[0] > 0


def test_no_pairs(model_folder: Path) -> None:
    assert [part.tolist() for part in bert_score([], [], model_folder)] == [[], [], []]


# ---------------------------------------------------------------------- work and memory


def spied(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The sequences that the encoder computes."""
    seen: list[list[int]] = []
    run = Engine.run

    def spy(self: Engine, chunks: Iterable[Any], *rest: Any) -> Any:
        for chunk, rows in run(self, chunks, *rest):
            ids, lengths = chunk.sequences.ids, chunk.sequences.lengths
            seen.extend(part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1]))
            yield chunk, rows

    monkeypatch.setattr(Engine, "run", spy)
    return seen


@pytest.mark.parametrize("held", [1, 2**24])
def test_every_text_is_encoded_once(model_folder: Path, monkeypatch: pytest.MonkeyPatch, held: int) -> None:
    """However often it occurs, as candidate or as reference, and however little may be held."""
    draws = np.random.default_rng(0)
    words = ["cat", "dog", "house", "tree", "paris", "北", "京", "猫"]
    texts = [" ".join(draws.choice(words, draws.integers(1, 9))) for _ in range(400)]
    candidates = [texts[i] for i in draws.integers(0, 400, 900)]
    references = [[texts[i] for i in draws.integers(0, 400, draws.integers(1, 4))] for _ in range(900)]
    expected = bert_score(candidates, references, model_folder, layer=2)
    seen = spied(monkeypatch)
    monkeypatch.setattr(bertscore, "_NUMBERS_HELD", {"cpu": held})
    monkeypatch.setattr("bothways.predict.encode._TOKEN_SHARE", 0.002)  # two texts at a time
    found = bert_score(candidates, references, model_folder, layer=2)
    assert len(seen) == len(set(map(tuple, seen))) == len({*candidates, *(t for some in references for t in some)})
    assert far(found, list(expected)) < 1e-6


def test_vectors_are_forgotten_after_their_last_pair(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two systems over the same references, one after the other: what is held does not grow with the pairs."""
    monkeypatch.setattr(bertscore, "_NUMBERS_HELD", {"cpu": 500 * 32})
    most = []
    add = bertscore._Matcher.add

    def watched(self: Any, states: PackedStates) -> None:
        add(self, states)
        most.append(self.tokens)

    monkeypatch.setattr(bertscore._Matcher, "add", watched)
    for count in (300, 1200):
        references = [f"the cat {i} sleeps" for i in range(count)]
        candidates = [f"a {kind} {i}" for kind in ("dog", "tree") for i in range(count)]
        bert_score(candidates, references * 2, model_folder)
        assert max(most) < 3000
    assert len(most) > 20


def test_a_text_is_kept_for_the_next_pair(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain: every reference is the next candidate, and only two texts are read at a time."""
    texts = [f"the cat {i} runs to {'house ' * (i % 5)}" for i in range(40)]
    expected = bert_score(texts[:-1], texts[1:], model_folder)
    monkeypatch.setattr(bertscore, "_NUMBERS_HELD", {"cpu": 1})
    monkeypatch.setattr("bothways.predict.encode._TOKEN_SHARE", 0.002)
    assert far(bert_score(texts[:-1], texts[1:], model_folder), list(expected)) < 1e-6


def test_layers_above_are_not_computed(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bothways.load(model_folder)
    monkeypatch.setattr(model.encoder.blocks[2], "forward", lambda *_: pytest.fail("the third layer was computed"))
    bert_score(*ENGLISH, model, layer=2)


def test_progress_is_shown_over_texts(model_folder: Path) -> None:
    seen: dict[str, int] = {}

    def watch(texts: Iterable[str], what: str) -> Iterable[str]:
        seen[what] = len(list(texts))
        return texts

    bert_score(*ENGLISH, model_folder, idf=True, watch=watch)
    assert seen == {"counting tokens": 4, "scoring": 8}


# ---------------------------------------------------------------------- long texts


LONG = " ".join(["the black cat runs to a small house in paris"] * 12)


def test_long_texts_are_refused_by_their_name(model_folder: Path) -> None:
    with refused("too-long", ("candidate 2", 122), "window"):
        bert_score(["the cat", LONG], ["the cat", "a"], model_folder, idf=True)
    with refused("too-long", ("the reference of candidate 1", 122)):
        bert_score(["the cat"], [["a", LONG]], model_folder)


def test_windows_lose_nothing(model_folder: Path) -> None:
    """A text in windows has the vectors that `encode_tokens` gives, and [CLS] and [SEP] once."""
    short = "the dog sleeps in a house"
    found = bert_score([LONG], [short], model_folder, long="window")
    inside = [text.vectors for text in bothways.encode_tokens([LONG, short], model_folder, long="window")]
    x, y = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in inside)
    assert len(x) == 120
    # Special tokens can only raise a maximum.
    assert found.precision[0] >= (x @ y.T).max(1).mean() - 1e-6
    assert found.recall[0] >= (x @ y.T).max(0).mean() - 1e-6
    assert far(found, [[(x @ y.T).max(1).mean()], [(x @ y.T).max(0).mean()], [found.f1[0]]]) < 0.1
    same = bert_score([LONG], [LONG], model_folder, long="window", idf=[LONG, short])
    assert far(same, np.ones((3, 1))) < 1e-6


def test_windows_weigh_each_token_once(model_folder: Path) -> None:
    ids: list[int] = []
    lengths: list[int] = []
    model = bothways.load(model_folder)
    for states in iter_states(["the cat", LONG], Engine(model), Features(long="window"), bothways.Tally()):
        ids += states.ids.tolist()
        lengths += states.lengths.tolist()
    tokenizer = model.require_tokenizer()
    assert ids == tokenizer("the cat").ids + tokenizer(LONG).ids
    assert lengths == [4, 122]


def test_cutting_equals_the_cut_text(model_folder: Path) -> None:
    first = " ".join(LONG.split()[:46])
    for idf in (False, True):
        with pytest.warns(UserWarning, match="1 text cut"):
            found = bert_score([*ENGLISH[0], "a cat"], [*ENGLISH[1], LONG], model_folder, long="cut", idf=idf)
        expected = bert_score([*ENGLISH[0], "a cat"], [*ENGLISH[1], first], model_folder, idf=idf)
        assert far(found, list(expected)) < 1e-6


# ---------------------------------------------------------------------- layers and baselines


def test_folders_of_known_models_get_the_published_layer(model_folder: Path) -> None:
    assert best_layer("models/roberta-large", 24) == 17
    assert best_layer(Path("cache/models--google--electra-base-discriminator/snapshots/ab12"), 12) == 9
    assert best_layer("roberta-large/my-model", 24) == 24  # its parent's name is not its own
    assert best_layer("roberta-large", 6) == 6  # another model of that name
    assert bert_score(*ENGLISH, model_folder).layer == 3
    known = model_folder.rename(model_folder.with_name("bert_uncased_L-2_H-128_A-2"))
    assert bert_score(*ENGLISH, known).layer == 1
    assert bert_score(*ENGLISH, bothways.load(known)).layer == 3
    assert bert_score(*ENGLISH, known, layer=-2).layer == 2


def test_baselines(tmp_path: Path, baseline: Path) -> None:
    assert read_baseline(baseline, 2).tolist() == [0.3, 0.25, 0.28]
    tabs = tmp_path / "tabs.tsv"
    tabs.write_text(BASELINE.replace(",", "\t"), encoding="utf-8")
    assert read_baseline(tabs, 3).tolist() == [0.4, 0.35, 0.37]
    with refused("no-such-layer", 4, "0 to 3"):
        read_baseline(baseline, 4)
    with refused("no-file", tmp_path / "none"):
        read_baseline(tmp_path / "none", 1)
    for broken, code in (
        ("LAYER,P\n1,2\n", "no-column"),
        ("", "no-column"),
        ("LAYER,P,R,F\n1,0.1,x,0.2\n", "not-a-number"),
        ("LAYER,P,R,F\n1,0.1,0.2\n", "not-a-number"),
        ("LAYER,P,R,F\n1,0.1,nan,0.2\n", "not-a-number"),
        ("LAYER,P,R,F\n1,0.1,1,0.2\n", "not-a-number"),
    ):
        tabs.write_text(broken, encoding="utf-8")
        with refused(code, tabs):
            read_baseline(tabs, 1)


def test_rescaling(model_folder: Path, baseline: Path) -> None:
    raw = bert_score(*ENGLISH, model_folder, layer=1)
    found = bert_score(*ENGLISH, model_folder, layer=1, baseline=baseline)
    lowest = np.array([[0.2], [0.3], [0.25]])
    assert far(found, (np.array(list(raw)) - lowest) / (1 - lowest)) < 1e-6


# ---------------------------------------------------------------------- mistakes


def test_mistakes(model_folder: Path) -> None:
    with refused("length-mismatch", (1, 2)):
        bert_score(["a"], ["a", "b"], model_folder)
    with refused("no-data", 2):
        bert_score(["a", "b"], [["a"], []], model_folder)
    with refused("bad-input", "a"):
        bert_score("a", ["a"], model_folder)
    with refused("bad-input", "a"):
        bert_score(["a"], "a", model_folder)
    with refused("bad-input", 7):
        bert_score([7], ["a"], model_folder)  # type: ignore[list-item]
    with refused("bad-input", "the cat"):
        bert_score(["a"], ["a"], model_folder, idf="the cat")
    with refused("no-data"):
        bert_score(["a"], ["a"], model_folder, idf=[])
    with refused("no-such-layer", 4):
        bert_score(["a"], ["a"], model_folder, layer=4)
    with refused("unknown-choice", "chop"):
        bert_score(["a"], ["a"], model_folder, long="chop")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- the command


def test_the_command_prints_means_and_writes_rows(tmp_path: Path, model_folder: Path, run: Run) -> None:
    candidates, *references = tmp_path / "c.txt", tmp_path / "r.txt", tmp_path / "more.jsonl"
    texts = ["The cat sleeps.", "北京，是中国的首都。", 'a "big" dog']
    candidates.write_text("\n".join(texts) + "\n", encoding="utf-8")
    first, second = ["the black cat", "中国的首都是北京。", "a dog"], ["a cat", "北京", "the dog runs"]
    references[0].write_text("\n".join(first) + "\n", encoding="utf-8")
    references[1].write_text("".join(json.dumps({"text": text}) + "\n" for text in second), encoding="utf-8")
    expected = bert_score(texts, list(zip(first, second, strict=True)), model_folder, idf=True, layer=2)
    for name in ("rows.csv", "rows.jsonl"):
        words = ("--model", model_folder, "--idf", "--layer", 2, "--json", "--device", "cpu", "--out", tmp_path / name)
        done = run("bertscore", candidates, *references, *words)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["candidates"], report["layer"]) == (3, 2)
        for key in ("precision", "recall", "f1"):
            assert abs(report[key] - float(getattr(expected, key).mean())) < 1e-6
        with (tmp_path / name).open(encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream)) if name == "rows.csv" else list(map(json.loads, stream))
        assert [row["candidate"] for row in rows] == texts
        assert np.abs(np.array([float(row["f1"]) for row in rows]) - expected.f1).max() < 1e-7
    done = run("bertscore", candidates, references[0], "--model", model_folder, "--device", "cpu")
    assert "3 candidates, layer 3" in done.stdout
    assert "recall" in done.stdout


def test_the_command_takes_the_published_layer(tmp_path: Path, model_folder: Path, baseline: Path, run: Run) -> None:
    known = model_folder.rename(model_folder.with_name("bert_uncased_L-2_H-128_A-2"))
    (tmp_path / "c.txt").write_text("the cat\n", encoding="utf-8")
    words = ("--model", known, "--baseline", baseline, "--json")
    report = json.loads(run("bertscore", tmp_path / "c.txt", tmp_path / "c.txt", *words).stdout)
    assert report["layer"] == 1
    assert abs(report["f1"] - 1) < 1e-5


def test_mistakes_of_the_command(tmp_path: Path, model_folder: Path, run: Run) -> None:
    (tmp_path / "c.txt").write_text("the cat\na dog\n", encoding="utf-8")
    (tmp_path / "r.txt").write_text("the cat\n", encoding="utf-8")
    (tmp_path / "empty.txt").write_text("", encoding="utf-8")
    (tmp_path / "long.txt").write_text(f"a\n{LONG}\n", encoding="utf-8")
    for words, named in (
        (["{0}/c.txt", "{0}/r.txt"], "r.txt"),
        (["{0}/c.txt", "{0}/none.txt"], "none.txt"),
        (["{0}/empty.txt", "{0}/empty.txt"], "empty.txt"),
        (["{0}/c.txt", "{0}/c.txt", "--out", "{0}/x.npy"], "x.npy"),
        (["{0}/long.txt", "{0}/c.txt"], "--long"),
        (["{0}/c.txt", "{0}/c.txt", "--layer", "9"], "9"),
    ):
        done = run("bertscore", *(word.format(tmp_path) for word in words), "--model", model_folder)
        assert done.returncode == 1
        assert is_one_error(done.stderr, named), done.stderr
    (tmp_path / "c.jsonl").write_text('{"text": "a"}\n', encoding="utf-8")
    done = run(
        "bertscore", tmp_path / "c.jsonl", tmp_path / "c.jsonl", "--out", tmp_path / "c.jsonl", "--model", model_folder
    )
    assert done.returncode == 1
    assert is_one_error(done.stderr, "c.jsonl")
