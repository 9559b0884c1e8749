"""The text of a profile, from its keys and remarks on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from gputui.core.text import clean
from gputui.core.yaml_forms.document import plain_value
from gputui.metrics.source_report import LearnedForm

_WIDTH = 116  # within the 120 columns of most editors' rulers
_COMMAND_LINES = (("args",), ("command",), ("checkpoints", "resume"))
"""Places whose list of words is written as one text."""
_UNQUOTED = re.compile(r"[\w@%+=:,./{}\[\]-]+")


def profile_text(title: str, keys: Mapping[str, Any], remarks: Mapping[str, Sequence[str]]) -> str:
    """Write a profile.

    Args:
        title: the comment of its first line.
        keys: its keys with their values; those that are None or an empty mapping are left out.
        remarks: comments, which stand below their key, or in its place; those of "" come last.
    """
    lines = [f"# {clean(title)}"]
    for key, value in keys.items():
        if value is not None and value != {}:
            lines += _key_lines((key,), value)
        lines += [f"# {clean(remark)}" for remark in remarks.get(key, ())]
    lines += [f"# {clean(remark)}" for remark in remarks.get("", ())]
    return "\n".join(lines) + "\n"


def form_remarks(form: LearnedForm) -> list[str]:
    """The remarks on a form of printed lines that was learned."""
    remarks = [f"printed: {form.example.strip()}"]
    if form.pattern is not None:
        remarks.append(f"  as a pattern: {form.pattern}")
    return remarks


def _key_lines(place: tuple[str, ...], value: Any) -> list[str]:
    """The key at a place with its value, a mapping in a line for each of its own keys."""
    if isinstance(value, Mapping) and value:
        inner = [line for name, item in value.items() for line in _key_lines((*place, name), item)]
        return [f"{place[-1]}:", *(f"  {line}" for line in inner)]
    if place in _COMMAND_LINES and isinstance(value, list):
        value = " ".join(map(_quoted, value))
    flow_style: bool | None = False
    if isinstance(value, list):
        flow_style = None  # that of single values
    text = yaml.dump(
        {place[-1]: value},
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=flow_style,
        width=_WIDTH,
    )
    return text.splitlines()


class _Dumper(yaml.SafeDumper):
    """Quotes each text that gputui would read as another value, such as 1e-3."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if plain_value(text) != text:
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)


_Dumper.add_representer(str, _represent_text)


def _quoted(word: str) -> str:
    """Quote a word for `shlex.split`, but leave placeholders such as ``{lr}`` bare."""
    if _UNQUOTED.fullmatch(word):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"
