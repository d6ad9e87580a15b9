"""Sentence vectors learn what sentence-transformers' losses teach: the same values, gradients and folders."""

import csv
import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses
from torch import Tensor

import bothways
from bothways.data.examples import RELATED, Related
from bothways.data.notes import Notes
from bothways.data.related import read_related
from bothways.model.checkpoint import save
from bothways.model.load import load
from bothways.progress import watch_nothing
from bothways.tasks.embed import SentenceVectors
from bothways.tasks.embed_settings import EmbedSet, EmbedSettings
from bothways.tasks.finetune import finetune
from bothways.tasks.folder import with_task
from bothways.tasks.recipe import FinetuneRecipe
from bothways.tasks.registry import make_task, plan_task
from bothways.tasks.task import Sample
from bothways.tasks.taught import Taught
from bothways.tasks.trainable import FineTuning
from bothways.text.columns import Columns
from bothways.text.tokenizer import Tokenizer
from bothways.train.optim import OptimSettings
from bothways.train.ranks import Ranks
from bothways.train.settings import LoraSettings
from helpers import WORDS, refused
from helpers.tasks import LIMIT, RELATED_TEXTS, base_model, quiet, recipe_for, start, take

PAIRS = [replace(example, texts=example.texts[:2]) for example in RELATED_TEXTS]
SCORED = [replace(example, gold=gold) for example, gold in zip(PAIRS, (0.9, 0.1, 0.5, 0.4), strict=True)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("base")
    base_model(folder, tokenizer, dropout=0.0, attention_dropout=0.0)
    return folder


def drawn(seed: int, count: int, words: int = 6) -> list[str]:
    draws = random.Random(seed)
    return [" ".join(draws.choices(WORDS, k=draws.randint(1, words))) for _ in range(count)]


def one_step(work: FineTuning, samples: Sequence[Sample] | None = None) -> float:
    """The loss of samples, by default all, its gradients left in the module."""
    step = work._step(samples if samples is not None else work.samples, Ranks())
    assert step.whole is not None
    work.module.train()
    vectors = torch.cat([work.module(micro.batch, micro.targets) for micro in step.micros])
    loss = work.task.step_loss(vectors, step.whole.targets) / step.counts["loss"]
    loss.backward()
    return float(loss.detach())


# ---------------------------------------------------------------------- the judge


def their_loss(name: str, model: SentenceTransformer) -> Any:
    if name == "matryoshka":
        return losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model), [16, 8])
    makers: dict[str, Any] = {
        "in-batch": losses.MultipleNegativesRankingLoss,
        "hard negatives": losses.MultipleNegativesRankingLoss,
        "symmetric": losses.MultipleNegativesSymmetricRankingLoss,
        "cosent": losses.CoSENTLoss,
        "cosine": losses.CosineSimilarityLoss,
        "triplet": losses.TripletLoss,
    }
    return makers[name](model)


CASES: dict[str, tuple[Sequence[Related], EmbedSettings]] = {
    "in-batch": (PAIRS, EmbedSettings()),
    "hard negatives": (RELATED_TEXTS, EmbedSettings()),
    "symmetric": (PAIRS, EmbedSettings(symmetric=True)),
    "cosent": (SCORED, EmbedSettings()),
    "cosine": (SCORED, EmbedSettings(loss="cosine")),
    "triplet": (RELATED_TEXTS, EmbedSettings(loss="triplet")),
    "matryoshka": (RELATED_TEXTS, EmbedSettings(matryoshka=(16, 8))),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients_are_those_of_sentence_transformers(
    name: str, pooling: Any, base: Path, tmp_path: Path
) -> None:
    examples, settings = CASES[name]
    work = start(recipe_for("embed", base, settings=replace(settings, pooling=pooling)), examples)
    save(work.module.model, tmp_path / "ours")
    ours = one_step(work)
    grads = {n: p.grad for n, p in work.module.named_parameters() if p.grad is not None}
    save(work.model_of(grads), tmp_path / "gradients")
    theirs = SentenceTransformer(str(tmp_path / "ours"), device="cpu").train()
    columns = [theirs.preprocess(list(column)) for column in zip(*(one.texts for one in examples), strict=True)]
    gold = torch.tensor([one.gold for one in examples]) if name in ("cosent", "cosine") else None
    loss = their_loss(name, theirs)(columns, gold)
    loss = loss if isinstance(loss, Tensor) else sum(loss.values())
    loss.backward()
    assert ours == pytest.approx(float(loss.detach()), abs=LIMIT)
    judged = {n: p.grad for n, p in theirs[0].model.named_parameters() if p.grad is not None}
    found = safetensors.torch.load_file(tmp_path / "gradients" / "model.safetensors")
    assert judged.keys() <= found.keys()
    assert sum(float(grad.abs().sum()) for grad in judged.values()) > 0.01
    for key, grad in judged.items():
        assert float((found[key] - grad).abs().max()) <= LIMIT * max(1.0, float(grad.abs().max())), key


def prepared(recipe: FinetuneRecipe, examples: Sequence[Related]) -> FineTuning:
    """The work that `finetune` would begin with, after its task has gathered what it needs."""
    examples = SentenceVectors.assemble(examples, recipe.settings, False)
    config, labels = plan_task("embed", recipe.settings, recipe.window, examples, 48)
    model = with_task(load(recipe.model.init), config, labels)
    task = make_task(model, recipe.settings, [])
    task.gather(model, examples, torch.device("cpu"), watch_nothing, 0)
    samples = [sample for item in task.encode(examples) for sample in task.samples(item)]
    return FineTuning(model, task, samples, [], batch=len(samples), micro_tokens=2_000, seed=0)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A bi-encoder of another width."""
    folder = tmp_path_factory.mktemp("teacher")
    base_model(folder / "base", tokenizer, 9, width=24, num_heads=2, dropout=0.0, attention_dropout=0.0)
    recipe = recipe_for("embed", folder / "base", run=quiet(steps=1))
    finetune(recipe, folder / "run", train=RELATED_TEXTS, dev=[])
    return folder / "run" / "model"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_guide_hides_what_it_finds_similar(base: Path, teacher: Path, tmp_path: Path) -> None:
    settings = EmbedSettings(guide=str(teacher), guide_margin=0.1)
    work = prepared(recipe_for("embed", base, settings=settings), RELATED_TEXTS)
    save(work.module.model, tmp_path / "ours")
    theirs, guide = (SentenceTransformer(str(folder), device="cpu") for folder in (tmp_path / "ours", teacher))
    judge = losses.GISTEmbedLoss(theirs.train(), guide, temperature=1 / 20, margin=0.1)
    columns = [theirs.preprocess(list(some)) for some in zip(*(one.texts for one in RELATED_TEXTS), strict=True)]
    plain = prepared(recipe_for("embed", base), RELATED_TEXTS)
    assert one_step(work) == pytest.approx(
        float(judge(columns, None).detach()), abs=2e-3
    )  # the guide in half precision
    assert abs(one_step(work) - one_step(plain)) > 1e-2


RELATIONS = [
    Related((a, b), gold)
    for (a, b), gold in zip(
        [one.texts[:2] for one in RELATED_TEXTS] + [("paris", "berlin"), ("the cat", "the dog")],
        ["entailment", "neutral", "contradiction", "entailment", "neutral", "contradiction"],
        strict=True,
    )
]


def test_the_classifier_of_sbert_learns_as_theirs(base: Path, tmp_path: Path) -> None:
    work = prepared(recipe_for("embed", base, settings=EmbedSettings(loss="softmax")), RELATIONS)
    save(work.module.model, tmp_path / "ours")
    theirs = SentenceTransformer(str(tmp_path / "ours"), device="cpu").train()
    judge = losses.SoftmaxLoss(theirs, theirs.get_embedding_dimension(), 3)
    assert work.module.model.sentence is not None
    own = work.module.model.sentence.training_only["relation"]
    assert isinstance(own, torch.nn.Linear)
    with torch.no_grad():
        own.bias.copy_(torch.tensor([0.1, -0.2, 0.3]))
    judge.classifier.load_state_dict(own.state_dict())
    names = ["contradiction", "entailment", "neutral"]
    gold = torch.tensor([names.index(str(one.gold)) for one in RELATIONS])
    loss = judge([theirs.preprocess([one.texts[i] for one in RELATIONS]) for i in (0, 1)], gold)
    loss.backward()
    assert take(work) == pytest.approx(float(loss.detach()), abs=LIMIT)
    assert own.weight.grad is not None
    assert torch.allclose(own.weight.grad, judge.classifier.weight.grad, atol=LIMIT)
    found = dict(work.module.model.encoder.named_parameters())["embeddings.tokens.weight"].grad
    wanted = dict(theirs[0].model.named_parameters())["embeddings.word_embeddings.weight"].grad
    assert found is not None
    assert float((found[: len(wanted)] - wanted[: len(found)]).abs().max()) <= LIMIT


def test_what_teachers_teach_are_their_vectors(teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bothways.engine.chunks._TEXTS", {"cpu": 7})
    texts = [*drawn(8, 40), "北京", *drawn(8, 40)]
    found = Taught([str(teacher), str(teacher)], texts, torch.device("cpu"), watch_nothing)
    vectors = bothways.encode(texts, teacher)
    assert [len(part) for part in found.parts] == [len(set(texts))] * 2
    assert found.width == 2 * vectors.shape[1]
    taught = found.finish(found.of([found.rows[text] for text in texts])).numpy()
    assert np.allclose(taught, np.concatenate([vectors, vectors], 1), atol=1e-3)


def test_vectors_of_a_teacher_are_kept_for_the_same_texts_and_model(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taught(*texts: str, center: float = 0) -> torch.Tensor:
        found = Taught([str(teacher)], texts, torch.device("cpu"), watch_nothing, str(tmp_path / "kept"), center)
        return found.finish(found.of(range(len(texts))))

    first = taught("the cat", "北京", "a dog sat")
    with monkeypatch.context() as patch:
        patch.setattr("bothways.tasks.taught._vectors", None)  # which would fail
        assert torch.equal(taught("the cat", "北京", "a dog sat"), first)
        centered = taught("the cat", "北京", "a dog sat", center=0.7)
        assert torch.allclose(centered, torch.nn.functional.normalize(first - 0.7 * first.mean(0), dim=1), atol=1e-3)
        with pytest.raises(TypeError):
            taught("the cat", "北京", "a dog")
    moved = taught("the cat北京", "a dog sat")  # the same letters, other texts
    assert not torch.equal(moved, first[:2])
    assert len(list((tmp_path / "kept").iterdir())) == 2


def test_texts_that_a_teacher_cuts_are_reported(teacher: Path) -> None:
    with pytest.warns(UserWarning, match="1 text cut"):
        Taught([str(teacher)], ["the cat " * 60, "北京"], torch.device("cpu"), watch_nothing)


def test_vectors_become_those_of_the_teachers(base: Path, teacher: Path, tmp_path: Path) -> None:
    """Any texts will do: here labelled pairs, of which each text is learned once."""
    texts = sorted(set(drawn(4, 60)))
    examples = [Related((a, b), 0.5) for a, b in zip(texts[::2], texts[1::2], strict=False)]
    settings = EmbedSettings(teachers=(str(teacher), str(teacher)))
    recipe = recipe_for("embed", base, settings=settings, run=quiet(steps=80, batch_size=16, save_every=40, keep_state=True), optim=OptimSettings(lr=3e-3))  # fmt: skip
    assert all(len(one.texts) == 1 for one in SentenceVectors.assemble(examples, settings, False))
    run(recipe, tmp_path / "run", examples)
    steps = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    lost = [row["loss"] for row in steps if "loss" in row]
    assert lost[-1] < 0.5 * lost[0]
    student, taught = (bothways.encode(texts, folder) for folder in (tmp_path / "run" / "model", teacher))
    before = bothways.encode(texts, base)
    before /= np.linalg.norm(before, axis=1, keepdims=True)
    upper = np.triu_indices(len(texts), 1)
    near, far = (float(np.abs((some @ some.T - taught @ taught.T)[upper]).mean()) for some in (student, before))
    assert near < 0.5 * far
    assert student.shape[1] == before.shape[1]  # the projection belongs to the training
    assert not (tmp_path / "run" / "model" / "training.safetensors").exists()
    assert (tmp_path / "run" / "checkpoints" / "step-00000080" / "model" / "training.safetensors").exists()


def test_translations_learn_the_vector_of_the_text_that_the_teacher_read(base: Path, teacher: Path) -> None:
    """Both texts of a row are taught the first one's vector; rows of other losses are read by no teacher."""
    rows = [replace(one, source="zh.tsv") for one in PAIRS]
    scored = [replace(one, source="sts.tsv") for one in SCORED]
    own = EmbedSet("sts.tsv", loss="cosent", weight=0.5)
    settings = EmbedSettings(teachers=(str(teacher),), translations=True, loss="distill", sets=(own,))
    work = prepared(recipe_for("embed", base, settings=settings), [*rows, *scored])
    assert isinstance(work.task, SentenceVectors)
    assert work.task.taught is not None
    assert set(work.task.taught.rows) == {one.texts[0] for one in PAIRS}
    step = work._step(work.samples[: len(PAIRS)], Ranks())
    assert step.whole is not None
    wanted = bothways.encode([one.texts[0] for one in PAIRS for _ in one.texts], teacher)
    assert np.allclose(work.task.taught.finish(step.whole.targets["taught"]).numpy(), wanted, atol=1e-3)
    alone = prepared(recipe_for("embed", base, settings=EmbedSettings(loss="cosent")), SCORED)
    assert one_step(work, work.samples[len(PAIRS) :]) == pytest.approx(0.5 * one_step(alone), rel=1e-5)


def test_a_distilled_run_goes_on_exactly_where_it_stopped(base: Path, teacher: Path, tmp_path: Path) -> None:
    examples = [Related((text,)) for text in sorted(set(drawn(6, 20)))]
    settings = EmbedSettings(teachers=(str(teacher),))
    recipe = recipe_for("embed", base, settings=settings, run=quiet(steps=6, batch_size=4, save_every=3))
    whole = run(recipe, tmp_path / "whole", examples)
    stop_at(4, recipe, tmp_path / "parts", examples)
    resumed = run(recipe, tmp_path / "parts", examples)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_sets_have_their_own_loss_weight_and_prompts(base: Path, tmp_path: Path) -> None:
    scored = [replace(one, source="sts.tsv") for one in SCORED]
    pairs = [replace(one, source="pairs.tsv") for one in RELATED_TEXTS]
    own = EmbedSet("sts.tsv", loss="cosine", weight=3.0)
    prompted = EmbedSet("pairs.tsv", query_prompt="paris ")
    work = prepared(recipe_for("embed", base, settings=EmbedSettings(sets=(own, prompted))), [*scored, *pairs])
    for step in work.task.epoch_steps(work.samples, 8, 0) or ():
        assert len({work.samples[i].target.source for i in step}) == 1
    halves = [work.samples[:4], work.samples[4:]]
    found = [one_step(work, some) for some in halves]
    alone = prepared(recipe_for("embed", base, settings=EmbedSettings(loss="cosine")), SCORED)
    assert found[0] == pytest.approx(3 * one_step(alone), rel=1e-5)
    asked = [replace(one, texts=("paris " + one.texts[0], *one.texts[1:])) for one in RELATED_TEXTS]
    assert found[1] == pytest.approx(one_step(prepared(recipe_for("embed", base), asked)), rel=1e-5)


# ---------------------------------------------------------------------- steps


def test_no_text_is_twice_in_a_step(base: Path) -> None:
    """Every example once in an epoch. Those that would repeat a text wait; what is left at last is hidden."""
    draws = random.Random(0)
    texts = drawn(1, 30)
    examples = [Related((draws.choice(texts), draws.choice(texts))) for _ in range(60)]
    work = start(recipe_for("embed", base), examples)
    for seed in range(3):
        steps = work.task.epoch_steps(work.samples, 8, seed)
        assert steps is not None
        assert sorted(np.concatenate(steps).tolist()) == list(range(60))
        assert max(map(len, steps)) <= 8
        repeated = [step for step in steps if len(set(_keys(work, step))) < len(_keys(work, step)) - _own(work, step)]
        assert len(repeated) <= 1  # the last one
        assert [list(step) for step in steps] == [list(s) for s in work.task.epoch_steps(work.samples, 8, seed) or ()]
    first, other = (work.task.epoch_steps(work.samples, 8, seed) or () for seed in (0, 7))
    assert [list(step) for step in first] != [list(step) for step in other]


def _keys(work: FineTuning, step: Any) -> list[int]:
    return [key for i in step for key in work.samples[i].target.keys]


def _own(work: FineTuning, step: Any) -> int:
    """Texts that an example has twice itself."""
    return sum(len(keys) - len(set(keys)) for i in step for keys in (work.samples[i].target.keys,))


def test_equal_texts_are_not_negatives_of_each_other(base: Path) -> None:
    """The loss of examples that share texts is that of a softmax without the shared ones."""
    examples = [
        Related(("the cat", "a cat runs")),
        Related(("the dog", "a cat runs")),  # the positive of another
        Related(("the cat", "the house")),  # the anchor of another
        Related(("paris", "the cat")),  # a positive that is an anchor
    ]
    work = start(recipe_for("embed", base), examples)
    ours = one_step(work)
    vectors = bothways.encode([text for one in examples for text in one.texts], work.module.model.eval(), long="cut")
    anchors, documents = vectors[::2], vectors[1::2]
    logits = 20 * anchors @ documents.T
    # Left out are: the own text and positive elsewhere, and positives of an equal anchor.
    allowed = np.array([[1, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]], bool)
    pairs = enumerate(zip(logits, allowed, strict=True))
    wanted = [np.log(np.exp(row[keep] - row[i]).sum()) for i, (row, keep) in pairs]
    assert ours == pytest.approx(np.mean(wanted), abs=1e-4)


def test_how_many_negatives_an_anchor_sees_is_said(base: Path, tmp_path: Path) -> None:
    said: list[str] = []
    recipe = recipe_for("embed", base, run=quiet(steps=1, batch_size=3))
    finetune(recipe, tmp_path / "run", train=RELATED_TEXTS, dev=[], say=said.append)
    assert any("told from 5 other texts" in words for words in said)  # 3 positives and 3 negatives, but not its own
    same = [Related(("the cat", text)) for text in drawn(5, 6)]
    finetune(recipe, tmp_path / "same", train=same, dev=[], say=said.append)
    assert "told from 0 other texts" in said[-1] or any("told from 0 other texts" in words for words in said)


# ---------------------------------------------------------------------- whole runs


def run(recipe: FinetuneRecipe, out: Path, train: Sequence[Any], dev: Sequence[Any] = ()) -> dict[str, Tensor]:
    finetune(recipe, out, train=train, dev=dev)
    return safetensors.torch.load_file(out / "model" / "model.safetensors")


@pytest.mark.parametrize(
    "settings", [EmbedSettings(), EmbedSettings(query_prompt="query: ", document_prompt="passage: ")]
)
def test_sentence_transformers_opens_the_folder(settings: EmbedSettings, base: Path, tmp_path: Path) -> None:
    recipe = recipe_for("embed", base, settings=settings)
    run(recipe, tmp_path / "run", RELATED_TEXTS, PAIRS)
    folder = tmp_path / "run" / "model"
    theirs = SentenceTransformer(str(folder), device="cpu")
    texts = [*drawn(3, 40), "北京", ""]
    for role in ("query", "document") if settings.query_prompt else (None,):
        ours = bothways.encode(texts, load(folder), prompt_name=role, long="cut")
        judged = theirs.encode(texts, prompt_name=role)
        assert float(np.abs(ours - judged).max()) < 1e-5
        assert np.allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    assert theirs.prompts["query"] == settings.query_prompt
    assert theirs.max_seq_length == 48
    again = bothways.evaluate([pairs_file(tmp_path)], folder)
    assert again.metric == "mrr@10"


def test_a_folder_says_whether_its_training_pooled_the_prompts(base: Path, tmp_path: Path) -> None:
    """A base that leaves its prompts out of the mean: vectors after training are those that were trained."""
    prompted = EmbedSettings(query_prompt="query: ", document_prompt="passage: ")
    run(recipe_for("embed", base, settings=prompted), tmp_path / "first", RELATED_TEXTS)
    model = load(tmp_path / "first" / "model")
    assert model.sentence is not None
    model.sentence.include_prompt = False
    save(model, tmp_path / "base")
    recipe = recipe_for("embed", tmp_path / "base", run=quiet(steps=1))
    run(recipe, tmp_path / "run", RELATED_TEXTS)
    folder = tmp_path / "run" / "model"
    anchor, positive = PAIRS[0].texts
    answer = bothways.Predictor.load(folder)([(anchor, positive)])[0]
    vectors = [
        bothways.encode([text], folder, prompt_name=role)[0]
        for text, role in ((anchor, "query"), (positive, "document"))
    ]
    assert answer["score"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=1e-5)
    assert SentenceTransformer(str(folder), device="cpu")[1].include_prompt


def pairs_file(folder: Path) -> str:
    path = folder / "pairs.jsonl"
    rows = [{"anchor": one.texts[0], "positive": one.texts[1]} for one in PAIRS]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return str(path)


def stop_at(step: int, recipe: FinetuneRecipe, out: Path, examples: Sequence[Related]) -> None:
    def stop(event: Any) -> None:
        if type(event).__name__ == "Stepped" and event.step == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(recipe, out, train=examples, dev=[], listen=[stop])


def test_a_run_goes_on_exactly_where_it_stopped(base: Path, tmp_path: Path) -> None:
    texts = drawn(9, 40)
    examples = [Related((a, b)) for a, b in zip(texts[::2], texts[1::2], strict=True)]
    recipe = recipe_for("embed", base, run=quiet(steps=8, batch_size=6, save_every=4))
    whole = run(recipe, tmp_path / "whole", examples)

    stop_at(6, recipe, tmp_path / "parts", examples)
    resumed = run(recipe, tmp_path / "parts", examples)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_lora_trains_an_adapter_of_a_bi_encoder(base: Path, tmp_path: Path) -> None:
    recipe = recipe_for("embed", base, lora=LoraSettings(rank=2))
    finetune(recipe, tmp_path / "run", train=RELATED_TEXTS, dev=[])
    folders = (base, tmp_path / "run" / "model", tmp_path / "run" / "adapter")
    before, after, adapted = (bothways.encode(["the cat", "北京"], folder) for folder in folders)
    assert np.allclose(after, adapted, atol=1e-6)
    assert float(np.abs(after - before / np.linalg.norm(before, axis=1, keepdims=True)).max()) > 1e-4


def test_training_brings_related_texts_together(base: Path, tmp_path: Path) -> None:
    """Words of one language to those of another: only training can tell which belong together."""
    english, chinese = ["cat", "dog", "house", "paris", "berlin", "germany"], list("北京中国法家")
    draws = random.Random(1)
    examples = []
    for _ in range(200):
        chosen = draws.choices(range(6), k=4)
        examples.append(Related((" ".join(english[i] for i in chosen), "".join(chinese[i] for i in chosen))))
    run_ = quiet(steps=60, batch_size=32)
    recipe = recipe_for("embed", base, run=run_, optim=OptimSettings(lr=3e-3))
    found = finetune(recipe, tmp_path / "run", train=examples[:160], dev=examples[160:])
    untrained = finetune(
        replace(recipe, optim=OptimSettings(lr=1e-9), run=replace(run_, steps=1)),
        tmp_path / "first",
        train=examples[:160],
        dev=examples[160:],
    )
    assert found.scores["mrr@10"] > untrained.scores["mrr@10"] + 0.2


# ---------------------------------------------------------------------- files


def rows_of(path: Path, **columns: Any) -> list[Related]:
    return list(read_related([str(path)], Columns(**columns), Notes()))


@pytest.mark.parametrize(("name", "content"), [("a.txt", "one\ntwo\n"), ("a.tsv", "text\none\n")])
def test_texts_alone_are_no_pairs_to_compare(name: str, content: str, tmp_path: Path) -> None:
    """Each was compared with itself: an accuracy of 1."""
    (tmp_path / name).write_text(content)
    assert [one.texts for one in rows_of(tmp_path / name)] == [
        (line, line) for line in content.split() if line != "text"
    ]
    with refused("no-pairs", names=name):
        list(SentenceVectors.read([str(tmp_path / name)], Columns(), Notes(), SentenceVectors.Options()))
    with refused("no-pairs", names=name):
        list(SentenceVectors.read_inputs(str(tmp_path / name), Columns(), Notes()))


def test_a_label_belongs_to_two_texts(tmp_path: Path) -> None:
    """A label of sentiment was called no score."""
    (tmp_path / "a.tsv").write_text("text\tlabel\nlovely\tpositive\n")
    with refused("no-pairs"):
        rows_of(tmp_path / "a.tsv")


def test_files_of_all_kinds_are_read(tmp_path: Path) -> None:
    jsonl = tmp_path / "several.jsonl"
    jsonl.write_text(json.dumps({"query": "a", "pos": ["b", "c"], "neg": ["d", "e"]}) + "\n")
    assert [one.texts for one in rows_of(jsonl)] == [("a", "b", "d", "e"), ("a", "c", "d", "e")]
    table = tmp_path / "sts.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([["sentence1", "sentence2", "score"], ["一只猫", "a cat", "4.5"], ["x", "y", "0"]])
    assert [(one.texts, one.gold) for one in rows_of(table)] == [(("一只猫", "a cat"), 4.5), (("x", "y"), 0.0)]
    nli = tmp_path / "nli.tsv"
    nli.write_text("premise\thypothesis\tlabel\np\th\tentailment\np\tn\tcontradiction\np\tm\tneutral\nq\tr\t-\n")
    assert [one.gold for one in rows_of(nli)] == ["entailment", "contradiction", "neutral", None]
    assert [one.texts for one in SentenceVectors.assemble(rows_of(nli), EmbedSettings(), False)] == [("p", "h", "n")]
    lines = tmp_path / "texts.txt"
    lines.write_text("the cat\n\n北京\n")
    assert [(one.texts, one.gold) for one in rows_of(lines)] == [
        (("the cat", "the cat"), RELATED),
        (("北京", "北京"), RELATED),
    ]
    odd = tmp_path / "odd.tsv"
    odd.write_text("left\tright\tthird\na\tb\tc\n")
    assert rows_of(odd, text="right", pair="third")[0].texts == ("b", "c")
    with refused("ambiguous-column"):
        rows_of(odd)


def test_wrong_combinations_are_refused(base: Path, tmp_path: Path) -> None:
    for examples, settings, code in (
        (PAIRS, EmbedSettings(loss="cosent"), "bad-combination"),
        (SCORED, EmbedSettings(loss="in-batch"), "bad-combination"),
        ([*PAIRS, *SCORED], EmbedSettings(), "mixed-golds"),
        (PAIRS, EmbedSettings(sets=(EmbedSet("no-such.tsv"),)), "no-such-file"),
        (PAIRS, EmbedSettings(matryoshka=(8, 1_000)), "out-of-range"),
    ):
        with refused(code):
            finetune(recipe_for("embed", base, settings=settings), tmp_path / code, train=examples, dev=[])
    useless: list[dict[str, Any]] = [
        {"guide": "a", "teachers": ("b",)},
        {"teachers": ("b",), "loss": "triplet"},
        {"guide_margin": 0.1},
        {"margin": 1.0},
        {"similarity": 1.0},
        {"scale": 5.0, "loss": "triplet"},
        {"symmetric": True, "loss": "triplet"},
    ]
    for wrong in useless:
        with refused("bad-combination"):
            EmbedSettings(**wrong)
    strange: list[dict[str, Any]] = [
        {"scale": -1.0},
        {"matryoshka": (16, 0)},
        {"matryoshka": (-5,)},
        {"similarity": -1},
    ]
    for values in strange:
        with refused("out-of-range"):
            EmbedSettings(**values)
    graded = [replace(example, gold=5.0) for example in SCORED]
    with refused("out-of-range", names="5: divide the scores"):
        finetune(recipe_for("embed", base, settings=EmbedSettings(loss="cosine")), tmp_path / "c", train=graded, dev=[])
    with refused("no-teacher"):
        EmbedSettings(sets=(EmbedSet("pairs.tsv", loss="distill"),))


@pytest.mark.parametrize(
    ("rows", "golds"),
    [
        ([("premise", "hypothesis", "label"), ("p", "h", "蕴含"), ("p", "n", "矛盾")], ["entailment", "contradiction"]),
        ([("sentence1", "sentence2", "label"), ("p", "h", "not_entailment")], ["not_entailment"]),
        ([("sentence1", "sentence2", "score"), ("p", "h", "nan"), ("p", "h", "0.5")], [None, 0.5]),
        ([("sentence1", "sentence2", "score"), ("p", "h", "inf")], "bad-label"),
        ([("sentence1", "sentence2", "label"), ("p", "h", "yes")], "bad-label"),
        ([("question1", "question2", "is_duplicate"), ("p", "h", "not duplicate")], "bad-label"),
        ([("premise", "hypothesis", "label"), ("p", "h", "2")], "bad-label"),
    ],
)
def test_labels_are_scores_or_relations(rows: list[tuple[str, ...]], golds: Any, tmp_path: Path) -> None:
    """Any other label would be ignored, and its pair taken for a positive one."""
    file = tmp_path / "rows.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    if isinstance(golds, str):
        with refused(golds, names="line 2"):
            rows_of(file)
    else:
        assert [one.gold for one in rows_of(file)] == golds


def test_empty_cells_are_no_negatives(tmp_path: Path) -> None:
    rows = [
        {"anchor": "a", "positive": "b", "negative": "", "negative_2": "c"},
        {"anchor": "d", "positive": "e", "negative": ["", "f"], "negative_2": None},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [one.texts for one in rows_of(file)] == [("a", "b", "c"), ("d", "e", "f")]


def test_a_negative_of_all_rows_does_not_divide_the_steps(base: Path) -> None:
    firsts, seconds = list(dict.fromkeys(drawn(1, 40))), list(dict.fromkeys(drawn(2, 40)))
    shared = [Related((a, b, "the same text")) for a, b in zip(firsts[:12], seconds[:12], strict=True)]
    work = prepared(recipe_for("embed", base), shared)
    assert max(len(step) for step in work.task.epoch_steps(work.samples, 4, 0) or ()) == 4
    assert len(work.task.epoch_steps(work.samples, 4, 0) or ()) <= 4


def test_texts_alone_need_dropout(base: Path, tmp_path: Path) -> None:
    alone = [Related((text, text)) for text in drawn(4, 6)]
    with refused("no-dropout", names=r"model\.dropout=0\.1"):
        finetune(recipe_for("embed", base), tmp_path / "run", train=alone, dev=[])


def test_rows_that_make_no_example_are_said(base: Path, tmp_path: Path) -> None:
    golds = ("entailment", "contradiction", "neutral")
    rows = [Related(("p", text), gold) for text, gold in zip(("a", "b", "c"), golds, strict=True)]
    said: list[str] = []
    finetune(recipe_for("embed", base), tmp_path / "run", train=rows, dev=[], say=said.append)
    assert "3 rows of training data make 1 example" in said
    with refused("no-data", names="none of the 1 rows"):
        finetune(recipe_for("embed", base), tmp_path / "none", train=rows[1:2], dev=[])


def test_scored_pairs_are_evaluated_with_any_bi_encoder(base: Path, tmp_path: Path) -> None:
    folder = finetune(recipe_for("embed", base), tmp_path / "run", train=PAIRS, dev=[]).folder
    file = tmp_path / "sts.tsv"
    file.write_text(
        "sentence1\tsentence2\tscore\nthe cat\ta cat\t4\nparis\tthe dog\t1\n北京\t中国\t3\n", encoding="utf-8"
    )
    found = bothways.evaluate([str(file)], folder)
    assert found.metric == "spearman"
    assert -1 <= found.scores["spearman"] <= 1


def test_only_entailed_hypotheses_count_as_positives(base: Path, tmp_path: Path) -> None:
    """A file of natural language inference is scored as its triplets are."""
    nli, same = tmp_path / "nli.tsv", tmp_path / "triplets.jsonl"
    triplets = list(zip(*(drawn(seed, 10) for seed in range(4)), strict=True))
    rows = ["premise\thypothesis\tlabel"]
    for anchor, *others in triplets:
        labels = ("entailment", "contradiction", "neutral")
        rows += [f"{anchor}\t{text}\t{label}" for text, label in zip(others, labels, strict=True)]
    nli.write_text("\n".join(rows) + "\n")
    named = [{"anchor": a, "positive": b, "negative": c} for a, b, c, _ in triplets]
    same.write_text("".join(json.dumps(row) + "\n" for row in named))
    folder = finetune(recipe_for("embed", base), tmp_path / "run", train=PAIRS, dev=[]).folder
    found, expected = (bothways.evaluate([str(file)], folder) for file in (nli, same))
    assert found.examples == 10
    assert found.scores == expected.scores


def test_dropout_makes_two_views_of_a_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """SimCSE: a file of texts alone. Without dropout both views are equal, and the loss is lower."""
    found = []
    for rate in (0.0, 0.4):
        base_model(tmp_path / f"base-{rate}", tokenizer, dropout=rate, attention_dropout=rate)
        examples = [Related((text, text)) for text in sorted(set(drawn(2, 12)))]
        work = start(recipe_for("embed", tmp_path / f"base-{rate}"), examples)
        torch.manual_seed(0)
        found.append(one_step(work))
        counted = Counter(_keys(work, range(len(work.samples))))
        assert set(counted.values()) == {2}
    assert found[0] < found[1]


def test_scored_pairs_may_be_equal_without_dropout(base: Path, tmp_path: Path) -> None:
    """Only in-batch negatives would learn nothing from a text and itself."""
    rows = [Related(("the cat", "the cat"), 1.0), Related(("the cat", "paris"), 0.0)]
    assert finetune(recipe_for("embed", base, run=quiet(steps=1)), tmp_path / "run", train=rows, dev=[]).complete
