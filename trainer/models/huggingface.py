"""What all models from `transformers` share: the library itself, and configurations that a person may change."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from trainer.config import Settings
from trainer.config.problems import nearest
from trainer.data.contract import Text
from trainer.errors import SettingsError, TrainerError, one_line

T = TypeVar("T")

# Keys that follow from the data and cannot be chosen.
FROM_DATA = ("num_labels", "id2label", "label2id", "num_channels", "image_size")


def imported(name: str) -> Any:
    """A module of a library that only some models need. Raises TrainerError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise TrainerError(f"this model needs {name} ({error}); pip install 'gputui[train]'") from None


def library() -> Any:
    """The transformers package, set to log nothing but errors. Raises TrainerError if it is not installed."""
    transformers = imported("transformers")
    transformers.utils.logging.set_verbosity_error()
    return transformers


def configuration(kind: Any, values: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """A configuration of class `kind` with `values`, of which `options` change some or add others.

    Raises SettingsError for an option that is no key of the configuration, that the data decides, or that does not fit.
    """
    aliases: Mapping[str, str] = kind.attribute_map
    check_options(options, known_keys(kind()), kind.__name__, decided=FROM_DATA)
    chosen = {aliases.get(key, key): value for key, value in {**values, **options}.items()}
    config = fitting(lambda: kind(**chosen))
    width, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if isinstance(width, int) and isinstance(heads, int) and width % heads:
        raise SettingsError(
            f"model_options: hidden_size must be a multiple of num_attention_heads, got {width} / {heads}"
        )
    return config


def known_keys(config: Any) -> set[str]:
    """The keys of a configuration that may be set, among them those that are other words for the same."""
    return {key for key in config.to_dict() if not key.startswith("_")} | set(config.attribute_map)


def check_options(
    options: Mapping[str, Any], known: Collection[str], whose: str, decided: Collection[str] = ()
) -> None:
    """Raises SettingsError for the first of model_options that is not `known`, or that the data has `decided`."""
    for key in options:
        if key in decided:
            raise SettingsError(f"model_options: {key} cannot be set, it follows from the data")
        if key not in known:
            near = nearest(key, set(known) - set(decided))
            raise SettingsError(f"model_options: {whose} has no {key}" + (f"; did you mean {near}?" if near else ""))


def fitting(make: Callable[[], T], where: str = "model_options") -> T:
    """What `make` returns. Raises SettingsError if the values given at `where` contradict each other."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        return make()
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise SettingsError(f"{where}: {one_line(error)}") from None


def vocabulary(settings: Settings, data: Text) -> int:
    """Tokens that a model must know: the data's, and for masked language modelling the mask after them."""
    return data.vocabulary + (settings.task == "mlm")


def check_room(config: Any, tokens: int, context: int) -> None:
    """Raise SettingsError if the configuration has less room than the data needs."""
    for key, needed in (("vocab_size", tokens), ("max_position_embeddings", context)):
        room = getattr(config, key, None)
        if isinstance(room, int) and room < needed:
            raise SettingsError(f"model: {key} is {room}, but the data needs at least {needed}")
