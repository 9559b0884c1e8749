"""The lines that a script prints, as pieces of text and values.

``print(f"step {step} loss {loss:.4f}")`` becomes ``("step ", <step>, " loss ", <loss, .4f>)``. Read
are f-strings, ``%``, ``str.format``, joined lists and calls of loggers.
"""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from gputui.profiles.init.syntax import arithmetic, constant, last_name

AcrossEpochs = Literal["continues", "restarts", "no_count", "unknown"]
"""How a printed number goes from one epoch to the next. In

    for epoch in range(epochs):
        for i, batch in enumerate(loader):
            step += 1
            print(i, step, step / total)

``step`` continues, ``i`` restarts, and ``step / total`` is no count.
"""

EPOCHS = frozenset({"epoch", "ep", "epoch_idx", "epoch_num", "current_epoch", "cur_epoch"})
_LOGGERS = frozenset(
    {"print", "info", "warning", "debug", "log", "write", "print_log", "main_print", "print0", "rank_zero_info"}
)
_MAX_ASSIGNMENTS = 6
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class PrintedValue(Struct, frozen=True):
    """An expression as written in the script, with its format, such as ``.4f``. ``is_bare``: it is
    a name, or a name plus a number."""

    text: str
    shape: str = ""
    across_epochs: AcrossEpochs = "unknown"
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
        self._module = _Module(nodes)

    def line(self, call: ast.Call) -> Printed | None:
        """The line that a call prints; None if the call prints nothing or fewer than two values."""
        name = last_name(call)
        if name == "ProgressMeter":
            parts = self._meters(call)
        elif name in _LOGGERS and call.args:
            parts = self._arguments(call, name)
        else:
            return None
        joined = tuple(_joined(parts))
        return Printed(joined, call.lineno) if sum(isinstance(part, PrintedValue) for part in joined) > 1 else None

    def _arguments(self, call: ast.Call, name: str) -> list[Part]:
        text, *others = call.args
        if others and name.startswith("print"):  # print("loss", loss)
            separator = next((str(constant(word.value)) for word in call.keywords if word.arg == "sep"), " ")
            return [part for argument in call.args for part in (*self._parts(argument), separator)]
        if others and isinstance(template := constant(text), str):  # logger.info("loss %.4f", loss)
            return self._percent_parts(template, others)
        return self._parts(text)

    def _parts(self, node: ast.expr) -> list[Part]:
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                return [part for value in values for part in self._parts(value)]
            case ast.FormattedValue(value=value, format_spec=spec):
                pieces = spec.values if isinstance(spec, ast.JoinedStr) else []
                return [self._value(value, "".join(str(constant(piece) or "") for piece in pieces))]
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return [*self._parts(left), *self._parts(right)]
            case ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod(), right=right):
                return self._percent_parts(text, right.elts if isinstance(right, ast.Tuple) else [right])
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format")):
                return self._format_parts(text, node)
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="join"), args=[joined, *_]):
                return [part for each in self._module.elements(joined) for part in (*self._parts(each), text)]
        return [self._value(node)]

    def _value(self, node: ast.expr | None, shape: str = "") -> PrintedValue:
        if node is None:
            return PrintedValue("", shape)
        plain = node
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right) if arithmetic(right) is not None:
                plain = left
        is_bare = isinstance(plain, ast.Name | ast.Attribute | ast.Subscript)
        text = ast.unparse(plain if is_bare else node)
        return PrintedValue(text, shape, self._module.across_epochs(plain), is_bare)

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
        parts += [PrintedValue("batch", "4d", "restarts", is_bare=True), "/", PrintedValue("num_batches", "d"), "]"]
        for meter in call.args[1].elts if len(call.args) > 1 and isinstance(call.args[1], ast.List) else []:
            value = self._module.last_value(ast.unparse(meter))
            words = [str(constant(arg)) for arg in value.args] if isinstance(value, ast.Call) else []
            if words:
                shape = next((word[1:] for word in words if word.startswith(":")), "f")
                parts += [f"\t{words[0]} ", PrintedValue(ast.unparse(meter), shape), " (", PrintedValue("", shape), ")"]
        return parts


class _Module:
    """A module's syntax tree, searched for what gives a name its value."""

    def __init__(self, nodes: Sequence[ast.AST]) -> None:
        self._parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
        self._assignments: dict[str, list[ast.Assign | ast.AugAssign]] = {}
        for node in nodes:
            if isinstance(node, ast.Assign | ast.AugAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assignments.setdefault(ast.unparse(target), []).append(node)
        self._calls = [node for node in nodes if isinstance(node, ast.Call)]
        self._called_in_loops = {last_name(call) for call in self._calls if isinstance(self._scope(call), _LOOPS)}

    def last_value(self, name: str) -> ast.expr | None:
        """The value that the last assignment to a name gives it."""
        assignments = self._assignments.get(name)
        return assignments[-1].value if assignments else None

    def elements(self, node: ast.expr) -> list[ast.expr]:
        """The elements of a list that is written out, or of a name that is assigned and extended."""
        if isinstance(node, ast.List | ast.Tuple):
            return node.elts
        name, function = ast.unparse(node), self._function(node)
        found: list[tuple[int, list[ast.expr]]] = []
        for each in self._assignments.get(name, []):
            if isinstance(each.value, ast.List) and self._function(each) is function:
                found.append((each.lineno, each.value.elts))
        for call in self._calls:
            if ast.unparse(call.func) == f"{name}.append" and self._function(call) is function:
                found.append((call.lineno, call.args))
        return [element for _, elements in sorted(found, key=lambda pair: pair[0]) for element in elements]

    def across_epochs(self, node: ast.expr, followed: int = 0) -> AcrossEpochs:
        """The course of a number across epochs, by the loop or the statements that set it.
        ``followed`` counts the assignments between the printed number and this one."""
        if isinstance(node, ast.BinOp):
            return self._operation_across_epochs(node, followed)
        name = ast.unparse(node)
        loop = self._loop_over(name, node)
        if loop is not None:  # for i, batch in enumerate(loader)
            return "restarts" if self._runs_each_epoch(loop) and not _starts_at_computed(loop.iter) else "continues"
        statements = self._assignments.get(name, [])
        resets = [each for each in statements if isinstance(each, ast.Assign) and name not in _names_in(each.value)]
        is_reset = any(map(self._runs_each_epoch, resets))
        if len(resets) < len(statements):  # step += 1
            return "restarts" if is_reset else "continues"
        value = self.last_value(name)
        if isinstance(value, ast.BinOp | ast.Name | ast.Attribute) and followed < _MAX_ASSIGNMENTS:  # step = start + i
            found = self.across_epochs(value, followed + 1)
            is_computed = isinstance(value, ast.BinOp) and found != "continues" and not is_reset
            return "no_count" if is_computed else found
        if (value is None and isinstance(node, ast.Constant)) or (isinstance(value, ast.Constant) and not is_reset):
            return "no_count"
        return "continues" if re.search(r"global|total|state\.iteration", name) else "unknown"

    def _operation_across_epochs(self, node: ast.BinOp, followed: int) -> AcrossEpochs:
        if isinstance(node.op, ast.Div):
            return "no_count"
        if isinstance(node.op, ast.Mod):
            return "restarts"
        is_left_count = arithmetic(node.left) is None
        if isinstance(node.op, ast.Add) and is_left_count and arithmetic(node.right) is None:
            return "continues"  # epoch * length + i
        return self.across_epochs(node.left if is_left_count else node.right, followed)

    def _loop_over(self, name: str, node: ast.AST) -> ast.For | ast.AsyncFor | None:
        """The innermost loop around a node, inside its function, that sets this name."""
        scope = self._scope(node)
        while isinstance(scope, _LOOPS):
            if not isinstance(scope, ast.While) and name in _names_in(scope.target):
                return scope
            scope = self._scope(scope)
        return None

    def _scope(self, node: ast.AST) -> ast.AST | None:
        """The innermost loop or function around a node."""
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, (*_LOOPS, *_FUNCTIONS)):
            parent = self._parents.get(parent)
        return parent

    def _function(self, node: ast.AST) -> ast.AST | None:
        scope = self._scope(node)
        while isinstance(scope, _LOOPS):
            scope = self._scope(scope)
        return scope

    def _runs_each_epoch(self, node: ast.AST) -> bool:
        """Return whether a statement is in a loop, or in a function that is called for each
        epoch."""
        scope = self._scope(node)
        if not isinstance(scope, _FUNCTIONS):
            return scope is not None
        parameters = {argument.arg for argument in scope.args.args}
        return (
            scope.name in self._called_in_loops
            or bool(parameters & EPOCHS)
            or re.search("epoch(?!s)", scope.name) is not None
        )


def _names_in(node: ast.AST) -> set[str]:
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)}


def _starts_at_computed(values: ast.expr) -> bool:
    """Return whether this is ``enumerate(…, start)`` with a start that the script computes."""
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
