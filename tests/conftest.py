"""Shared parts of all tests: a private environment, and waiting for something with a deadline
instead of sleeping."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from gputui.core.config import Workspace, locate
from gputui.store.database import open_reader

if TYPE_CHECKING:
    from tests.homes import Home
    from tests.machines import Machine

T = TypeVar("T")

LONGEST_PAUSE_SECONDS = 0.06

# Variables that describe the developer's terminal; xdist sets the size of one for its workers as well.
OF_THE_TERMINAL = ("NO_COLOR", "COLORTERM", "SSH_CONNECTION", "COLUMNS", "LINES")

# Hundreds of processes are started: each would compile all over again what is not kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# nohup makes every process of the tests ignore SIGHUP, and some tests send it.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# `make test` runs the same examples in the same order each time; `make test-long` draws both (--shuffle) and tries many
# examples. Deadlines per example would measure the machine.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.register_profile("fixed", _UNTIMED, max_examples=20, derandomize=True)
settings.register_profile("many", _UNTIMED, max_examples=300)
settings.load_profile("fixed")

TESTS = Path(__file__).parent

# Which process runs a folder's tests, at any depth: always the same one, in the same order. The trainer's ranks have
# one of their own, and so have the drills with real agents: neither kind competes with itself. The first of the four
# workers that is done takes the fifth part.
WORKERS = {
    "trainer": "networks",
    "faults": "drills",
    "tui": "screen",
    "demo": "screen",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", metavar="SEED", help="shuffle the tests and draw other examples: a number or 'any'")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed before hypothesis reads its own."""
    if hasattr(config, "workerinput"):
        config.option.shuffle = config.workerinput["shuffle"]
    if config.option.shuffle == "any":
        config.option.shuffle = str(random.SystemRandom().randrange(10**6))
    if config.option.shuffle is not None and config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.shuffle


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the seed to a worker of xdist."""
    node.workerinput["shuffle"] = node.config.option.shuffle


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.shuffle is not None:
        terminalreporter.write_line(f"the same order and examples again: --shuffle {config.option.shuffle}")


# Before xdist's own hook, which looks for the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    of_ranks = {item.path for item in items if {"two_ranks", "four_ranks"} & set(getattr(item, "fixturenames", ()))}
    for item in items:
        folders = item.path.relative_to(TESTS).parts
        worker = next((WORKERS[folder] for folder in folders if folder in WORKERS), "rest")
        if item.path in of_ranks:
            worker = "ranks"
        item.add_marker(pytest.mark.xdist_group(worker))
    if config.option.shuffle is not None:
        shuffle(items, int(config.option.shuffle))


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Shuffle the modules and the tests within each; what a module's tests share is still made once."""
    draw = random.Random(seed)
    modules: dict[Path, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path, []).append(item)
    order = list(modules.values())
    draw.shuffle(order)
    for module in order:
        draw.shuffle(module)
    items[:] = [item for module in order for item in module]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from everything imported so far."""
    gc.collect()
    gc.freeze()


def inherited_state() -> tuple[object, ...]:
    """Collect what each process that this one starts takes over, its environment apart, and the checkout's files."""
    umask = os.umask(0o077)
    os.umask(umask)
    ignored = [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN]
    limits = [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)]
    checkout = {name for name in os.listdir(TESTS.parent) if not name.startswith(".")}
    return umask, Path.cwd(), signal.pthread_sigmask(signal.SIG_BLOCK, ()), ignored, limits, os.nice(0), checkout


@pytest.fixture
def inheritance() -> Iterator[None]:
    """Fail a test that leaves something: later processes inherit it, and one with SIGTERM blocked never ends by it."""
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
    # The Python of runs is this one, not whichever the developer's shell has.
    for name in ("CONDA_PREFIX", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VIRTUAL_ENV", sys.prefix)
    yield


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """The seed for a test that draws by itself: that of the order, one and the same where nothing is shuffled."""
    return int(pytestconfig.option.shuffle or 0)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty home."""
    workspace = locate(tmp_path / "home", {})
    workspace.create()
    return workspace


@pytest.fixture
def home(workspace: Workspace) -> Iterator[Home]:
    """An empty home with a store, to write rows into."""
    from tests.homes import Home

    with closing(Home(workspace)) as home:
        yield home


@pytest.fixture
def connection(home: Home) -> sqlite3.Connection:
    """The agent's connection to the home's store."""
    return home.connection


@pytest.fixture
def reader(home: Home) -> Iterator[sqlite3.Connection]:
    """A connection that reads what a test writes into the home."""
    with closing(open_reader(home.workspace.database)) as opened:
        yield opened


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine to break things on; whatever was started on it is ended."""
    from tests.machines import Machine

    machine = Machine(tmp_path)
    yield machine
    machine.close()


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
        # Polling without a pause takes the processor from the process that is waited for.
        pause = min(pause * 1.2, LONGEST_PAUSE_SECONDS)
