"""The last words of a hung attempt: its processes, and the stacks of all ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gputui.agent.health.stack_dump import abort, dump_stacks
from gputui.core.redaction import Redactor
from gputui.runs.identity import ProcessIdentity, identify
from gputui.runs.processes import AttemptProcess
from tests.conftest import wait_until

SECRET = "correct-horse"

# Waits for its peer and, as a rank in a collective does, ends with another stack once that is gone.
WAITS = """
import os, sys
os.write(1, b".")
os.read(int(sys.argv[1]), 1)
os.write(2, b"the peer is gone")
"""


@pytest.fixture
def hung() -> Iterator[ProcessIdentity]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", SECRET]) as process:
        # Popen returns in the middle of execve(2): for a moment the program has no command line yet.
        command = Path(f"/proc/{process.pid}/cmdline")
        wait_until(lambda: SECRET.encode() in command.read_bytes(), what="the program")
        identity = identify(process.pid)
        assert identity is not None
        yield identity
        process.kill()


def test_the_table_of_processes_is_kept_without_secrets(hung: ProcessIdentity, tmp_path: Path) -> None:
    folder = tmp_path / "incidents" / "1"
    dump_stacks([AttemptProcess(hung)], tmp_path, folder, Redactor([SECRET]))
    text = (folder / "processes.txt").read_text()
    assert str(hung.pid) in text
    assert "time.sleep" in text
    assert SECRET not in text
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder, folder / "processes.txt"))


def test_the_rank_that_the_others_wait_for_is_named_from_the_stacks_in_the_logs(tmp_path: Path) -> None:
    library = tmp_path / "site-packages" / "torch" / "distributed"
    scripts = [library / "all_reduce.py", tmp_path / "data.py"]
    ranks = []
    for rank, script in enumerate(scripts):
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(
            "import faulthandler, time\nfaulthandler.dump_traceback()\ndef load():\n"
            "    print(flush=True), time.sleep(600)\nload()\n"
        )
        stderr = tmp_path / "attempt" / "nodes" / "0" / "ranks" / "x" / "attempt_0" / str(rank) / "stderr.log"
        stderr.parent.mkdir(parents=True)
        command = [sys.executable, "-X", "faulthandler", str(script)]
        with stderr.open("wb") as output:
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output))
    processes = []
    for rank, process in enumerate(ranks):
        assert process.stdout is not None
        assert process.stdout.readline()
        identity = identify(process.pid)
        assert identity is not None
        processes.append(AttemptProcess(identity, rank, 2))
    dumped = dump_stacks(processes, tmp_path / "attempt", tmp_path / "incidents" / "1", Redactor([]))
    assert dumped is not None
    assert dumped[0] == 1
    assert "data.py:4 in load" in dumped[1]
    assert [process.wait() for process in ranks] == [-6, -6]
    for process in ranks:
        process.stdout.close()  # type: ignore[union-attr]


def test_no_rank_sees_another_end_before_it_has_written_its_stack() -> None:
    ranks = []
    pipes = [os.pipe() for _ in range(8)]
    for number, (reader, _) in enumerate(pipes):
        # When this rank ends, the rank before it reads the end of the pipe.
        write_end = pipes[number - 1][1]
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-c", WAITS, str(reader)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(reader, write_end),
            )
        )
    for reader, writer in pipes:
        os.close(reader)
        os.close(writer)
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.read(1) == b"."
    identities = [identify(rank.pid) for rank in ranks]
    abort([AttemptProcess(identity) for identity in identities if identity is not None])
    said = [rank.communicate()[1].decode() for rank in ranks]
    assert all("most recent call first" in text and "the peer is gone" not in text for text in said), said
