"""A rank's model, data and optimizer in one phase, and saving and loading their state."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from trainer.batch import MicroBatches
from trainer.checkpoints import State, random_state, restore_random_state, seed_everything
from trainer.config import Settings
from trainer.config.lengths import largest_divisor, share_of_step
from trainer.config.schema import is_own
from trainer.data import Data, Text, load_data
from trainer.data.deals import Deal
from trainer.data.feed import BatchFeed, HeldOut, Share
from trainer.errors import SettingsError
from trainer.models import build
from trainer.models.blocks import transformer_blocks
from trainer.models.documents import separates_documents
from trainer.models.weights import BaseWeights
from trainer.optim import Ema
from trainer.parallel.build import build_strategy, shards_weights
from trainer.precision import Precision, compile_modules
from trainer.tasks import build_objective
from trainer.tasks.objective import Objective
from trainer.tasks.own import try_out
from trainer.world import World


class ModelFacts(NamedTuple):
    """The size of a model.

    Attributes:
        flops_per_sample: floating-point operations of a sample's training; None where they are not counted.
    """

    parameters: int
    flops_per_sample: float | None


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
        facts: the size of the model as it was built, before its weights are sharded.
        batches: the micro batches of a step; smaller ones once memory ran out.
        mixes_documents: the text has documents that this model cannot keep apart.
    """

    def __init__(
        self,
        settings: Settings,
        world: World,
        first_step: int,
        progress: TrainingProgress,
        *,
        data: Data | None = None,
    ) -> None:
        # The order counts: weights are drawn and placed before they are counted, compiled and spread over the ranks,
        # and a trial of what is then wrapped precedes the random numbers that training begins with.
        self.settings = settings
        self.world = world
        self.first_step = first_step
        self.progress = progress
        self.precision = Precision(settings, world.device)
        self.data = data or load_for_all(settings, world)
        seed_everything(settings.seed)  # the same initial weights on every rank
        sharded = shards_weights(settings, world) and settings.tensor_parallel == 1
        self.built = build(settings, self.data, sharded=sharded)
        self.base = self._base_weights()
        self.objective = self._build_objective()
        self.facts = self._model_facts()
        self._compile()
        self.strategy = build_strategy(settings, self.objective, world)
        trained = {name: parameter for parameter, name in self.strategy.names.items() if parameter.requires_grad}
        self.ema = Ema(trained, settings.ema) if settings.ema else None
        share = Share(self.strategy.data_rank, self.strategy.data_ranks, world.device)
        transform = self.objective.transform
        crops = self.objective.crops()
        self.feed = BatchFeed(self.data.train, transform(training=True), settings, share, crops=crops)
        self.held_out = HeldOut(self.data.held_out, transform(training=False), settings, share)
        batch_size = settings.batch_size if isinstance(settings.batch_size, int) else 0
        self.batches = MicroBatches(batch_size, settings.grad_accum)
        if is_own(settings.task):
            with_gradients = not shards_weights(settings, world)
            try_out(self.objective, self.data, settings, world, self.precision, with_gradients=with_gradients)
        self.mixes_documents = (
            isinstance(self.data, Text)
            and self.data.marked
            and not is_own(settings.task)
            and not self._separate(self.data)
        )
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
        return self.batches.size * self.batches.per_step * self.strategy.data_ranks

    def batches_up_to(self, size: int) -> MicroBatches:
        """The micro batches of a step, if none may be larger than `size`."""
        settings = self.settings
        if not settings.samples_per_step:
            return self.batches._replace(size=size)
        share = share_of_step(settings, self.strategy.data_ranks)
        size = largest_divisor(share, size)
        return MicroBatches(size, share // size)

    def set_batches(self, batches: MicroBatches) -> None:
        """Use these micro batches from the current position on."""
        self.batches = batches
        self.feed.seek(self.progress.samples, batches.size)

    # --- state --------------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """The content of a checkpoint; its tensors are live, and DTensors where they are sharded (collective)."""
        progress = self.progress
        model_state = self.strategy.model_state()
        return {
            "config": self.settings.model_dump(mode="json"),
            "step": progress.step,
            "samples": progress.samples,
            "epoch": self.epoch,
            "phase": self.settings.phase,
            "phase_step": self.phase_step,
            "batch": {
                "batch_size": self.batches.size,
                "grad_accum": self.batches.per_step,
                "ranks": self.strategy.data_ranks,
            },
            "deals": [list(deal) for deal in self.feed.deals],
            "scaler": self.precision.scaler.state_dict(),
            "random": self.world.gather(random_state(self.world.device)),
            "metrics": dict(progress.metrics),
            "base": dataclasses.asdict(self.base) if self.base else None,
            "model": {name: tensor for name, tensor in model_state.items() if name not in self.built.in_base},
            "optimizer": self.strategy.optimizer_state(),
            "ema": self.ema.state() if self.ema else {},
        }

    def load(self, state: State) -> None:
        """Load a state of full tensors, the same on every rank. Current settings override those in the state.

        Raises KeyError or ValueError if it does not fit.
        """
        absent = self._absent(state.get("base"))
        settings = self.settings
        former = state["config"]
        self.progress.step = state["step"]
        self.progress.samples = state["samples"]
        self.progress.metrics = dict(state["metrics"])
        self.feed.resume(tuple(Deal(*deal) for deal in state["deals"]))
        self.strategy.load_model_state(state["model"], absent)
        is_reset = settings.reset_optimizer and self.phase_step == 0
        if not is_reset and former["optimizer"] == settings.optimizer:
            self.strategy.load_optimizer_state(state["optimizer"])
        self.strategy.resume(self.phase_step)
        if self.ema:
            self.ema.load(state["ema"])
        if self.precision.scaler.is_enabled() and state["scaler"]:
            scaler = self.precision.scaler
            former_scaler = state["scaler"]
            # Only what it has learnt: the factors and the interval are settings.
            learnt = {key: former_scaler[key] for key in ("scale", "_growth_tracker")}
            scaler.load_state_dict(scaler.state_dict() | learnt)
        self.batches = self._batches_after(state)
        self._restore_random(state["random"], state["batch"]["ranks"])

    def _absent(self, base: dict[str, str] | None) -> frozenset[str]:
        """The names of what a state lacks because it is in its base. Raises ValueError if this run has another."""
        if base is None:
            return frozenset()
        if self.base is None or self.base.sha256 != base["sha256"]:
            raise ValueError(
                f"it has only what was trained, over the weights in {base['folder']}: give those to --weights"
            )
        return self.built.in_base

    def _batches_after(self, state: State) -> MicroBatches:
        """The micro batches to go on with after a state that was saved with perhaps others."""
        settings = self.settings
        former = state["config"]
        saved = MicroBatches(state["batch"]["batch_size"], state["batch"]["grad_accum"])
        if settings.phase == state["phase"]:
            names = ("batch_size", "grad_accum", "samples_per_step")
            is_same = all(getattr(settings, name) == former[name] for name in names)
            if settings.samples_per_step:
                is_same = is_same and state["batch"]["ranks"] == self.strategy.data_ranks
            if is_same:  # so a batch size that was found or reduced still fits
                return saved
            return self.batches
        batches = self.batches
        ran_out_of_memory = isinstance(former["batch_size"], int) and saved.size < former["batch_size"]
        while ran_out_of_memory and batches.size > saved.size:
            batches = batches.smaller() or MicroBatches(1, batches.per_step)
        return batches

    def _restore_random(self, states: Sequence[Any], data_ranks: int) -> None:
        """Restore this rank's state of the random generators from those of all ranks that saved.

        They were so many data ranks: ranks that share layers draw the same numbers.
        """
        if self.strategy.data_rank < data_ranks:
            source = self.strategy.data_rank * (len(states) // data_ranks)
            restore_random_state(states[source], self.world.device)
        else:
            seed_everything(self._rank_seed())  # the state was saved by fewer ranks

    def _rank_seed(self) -> int:
        """A seed for each data rank and step, so that dropout differs between them."""
        return (self.settings.seed * 1_000_003 + self.strategy.data_rank * 10_007 + self.progress.step) % 2**63

    # --- building -----------------------------------------------------------------------------------------------------

    def _base_weights(self) -> BaseWeights | None:
        """The weights that checkpoints only refer to, as they stay as they are; None if checkpoints have everything."""
        folder = self.settings.weights
        if folder is None or not self.built.in_base:
            return None
        return self.world.on_main(functools.partial(BaseWeights.read, folder))

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

    def _model_facts(self) -> ModelFacts:
        flops = None
        if self.world.device.type == "cuda":
            # Counting takes up to a second, and only GPUs have a peak to compare it with.
            flops = self.objective.flops_per_sample()
        return ModelFacts(sum(parameter.numel() for parameter in self.objective.parameters()), flops)

    def _separate(self, text: Text) -> bool:
        """Try whether the model can keep documents apart, and else let it take rows as they are (collective)."""
        model: Any = self.objective.model
        ranks = self.settings.tensor_parallel
        length = max(1, min(16, text.context // 2) // ranks) * ranks
        self.objective.eval()
        with self.strategy.measuring(), torch.compiler.set_stance("force_eager"), self.precision.autocast():
            separates = separates_documents(model, text.vocabulary, length, self.world.device)
        self.objective.train()
        (failures,) = self.world.vote(not separates)
        if failures:
            model.keeps_documents = False
        return not failures

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


def load_for_all(settings: Settings, world: World) -> Data:
    """Load the data set (collective). Rank 0 is first, and caches token counts for the others."""
    loaded: list[Data] = []
    world.on_main(lambda: loaded.append(load_data(settings)))
    if loaded:
        return loaded[0]
    return load_data(settings)
