"""Steps that start again with each pass over the data: reported once, or counted through by the profile."""

from __future__ import annotations

import sys

import pytest

from gputui.store.events import DATA_KINDS
from tests.machine import Machine

SCRIPT = """
import sys, time
for epoch in range(4):
    for i in range(8):
        print(f"epoch {epoch} [{i}/8] loss {1 / (8 * epoch + i + 1):.4f}", flush=True)
        time.sleep(float(sys.argv[1]))
"""
FOLDED = r"\[(?P<step>\d+)/8\] loss (?P<loss>\S+)"
WHOLE = r"epoch (?P<epoch>\d+) \[(?P<iter>\d+)/(?P<total>\d+)\] loss (?P<loss>\S+)"


# Without a pause the run has ended before its first line is read.
@pytest.mark.parametrize(
    ("pattern", "is_folded", "pause_seconds"), [(FOLDED, True, 0), (FOLDED, True, 0.05), (WHOLE, False, 0.05)]
)
def test_epochs_that_restart_the_count_are_reported_once(
    machine: Machine, pattern: str, is_folded: bool, pause_seconds: float
) -> None:
    (machine.folder / "passes.py").write_text(SCRIPT)
    profile = machine.profile(
        "passes",
        f"""
        launcher: python
        script: passes.py
        args: ['{pause_seconds}']
        python: {sys.executable}
        gpus: 0
        metrics: {{source: output, patterns: ['{pattern}']}}
        """,
    )
    machine.gputui("run", profile, "--wait")
    steps = [step for _, step in machine.steps("passes-1")]
    assert steps == (list(range(8)) * 4 if is_folded else list(range(32)))
    kinds = machine.rows(
        "SELECT kind FROM events WHERE run_id = 'passes-1' AND severity = 'info' OR severity = 'warning'"
    )
    assert kinds.count(("steps_restarted",)) == int(is_folded) and "steps_restarted" in DATA_KINDS
    assert ("epoch, iter and total" in " ".join(machine.gputui("explain", "passes-1").split())) == is_folded
