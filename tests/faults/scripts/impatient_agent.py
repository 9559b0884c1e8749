"""The agent as it is, but for the time that a leak must last and for how large the host is."""

from __future__ import annotations

import sys
from pathlib import Path

from gputui.agent import watching
from gputui.agent.__main__ import main
from gputui.recovery.watch import leak
from gputui.runs.identity import marked_processes
from gputui.runs.readings import read_process

HOST_BYTES = 400 << 20

leak.LEAST_SECONDS, leak.NEAR_SECONDS = 1.5, 0.0
leak.LEAST_GROWTH_BYTES = 32 << 20
watching.LOOK_SECONDS = watching.MEMORY_SECONDS = 0.05
runs = Path(sys.argv[sys.argv.index("--state") + 1]) / "runs"


def left() -> int:
    found = [read_process(one) for run in runs.glob("*") for one in marked_processes(run)]
    return max(HOST_BYTES - sum(one.private_bytes or 0 for one in found if one is not None), 0)


watching.available_bytes = left  # type: ignore[assignment, attr-defined]
sys.exit(main())
