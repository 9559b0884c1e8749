"""What all tests share: a private environment, and waiting for something with a deadline instead of sleeping."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

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

# Under nohup it is ignored, by all that the tests start too, and some of them hang up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# In `make test` a property is tried with a few random examples, in `make test-long` with many; the seed that is printed
# decides which. A shared machine's clock says nothing about the code, nor does how long it takes to make up an example.
_ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.register_profile("few", _ANY_PACE, max_examples=20)
settings.register_profile("many", _ANY_PACE, max_examples=300)
settings.load_profile("few")


# What asserts how long something takes: `make test` runs these without others beside them.
ALONE = (
    "pty/test_never_blocks.py",
    "tui/terminal/test_budget.py",
    "tui/terminal/test_slow_lines.py",
    "faults/test_memory_leak.py",
)

TESTS = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """For the few that run alone the others need not be imported, nor what they import."""
    if not config.option.markexpr.endswith("and alone") or TESTS not in collection_path.parents:
        return None
    place = collection_path.relative_to(TESTS).as_posix()
    return None if any(f"{one}/".startswith(f"{place}/") for one in ALONE) else True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="order of the tests and examples of their properties (default: any)")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Before hypothesis looks at its seed. A worker of xdist has that of all."""
    if hasattr(config, "workerinput"):
        config.option.seed = config.workerinput["seed"]
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(10**6)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(config.option.seed)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of xdist."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    terminalreporter.write_line(f"the same order and examples again: --seed {config.option.seed}")


def pytest_sessionstart() -> None:
    """A file that was moved must be moved in the list too, or it would run beside others."""
    missing = [one for one in ALONE if not (TESTS / one).is_file()]
    if missing:
        raise pytest.UsageError(f"tests/conftest.py: ALONE names files that are not there: {', '.join(missing)}")


# Before xdist's own, which looks for the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).as_posix() in ALONE:
            item.add_marker("alone")
        group = together(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
    shuffle(items, config.option.seed)
    if hasattr(config, "workerinput"):
        spread(items)


def pytest_collection_finish() -> None:
    """What was imported so far is no garbage: nothing of it is to be looked through again and again."""
    gc.collect()
    gc.freeze()


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """A random order of the modules and of the tests of each; what a module's tests share is made once."""
    chance = random.Random(seed)
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    order = list(modules.values())
    chance.shuffle(order)
    for module in order:
        chance.shuffle(module)
    items[:] = [item for module in order for item in module]


def spread(items: list[pytest.Item]) -> None:
    """Something of each directory at any time, since some wait for processes while others compute; the tests on shared
    ranks, which one worker runs, begin first."""
    several: dict[str, list[pytest.Item]] = {}
    for item in items:
        several.setdefault(directory(item), []).append(item)
    place = {item: index / len(of_one) for of_one in several.values() for index, item in enumerate(of_one)}
    items.sort(key=lambda item: (not is_of_ranks(item), place[item]))


def directory(item: pytest.Item) -> str:
    return item.path.relative_to(TESTS).parts[0]


def is_of_ranks(item: pytest.Item) -> bool:
    return any(ranks in item._fixtureinfo.name2fixturedefs for ranks in ("four_ranks", "two_ranks"))  # type: ignore[attr-defined]


def together(item: pytest.Item) -> str | None:
    """What tests of one name share takes seconds to make: one worker makes it and runs them all."""
    fixtures = item._fixtureinfo.name2fixturedefs  # type: ignore[attr-defined]
    for ranks in ("four_ranks", "two_ranks"):
        if ranks in fixtures:
            return ranks
    shared = any(fixture.scope == "module" for several in fixtures.values() for fixture in several)
    return item.path.stem if shared else None


def inherited_state() -> tuple[object, ...]:
    """What each process that this one starts takes over, its environment apart."""
    umask = os.umask(0o077)
    os.umask(umask)
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)]
    return umask, Path.cwd(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), ignored, limits, os.nice(0)


@pytest.fixture
def inheritance() -> Iterator[None]:
    """Every later process of this worker inherits what a test leaves; one with SIGTERM blocked never ends by it."""
    before = inherited_state()
    yield
    assert inherited_state() == before


@pytest.fixture(autouse=True)
def private_environment(inheritance: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
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
