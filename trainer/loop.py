"""The training itself: steps, validation, checkpoints, resuming, and leaving in good order."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from trainer import checkpoint, config, distributed
from trainer.config import Settings
from trainer.data import Indices, Sampler, load_data, rank_positions
from trainer.distributed import GradientExchange, World
from trainer.emit import MetricsWriter, Value
from trainer.errors import CheckpointError, SettingsError
from trainer.faults import Injector
from trainer.models import build_model
from trainer.optim import WarmupCosine, build_optimizer
from trainer.signals import Signals

# How long a rank that lost a peer waits for the launcher to notice that peer first, in seconds.
PEER_GRACE = 5.0

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def run(settings: Settings) -> None:
    """Trains to the end, or to the checkpoint after a stop signal. Raises whatever goes wrong."""
    is_main = os.environ.get("RANK", "0") == "0"
    metrics = _open_metrics(settings) if is_main else None
    world = distributed.join(settings)
    # Rank 0 has repaired the file by now: joining the group waits for everybody.
    metrics = metrics or _open_metrics(settings, repair=False)
    try:
        with Signals(settings.stop_timeout) as signals:
            try:
                Trainer(settings, world, metrics, signals).train()
            except Exception as error:
                # The launcher blames whoever fails first. A rank that only lost a peer lets it see that peer's end.
                if distributed.lost_a_peer(error) and "TORCHELASTIC_RUN_ID" in os.environ:
                    signals.wait_for_stop(PEER_GRACE)
                raise
    finally:
        metrics.close()


def _open_metrics(settings: Settings, *, repair: bool = True) -> MetricsWriter:
    try:
        return MetricsWriter(settings.metrics, repair=repair)
    except OSError as error:
        raise SettingsError(f"--metrics {settings.metrics} cannot be written: {error.strerror}") from None


@dataclass
class Timings:
    """Seconds of one step as this rank saw them. `wait` is the gradient exchange, where it is measured."""

    step: float = 0.0
    data: float = 0.0
    wait: float = 0.0


class Trainer:
    """One rank's share of a run. Every rank calls the same methods in the same order."""

    def __init__(self, settings: Settings, world: World, metrics: MetricsWriter, signals: Signals) -> None:
        if settings.precision == "fp16" and world.device.type != "cuda":
            raise SettingsError("--precision fp16 needs a CUDA GPU; use bf16 or fp32 here")
        self.settings = settings
        self.world = world
        self.metrics = metrics
        self.signals = signals
        self.faults = Injector(settings.inject, world.rank, settings.output_dir / "faults")

        _make_deterministic(settings, world)
        self.data = load_data(settings)
        self.sampler = Sampler(len(self.data.train), settings.seed)
        torch.manual_seed(settings.seed)  # the same initial weights on every rank
        self.model = build_model(settings).to(world.device)
        self.exchange = GradientExchange(self.model, world)
        self.optimizer = build_optimizer(self.model, settings, world.device)
        self.schedule = WarmupCosine(self.optimizer, settings)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=settings.precision == "fp16")

        self.step = 0
        self.samples = 0  # consumed by all ranks together: the position in the data
        self.saved_step = -1
        self.latest: dict[str, float] = {}
        self.rank_timings: list[Timings] = []

    # --- the run ------------------------------------------------------------------------------------------------------

    def train(self) -> None:
        """From the beginning or a checkpoint to the last step, or to a stop signal."""
        settings = self.settings
        began = time.perf_counter()
        self.resume()
        self.event(
            "start",
            task=settings.task,
            total_steps=settings.steps,
            world_size=self.world.size,
            batch_size=settings.batch_size,
            grad_accum=settings.grad_accum,
            device=self.world.device.type,
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
        )
        while self.step < settings.steps:
            stop, save = self.train_step()
            if settings.validate_every and self.step % settings.validate_every == 0 and self.step < settings.steps:
                self.validate()
            if stop:
                self.signals.reached()
                self.save(required=True)
                self.event("stop", reason=self.signals.stop or "signal on another rank")
                self.say(f"stopped at step {self.step} after a checkpoint")
                return
            if save or (settings.checkpoint_every and self.step % settings.checkpoint_every == 0):
                self.save()
        self.signals.reached()
        loss, accuracy = self.validate()
        self.save(required=True)
        self.event("end", test_accuracy=accuracy, test_loss=loss, seconds=time.perf_counter() - began)
        self.say(f"done: test accuracy {accuracy:.4f}, test loss {loss:.4f}")

    def train_step(self) -> tuple[bool, bool]:
        """One optimizer step; returns whether any rank was asked to stop, and to save.

        Raises FloatingPointError, before anything is saved, where loss or gradients are not finite.
        """
        settings, world = self.settings, self.world
        began = time.perf_counter()
        epoch = self.samples // self.sampler.size
        rate = self.schedule.advance()
        self.step += 1
        poison = self.faults.before_step(self.step)
        timings = Timings()
        total = torch.zeros((), device=world.device)
        self.exchange.model.train()
        for micro in range(settings.grad_accum):
            last = micro == settings.grad_accum - 1
            before_data = time.perf_counter()
            inputs, targets = self.batch(micro)
            timings.data += time.perf_counter() - before_data
            with self.exchange.only_if(last):
                with self.autocast():
                    loss = _loss(self.exchange.model(inputs), targets) / settings.grad_accum
                if poison:
                    loss = loss * math.nan
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self.samples += settings.batch_size * settings.grad_accum * world.size
        self.scaler.unscale_(self.optimizer)
        norm = clip_grad_norm_(self.model.parameters(), settings.grad_clip or math.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

        # The only point of a step where the host waits for the device, and the only exchange besides the gradients.
        save_asked, self.signals.save = self.signals.save, False
        loss_sum, stop, save = world.sum(total, bool(self.signals.stop), save_asked)
        timings.step = time.perf_counter() - began
        timings.wait = self.exchange.seconds
        self.latest |= {"loss": loss_sum / world.size, "grad_norm": float(norm)}
        self.emit_step(epoch, rate, timings)
        # With fp16, infinite gradients are a part of finding the scale: the scaler has skipped that update.
        if not math.isfinite(self.latest["loss"]) or not (math.isfinite(float(norm)) or self.scaler.is_enabled()):
            raise FloatingPointError(
                f"loss is {self.latest['loss']} and the gradient norm {float(norm)} at step {self.step}"
            )
        return stop > 0, save > 0

    def batch(self, micro: int) -> tuple[Tensor, Tensor]:
        """This rank's samples of one micro batch, on its device."""
        size = self.settings.batch_size
        start = rank_positions(self.samples, micro, self.world.rank, self.world.size, size)
        inputs, targets = self.data.train.batch(self.sampler.indices(start, size))
        return inputs.to(self.world.device), targets.to(self.world.device)

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        """Mean loss and accuracy over all held-out data, which the ranks share between them."""
        began = time.perf_counter()
        self.model.eval()
        loss_sum = correct = count = 0.0
        share = torch.arange(self.world.rank, len(self.data.held_out), self.world.size).numpy()
        for start in range(0, len(share), max(64, self.settings.batch_size)):
            chosen: Indices = share[start : start + max(64, self.settings.batch_size)]
            inputs, targets = (part.to(self.world.device) for part in self.data.held_out.batch(chosen))
            with self.autocast():
                logits = self.model(inputs)
            loss_sum += float(_loss(logits, targets)) * targets.numel()
            correct += int((logits.argmax(-1) == targets).sum())
            count += targets.numel()
        loss_sum, correct, count = self.world.sum(loss_sum, correct, count)
        result = {"val/loss": loss_sum / count, "val/accuracy": correct / count}
        self.latest |= result
        self.event("validation", seconds=time.perf_counter() - began, **result)
        return result["val/loss"], result["val/accuracy"]

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def save(self, *, required: bool = False) -> None:
        """Saves the state after this step, once. A disk that refuses is reported and survived, unless `required`."""
        if self.saved_step == self.step:
            return
        random_states = self.world.gather(checkpoint.random_state(self.world.device))
        written = self.write_checkpoint(random_states, required) if self.world.is_main else False
        # Every rank must know whether to try this step again: gathering is something that all do or none.
        if self.world.from_main(written):
            self.saved_step = self.step

    def write_checkpoint(self, random_states: list[checkpoint.State], required: bool) -> bool:
        """Rank 0's part of `save`: whether there is a checkpoint of this step now."""
        began = time.perf_counter()
        path = checkpoint.path_for(self.settings.checkpoint_dir, self.step)
        state: checkpoint.State = {
            "format": checkpoint.FORMAT,
            "config": config.as_plain(self.settings),
            "step": self.step,
            "samples": self.samples,
            "epoch": self.samples // self.sampler.size,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_states,
            "metrics": self.latest,
        }
        try:
            self.faults.before_checkpoint(self.step, path)
            size = checkpoint.save(state, path)
        except OSError as error:
            self.event("checkpoint_failed", path=str(path), error=str(error))
            print(f"trainer: checkpoint {path} was not written: {error}", file=sys.stderr, flush=True)
            if required:
                raise
            return False
        self.event("checkpoint", path=str(path), seconds=time.perf_counter() - began, bytes=size)
        checkpoint.prune(self.settings.checkpoint_dir, self.settings.keep)
        return True

    def resume(self) -> None:
        """Continues from the checkpoint that rank 0 chooses, if any; all ranks take the same one."""
        choice, problem = None, ""
        if self.world.is_main:
            try:
                choice = checkpoint.choose(self.settings.resume, self.settings.checkpoint_dir)
            except CheckpointError as error:
                problem = str(error)
        choice, problem = self.world.from_main((choice, problem))
        if choice is None:
            raise CheckpointError(problem)
        for reason in choice.rejected:
            self.event("checkpoint_rejected", reason=reason)
            self.say(f"{reason}; trying the one before", error=True)
        if choice.path:
            self.restore(choice.path)
            self.event("resume", path=str(choice.path), samples=self.samples)
            self.say(f"resumed from {choice.path} at step {self.step}")
        else:
            torch.manual_seed(self.rank_seed())
        if self.world.is_main:
            for path in checkpoint.begin_branch(self.settings.checkpoint_dir, self.step):
                self.say(f"set aside {path}: this run starts before it", error=True)

    def restore(self, path: Path) -> None:
        """Takes over the state of a verified checkpoint. Settings given now win over those it was made with."""
        state = checkpoint.load(path)
        checkpoint.check_fits(state, config.as_plain(self.settings), path)
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group, decay in zip(self.optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        self.schedule.load_state_dict(state["scheduler"])
        if self.scaler.is_enabled() and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        self.step = self.saved_step = state["step"]
        self.samples = state["samples"]
        self.latest = dict(state["metrics"])
        if self.world.rank < len(state["random"]):
            checkpoint.restore_random_state(state["random"][self.world.rank], self.world.device)
        else:
            torch.manual_seed(self.rank_seed())  # a rank that did not exist when this was saved

    def rank_seed(self) -> int:
        """Different dropout on every rank, and on a rank that joins later."""
        return (self.settings.seed * 1_000_003 + self.world.rank * 10_007 + self.step) % 2**63

    # --- what others see ----------------------------------------------------------------------------------------------

    def emit_step(self, epoch: int, rate: float, timings: Timings) -> None:
        """Rank 0's line of every step, and now and then the mean timings of the other ranks."""
        settings = self.settings
        if not self.world.is_main:
            self.rank_timings.append(timings)
            if settings.rank_metrics_every and self.step % settings.rank_metrics_every == 0:
                seen, self.rank_timings = self.rank_timings, []
                values: dict[str, Value] = {
                    "step_time": sum(one.step for one in seen) / len(seen),
                    "data_time": sum(one.data for one in seen) / len(seen),
                }
                if self.exchange.measured:
                    values["comm_time"] = sum(one.wait for one in seen) / len(seen)
                self.metrics.write(self.step, rank=self.world.rank, **values)
            return
        throughput = settings.batch_size * settings.grad_accum * self.world.size / timings.step
        line: dict[str, Value] = {
            "rank": 0,
            "epoch": epoch,
            "loss": self.latest["loss"],
            "lr": rate,
            "grad_norm": self.latest["grad_norm"],
            "samples": self.samples,
            "samples_per_s": throughput,
            "step_time": timings.step,
            "data_time": timings.data,
        }
        if self.exchange.measured:
            line["comm_time"] = timings.wait
        if self.world.device.type == "cuda":
            line["gpu_mem_peak"] = torch.cuda.max_memory_allocated(self.world.device)
            torch.cuda.reset_peak_memory_stats(self.world.device)
        self.metrics.write(self.step, **line)
        if self.step % settings.log_every == 0 or self.step == settings.steps:
            self.say(
                f"step {self.step}/{settings.steps}  loss {self.latest['loss']:.4f}  lr {rate:.2e}"
                f"  grad_norm {self.latest['grad_norm']:.3f}  samples/s {throughput:.0f}"
            )

    def event(self, name: str, **values: Value) -> None:
        """A line about the run rather than a step; from rank 0."""
        if self.world.is_main:
            self.metrics.write(self.step, event=name, **values)

    def say(self, text: str, *, error: bool = False) -> None:
        """A line for the person watching; from rank 0."""
        if self.world.is_main:
            print(f"trainer: {text}" if error else text, file=sys.stderr if error else sys.stdout, flush=True)

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self.settings.precision)
        if dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=dtype)


def _loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy; logits [..., classes], targets [...]."""
    return functional.cross_entropy(logits.flatten(0, -2).float(), targets.flatten())


def _make_deterministic(settings: Settings, world: World) -> None:
    if settings.deterministic and world.device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(settings.deterministic, warn_only=True)
