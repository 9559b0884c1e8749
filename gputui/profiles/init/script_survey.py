"""Read a script, without running it: its options, frameworks, checkpoint paths, printed lines."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gputui.profiles.init.printed_lines import Printed, PrintedLines
from gputui.profiles.init.script_options import Module, Option, Style, declared_options, valid_names
from gputui.profiles.init.syntax import PathResolver, last_name

MAX_BYTES = 2 << 20
_CHECKPOINT_FILE = re.compile(r"[\w./-]*\w\.(pt|pth|ckpt)(\.tar)?")
# Functions that save, with the position of their path.
_SAVERS = {"save_state": 0, "save_checkpoint": 0, "save_pretrained": 0, "save_file": 1, "save": 1}


class SurveyError(Exception):
    """The script cannot be read. One line that names it."""


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
        is_certain: ``options`` are all that the script takes, and their defaults have no other source.
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
    is_certain: bool = False

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
    declaring = int(_survey_file(survey, path))
    places = [folder.joinpath(*name.split(".")) for name in sorted(survey.modules) for folder in (path.parent, *roots)]
    files = {file: None for place in places for file in (Path(f"{place}.py"), place / "__init__.py")}
    for file in files:
        if file.is_file() and file != path and len(survey.text) < MAX_BYTES:
            with suppress(SurveyError):  # a module that cannot be read is left out
                declaring += _survey_file(survey, file)
    # Which of several parsers is the script's cannot be seen.
    survey.is_certain = survey.is_certain and declaring == 1
    return survey


def _survey_file(survey: Survey, path: Path) -> bool:
    """Add a file to a survey; returns whether it declares options. Raises SurveyError."""
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
    return _Surveyor(survey, Module(path, tree, text)).run()


class _Surveyor:
    """Adds one module to a survey."""

    def __init__(self, survey: Survey, module: Module) -> None:
        self.survey = survey
        self.module = module
        self.nodes = module.nodes
        self.calls = module.calls
        self.assigned: dict[str, list[ast.Assign]] = {}

    def run(self) -> bool:
        """Survey the module; returns whether it declares options."""
        for node in self.nodes:
            self._read_statement(node)
        self._read_calls()
        has_options = self._read_options()
        paths = PathResolver(self.assigned, self.survey.options.keys(), self.survey.style)
        lines = PrintedLines(self.nodes)
        for call in self.calls:
            if (saved := _saved_path(call, paths)) is not None:
                self.survey.saves.append(saved)
            if (printed := lines.line(call)) is not None:
                self.survey.printed.append(printed)
        return has_options

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

    def _read_options(self) -> bool:
        survey = self.survey
        declared = declared_options(self.module)
        for option in () if declared is None else valid_names(declared.options):
            known = survey.options.get(option.name)
            if known is not None:
                option = replace(known, others=(*known.others, option.flag, *option.others))
            survey.options[option.name] = option
        if {"HfArgumentParser", "TrlParser"} & survey.calls:
            survey.style = "hf"
        elif "LightningCLI" in survey.calls:
            survey.style = "lightning"
        elif declared is not None and (survey.style is None or declared.style == "globals"):
            survey.style = declared.style
        if declared is not None:
            survey.is_certain = declared.is_certain
        return declared is not None


def _divides_by_ranks(operation: ast.operator, divisor: ast.expr) -> bool:
    return isinstance(operation, ast.Div | ast.FloorDiv) and "world_size" in ast.unparse(divisor).lower()


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
