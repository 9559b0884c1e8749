"""Read a script, without running it: its options and frameworks."""

from __future__ import annotations

import ast
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from gputui.core.errors import ExplainedError
from gputui.profiles.init.parsers import declared_options
from gputui.profiles.init.script_options import Module, Option, Style
from gputui.profiles.init.syntax import last_name

MAX_BYTES = 2 << 20  # generated code; parsing it would take seconds
_ADD_OPTIONS = ("hydra", "hf", "lightning")
"""Styles of parsers with more options than a script declares."""


class SurveyError(ExplainedError):
    """The script cannot be read. One line that names it."""


@dataclass(slots=True)
class Survey:
    """The content of a script and the modules beside it.

    Attributes:
        modules: imported modules, and imported names as ``module.name``.
        calls: last names of called functions and of base classes.
        shared: names of the values that the script divides by the number of ranks.
        is_certain: ``options`` are all that the script takes, and their defaults have no other source.
        text: the source code.
    """

    style: Style | None = None
    options: dict[str, Option] = field(default_factory=dict)
    modules: set[str] = field(default_factory=set)
    calls: set[str] = field(default_factory=set)
    shared: set[str] = field(default_factory=set)
    text: str = ""
    is_certain: bool = False

    @property
    def has_all_options(self) -> bool:
        """True if the script takes no other options than those that were read."""
        return self.is_certain and self.style not in _ADD_OPTIONS

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
    return _read_module(survey, Module(path, tree, text))


def _read_module(survey: Survey, module: Module) -> bool:
    """Add a module to a survey; returns whether it declares options."""
    for node in module.nodes:
        match node:
            case ast.Import(names=names):
                survey.modules |= {alias.name for alias in names}
            case ast.ImportFrom(module=source, names=names):
                package = source or ""
                survey.modules |= {package, *(f"{package}.{alias.name}".strip(".") for alias in names)} - {""}
            case ast.AugAssign(target=value, op=op, value=divisor) if _divides_by_ranks(op, divisor):
                survey.shared.add(last_name(value))
            case ast.BinOp(left=value, op=op, right=divisor) if _divides_by_ranks(op, divisor):
                survey.shared.add(last_name(value))
            case ast.ClassDef(bases=bases):
                survey.calls |= {last_name(base) for base in bases}
    survey.calls |= {last_name(call.func) for call in module.calls}
    return _read_options(survey, module)


def _read_options(survey: Survey, module: Module) -> bool:
    declared = declared_options(module)
    if {"HfArgumentParser", "TrlParser"} & survey.calls:
        survey.style = "hf"
    elif "LightningCLI" in survey.calls:
        survey.style = "lightning"
    elif declared is not None and (survey.style is None or declared.style == "globals"):
        survey.style = declared.style
    if declared is None:
        return False
    survey.is_certain = declared.is_certain
    for option in declared.options:
        earlier = survey.options.get(option.name)
        if earlier is not None:
            option = replace(earlier, others=(*earlier.others, option.flag, *option.others))
        survey.options[option.name] = option
    return True


def _divides_by_ranks(operation: ast.operator, divisor: ast.expr) -> bool:
    return isinstance(operation, ast.Div | ast.FloorDiv) and "world_size" in ast.unparse(divisor).lower()
