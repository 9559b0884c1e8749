"""Values of the expressions in a script's syntax tree."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from gputui.runs.spec import Scalar

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}


def last_name(node: ast.expr) -> str:
    """The last part of a dotted name or of a called function's; "" for other expressions."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def constant(node: ast.expr | None) -> Scalar:
    """The value of a literal string, number or boolean; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
        return node.value
    return None


def arithmetic(node: ast.expr) -> int | float | None:
    """The value of a number, or of products, sums and differences of numbers; else None."""
    if not isinstance(node, ast.BinOp):
        value = constant(node)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    left, right = arithmetic(node.left), arithmetic(node.right)
    compute = _OPERATORS.get(type(node.op))
    if left is None or right is None or compute is None:
        return None
    result: int | float = compute(left, right)
    return result
