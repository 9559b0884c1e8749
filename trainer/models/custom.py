"""Networks that are defined elsewhere: configurations of `transformers`, and the user's own function."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import nn

from trainer.config import Settings
from trainer.config.schema import did_you_mean
from trainer.data.contract import Data, Images, Text
from trainer.errors import SettingsError, TrainerError, one_line
from trainer.models.own import Logits

T = TypeVar("T")

# Keys that follow from the data and cannot be chosen.
_FROM_DATA = ("num_labels", "id2label", "label2id", "num_channels", "image_size")


def library() -> Any:
    """The transformers package, set to log nothing but errors. Raises TrainerError if it is not installed."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise TrainerError(f"this model needs transformers ({error}); pip install 'gputui[train]'") from None
    transformers.utils.logging.set_verbosity_error()
    return transformers


def fitting(make: Callable[[], T]) -> T:
    """The result of `make`. Raises SettingsError if the values that were given contradict each other."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        return make()
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise SettingsError(f"model or model_options: {one_line(error)}") from None


def configuration(kind: Any, values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A configuration of class `kind` with `values`, of which `options` change some or add others.

    Raises SettingsError for values that do not fit, and for an option that is no key or that the data decides.
    """
    aliases: Mapping[str, str] = kind.attribute_map
    keys = {key for key in fitting(lambda: kind(**values)).to_dict() if not key.startswith("_")} | set(aliases)
    for key in options:
        if key in _FROM_DATA:
            raise SettingsError(f"model_options: {key} cannot be set, it follows from the data")
    _check_options(options, keys.difference(_FROM_DATA), kind.model_type)
    chosen = {aliases.get(key, key): value for key, value in {**values, **options}.items()}
    return fitting(lambda: kind(**chosen))


def vocabulary(settings: Settings, data: Text) -> int:
    """Tokens that a model must know: the data's, and for masked language modelling the mask after them."""
    return data.vocabulary + (settings.task == "mlm")


def check_room(config: Any, tokens: int, context: int) -> None:
    """Raise SettingsError if the configuration has less room than the data needs."""
    for key, needed in (("vocab_size", tokens), ("max_position_embeddings", context)):
        room = getattr(config, key, None)
        if isinstance(room, int) and room < needed:
            raise SettingsError(f"model: {key} is {room}, but the data needs at least {needed}")


def from_config_file(settings: Settings, data: Data) -> nn.Module:
    """The network that a config.json describes, with fresh weights.

    Number of classes, channels and image size are the data's. Code that a configuration names is never run.
    """
    hf = library()
    where = f"model: {settings.model}"
    try:
        values = json.loads(Path(settings.model).read_text(encoding="utf-8"))
        kind = str(values.get("model_type"))
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(f"{where} is no configuration: {one_line(error)}") from None
    if kind not in hf.CONFIG_MAPPING:
        raise SettingsError(f"{where}: unknown model_type {kind!r}{did_you_mean(kind, hf.CONFIG_MAPPING.keys())}")
    # Weights stay in fp32, and attention as transformers chooses it: precision is a separate setting.
    values |= {"dtype": "float32", "torch_dtype": None, "attn_implementation": None}
    config = configuration(hf.CONFIG_MAPPING[kind], values, settings.model_options)
    if isinstance(data, Images):
        channels, height, width = data.shape
        config.num_labels = 0 if settings.task == "contrastive" else len(data.classes)
        facts = {"num_channels": channels, "image_size": height if height == width else [height, width]}
        for key, value in facts.items():
            if hasattr(config, key):
                setattr(config, key, value)
        family = hf.AutoModelForImageClassification
    else:
        check_room(config, vocabulary(settings, data), data.context)
        config.use_cache = False
        family = hf.AutoModelForCausalLM if settings.task == "lm" else hf.AutoModelForMaskedLM
    if type(config) not in family._model_mapping:
        raise SettingsError(f"{where} describes {config.model_type}, which cannot do {settings.task}")
    if settings.task == "lm" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # else models such as BERT would see the tokens that they are to predict
    return Logits(fitting(lambda: family.from_config(config, trust_remote_code=False)))


def from_function(settings: Settings, data: Data) -> nn.Module:
    """Call ``package.module:function`` with those of the data's facts that it takes, and with model_options.

    Raises SettingsError if the function cannot be found or does not take them; its own errors pass.
    """
    facts: dict[str, Any] = {"task": settings.task}
    if isinstance(data, Images):
        facts |= {"image_shape": data.shape, "classes": len(data.classes)}
    else:
        facts |= {"vocabulary": vocabulary(settings, data), "context": data.context}
    if settings.task == "contrastive":
        facts["embedding_size"] = settings.embedding_size
    options = settings.model_options
    try:
        function = pkgutil.resolve_name(settings.model)
        signature = inspect.signature(function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise SettingsError(f"model: {settings.model} cannot be used: {one_line(error)}") from None
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        _check_options(options, signature.parameters, settings.model)
        facts = {key: value for key, value in facts.items() if key in signature.parameters}
    arguments = {**facts, **options}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SettingsError(f"model: {settings.model}: {error}; give it in model_options") from None
    model = function(**arguments)
    if not isinstance(model, nn.Module):
        raise SettingsError(f"model: {settings.model} returned {type(model).__name__}, not a torch.nn.Module")
    return Logits(model)


def _check_options(options: Mapping[str, Any], names: Collection[str], whose: str) -> None:
    for key in options:
        if key not in names:
            raise SettingsError(f"model_options: {whose} has no {key}{did_you_mean(key, names)}")
