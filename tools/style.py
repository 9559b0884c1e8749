"""Hold gputui and the trainer to rules that ruff has not: ``python -m tools.style``, a part of ``make check``.

Statements: a conditional expression is a whole value, of an assignment, a return or a dict, and stands in no other
expression; a room of ``budget.toml`` has at most 15 of them in 1 000 lines. An assignment to several names unpacks a
value or exchanges some.
Words: no variable has a name that says nothing of what it holds, or that of an import or function of its module.
Records: what has more than six parameters or four positions is a record, and a record of more than five fields
explains them under ``Attributes:``, each by itself.
Calls: what follows the third of six arguments is passed by keyword, and so is a bare None, True or False among three.
``python -m tools.style PATH ...`` names what breaks the rules in some files or folders; without a path, in all rooms.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.budget import BUDGET, ROOT, files_of, load, tracked_files

PACKAGES = ("gputui/", "trainer/")
COMMANDS = ("gputui/ui/cli/", "gputui/ui/main.py")
MAX_CONDITIONALS = 15.0  # in 1 000 lines
MAX_PARAMETERS = 6
MAX_POSITIONS = 3
MAX_PLAIN_FIELDS = 5
MAX_POSITIONALS = 5
MAX_PLAIN_POSITIONALS = 2  # with a None, True or False among them
VAGUE_NAMES = {
    "asked", "both", "due", "each", "found", "given", "held", "kept", "known", "left", "made", "named", "one", "other",
    "own", "seen", "shown", "such", "taken", "there", "told", "until", "wanted", "words",
}  # fmt: skip
# Fields have the names of the keys of profiles that they hold.
PROFILE_KEYS = {"until"}
# Words by which an explanation leans on the one before it.
POINTERS = {"Of", "That", "Those", "Its", "Their", "Likewise"}
# Calls that take as many arguments as there are.
ORDERED_CALLS = {
    "_git", "_raises", "_states", "call", "get", "getattr", "islice", "max", "min", "records", "run_git", "setattr",
}  # fmt: skip
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def problems(text: str, *, has_commands: bool = False) -> Iterator[tuple[int, str]]:
    """Each place where a module breaks a rule, with its line; commands have as many options as people need."""
    tree = ast.parse(text)
    lines = text.splitlines()
    yield from misplaced(tree, "")
    yield from shapes(tree, has_commands)
    yield from shadows(tree)
    yield from unnamed_arguments(tree)
    for record in ast.walk(tree):
        if isinstance(record, ast.ClassDef):
            yield from unexplained(record, lines)
    fields = [field for body in ast.walk(tree) if isinstance(body, ast.ClassDef) for field in body.body]
    keys = [field.target for field in fields if isinstance(field, ast.AnnAssign)]
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in VAGUE_NAMES:
                if name not in PROFILE_KEYS or node not in keys:
                    yield node.lineno, f"the name {name} does not say what it holds"


WHOLE_VALUES = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Lambda, ast.NamedExpr, ast.Dict, ast.withitem)


def misplaced(node: ast.AST, place: str) -> Iterator[tuple[int, str]]:
    """Conditional expressions that are no whole value; ``place`` is the comprehension or call around ``node``."""
    if isinstance(node, COMPREHENSIONS):
        place = "a comprehension"
    elif isinstance(node, ast.stmt):
        place = ""
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(node, ast.Call) and child is not node.func:
            inner = "a call's argument"
        if isinstance(child, ast.IfExp):
            if inner:
                yield child.lineno, f"a conditional expression in {inner}"
            elif not isinstance(node, WHOLE_VALUES):
                yield child.lineno, "a conditional expression in another expression"
        yield from misplaced(child, inner)


def shapes(tree: ast.AST, has_commands: bool) -> Iterator[tuple[int, str]]:
    """Statements, signatures and tuples that pack several values."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple() as targets], value=ast.Tuple() as values):
                if not names_in(targets) & names_in(values):
                    yield node.lineno, "several values assigned in one statement"
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not has_commands and has_many_parameters(node):
                yield node.lineno, f"{node.name} has more than {MAX_PARAMETERS} parameters"
            case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=positions)):
                if len(positions) > MAX_POSITIONS:
                    yield node.lineno, f"a tuple of more than {MAX_POSITIONS} positions"


def shadows(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Variables and parameters with the name of an import or function of the module."""
    functions = {node.name for node in tree.body if isinstance(node, FUNCTIONS)}
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    imported = {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS):
            for node in ast.walk(function):
                match node:
                    case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in functions | imported:
                        yield node.lineno, f"{name} is also an import or a function of the module"


def unnamed_arguments(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls whose arguments only their order explains; a callee from outside may take them no other way."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] in ORDERED_CALLS:
            continue
        arguments = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
        plain = [argument for argument in arguments if is_plain(argument)]
        if len(arguments) > MAX_POSITIONALS:
            yield call.lineno, f"more than {MAX_POSITIONALS} arguments by position"
        elif plain and len(arguments) > MAX_PLAIN_POSITIONALS:
            yield plain[0].lineno, f"{ast.unparse(plain[0])} is passed by position"


def is_plain(argument: ast.expr) -> bool:
    """Tell whether an argument says nothing of what it is."""
    return isinstance(argument, ast.Constant) and (argument.value is None or isinstance(argument.value, bool))


def names_in(tree: ast.AST) -> set[str]:
    """The variables and attributes of an expression."""
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute))}


def has_many_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function has too many parameters beside the object or class that it belongs to."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([name for name in parameters if name.arg not in {"self", "cls"}]) > MAX_PARAMETERS


def unexplained(record: ast.ClassDef, lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Say where a class has many fields without an explanation, or explains what it has not."""
    fields = [field for field in record.body if isinstance(field, ast.AnnAssign)]
    explained = [field for field in fields if "description=" in ast.unparse(field) or "  # " in lines[field.lineno - 1]]
    section = (ast.get_docstring(record) or "").partition("Attributes:\n")[2]
    entries = re.findall(r"^    (\w[\w, ]*): *(\S+)", section, re.MULTILINE)
    listed = ", ".join(names for names, _ in entries)
    for names, first_word in entries:
        if "," in names or first_word in POINTERS:
            yield record.lineno, f"{record.name} explains {names} by another field"
    if not section and len(fields) - len(explained) > MAX_PLAIN_FIELDS:
        yield record.lineno, f"{record.name} has {len(fields)} fields and no section Attributes"
    for name in sorted(set(listed.split(", ")) - set(attributes(record)) - {""}):
        yield record.lineno, f"{record.name} explains {name}, which it has not"


def attributes(record: ast.ClassDef) -> Iterator[str]:
    """The names of the fields, properties and methods of a class, with those that its methods assign."""
    for node in ast.walk(record):
        match node:
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


def conditionals(tree: ast.AST) -> int:
    return sum(isinstance(node, ast.IfExp) for node in ast.walk(tree))


def too_dense(name: str, files: Sequence[str]) -> Iterator[str]:
    """Say where a room has too many conditional expressions for its lines."""
    texts = [(ROOT / file).read_text("utf-8") for file in files]
    lines = sum(len(text.splitlines()) for text in texts)
    count = sum(conditionals(ast.parse(text)) for text in texts)
    if count > MAX_CONDITIONALS * lines / 1000:
        density = 1000 * count / lines
        yield f"{name}: {density:.1f} conditional expressions in 1 000 lines, more than {MAX_CONDITIONALS:.0f}"


def main(arguments: Sequence[str]) -> int:
    tracked = tracked_files()
    findings: list[str] = []
    rooms = {name: files_of(room, tracked) for name, room in load(BUDGET).items() if "lines" in room.limits}
    rooms = {name: files for name, files in rooms.items() if any(file.startswith(PACKAGES) for file in files)}
    for name, files in rooms.items():
        if arguments:
            files = [file for file in files if any(Path(file).is_relative_to(argument) for argument in arguments)]
        for file in files:
            text = (ROOT / file).read_text("utf-8")
            places = sorted(problems(text, has_commands=file.startswith(COMMANDS)))
            findings += [f"{file}:{line}: {problem}" for line, problem in places]
        if files:
            findings += too_dense(" ".join(arguments) or name, files)
    for finding in findings:
        print(finding, file=sys.stderr)
    return min(len(findings), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
