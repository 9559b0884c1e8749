"""Options of click, and of typer, which reads the signature of a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from gputui.profiles.init.script_options import Module, Option, other_flags, usual_flag
from gputui.profiles.init.syntax import (
    constant,
    default_value,
    is_flag,
    is_known,
    keyword,
    last_name,
    parameters,
    text_of,
    type_name,
)


def click_options(module: Module) -> Iterator[Option]:
    """``@click.option("--batch-size", "-b", "batch", default=16)``."""
    is_imported = any(
        isinstance(node, ast.ImportFrom) and node.module == "click" and "option" in [alias.name for alias in node.names]
        for node in module.nodes
    )
    for call in module.calls_of("option"):
        spellings = [text for argument in call.args if (text := text_of(argument))]
        flags, negatives = _split_flags(spellings)
        if flags and (is_imported or isinstance(call.func, ast.Attribute)):
            bare = [text for text in spellings if not text.startswith("-")]
            yield _click_option(call, flags, negatives, bare)


def _click_option(call: ast.Call, flags: Sequence[str], negatives: tuple[str, ...], bare: Sequence[str]) -> Option:
    default = keyword(call, "default")
    count = keyword(call, "nargs")
    flag = usual_flag(flags)
    turns_on = bool(negatives) or constant(keyword(call, "is_flag")) is True
    value = constant(default)
    if turns_on and default is None:
        value = False
    takes_many = constant(keyword(call, "multiple")) is True or (count is not None and constant(count) != 1)
    return Option(
        flag,
        [*bare, flag.lstrip("-")][0].replace("-", "_"),
        value,
        is_known=is_known(default) and keyword(call, "envvar") is None,
        is_flag=turns_on,
        is_required=constant(keyword(call, "required")) is True,
        others=other_flags(flags),
        negatives=negatives,
        takes_many=takes_many and not turns_on,
        help=text_of(keyword(call, "help")),
        type=type_name(keyword(call, "type")),
    )


def _split_flags(spellings: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Flags, and those behind the slash of ``--amp/--no-amp``."""
    flags: list[str] = []
    negatives: list[str] = []
    for text in spellings:
        if text.startswith("-"):
            positive, _, negative = text.partition("/")
            flags += positive.split()
            negatives += negative.split()
    return flags, tuple(negatives)


def typer_options(module: Module) -> Iterator[Option]:
    """The parameters of a function that is a command, or is given to ``typer.run``."""
    if not module.imports("typer"):
        return
    given_to_run = {last_name(call.args[0]) for call in module.calls_of("run") if call.args}
    for function in module.functions.values():
        if function.name in given_to_run or any(map(_is_typer_command, function.decorator_list)):
            for argument, default in parameters(function):
                yield _typer_option(argument, default)


def _is_typer_command(decorator: ast.expr) -> bool:
    match decorator:
        case ast.Call(func=ast.Attribute(value=library)) if last_name(library) == "click":
            return False
    return last_name(decorator) == "command"


def _typer_option(argument: ast.arg, default: ast.expr | None) -> Option:
    """``lr: Annotated[float, typer.Option("--lr")] = 0.01``, or ``lr: float = typer.Option(0.01)``."""
    annotation, declaration = _annotated(argument.annotation)
    spelled: Sequence[ast.expr] = ()
    if declaration is not None:
        spelled = declaration.args
    if isinstance(default, ast.Call) and _is_declaration(default):
        declaration = default
        spelled = default.args[1:]
        default = next(iter(default.args), keyword(default, "default"))
    is_required = default is None or (isinstance(default, ast.Constant) and default.value is Ellipsis)
    if is_required:
        default = None
    value = default_value(default)
    kind = type_name(annotation)
    if last_name(declaration) == "Argument" or (declaration is None and is_required):
        return Option("", argument.arg, value, is_known=is_known(default), is_required=is_required, type=kind)
    usual = f"--{argument.arg.replace('_', '-')}"
    turns_on = is_flag(annotation, default)
    flags, negatives = _split_flags([text_of(node) for node in spelled])
    if turns_on and not flags:
        negatives = (f"--no-{usual[2:]}",)
    flags = flags or [usual]
    return Option(
        usual_flag(flags),
        argument.arg,
        value,
        is_known=is_known(default) and keyword(declaration, "envvar") is None,
        is_flag=turns_on,
        is_required=is_required,
        others=other_flags(flags),
        negatives=negatives,
        takes_many=isinstance(annotation, ast.Subscript) and last_name(annotation.value).lower() == "list",
        help=text_of(keyword(declaration, "help")),
        type=kind,
    )


def _annotated(annotation: ast.expr | None) -> tuple[ast.expr | None, ast.Call | None]:
    """The type and the declaration of ``Annotated[type, declaration]``."""
    match annotation:
        case ast.Subscript(value=generic, slice=ast.Tuple(elts=[kind, *metadata])) if last_name(generic) == "Annotated":
            declarations = [node for node in metadata if isinstance(node, ast.Call) and _is_declaration(node)]
            return kind, next(iter(declarations), None)
    return annotation, None


def _is_declaration(call: ast.Call) -> bool:
    return last_name(call) in ("Option", "Argument")
