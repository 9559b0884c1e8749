"""The objective that the settings ask for."""

from __future__ import annotations

from torch import nn

from trainer.config import Settings
from trainer.data.contract import Data, Text
from trainer.errors import SettingsError
from trainer.tasks.contrastive import Contrastive
from trainer.tasks.language import MaskedTokens, NextToken
from trainer.tasks.objective import Objective
from trainer.tasks.vision import Classification
from trainer.world import World


def build_objective(settings: Settings, data: Data, model: nn.Module, world: World) -> Objective:
    """The task's objective for a model that `trainer.models` built for the same data; `world` has the phase's ranks.

    Raises SettingsError if nothing could be learnt.
    """
    if isinstance(data, Text):
        if settings.task == "lm":
            return NextToken(data, model, chunk=settings.loss_chunk)
        if data.marked:
            raise SettingsError(f"{settings.data_dir} has rows of documents, which are for --task lm, not mlm")
        return MaskedTokens(settings, data, model)
    if settings.task == "classify":
        return Classification(settings, data, model)
    _check_contrastive(settings, world)
    return Contrastive(settings, data, model, world)


def _check_contrastive(settings: Settings, world: World) -> None:
    if not settings.augment:
        raise SettingsError("--task contrastive compares two different views of each image: use --augment true")
    if settings.parallel == "data_parallel":
        raise SettingsError("--task contrastive compares images across devices; use --parallel ddp, not data_parallel")
    if settings.batch_size == 1 and world.size == 1:
        raise SettingsError("--task contrastive needs other images to compare with; use a --batch-size of 2 or more")
