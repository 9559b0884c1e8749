"""A process that not even SIGKILL ends, for it waits in the kernel (state D), as in a hung driver."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.runs.identity import is_alive
from tests.conftest import wait_until
from tests.machines import Machine

# linux/fuse.h: the header of a request begins with its length, opcode and unique number.
_HEADER = struct.Struct("=IIQ")
_INIT = 26
# MNT_FORCE aborts the connection; MNT_DETACH forgets the mount.
_FORCE = 1
_LAZY = 2

SCRIPT = """
import json, os, sys
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(20):
    os.write(out, (json.dumps({"step": step, "loss": 1.0}) + "\\n").encode())
os.stat(sys.argv[1])
"""


class HungFolder:
    """A FUSE file system that takes every request and answers none. Who asks for something waits in state D; when it is
    closed, they get an error."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.has_request = threading.Event()
        self.device = os.open("/dev/fuse", os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=40000,user_id=0,group_id=0".encode()
        if libc.mount(b"hung", os.fsencode(place), b"fuse", 0, options) != 0:
            os.close(self.device)
            raise OSError(ctypes.get_errno(), "mount")
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self.device, 1 << 17)
            except OSError:
                return
            _, opcode, unique = _HEADER.unpack_from(request)
            if opcode == _INIT:
                body = struct.pack("=IIIIHHI", 7, 22, 0, 0, 1, 1, 4096)
                os.write(self.device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)
            else:
                self.has_request.set()

    def close(self) -> None:
        """Answer what waits with an error, as all later requests."""
        if self.device < 0:
            return
        ctypes.CDLL(None).umount2(os.fsencode(self.place), _FORCE)
        self.thread.join(10)
        os.close(self.device)
        ctypes.CDLL(None).umount2(os.fsencode(self.place), _LAZY)
        self.device = -1


@pytest.fixture
def hung(tmp_path: Path) -> Iterator[HungFolder]:
    place = tmp_path / "hung"
    place.mkdir()
    try:
        hung = HungFolder(place)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield hung
    finally:
        hung.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_run_that_not_even_sigkill_ends_is_over_and_holds_its_gpus_until_the_process_ends(
    machine: Machine, hung: HungFolder
) -> None:
    machine.workspace.scenario.write_text("gpus: 2\nmemory: 80GiB\n")
    (machine.folder / "stuck.py").write_text(SCRIPT)
    profile = machine.profile(
        "stuck",
        f"""
        name: stuck
        launcher: python
        script: stuck.py
        python: {sys.executable}
        gpus: 2
        grace: 1
        args: {hung.place}
        metrics: {{source: jsonl, path: "{{run_dir}}/metrics.jsonl"}}
        """,
    )
    machine.gputui("run", profile)
    wait_until(hung.has_request.is_set, what="the wait in the kernel")
    machine.gputui("run", machine.profile(), "--gpus", "2", "--name", "next", "--set", "steps=5")
    machine.gputui("stop", "stuck-1")
    machine.wait_for("stuck-1", "failed", timeout=150)
    assert machine.rows("SELECT kind FROM incidents") == [("unkillable",)]
    (process,) = machine.marked("stuck-1")
    # A process that cannot be ended may still use its GPUs, so nobody else gets them.
    assert is_alive(process)
    assert machine.state("next-1") == "queued"
    assert not machine.rows("SELECT key FROM events WHERE kind = 'gpus_released'")
    hung.close()
    wait_until(lambda: not is_alive(process), what="the end of the process")
    machine.wait_for("next-1", "succeeded", timeout=60)
    assert len(machine.rows("SELECT key FROM events WHERE kind = 'gpus_released'")) == 1
