"""Flags of absl."""

from __future__ import annotations

from collections.abc import Iterator

from gputui.profiles.init.script_options import Module, Option
from gputui.profiles.init.syntax import constant, is_known, keyword, last_name, text_of


def absl_options(module: Module) -> Iterator[Option]:
    """``flags.DEFINE_integer("batch_size", 32, "Batch size.")``."""
    for call in module.calls:
        define, _, kind = last_name(call.func).partition("_")
        if define != "DEFINE" or len(call.args) < 2 or not (name := text_of(call.args[0])):
            continue
        default = call.args[1]
        short = text_of(keyword(call, "short_name"))
        is_flag = kind in ("bool", "boolean")
        others = [f"-{name}"]
        negatives = []
        if short:
            others += [f"--{short}", f"-{short}"]
        if is_flag:
            negatives = [f"--no{name}"]
        yield Option(
            f"--{name}",
            name,
            constant(default),
            is_known=is_known(default),
            is_flag=is_flag,
            others=tuple(others),
            negatives=tuple(negatives),
            takes_many=kind.startswith("multi") or kind == "list",
            help=text_of(call.args[-1]),
            type=kind,
        )
