"""The sampler process by itself: its pipes, its end, its pace."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gputui.machine import sampler as sampler_module
from gputui.machine.gpu_model import FastTick, Message, decode
from gputui.machine.sampler import EXIT_USAGE, start_successor
from gputui.store.series import HostSample

SAMPLER = [sys.executable, "-P", "-m", "gputui.machine.sampler"]

SIMULATED = ("--source", "simulated", "--gpus", "2", "--interval", "0.1")


@contextmanager
def sampler(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [*SAMPLER, "--state-dir", str(tmp_path), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            yield child
        finally:
            child.kill()


def read_until(child: subprocess.Popen[bytes], kinds: set[type[Message]]) -> list[Message]:
    """Messages up to the one with which each of ``kinds`` was there once."""
    assert child.stdout is not None
    messages: list[Message] = []
    while not kinds <= {type(message) for message in messages}:
        line = child.stdout.readline()
        assert line, f"it ended with {child.wait()}: {child.stderr.read().decode() if child.stderr else ''}"
        messages.append(decode(line))
    return messages


def test_it_ends_when_its_agent_has_gone(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        read_until(child, {FastTick})
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(60) == 0


def test_a_successor_that_fails_at_once_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "_AGAIN_SECONDS", (0.0,))
    monkeypatch.setattr(sampler_module.signal, "signal", lambda *_: None)
    script = f"import os; d = {str(tmp_path)!r}; n = len(os.listdir(d)); open(f'{{d}}/{{n}}', 'w'); exit(n < 2)"
    start_successor(0, ["-c", script], float("-inf"), lambda: False)
    assert len(list(tmp_path.iterdir())) == 3


def test_it_ends_on_sigterm_and_not_on_ctrl_c(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        read_until(child, {FastTick, HostSample})
        child.send_signal(signal.SIGINT)
        read_until(child, {FastTick})
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


@pytest.mark.parametrize("text", ["faults: [{kind: explode}]", "\x00"])
def test_a_broken_scenario_is_one_line_and_status_2(tmp_path: Path, text: str) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(text)
    with sampler(tmp_path, *SIMULATED, "--scenario", str(scenario)) as child:
        assert child.wait(60) == EXIT_USAGE
        assert child.stderr is not None
        said = child.stderr.read().decode()
    assert said.startswith("gputui.machine.sampler: ")
    assert str(scenario) in said
    assert said.count("\n") == 1
