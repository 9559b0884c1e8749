"""What a training script shows of itself without being run: its options, the frameworks that it uses, where it saves
checkpoints and which lines it prints. Read from its syntax tree; nothing of it is imported."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gputui.runs.spec import Scalar

Style = Literal["argparse", "click", "typer", "hf", "lightning", "globals", "config", "hydra"]

MOST_BYTES = 2 << 20
MOST_MODULES = 20
_DEPTH = 6
_UNKNOWN = "*"
# Around the name of an option within a path, so that braces of the script's own stay what they are.
_BEGIN, _END = "\x01", "\x02"
_IS_CHECKPOINT = re.compile(r"[\w./-]*\w\.(pt|pth|ckpt)")
_SAVERS = {"save_state": 0, "save_checkpoint": 0, "save_pretrained": 0, "save_file": 1, "save": 1}
_LOGGERS = frozenset(
    {"print", "info", "warning", "debug", "log", "write", "print_log", "main_print", "print0", "rank_zero_info"}
)


class SurveyError(Exception):
    """The script cannot be read; one line that names it."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the script. ``flag`` is how it is written, "" for a positional argument; ``default`` counts where
    ``is_known``, else it is an expression; a flag (``is_flag``) takes no value."""

    flag: str
    name: str
    default: Scalar = None
    is_known: bool = True
    is_flag: bool = False
    is_required: bool = False


@dataclass(frozen=True, slots=True)
class Printed:
    """One line that the script prints: pieces of text and, between them, expressions (as written in the script) with
    their format, such as ``("iter ", ("iter_num", ""), ": loss ", ("loss", ".4f"))``."""

    parts: tuple[str | tuple[str, str], ...]
    line: int


@dataclass(slots=True)
class Survey:
    """All that was found. ``modules`` are what it imports, names from modules too; ``saves`` are paths of what it
    saves, with ``*`` for what is not known and ``{option}`` for options; ``calls`` what it calls or
    derives from; ``keywords`` literal keyword arguments of some of these calls; ``shared`` the names of what it divides
    among the ranks; ``named_files`` checkpoint files that it names anywhere. ``sections`` of a configuration are filled
    by the classes that they name, from ``class_defaults``."""

    style: Style | None = None
    options: dict[str, Option] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    keywords: dict[str, dict[str, str]] = field(default_factory=dict)
    sections: dict[str, str] = field(default_factory=dict)
    class_defaults: dict[str, dict[str, Scalar]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    saves: list[str] = field(default_factory=list)
    named_files: set[str] = field(default_factory=set)
    printed: list[Printed] = field(default_factory=list)
    text: str = ""

    def uses(self, *modules: str) -> bool:
        """Whether it imports any of these packages."""
        return bool(self.taken_from(*modules))

    def taken_from(self, *modules: str) -> set[str]:
        """What it imports of these packages, by the last part of each name."""
        return {
            name.rpartition(".")[2]
            for name in self.modules
            if any(name == module or name.startswith(f"{module}.") for module in modules)
        }


def survey_script(path: Path) -> Survey:
    """Look at a script, the modules beside it that it imports, and those that these import. Raises SurveyError."""
    survey = Survey()
    _visit(survey, path)
    seen, folders = {path}, [path.parent]
    while len(seen) <= MOST_MODULES and len(survey.text) < MOST_BYTES:
        file = next((file for file in _beside(survey.modules, folders) if file not in seen), None)
        if file is None:
            break
        seen.add(file)
        if file.parent not in folders:
            folders.append(file.parent)
        try:
            _visit(survey, file)
        except SurveyError:
            continue  # the script itself could be read
    for section, name in survey.sections.items():
        for key, value in survey.class_defaults.get(name, {}).items():
            survey.options.setdefault(key, Option(f"--{section}.{key}", key, value))
    return survey


def _beside(modules: set[str], folders: Sequence[Path]) -> Iterator[Path]:
    """The files of modules in these folders, in a fixed order."""
    for name in sorted(modules):
        for folder in folders:
            path = folder.joinpath(*name.split("."))
            yield from (file for file in (path.with_name(f"{path.name}.py"), path / "__init__.py") if file.is_file())


def _visit(survey: Survey, path: Path) -> None:
    try:
        if path.exists() and not path.is_file():
            raise SurveyError(f"{path} is no file; name a script, or a command behind --")
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise SurveyError(f"{path} is larger than {MOST_BYTES >> 20} MiB; write a profile by hand")
        text = raw.decode("utf-8", "replace")
        tree = ast.parse(text)
    except OSError as error:
        raise SurveyError(f"{path}: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SurveyError(f"{path} is no Python that can be read: {error}") from error
    survey.text += text
    _Surveyor(survey, tree).look()


def _is_by_ranks(operation: ast.operator, divisor: ast.expr) -> bool:
    return isinstance(operation, ast.Div | ast.FloorDiv) and "world_size" in ast.unparse(divisor).lower()


class _Surveyor:
    def __init__(self, survey: Survey, tree: ast.Module) -> None:
        self.survey = survey
        self.tree = tree
        self.assigned: dict[str, list[ast.Assign]] = {}

    def look(self) -> None:
        nodes = list(ast.walk(self.tree))
        for node in nodes:
            if isinstance(node, ast.Import):
                self.survey.modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                before = [node.module] if node.module else []
                self.survey.modules |= {*before, *(".".join([*before, alias.name]) for alias in node.names)}
            elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self.assigned.setdefault(node.targets[0].id, []).append(node)
            elif isinstance(node, ast.AugAssign) and _is_by_ranks(node.op, node.value):
                self.survey.shared.add(_name(node.target))
            elif isinstance(node, ast.BinOp) and _is_by_ranks(node.op, node.right):
                self.survey.shared.add(_name(node.left))
            elif isinstance(node, ast.ClassDef):
                self.survey.calls |= {_name(base) for base in node.bases}
            elif isinstance(node, ast.Constant) and _IS_CHECKPOINT.fullmatch(str(node.value)):
                self.survey.named_files.add(str(node.value))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        for call in calls:
            name = _name(call.func)
            self.survey.calls.add(name)
            self.survey.keywords.setdefault(name, {}).update(
                {word.arg: self.path(word.value) for word in call.keywords if word.arg}
            )
        self._options(nodes, calls)
        for call in calls:
            self._saved(call)
            self._printed(call)

    # --- options ----------------------------------------------------------------------------------------------------

    def _options(self, nodes: Sequence[ast.AST], calls: Sequence[ast.Call]) -> None:
        survey = self.survey
        for call in calls:
            name = _name(call.func)
            if name == "add_argument" or (name == "option" and isinstance(call.func, ast.Attribute)):
                self._declared(call, "argparse" if name == "add_argument" else "click")
        if "HfArgumentParser" in survey.calls or "TrlParser" in survey.calls:
            survey.style = "hf"
            for node in nodes:
                if isinstance(node, ast.ClassDef) and any(_name(each) == "dataclass" for each in node.decorator_list):
                    self._fields(node)
        elif "LightningCLI" in survey.calls:
            survey.style = "lightning"
        elif survey.uses("hydra"):
            survey.style = "hydra"
        elif survey.uses("typer"):
            survey.style = "typer"
            for node in nodes:
                if isinstance(node, ast.FunctionDef) and self._is_typer(node):
                    self._signature(node)
        elif re.search(r"exec\(open\(.*configurator\.py", survey.text):
            survey.style = "globals"
            self._globals()
        if survey.style in (None, "config") and "argv" in survey.text:
            self._configuration(nodes)

    def _declared(self, call: ast.Call, style: Style) -> None:
        flags = [_constant(arg) for arg in call.args]
        longs = [flag for flag in flags if isinstance(flag, str) and flag.startswith("--")]
        words = {word.arg: word.value for word in call.keywords if word.arg}
        if not longs:
            first = flags[0] if flags else None
            if style == "argparse" and isinstance(first, str) and not first.startswith("-") and "nargs" not in words:
                self._add(Option("", first.replace("-", "_"), is_required=True), style)
            return
        flag = max(longs[0].split("/")[0].split(), key=len)
        action = _constant(words["action"]) if "action" in words else None
        is_flag = action in ("store_true", "store_false") or _constant(words.get("is_flag")) is True
        is_flag = is_flag or ("action" in words and _name(words["action"]) == "BooleanOptionalAction")
        if "nargs" in words or action in ("append", "count", "version", "help"):
            return
        default = words.get("default")
        value = _constant(default)
        is_known = default is None or isinstance(default, ast.Constant) or value is not None
        dest = _constant(words.get("dest"))
        name = str(dest) if dest else flag.lstrip("-").replace("-", "_")
        if is_flag and default is None:
            value = False
        self._add(Option(flag, name, value, is_known, is_flag, _constant(words.get("required")) is True), style)

    def _add(self, option: Option, style: Style) -> None:
        if re.fullmatch(r"[A-Za-z_]\w*", option.name):
            self.survey.options.setdefault(option.name, option)
            self.survey.style = self.survey.style or style

    def _fields(self, node: ast.ClassDef) -> None:
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                default = item.value
                if isinstance(default, ast.Call):
                    default = next((word.value for word in default.keywords if word.arg == "default"), None)
                is_required = item.value is None
                self._add(
                    Option(f"--{item.target.id}", item.target.id, _constant(default), True, False, is_required), "hf"
                )

    def _is_typer(self, node: ast.FunctionDef) -> bool:
        if any(_name(each) in ("command", "callback") for each in node.decorator_list):
            return True
        return re.search(rf"typer\.run\(\s*{node.name}\b", self.survey.text) is not None

    def _signature(self, node: ast.FunctionDef) -> None:
        arguments = node.args.args
        defaults = [None] * (len(arguments) - len(node.args.defaults)) + list(node.args.defaults)
        for argument, default in zip(arguments, defaults, strict=True):
            if default is None:
                continue  # a positional one
            if isinstance(default, ast.Call) and _name(default.func) == "Option":
                default = default.args[0] if default.args else None
            value = _constant(default)
            flag = f"--{argument.arg.replace('_', '-')}"
            self._add(Option(flag, argument.arg, value, True, isinstance(value, bool)), "typer")

    def _globals(self) -> None:
        """nanoGPT's way: each global that is a plain value is an option ``--name=value``."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                value = _constant(node.value)
                if value is None:
                    value = _arithmetic(node.value)
                name = node.targets[0].id
                if value is not None and not name.startswith("_"):
                    self._add(Option(f"--{name}", name, value), "globals")

    def _configuration(self, nodes: Sequence[ast.AST]) -> None:
        """minGPT's way: ``--section.key=value`` sets what the script keeps as ``C.section.key``, or in a dictionary."""
        for node in nodes:
            if isinstance(node, ast.Dict):
                keys = [_constant(key) for key in node.keys]
                pairs = [
                    (key, value)
                    for key, value in zip(keys, node.values, strict=True)
                    if isinstance(key, str) and re.fullmatch(r"\w+(\.\w+)+", key)
                ]
                for key, value in pairs if len(pairs) == len(keys) else ():
                    self._add(Option(f"--{key}", key.rpartition(".")[2], _constant(value)), "config")
            elif isinstance(node, ast.ClassDef):
                for item in node.body:
                    if isinstance(item, ast.FunctionDef) and item.name == "get_default_config":
                        found = self.survey.class_defaults.setdefault(node.name, {})
                        found |= {path[0]: _constant(value) for path, value in _set_below(item) if len(path) == 1}
            elif isinstance(node, ast.FunctionDef):
                for path, value in _set_below(node):
                    made = value.func if isinstance(value, ast.Call) else None
                    if isinstance(made, ast.Attribute) and made.attr == "get_default_config":
                        self.survey.sections[".".join(path)] = _name(made.value)
                    elif len(path) > 1 and "merge_from_args" in self.survey.calls:
                        self._add(Option(f"--{'.'.join(path)}", path[-1], _constant(value)), "config")

    # --- what it saves ----------------------------------------------------------------------------------------------

    def _saved(self, call: ast.Call) -> None:
        name = _name(call.func)
        target: ast.expr | None = None
        if name in _SAVERS and isinstance(call.func, ast.Attribute):
            owner = _name(call.func.value)
            place = 0 if name == "save" and owner == "fabric" else _SAVERS[name]
            if name == "save" and owner not in ("torch", "fabric", "dcp", "accelerator", "xm"):
                return
            named = {word.arg: word.value for word in call.keywords}
            positional = call.args[place] if len(call.args) > place else None
            target = positional or named.get("f") or named.get("output_dir")
        elif name in ("replace", "rename"):
            target = call.args[-1] if call.args and len(call.args) == (2 if _owner(call) == "os" else 1) else None
        elif name == "ModelCheckpoint":
            words = {word.arg: word.value for word in call.keywords}
            folder = self.path(words["dirpath"]) if "dirpath" in words else "lightning_logs/version_*/checkpoints"
            self.survey.saves.append(f"{folder}/*.ckpt")
            return
        if target is None:
            return
        found = self.path(target)
        is_final = name not in ("replace", "rename") or re.search(r"\.(pt|pth|ckpt|tar|bin|safetensors)$", found)
        if is_final and found.strip("*/") and not re.search(r"\.?(tmp|temp|partial)\b", found):
            self.survey.saves.append(found)

    def path(self, node: ast.expr | None, depth: int = 0) -> str:
        """The path that an expression makes."""
        found = self._path(node, depth) if node is not None and depth < _DEPTH else _UNKNOWN
        return re.sub(r"\*+", "*", found)

    def _path(self, node: ast.expr, depth: int) -> str:
        value = _constant(node)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self.path(part, depth + 1) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            inner = self.path(node.value, depth + 1)
            return inner if _BEGIN in inner or isinstance(node.value, ast.Name) else _UNKNOWN
        if isinstance(node, ast.Name):
            if node.id in self.survey.options and self.survey.style == "globals":
                return f"{_BEGIN}{node.id}{_END}"
            known = sorted(self.assigned.get(node.id, ()), key=lambda each: each.lineno)
            # Within a function defined further up, what is assigned below counts; a name never means itself.
            before = [each for each in known if each.lineno < node.lineno] or [
                each for each in known if each.lineno > node.lineno
            ]
            return self.path(before[-1].value if before else None, depth + 1)
        if isinstance(node, ast.Attribute):
            is_option = node.attr in self.survey.options or node.attr == "output_dir"
            return f"{_BEGIN}{node.attr}{_END}" if is_option else _UNKNOWN
        if isinstance(node, ast.BinOp):
            return self._joined(node, depth)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            # An option, or what counts while it is not given.
            return self.path(node.values[0], depth + 1)
        if isinstance(node, ast.Call):
            return self._called(node, depth)
        if isinstance(node, ast.Subscript) and self.survey.style == "config":
            name = str(_constant(node.slice) or "").rpartition(".")[2]
            return f"{_BEGIN}{name}{_END}" if name in self.survey.options else _UNKNOWN
        if isinstance(node, ast.Subscript) and _name(node.value) == "environ":
            return f"{_BEGIN}run_dir{_END}" if _constant(node.slice) == "GPUTUI_RUN_DIR" else _UNKNOWN
        return _UNKNOWN

    def _joined(self, node: ast.BinOp, depth: int) -> str:
        left = self.path(node.left, depth + 1)
        if isinstance(node.op, ast.Mod):
            return re.sub(r"%[-+ #0-9.]*[a-zA-Z]", _UNKNOWN, left)
        right = self.path(node.right, depth + 1)
        return f"{left}/{right}" if isinstance(node.op, ast.Div) else left + right

    def _called(self, node: ast.Call, depth: int) -> str:
        name = _name(node.func)
        parts = [self.path(argument, depth + 1) for argument in node.args]
        if name == "join" and parts:
            return "/".join(parts)
        if name == "joinpath" and isinstance(node.func, ast.Attribute):
            return "/".join([self.path(node.func.value, depth + 1), *parts])
        if name == "format" and isinstance(node.func, ast.Attribute):
            return re.sub(r"\{[^{}]*\}", _UNKNOWN, self.path(node.func.value, depth + 1))
        if name in ("str", "Path", "fspath", "abspath", "expanduser") and parts:
            return "/".join(parts)
        if name == "get" and node.args and _constant(node.args[0]) == "GPUTUI_RUN_DIR":
            return f"{_BEGIN}run_dir{_END}"
        return _UNKNOWN

    # --- what it prints ---------------------------------------------------------------------------------------------

    def _printed(self, call: ast.Call) -> None:
        if _name(call.func) not in _LOGGERS or not call.args:
            return
        first = call.args[0]
        parts: list[str | tuple[str, str]] = []
        text = _constant(first)
        if _name(call.func).startswith("print") and len(call.args) > 1:
            for argument in call.args:
                parts += [*_pieces(argument), " "]
        elif isinstance(text, str) and len(call.args) > 1:
            parts = _percent(text, call.args[1:])
        else:
            parts = _pieces(first)
        merged = tuple(_merged(parts))
        if sum(isinstance(part, tuple) for part in merged) >= 2:
            self.survey.printed.append(Printed(merged, call.lineno))


def options_in(path: str, options: Mapping[str, str]) -> str:
    """A path of ``Survey.saves`` with each option in it replaced by what ``options`` has for it, else by ``*``."""
    return re.sub(f"{_BEGIN}(.*?){_END}", lambda match: options.get(match[1], _UNKNOWN), path)


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _set_below(function: ast.FunctionDef) -> Iterator[tuple[list[str], ast.expr]]:
    """What a function sets as ``C.a.b = value``: the names behind the first dot, and the value."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
            names = ast.unparse(node.targets[0]).split(".")
            if names[0] != "self" and all(name.isidentifier() for name in names):
                yield names[1:], node.value


def _owner(call: ast.Call) -> str:
    return _name(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _constant(node: ast.expr | None) -> Scalar:
    """A plain value, or None if it is anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _constant(node.operand)
        return -value if isinstance(value, int | float) else None
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool):
        return node.value
    return None


def _arithmetic(node: ast.expr) -> int | float | None:
    """``5 * 8`` as 40."""
    if not isinstance(node, ast.BinOp):
        value = _constant(node)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None
    left, right = _arithmetic(node.left), _arithmetic(node.right)
    if left is None or right is None or not isinstance(node.op, ast.Mult | ast.Add | ast.Sub):
        return None
    return (
        left * right
        if isinstance(node.op, ast.Mult)
        else left + right
        if isinstance(node.op, ast.Add)
        else left - right
    )


def _pieces(node: ast.expr) -> list[str | tuple[str, str]]:
    """The text of an expression, with the expressions in it."""
    text = _constant(node)
    if isinstance(text, str):
        return [text]
    if isinstance(node, ast.JoinedStr):
        return [piece for part in node.values for piece in _pieces(part)]
    if isinstance(node, ast.FormattedValue):
        spec = node.format_spec
        shape = "".join(str(_constant(part) or "") for part in spec.values) if isinstance(spec, ast.JoinedStr) else ""
        return [(ast.unparse(node.value), shape)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_pieces(node.left), *_pieces(node.right)]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(_constant(node.left), str):
        values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
        return _percent(str(_constant(node.left)), values)
    is_format = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"
    if is_format and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        text = _constant(node.func.value)
        if isinstance(text, str):
            return _braces(text, node)
    return [(ast.unparse(node), "")]


def _percent(text: str, values: Sequence[ast.expr]) -> list[str | tuple[str, str]]:
    """``"loss %.2f"`` with its values."""
    parts: list[str | tuple[str, str]] = []
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


def _braces(text: str, call: ast.Call) -> list[str | tuple[str, str]]:
    """``"loss {:.2f}".format(loss)``."""
    named = {word.arg: ast.unparse(word.value) for word in call.keywords if word.arg}
    count = iter(range(len(call.args)))
    parts: list[str | tuple[str, str]] = []
    for piece in re.split(r"(\{[^{}]*\})", text):
        if not re.fullmatch(r"\{[^{}]*\}", piece):
            parts.append(piece.replace("{{", "{").replace("}}", "}"))
            continue
        field_name, _, shape = piece[1:-1].partition(":")
        root = re.split(r"[.\[!]", field_name)[0]
        if root in named or not root.isdigit():
            index = None if root else next(count, None)
            source = named.get(root, field_name) if index is None else ast.unparse(call.args[index])
        else:
            source = ast.unparse(call.args[int(root)]) if int(root) < len(call.args) else field_name
        parts.append((source, shape))
    return parts


def _merged(parts: Sequence[str | tuple[str, str]]) -> Iterator[str | tuple[str, str]]:
    """Neighbouring pieces of text as one."""
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
