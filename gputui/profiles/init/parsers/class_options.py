"""Options that are the fields of a class, or the parameters of a function in its place: of tyro, simple_parsing,
pyrallis, draccus, jsonargparse and the parsers of Hugging Face."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from msgspec import Struct

from gputui.profiles.init.script_options import Module, Option, decorators
from gputui.profiles.init.syntax import (
    default_value,
    is_flag,
    is_known,
    keyword,
    last_name,
    parameters,
    text_of,
    type_name,
)

_DEEPEST = 3
"""How many classes may be within each other."""


def huggingface_options(module: Module) -> Iterator[Option]:
    """The fields of all dataclasses in the file."""
    if module.calls_of("HfArgumentParser", "TrlParser"):
        reader = _FieldReader(module, "_")
        for node in module.dataclasses.values():
            yield from reader.fields(node, "")


def dataclass_options(module: Module) -> Iterator[Option]:
    """``tyro.cli(Config)``, ``parser.add_arguments(Config, "config")``, or ``@pyrallis.wrap()`` over a function."""
    if not module.imports("tyro", "simple_parsing", "pyrallis", "draccus", "jsonargparse"):
        return
    joint = "_"
    if module.imports("tyro"):
        joint = "-"
    reader = _FieldReader(module, joint)
    for call in module.calls_of("cli", "add_arguments", "parse", "CLI", "auto_cli"):
        subject = keyword(call, "config_class") or keyword(call, "f")
        yield from reader.subject(last_name(next(iter(call.args), subject)))
    for function in module.functions.values():
        if "wrap" in decorators(function) and function.args.args:
            yield from reader.subject(last_name(function.args.args[0].annotation))


class _FieldReader(Struct, frozen=True):
    """A reader of a file's classes. ``joint`` is what stands for the underscores of a name in an option."""

    module: Module
    joint: str

    def subject(self, name: str) -> Iterator[Option]:
        """The options of a class or function."""
        if name in self.module.dataclasses:
            yield from self.fields(self.module.dataclasses[name], "")
        elif name in self.module.functions:
            for argument, default in parameters(self.module.functions[name]):
                described = self.module.comment(argument.lineno)
                yield self._option(argument.arg, argument.annotation, default, described)

    def fields(self, node: ast.ClassDef, prefix: str) -> Iterator[Option]:
        """The fields of a dataclass, those of its bases first; one that holds another dataclass gives
        ``--optim.lr``."""
        classes = self.module.dataclasses
        for base in node.bases:
            if last_name(base) in classes:
                yield from self.fields(classes[last_name(base)], prefix)
        for item, below in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
                continue
            name = f"{prefix}{item.target.id}"
            inner = classes.get(last_name(item.annotation))
            if inner is not None and inner is not node and prefix.count(".") < _DEEPEST:
                yield from self.fields(inner, f"{name}.")
                continue
            described = self.module.comment(item.end_lineno)
            if isinstance(below, ast.Expr):
                described = text_of(below.value) or described
            yield self._option(name, item.annotation, item.value, described)

    def _option(self, name: str, annotation: ast.expr | None, default: ast.expr | None, described: str) -> Option:
        is_required = default is None
        if isinstance(default, ast.Call) and last_name(default) in ("field", "arg", "Field", "attr"):
            described = _described(default) or described
            default = next(iter(default.args), keyword(default, "default") or keyword(default, "default_factory"))
            is_required = default is None
        flag = f"--{name}"
        dashed = flag.replace("_", "-")
        others = [dashed]
        negatives = []
        turns_on = False
        if self.joint == "-":
            others = [flag]
            flag = dashed
            turns_on = is_flag(annotation, default)
        if turns_on:
            prefix, dot, last = name.rpartition(".")
            negatives = [f"--{prefix}{dot}no-{last}", f"--{prefix}{dot}no-{last}".replace("_", "-")]
        return Option(
            flag,
            name,
            default_value(default),
            is_known=is_known(default),
            is_flag=turns_on,
            is_required=is_required,
            others=tuple(others),
            negatives=tuple(negatives),
            help=described,
            type=type_name(annotation),
        )


def _described(call: ast.Call) -> str:
    """The help of ``field(metadata={"help": …})``, or of the keyword itself."""
    metadata = keyword(call, "metadata")
    if isinstance(metadata, ast.Dict):
        for key, value in zip(metadata.keys, metadata.values, strict=True):
            if text_of(key) == "help":
                return text_of(value)
    return text_of(keyword(call, "help"))
