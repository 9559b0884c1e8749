"""Two homes of one user on one machine: a login's, and one of cron or a container, which has no XDG_RUNTIME_DIR."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fakenvml.build import FakeNvml, NoCompilerError, build
from tests.conftest import wait_until
from tests.machine import Machine

PROFILE = f"""
name: steps
command: {sys.executable} steps.py --steps {{steps}}
workdir: .
gpus: 1
params: {{steps: 5}}
"""


@pytest.fixture
def homes(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Each with an agent of its own shell, on one GPU that a driver really lists: simulated ones are a home's own."""
    try:
        nvml = FakeNvml(build(tmp_path / "library"), tmp_path)
    except NoCompilerError as error:
        pytest.skip(f"the fake driver library cannot be built: {error}")
    nvml.configure(["gpus 1"])
    runtime = tmp_path / "of-login"
    runtime.mkdir(mode=0o700)
    made = []
    for name, place in (("login", {"XDG_RUNTIME_DIR": str(runtime)}), ("cron", {})):
        (tmp_path / name).mkdir()
        one = Machine(tmp_path / name)
        made.append(one)
        shell = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
        with one.start("agent", "start", env={**shell, **nvml.environment(), **place}) as process:
            _, errors = process.communicate(timeout=150)
        assert process.returncode == 0, errors
    yield made[0], made[1]
    for one in made:
        one.close()


@pytest.mark.long
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["login first", "cron first"])
def test_homes_of_one_user_never_share_a_gpu(homes: tuple[Machine, Machine], order: tuple[int, int]) -> None:
    first, second = (homes[place] for place in order)
    for one in (first, second):
        wait_until(lambda one=one: one.json("gpus"), what="the GPU")
    first.gputui("run", first.profile("steps", PROFILE), "--set", "steps=100000")
    first.wait_for("steps-1", "running")
    second.gputui("run", second.profile("steps", PROFILE))
    ((waits,),) = wait_until(
        lambda: second.rows("SELECT waiting_for FROM runs WHERE waiting_for LIKE '%held by%'"), what="the reason"
    )
    assert "another home" in waits
    first.gputui("stop", "steps-1", "--now")
    second.wait_for("steps-1", "succeeded")
    assert second.rows("SELECT 1 FROM incidents") == []
