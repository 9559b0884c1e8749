"""The options that a script declares, one reader per way of declaring them. Nothing is imported or run.

Each reader yields the same record, `Option`; `declared_options` asks them all.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import yaml
from msgspec import Struct
from msgspec.structs import replace

from gputui.profiles.init.syntax import arithmetic, constant, last_name
from gputui.runs.spec import Scalar

Style = Literal[
    "argparse", "click", "typer", "fire", "fastcore", "absl", "dataclass", "hydra", "hf", "lightning", "globals"
]
"""How a script declares its options: a library, a framework's parser or nanoGPT's globals."""

# Calls, decorators and keywords which show that options depend on more than their declarations.
_INDIRECT = frozenset({"add_subparsers", "set_defaults", "parse_known_args", "DEFINE_config_file", "add_typer"})
_GROUPS = frozenset({"group", "callback"})
_DEFAULTS_ELSEWHERE = frozenset({"default_config_files", "default_map", "auto_envvar_prefix", "fromfile_prefix_chars"})
_MAKES_EXCLUSIVE = "add_mutually_exclusive_group"
# Of Python, click and absl, in lower case.
_NUMBER_TYPES = frozenset({"int", "integer", "intrange", "float", "floatrange"})
_ANNOTATED_FLAGS = ("bool", "store_true", "store_false", "bool_arg")


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
    """A parsed file. ``lines`` is its text, whose comments describe parameters in fastcore and tyro."""

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
        return {
            node.name: node
            for node in self.nodes
            if isinstance(node, ast.ClassDef)
            and any(last_name(each) in ("dataclass", "define", "frozen") for each in node.decorator_list)
        }

    def calls_of(self, *names: str) -> list[ast.Call]:
        """The calls of functions with one of these last names."""
        return [call for call in self.calls if last_name(call.func) in names]

    def imports(self, *packages: str) -> bool:
        """Return whether the file imports one of these packages."""
        return any(
            (isinstance(node, ast.Import) and any(alias.name.split(".")[0] in packages for alias in node.names))
            or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in packages)
            for node in self.nodes
        )

    def comment(self, line: int) -> str:
        """The comment at the end of a line."""
        rows = self.text.splitlines()
        return rows[line - 1].partition("#")[2].strip() if 0 < line <= len(rows) else ""


class Declared(Struct, frozen=True):
    """The options of one file. ``is_certain``: all of them, with no other source of defaults."""

    style: Style
    options: tuple[Option, ...]
    is_certain: bool


def declared_options(module: Module) -> Declared | None:
    """The options that a file declares; None if it declares none."""
    readings: list[tuple[Style, list[Option]]] = []
    for style, reader in _READERS.items():
        if options := list(reader(module)):
            readings.append((style, options))
    if not readings:
        return None
    style, options = readings[0]
    names = [option.name for option in options]
    is_one = style in ("argparse", "click") or len(set(names)) == len(names)
    is_certain = len(readings) == 1 and is_one and _has_one_parser(module)
    return Declared(style, tuple(option for _, group in readings for option in group), is_certain)


def _has_one_parser(module: Module) -> bool:
    """Return whether a file has no second parser or subcommand, and no defaults from elsewhere."""
    decorators = [last_name(each) for node in module.functions.values() for each in node.decorator_list]
    parsers = len(module.calls_of("ArgumentParser", "Typer", "HfArgumentParser", "TrlParser"))
    keywords = {word.arg for call in module.calls for word in call.keywords}
    return (
        max(parsers, decorators.count("command")) <= 1
        and not _GROUPS & set(decorators)
        and not module.calls_of(*_INDIRECT)
        and not _DEFAULTS_ELSEWHERE & keywords
        and not module.imports("configargparse")
        and not any(_keyword(call, "config_path") for call in module.calls_of("wrap", "parse"))
    )


def valid_names(options: Iterable[Option]) -> Iterator[Option]:
    """The options whose names can be those of parameters."""
    return (option for option in options if re.fullmatch(r"[A-Za-z_][\w.-]*", option.name))


# --- parsers that are told each option ---------------------------------------------------------------------------


def _argparse(module: Module) -> Iterator[Option]:
    exclusive_groups = _ExclusiveGroups(module)
    for call in module.calls_of("add_argument"):
        if (option := _told_option(call, takes_bare=True)) is not None:
            yield replace(option, exclusive_group=exclusive_groups.line_of(call))


class _ExclusiveGroups:
    """The mutually exclusive groups of argparse in a file."""

    def __init__(self, module: Module) -> None:
        self._bindings: dict[str, list[ast.Call]] = {}
        if not module.calls_of(_MAKES_EXCLUSIVE):
            return
        for node in module.nodes:
            match node:
                case (
                    ast.Assign(targets=[target], value=ast.Call() as call)
                    | ast.AnnAssign(target=target, value=ast.Call() as call)
                    | ast.NamedExpr(target=target, value=ast.Call() as call)
                ):
                    self._bindings.setdefault(last_name(target), []).append(call)

    def line_of(self, call: ast.Call) -> int | None:
        """The line of the group whose ``add_argument`` is called, None if it is no exclusive one."""
        if not isinstance(call.func, ast.Attribute):
            return None
        maker = call.func.value
        if not isinstance(maker, ast.Call):
            # A name may hold one group after the other.
            bindings = self._bindings.get(last_name(maker), [])
            earlier = [binding for binding in bindings if binding.lineno <= call.lineno]
            if not earlier:
                return None
            maker = max(earlier, key=lambda binding: binding.lineno)
        return maker.lineno if last_name(maker) == _MAKES_EXCLUSIVE else None


def _click(module: Module) -> Iterator[Option]:
    is_imported = any(
        isinstance(node, ast.ImportFrom) and node.module == "click" and any(one.name == "option" for one in node.names)
        for node in module.nodes
    )
    for call in module.calls_of("option"):
        is_click = is_imported or isinstance(call.func, ast.Attribute)
        if is_click and (option := _told_option(call, takes_bare=False)) is not None:
            yield option


def _told_option(call: ast.Call, *, takes_bare: bool) -> Option | None:
    """The option of ``add_argument("-b", "--batch-size", dest="batch", default=16)`` or of a call of
    ``click.option``; None for one without a value of its own, such as ``--version``."""
    keywords = {word.arg: word.value for word in call.keywords if word.arg}
    literals = {name: constant(value) for name, value in keywords.items()}
    spellings = [text for argument in call.args if isinstance(text := constant(argument), str)]
    action = literals.get("action")
    if not spellings or action in ("version", "help"):
        return None
    flags, negatives = _spellings(spellings)
    bare = next((text.replace("-", "_") for text in spellings if not text.startswith("-")), None)
    takes_many = literals.get("nargs") not in (None, 1) or action in ("append", "extend", "count")
    takes_many = takes_many or ("nargs" in keywords and literals.get("nargs") is None)
    takes_many = takes_many or literals.get("multiple") is True
    if not flags:
        is_required = not takes_many
        kind = _type_name(keywords.get("type"))
        positional = Option("", bare or "", is_required=is_required, takes_many=takes_many, type=kind)
        return positional if takes_bare and bare else None
    flag = next((flag for flag in flags if flag.startswith("--")), flags[0])
    name = flag.lstrip("-").replace("-", "_")
    if action != "store_false":  # whose value is the opposite of its destination's
        name = str(literals.get("dest") or bare or name)
    is_optional_flag = "action" in keywords and last_name(keywords["action"]) == "BooleanOptionalAction"
    if is_optional_flag:
        negatives = tuple(f"--no-{each[2:]}" for each in flags if each.startswith("--"))
    is_flag = (
        action in ("store_true", "store_false", "store_const", "count")
        or bool(negatives)
        or literals.get("is_flag") is True
    )
    default = keywords.get("default")
    return Option(
        flag,
        name,
        default=False if is_flag and default is None else constant(default),
        is_known=_is_known(default) and "envvar" not in keywords,
        is_flag=is_flag,
        is_required=literals.get("required") is True,
        others=tuple(each for each in flags if each != flag),
        negatives=negatives,
        takes_many=takes_many and not is_flag,
        help=str(literals.get("help") or ""),
        type=_type_name(keywords.get("type")),
    )


def _spellings(texts: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Flags, and those behind the slash of click's and typer's ``--amp/--no-amp``."""
    flags: list[str] = []
    negatives: list[str] = []
    for text in texts:
        positive, _, negative = text.partition("/") if text.startswith("-") else ("", "", "")
        flags += positive.split()
        negatives += negative.split()
    return flags, tuple(negatives)


def _absl(module: Module) -> Iterator[Option]:
    """``flags.DEFINE_integer("batch_size", 32, "Batch size.")``."""
    for call in module.calls:
        kind = last_name(call.func)
        if not kind.startswith("DEFINE_") or len(call.args) < 2:
            continue
        name, default = constant(call.args[0]), call.args[1]
        if not isinstance(name, str):
            continue
        short = next((constant(word.value) for word in call.keywords if word.arg == "short_name"), None)
        is_flag = kind in ("DEFINE_bool", "DEFINE_boolean")
        text = constant(call.args[-1])
        yield Option(
            f"--{name}",
            name,
            constant(default),
            is_known=_is_known(default),
            is_flag=is_flag,
            others=(f"-{name}", *([f"--{short}", f"-{short}"] if isinstance(short, str) else [])),
            negatives=(f"--no{name}",) if is_flag else (),
            takes_many=kind.startswith("DEFINE_multi") or kind == "DEFINE_list",
            help=text if isinstance(text, str) else "",
            type=kind.removeprefix("DEFINE_"),
        )


# --- parsers that read the signature of a function ---------------------------------------------------------------


def _typer(module: Module) -> Iterator[Option]:
    if not module.imports("typer"):
        return
    named = {last_name(call.args[0]) for call in module.calls_of("run") if call.args}
    for function in module.functions.values():
        is_command = any(
            last_name(each) == "command" and not (isinstance(each, ast.Call) and _is_click(each))
            for each in function.decorator_list
        )
        if is_command or function.name in named:
            for argument, default in _parameters(function):
                yield _typer_option(argument, default)


def _is_click(decorator: ast.Call) -> bool:
    return isinstance(decorator.func, ast.Attribute) and last_name(decorator.func.value) == "click"


def _typer_option(argument: ast.arg, default: ast.expr | None) -> Option:
    """``lr: Annotated[float, typer.Option("--lr")] = 0.01``, or ``lr: float = typer.Option(0.01)``."""
    annotation, declaration = argument.annotation, None
    if isinstance(annotation, ast.Subscript) and last_name(annotation.value) == "Annotated":
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        annotation = parts[0]
        declaration = next((part for part in parts[1:] if _is_declaration(part)), None)
    names: list[ast.expr] = list(declaration.args) if isinstance(declaration, ast.Call) else []
    if isinstance(default, ast.Call) and _is_declaration(default):
        declaration, names = default, default.args[1:]
        default = default.args[0] if default.args else _keyword(default, "default")
    is_required = default is None or (isinstance(default, ast.Constant) and default.value is Ellipsis)
    default = None if is_required else default
    kind = "" if declaration is None else last_name(declaration)
    if kind == "Argument" or (kind == "" and is_required):
        value, kind = _value(default), _type_name(annotation)
        return Option("", argument.arg, value, is_known=_is_known(default), is_required=is_required, type=kind)
    flags, negatives = _spellings([text for each in names if isinstance(text := constant(each), str)])
    usual = f"--{argument.arg.replace('_', '-')}"
    is_flag = _is_bool(annotation, default)
    text = constant(_keyword(declaration, "help")) if isinstance(declaration, ast.Call) else None
    flag = next((each for each in flags if each.startswith("--")), flags[0] if flags else usual)
    if is_flag and not flags:
        negatives = (f"--no-{usual[2:]}",)
    return Option(
        flag,
        argument.arg,
        _value(default),
        is_known=_is_known(default) and _keyword(declaration, "envvar") is None,
        is_flag=is_flag,
        is_required=is_required,
        others=tuple(each for each in flags if each != flag),
        negatives=negatives,
        takes_many=isinstance(annotation, ast.Subscript) and last_name(annotation.value).lower() == "list",
        help=text if isinstance(text, str) else "",
        type=_type_name(annotation),
    )  # fmt: skip


def _is_declaration(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node) in ("Option", "Argument")


def _fire(module: Module) -> Iterator[Option]:
    """``fire.Fire(main)``: each parameter is an option, and may be given by its place, too."""
    if not module.imports("fire"):
        return
    functions = [module.functions.get(last_name(call.args[0])) for call in module.calls_of("Fire") if call.args]
    for function in functions:
        for argument, default in () if function is None else _parameters(function):
            yield _signature_option(module, argument, default, "-")


def _fastcore(module: Module) -> Iterator[Option]:
    """The function below ``@call_parse``, whose comments describe its parameters."""
    if not module.imports("fastcore", "fastai"):
        return
    for function in module.functions.values():
        if any(last_name(each) == "call_parse" for each in function.decorator_list):
            for argument, default in _parameters(function):
                yield _signature_option(module, argument, default, "_")


def _signature_option(module: Module, argument: ast.arg, default: ast.expr | None, joint: str) -> Option:
    name = argument.arg
    is_flag = _is_bool(argument.annotation, default)
    annotation = argument.annotation  # fastcore's Param("help", int)
    text = constant(annotation.args[0]) if isinstance(annotation, ast.Call) and annotation.args else None
    return Option(
        f"--{name}",
        name,
        _value(default),
        is_known=_is_known(default),
        is_flag=is_flag,
        is_required=default is None,
        others=(f"--{name.replace('_', '-')}",),
        negatives=(f"--no{joint}{name}", f"--no{name}") if is_flag else (),
        help=text if isinstance(text, str) else module.comment(argument.lineno),
        type=_type_name(annotation),
    )


def _parameters(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """The parameters of a function with their defaults."""
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    missing = [None] * (len(places) - len(arguments.defaults))
    yield from zip(places, [*missing, *arguments.defaults], strict=True)
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


# --- parsers that read the fields of a class ---------------------------------------------------------------------


def _huggingface(module: Module) -> Iterator[Option]:
    if module.calls_of("HfArgumentParser", "TrlParser"):
        for node in module.dataclasses.values():
            yield from _fields(module, node, "", "_")


def _dataclass(module: Module) -> Iterator[Option]:
    """tyro, simple_parsing, pyrallis, draccus and jsonargparse: fields, or parameters of a function."""
    if not module.imports("tyro", "simple_parsing", "pyrallis", "draccus", "jsonargparse"):
        return
    joint = "-" if module.imports("tyro") else "_"
    for call in module.calls_of("cli", "add_arguments", "parse", "CLI", "auto_cli"):
        name = last_name(call.args[0]) if call.args else next(
            (last_name(word.value) for word in call.keywords if word.arg in ("config_class", "f")), ""
        )  # fmt: skip
        yield from _of_subject(module, name, joint)
    for function in module.functions.values():
        if any(last_name(each) == "wrap" for each in function.decorator_list) and function.args.args:
            annotation = function.args.args[0].annotation
            yield from _of_subject(module, "" if annotation is None else last_name(annotation), joint)


def _of_subject(module: Module, name: str, joint: str) -> Iterator[Option]:
    if name in module.dataclasses:
        yield from _fields(module, module.dataclasses[name], "", joint)
    elif name in module.functions:
        for argument, default in _parameters(module.functions[name]):
            yield _field_option(argument.arg, argument.annotation, default, "", joint, module.comment(argument.lineno))


def _fields(module: Module, node: ast.ClassDef, prefix: str, joint: str) -> Iterator[Option]:
    """The fields of a dataclass, those of its bases first; one that holds another dataclass gives
    ``--optim.lr``."""
    for base in node.bases:
        if last_name(base) in module.dataclasses:
            yield from _fields(module, module.dataclasses[last_name(base)], prefix, joint)
    for place, item in enumerate(node.body):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name, inner = item.target.id, module.dataclasses.get(last_name(item.annotation))
        if inner is not None and prefix.count(".") < 3 and inner is not node:
            yield from _fields(module, inner, f"{prefix}{name}.", joint)
            continue
        below = node.body[place + 1] if place + 1 < len(node.body) else None
        text = constant(below.value) if isinstance(below, ast.Expr) else None
        described = text if isinstance(text, str) else module.comment(item.end_lineno or 0)
        yield _field_option(name, item.annotation, item.value, prefix, joint, described)


def _field_option(
    name: str, annotation: ast.expr | None, default: ast.expr | None, prefix: str, joint: str, described: str
) -> Option:
    is_required = default is None
    if isinstance(default, ast.Call) and last_name(default.func) in ("field", "arg", "Field", "attr"):
        keywords = {word.arg: word.value for word in default.keywords}
        described = str(constant(_metadata_help(keywords)) or described)
        is_required = not keywords.keys() & {"default", "default_factory"} and not default.args
        default = keywords.get("default", keywords.get("default_factory", default.args[0] if default.args else None))
    is_flag = joint == "-" and _is_bool(annotation, default)
    flag = f"--{prefix}{name}"
    dashed = flag.replace("_", "-")
    turned_off = f"--{prefix}no-{name}"
    return Option(
        dashed if joint == "-" else flag,
        prefix + name,
        _value(default),
        is_known=_is_known(default),
        is_flag=is_flag,
        is_required=is_required,
        others=(flag if joint == "-" else dashed,),
        negatives=(turned_off, turned_off.replace("_", "-")) if is_flag else (),
        help=described,
        type=_type_name(annotation),
    )


def _metadata_help(keywords: Mapping[str | None, ast.expr]) -> ast.expr | None:
    """The help of ``field(metadata={"help": …})``, or of the keyword itself."""
    metadata = keywords.get("metadata")
    if isinstance(metadata, ast.Dict):
        for key, value in zip(metadata.keys, metadata.values, strict=True):
            if constant(key) == "help":
                return value
    return keywords.get("help")


# --- hydra, and nanoGPT's globals --------------------------------------------------------------------------------


def _hydra(module: Module) -> Iterator[Option]:
    """The keys of the YAML next to ``config_path`` of ``@hydra.main``, such as ``optim.lr``."""
    if not module.imports("hydra"):
        return
    for call in module.calls_of("main"):
        folder, name = (constant(_keyword(call, word)) for word in ("config_path", "config_name"))
        if isinstance(name, str):
            place = module.path.parent / (folder if isinstance(folder, str) else ".")
            yield from _composed(place, name.removesuffix(".yaml"), "", 0)


def _composed(root: Path, name: str, prefix: str, depth: int) -> Iterator[Option]:
    """The keys of a configuration, behind those of the groups in its list of defaults. ``name`` is a
    path below ``root``, such as model/small, whose keys have the ``prefix`` "model."."""
    text, data = _yaml_file(root / f"{name}.yaml")
    if (package := re.search(r"^#\s*@package\s+(\S+)", text, re.MULTILINE)) is not None:
        prefix = _prefix(package[1], prefix)
    listed = data.pop("defaults", None)
    for entry in listed if isinstance(listed, list) and depth < 4 else ():
        for key, choice in entry.items() if isinstance(entry, dict) else ():
            group, _, package_name = str(key).rpartition(" ")[2].partition("@")
            below = name.rpartition("/")[0] if not group.startswith("/") else ""
            path = "/".join(filter(None, (below, group.strip("/"))))
            inner = _prefix(package_name, f"{path.replace('/', '.')}.")
            if isinstance(choice, str):
                yield from _composed(root, f"{path}/{choice.removesuffix('.yaml')}", inner, depth + 1)
    yield from _flattened(data, prefix)


def _prefix(package: str, usual: str) -> str:
    """What stands before the keys of a package of hydra."""
    return {"": usual, "_group_": usual, "_global_": ""}.get(package, f"{package}.")


def _flattened(data: Mapping[str, object], prefix: str) -> Iterator[Option]:
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            if prefix or key != "hydra":
                yield from _flattened(value, f"{path}.")
            continue
        is_scalar = value is None or isinstance(value, str | int | float | bool)
        is_known = is_scalar and "${" not in str(value) and value != "???"
        default = value if is_known and isinstance(value, str | int | float | bool) else None
        yield Option(path, path, default, is_known=is_known, is_required=value == "???")


def _yaml_file(path: Path) -> tuple[str, dict[str, object]]:
    """The text and the mapping of a file; empty if it cannot be read."""
    try:
        text = path.read_text("utf-8", "replace")
        data = yaml.safe_load(text)
    except (OSError, yaml.YAMLError):
        return "", {}
    return text, {str(key): value for key, value in data.items()} if isinstance(data, dict) else {}


def _globals(module: Module) -> Iterator[Option]:
    """nanoGPT's options: ``--name=value`` sets a global that is a literal."""
    if re.search(r"exec\(open\(.*configurator\.py", module.text) is None:
        return
    for node in module.tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=assigned) if not name.startswith("_"):
                value = constant(assigned)
                value = arithmetic(assigned) if value is None else value
                if value is not None:
                    yield Option(f"--{name}", name, value)


_READERS: Mapping[Style, Callable[[Module], Iterator[Option]]] = {
    "argparse": _argparse,
    "typer": _typer,
    "click": _click,
    "absl": _absl,
    "fire": _fire,
    "fastcore": _fastcore,
    "hf": _huggingface,
    "dataclass": _dataclass,
    "hydra": _hydra,
    "globals": _globals,
}


# --- values ------------------------------------------------------------------------------------------------------


def _keyword(call: ast.expr | None, name: str) -> ast.expr | None:
    words = call.keywords if isinstance(call, ast.Call) else []
    return next((word.value for word in words if word.arg == name), None)


def _is_bool(annotation: ast.expr | None, default: ast.expr | None) -> bool:
    if annotation is None:
        return isinstance(constant(default), bool)
    return last_name(annotation) in _ANNOTATED_FLAGS


def _type_name(node: ast.expr | None) -> str:
    """The name of a value's type: ``int`` of ``int | None``, ``Optional[int]`` and ``type=int``; "" if it has none."""
    if isinstance(node, ast.BinOp):
        return _type_name(node.left) or _type_name(node.right)
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Optional":
        return _type_name(node.slice)
    return "" if node is None else last_name(node)


def _value(default: ast.expr | None) -> Scalar:
    """The value of a literal, or of a path of one, as in ``Path("runs")``."""
    if isinstance(default, ast.Call) and last_name(default) == "Path" and len(default.args) == 1:
        return constant(default.args[0])
    return constant(default)


def _is_known(default: ast.expr | None) -> bool:
    """Return whether the source says which value a default has."""
    return default is None or isinstance(default, ast.Constant) or _value(default) is not None
