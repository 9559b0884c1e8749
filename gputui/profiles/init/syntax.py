"""Values and paths of the expressions in a script's syntax tree."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping, Set
from typing import Any

from msgspec import Struct

from gputui.runs.spec import Scalar

_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Mult: operator.mul,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
}
_MAX_DEPTH = 6
_UNKNOWN = "*"
# Control characters, not braces, mark the name of an option: the script's own braces stay as they are.
_BEGIN, _END = "\x01", "\x02"


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


def fill_options(path: str, values: Mapping[str, str]) -> str:
    """Replace each option in a path of `PathResolver` by its value, or by ``*`` if it has none."""
    return re.sub(f"{_BEGIN}(.*?){_END}", lambda match: values.get(match[1], _UNKNOWN), path)


class PathResolver(Struct, frozen=True):
    """Turns expressions into globs: ``os.path.join(args.out, f"step_{n}.pt")`` into
    ``<out>/step_*.pt``.

    ``assigned`` holds the assignments to each name; ``options`` are the names of the script's
    options; ``style`` is how it declares them.
    """

    assigned: Mapping[str, list[ast.Assign]]
    options: Set[str]
    style: str | None

    def path(self, node: ast.expr | None, depth: int = 0) -> str:
        """The path that an expression evaluates to, with ``*`` for every unknown part."""
        found = self._path(node, depth) if node is not None and depth < _MAX_DEPTH else _UNKNOWN
        return re.sub(r"\*+", "*", found)

    def _path(self, node: ast.expr, depth: int) -> str:
        value = constant(node)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.path(part, depth + 1) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            inner = self.path(node.value, depth + 1)
            return inner if _BEGIN in inner or isinstance(node.value, ast.Name) else _UNKNOWN
        if isinstance(node, ast.Name):
            if node.id in self.options and self.style == "globals":
                return f"{_BEGIN}{node.id}{_END}"
            known = sorted(self.assigned.get(node.id, ()), key=lambda each: each.lineno)
            # A function may stand above the assignment that it reads. A name's own assignment is never its value.
            before = [each for each in known if each.lineno < node.lineno] or [
                each for each in known if each.lineno > node.lineno
            ]
            return self.path(before[-1].value if before else None, depth + 1)
        if isinstance(node, ast.Attribute):
            is_option = node.attr in self.options or node.attr == "output_dir"
            return f"{_BEGIN}{node.attr}{_END}" if is_option else _UNKNOWN
        if isinstance(node, ast.BinOp):
            left = self.path(node.left, depth + 1)
            if isinstance(node.op, ast.Mod):
                return re.sub(r"%[-+ #0-9.]*[a-zA-Z]", _UNKNOWN, left)
            right = self.path(node.right, depth + 1)
            return f"{left}/{right}" if isinstance(node.op, ast.Div) else left + right
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self.path(node.values[0], depth + 1)  # an option, or its fallback
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        if isinstance(node, ast.Subscript) and last_name(node.value) == "environ":
            return f"{_BEGIN}run_dir{_END}" if constant(node.slice) == "GPUTUI_RUN_DIR" else _UNKNOWN
        return _UNKNOWN

    def _call(self, node: ast.Call, depth: int) -> str:
        name = last_name(node.func)
        parts = [self.path(argument, depth + 1) for argument in node.args]
        if name in ("join", "str", "Path", "fspath", "abspath", "expanduser") and parts:
            return "/".join(parts)
        if name == "joinpath" and isinstance(node.func, ast.Attribute):
            return "/".join([self.path(node.func.value, depth + 1), *parts])
        if name == "format" and isinstance(node.func, ast.Attribute):
            return re.sub(r"\{[^{}]*\}", _UNKNOWN, self.path(node.func.value, depth + 1))
        if name == "get" and node.args and constant(node.args[0]) == "GPUTUI_RUN_DIR":
            return f"{_BEGIN}run_dir{_END}"
        return _UNKNOWN
