"""Options of fire and of fastcore: the parameters of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputui.profiles.init.script_options import Module, Option, decorators
from gputui.profiles.init.syntax import default_value, is_flag, is_known, last_name, parameters, text_of, type_name


def fire_options(module: Module) -> Iterator[Option]:
    """``fire.Fire(main)``: each parameter is an option, and may be given by its place, too."""
    if not module.imports("fire"):
        return
    names = {last_name(call.args[0]) for call in module.calls_of("Fire") if call.args}
    for name, function in module.functions.items():
        if name in names:
            yield from _function_options(module, function, "-")


def fastcore_options(module: Module) -> Iterator[Option]:
    """The function below ``@call_parse``, whose comments describe its parameters."""
    if not module.imports("fastcore", "fastai"):
        return
    for function in module.functions.values():
        if "call_parse" in decorators(function):
            yield from _function_options(module, function, "_")


def _function_options(module: Module, function: ast.FunctionDef, joint: str) -> Iterator[Option]:
    """The parameters of a function; ``joint`` is what stands between ``--no`` and the name of a flag."""
    for argument, default in parameters(function):
        name = argument.arg
        annotation = argument.annotation
        turns_on = is_flag(annotation, default)
        negatives: tuple[str, ...] = ()
        if turns_on:
            negatives = (f"--no{joint}{name}", f"--no{name}")
        described = module.comment(argument.lineno)
        if isinstance(annotation, ast.Call) and annotation.args:  # fastcore's Param("help", int)
            described = text_of(annotation.args[0]) or described
        yield Option(
            f"--{name}",
            name,
            default_value(default),
            is_known=is_known(default),
            is_flag=turns_on,
            is_required=default is None,
            others=(f"--{name.replace('_', '-')}",),
            negatives=negatives,
            help=described,
            type=type_name(annotation),
        )
