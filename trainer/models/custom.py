"""Networks that are defined elsewhere: configurations of `transformers`, and the user's own function."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from trainer.config import Settings
from trainer.config.schema import did_you_mean, is_own
from trainer.data.contract import Data, Images, Samples, Text
from trainer.errors import SettingsError, TrainerError, one_line
from trainer.models.wrappers import Logits
from trainer.own_code import call, check_options, explained

OWN_FUNCTION_NEEDED = "model: for samples of your own, give package.module:function"

# Keys that follow from the data and cannot be chosen.
_FROM_DATA = ("num_labels", "id2label", "label2id", "num_channels", "image_size")


def load_transformers() -> Any:
    """The transformers package, set to log nothing but errors. Raises TrainerError if it is not installed."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise TrainerError(f"this model needs transformers ({error}); pip install 'gputui[train]'") from None
    transformers.utils.logging.set_verbosity_error()
    return transformers


@contextmanager
def options_at_fault() -> Iterator[None]:
    """Turn errors of transformers about values that contradict each other into SettingsError."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise SettingsError(f"model or model_options: {one_line(error)}") from None


def make_config(config_class: Any, values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A configuration with `values`, of which `options` change some or add others.

    Raises SettingsError for values that do not fit, and for an option that is no key or that the data decides.
    """
    with options_at_fault():
        without_options = config_class(**values)
    aliases: Mapping[str, str] = config_class.attribute_map
    keys = {key for key in without_options.to_dict() if not key.startswith("_")} | set(aliases)
    for key in options:
        if key in _FROM_DATA:
            raise SettingsError(f"model_options: {key} cannot be set, it follows from the data")
    check_options("model", options, keys.difference(_FROM_DATA), config_class.model_type)
    chosen = {aliases.get(key, key): value for key, value in {**values, **options}.items()}
    with options_at_fault():
        return config_class(**chosen)


def vocabulary_size(settings: Settings, data: Text) -> int:
    """Tokens that a model must know: the data's, and for masked language modelling the mask after them."""
    if settings.task == "mlm":
        return data.vocabulary + 1
    return data.vocabulary


def check_room(config: Any, tokens: int, context: int) -> None:
    """Raise SettingsError if the configuration has less room than the data needs."""
    for key, needed in (("vocab_size", tokens), ("max_position_embeddings", context)):
        room = getattr(config, key, None)
        if isinstance(room, int) and room < needed:
            raise SettingsError(f"model: {key} is {room}, but the data needs at least {needed}")


def build_from_config_file(settings: Settings, data: Data) -> nn.Module:
    """The network that a config.json describes, with fresh weights.

    Number of classes, channels and image size are the data's. Code that a configuration names is never run.
    """
    hf = load_transformers()
    config = _read_config(hf, settings)
    if isinstance(data, Samples):
        raise SettingsError(OWN_FUNCTION_NEEDED)
    if isinstance(data, Images):
        _fit_to_images(config, settings, data)
        auto_model = hf.AutoModelForImageClassification
    else:
        _fit_to_text(config, settings, data)
        auto_model = hf.AutoModelForMaskedLM if settings.task == "mlm" else hf.AutoModelForCausalLM
    if type(config) not in auto_model._model_mapping:
        raise SettingsError(f"model: {settings.model} describes {config.model_type}, which cannot do {settings.task}")
    with options_at_fault():
        network = auto_model.from_config(config, trust_remote_code=False)
    return Logits(network)


def _read_config(hf: Any, settings: Settings) -> Any:
    """The configuration in the file that the setting `model` names."""
    try:
        values = json.loads(Path(settings.model).read_text(encoding="utf-8"))
        model_type = str(values.get("model_type"))
    except (OSError, ValueError, AttributeError) as error:
        raise SettingsError(f"model: {settings.model} is no configuration: {one_line(error)}") from None
    if model_type not in hf.CONFIG_MAPPING:
        hint = did_you_mean(model_type, hf.CONFIG_MAPPING.keys())
        raise SettingsError(f"model: {settings.model}: unknown model_type {model_type!r}{hint}")
    # Weights stay in fp32, and attention as transformers chooses it: precision is a separate setting.
    values |= {"dtype": "float32", "torch_dtype": None, "attn_implementation": None}
    return make_config(hf.CONFIG_MAPPING[model_type], values, settings.model_options)


def _fit_to_images(config: Any, settings: Settings, data: Images) -> None:
    channels, height, width = data.shape
    config.num_labels = 0 if settings.task == "contrastive" else len(data.classes)
    if hasattr(config, "num_channels"):
        config.num_channels = channels
    if hasattr(config, "image_size"):
        config.image_size = height if height == width else [height, width]


def _fit_to_text(config: Any, settings: Settings, data: Text) -> None:
    check_room(config, vocabulary_size(settings, data), data.context)
    config.use_cache = False
    if settings.task != "mlm" and getattr(config, "is_decoder", None) is False:
        config.is_decoder = True  # else models such as BERT would see the tokens that they are to predict


def build_from_function(settings: Settings, data: Data) -> nn.Module:
    """Call ``package.module:function`` with those of the data's facts that it takes, and with model_options.

    A task of one's own gets the module itself, any other a module whose output is one tensor. Raises SettingsError if
    the function cannot be found, does not take them, fails, or returns no module.
    """
    with explained("model", settings.model, "it fails"):
        model = call("model", settings.model, _facts(settings, data), settings.model_options)
    if not isinstance(model, nn.Module):
        raise SettingsError(f"model: {settings.model} returned {type(model).__name__}, not a torch.nn.Module")
    if is_own(settings.task):
        return model
    return Logits(model)


def _facts(settings: Settings, data: Data) -> dict[str, Any]:
    """What a user's function may want to know, by the names of its parameters."""
    facts: dict[str, Any] = {"task": settings.task}
    if isinstance(data, Samples):
        facts |= data.facts
    elif isinstance(data, Images):
        facts |= {"image_shape": data.shape, "classes": len(data.classes)}
    else:
        facts |= {"vocabulary": vocabulary_size(settings, data), "context": data.context}
    if settings.task == "contrastive":
        facts["embedding_size"] = settings.embedding_size
    return facts
