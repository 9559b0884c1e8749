"""An option that a script declares, and the file that declares it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct

from gputui.profiles.init.syntax import last_name
from gputui.runs.spec import Scalar

Style = Literal[
    "argparse", "click", "typer", "fire", "fastcore", "absl", "dataclass", "hydra", "hf", "lightning", "globals"
]
"""How a script declares its options: a library, a framework's parser or nanoGPT's globals."""

# Of Python, click and absl, in lower case.
_NUMBER_TYPES = frozenset({"int", "integer", "intrange", "float", "floatrange"})


class Option(Struct, frozen=True):
    """An option of a script.

    Attributes:
        flag: its usual spelling, "" for a positional argument; others: its other spellings; negatives:
            those that turn a flag off.
        name: what the script calls its value.
        default: valid if ``is_known``; otherwise the script computes it.
        is_flag: it takes no value; takes_many: it takes several words, or comes several times.
        help: the text that describes it.
        type: what the source says that its value is, as "int"; "" if only the default shows it.
        exclusive_group: the line that makes its mutually exclusive group, of whose options a command takes one.
    """

    flag: str
    name: str
    default: Scalar = None
    is_known: bool = True
    is_flag: bool = False
    is_required: bool = False
    others: tuple[str, ...] = ()
    negatives: tuple[str, ...] = ()
    takes_many: bool = False
    help: str = ""
    type: str = ""
    exclusive_group: int | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """All its spellings; none for a positional argument."""
        return tuple(filter(None, (self.flag, *self.others, *self.negatives)))

    @property
    def is_number(self) -> bool:
        """True if the script takes its value as a number."""
        if self.type:
            return self.type.lower() in _NUMBER_TYPES
        return isinstance(self.default, int | float) and not isinstance(self.default, bool)

    @property
    def is_float(self) -> bool:
        """True if the script takes its value as a number that may have a fraction."""
        return self.is_number and (isinstance(self.default, float) or self.type.lower().startswith("float"))


@dataclass(slots=True)
class Module:
    """A parsed file. ``text`` has the comments, which describe parameters in fastcore and tyro."""

    path: Path
    tree: ast.Module
    text: str
    nodes: list[ast.AST] = field(default_factory=list)
    calls: list[ast.Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes = list(ast.walk(self.tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]

    @property
    def functions(self) -> dict[str, ast.FunctionDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)}

    @property
    def dataclasses(self) -> dict[str, ast.ClassDef]:
        classes = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        return {node.name: node for node in classes if decorators(node) & {"dataclass", "define", "frozen"}}

    def calls_of(self, *names: str) -> list[ast.Call]:
        """The calls of functions with one of these last names."""
        return [call for call in self.calls if last_name(call.func) in names]

    def imports(self, *packages: str) -> bool:
        """Return whether the file imports one of these packages."""
        imported: list[str] = []
        for node in self.nodes:
            match node:
                case ast.Import(names=names):
                    imported += [alias.name for alias in names]
                case ast.ImportFrom(module=str() as source):
                    imported.append(source)
        return any(name.split(".")[0] in packages for name in imported)

    def comment(self, line: int | None) -> str:
        """The comment at the end of a line; "" for none."""
        rows = self.text.splitlines()
        if line is None or not 0 < line <= len(rows):
            return ""
        return rows[line - 1].partition("#")[2].strip()


def decorators(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """The last names of what decorates a function or class."""
    return {last_name(decorator) for decorator in node.decorator_list}


def usual_flag(flags: Sequence[str]) -> str:
    """The spelling of an option that says most: the first long one."""
    return next((flag for flag in flags if flag.startswith("--")), flags[0])


def other_flags(flags: Sequence[str]) -> tuple[str, ...]:
    """The other spellings of an option."""
    return tuple(flag for flag in flags if flag != usual_flag(flags))
