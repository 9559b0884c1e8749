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
    """The model with what it is trained for, where the model is; `world` is the ranks that take part.

    Raises SettingsError if the data is of another kind than the task needs, or nothing could be learnt.
    """
    if isinstance(data, Text):
        if settings.task == "lm":
            return NextToken(data, model, chunk=settings.loss_chunk)
        if settings.task == "mlm":
            if data.marked:
                raise SettingsError(f"{settings.data_dir} has rows of documents, which are for --task lm, not mlm")
            return MaskedTokens(settings, data, model)
        raise SettingsError(_wrong_kind(settings, "images", "text"))
    if settings.task == "classify":
        return Classification(settings, data, model)
    if settings.task == "contrastive":
        _check_contrastive(settings, world)
        return Contrastive(settings, data, model, world)
    raise SettingsError(_wrong_kind(settings, "text", "images"))


def _wrong_kind(settings: Settings, needed: str, given: str) -> str:
    return f"--task {settings.task} needs {needed}, but --data {settings.data} gives {given}; change one of the two"


def _check_contrastive(settings: Settings, world: World) -> None:
    if not settings.augment:
        raise SettingsError("--task contrastive compares two different views of each image: use --augment true")
    if settings.parallel == "data_parallel":
        raise SettingsError("--task contrastive compares images across devices; use --parallel ddp, not data_parallel")
    if settings.batch_size == 1 and world.size == 1:
        raise SettingsError("--task contrastive needs other images to compare with; use a --batch-size of 2 or more")
