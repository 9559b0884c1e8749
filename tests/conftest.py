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

LONGEST_PAUSE_SECONDS = 0.06

# What is said of the developer's own terminal; workers of xdist have a size in their environment as well.
OF_THE_TERMINAL = ("NO_COLOR", "COLORTERM", "SSH_CONNECTION", "COLUMNS", "LINES")

# Hundreds of processes are started: each would compile all over again what is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


# A shared machine's clock says nothing about the code, and a test that fails now and then is broken: the same examples
# are tried every time.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


# What starts whole runs comes last, so that a slip in a small thing is told in seconds.
LATE = ("trainer", "cli", "pty", "benchmarks", "faults", "test_wheel.py")

# What asserts how long something takes: `make test` runs these without others beside them.
ALONE = (
    "pty/test_never_blocks.py",
    "tui/test_display_budget.py",
    "tui/test_slow_lines.py",
    "faults/test_memory_leak.py",
)

TESTS = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For the few that run alone the others need not be imported, nor what they import."""
    if config.option.markexpr != "alone" or TESTS not in collection_path.parents:
        return None
    place = collection_path.relative_to(TESTS).as_posix()
    return None if any(f"{one}/".startswith(f"{place}/") for one in ALONE) else True


# Before xdist's own, which looks for the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).as_posix() in ALONE:
            item.add_marker("alone")
        group = together(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    if hasattr(config, "workerinput"):
        spread(items)
        return

    def lateness(item: pytest.Item) -> tuple[bool, int]:
        place = directory(item)
        return item.get_closest_marker("slow") is not None, LATE.index(place) if place in LATE else -1

    items.sort(key=lateness)


def spread(items: list[pytest.Item]) -> None:
    """For several workers, of which some wait for processes while others compute: something of each directory at any
    time, the long ones (faults/test_watching.py) not at the end."""
    several: dict[str, list[pytest.Item]] = {}
    for item in reversed(items):
        several.setdefault(directory(item), []).append(item)
    place = {item: index / len(of_one) for of_one in several.values() for index, item in enumerate(of_one)}
    items.sort(key=lambda item: place[item])


def directory(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def together(item: pytest.Item) -> str | None:
    """What tests of one name share takes seconds to make: one worker makes it and runs them all."""
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    for ranks in ("four_ranks", "two_ranks"):
        if ranks in fixtures:
            return ranks
    shared = any(fixture.scope == "module" for several in fixtures.values() for fixture in several)
    return item.path.stem if shared else None


@pytest.fixture(autouse=True)
def private_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No test sees the developer's own home, runs or terminal settings."""
    for name in list(os.environ):
        if name.startswith(("GPUTUI_", "TORCHELASTIC_", "XDG_")) or name in OF_THE_TERMINAL:
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
    pause = 0.005
    while True:
        value = look()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"{what} did not happen within {timeout_seconds} s")
        time.sleep(pause)
        # Who looks all the time takes the processor from what it waits for.
        pause = min(pause * 1.2, LONGEST_PAUSE_SECONDS)
