"""Paths that a script builds, as globs: ``os.path.join(args.out, f"step_{n}.pt")`` as ``<out>/step_*.pt``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Set

from msgspec import Struct

from gputui.profiles.init.syntax import constant, last_name

_MAX_DEPTH = 6
_UNKNOWN = "*"
# Control characters, not braces, mark the name of an option: the script's own braces stay as they are.
_BEGIN, _END = "\x01", "\x02"


def fill_options(path: str, values: Mapping[str, str]) -> str:
    """Replace each option in a path of `PathResolver` by its value, or by ``*`` if it has none."""
    return re.sub(f"{_BEGIN}(.*?){_END}", lambda match: values.get(match[1], _UNKNOWN), path)


class PathResolver(Struct, frozen=True):
    """Turn expressions into globs. ``assigned`` holds the assignments to each name; ``options`` are the names of the
    script's options; ``style`` is how it declares them."""

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
