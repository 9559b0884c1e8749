"""From settings and data to a network: by name, from a configuration file or from the user's own function."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trainer.config import Settings
from trainer.config.problems import nearest
from trainer.data.contract import Data, Images, Text
from trainer.errors import SettingsError
from trainer.models import custom, language, vision
from trainer.models.blocks import apply_recompute
from trainer.models.own import SMALLEST_IMAGE, ByteTransformer, Embedder, SmallCnn
from trainer.models.weights import WeightsReport, load_weights

_IMAGE_NAMES = ("cnn", *vision.NAMES)
NAMES = {
    "classify": _IMAGE_NAMES,
    "contrastive": _IMAGE_NAMES,
    "lm": ("bytes", *language.CAUSAL_NAMES),
    "mlm": language.MASKED_NAMES,
}
_AUTO = {"classify": "cnn", "contrastive": "cnn", "lm": "bytes", "mlm": "bert-tiny"}


@dataclass(frozen=True)
class Built:
    """A network that maps one tensor to one tensor, and what came of `settings.weights` (None: none given)."""

    name: str
    model: nn.Module
    weights: WeightsReport | None


def build_model(settings: Settings, data: Data) -> nn.Module:
    """The network of `build` alone."""
    return build(settings, data).model


def build(settings: Settings, data: Data) -> Built:
    """The network that the settings ask for, fitted to the data, in training mode, on torch's default device.

    Float images [n, channels, height, width] give logits [n, classes], or for contrastive learning vectors
    [n, embedding_size] that are not normalised. Tokens [n, time], time up to the data's context, give logits
    [n, time, tokens], where tokens are the data's vocabulary or more. Fresh weights come from torch's global random
    state, so ranks with the same seed have the same ones. Raises SettingsError for a model that is unknown or does not
    suit task and data, and TrainerError where weights do not fit.
    """
    needed = "images" if settings.task in ("classify", "contrastive") else "text"
    given = "images" if isinstance(data, Images) else "text"
    if given != needed:
        raise SettingsError(
            f"--task {settings.task} needs {needed}, but --data {settings.data} gives {given}; change one of the two"
        )
    if settings.model == "auto":
        settings = settings.model_copy(update={"model": _AUTO[settings.task]})
    model = _network(settings, data)
    model.train()
    report = load_weights(model, settings.weights) if settings.weights is not None else None
    apply_recompute(model, settings.gradient_checkpointing)
    if settings.compile != "off":
        _check_compilable(model, settings)
    return Built(settings.model, model, report)


def _check_compilable(model: nn.Module, settings: Settings) -> None:
    """Raises SettingsError for models that this torch compiles to something else, or not at all."""
    if torch.__version__ < "2.7" and any(
        type(module).__module__.startswith("transformers.") for module in model.modules()
    ):
        raise SettingsError(
            f"--compile needs torch 2.7 or newer for a model of transformers; this is {torch.__version__}"
        )
    # Compiled before 2.9, recomputation counts a batch twice in running statistics.
    recomputes = settings.gradient_checkpointing != "none"
    if torch.__version__ < "2.9" and recomputes and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise SettingsError(
            "--compile with --gradient-checkpointing needs torch 2.9 or newer for a model with batch norms; "
            f"this is {torch.__version__}"
        )


def _network(settings: Settings, data: Data) -> nn.Module:
    name = settings.model
    if Path(name).suffix == ".json":
        model, feature_size = custom.from_config_file(settings, data)
        return _embedder(settings, model, feature_size) if settings.task == "contrastive" else model
    if ":" in name:
        return custom.from_function(settings, data)
    _check_name(name, settings.task)
    if isinstance(data, Text):
        return _language(settings, data)
    classes = 0 if settings.task == "contrastive" else len(data.classes)
    model, feature_size = _vision(settings, data.shape, classes)
    return _embedder(settings, model, feature_size) if settings.task == "contrastive" else model


def _check_name(name: str, task: str) -> None:
    names = NAMES[task]
    if name in names:
        return
    if any(name in others for others in NAMES.values()):
        raise SettingsError(f"model: {name} cannot do {task}; use {', '.join(names)}")
    near = nearest(name, names)
    raise SettingsError(
        f"model: unknown model {name!r}; "
        + (f"did you mean {near}?" if near else f"use {', '.join(names)}, a config.json or package.module:function")
    )


def _vision(settings: Settings, shape: tuple[int, int, int], classes: int) -> tuple[nn.Module, int]:
    if settings.model != "cnn":
        return vision.build(settings, shape, classes)
    _no_options(settings)
    if min(shape[1:]) < SMALLEST_IMAGE:
        raise SettingsError(f"model: cnn needs images of 8x8 pixels or more, not {shape[1]}x{shape[2]}; set image_size")
    cnn = SmallCnn(shape, classes, width=settings.width, depth=settings.depth, dropout=settings.dropout)
    return cnn, cnn.feature_size


def _language(settings: Settings, data: Text) -> nn.Module:
    if settings.model != "bytes":
        return language.build(settings, custom.vocabulary(settings, data), data.context)
    _no_options(settings)
    return ByteTransformer(
        data.vocabulary, data.context, width=settings.width, depth=settings.depth, dropout=settings.dropout
    )


def _embedder(settings: Settings, backbone: nn.Module, feature_size: int | None) -> Embedder:
    if feature_size is None:
        raise SettingsError(
            f"model: {settings.model} does not tell the size of its features; use package.module:function"
        )
    return Embedder(backbone, feature_size, settings.embedding_size)


def _no_options(settings: Settings) -> None:
    if settings.model_options:
        raise SettingsError(f"model_options: {settings.model} has none; set width, depth and dropout")
