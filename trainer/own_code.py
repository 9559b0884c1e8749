"""The user's own code, named ``package.module:name`` in a setting: finding it, calling it, and words for its errors."""

from __future__ import annotations

import inspect
import pkgutil
import sysconfig
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainer.config.schema import did_you_mean
from trainer.errors import SettingsError, TrainerError, one_line


def call(setting: str, name: str, facts: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Call what `name` names with those of the facts that it takes, and with all options.

    Raises SettingsError if it cannot be found or does not take the options; its own errors pass.
    """
    try:
        function = pkgutil.resolve_name(name)
        signature = inspect.signature(function)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise SettingsError(f"{setting}: {name} cannot be used: {one_line(error)}") from None
    parameters = signature.parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_any:
        check_options(setting, options, parameters, name)
        facts = {key: value for key, value in facts.items() if key in parameters}
    arguments = {**facts, **options}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SettingsError(f"{setting}: {name}: {error}; give it in {setting}_options") from None
    return function(**arguments)


def check_options(setting: str, options: Mapping[str, Any], names: Collection[str], whose: str) -> None:
    """Raise SettingsError for an option that is none of the names."""
    for key in options:
        if key not in names:
            raise SettingsError(f"{setting}_options: {whose} has no {key}{did_you_mean(key, names)}")


@contextmanager
def explained(setting: str, name: str, doing: str) -> Iterator[None]:
    """Turn an error of the user's code into a SettingsError that names the line it comes from."""
    try:
        yield
    except TrainerError:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = next((frame for frame in reversed(frames) if _is_users(frame.filename)), frames[-1])
        kind = type(error).__name__
        raise SettingsError(
            f"{setting}: {name}: {doing}: {kind}: {one_line(error)} ({place.filename}:{place.lineno})"
        ) from error


def _is_users(path: str) -> bool:
    """Return whether a source file is neither the trainer's, nor Python's or an installed package's."""
    others = {str(Path(__file__).parent), *sysconfig.get_paths().values()}
    return not any(path.startswith((f"{folder}/", "<")) for folder in others)
