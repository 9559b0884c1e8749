"""Training a part of a network: low-rank adapters (LoRA) by peft, or the parameters whose names match a pattern.

All other parameters are frozen: they have no gradients and no optimizer state, and a checkpoint leaves out those that
are in the folder of --weights.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.config import Settings
from trainer.config.schema import did_you_mean
from trainer.errors import SettingsError, one_line
from trainer.models.weights import base_name, name_in_files, network_of


def choose_trained(model: nn.Module, settings: Settings, fresh: Collection[str]) -> frozenset[str]:
    """Freeze what --lora or --train-only leaves out.

    `fresh` names what is not in the folder of --weights. Returns the names of the tensors that stay as they are there.
    Raises SettingsError if the model has no such layers or parameters.
    """
    if settings.lora:
        network, prefix = network_of(model)
        names = [name.removeprefix(prefix) for name in fresh if name.startswith(prefix)]
        add_adapters(network, settings, names)
        if settings.precision == "bf16":
            for parameter in model.parameters():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
    elif settings.train_only:
        _freeze_all_but(model, settings.train_only)
    else:
        return frozenset()
    if settings.weights is None:
        return frozenset()
    parameters = model.named_parameters(remove_duplicate=False)
    return frozenset(name for name, parameter in parameters if not parameter.requires_grad).difference(fresh)


def add_adapters(network: Any, settings: Settings, fresh: Iterable[str]) -> Any:
    """Put adapters into a network of transformers, in place, and freeze the rest of it but for its `fresh` parts.

    Adapters change nothing at first. Returns peft's model around the network. Raises SettingsError.
    """
    peft = _load_peft()
    if not hasattr(network, "base_model_prefix"):
        raise SettingsError("--lora needs a model of transformers, such as smollm-135m or a config.json")
    base = base_name(network)
    for layer in settings.lora_modules:
        _require_layer(network, layer)
    defaults = peft.utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    options: dict[str, Any] = {}
    if settings.lora_modules:
        options["target_modules"] = list(settings.lora_modules)
    else:
        options["target_modules"] = defaults.get(network.config.model_type) or "all-linear"
        if base:
            # The head: whole names that do not begin with the part below it.
            options["exclude_modules"] = rf"(?!{re.escape(base)}\.).*"
    if settings.task == "lm":
        options["task_type"] = "CAUSAL_LM"
    config = peft.LoraConfig(
        r=settings.lora,
        lora_alpha=settings.lora_alpha or 2 * settings.lora,
        lora_dropout=settings.dropout,
        modules_to_save=_outermost(fresh, base) or None,
        **options,
    )
    network.name_or_path = str(Path(settings.weights or "").resolve())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what peft sets right by itself
        try:
            model = peft.get_peft_model(network, config)
        except ValueError as error:
            raise SettingsError(f"--lora: {one_line(error).partition('. ')[0]}") from None
    # Merging an adapter into tied weights would change the other layer, too.
    places = list(network.named_parameters(remove_duplicate=False))
    counts = Counter(parameter for _, parameter in places)
    for name, parameter in places:
        layer, _, _ = name.partition(".base_layer.")
        if layer != name and counts[parameter] > 1:
            raise SettingsError(f"--lora-modules: {layer} shares its weights with another layer; leave it out")
    return model


def _require_layer(network: nn.Module, layer: str) -> None:
    """Raise SettingsError unless a layer has this name, or one that ends in it."""
    names = [name for name, _ in network.named_modules()]
    if not any(f".{name}".endswith(f".{layer}") for name in names):
        ends = {name.rpartition(".")[2] for name, module in network.named_modules() if isinstance(module, nn.Linear)}
        near = did_you_mean(layer, ends) or f"; linear layers are {', '.join(sorted(ends))}"
        raise SettingsError(f"--lora-modules: the model has no layer {layer}{near}")


def _load_peft() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise SettingsError(f"--lora needs peft ({error}); pip install 'gputui[lora]'") from None


def _outermost(fresh: Iterable[str], base: str) -> list[str]:
    """The parts of a network that such parameters belong to, whole: ``classifier``, or of its base ``bert.pooler``."""
    parts = set[str]()
    for name in fresh:
        first, *inner = name.split(".")
        if first == base:
            parts.add(f"{first}.{inner[0]}")
        else:
            parts.add(first)
    return sorted(parts)


def _freeze_all_but(model: nn.Module, pattern: str) -> None:
    trainable = {
        name_in_files(model, name): parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    names = list(trainable)
    if not any(re.search(pattern, name) for name in names):
        parts = {part for name in names for part in name.split(".")}
        near = did_you_mean(pattern, [*names, *parts]) or f"; names are such as {names[0]} and {names[-1]}"
        raise SettingsError(f"--train-only: no parameter's name matches {pattern!r}{near}")
    for name, parameter in trainable.items():
        parameter.requires_grad_(re.search(pattern, name) is not None)
