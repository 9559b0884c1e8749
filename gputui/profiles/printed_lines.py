"""The lines that a script prints: text and expressions, from f-strings, ``%``, ``str.format`` and logging calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from msgspec import Struct

from gputui.profiles.syntax import constant, last_name

Part = str | tuple[str, str]
"""A piece of text, or an expression as written in the script with its format: ``("loss", ".4f")``."""

_LOGGERS = frozenset(
    {"print", "info", "warning", "debug", "log", "write", "print_log", "main_print", "print0", "rank_zero_info"}
)


class Printed(Struct, frozen=True):
    """A printed line and the number of the script's line that prints it."""

    parts: tuple[Part, ...]
    line: int


def printed_line(call: ast.Call) -> Printed | None:
    """The line that a call prints; None if the call prints nothing or fewer than two expressions."""
    if last_name(call.func) not in _LOGGERS or not call.args:
        return None
    text = constant(call.args[0])
    if last_name(call.func).startswith("print") and len(call.args) > 1:
        parts = [part for argument in call.args for part in (*_parts(argument), " ")]
    elif isinstance(text, str) and len(call.args) > 1:
        parts = _percent_parts(text, call.args[1:])
    else:
        parts = _parts(call.args[0])
    joined = tuple(_joined(parts))
    if sum(isinstance(part, tuple) for part in joined) < 2:
        return None
    return Printed(joined, call.lineno)


def _parts(node: ast.expr) -> list[Part]:
    text = constant(node)
    if isinstance(text, str):
        return [text]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in _parts(value)]
    if isinstance(node, ast.FormattedValue):
        spec = node.format_spec
        shape = "".join(str(constant(part) or "") for part in spec.values) if isinstance(spec, ast.JoinedStr) else ""
        return [(ast.unparse(node.value), shape)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_parts(node.left), *_parts(node.right)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(text := constant(node.left), str):
        return _percent_parts(text, node.right.elts if isinstance(node.right, ast.Tuple) else [node.right])
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = constant(node.func.value)
        if isinstance(text, str):
            return _format_parts(text, node)
    return [(ast.unparse(node), "")]


def _percent_parts(text: str, values: Sequence[ast.expr]) -> list[Part]:
    """The parts of ``text % values``."""
    parts: list[Part] = []
    left = iter(values)
    for piece in re.split(r"(%[-+ #0-9.]*[a-zA-Z%])", text):
        if piece == "%%":
            parts.append("%")
        elif re.fullmatch(r"%[-+ #0-9.]*[a-zA-Z]", piece):
            value = next(left, None)
            parts.append((ast.unparse(value) if value is not None else "", piece[1:]))
        else:
            parts.append(piece)
    return parts


def _format_parts(text: str, call: ast.Call) -> list[Part]:
    """The parts of ``text.format(…)``."""
    named = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
    count = iter(range(len(call.args)))
    parts: list[Part] = []
    for piece in re.split(r"(\{[^{}]*\})", text):
        if not re.fullmatch(r"\{[^{}]*\}", piece):
            parts.append(piece.replace("{{", "{").replace("}}", "}"))
            continue
        field_name, _, shape = piece[1:-1].partition(":")
        root = re.split(r"[.\[!]", field_name)[0]
        index = next(count, None) if not root else int(root) if root.isdigit() else None
        if index is not None and index < len(call.args):
            parts.append((ast.unparse(call.args[index]), shape))
        else:
            parts.append((named.get(root, field_name), shape))
    return parts


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """Join adjacent pieces of text."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        if text:
            yield text
        text = ""
        yield part
    if text:
        yield text
