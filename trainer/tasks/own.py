"""A task from the user's own class, tried out on the first samples before anything is trained."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from trainer.config import Settings
from trainer.data.contract import BrokenSample, Data, Fields
from trainer.errors import SettingsError
from trainer.own_code import call, explained
from trainer.precision import Precision
from trainer.tasks.objective import Objective
from trainer.world import World

_TRIED = 2  # samples: one would hide a loss that is not a mean


def own_objective(settings: Settings, data: Data, model: nn.Module) -> Objective:
    """Make the objective of ``package.module:Class`` from `model`, `data`, settings that it takes, and task_options.

    Raises SettingsError if it is none, or has parameters that the model does not have.
    """
    facts = {**dict(settings), "data": data, "model": model}
    with explained("task", settings.task, "it fails"):
        objective = call("task", settings.task, facts, settings.task_options)
    if not isinstance(objective, Objective):
        raise SettingsError(f"task: {settings.task} is no subclass of trainer.tasks.Objective")
    if type(objective).forward is Objective.forward:
        raise SettingsError(f"task: {settings.task} has no forward, which returns the mean loss of a batch")
    trained = set(model.parameters())
    outside = [name for name, parameter in objective.named_parameters() if parameter not in trained]
    if outside:
        raise SettingsError(f"task: {settings.task}: only the model is trained and saved: put {outside[0]} into it")
    return objective


def try_out(
    objective: Objective, data: Data, settings: Settings, world: World, precision: Precision, *, with_gradients: bool
) -> None:
    """Compute the loss and the measures of the first samples (collective). Weights, buffers and random state stay as
    they are.

    Samples that cannot be read tell nothing. With sharded weights no gradients may be computed. Raises SettingsError.
    """
    name = settings.task
    device = world.device
    positions = np.arange(min(_TRIED, len(data.train)))
    raw: Fields = {}
    with contextlib.suppress(BrokenSample):  # it is replaced in training
        raw = data.train.read(positions)
    (broken,) = world.vote(not raw)
    if broken:
        return
    objective.eval()
    before = [(buffer, buffer.clone()) for buffer in objective.buffers()]
    devices = [device] if device.type == "cuda" else []
    with (
        explained("task", name, "its loss cannot be computed"),
        torch.random.fork_rng(devices=devices),
        torch.compiler.set_stance("force_eager"),
        precision.autocast(),
    ):
        fields = objective.transform(training=True)(raw, positions)
        with torch.set_grad_enabled(with_gradients):
            _check_loss(objective({key: tensor.to(device) for key, tensor in fields.items()}), name)
        held_out = objective.transform(training=False)(raw, positions)
        with torch.no_grad():
            measured = objective.measure({key: tensor.to(device) for key, tensor in held_out.items()})
            for buffer, value in before:
                buffer.copy_(value)
        if type(objective).joined is Objective.joined:
            _check_measures(objective, measured, name)
    objective.train()


def _check_loss(loss: object, name: str) -> None:
    if not isinstance(loss, Tensor) or loss.dim():
        shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise SettingsError(f"task: {name}: forward returns {shape}, not the mean loss of its samples, a tensor ()")
    value = float(loss.detach())
    if not math.isfinite(value):
        raise SettingsError(f"task: {name}: the loss of the first samples is {value}")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise SettingsError(f"task: {name}: the loss does not depend on any parameter that is trained")


def _check_measures(objective: Objective, measured: Mapping[str, Tensor | float], name: str) -> None:
    if not isinstance(measured, Mapping) or not {"loss", "count"} <= measured.keys():
        returned = ", ".join(measured) if isinstance(measured, Mapping) else type(measured).__name__
        raise SettingsError(f"task: {name}: measure returns {returned}: sums of loss and count are missing")
    for key, value in measured.items():
        if isinstance(value, Tensor) and value.dim():
            raise SettingsError(f"task: {name}: measure returns {key} of shape {tuple(value.shape)}, not a sum ()")
    if not float(measured["count"]):
        raise SettingsError(f"task: {name}: measure counts nothing in the first samples")
    means = objective.summary({key: float(value) for key, value in measured.items()})
    if set(means) != set(objective.metrics):
        raise SettingsError(
            f"task: {name}: it measures {', '.join(sorted(means))}, but metrics says {', '.join(objective.metrics)}"
        )
