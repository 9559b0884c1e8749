"""The tasks: each is an `Objective`, from raw samples to a loss and to what is measured.

`language` has next-token and masked prediction, `vision` classification, `contrastive` InfoNCE over all ranks;
`augment` changes images. Read `objective` first.
"""

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

__all__ = ["Objective", "build_objective"]


def build_objective(settings: Settings, data: Data, model: nn.Module, world: World) -> Objective:
    """The task's objective for a model built for the same data. Raises SettingsError if nothing could be learnt."""
    if isinstance(data, Text):
        if settings.task == "lm":
            return NextToken(data, model, chunk=settings.loss_chunk)
        if data.marked:
            raise SettingsError(f"{settings.data_dir} has rows of documents, which are for --task lm, not mlm")
        return MaskedTokens(settings, data, model)
    if settings.task == "classify":
        return Classification(settings, data, model)
    if not settings.augment:
        raise SettingsError("--task contrastive compares two different views of each image: use --augment true")
    if settings.parallel == "data_parallel":
        raise SettingsError("--task contrastive compares images across devices; use --parallel ddp, not data_parallel")
    if settings.batch_size == 1 and world.size == 1:
        raise SettingsError("--task contrastive needs other images to compare with; use a --batch-size of 2 or more")
    return Contrastive(settings, data, model, world)
