"""A home belongs to one machine, on a file system of that machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from msgspec.structs import asdict, replace

from gputui.core.config import Workspace, is_network_file_system
from gputui.store.database import StoreError, open_commander, open_reader, open_writer
from gputui.store.machine import Machine, claim, other_machine, owner_file, read_owner, this_machine
from tests.texts import mentions

ELSEWHERE = Machine("f" * 32, "alpha", "another boot")


def belongs_to(workspace: Workspace, owner: Machine) -> None:
    owner_file(workspace.state).write_text(json.dumps(asdict(owner)))


def test_file_systems_that_other_machines_may_share_are_known() -> None:
    for kind, expected in [
        *((kind, True) for kind in ("nfs4", "gpfs", "wekafs", "beegfs", "lustre", "ceph", "glusterfs", "9p")),
        *((f"fuse.{kind}", True) for kind in ("juicefs", "s3fs", "gcsfuse", "glusterfs", "sshfs", "of-next-year")),
        ("fuse", True),
        *((kind, False) for kind in ("ext4", "xfs", "tmpfs", "overlay", "zfs", "fuseblk", "fuse.fuse-overlayfs", None)),
    ]:
        assert is_network_file_system(kind) is expected


def test_a_second_machine_is_refused_with_the_way_out(workspace: Workspace) -> None:
    open_writer(workspace.database).close()
    belongs_to(workspace, ELSEWHERE)
    why = other_machine(workspace.state) or ""
    assert "\n" not in why
    for part in ("alpha", this_machine().host, "--home", str(owner_file(workspace.state))):
        assert part in why
    for use in (open_writer, open_reader, open_commander):
        with pytest.raises(StoreError, match="belongs to the machine alpha"):
            use(workspace.database)
    owner_file(workspace.state).unlink()
    open_reader(workspace.database).close()


def test_no_agent_starts_on_a_second_machine_and_nothing_of_the_home_is_touched(workspace: Workspace) -> None:
    belongs_to(workspace, ELSEWHERE)
    before = sorted(path.name for path in workspace.state.iterdir())
    words = ["--profiles", str(workspace.profiles), "--state", str(workspace.state)]
    done = subprocess.run([sys.executable, "-m", "gputui.agent", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and mentions(done.stderr, "alpha")
    assert sorted(path.name for path in workspace.state.iterdir()) == before
    assert read_owner(workspace.state) == ELSEWHERE


def test_the_same_machine_is_known_again(workspace: Workspace) -> None:
    assert read_owner(workspace.state) is None and other_machine(workspace.state) is None
    claim(workspace.state)
    here = this_machine()
    assert read_owner(workspace.state) == here and owner_file(workspace.state).stat().st_mode & 0o777 == 0o600
    for owner in (replace(here, boot_id="before a reboot"), replace(here, machine_id="of a container", host="c0ffee")):
        belongs_to(workspace, owner)
        assert other_machine(workspace.state) is None
    owner_file(workspace.state).write_text("{")
    assert other_machine(workspace.state) is None
