"""Static models: the mean of token vectors, in folders that sentence-transformers opens."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import scipy.stats  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding

from bothways.errors import BothwaysError
from bothways.model.load import load
from bothways.model.model import Model
from bothways.model.static import StaticModel, is_static, load_static, save_static
from bothways.predict.encode import encode
from bothways.predict.token_table import distil_static, principal_components
from bothways.search import Index
from bothways.search.pairs import similar_pairs
from bothways.search.vector_evaluation import evaluate_vectors
from bothways.text.tokenizer import Tokenizer
from helpers import refused
from helpers.cli import Run, is_one_error

TEXTS = ["the cat sleeps in paris.", "北京是中国的首都。", "A dog walks", "", "walks walks zzz", "中国 the capital"]


@pytest.fixture
def static(model_folder: Path) -> StaticModel:
    return distil_static(model_folder, device="cpu")


@pytest.fixture
def folder(static: StaticModel, tmp_path: Path) -> Path:
    save_static(static, tmp_path / "static")
    return tmp_path / "static"


def cosines(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    found: NDArray[np.float32] = (one * other).sum(1)[lengths > 0] / lengths[lengths > 0]
    return found


def test_the_vector_of_a_text_is_the_mean_of_its_tokens(static: StaticModel) -> None:
    for text, vector in zip(TEXTS, static.encode(TEXTS), strict=True):
        ids = static.tokenizer.backend.encode(text, add_special_tokens=False).ids
        expected = static.table[ids].mean(0).numpy() if ids else np.zeros(static.width, np.float32)
        np.testing.assert_allclose(vector, expected / max(float(np.linalg.norm(expected)), 1e-12), atol=1e-6)


def test_sentence_transformers_opens_the_folder(folder: Path) -> None:
    theirs = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    ours = encode(TEXTS, folder)
    assert cosines(ours, theirs).min() > 0.99999
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("normalizes", [True, False])
def test_folders_of_sentence_transformers_open(static: StaticModel, tmp_path: Path, normalizes: bool) -> None:
    module = StaticEmbedding(static.tokenizer.backend, embedding_weights=static.table.numpy())
    theirs = SentenceTransformer(modules=[module, *([Normalize()] if normalizes else [])], device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    assert is_static(tmp_path / "theirs")
    np.testing.assert_allclose(encode(TEXTS, tmp_path / "theirs"), theirs.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_folders_of_model2vec_open(static: StaticModel, tmp_path: Path, shared: bool) -> None:
    """As Model2Vec writes them; newer ones may give several tokens one row, and a weight."""
    rows = torch.arange(len(static.table)) // 2 if shared else torch.arange(len(static.table))
    tensors = {"embeddings": static.table[: int(rows.max()) + 1].half().contiguous()}
    expected = tensors["embeddings"].float()[rows]
    if shared:
        tensors |= {"mapping": rows, "weights": torch.rand(len(rows), generator=torch.Generator().manual_seed(0))}
        expected = expected * tensors["weights"][:, None]
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors")
    static.tokenizer.backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": False}))
    theirs = SentenceTransformer(modules=[StaticEmbedding.load(str(tmp_path))], device="cpu")
    found = load_static(tmp_path)
    np.testing.assert_allclose(found.table.numpy(), expected.numpy(), atol=1e-6)
    np.testing.assert_allclose(found.encode(TEXTS), theirs.encode(TEXTS), atol=1e-5)


def test_other_tokenizers_than_wordpiece(tmp_path: Path) -> None:
    """BPE has no cache of words."""
    import tokenizers
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    backend = tokenizers.Tokenizer(BPE({"a": 0, "b": 1, "ab": 2, "Ġ": 3}, [("a", "b")]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    model = StaticModel(Tokenizer(backend), torch.eye(4), normalizes=False)
    save_static(model, tmp_path / "bpe")
    found = encode(["ab b", "a"], tmp_path / "bpe")
    np.testing.assert_allclose(found, np.array([[0, 1, 1, 1], [3, 0, 0, 0]]) / 3, rtol=1e-6)


# ---------------------------------------------------------------------- distillation


def test_special_tokens_have_no_vector_and_all_others_do(static: StaticModel, model_folder: Path) -> None:
    tokenizer = load(model_folder).require_tokenizer()
    lengths = static.table.norm(dim=1)
    wordless = sorted(tokenizer.wordless_ids)
    assert not lengths[wordless].any()
    assert int((lengths > 0).sum()) == tokenizer.size - len(wordless)


def test_a_token_alone_has_the_vector_of_the_encoder_but_for_the_centre_and_the_weight(model_folder: Path) -> None:
    """With all principal components, distances are those of the encoder's vectors."""
    model = load(model_folder)
    tokenizer = model.require_tokenizer()
    words = [piece for piece in ("cat", "dog", "paris", "walks") if tokenizer.backend.token_to_id(piece) is not None]
    assert len(words) > 2
    table = distil_static(model, width=None)
    expected, ids = encode(words, model), [tokenizer.id(word) for word in words]
    rows = table.table[ids].numpy()
    weights = np.linalg.norm(rows, axis=1)  # rows are scaled: compare directions around the centre of all tokens
    centre = _centre(model)
    inner = (expected - centre) @ (expected - centre).T
    scale = np.sqrt(np.diag(inner))
    np.testing.assert_allclose(rows @ rows.T / np.outer(weights, weights), inner / np.outer(scale, scale), atol=1e-4)


def _centre(model: Model) -> NDArray[np.float32]:
    """The mean over all tokens of the mean state of each one alone, by the plain encoder."""
    from bothways.model.batch import Batch

    tokenizer = model.require_tokenizer()
    ids = [i for i in range(tokenizer.size) if i not in tokenizer.wordless_ids]
    first, last = tokenizer.id("[CLS]"), tokenizer.id("[SEP]")
    with torch.inference_mode():
        states = model.encoder(Batch.pack([[first, i, last] for i in ids]))
    centre: NDArray[np.float32] = states.view(len(ids), 3, -1).mean(1).mean(0).numpy()
    return centre


def test_principal_components_keep_distances_and_sort_by_variance() -> None:
    vectors = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 9)
    full = principal_components(vectors, 8)
    torch.testing.assert_close(
        torch.cdist(full.double(), full.double()), torch.cdist(vectors.double(), vectors.double()), rtol=1e-4, atol=1e-4
    )
    variances = full.var(0)
    assert (variances[:-1] >= variances[1:]).all()
    torch.testing.assert_close(principal_components(vectors, 3), full[:, :3])


def test_frequent_tokens_weigh_less(model_folder: Path) -> None:
    tokenizer = load(model_folder).require_tokenizer()
    plain = distil_static(model_folder, texts=["cat dog"], device="cpu").table.norm(dim=1)
    cats = distil_static(model_folder, texts=["cat " * 500 + "dog"], device="cpu").table.norm(dim=1)
    cat, dog = tokenizer.id("cat"), tokenizer.id("dog")
    assert cats[cat] / plain[cat] < cats[dog] / plain[dog]


def test_a_smaller_width(model_folder: Path) -> None:
    assert distil_static(model_folder, width=5, device="cpu").encode(["a cat"]).shape == (1, 5)
    with pytest.raises(BothwaysError) as error:
        distil_static(model_folder, width=0)
    assert error.value.code == "out-of-range"


# ---------------------------------------------------------------------- use


def test_the_command(tmp_path: Path, model_folder: Path, run: Run) -> None:
    texts, out, vectors = tmp_path / "texts.txt", tmp_path / "static", tmp_path / "v.npy"
    texts.write_text("\n".join(TEXTS), encoding="utf-8")
    done = run("static", model_folder, "--out", out, "--texts", texts, "--width", 8, "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["width"] == 8
    np.testing.assert_array_equal(
        load_static(out).table, distil_static(model_folder, texts=TEXTS, width=8, device="cpu").table
    )
    done = run("encode", texts, "--model", out, "--out", vectors)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(vectors), encode(TEXTS, out))
    assert run("similar", texts, "--model", out).returncode == 0
    assert run("cluster", texts, "--model", out, "--k", 2).returncode == 0
    assert is_one_error(run("encode", texts, "--model", out, "--out", vectors, "--per", "token").stderr, "--per")
    assert is_one_error(run("fill", "a [MASK]", "--model", out).stderr, str(out))
    assert run("static", model_folder, "--out", out, "--device", "cpu").returncode == 0  # over the folder of before


def test_similar_pairs_of_a_static_model(static: StaticModel) -> None:
    pair = similar_pairs(["the cat sleeps", "cat the sleeps", "北京"], static)[0]
    assert (pair.first, pair.second) == (0, 1)
    assert pair.score == pytest.approx(1, abs=1e-6)


def test_what_a_static_model_is_not_for(folder: Path, model_folder: Path, tmp_path: Path) -> None:
    calls: dict[str, Callable[[], object]] = {
        "static-model": lambda: load(folder),
        "not-static": lambda: load_static(model_folder),
        "bad-combination": lambda: encode(["a"], folder, layers=1),
        "bad-input": lambda: encode("a text", folder),
    }
    for code, call in calls.items():
        with pytest.raises(BothwaysError) as error:
            call()
        assert error.value.code == code
    with pytest.raises(BothwaysError) as error:
        encode([3], folder)
    assert error.value.code == "bad-input"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"weights": None}, "no-weights"),
        ({"weights": {"other": torch.zeros(2, 2)}}, "unexpected-tensors"),
        ({"weights": {"embedding.weight": torch.zeros(2, 2)}}, "vocabulary-mismatch"),
        ({"tokenizer.json": "{"}, "damaged-file"),
        ({"modules.json": [{"type": "x.StaticEmbedding", "path": ""}, {"type": "x.Dense", "path": "1"}]}, "unsupported-modules"),
        ({"modules.json": [{"type": "x.StaticEmbedding", "path": "../x"}]}, "not-static"),
    ],
)  # fmt: skip
def test_damaged_folders(folder: Path, change: dict[str, object], code: str) -> None:
    for name, content in change.items():
        if name == "weights":
            (folder / "model.safetensors").unlink()
            if isinstance(content, dict):
                safetensors.torch.save_file(content, folder / "model.safetensors")
        else:
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BothwaysError) as error:
        load_static(folder)
    assert error.value.code == code


def test_search_with_a_static_model(static: StaticModel, folder: Path, tmp_path: Path, run: Run) -> None:
    """Each document is nearest to itself, and texts of any length are one passage."""
    corpus = tmp_path / "corpus.txt"
    lines = ["the black cat sleeps", "北京是中国的首都", "paris is in france", "the dog runs " * 60]
    corpus.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert run("search", "build", corpus, "--out", tmp_path / "index", "--model", folder).returncode == 0
    index = Index.open(tmp_path / "index")
    assert (len(index), index.passages, index.width) == (4, 4, static.width)
    vectors = static.encode([line.strip() for line in lines])
    for number, line in enumerate(lines):
        hit = index.search(line, 1)[0]
        assert hit.id == str(number + 1)
        assert hit.score == pytest.approx(1.0, abs=1e-6)
    hits = index.search("the cat in paris", 4)
    wanted = vectors @ static.encode(["the cat in paris"])[0]
    assert [hit.score for hit in hits] == pytest.approx(sorted(wanted.tolist(), reverse=True), abs=1e-6)
    corpus.write_text("a white house\n", encoding="utf-8")
    Index.open(tmp_path / "index", static).add(corpus)
    assert Index.open(tmp_path / "index").search("a white house", 1)[0].id == "5"
    with refused("bad-combination"):
        Index.build(corpus, tmp_path / "other", folder, query_prompt="query: ")


def test_vectors_of_a_static_model_are_evaluated(static: StaticModel, folder: Path, tmp_path: Path, run: Run) -> None:
    rows = [
        ("the cat", "a cat", 4.0),
        ("北京", "中国", 3.0),
        ("paris", "the dog", 0.5),
        ("a house", "the cat runs", 1.0),
    ]
    table = "".join(f"{first}\t{second}\t{score}\n" for first, second, score in rows)
    file = tmp_path / "sts.tsv"
    file.write_text("sentence1\tsentence2\tscore\n" + table, encoding="utf-8")
    found = run("evaluate-vectors", file, "--model", folder, "--json")
    firsts, seconds, golds = zip(*rows, strict=True)
    wanted = scipy.stats.spearmanr((static.encode(firsts) * static.encode(seconds)).sum(1), golds).statistic
    assert json.loads(found.stdout)["sets"][0]["scores"]["spearman"] == pytest.approx(wanted)
    with refused("bad-combination"):
        evaluate_vectors(file, static, prompt="query: ")
