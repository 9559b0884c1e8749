"""The tasks: each is an `Objective`, from raw samples to a loss and to what is measured. Read `objective` first."""

from __future__ import annotations

from torch import nn

from trainer.config import Settings
from trainer.config.schema import is_own
from trainer.data.contract import Data, Samples, Text
from trainer.errors import SettingsError
from trainer.tasks.contrastive import Contrastive
from trainer.tasks.language import MaskedTokens, NextToken
from trainer.tasks.objective import Objective
from trainer.tasks.own import own_objective
from trainer.tasks.vision import Classification
from trainer.world import World

__all__ = ["Objective", "build_objective"]


def build_objective(settings: Settings, data: Data, model: nn.Module, world: World) -> Objective:
    """The task's objective for a model built for the same data. Raises SettingsError if nothing could be learnt."""
    objective: Objective
    if is_own(settings.task) or isinstance(data, Samples):
        objective = own_objective(settings, data, model)
    elif isinstance(data, Text) and settings.task == "lm":
        objective = NextToken(settings, data, model)
    elif isinstance(data, Text):
        objective = MaskedTokens(settings, data, model)
    elif settings.task == "classify":
        objective = Classification(settings, data, model)
    else:
        objective = Contrastive(settings, data, model, world)
    measured = [f"val/{name}" for name in objective.metrics]
    if settings.best_checkpoint and settings.best_metric not in measured:
        raise SettingsError(f"--best-metric {settings.best_metric} is not measured; it can be {', '.join(measured)}")
    return objective
