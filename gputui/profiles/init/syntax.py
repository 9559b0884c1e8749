"""Values of the expressions in a script's syntax tree."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gputui.runs.spec import Scalar

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
_FLAG_TYPES = ("bool", "store_true", "store_false", "bool_arg")
"""Annotations of a flag; those but bool are fastcore's."""


def last_name(node: ast.expr | None) -> str:
    """The last part of a dotted name or of a called function's; "" for other expressions."""
    match node:
        case ast.Call(func=function):
            return last_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def constant(node: ast.expr | None) -> Scalar:
    """The value of a literal string, number or boolean; None for anything else."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = constant(operand)
            if isinstance(value, int | float):
                return -value
        case ast.Constant(value=str() | int() | float() | bool() as value):
            return value
    return None


def text_of(node: ast.expr | None) -> str:
    """The value of a literal string; "" for anything else."""
    value = constant(node)
    if isinstance(value, str):
        return value
    return ""


def arithmetic(node: ast.expr) -> int | float | None:
    """The value of a number, or of products, sums and differences of numbers; else None."""
    if not isinstance(node, ast.BinOp):
        value = constant(node)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        return None
    first = arithmetic(node.left)
    second = arithmetic(node.right)
    compute = _OPERATORS.get(type(node.op))
    if first is None or second is None or compute is None:
        return None
    result: int | float = compute(first, second)
    return result


def keyword(call: ast.expr | None, name: str) -> ast.expr | None:
    """The value of a call's keyword; None without it, and for what is no call."""
    if not isinstance(call, ast.Call):
        return None
    return next((argument.value for argument in call.keywords if argument.arg == name), None)


def default_value(default: ast.expr | None) -> Scalar:
    """The value of a literal, or of a path of one, as in ``Path("runs")``."""
    if isinstance(default, ast.Call) and last_name(default) == "Path" and len(default.args) == 1:
        return constant(default.args[0])
    return constant(default)


def is_known(default: ast.expr | None) -> bool:
    """Return whether the source says which value a default has."""
    return default is None or isinstance(default, ast.Constant) or default_value(default) is not None


def is_flag(annotation: ast.expr | None, default: ast.expr | None) -> bool:
    """Return whether a parameter or field is on or off, by its annotation, else by its default."""
    if annotation is None:
        return isinstance(constant(default), bool)
    return last_name(annotation) in _FLAG_TYPES


def type_name(node: ast.expr | None) -> str:
    """The name of a value's type: ``int`` of ``int | None``, ``Optional[int]`` and ``type=int``; "" if it has none."""
    if isinstance(node, ast.BinOp):
        return type_name(node.left) or type_name(node.right)
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Optional":
        return type_name(node.slice)
    return last_name(node)


def parameters(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """The parameters of a function with their defaults."""
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(places) - len(arguments.defaults))
    yield from zip(places, [*missing, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
