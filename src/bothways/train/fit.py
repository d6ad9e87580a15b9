"""The training loop. It knows neither objectives nor tasks, only the `Trainable` protocol.

`fit` is a generator of events: the console, the log, the plot and the health monitor are listeners. The random seed is
set from (seed, step, rank) before every forward pass, and data are a function of their index, so a killed run resumes
bit for bit.
"""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bothways.errors import BothwaysError
from bothways.hash_rng import mix
from bothways.model.activations import without_fast_gelu
from bothways.model.device import dtype_of
from bothways.prefetch import prefetch
from bothways.train.fp32_master import MasterWeights
from bothways.train.machine import deterministic, interruptible, peak_flops, pick_device, pick_precision
from bothways.train.optim import OptimSettings, lr_factor, make_optimizers, set_lr
from bothways.train.protocol import (
    Evaluated,
    Event,
    Finished,
    MicroBatch,
    Saved,
    Started,
    Step,
    Stepped,
    Stopping,
    Trainable,
    WholeStep,
    phase_at,
    to_device,
)
from bothways.train.ranks import Ranks, full_tensor, no_gradient_sync, parallelize
from bothways.train.settings import RunSettings
from bothways.train.state import Checkpoints, State, collect, restore


def fit(work: Trainable, run: RunSettings, optim: OptimSettings, out: Path, ranks: Ranks) -> Iterator[Event]:
    """Train for the steps or minutes of `run`. If `out` has checkpoints, resume from the latest."""
    loop = _Loop(work, run, optim, out, ranks)
    with deterministic(run.deterministic), interruptible() as interrupted, closing(loop):
        yield from loop.run_all(interrupted)


class _Loop:
    def __init__(self, work: Trainable, run: RunSettings, optim: OptimSettings, out: Path, ranks: Ranks) -> None:
        self.work, self.run, self.optim, self.ranks = work, run, optim, ranks
        self.device = pick_device(run.device, ranks)
        self.precision = pick_precision(run.precision, self.device)
        self.static_shapes = run.compile if run.compile is not None else self.device.type == "cuda"
        self.checkpoints = Checkpoints(out, run.keep)
        # In bf16 on a GPU the module itself is bf16; elsewhere autocast chooses for each operation.
        half = torch.bfloat16 if self.precision == "bf16" and self.device.type == "cuda" else None
        self.autocast = self.precision != "fp32" and half is None
        module, splits = work.module.to(self.device), ranks.size > 1 and run.parallel == "fsdp"
        if splits and optim.name == "muon":
            raise BothwaysError(
                "optim.name = 'muon' needs whole matrices, but fsdp shards them: set run.parallel to 'ddp'",
                "muon-with-fsdp",
                run.parallel,
            )
        self.weights = MasterWeights(module, None if splits else half)
        self.module = parallelize(module, work.blocks(), ranks, run.parallel, half)
        if splits:  # FSDP2 replaces the module's parameters
            self.weights = MasterWeights(self.module, None)
        if self.static_shapes and work.dynamic_shapes:
            without_fast_gelu(self.module)
        self.call = torch.compile(self.module, dynamic=work.dynamic_shapes) if self.static_shapes else self.module
        self.parameters = list(self.weights.trained.values())
        self.optimizers = make_optimizers(self.weights.trained, optim)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        self.shares = self._to_device(list(work.losses.values()))
        self.state = State()
        self.feed: prefetch[Step] | None = None
        self.pending: list[tuple[Stepped, Tensor, torch.cuda.Event | None]] = []
        """Steps not yet reported: their losses and gradient norm, on the CPU once the event has happened."""
        self.score: tuple[int, float] | None = None
        """The step last evaluated, and its selection loss."""

    def run_all(self, interrupted: threading.Event) -> Iterator[Event]:
        self._resume()
        count = sum(p.numel() for p in self.parameters)
        peak = peak_flops(self.device, self.precision) * self.ranks.size
        yield Started(self.state.step, count, str(self.device), self.precision, peak, self.run.steps)
        if self.state.complete:
            yield Finished(self.state.step, self.state.elapsed, complete=True)
            return
        self.module.train()  # only _scores switches to eval() and back
        self._compile_ahead()
        if self.state.step == 0 and self.run.evaluate_first:
            yield from self._evaluate()
        if self.state.step == 0 and self.run.save_first:
            yield from self._save()
        self.began = time.monotonic() - self.state.elapsed
        self.flushed = self.saved = time.monotonic()
        self.flushed_tokens = self.state.tokens
        while True:
            done, stop, save, flush = self._agree(interrupted)
            if stop:
                yield Stopping(self.state.step)
                yield from self._flush()
                yield from self._save()
                yield Finished(self.state.step, self.state.elapsed, complete=False)
                return
            if done >= 1:
                break
            self._take(done)
            save = save or self._every(self.run.save_every)
            evaluate = save or self._every(self.run.evaluate_every)
            if flush or evaluate:
                yield from self._flush(everything=evaluate)
            if evaluate and self.state.step != self.run.steps:  # the last step is evaluated and saved below
                yield from self._evaluate()
                if save:
                    yield from self._save()
                if self.run.patience and self.state.stale >= self.run.patience:
                    break
                self.flushed, self.flushed_tokens = (
                    time.monotonic(),
                    self.state.tokens,
                )  # evaluation must not count as training time
        yield from self._flush()
        yield from self._evaluate(final=True)
        self.state = replace(self.state, complete=True)
        yield from self._save()
        yield Finished(self.state.step, self.state.elapsed, complete=True)

    def close(self) -> None:
        """Stop the prefetching thread."""
        if self.feed is not None:
            self.feed.close()
        self.feed = None

    # ------------------------------------------------------------------ one step

    def _take(self, done: float) -> None:
        """One optimiser step. Nothing here waits for the GPU."""
        phase = phase_at(self.work.phases(), done)
        if phase != self.state.phase:
            # Losses at other lengths and masking rates do not compare, so the best checkpoint is that of its phase.
            self.state = replace(self.state, phase=phase, index=0, best=None, best_step=None, stale=0, lowest=None)
            self.close()
        if self.feed is None:
            steps = self.work.feed(phase, self.state.index, self.ranks, self.static_shapes)
            self.feed = prefetch(map(self._pinned, steps), 2)
        step = next(self.feed)
        factor = lr_factor(self.optim, self.state.step, done, self.run.steps)
        set_lr(self.optimizers, factor)
        terms = self.ranks.sum([step.counts[name] for name in self.work.losses])
        counts = self._to_device([n or 1.0 for n in terms])
        total = self._backward(step, counts) if step.whole is None else self._backward_whole(step, step.whole, counts)
        norm = self._update()
        self.state = replace(
            self.state,
            step=self.state.step + 1,
            index=self.state.index + step.sequences,
            tokens=self.state.tokens + step.tokens,
        )
        lr = self.optim.lr * factor
        taken = Stepped(self.state.step, phase, 0.0, {}, lr, 0.0, self.state.tokens, 0.0, 0.0, done, 0.0)
        self.pending.append((taken, *self._to_cpu(torch.cat([total, norm.view(1)]))))

    def _backward(self, step: Step, counts: Tensor) -> Tensor:
        """Accumulate the gradients of a step; (K,) this rank's part of the mean losses."""
        total = torch.zeros(len(counts), device=self.device)
        for number, micro in enumerate(step.micros):
            with self._pass(number, step):
                means = self._forward(micro) / counts
                # DDP and FSDP2 average over ranks, but each rank has a part of the sum: multiply by their number.
                self.scaler.scale((means * self.shares).sum() * self.ranks.size).backward()
            self.weights.gather()
            total += means.detach()
        return total

    def _backward_whole(self, step: Step, whole: WholeStep, counts: Tensor) -> Tensor:
        """The same for a loss over all vectors of the step at once (GradCache, Gao et al. 2021).

        First compute the vectors without gradients, then the loss over those of all ranks and its gradient for each
        vector; then run every micro-batch again with the same dropout and backpropagate that gradient.
        """
        found = []
        if len(step.micros) == 1 and self.ranks.size == 1:
            with self._pass(0, step):
                means = (
                    whole.loss(self._forward(step.micros[0]).float(), to_device(whole.targets, self.device)) / counts
                )
                self.scaler.scale((means * self.shares).sum()).backward()
            self.weights.gather()
            return means.detach()
        with torch.no_grad():
            for number, micro in enumerate(step.micros):
                with self._pass(number, step):
                    vectors = self._forward(micro)
                found.append(vectors[:0] if micro.is_spare else vectors)
        everyone = self.ranks.gather(torch.cat(found).float(), whole.sizes).requires_grad_()
        means = whole.loss(everyone, to_device(whole.targets, self.device)) / counts
        self.scaler.scale((means * self.shares).sum()).backward()
        assert everyone.grad is not None
        mine = everyone.grad.split(list(whole.sizes))[self.ranks.rank]
        for number, (micro, gradient) in enumerate(zip(step.micros, mine.split([len(v) for v in found]), strict=True)):
            with self._pass(number, step):
                vectors = self._forward(micro).float()
                if micro.is_spare:
                    gradient = torch.zeros_like(vectors)
                ((vectors * gradient).sum() * self.ranks.size).backward()
            self.weights.gather()
        return means.detach() / self.ranks.size  # every rank has the full loss, and they will be summed

    @contextmanager
    def _pass(self, number: int, step: Step) -> Iterator[None]:
        """One pass of a step: its own dropout seed, and gradients that are synchronised in the last pass only."""
        self._set_seed(int(mix(self.run.seed, self.state.step, self.ranks.rank, number)) % 2**63)
        with no_gradient_sync(self.module, enabled=self.weights.is_own and number + 1 < len(step.micros)):
            yield

    def _update(self) -> Tensor:
        """Clip the gradient and update the weights; the gradient's norm."""
        for optimizer in self.optimizers:
            self.scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.optim.clip or math.inf, foreach=True)
        for optimizer in self.optimizers:
            self.scaler.step(optimizer)
            optimizer.zero_grad(set_to_none=True)
        self.scaler.update()
        self.weights.publish()
        return full_tensor(norm.detach())

    def _forward(self, micro: MicroBatch) -> Tensor:
        micro = micro.to(self.device)
        with torch.autocast(self.device.type, dtype_of(self.precision), enabled=self.autocast):
            out: Tensor = self.call(micro.batch, micro.targets)
        return out

    def _set_seed(self, seed: int) -> None:
        """As torch.manual_seed, which also formats a stack trace for every device type that is not there."""
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(seed)

    def _to_device(self, numbers: list[float]) -> Tensor:
        """Copy numbers to the device without blocking."""
        here = torch.tensor(numbers, dtype=torch.float32)
        return here.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else here

    def _to_cpu(self, numbers: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        """Copy numbers to the CPU without blocking: they are there once the event has happened."""
        if self.device.type != "cuda":
            return numbers, None
        here = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        here.copy_(numbers, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return here, event

    def _pinned(self, step: Step) -> Step:
        if self.device.type != "cuda":
            return step
        whole = None if step.whole is None else step.whole.pin()
        return replace(step, micros=[micro.pin() for micro in step.micros], whole=whole)

    def _compile_ahead(self) -> None:
        """Run one batch of every shape, or of any if they are dynamic, so that compilation takes no training time."""
        if not self.static_shapes:
            return
        evaluates_first = self.state.step == 0 and self.run.evaluate_first
        for phase in range(self.state.phase, len(self.work.phases())):
            step = next(self.work.feed(phase, 0, self.ranks, self.static_shapes))
            self._forward(step.micros[0]).sum().backward()
            self.module.zero_grad(set_to_none=True)
            if not self.work.dynamic_shapes and (phase > self.state.phase or not evaluates_first):
                self._scores(phase)

    # ------------------------------------------------------------------ time

    def _agree(self, interrupted: threading.Event) -> tuple[float, bool, bool, bool]:
        """Progress from 0 to 1, and whether to stop, to save and to report: the same on all ranks."""
        now = time.monotonic()
        mine = [0.0, float(interrupted.is_set()), 0.0, 0.0]
        if self.ranks.is_first:
            save = self.run.save_minutes > 0 and now - self.saved >= 60 * self.run.save_minutes
            flush = len(self.pending) >= 50 or now - self.flushed >= 0.5 or self.state.step < 10
            mine = [self.run.done(self.state.step, self._elapsed()), mine[1], float(save), float(flush)]
        done, stop, save_, flush_ = self.ranks.sum(mine)
        return done, stop > 0, save_ > 0, flush_ > 0

    def _elapsed(self) -> float:
        return time.monotonic() - self.began

    def _every(self, steps: int) -> bool:
        return steps > 0 and self.state.step % steps == 0

    # ------------------------------------------------------------------ events

    def _flush(self, everything: bool = True) -> Iterator[Stepped]:
        """Report finished steps; all but the last two unless `everything`, so that the GPU never idles."""
        ready = self.pending if everything or self.device.type != "cuda" else self.pending[:-2]
        if not ready:
            return
        self.pending = self.pending[len(ready) :]
        if ready[-1][2] is not None:
            ready[-1][2].synchronize()
        table = torch.stack([numbers for _, numbers, _ in ready]).double()
        shared = torch.tensor(self.ranks.sum(table[:, :-1].flatten().tolist())).view(len(ready), -1).tolist()
        now, elapsed = time.monotonic(), self._elapsed()
        speed = (ready[-1][0].tokens - self.flushed_tokens) / max(now - self.flushed, 1e-9)
        weights = self.work.losses
        for (taken, _, _), means, norm in zip(ready, shared, table[:, -1].tolist(), strict=True):
            losses = dict(zip(weights, means, strict=True))
            loss = sum(weights[name] * value for name, value in losses.items())
            flops = speed * self.work.flops(taken.phase)
            yield replace(taken, loss=loss, losses=losses, norm=norm, speed=speed, flops=flops, elapsed=elapsed)
        self.flushed, self.flushed_tokens = now, ready[-1][0].tokens
        self.state = replace(self.state, elapsed=elapsed)

    def _evaluate(self, final: bool = False) -> Iterator[Evaluated]:
        self._require_numbers()
        if scores := self._scores(self.state.phase, final):
            loss, lowest = self.work.selection_loss(scores), self.state.lowest
            if self.score is None or self.score[0] != self.state.step:  # the last step may be evaluated twice
                better = lowest is None or loss < lowest
                self.state = replace(
                    self.state, stale=0 if better else self.state.stale + 1, lowest=loss if better else lowest
                )
            self.score = (self.state.step, loss)
            yield Evaluated(self.state.step, scores, final)

    def _scores(self, phase: int, final: bool = False) -> dict[str, float]:
        self.module.eval()
        with torch.no_grad():
            scores = self.work.evaluate(self._forward, phase, self.ranks, self.static_shapes, final)
        self.module.train()
        return scores

    # ------------------------------------------------------------------ saving

    def _require_numbers(self) -> None:
        """Stop when weights are no longer finite: such a model must be neither evaluated nor saved."""
        diverged = torch.stack([~torch.isfinite(full_tensor(p.detach())).all() for p in self.parameters]).any()
        if float(diverged):
            latest = self.checkpoints.latest()
            raise BothwaysError(
                f"training has diverged: at step {self.state.step:,} some weights are nan or infinite; start a new run "
                f"with optim.lr below {self.optim.lr:g}{f' ({latest} is from before)' if latest else ''}",
                "diverged",
                self.state.step,
            )

    def _save(self) -> Iterator[Saved]:
        self._require_numbers()
        state = self.state
        if self.score and self.score[0] == state.step and (state.best is None or self.score[1] < state.best):
            state = replace(state, best=self.score[1], best_step=state.step)
        self.state = replace(state, scaler=self.scaler.state_dict() or None)
        weights, memory = collect(self.weights.named, self.optimizers)
        if self.ranks.is_first:
            yield Saved(state.step, self.checkpoints.save(self.work, self.state, weights, memory))
        self.ranks.wait()
        self.saved = time.monotonic()

    def _resume(self) -> None:
        if self.ranks.is_first:
            self.checkpoints.clean()
        self.ranks.wait()
        path = self.checkpoints.latest()
        if path is None:
            self.state = self.checkpoints.state() or self.state  # of a complete run
            return
        self.state, weights, memory = self.checkpoints.load(self.work, path)
        self.state = replace(
            self.state, complete=self.state.complete and not self.run.is_longer_than(self.state.step, self.state.stale)
        )
        restore(self.weights.named, self.optimizers, weights, memory)
        self.weights.publish()
        if self.state.scaler:
            self.scaler.load_state_dict(self.state.scaler)
