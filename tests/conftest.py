"""What all tests share: a private environment, and waiting for something with a deadline instead of sleeping."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings

from gputui.config import Workspace, locate

if TYPE_CHECKING:
    from tests.machine import Machine

T = TypeVar("T")

# Hundreds of processes are started: each would compile all over again what is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# A shared machine's clock says nothing about the code, and a test that fails now and then is broken: the same examples
# are tried every time.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


# What starts whole runs comes last, so that a slip in a small thing is told in seconds.
LATE = ("trainer", "cli", "pty", "benchmarks", "faults", "test_wheel.py")

# Driving a terminal or measuring: `make test` runs these without others beside them.
ALONE = (
    "pty",
    "benchmarks/test_measures.py",
    "tui/test_habits.py",
    "tui/test_display_budget.py",
    "tui/test_display_pty.py",
    "tui/test_slow_lines.py",
    "faults/test_host_memory.py",
    "faults/test_memory_leak.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        place = item.path.relative_to(Path(__file__).parent).as_posix()
        if place.startswith(ALONE):
            item.add_marker("alone")

    def lateness(item: pytest.Item) -> tuple[bool, int]:
        place = item.path.relative_to(Path(__file__).parent).parts[0]
        return item.get_closest_marker("slow") is not None, LATE.index(place) if place in LATE else -1

    items.sort(key=lateness)


@pytest.fixture(autouse=True)
def private_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test sees the developer's own home, runs or terminal settings."""
    for name in list(os.environ):
        if name.startswith(("GPUTUI_", "TORCHELASTIC_", "XDG_")) or name in ("NO_COLOR", "COLORTERM", "SSH_CONNECTION"):
            monkeypatch.delenv(name)
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("TZ", "UTC")
    # What the tests start is this tree's code, whichever tree is installed.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    yield


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty home."""
    found = locate(tmp_path / "home", {})
    found.create()
    return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine to break things on; whatever was started on it is ended."""
    from tests.machine import Machine

    made = Machine(tmp_path)
    yield made
    made.close()


def wait_until(look: Callable[[], T | None], timeout_seconds: float = 60.0, what: str = "it") -> T:
    """The first truthy value that ``look`` gives; fails the test when none comes in time."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {timeout_seconds} s")
        time.sleep(0.01)
