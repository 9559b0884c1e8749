"""The sampler process by itself: its pipes, its end, its pace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.fakenvml.build import FakeNvml
from gputui.gpu.model import FastTick, Inventory, ProcessTick, SlowTick
from gputui.gpu.sampler import EXIT_FRESH_PROCESS, EXIT_USAGE, HOST_AFTER_SECONDS, Output
from gputui.gpu.wire import Message, decode
from gputui.store.series import HostSample
from tests.conftest import wait_until

SAMPLER = [sys.executable, "-P", "-m", "gputui.gpu.sampler"]


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


SIMULATED = ("--source", "simulated", "--gpus", "2", "--interval", "0.1")


def test_the_first_tick_brings_everything(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        messages = read_until(child, {Inventory, FastTick, SlowTick, ProcessTick, HostSample})
    gpu_messages = [message for message in messages if not isinstance(message, HostSample)]
    assert isinstance(gpu_messages[0], Inventory)
    assert isinstance(gpu_messages[1], FastTick)


def test_it_ends_when_its_agent_has_gone(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        read_until(child, {FastTick})
        assert child.stdin is not None
        child.stdin.close()
        assert child.wait(5) == 0


def test_it_ends_on_sigterm_and_not_on_ctrl_c(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        read_until(child, {FastTick, HostSample})
        child.send_signal(signal.SIGINT)
        read_until(child, {FastTick})
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == 0


def test_it_ends_while_the_driver_hangs(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults: [{kind: hang}]")
    with sampler(tmp_path, *SIMULATED, "--scenario", str(scenario)) as child:
        read_until(child, {Inventory, HostSample})
        child.send_signal(signal.SIGTERM)
        assert child.wait(5) == 0


def test_the_host_is_read_on_while_the_driver_hangs(tmp_path: Path) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text("faults: [{kind: hang}]")
    with sampler(tmp_path, *SIMULATED, "--scenario", str(scenario)) as child:
        assert child.stdout is not None
        messages = [decode(child.stdout.readline()) for _ in range(12)]
    assert sum(isinstance(message, HostSample) for message in messages) >= 11
    assert not any(isinstance(message, FastTick) for message in messages)


def test_it_ends_when_nobody_reads(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        read_until(child, {FastTick})
        assert child.stdout is not None
        child.stdout.close()
        assert child.wait(5) == 0


def test_ticks_keep_to_a_grid(tmp_path: Path) -> None:
    with sampler(tmp_path, *SIMULATED) as child:
        assert child.stdout is not None
        times: list[float] = []
        while len(times) < 12:
            message = decode(child.stdout.readline())
            if isinstance(message, FastTick):
                times.append(message.at)
    # A machine under load may delay single ticks, which must not add up.
    steps = [(at - times[0]) / 0.1 for at in times[1:]]
    assert sorted(abs(step - round(step)) for step in steps)[len(steps) // 2] < 0.3
    assert round(steps[-1]) >= 11


def test_commands_change_the_interval_and_bad_ones_are_ignored(tmp_path: Path) -> None:
    with sampler(tmp_path, "--source", "simulated", "--interval", "600") as child:
        read_until(child, {FastTick, HostSample})
        assert child.stdin is not None
        child.stdin.write(b'garbage\n{"interval": -1}\n{"interv')
        child.stdin.flush()
        child.stdin.write(b'al": 0.1}\n')
        child.stdin.flush()
        for _ in range(3):
            read_until(child, {FastTick, HostSample})
        child.stdin.close()
        assert child.stderr is not None
        assert child.stderr.read().decode().count("command ignored") == 2


@pytest.mark.parametrize("text", ["faults: [{kind: explode}]", "\x00"])
def test_a_broken_scenario_is_one_line_and_status_2(tmp_path: Path, text: str) -> None:
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(text)
    with sampler(tmp_path, *SIMULATED, "--scenario", str(scenario)) as child:
        assert child.wait(10) == EXIT_USAGE
        assert child.stderr is not None
        said = child.stderr.read().decode()
    assert said.startswith("gputui.gpu.sampler: ")
    assert str(scenario) in said
    assert said.count("\n") == 1


def test_nothing_heavy_is_imported_for_real_gpus() -> None:
    code = "import sys, gputui.gpu.sampler, gputui.gpu.nvml; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = {
        "yaml",
        "click",
        "pydantic",
        "textual",
        "rich",
        "sqlite3",
        "asyncio",
        "plotext",
        "torch",
        "numpy",
        "pynvml",
    }
    assert heavy.isdisjoint(loaded)


def test_real_gpus_through_the_whole_process(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        fake_nvml.configure(["gpus 8", f"process 3 {sleeper.pid} 1024 C 50"])
        with sampler(tmp_path, "--source", "nvml", "--interval", "0.1") as child:
            messages = read_until(child, {Inventory, FastTick, SlowTick, ProcessTick, HostSample})
        sleeper.kill()
    (inventory,) = (message for message in messages if isinstance(message, Inventory))
    listed = next(message for message in messages if isinstance(message, ProcessTick))
    tick = next(message for message in messages if isinstance(message, FastTick))
    assert len(inventory.gpus) == len(tick.gpus) == 8
    assert [process.pid for process in listed.processes[inventory.gpus[3].uuid] or ()] == [sleeper.pid]


def test_calls_of_the_driver_stay_within_the_budget(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    """Each tier's calls are counted by themselves and weighed with how often it is read, so that the test need not
    last as long as the slowest tier."""
    from tests.gpu.nvml_remote import Remote

    fake_nvml.configure(["gpus 8", *(f"process {number // 2} {3_000_000 + number} 10 C 1" for number in range(16))])
    remote = Remote(fake_nvml.environment(eager=True))

    def cost(*words: str) -> int:
        before = sum(fake_nvml.calls(remote.pid).values())
        for word in words:
            remote.tell(word)
        return sum(fake_nvml.calls(remote.pid).values()) - before

    remote.inventory()
    fast = cost("fast", "events")
    five_times_processes = cost(*["processes"] * 5)
    slow = cost("slow")
    link_round = cost(*["link_step"] * 8)
    remote.tell("close")
    remote.end()
    assert fast + five_times_processes / 15 + slow / 5 + link_round / 10 < 70


def test_a_lasting_version_mismatch_asks_for_a_fresh_process(fake_nvml: FakeNvml, tmp_path: Path) -> None:
    fake_nvml.configure(["init_error 18"])
    code = (
        "import sys, gputui.gpu.nvml, gputui.gpu.sampler as s\n"
        "gputui.gpu.nvml.RECHECK_RARELY_SECONDS = 0.0\n"
        "s._RECHECK_FIRST_SECONDS = 0.1\n"
        f"sys.exit(s.main(['--source', 'nvml', '--interval', '0.1', '--state-dir', {str(tmp_path)!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        messages = read_until(child, {Inventory})
        assert child.wait(10) == EXIT_FRESH_PROCESS
    (inventory,) = (message for message in messages if isinstance(message, Inventory))
    assert inventory.problem is not None
    assert "Reboot" in inventory.problem


def test_a_killed_agent_leaves_no_sampler(tmp_path: Path) -> None:
    """The agent may be killed at any moment; its pipes close and the sampler ends by itself."""
    code = (
        "import pathlib, sys, time\n"
        "from gputui.gpu.client import SamplerClient, SamplerCommand\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "client = SamplerClient(SamplerCommand('simulated', here, 0.1), here / 'log')\n"
        "client.start()\n"
        "print(client.check(time.monotonic()).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as agent:
        assert agent.stdout is not None
        pid = int(agent.stdout.readline())
        agent.kill()
    wait_until(lambda: not Path(f"/proc/{pid}").exists() or _is_zombie(pid), what="the end of the sampler")


def _is_zombie(pid: int) -> bool:
    """Ended, though nobody may reap orphans where the tests run."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_it_takes_no_part_in_the_terminal_of_its_agent(tmp_path: Path) -> None:
    from gputui.gpu.client import SamplerClient, SamplerCommand

    client = SamplerClient(SamplerCommand("simulated", tmp_path, 0.1), tmp_path / "log")
    client.start()
    pid = client.check(time.monotonic()).pid
    assert pid is not None
    try:
        assert os.getsid(pid) == pid
    finally:
        client.close()


def test_what_the_gpu_thread_tells_just_before_the_host_goes_out_with_it() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    output = Output(writer, clock=lambda: 100.0)
    output.next_line_at = 100.0 + HOST_AFTER_SECONDS / 2
    output.add(FastTick(at=1.0, gpus=()))
    with pytest.raises(BlockingIOError):
        os.read(reader, 1)
    output.write(HostSample(at=1.0))
    assert [type(decode(line)) for line in os.read(reader, 4096).splitlines()] == [FastTick, HostSample]
    # A host that cannot be read holds nothing up.
    output.add(FastTick(at=2.0, gpus=()))
    output.next_line_at = 99.0
    output.add(FastTick(at=3.0, gpus=()))
    told = [decode(line) for line in os.read(reader, 4096).splitlines()]
    assert [tick.at for tick in told if isinstance(tick, FastTick)] == [2.0, 3.0]
    os.close(reader)
    os.close(writer)
