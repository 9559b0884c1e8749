"""Write what the program says of itself into the pages of docs/: ``python -m docs.tables``.

``--check`` only says whether they have it. Between ``<!-- table: NAME -->`` and ``<!-- end -->`` a page has the table
of `TABLES` with that name; the rest is written by hand.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from pydantic import BaseModel

from gputui.profiles.recovery_form import RecoveryForm
from gputui.profiles.schema import BestForm, Checkpoints, Metrics, MetricsForm, ParameterForm, ProfileForm, Requires
from gputui.recovery.actions import ACTIONS as RECOVERY_ACTIONS
from gputui.recovery.kinds import KINDS
from gputui.recovery.policies import POLICIES, PolicyAction
from gputui.runs.executors.options import OPTIONS, TargetOptions
from gputui.studies import spec as study
from gputui.studies.keys import Section
from gputui.ui.tui.actions.keys import key_word
from gputui.ui.tui.actions.table import ACTIONS as KEYS
from gputui.ui.tui.pages.signs import PAGE_SIGNS
from trainer.config.schema import RUN_WIDE, Settings

PAGES = Path(__file__).resolve().parent
Row = tuple[str, ...]

_MARKED = re.compile(r"(?P<begin><!-- table: (?P<name>[\w -]+?) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def updated(page: str) -> str:
    """The page with its tables as they should be. Raises KeyError for the name of no table."""
    return _MARKED.sub(lambda found: f"{found['begin']}\n{TABLES[found['name']]()}\n{found['end']}", page)


def _table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table without outer pipes."""
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", r"\|") for cell in row) for row in rows)]
    return "".join(f"{' | '.join(line).rstrip()}\n" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int | float) or value == "":
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _meaning(description: str, annotation: Any) -> str:
    """A description, with the choices where the type has some."""
    choices = ", ".join(f"`{choice}`" for choice in get_args(annotation) if isinstance(choice, str))
    return f"{description}; one of {choices}" if choices else description


# --- keys of files ----------------------------------------------------------------------------------------------------


def _model_rows(model: type[BaseModel], prefix: str = "") -> Iterator[Row]:
    for name, field in model.model_fields.items():
        meaning = _meaning(field.description or "", field.annotation)
        yield f"`{prefix}{field.alias or name}`", _shown(field.default), meaning


def _model_table(model: type[BaseModel], prefix: str = "") -> str:
    return _table(("key", "default", "meaning"), _model_rows(model, prefix))


def _recovery_keys() -> str:
    # The defaults are those of the policy.
    return _table(("key", "meaning"), ((key, meaning) for key, _, meaning in _model_rows(RecoveryForm)))


def _section_rows(section: type[Section], prefix: str = "") -> Iterator[Row]:
    types = get_type_hints(section)
    for field in fields(cast(Any, section)):  # every section is a dataclass
        name = field.metadata.get("alias", field.name)
        if name != study.NAME_KEY:
            meaning = _meaning(field.metadata["description"], types[field.name])
            # A 0 that stands for "left out" cannot be written.
            default = "" if "left out" in meaning else _shown(field.default)
            yield f"`{prefix}{name}`", default, meaning


def _study_keys() -> str:
    rows = list(_section_rows(study.StudySpec))
    for prefix, section in (  # as the file nests them
        ("space.NAME.", study.Dimension), ("objective.", study.Objective), ("sampler.", study.SamplerSpec),
        ("pruner.", study.PrunerSpec), ("constraints.", study.Constraints), ("budget.", study.Budget),
        ("pbt.", study.PbtSpec),
    ):  # fmt: skip
        rows += _section_rows(section, prefix)
    return _table(("key", "default", "meaning"), rows)


def _target_keys() -> str:
    shared = [row for row in _model_rows(TargetOptions) if row[0] not in ("`kind`", "`poll`")]
    rows = [("all", *row) for row in shared]
    for kind, options in OPTIONS.items():
        rows += [(kind, *row) for row in _model_rows(options) if row not in shared and row[0] != "`kind`"]
    return _table(("kind", "key", "default", "meaning"), rows)


# --- recovery and alerts ----------------------------------------------------------------------------------------------


def _rung(rung: tuple[PolicyAction, ...]) -> str:
    return " + ".join(action.name + (f" {action.argument:g}" if action.argument is not None else "") for action in rung)


def _incident_kinds() -> str:
    standard = POLICIES["standard"]
    return _table(
        ("kind", "what it means", "standard ladder, then stop"),
        (
            (
                f"`{kind.name}`",
                kind.help,
                "never retried" if kind.retry == "never" else " → ".join(map(_rung, standard.ladder(kind.name)[:-1])),
            )
            for kind in KINDS.values()
        ),
    )


def _actions() -> str:
    def number(name: str) -> str:
        action = RECOVERY_ACTIONS[name]
        return f"{action.argument}, {action.default:g} if left out" if action.argument else ""

    rows = ((f"`{name}`", action.help, number(name)) for name, action in RECOVERY_ACTIONS.items())
    return _table(("action", "what it does", "its number"), rows)


def _policies() -> str:
    rows = []
    for name, policy in POLICIES.items():
        used = {action.name for ladder in policy.ladders.values() for rung in ladder for action in rung}
        limits = (str(policy.max_attempts), str(policy.max_without_progress)) if policy.enabled else ("1", "")
        rows.append((f"`{name}`", ", ".join(action for action in RECOVERY_ACTIONS if action in used), *limits,
                     ", ".join(sorted(policy.ends_on))))  # fmt: skip
    return _table(("policy", "actions", "attempts", "without progress", "ends a live attempt for"), rows)


# --- screen -----------------------------------------------------------------------------------------------------------


def _keys() -> str:
    """A row for each set of pages that have keys of the overview or a run in common; `?` has those of others, and
    moving in tables and texts."""
    keys: dict[tuple[Row, str], list[str]] = {}
    for action in KEYS:
        if action.heading != "Move" and not {"overview", "run"}.isdisjoint(action.scopes):
            keys.setdefault((action.scopes, action.phrase), []).extend(key_word(key) for key in action.keys[:1])
    rows: dict[str, list[str]] = {}
    for (pages, phrase), names in keys.items():
        if names:
            does = f"`{' '.join(dict.fromkeys(names))}` {phrase[0].lower()}{phrase[1:]}"
            rows.setdefault(_pages(pages), []).append(does)
    return _table(("pages", "keys"), ((pages, "; ".join(does)) for pages, does in rows.items()))


def _pages(pages: Row) -> str:
    forms = {"launch", "profiles", "study_files"}
    is_everywhere = {*pages, *forms} >= {scope for action in KEYS for scope in action.scopes}
    return "all" if is_everywhere else ", ".join(page.replace("_", " ") for page in pages)


def _signs() -> str:
    """A row for each of overview and run with the signs that only it has, and one for those of both; `?` has those of
    other pages."""
    pages: dict[str, list[str]] = {}
    for page in ("overview", "run"):
        for sign in PAGE_SIGNS[page]:
            pages.setdefault(f"`{sign.glyph}` {sign.word}", []).append(page)
    rows: dict[str, list[str]] = {}
    for meaning, names in pages.items():
        rows.setdefault(", ".join(names), []).append(meaning)
    return _table(("pages", "signs"), ((names, "; ".join(meanings)) for names, meanings in rows.items()))


# --- the trainer ------------------------------------------------------------------------------------------------------


def _run_wide() -> str:
    names = (name for name in Settings.model_fields if name in RUN_WIDE and name not in ("phase", "phases", "epochs"))
    return ", ".join(f"`{name}`" for name in names) + ".\n"


def _metrics_keys() -> str:
    rows = [
        *_model_rows(MetricsForm, "metrics."),
        *_model_rows(BestForm, "metrics.best."),
        *_model_rows(Metrics, "metrics."),
    ]
    return _table(("key", "default", "meaning"), (row for row in rows if row[0] != "`metrics.best`"))


TABLES: Mapping[str, Callable[[], str]] = {
    "profile-keys profile": partial(_model_table, ProfileForm),
    "profile-keys requires": partial(_model_table, Requires, "requires."),
    "profile-keys metrics": _metrics_keys,
    "profile-keys checkpoints": partial(_model_table, Checkpoints, "checkpoints."),
    "profile-keys params": partial(_model_table, ParameterForm, "params.NAME."),
    "recovery-keys": _recovery_keys,
    "study-keys": _study_keys,
    "target-keys": _target_keys,
    "incident-kinds": _incident_kinds,
    "actions": _actions,
    "policies": _policies,
    "keys": _keys,
    "signs": _signs,
    "run-wide": _run_wide,
}


def main(arguments: list[str]) -> int:
    stale = []
    for path in sorted(PAGES.glob("*.md")):
        text = path.read_text("utf-8")
        if (fresh := updated(text)) != text:
            stale.append(path.name)
            if "--check" not in arguments:
                path.write_text(fresh, "utf-8")
    if stale and "--check" in arguments:
        print(f"{', '.join(stale)}: not what the program says; python -m docs.tables", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
