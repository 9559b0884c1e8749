"""The lines that a script prints: text and values, from f-strings, ``%``, ``str.format``, joined lists and logging
calls."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from gputui.profiles.init.syntax import arithmetic, constant, last_name

Course = Literal["on", "again", "fixed", ""]
"""A number from one epoch to the next: counts on, begins again, or is no count at all; "" if unknown."""

EPOCHS = frozenset({"epoch", "ep", "epoch_idx", "epoch_num", "current_epoch", "cur_epoch"})
_LOGGERS = frozenset(
    {"print", "info", "warning", "debug", "log", "write", "print_log", "main_print", "print0", "rank_zero_info"}
)
_MAX_DEPTH = 6
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class PrintedValue(Struct, frozen=True):
    """An expression as written in the script, with its format, such as ``.4f``. ``is_bare``: it is a name, or a name
    plus a number."""

    text: str
    shape: str = ""
    course: Course = ""
    is_bare: bool = False


Part = str | PrintedValue
"""A piece of text, or a value."""


class Printed(Struct, frozen=True):
    """A printed line and the number of the script's line that prints it."""

    parts: tuple[Part, ...]
    line: int


class PrintedLines:
    """Reads the lines that a module prints. ``nodes`` are those of its syntax tree."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._set: dict[str, list[ast.Assign | ast.AugAssign]] = {}
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AugAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._set.setdefault(ast.unparse(target), []).append(node)
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._called_in_loops = {last_name(call) for call in self._calls if isinstance(self._around(call), _LOOPS)}

    def line(self, call: ast.Call) -> Printed | None:
        """The line that a call prints; None if the call prints nothing or fewer than two values."""
        if last_name(call) == "ProgressMeter":
            parts = self._meters(call)
        elif last_name(call) not in _LOGGERS or not call.args:
            return None
        else:
            text = constant(call.args[0])
            if last_name(call).startswith("print") and len(call.args) > 1:
                between = next((str(constant(word.value)) for word in call.keywords if word.arg == "sep"), " ")
                parts = [part for argument in call.args for part in (*self._parts(argument), between)]
            elif isinstance(text, str) and len(call.args) > 1:
                parts = self._percent_parts(text, call.args[1:])
            else:
                parts = self._parts(call.args[0])
        joined = tuple(_joined(parts))
        return Printed(joined, call.lineno) if sum(isinstance(part, PrintedValue) for part in joined) > 1 else None

    def _parts(self, node: ast.expr) -> list[Part]:
        text = constant(node)
        if isinstance(text, str):
            return [text]
        if isinstance(node, ast.JoinedStr):
            return [part for value in node.values for part in self._parts(value)]
        if isinstance(node, ast.FormattedValue):
            spec = node.format_spec.values if isinstance(node.format_spec, ast.JoinedStr) else []
            return [self._value(node.value, "".join(str(constant(part) or "") for part in spec))]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self._parts(node.left), *self._parts(node.right)]
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and isinstance(text := constant(node.left), str)
        ):
            return self._percent_parts(text, node.right.elts if isinstance(node.right, ast.Tuple) else [node.right])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            text = constant(node.func.value)
            if isinstance(text, str) and node.func.attr == "format":
                return self._format_parts(text, node)
            if isinstance(text, str) and node.func.attr == "join" and node.args:
                return [part for each in self._elements(node.args[0]) for part in (*self._parts(each), text)]
        return [self._value(node)]

    def _value(self, node: ast.expr | None, shape: str = "") -> PrintedValue:
        if node is None:
            return PrintedValue("", shape)
        plain = node
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add | ast.Sub)
            and arithmetic(node.right) is not None
        ):
            plain = node.left
        is_bare = isinstance(plain, ast.Name | ast.Attribute | ast.Subscript)
        return PrintedValue(ast.unparse(plain if is_bare else node), shape, self._course(plain), is_bare)

    def _elements(self, node: ast.expr) -> list[ast.expr]:
        """The elements of a list that is written out, or of a name for one that is extended by such lists."""
        if isinstance(node, ast.List | ast.Tuple):
            return node.elts
        name, scope = ast.unparse(node), self._function(node)
        found: list[tuple[int, list[ast.expr]]] = []
        for each in self._set.get(name, []):
            if isinstance(each.value, ast.List) and self._function(each) is scope:
                found.append((each.lineno, each.value.elts))
        for call in self._calls:
            if ast.unparse(call.func) == f"{name}.append" and self._function(call) is scope:
                found.append((call.lineno, call.args))
        return [element for _, elements in sorted(found, key=lambda pair: pair[0]) for element in elements]

    def _percent_parts(self, text: str, values: Sequence[ast.expr]) -> list[Part]:
        """The parts of ``text % values``."""
        parts: list[Part] = []
        left = iter(values)
        for piece in re.split(r"(%[-+ #0-9.]*[a-zA-Z%])", text):
            if piece == "%%":
                parts.append("%")
            elif re.fullmatch(r"%[-+ #0-9.]*[a-zA-Z]", piece):
                parts.append(self._value(next(left, None), piece[1:]))
            else:
                parts.append(piece)
        return parts

    def _format_parts(self, text: str, call: ast.Call) -> list[Part]:
        """The parts of ``text.format(…)``."""
        values: dict[str, ast.expr] = {str(index): value for index, value in enumerate(call.args)}
        values |= {word.arg: word.value for word in call.keywords if word.arg}
        count = iter(range(len(call.args)))
        parts: list[Part] = []
        try:
            fields = list(string.Formatter().parse(text))
        except ValueError:
            return [text]  # the call would fail
        for literal, name, shape, _ in fields:
            parts.append(literal)
            if name is not None:
                value = values.get(re.split(r"[.\[]", name)[0] or str(next(count, "")))
                parts.append(PrintedValue(name, shape or "") if value is None else self._value(value, shape or ""))
        return parts

    def _meters(self, call: ast.Call) -> list[Part]:
        """The line of the meters of PyTorch's ImageNet example, which many scripts have copied."""
        prefix = next((word.value for word in call.keywords if word.arg == "prefix"), None)
        parts = [*([] if prefix is None else self._parts(prefix)), "["]
        parts += [PrintedValue("batch", "4d", "again", is_bare=True), "/", PrintedValue("num_batches", "d"), "]"]
        for meter in call.args[1].elts if len(call.args) > 1 and isinstance(call.args[1], ast.List) else []:
            made = self._set.get(ast.unparse(meter), [])
            value = made[-1].value if made else None
            words = [str(constant(arg)) for arg in value.args] if isinstance(value, ast.Call) else []
            if words:
                shape = next((word[1:] for word in words if word.startswith(":")), "f")
                parts += [f"\t{words[0]} ", PrintedValue(ast.unparse(meter), shape), " (", PrintedValue("", shape), ")"]
        return parts

    # --- counts -----------------------------------------------------------------------------------------------------

    def _course(self, node: ast.expr, depth: int = 0) -> Course:
        """How a printed number goes on from one epoch to the next, by the loop or the statements that set it."""
        if isinstance(node, ast.BinOp):
            return self._course_of_operation(node, depth)
        name = ast.unparse(node)
        loop = self._loop_over(name, node)
        if loop is not None:  # for i, batch in enumerate(loader)
            return "again" if self._repeats(loop) and not _starts_later(loop.iter) else "on"
        statements = self._set.get(name, [])
        resets = [each for each in statements if isinstance(each, ast.Assign) and name not in _names(each.value)]
        is_reset = any(map(self._repeats, resets))
        if len(resets) < len(statements):  # step += 1
            return "again" if is_reset else "on"
        value = statements[-1].value if statements else None
        if isinstance(value, ast.BinOp | ast.Name | ast.Attribute) and depth < _MAX_DEPTH:  # step = start + i
            found = self._course(value, depth + 1)
            is_fixed = isinstance(value, ast.BinOp) and found != "on" and not is_reset
            return "fixed" if is_fixed else found
        if (value is None and isinstance(node, ast.Constant)) or (isinstance(value, ast.Constant) and not is_reset):
            return "fixed"
        return "on" if re.search(r"global|total|state\.iteration", name) else ""

    def _course_of_operation(self, node: ast.BinOp, depth: int) -> Course:
        if isinstance(node.op, ast.Div):
            return "fixed"
        if isinstance(node.op, ast.Mod):
            return "again"
        is_left_count = arithmetic(node.left) is None
        if isinstance(node.op, ast.Add) and is_left_count and arithmetic(node.right) is None:
            return "on"  # epoch * length + i
        return self._course(node.left if is_left_count else node.right, depth)

    def _loop_over(self, name: str, node: ast.AST) -> ast.For | ast.AsyncFor | None:
        """The innermost loop around a node that sets this name, up to the function around it."""
        around = self._around(node)
        while isinstance(around, _LOOPS):
            if not isinstance(around, ast.While) and name in _names(around.target):
                return around
            around = self._around(around)
        return None

    def _around(self, node: ast.AST) -> ast.AST | None:
        """The loop around a node, else the function around it."""
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, (*_LOOPS, *_FUNCTIONS)):
            parent = self._parents.get(parent)
        return parent

    def _function(self, node: ast.AST) -> ast.AST | None:
        around = self._around(node)
        while isinstance(around, _LOOPS):
            around = self._around(around)
        return around

    def _repeats(self, node: ast.AST) -> bool:
        """Whether a statement runs again with each epoch: in a loop, or in a function that is called for each."""
        around = self._around(node)
        if not isinstance(around, _FUNCTIONS):
            return around is not None
        names = {argument.arg for argument in around.args.args}
        return (
            around.name in self._called_in_loops
            or bool(names & EPOCHS)
            or re.search("epoch(?!s)", around.name) is not None
        )


def _names(node: ast.AST) -> set[str]:
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)}


def _starts_later(values: ast.expr) -> bool:
    """Whether ``enumerate(…, start)`` goes on from a number that the script computes."""
    if not isinstance(values, ast.Call) or last_name(values) != "enumerate":
        return False
    starts = [*values.args[1:], *(word.value for word in values.keywords)]
    return any(arithmetic(start) is None for start in starts)


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
