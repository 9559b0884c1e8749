"""A rank's model, data and optimizer in one phase, and saving and loading their state."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from trainer.batch import smaller
from trainer.checkpoints import FORMAT, State, random_state, restore_random_state, seed_everything
from trainer.config import Settings
from trainer.data import Data, load_data
from trainer.data.feed import BatchFeed, HeldOut, Share
from trainer.data.order import Deal
from trainer.errors import SettingsError
from trainer.models import build
from trainer.models.blocks import transformer_blocks
from trainer.optim import Ema
from trainer.parallel.build import build_strategy, shards_weights
from trainer.precision import Precision, compile_modules
from trainer.tasks import build_objective
from trainer.tasks.objective import Objective
from trainer.world import World


@dataclass
class TrainingProgress:
    """Steps done, samples consumed by all ranks together, and the newest metrics."""

    step: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class PhaseSession:
    """One rank's model, data and optimizer for one phase. All ranks build it together (collective).

    Use as a context manager: leaving it ends the processes that read data.

    Attributes:
        first_step: the number of the phase's first step in the run.
        batch_size: samples of a micro batch; 0 until --batch-size auto has found the largest.
        validation_batch: samples of a validation batch that had to be reduced; 0 if it was not.
    """

    def __init__(self, settings: Settings, world: World, first_step: int, progress: TrainingProgress) -> None:
        self.settings = settings
        self.world = world
        self.first_step = first_step
        self.progress = progress
        self.precision = Precision(settings, world.device)
        self.data = _load_data(settings, world)
        seed_everything(settings.seed)  # the same initial weights on every rank
        sharded = shards_weights(settings, world) and settings.tensor_parallel == 1
        self.built = build(settings, self.data, sharded=sharded)
        self.objective = self._build_objective()
        self.parameters = sum(parameter.numel() for parameter in self.objective.parameters())
        # Counting takes up to a second, and only GPUs have a peak to compare it with.
        self.flops_per_sample = self.objective.flops_per_sample() if world.device.type == "cuda" else None
        self._compile()
        self.strategy = build_strategy(settings, self.objective, world)
        trained = {name: parameter for parameter, name in self.strategy.names.items() if parameter.requires_grad}
        self.ema = Ema(trained, settings.ema) if settings.ema else None
        share = Share(self.strategy.data_rank, self.strategy.data_ranks, world.device)
        transform = self.objective.transform
        self.feed = BatchFeed(self.data.train, transform(training=True), settings, share)
        self.held_out = HeldOut(self.data.held_out, transform(training=False), settings, share)
        self.batch_size = settings.batch_size if isinstance(settings.batch_size, int) else 0
        self.grad_accum = settings.grad_accum
        self.validation_batch = 0
        seed_everything(self._rank_seed())

    def __enter__(self) -> PhaseSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.feed.close()

    @property
    def phase_step(self) -> int:
        """Completed steps of this phase."""
        return self.progress.step - self.first_step + 1

    @property
    def epoch(self) -> int:
        return self.progress.samples // len(self.data.train)

    @property
    def samples_per_step(self) -> int:
        """Samples of an optimizer step, over all ranks."""
        return self.batch_size * self.grad_accum * self.strategy.data_ranks

    def set_batch(self, batch_size: int, grad_accum: int) -> None:
        """Use micro batches of this size from the current position on."""
        self.batch_size = batch_size
        self.grad_accum = grad_accum
        self.feed.seek(self.progress.samples, batch_size)

    # --- state --------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The content of a checkpoint; its tensors are live, and DTensors where they are sharded (collective)."""
        progress = self.progress
        return {
            "format": FORMAT,
            "config": self.settings.model_dump(mode="json"),
            "step": progress.step,
            "samples": progress.samples,
            "epoch": self.epoch,
            "phase": self.settings.phase,
            "phase_step": self.phase_step,
            "batch": {
                "batch_size": self.batch_size,
                "grad_accum": self.grad_accum,
                "ranks": self.strategy.data_ranks,
            },
            "deals": [list(deal) for deal in self.feed.deals],
            "scaler": self.precision.scaler.state_dict(),
            "random": self.world.gather(random_state(self.world.device)),
            "metrics": dict(progress.metrics),
            "model": self.strategy.model_state(),
            "optimizer": self.strategy.optimizer_state(),
            "ema": self.ema.state() if self.ema else {},
        }

    def load(self, state: State) -> None:
        """Load a state of full tensors, the same on every rank. Current settings override those in the state."""
        settings = self.settings
        former = state["config"]
        self.progress.step = state["step"]
        self.progress.samples = state["samples"]
        self.progress.metrics = dict(state["metrics"])
        self.feed.resume(tuple(Deal(*deal) for deal in state["deals"]))
        self.strategy.load_model_state(state["model"])
        is_reset = settings.reset_optimizer and self.phase_step == 0
        if not is_reset and former["optimizer"] == settings.optimizer:
            self.strategy.load_optimizer_state(state["optimizer"])
        if self.ema:
            self.ema.load(state["ema"])
        if self.precision.scaler.is_enabled() and state["scaler"]:
            scaler = self.precision.scaler
            former_scaler = state["scaler"]
            # Only what it has learnt: the factors and the interval are settings.
            learnt = {key: former_scaler[key] for key in ("scale", "_growth_tracker")}
            scaler.load_state_dict(scaler.state_dict() | learnt)
        is_same_batch = (settings.batch_size, settings.grad_accum) == (former["batch_size"], former["grad_accum"])
        batch = state["batch"]
        if settings.phase != state["phase"]:
            reduced = isinstance(former["batch_size"], int) and batch["batch_size"] < former["batch_size"]
            while reduced and self.batch_size > batch["batch_size"]:  # memory ran out with more
                self.batch_size, self.grad_accum = smaller(self.batch_size, self.grad_accum) or (1, self.grad_accum)
        elif is_same_batch:
            # The settings are the same, so a batch size that was found or reduced still fits.
            self.batch_size = batch["batch_size"]
            self.grad_accum = batch["grad_accum"]
        # Ranks that share layers draw the same numbers.
        source = self.strategy.data_rank * (self.world.size // self.strategy.data_ranks)
        if source < len(state["random"]):
            restore_random_state(state["random"][source], self.world.device)
        else:
            seed_everything(self._rank_seed())  # the state was saved by fewer ranks

    def _rank_seed(self) -> int:
        """A seed for each data rank and step, so that dropout differs between them."""
        return (self.settings.seed * 1_000_003 + self.strategy.data_rank * 10_007 + self.progress.step) % 2**63

    # --- building -----------------------------------------------------------------------------------------------------

    def _build_objective(self) -> Objective:
        """The objective on the device. Sharded weights of the model are moved later, shard by shard."""
        objective = build_objective(self.settings, self.data, self.built.model, self.world)
        if shards_weights(self.settings, self.world):
            for child in objective.children():
                if child is not objective.model:
                    self.precision.place(child)
        else:
            self.precision.place(objective)
        return objective

    def _compile(self) -> None:
        settings = self.settings
        objective = self.objective
        if settings.compile_scope == "blocks":
            blocks = transformer_blocks(self.built.model)
        else:
            blocks = [objective]
        if not blocks:
            raise SettingsError("--compile-scope blocks: the model has no row of equal blocks; use whole")
        compile_modules(blocks, settings)
        if settings.compile != "off" and settings.compile_scope == "whole":
            # Held-out batches have two sizes; torch compiles the second for any size, without CUDA graphs.
            objective.measure = torch.compile(objective.measure)  # type: ignore[method-assign]


def _load_data(settings: Settings, world: World) -> Data:
    """Load the data set (collective). Rank 0 is first, and caches token counts for the others."""
    loaded: list[Data] = []
    world.on_main(lambda: loaded.append(load_data(settings)))
    if loaded:
        return loaded[0]
    return load_data(settings)
