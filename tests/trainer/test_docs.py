"""docs/trainer.md says what the trainer does: every setting with its default, every kind of fault, every event."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from tests.trainer.running import ROOT
from trainer import config, faults

DOCUMENT = (ROOT / "docs" / "trainer.md").read_text()


def shown_default(setting: dataclasses.Field[object]) -> str:
    if setting.default in ("", (), Path()):
        return ""
    own = config.TASK_DEFAULTS["lm"].get(setting.name)
    return str(setting.default).replace("True", "true").replace("False", "false") + (
        f" (lm: {own})" if own is not None else ""
    )


def test_every_setting_is_in_the_table_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(--[a-z-]+)` \| (.*?) ?\| ", DOCUMENT, re.MULTILINE))
    assert rows == {
        config.flag(setting.name): shown_default(setting) for setting in dataclasses.fields(config.Settings)
    }


def test_every_fault_and_event_is_described() -> None:
    assert all(f"| `{kind}` |" in DOCUMENT for kind in faults.KINDS)
    source = (ROOT / "trainer" / "loop.py").read_text()
    events = re.findall(r'self\.event\(\s*"(\w+)"', source)
    assert len(events) >= 8
    assert all(f"`{event}`" in DOCUMENT for event in events)
