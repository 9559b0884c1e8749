"""Everything one phase of a run works with, built from its settings; and its state, going in and out."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from trainer.checkpoints import FORMAT, State, random_state, restore_random_state
from trainer.checkpoints.snapshot import seed_everything
from trainer.config import Settings, as_plain
from trainer.data import Data, load_data
from trainer.data.feed import Feed, HeldOut
from trainer.data.sampler import Deal
from trainer.errors import SettingsError, TrainerError
from trainer.models import Built, build
from trainer.models.blocks import transformer_blocks
from trainer.models.deferred import DeferredInit, Initial
from trainer.optim import Ema, WarmupSchedule
from trainer.parallel.build import build_strategy, shards_weights
from trainer.precision import Precision, compile_modules
from trainer.tasks import build_objective
from trainer.world import World


@dataclass
class Progress:
    """How far a run is: steps done, samples consumed by all ranks together, and the newest metrics."""

    step: int = 0
    samples: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


class Session:
    """One rank's model, data, optimizer and what goes with them, for one phase. All ranks build it together.

    `first_step` is the number that the phase's first step has in the run. Use as a context manager: leaving it ends
    the processes that read data.
    """

    def __init__(self, settings: Settings, world: World, first_step: int, progress: Progress) -> None:
        self.settings = settings
        self.world = world
        self.first_step = first_step
        self.progress = progress
        self.precision = Precision(settings, world.device)
        self.data = self._load_data()
        seed_everything(settings.seed)  # the same initial weights on every rank
        self.built, initial = self._build()
        objective = build_objective(settings, self.data, self.built.model, world)
        if shards_weights(settings, world):
            # The model goes there shard by shard.
            for own in (child for child in objective.children() if child is not objective.model):
                self.precision.place(own)
        else:
            self.precision.place(objective)
        self.objective = objective
        self.parameters = sum(parameter.numel() for parameter in objective.parameters())
        # Asked on the GPU only, where it can be compared with a known peak; counting takes up to a second.
        self.flops_per_sample = objective.flops_per_sample() if world.device.type == "cuda" else None
        blocks = transformer_blocks(self.built.model) if settings.compile_scope == "blocks" else [objective]
        if not blocks:
            raise SettingsError("--compile-scope blocks: the model has no row of equal blocks; use whole")
        compile_modules(blocks, settings)
        if settings.compile != "off" and settings.compile_scope == "whole":
            # Held-out batches have two sizes, of which the second is compiled for any size; no CUDA graphs for those.
            objective.measure = torch.compile(objective.measure)  # type: ignore[method-assign]
        self.strategy = build_strategy(settings, objective, world, initial)
        self.schedule = WarmupSchedule(self.strategy.optimizer, settings, self.phase_step)
        self.ema = Ema(self.strategy.own_parameters(), settings.ema) if settings.ema else None
        place = {"rank": self.strategy.data_rank, "ranks": self.strategy.data_ranks}
        self.feed = Feed(self.data.train, objective.transform(training=True), settings, **place, device=world.device)
        self.held_out = HeldOut(
            self.data.held_out, objective.transform(training=False), settings, **place, device=world.device
        )
        # 0 until the largest that fits has been found.
        self.batch_size = settings.batch_size if isinstance(settings.batch_size, int) else 0
        self.grad_accum = settings.grad_accum
        # 0 until one had to be made smaller than validation would like.
        self.validation_batch = 0
        seed_everything(self._rank_seed())

    def _load_data(self) -> Data:
        """Rank 0 is first, and keeps what it had to count beside the files for the others."""
        if not self.world.backend:
            return load_data(self.settings)
        data, problem = None, None
        if self.world.is_main:
            try:
                data = load_data(self.settings)
            except TrainerError as error:
                problem = error
        if problem := self.world.from_main(problem):
            raise problem
        return data or load_data(self.settings)

    def _build(self) -> tuple[Built, Initial | None]:
        """The model, the same on every rank; where its weights are sharded without any, if that can be."""
        settings = self.settings
        if shards_weights(settings, self.world) and settings.tensor_parallel == 1 and settings.weights is None:
            deferred = DeferredInit()
            with contextlib.suppress(Exception), deferred:
                # Whatever cannot be deferred, such as a person's own initialisation, is made whole in host memory.
                built = build(settings, self.data)
                return built, deferred.initial(built.model)
            seed_everything(settings.seed)
        return build(settings, self.data), None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.feed.close()
        self.held_out.close()

    @property
    def phase_step(self) -> int:
        """Steps of this phase that are done."""
        return self.progress.step - self.first_step + 1

    @property
    def epoch(self) -> int:
        return self.progress.samples // len(self.data.train)

    @property
    def samples_per_step(self) -> int:
        """Of all ranks together."""
        return self.batch_size * self.grad_accum * self.strategy.data_ranks

    def set_batch(self, batch_size: int, grad_accum: int) -> None:
        """Micro batches from here on, also in a step that is done again."""
        self.batch_size, self.grad_accum = batch_size, grad_accum
        self.feed.seek(self.progress.samples, batch_size)

    # --- state --------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """What a checkpoint holds, with views of live tensors (collective); whole, and complete on rank 0 only."""
        strategy = self.strategy
        return self._state_around(
            model=strategy.model_state(),
            optimizer=strategy.optimizer_state(),
            ema=strategy.whole(self.ema.state()) if self.ema else {},
        )

    def spread_state(self) -> State:
        """The same with tensors as they are spread over the ranks, for checkpoints that every rank writes a part of."""
        strategy = self.strategy
        return self._state_around(
            model=strategy.spread_model_state(),
            optimizer=strategy.spread_optimizer_state(),
            ema=strategy.spread(self.ema.state()) if self.ema else {},
        )

    def _state_around(self, **tensors: Any) -> State:
        progress = self.progress
        return {
            "format": FORMAT,
            "config": as_plain(self.settings),
            "step": progress.step,
            "samples": progress.samples,
            "epoch": self.epoch,
            "phase": self.settings.phase,
            "phase_step": self.phase_step,
            "batch": {"batch_size": self.batch_size, "grad_accum": self.grad_accum},
            "deals": [list(deal) for deal in self.feed.deals],
            "scaler": self.precision.scaler.state_dict(),
            "random": self.world.gather(random_state(self.world.device)),
            "metrics": dict(progress.metrics),
            **tensors,
        }

    def load(self, state: State) -> None:
        """Takes over a state, which every rank passes in whole. Settings given now win over those it was made with."""
        settings, was = self.settings, state["config"]
        self.progress.step, self.progress.samples = state["step"], state["samples"]
        self.progress.metrics = dict(state["metrics"])
        self.feed.resume(tuple(Deal(*deal) for deal in state.get("deals", ())))
        self.schedule.step = self.phase_step
        self.strategy.load_model_state(state["model"])
        forget = settings.reset_optimizer and self.phase_step == 0
        if not forget and was["optimizer"] == settings.optimizer:
            self.strategy.load_optimizer_state(state["optimizer"])
        if self.ema:
            self.ema.load(self.strategy.share(state["ema"]))
        if self.precision.scaler.is_enabled() and state["scaler"]:
            self.precision.scaler.load_state_dict(state["scaler"])
        same_batch = (settings.batch_size, settings.grad_accum) == (was["batch_size"], was["grad_accum"])
        if same_batch and settings.phase == state["phase"]:
            # Nobody asked for another batch: what was found to fit still does.
            self.batch_size, self.grad_accum = state["batch"]["batch_size"], state["batch"]["grad_accum"]
        # Ranks that share layers draw alike, also where those that saved this did not.
        first = self.strategy.data_rank * (self.world.size // self.strategy.data_ranks)
        if first < len(state["random"]):
            restore_random_state(state["random"][first], self.world.device)
        else:
            seed_everything(self._rank_seed())  # a rank that did not exist when this was saved

    def _rank_seed(self) -> int:
        """Different dropout on all ranks with data of their own, and on a rank that joins later."""
        return (self.settings.seed * 1_000_003 + self.strategy.data_rank * 10_007 + self.progress.step) % 2**63
