"""The user's own networks: from a function, or from a Hugging Face configuration file."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from trainer.config import Settings
from trainer.config.problems import nearest
from trainer.data.contract import Data, Images
from trainer.errors import SettingsError
from trainer.models.huggingface import FROM_DATA, check_options, check_room, fitting, known_keys, library, vocabulary
from trainer.models.own import Logits


def from_function(settings: Settings, data: Data) -> nn.Module:
    """Call ``package.module:function`` with those of the data's facts that it takes, and with model_options.

    Facts are `task` and, for images, `image_shape` (channels, height, width) and `classes`, for text `vocabulary` and
    `context`, and for contrastive learning `embedding_size`. The module it returns maps one tensor to a tensor or to a
    Hugging Face output. Raises SettingsError if the function cannot be found or called; its own errors pass.
    """
    function = _function(settings.model)
    options = settings.model_options
    parameters = inspect.signature(function).parameters.values()
    named = {each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    facts = {key: value for key, value in _facts(settings, data).items() if takes_any or key in named}
    if not takes_any:
        check_options(options, named, settings.model)
    for parameter in parameters:
        name = parameter.name
        if name in named and parameter.default is parameter.empty and name not in facts and name not in options:
            raise SettingsError(f"model: {settings.model} needs {name}; give it in model_options")
    model = function(**{**facts, **options})
    if not isinstance(model, nn.Module):
        raise SettingsError(f"model: {settings.model} returned {type(model).__name__}, not a torch.nn.Module")
    return Logits(model)


def from_config_file(settings: Settings, data: Data) -> tuple[nn.Module, int | None]:
    """The network that a config.json describes, with fresh weights, and the size of its features if it is known.

    Number of classes, channels and image size are the data's; a language model must have room for the data's tokens.
    Code that a configuration names is never run. Raises SettingsError.
    """
    hf = library()
    config = _configuration(hf, Path(settings.model), settings.model_options)
    if isinstance(data, Images):
        channels, height, width = data.shape
        config.num_labels = 0 if settings.task == "contrastive" else len(data.classes)
        for key, value in (("num_channels", channels), ("image_size", height if height == width else [height, width])):
            if hasattr(config, key):
                setattr(config, key, value)
        family = hf.AutoModelForImageClassification
    else:
        check_room(config, vocabulary(settings, data), data.context)
        config.use_cache = False
        family = hf.AutoModelForCausalLM if settings.task == "lm" else hf.AutoModelForMaskedLM
    if type(config) not in family._model_mapping:
        raise SettingsError(f"model: {settings.model} describes {config.model_type}, which cannot do {settings.task}")
    if settings.task == "lm" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # else models such as BERT would see the tokens that they are to predict
    model = fitting(lambda: family.from_config(config, trust_remote_code=False), where=f"model: {settings.model}")
    sizes = getattr(config, "hidden_sizes", None) or [getattr(config, "hidden_size", None)]
    return Logits(model), sizes[-1]


def _configuration(hf: Any, path: Path, options: Mapping[str, Any]) -> Any:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"model: {path}: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"model: {path} is no JSON: {error}") from None
    kinds = hf.CONFIG_MAPPING
    kind = values.get("model_type") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        near = nearest(str(kind), kinds.keys())
        raise SettingsError(f"model: {path}: unknown model_type {kind!r}" + (f"; did you mean {near}?" if near else ""))
    config = fitting(lambda: kinds[kind].from_dict(values), where=f"model: {path}")
    check_options(options, known_keys(config), kind, decided=FROM_DATA)
    aliases = config.attribute_map
    chosen = {aliases.get(key, key): value for key, value in options.items()}
    # Weights stay in fp32, independent of the file: precision is a separate setting.
    return fitting(lambda: kinds[kind].from_dict({**values, **chosen, "dtype": "float32", "torch_dtype": None}))


def _function(name: str) -> Callable[..., Any]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise SettingsError(f"model: {module_name!r} is no module's name (for {name})")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing import inside the user's module is that module's error, not a wrong name.
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise SettingsError(f"model: no module named {error.name} (for {name})") from None
    value = getattr(module, attribute, None)
    if not callable(value):
        near = nearest(attribute, [key for key in vars(module) if callable(getattr(module, key))])
        raise SettingsError(
            f"model: {module_name} has no function {attribute!r}" + (f"; did you mean {near}?" if near else "")
        )
    function: Callable[..., Any] = value
    return function


def _facts(settings: Settings, data: Data) -> dict[str, Any]:
    if isinstance(data, Images):
        facts: dict[str, Any] = {"image_shape": data.shape, "classes": len(data.classes)}
    else:
        facts = {"vocabulary": vocabulary(settings, data), "context": data.context}
    if settings.task == "contrastive":
        facts["embedding_size"] = settings.embedding_size
    return {"task": settings.task, **facts}
