"""Local SGD: ranks step independently, and average their weights every few steps.

Stich (2019), "Local SGD Converges Fast and Communicates Little", arXiv:1805.09767.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch.distributed as dist
from torch import Tensor

from trainer.config import Settings
from trainer.parallel.collectives import all_reduce_mean, broadcast_from_main
from trainer.parallel.plain import Plain
from trainer.parallel.strategy import OptimizerState
from trainer.tasks.objective import Objective
from trainer.world import World


class LocalSgd(Plain):
    """Ranks differ between averages, so validation and state average first.

    Since saving averages the live weights, too, a resumed run equals the uninterrupted one.
    """

    def __init__(self, settings: Settings, objective: Objective, world: World) -> None:
        super().__init__(settings, objective, world)
        # A step has no collective, unless the objective's forward has.
        self.can_settle = not objective.exchanges
        self._every = settings.average_every
        broadcast_from_main(objective.model.state_dict().values(), world)

    def clip(self, max_norm: float) -> Tensor:
        """Clip by this rank's norm. Returns the root mean square of all norms, which is not finite if any of them is.

        So all ranks end the run in the same step, before any of them saves.
        """
        square = super().clip(max_norm).double() ** 2 / self.world.size
        dist.all_reduce(square, group=self.world.group)
        return square.sqrt()

    def after_update(self, step: int) -> None:
        super().after_update(step)
        if step % self._every == 0:
            self._average_weights()

    def before_measuring(self) -> None:
        self._average_weights()

    def gather(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        averages = {name: shard.clone() for name, shard in shards.items()}
        all_reduce_mean(averages.values(), self.world)
        return averages

    def _average_weights(self) -> None:
        all_reduce_mean(self.objective.model.state_dict().values(), self.world)

    def model_state(self) -> dict[str, Tensor]:
        self._average_weights()
        return super().model_state()

    def optimizer_state(self) -> OptimizerState:
        state = super().optimizer_state()
        all_reduce_mean(self._moments(state), self.world)
        return state

    def _moments(self, state: OptimizerState) -> Iterator[Tensor]:
        for values in state.values():
            yield from (value for key, value in values.items() if key != "step" and isinstance(value, Tensor))
