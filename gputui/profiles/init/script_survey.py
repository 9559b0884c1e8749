"""Read a script, without running it: its options, frameworks, checkpoint paths, printed lines."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gputui.profiles.init.printed_lines import Printed, PrintedLines
from gputui.profiles.init.syntax import PathResolver, arithmetic, constant, last_name
from gputui.runs.spec import Scalar

Style = Literal["argparse", "click", "hf", "lightning", "globals"]
"""How a script declares its options: a library, a framework's parser or nanoGPT's globals."""

MAX_BYTES = 2 << 20
_CHECKPOINT_FILE = re.compile(r"[\w./-]*\w\.(pt|pth|ckpt)(\.tar)?")
# Functions that save, with the position of their path.
_SAVERS = {"save_state": 0, "save_checkpoint": 0, "save_pretrained": 0, "save_file": 1, "save": 1}


class SurveyError(Exception):
    """The script cannot be read. One line that names it."""


class Option(Struct, frozen=True):
    """An option of a script. ``flag`` is "" for a positional argument, ``others`` are its other
    spellings. ``default`` is valid if ``is_known``; otherwise the script computes it. An option
    with ``is_flag`` takes no value."""

    flag: str
    name: str
    default: Scalar = None
    is_known: bool = True
    is_flag: bool = False
    is_required: bool = False
    others: tuple[str, ...] = ()


@dataclass(slots=True)
class Survey:
    """The content of a script and the modules beside it.

    Attributes:
        modules: imported modules, and imported names as ``module.name``.
        calls: last names of called functions and of base classes.
        bases: classes → the last names of their base classes.
        keywords: the keyword arguments of each call, as paths of `PathResolver`.
        shared: names of the values that the script divides by the number of ranks.
        saves: the paths that it saves to, as paths of `PathResolver`.
        named_files: checkpoint files named anywhere.
        text: the source code.
    """

    style: Style | None = None
    options: dict[str, Option] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    bases: dict[str, set[str]] = field(default_factory=dict)
    keywords: dict[str, dict[str, str]] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)
    saves: list[str] = field(default_factory=list)
    named_files: set[str] = field(default_factory=set)
    printed: list[Printed] = field(default_factory=list)
    text: str = ""

    def uses(self, *packages: str) -> bool:
        """Return whether the script imports any of these packages."""
        return bool(self.imported_from(*packages))

    def imported_from(self, *packages: str) -> set[str]:
        """The last names of what the script imports from these packages."""
        return {
            name.rpartition(".")[2]
            for name in self.modules
            if any(name == package or name.startswith(f"{package}.") for package in packages)
        }


def survey_script(path: Path, *roots: Path) -> Survey:
    """Survey a script and its modules beside it or below ``roots``. Raises SurveyError."""
    survey = Survey()
    _survey_file(survey, path)
    places = [folder.joinpath(*name.split(".")) for name in sorted(survey.modules) for folder in (path.parent, *roots)]
    files = {file: None for place in places for file in (Path(f"{place}.py"), place / "__init__.py")}
    for file in files:
        if file.is_file() and file != path and len(survey.text) < MAX_BYTES:
            with suppress(SurveyError):  # a module that cannot be read is left out
                _survey_file(survey, file)
    return survey


def _survey_file(survey: Survey, path: Path) -> None:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise SurveyError(f"{path} is larger than {MAX_BYTES >> 20} MiB; write a profile by hand")
        text = raw.decode("utf-8", "replace")
        tree = ast.parse(raw)
    except OSError as error:
        raise SurveyError(f"{path}: {error.strerror}") from error
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SurveyError(f"{path} is no Python that can be read: {error}") from error
    survey.text += text
    _Surveyor(survey, tree).run()


class _Surveyor:
    """Adds one module to a survey."""

    def __init__(self, survey: Survey, tree: ast.Module) -> None:
        self.survey = survey
        self.module = tree
        self.nodes = list(ast.walk(tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.assigned: dict[str, list[ast.Assign]] = {}

    def run(self) -> None:
        for node in self.nodes:
            self._read_statement(node)
        self._read_calls()
        self._read_options()
        paths = PathResolver(self.assigned, self.survey.options.keys(), self.survey.style)
        lines = PrintedLines(self.nodes)
        for call in self.calls:
            if (saved := _saved_path(call, paths)) is not None:
                self.survey.saves.append(saved)
            if (printed := lines.line(call)) is not None:
                self.survey.printed.append(printed)

    def _read_statement(self, node: ast.AST) -> None:
        """Survey anything but a call."""
        survey = self.survey
        match node:
            case ast.Import(names=names):
                survey.modules |= {alias.name for alias in names}
            case ast.ImportFrom(module=module, names=names):
                before = [module] if module else []
                survey.modules |= {*before, *(".".join([*before, alias.name]) for alias in names)}
            case ast.Assign(targets=[ast.Name(id=name)]):
                self.assigned.setdefault(name, []).append(node)
            case ast.AugAssign(target=value, op=op, value=divisor) if _divides_by_ranks(op, divisor):
                survey.shared.add(last_name(value))
            case ast.BinOp(left=value, op=op, right=divisor) if _divides_by_ranks(op, divisor):
                survey.shared.add(last_name(value))
            case ast.ClassDef(name=name, bases=bases):
                survey.bases[name] = {last_name(base) for base in bases}
                survey.calls |= survey.bases[name]
            case ast.Constant(value=value) if _CHECKPOINT_FILE.fullmatch(str(value)):
                survey.named_files.add(str(value))

    def _read_calls(self) -> None:
        survey = self.survey
        # Options are not known yet, so these paths have "*" where the script's own options stand.
        paths = PathResolver(self.assigned, survey.options.keys(), survey.style)
        for call in self.calls:
            name = last_name(call.func)
            survey.calls.add(name)
            words = {word.arg: paths.path(word.value) for word in call.keywords if word.arg}
            survey.keywords.setdefault(name, {}).update(words)
            if name.endswith("TrainingArguments") and call.args:
                survey.keywords[name].setdefault("output_dir", paths.path(call.args[0]))

    def _read_options(self) -> None:
        survey = self.survey
        for call in self.calls:
            name = last_name(call.func)
            if name == "add_argument":
                self._add(_declared_option(call, "argparse"), "argparse")
            elif name == "option" and isinstance(call.func, ast.Attribute):
                self._add(_declared_option(call, "click"), "click")
        if "HfArgumentParser" in survey.calls or "TrlParser" in survey.calls:
            survey.style = "hf"
            for node in self.nodes:
                if isinstance(node, ast.ClassDef) and "dataclass" in map(last_name, node.decorator_list):
                    self._add_fields(node)
        elif "LightningCLI" in survey.calls:
            survey.style = "lightning"
        elif re.search(r"exec\(open\(.*configurator\.py", survey.text):
            survey.style = "globals"
            self._add_globals()

    def _add(self, option: Option | None, style: Style) -> None:
        if option is not None and re.fullmatch(r"[A-Za-z_]\w*", option.name):
            known = self.survey.options.get(option.name)
            if known is not None:
                option = replace(known, others=(*known.others, option.flag, *option.others))
            self.survey.options[option.name] = option
            self.survey.style = self.survey.style or style

    def _add_fields(self, node: ast.ClassDef) -> None:
        """Add the fields of a dataclass."""
        for item in node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                default, is_required, name = item.value, item.value is None, item.target.id
                if isinstance(default, ast.Call) and last_name(default.func) == "field":
                    keywords = {word.arg: word.value for word in default.keywords}
                    is_required = not keywords.keys() & {"default", "default_factory"}
                    default = keywords.get("default", keywords.get("default_factory"))
                is_known = _is_known(default)
                self._add(
                    Option(f"--{name}", name, constant(default), is_known=is_known, is_required=is_required), "hf"
                )

    def _add_globals(self) -> None:
        """Add nanoGPT's options: ``--name=value`` sets a global that is a literal."""
        for node in self.module.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=assigned) if not name.startswith("_"):
                    value = constant(assigned)
                    value = arithmetic(assigned) if value is None else value
                    if value is not None:
                        self._add(Option(f"--{name}", name, value), "globals")


def _divides_by_ranks(operation: ast.operator, divisor: ast.expr) -> bool:
    return isinstance(operation, ast.Div | ast.FloorDiv) and "world_size" in ast.unparse(divisor).lower()


def _declared_option(call: ast.Call, style: Style) -> Option | None:
    """The option that ``add_argument("-b", "--batch-size", dest="batch", default=16)`` declares, or
    a call of ``click.option``; None if it takes no single value."""
    keywords = {word.arg: word.value for word in call.keywords if word.arg}
    literals = {name: constant(value) for name, value in keywords.items()}
    names = [text for argument in call.args if isinstance(text := constant(argument), str)]
    action = literals.get("action")
    if not names or "nargs" in keywords or action in ("append", "count", "version", "help"):
        return None
    # click's "--amp/--no-amp" is one name.
    flags = [flag for text in names if text.startswith("-") for flag in text.split("/")[0].split()]
    bare = next((text.replace("-", "_") for text in names if not text.startswith("-")), None)
    if not flags:
        return Option("", bare, is_required=True) if style == "argparse" and bare else None
    flag = next((flag for flag in flags if flag.startswith("--")), flags[0])
    name = flag.lstrip("-").replace("-", "_")
    if action != "store_false":  # whose value is the opposite of its destination's
        name = str(literals.get("dest") or bare or name)
    is_flag = (
        action in ("store_true", "store_false")
        or any("/" in text for text in names)
        or literals.get("is_flag") is True
        or ("action" in keywords and last_name(keywords["action"]) == "BooleanOptionalAction")
    )
    default = keywords.get("default")
    return Option(
        flag,
        name,
        default=False if is_flag and default is None else constant(default),
        is_known=_is_known(default),
        is_flag=is_flag,
        is_required=literals.get("required") is True,
        others=tuple(each for each in flags if each != flag),
    )


def _is_known(default: ast.expr | None) -> bool:
    """Return whether the source says which value a default has."""
    return default is None or isinstance(default, ast.Constant) or constant(default) is not None


def _saved_path(call: ast.Call, paths: PathResolver) -> str | None:
    """The path that a call saves to, such as ``out/step_*.pt`` of ``torch.save(x,
    f"out/step_{n}.pt")``, or to which it moves a finished file; None for other calls."""
    name = last_name(call.func)
    owner = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    keywords = {word.arg: word.value for word in call.keywords}
    if name == "ModelCheckpoint":
        folder = paths.path(keywords["dirpath"]) if "dirpath" in keywords else "lightning_logs/version_*/checkpoints"
        return f"{folder}/*.ckpt"
    target: ast.expr | None = None
    if name in _SAVERS and isinstance(call.func, ast.Attribute):
        if name == "save" and owner not in ("torch", "fabric", "dcp", "accelerator", "xm"):
            return None
        place = 0 if name == "save" and owner == "fabric" else _SAVERS[name]
        target = call.args[place] if len(call.args) > place else keywords.get("f") or keywords.get("output_dir")
    elif name in ("replace", "rename") and len(call.args) == (2 if owner == "os" else 1):
        target = call.args[-1]
    if target is None:
        return None
    found = paths.path(target)
    is_checkpoint = name in _SAVERS or re.search(r"\.(pt|pth|ckpt|tar|bin|safetensors)$", found)
    is_temporary = re.search(r"\.?(tmp|temp|partial)\b", found)
    return found if is_checkpoint and found.strip("*/") and not is_temporary else None
