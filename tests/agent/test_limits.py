"""The agent's resource limits are not those of the shell that happened to start it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from gputui.agent import limits

CODE = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
resource.setrlimit(resource.RLIMIT_CPU, (60, resource.getrlimit(resource.RLIMIT_CPU)[1]))
from gputui.agent.limits import raise_limits
raise_limits()
for name in ("FSIZE", "CPU", "AS", "NOFILE"):
    soft, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    assert soft == hard, name
"""


def test_soft_limits_are_raised_to_the_hard_ones() -> None:
    assert subprocess.run([sys.executable, "-c", CODE], check=False).returncode == 0


def test_a_limit_that_stays_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1536 << 10, 1536 << 10))
    assert "1.5 MiB" in limits.why_unwritable() and "ulimit -f" in limits.why_unwritable()
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert limits.why_unwritable() == "see whether its disk is full"
