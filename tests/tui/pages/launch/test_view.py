"""The launch form as lines, for widths and heights without an app."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.charts.cells import cell_width
from gputui.charts.chart import Line
from gputui.profiles.loading import ProfileEntry
from gputui.runs.checks import CheckResult
from gputui.tui.pages.launch.form import OTHER_GROUP, RUN_GROUP, Field, Form
from gputui.tui.pages.launch.plan import Plan
from gputui.tui.pages.launch.view import LaunchView, launch_lines
from gputui.tui.widgets.line_edit import LineEdit

COMMAND = " ".join(f"--option_{number} value_{number}" for number in range(200))
CHECKS = (CheckResult("disk", "pass", "enough"), CheckResult("shm", "warn", "nearly full", "enlarge it"))


def form_of(count: int, cursor: int = 0) -> Form:
    """A form of ``count`` fields, the second half in another group."""
    fields = tuple(
        Field(f"f{number:02}", f"f{number:02}", "1", "a number", group=RUN_GROUP if number < count / 2 else OTHER_GROUP)
        for number in range(count)
    )
    entry = ProfileEntry("p", Path("p.yaml"), "here", None, None)
    return Form((entry,), fields=fields, edits={item.key: LineEdit.at_end("1") for item in fields}, cursor=cursor)


def shown(form: Form, width: int, height: int, command: str = COMMAND) -> list[str]:
    """The page as texts; every line has been checked to have the width."""
    view = LaunchView(form, Plan(command=command, checks=CHECKS), (), (), 0.0, is_reading=False)
    lines: list[Line] = launch_lines(view, width, height)
    texts = ["".join(text for text, _ in line) for line in lines]
    assert len(texts) == height and {cell_width(text) for text in texts} == {width}
    return texts


@pytest.mark.parametrize("width", [80, 81, 100, 120, 200])
def test_a_cut_command_names_the_key_for_all_of_it(width: int) -> None:
    last = shown(form_of(3), width, 24)[-1].rstrip()
    assert last.endswith("^d shows all")
    assert last.count("…") == 1


@pytest.mark.parametrize("height", [10, 12, 16, 20, 24, 30, 40])
@pytest.mark.parametrize("cursor", [0, 15, 29])
def test_the_command_and_the_field_under_the_cursor_are_in_any_height(height: int, cursor: int) -> None:
    texts = shown(form_of(30, cursor), 80, height)
    assert "^d shows all" in texts[-1]
    assert any("COMMAND" in text for text in texts) and any("CHECKS" in text for text in texts)
    assert any(text.startswith(f"▸ f{cursor:02}") for text in texts)


@pytest.mark.parametrize("cursor", [0, 1, 2])
def test_the_help_of_a_field_is_readable_and_moves_nothing(cursor: int) -> None:
    form = form_of(3, cursor)
    hint = "how much of the data is used: all of it for 1, a tenth for 0.1; only whole files are ever read"
    form = replace(form, fields=(form.fields[0], replace(form.fields[1], hint=hint), form.fields[2]))
    texts = shown(form, 80, 24)
    place = next(number for number, text in enumerate(texts) if "CHECKS" in text)
    words = " ".join(" ".join(texts[place - 2 : place]).split())
    assert words == f"f{cursor:02}: {hint if cursor == 1 else 'a number'}"
    assert place == next(n for n, text in enumerate(shown(replace(form, cursor=1), 80, 24)) if "CHECKS" in text)


@pytest.mark.parametrize("count", [12, 20, 30])
def test_the_last_line_of_the_fields_counts_those_below(count: int) -> None:
    texts = shown(form_of(count), 80, 20)
    visible = sum(text.strip().startswith(("f", "▸ f")) for text in texts)
    (more,) = [text.split() for text in texts if "more below" in text]
    assert visible + int(more[1]) == count
