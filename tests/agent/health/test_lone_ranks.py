"""Ranks that were to train together and never made a process group are reported, and those that made one are not."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import wait_until
from tests.machine import Machine

SCRIPT = """
import json, os, pathlib, socket, sys, time
rank, folder = int(os.environ["RANK"]), pathlib.Path(os.environ["GPUTUI_RUN_DIR"])
if sys.argv[1] == "together":
    # As the store of a process group: the first rank listens, the others keep a connection to it.
    if rank == 0:
        server = socket.create_server(("127.0.0.1", 0))
        (folder / "port.new").write_text(str(server.getsockname()[1]))
        (folder / "port.new").rename(folder / "port")
        peer, _ = server.accept()
    else:
        while not (folder / "port").exists():
            time.sleep(0.01)
        peer = socket.create_connection(("127.0.0.1", int((folder / "port").read_text())))
out = os.open(os.environ["GPUTUI_METRICS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(100_000):
    os.write(out, (json.dumps({"step": step, "rank": rank, "loss": 1.0}) + "\\n").encode())
    time.sleep(0.2)
"""
FOUND = "SELECT run_id, ends FROM observations WHERE kind = 'no_group'"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_ranks_without_a_group_are_reported_once_and_others_are_not(machine: Machine) -> None:
    (machine.folder / "ranks.py").write_text(SCRIPT)
    for name in ("together", "alone"):
        text = f"""
            name: {name}
            launcher: torchrun
            script: ranks.py
            python: {sys.executable}
            gpus: 0
            nproc: 2
            args: {name}
            """
        machine.gputui("run", machine.profile(name, text))
    assert wait_until(lambda: machine.rows(FOUND), 150, "the observation") == [("alone-1", 0)]
    looks = "SELECT count(*) FROM events WHERE kind = 'observation' AND key = 'no_group' AND severity = 'warning'"
    assert machine.rows(looks) == [(1,)]
    for name in ("together-1", "alone-1"):
        assert machine.state(name) == "running"
        machine.gputui("stop", name, "--now")
    machine.wait_for("together-1", "stopped")
    assert machine.rows(FOUND) == [("alone-1", 0)]
