"""Writes the settings, as the trainer's schema declares them, into docs/trainer.md: ``python -m docs.settings_tables``.

What lies between two markers in the page is replaced; the rest of it is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import fill, indent
from typing import Any, get_args

from pydantic.fields import FieldInfo

from trainer.config.phases import RUN_WIDE
from trainer.config.schema import GROUPS, TASK_DEFAULTS, Settings, flag

PAGE = Path(__file__).resolve().parent / "trainer.md"
WIDTH = 130

_MARKED = re.compile(
    r"(?P<begin>(?P<indent> *)<!-- (settings: (?P<group>\w+)|run-wide) -->\n).*?(?P<end> *<!-- end -->)", re.DOTALL
)


def tables() -> dict[str, str]:
    """A Markdown table for each group of settings, by the name of its class."""
    return {group.__name__: "".join(_lines(list(group.model_fields))) for group in GROUPS}


def updated(page: str) -> str:
    """The page with the tables as they should be. Raises KeyError for a marker of a group that is not there."""
    known = tables()

    def fresh(found: re.Match[str]) -> str:
        inside = f"\n{known[found['group']]}\n" if found["group"] else indent(run_wide(), found["indent"])
        return f"{found['begin']}{inside}{found['end']}"

    return _MARKED.sub(fresh, page)


def run_wide() -> str:
    """The settings that no phase may change."""
    names = [name for name in Settings.model_fields if name in RUN_WIDE and name not in ("phase", "phases")]
    return fill(", ".join(f"`{name}`" for name in names) + ".", WIDTH, break_on_hyphens=False) + "\n"


def _lines(names: list[str]) -> list[str]:
    rows = [
        f"| `{flag(name)}` | {_defaults(name)} | {_meaning(Settings.model_fields[name])} |\n"
        for name in names
        if name != "phase"  # the trainer sets it
    ]
    return ["| setting | default | meaning |\n", "|---|---|---|\n", *rows]


def _defaults(name: str) -> str:
    """The default, and those of tasks that have another one: ``16 (lm, mlm: 8)``."""
    default = Settings.model_fields[name].default
    tasks: dict[str, list[str]] = {}
    for task, own in TASK_DEFAULTS.items():
        if own.get(name, default) != default:
            tasks.setdefault(_shown(own[name]), []).append(task)
    others = "; ".join(f"{', '.join(names)}: {value}" for value, names in tasks.items())
    return f"{_shown(default)} ({others})" if others else _shown(default)


def _shown(value: Any) -> str:
    if value in ("", (), {}, None, Path()):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _meaning(setting: FieldInfo) -> str:
    choices = [one for one in get_args(setting.annotation) if isinstance(one, str)]
    listed = f"; one of {', '.join(f'`{one}`' for one in choices)}" if choices else ""
    return f"{setting.description}{listed}".replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
