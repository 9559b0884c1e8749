"""The agent as it is, but for the time that a leak must last and for how little memory the host has left: so little
that the end is near for who holds 216 MiB."""

from __future__ import annotations

import sys

from gputui.agent.__main__ import main
from gputui.agent.health import monitor
from gputui.recovery.watch import leaks

LEFT_BYTES = 24 << 20

leaks.LEAK_SECONDS = 1.5
leaks.NEAR_SECONDS = 0.0
leaks.LEAK_BYTES = 32 << 20
monitor.LOOK_SECONDS = monitor.MEMORY_SECONDS = 0.05
monitor.available_bytes = lambda: LEFT_BYTES  # type: ignore[attr-defined]
sys.exit(main())
