"""The table of forms: each row has a sink of its own and a row in the docs."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from gputui.config import Workspace
from gputui.reports.export import formats
from gputui.reports.export.formats import FORMATS, Format, FormatFacts
from gputui.reports.export.sink_factory import make_sink
from gputui.reports.export.subject import read_subject
from tests.tui.filling import Filler

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_each_form_is_in_the_type_and_in_the_docs_with_its_facts() -> None:
    assert get_args(Format) == tuple(FORMATS)
    # The table of forms has five columns.
    rows = dict(re.findall(r"^\| `(\w+)` ((?:\|[^|\n]*){4})\|$", DOCS.read_text("utf-8"), re.MULTILINE))
    assert rows.keys() == FORMATS.keys()
    for name, facts in FORMATS.items():
        assert f"`{facts.place}`" in rows[name] or (facts.place is None and "none: an address" in rows[name])
        assert not facts.extra or f"`gputui[{facts.extra}]`" in rows[name]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if FORMATS[name].extra else ()) for name in get_args(Format)]
)
def test_each_form_has_its_own_sink(name: Format, workspace: Workspace, tmp_path: Path) -> None:
    filler = Filler(workspace)
    filler.run("net-1", "running")
    target = f"sqlite:///{tmp_path}/x.db" if FORMATS[name].is_address else str(tmp_path / "x")
    sink = make_sink(name, read_subject(filler.connection, "net-1"), target)
    filler.close()
    assert f"{name}_sink" in type(sink).__module__ and sink.written == 0
    assert len({facts.sink for facts in FORMATS.values()}) == len(FORMATS)


class Mine:
    def __init__(self, subject: Any, target: str, key: str) -> None:
        self.given = subject.run.run_id, target, key


def test_a_new_row_is_all_that_a_new_sink_needs(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("gputui.reports.export.mine_sink")
    module.Mine = Mine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(formats.FORMATS, "mine", FormatFacts("mine_sink:Mine", None))  # type: ignore[arg-type]
    filler = Filler(workspace)
    filler.run("net-1", "running")
    sink: Any = make_sink("mine", read_subject(filler.connection, "net-1"), "/x", "k")  # type: ignore[arg-type]
    filler.close()
    assert isinstance(sink, Mine) and sink.given == ("net-1", "/x", "k")
