"""The options that a script declares: a reader for each library that parses options. Nothing is imported or run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from gputui.profiles.init.parsers.absl_options import absl_options
from gputui.profiles.init.parsers.argparse_options import argparse_options
from gputui.profiles.init.parsers.class_options import dataclass_options, huggingface_options
from gputui.profiles.init.parsers.click_options import click_options, typer_options
from gputui.profiles.init.parsers.fire_options import fastcore_options, fire_options
from gputui.profiles.init.parsers.hydra_options import hydra_options
from gputui.profiles.init.parsers.nanogpt_options import nanogpt_options
from gputui.profiles.init.script_options import Module, Option, Style, decorators
from gputui.profiles.init.syntax import keyword

READERS: Mapping[Style, Callable[[Module], Iterator[Option]]] = {
    "argparse": argparse_options,
    "typer": typer_options,
    "click": click_options,
    "absl": absl_options,
    "fire": fire_options,
    "fastcore": fastcore_options,
    "hf": huggingface_options,
    "dataclass": dataclass_options,
    "hydra": hydra_options,
    "globals": nanogpt_options,
}

# Calls, decorators and keywords which show that options depend on more than their declarations.
_INDIRECT = ("add_subparsers", "set_defaults", "parse_known_args", "DEFINE_config_file", "add_typer")
_GROUPS = ("group", "callback")
_DEFAULTS_ELSEWHERE = {"default_config_files", "default_map", "auto_envvar_prefix", "fromfile_prefix_chars"}

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
"""A name that a parameter may have."""


class DeclaredOptions(Struct, frozen=True):
    """The options of one file. ``is_certain``: all of them, with no other source of defaults."""

    style: Style
    options: tuple[Option, ...]
    is_certain: bool


def declared_options(module: Module) -> DeclaredOptions | None:
    """The options that a file declares; None if it declares none."""
    readings = {style: options for style, reader in READERS.items() if (options := list(reader(module)))}
    if not readings:
        return None
    style, options = next(iter(readings.items()))
    # argparse and click may spell an option twice, as for a flag that turns another off.
    is_unique = style in ("argparse", "click") or len({option.name for option in options}) == len(options)
    is_certain = len(readings) == 1 and is_unique and _has_one_parser(module)
    usable = [option for group in readings.values() for option in group if _NAME.fullmatch(option.name)]
    return DeclaredOptions(style, tuple(usable), is_certain)


def _has_one_parser(module: Module) -> bool:
    """Return whether a file has no second parser or subcommand, and no defaults from elsewhere."""
    commands = [name for function in module.functions.values() for name in decorators(function)]
    parsers = len(module.calls_of("ArgumentParser", "Typer", "HfArgumentParser", "TrlParser"))
    keywords = {argument.arg for call in module.calls for argument in call.keywords}
    return (
        max(parsers, commands.count("command")) <= 1
        and not any(name in _GROUPS for name in commands)
        and not module.calls_of(*_INDIRECT)
        and not _DEFAULTS_ELSEWHERE & keywords
        and not module.imports("configargparse")
        and not any(keyword(call, "config_path") for call in module.calls_of("wrap", "parse"))
    )
