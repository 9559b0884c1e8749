"""The machine that owns a home. Boot ids, PIDs and the database's shared memory belong to one machine: a second one
that shares the folder would mistake live runs for those of a former boot, and restart them."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from gputui.core.config import PRIVATE_FILE_MODE

# With and without systemd: machine-id(5).
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class Machine(Struct, frozen=True):
    """A machine, identified by its id (or host name if it has none), and its boot."""

    machine_id: str
    host: str
    boot_id: str

    def is_same(self, other: Machine) -> bool:
        """Whether both are the same machine. An equal boot id suffices, because a container may have its own id."""
        return self.machine_id == other.machine_id or self.boot_id == other.boot_id


def this_machine() -> Machine:
    """The machine of this process."""
    host = socket.gethostname()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    for path in MACHINE_ID_FILES:
        try:
            found = path.read_text("ascii").strip()
        except (OSError, ValueError):
            continue
        if found and found != "uninitialized":
            return Machine(found, host, boot)
    return Machine(host, host, boot)


def other_machine(state: Path) -> str | None:
    """A message if the home belongs to another machine; else None."""
    owner = read_owner(state)
    here = this_machine()
    if owner is None or owner.is_same(here):
        return None
    return (
        f"{state} belongs to the machine {owner.host}, and this is {here.host}; choose a local directory with --home "
        f"or GPUTUI_HOME, or remove {owner_file(state)} if it was moved here for good"
    )


def claim(state: Path) -> None:
    """Record that the home belongs to this machine. Raises OSError."""
    here = this_machine()
    if read_owner(state) == here:
        return
    temporary = owner_file(state).with_name("machine.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(here), file)
    temporary.replace(owner_file(state))


def owner_file(state: Path) -> Path:
    return state / "machine"


def read_owner(state: Path) -> Machine | None:
    """The machine that last ran an agent for this home; None if unknown."""
    try:
        return Machine(**json.loads(owner_file(state).read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return None
