"""An interpreter for shims, also where that of the installation was replaced or removed under a living agent."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gputui.runs.executors.base import ExecutorGoneError
from gputui.runs.executors.local import LocalExecutor, other_pythons


def python_of(local: LocalExecutor) -> str:
    """The interpreter that would serve an attempt, behind which its folder and locks come."""
    python, *rest, folder, lock = local.program(Path("/attempts/1"), [7])
    assert rest[:2] == ["-I", "-S"] and (folder, lock) == ("/attempts/1", "7")
    return python


def program(path: Path, text: str) -> str:
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_python_of_the_installation_is_used_while_it_is_there(tmp_path: Path) -> None:
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    local = LocalExecutor(str(own), lambda: iter(()))
    assert python_of(local) == str(own)
    # Upgraded in place: tried once, and used.
    own.unlink()
    program(own, f'#!/bin/sh\necho >> {tmp_path}/trials\nexec {sys.executable} "$@"\n')
    assert python_of(local) == python_of(local) == str(own)
    assert len((tmp_path / "trials").read_text().splitlines()) == 1


def test_another_is_found_where_it_is_gone_or_broken(tmp_path: Path) -> None:
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    broken = program(tmp_path / "broken", "#!/bin/sh\nexit 1\n")
    local = LocalExecutor(str(own), lambda: iter((broken, sys.executable)))
    own.unlink()
    assert python_of(local) == sys.executable
    assert python_of(LocalExecutor(sys.executable)) == sys.executable
    assert f"/proc/{os.getpid()}/exe" in other_pythons()


def test_what_to_do_is_said_where_none_is_left(tmp_path: Path) -> None:
    own = tmp_path / "python"
    own.symlink_to(sys.executable)
    local = LocalExecutor(str(own), lambda: iter(()))
    own.unlink()
    with pytest.raises(ExecutorGoneError, match=r"is gone .*python\), and no other was found; install gputui again"):
        python_of(local)
    program(own, "#!/bin/sh\nexit 1\n")
    with pytest.raises(ExecutorGoneError, match="was replaced and does not work"):
        python_of(local)
