"""The training loop: exact resume, exact accumulation, time, checkpoints, interruptions."""

import itertools
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.load import load
from bothways.pretraining.pretrain import Pretrained, pretrain
from bothways.pretraining.recipe import write_recipe
from bothways.train.fit import _Loop
from bothways.train.optim import OptimSettings
from bothways.train.protocol import Evaluated, Event, Saved, Started, Stepped
from helpers import refused
from helpers.runs import PHASES, calm, losses, recipe, run_until


def weights(out: Path) -> Mapping[str, torch.Tensor]:
    return load(out / "model").state_dict()


# ---------------------------------------------------------------------- resume


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_was_stopped_goes_on_bit_for_bit(packed: Path, tmp_path: Path, optimizer: Any) -> None:
    """At several random steps, in both phases, twice in one run; dropout on."""
    plan = recipe(packed, save_every=3)
    plan = replace(plan, optim=replace(plan.optim, name=optimizer))
    pretrain(plan, tmp_path / "whole")
    assert list(losses(tmp_path / "whole")) == list(range(1, 21))
    expected = weights(tmp_path / "whole")
    for seed in range(3):
        parts = tmp_path / f"parts {seed}"
        for step in sorted(random.Random(seed).sample(range(4, 20), 2)):
            run_until(plan, parts, step)
        pretrain(plan, parts)
        assert losses(parts) == losses(tmp_path / "whole"), seed
        found = weights(parts)
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items()), seed


@pytest.mark.slow
def test_a_killed_process_goes_on_bit_for_bit(packed: Path, tmp_path: Path) -> None:
    """kill -9 while it trains, the same command again."""
    settings = {"run.steps": 60, "run.save_every": 4, "run.device": "cpu", "data.valid_sequences": 20}
    command = [sys.executable, "-m", "bothways", "pretrain", str(recipe_file(tmp_path, packed))]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, capture_output=True)
    out = tmp_path / "parts"
    for checkpoint in (8, 32):
        child = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_for(lambda n=checkpoint, c=child: any(out.glob(f"checkpoints/step-*{n:03}")) or c.poll() is not None)
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not (out / "model").exists()
    done = subprocess.run([*command, "--out", str(out)], check=True, capture_output=True, text=True)
    assert "step" in done.stderr
    assert losses(out) == losses(tmp_path / "whole")
    assert list(out.glob("checkpoints/.*")) == []


def recipe_file(folder: Path, packed: Path) -> Path:
    path = folder / "recipe.toml"
    path.write_text(write_recipe(recipe(packed)), encoding="utf-8")
    return path


def wait_for(happened: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_resume_reads_no_earlier_data(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In O(1): the first sequence that is planned after a resume is the next one."""
    from bothways.pretraining.loader import Mixture

    plan = recipe(packed, save_every=6)
    run_until(plan, tmp_path / "run", 8)
    at = json.loads((tmp_path / "run/checkpoints/step-00000006/state.json").read_text())["index"]
    assert at > 0
    asked: list[int] = []
    original = Mixture.plan

    def spy(self: Mixture, index: Any, static: int = 0) -> Any:
        asked.append(int(index[0]))
        return original(self, index, static)

    monkeypatch.setattr(Mixture, "plan", spy)
    run_until(plan, tmp_path / "run", 7)
    assert next(i for i in asked if i > 0) == at  # those that begin at 0 measure the mean length


def test_another_recipe_does_not_go_on(packed: Path, tmp_path: Path) -> None:
    run_until(recipe(packed, save_every=3), tmp_path / "run", 5)
    other = recipe(packed, save_every=3)
    with refused("other-settings", tmp_path / "run"):
        pretrain(replace(other, optim=OptimSettings(lr=2e-3)), tmp_path / "run")
    assert pretrain(recipe(packed, save_every=7, keep=1), tmp_path / "run").complete  # this changes no result


FLAT = OptimSettings(lr=1e-3, warmup=3, schedule="wsd", cooldown=0.5)


@pytest.mark.parametrize("length", [12, 40])
def test_a_flat_run_may_become_shorter_or_longer(packed: Path, tmp_path: Path, length: int) -> None:
    """And is then the run that had this length from the beginning."""
    plan = replace(recipe(packed, steps=20, save_every=5), optim=FLAT, phases=PHASES[:1])
    run_until(plan, tmp_path / "parts", 6)
    other = replace(plan, run=replace(plan.run, steps=length))
    pretrain(other, tmp_path / "parts")
    pretrain(other, tmp_path / "whole")
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert f"steps = {length}" in (tmp_path / "parts/recipe.toml").read_text()


@pytest.mark.parametrize(
    ("steps", "changed", "length", "code", "at"),
    [
        (11, {"optim": replace(FLAT, schedule="linear")}, 40, "lr-jump", 10),
        (18, {}, 40, "lr-jump", 15),
        (20, {}, 40, "state-dropped", 20),
        (6, {}, 4, "run-over", 5),
        (11, {"phases": (replace(PHASES[0], share=0.4), PHASES[1])}, 40, "phase-jump", 10),
    ],
    ids=["linear", "cooling", "over", "behind", "phase"],
)
def test_a_length_that_would_change_the_schedule_is_refused(
    packed: Path, tmp_path: Path, steps: int, changed: dict[str, Any], length: int, code: str, at: int
) -> None:
    settings: dict[str, Any] = {"optim": FLAT, "phases": PHASES[:1]} | changed
    plan = replace(recipe(packed, steps=20, save_every=5), **settings)
    pretrain(plan, tmp_path / "run") if steps == 20 else run_until(plan, tmp_path / "run", steps)
    before = (tmp_path / "run/recipe.toml").read_text()
    with refused(code, at):
        pretrain(replace(plan, run=replace(plan.run, steps=length)), tmp_path / "run")
    assert (tmp_path / "run/recipe.toml").read_text() == before


def test_a_finished_run_does_nothing_more(packed: Path, tmp_path: Path) -> None:
    plan = recipe(packed, steps=4)
    pretrain(plan, tmp_path / "run")
    before = (tmp_path / "run/metrics.jsonl").read_bytes()
    seen: list[Event] = []
    assert pretrain(plan, tmp_path / "run", listen=[seen.append]).complete
    assert [type(event).__name__ for event in seen] == ["Started", "Finished"]
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == before


# ---------------------------------------------------------------------- exactness


def test_accumulation_is_exact(packed: Path, tmp_path: Path) -> None:
    """A step in several passes is the same step: losses are divided by the terms of the whole step."""
    plan = calm(recipe(packed))
    pretrain(plan, tmp_path / "whole")
    for micro in (64, 100, 200):
        pretrain(replace(plan, run=replace(plan.run, micro_tokens=micro)), tmp_path / str(micro))
        assert losses(tmp_path / str(micro)) == pytest.approx(losses(tmp_path / "whole"), abs=1e-5), micro


def test_recomputing_activations_changes_nothing(packed: Path, tmp_path: Path) -> None:
    plan = recipe(packed, steps=6)
    pretrain(plan, tmp_path / "plain")
    pretrain(replace(plan, run=replace(plan.run, gradient_checkpointing=True)), tmp_path / "again")
    assert losses(tmp_path / "plain") == losses(tmp_path / "again")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # torch's compiler warns about itself
def test_compiled_training_is_the_same_training(packed: Path, tmp_path: Path) -> None:
    """The compiler changes the losses by rounding only. Full sequences: on a CPU, ragged ones are compiled piecemeal."""
    plan = calm(recipe(packed, steps=3))
    plan = replace(plan, model=replace(plan.model, layers=1))  # the compiler takes as long again for every other
    plan = replace(plan, objectives=("mlm",), data=replace(plan.data, rows="stream"), phases=PHASES[:1])
    pretrain(plan, tmp_path / "plain")
    pretrain(replace(plan, run=replace(plan.run, compile=True)), tmp_path / "compiled")
    for step, loss in losses(tmp_path / "plain").items():
        assert losses(tmp_path / "compiled")[step] == pytest.approx(loss, abs=1e-4), step


@pytest.mark.parametrize("falls_at", [0, 5])
def test_nothing_is_compiled_while_the_clock_runs(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, falls_at: int
) -> None:
    """In neither phase, to train or to evaluate, nor when a run goes on: all that makes the compiler work was seen."""
    seen: list[tuple[Any, ...]] = []

    def watched(module: torch.nn.Module, **_: Any) -> Any:
        def call(batch: Batch, targets: Mapping[str, torch.Tensor]) -> Any:
            shapes = tuple((name, *value.shape) for name, value in targets.items())
            seen.append((module.training, torch.is_grad_enabled(), *batch.ids.shape, *batch.cu_seqlens.shape, *shapes))
            return module(batch, targets)

        return call

    monkeypatch.setattr(torch, "compile", watched)
    before: list[set[Any]] = []
    plan = recipe(packed, compile=True, evaluate_every=4, save_every=2)
    if falls_at:
        run_until(plan, tmp_path / "run", falls_at)
        seen.clear()
    agree = _Loop._agree

    def first_look_at_the_clock(loop: _Loop, interrupted: Any) -> Any:
        before.append(set(seen))
        return agree(loop, interrupted)

    monkeypatch.setattr(_Loop, "_agree", first_look_at_the_clock)
    pretrain(plan, tmp_path / "run")
    assert len(before[0]) == 4
    assert set(seen) == before[0]


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without 16-bit products falls back
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(packed: Path, tmp_path: Path, precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # A CPU that falls back writes a stack trace for every product, so that evaluation takes minutes.
    monkeypatch.setattr("bothways.pretraining.trainable.pseudo_perplexity", lambda *_: 1.0)
    plan = calm(recipe(packed, steps=4))
    plan = replace(plan, data=replace(plan.data, valid_sequences=4))
    pretrain(plan, tmp_path / "full")
    pretrain(replace(plan, run=replace(plan.run, precision=precision)), tmp_path / "half")
    full, half = losses(tmp_path / "full"), losses(tmp_path / "half")
    assert half != full
    assert half[4] == pytest.approx(full[4], abs=0.1)


def test_it_learns(packed: Path, tmp_path: Path) -> None:
    plan = calm(recipe(packed, steps=150))
    plan = replace(plan, optim=OptimSettings(lr=5e-3), phases=PHASES[:1])
    result = pretrain(plan, tmp_path / "run")
    assert result.after["mlm_loss"] < result.before["mlm_loss"] - 1
    assert result.after["mlm_accuracy"] > result.before["mlm_accuracy"]
    for source in ("first", "second"):
        assert result.after[f"{source}/pseudo_perplexity"] < math.exp(result.before[f"{source}/mlm_loss"])


def test_pseudo_perplexity_takes_no_more_sequences_than_the_evaluation(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token costs a sequence: whoever evaluates on little text wants to be done soon."""
    asked: list[int] = []

    def count(*given: Any) -> float:
        asked.append(given[-1])
        return 1.0

    monkeypatch.setattr("bothways.pretraining.trainable.pseudo_perplexity", count)
    plan = calm(recipe(packed, steps=1))
    pretrain(replace(plan, data=replace(plan.data, valid_sequences=4)), tmp_path / "few")
    assert asked == [4, 4]  # of either source
    pretrain(replace(plan, data=replace(plan.data, valid_sequences=10**6)), tmp_path / "all")
    assert min(asked[2:]) > 4
    monkeypatch.setattr("bothways.pretraining.trainable.TOKENS", 6)
    pretrain(plan, tmp_path / "many")
    assert asked[4:] == [3, 3]


# ---------------------------------------------------------------------- time


def test_minutes_end_on_time_with_the_schedule_finished(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock of our own: every look at it takes a second."""
    ticks = iter(range(100_000))
    monkeypatch.setattr("bothways.train.fit.time.monotonic", lambda: float(next(ticks)))
    plan = recipe(packed, steps=0, minutes=2.0, save_minutes=0.0)
    seen: list[Event] = []
    pretrain(plan, tmp_path / "run", listen=[seen.append])
    steps = [event for event in seen if isinstance(event, Stepped)]
    assert 10 < len(steps) < 120
    assert {event.phase for event in steps} == {0, 1}
    assert steps[-1].lr < 0.1 * max(event.lr for event in steps)
    assert all(a.done < b.done for a, b in itertools.pairwise(steps))
    assert 110 < steps[-1].elapsed < 135


def test_phases_come_in_their_shares(packed: Path, tmp_path: Path) -> None:
    seen: list[Event] = []
    pretrain(recipe(packed, steps=20), tmp_path / "run", listen=[seen.append])
    phases = [event.phase for event in seen if isinstance(event, Stepped)]
    assert phases == [0] * 12 + [1] * 8


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize(("phases", "kept", "best"), [(1, [8, 16, 20], (1.0, 8)), (2, [16, 20], (2.2, 20))])
def test_keep_bounds_the_checkpoints_and_spares_the_best_of_its_phase(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phases: int, kept: list[int], best: Any
) -> None:
    """The second phase begins after step 12."""
    from bothways.pretraining.trainable import Pretraining

    scores = {0: 9.0, 4: 3.0, 8: 1.0, 12: 2.0, 16: 2.5, 20: 2.2}
    steps = iter(scores.values())
    monkeypatch.setattr(Pretraining, "evaluate", lambda *_: {"loss": next(steps)})
    pretrain(replace(recipe(packed, save_every=4, keep=2, keep_state=True), phases=PHASES[:phases]), tmp_path / "run")
    found = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert found == [f"step-{step:08}" for step in kept]
    last = json.loads((tmp_path / "run/checkpoints/step-00000020/state.json").read_text())
    assert (last["best"], last["best_step"]) == best


def test_a_full_disk_stops_with_the_last_checkpoint_whole(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = recipe(packed, save_every=5)
    write = safetensors.torch.save_file

    def full(tensors: Any, path: Any, *rest: Any, **more: Any) -> None:
        if "step-00000010" in str(path):
            raise OSError(28, os.strerror(28))
        write(tensors, path, *rest, **more)

    pretrain(plan, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(safetensors.torch, "save_file", full)
        with pytest.raises(BothwaysError, match=r"No space left.*step-00000005") as caught:
            pretrain(plan, tmp_path / "run")
    assert (caught.value.code, caught.value.value) == ("unwritable", tmp_path / "run/checkpoints/step-00000010")
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["step-00000005"]
    pretrain(plan, tmp_path / "run")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


def test_a_damaged_checkpoint_is_named(packed: Path, tmp_path: Path) -> None:
    plan = recipe(packed, save_every=5)
    run_until(plan, tmp_path / "run", 7)
    (tmp_path / "run/checkpoints/step-00000005/optimizer.safetensors").write_bytes(b"")
    with refused("damaged-file", tmp_path / "run/checkpoints/step-00000005"):
        pretrain(plan, tmp_path / "run")


def test_a_checkpoint_opens_as_a_model(packed: Path, tmp_path: Path) -> None:
    pretrain(recipe(packed, steps=4, keep_state=True), tmp_path / "run")
    saved = load(tmp_path / "run/checkpoints/step-00000004/model")
    assert saved.config.heads == ("pooler", "masked", "next")
    assert all(
        torch.equal(a, b) for a, b in zip(saved.parameters(), load(tmp_path / "run/model").parameters(), strict=True)
    )


# ---------------------------------------------------------------------- interruptions


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_stops(packed: Path, tmp_path: Path, kind: signal.Signals) -> None:
    plan = recipe(packed)
    handlers = signal.getsignal(kind)

    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 7:
            os.kill(os.getpid(), kind)

    stopped = pretrain(plan, tmp_path / "run", listen=[interrupt])
    assert isinstance(stopped, Pretrained)
    assert not stopped.complete
    assert 7 <= stopped.steps <= 8
    assert signal.getsignal(kind) is handlers
    pretrain(plan, tmp_path / "run")
    pretrain(plan, tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.slow
def test_the_command_says_how_to_go_on(packed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bothways", "pretrain", str(recipe_file(tmp_path, packed))]
    command += ["--set=run.steps=5000", "--out", str(tmp_path / "run")]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    log = tmp_path / "run/metrics.jsonl"
    wait_for(lambda: (log.exists() and log.stat().st_size > 500) or child.poll() is not None)
    child.send_signal(signal.SIGTERM)
    said = child.communicate(timeout=60)[1]
    assert child.returncode == 130
    assert f"bothways pretrain {tmp_path}" in said
    assert "Traceback" not in said
    assert len(list((tmp_path / "run/checkpoints").iterdir())) == 1


def test_nonsense_in_the_loss_stops_the_run(packed: Path, tmp_path: Path) -> None:
    plan = recipe(packed, steps=40, save_every=1)
    plan = replace(plan, optim=OptimSettings(lr=1e30, clip=0.0, warmup=0))
    with pytest.raises(BothwaysError, match=r"optim\.lr") as caught:
        pretrain(plan, tmp_path / "run")
    assert caught.value.code in ("diverged", "not-finite")
    for path in (tmp_path / "run/checkpoints").iterdir():
        assert all(bool(torch.isfinite(p).all()) for p in load(path / "model").parameters())


def test_events_tell_what_happened(packed: Path, tmp_path: Path) -> None:
    seen: list[Event] = []
    pretrain(recipe(packed, steps=6, evaluate_every=2, save_every=3), tmp_path / "run", listen=[seen.append])
    assert isinstance(seen[0], Started)
    words = load(tmp_path / "run/model").config.encoder.vocab_size
    for e in (e for e in seen if isinstance(e, Stepped)):
        phase = PHASES[e.phase]
        # Two layers of width 32 and 64, and the head, for the tokens asked for; then what looks at each other.
        weights = 2 * (4 * 32 * 32 + 2 * 32 * 64) + (phase.rate or 0.15) * 32 * (32 + words)
        assert e.flops == pytest.approx(e.speed * (6 * weights + 12 * 2 * 32 * phase.length))
    assert [e.step for e in seen if isinstance(e, Stepped)] == [1, 2, 3, 4, 5, 6]
    assert [e.step for e in seen if isinstance(e, Evaluated)] == [0, 2, 3, 4, 6]
    assert [e.step for e in seen if isinstance(e, Saved)] == [3, 6]
    first = next(e for e in seen if isinstance(e, Stepped))
    assert first.tokens > 0
    assert first.speed > 0
    assert first.loss == pytest.approx(sum(first.losses.values()))
    assert set(first.losses) == {"mlm", "nsp"}
