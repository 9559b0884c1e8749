"""Whether a process has a connection to another machine, from procfs."""

from __future__ import annotations

from pathlib import Path

_PROC = "/proc"
_TABLES = ("tcp", "tcp6", "udp", "udp6")
# Fields of a row of /proc/PID/net/tcp: proc_pid_net(5).
_LOCAL, _REMOTE, _STATE, _INODE = 1, 2, 3, 9
_LISTENS, _IS_OVER = "0A", "06"


def reaches_out(pid: int) -> bool:
    """Whether a process has a TCP or connected UDP socket whose other end is not on this machine; True also where that
    cannot be seen. A process that has ended has none."""
    folder = Path(_PROC, str(pid))
    try:
        inodes = _remote_inodes(folder / "net")
        return bool(inodes) and any(name in inodes for name in _sockets(folder / "fd"))
    except (FileNotFoundError, ProcessLookupError):
        return False
    except (OSError, ValueError, IndexError):
        return True


def _remote_inodes(tables: Path) -> set[str]:
    """The sockets of the process's network whose other end has an address that nothing here has."""
    rows = [
        line.split()
        for name in _TABLES
        if (tables / name).exists()
        for line in (tables / name).read_text("ascii").splitlines()[1:]
    ]
    here = {_address(row[_LOCAL]) for row in rows}
    return {
        f"socket:[{row[_INODE]}]"
        for row in rows
        if row[_STATE] not in (_LISTENS, _IS_OVER) and _is_elsewhere(_address(row[_REMOTE]), here)
    }


def _is_elsewhere(address: str, here: set[str]) -> bool:
    is_loopback = address.endswith("7F") if len(address) == 8 else address == f"{'0' * 24}01000000"
    mapped = address[24:] if len(address) == 32 and address.startswith("0000000000000000FFFF0000") else None
    if mapped is not None:
        return _is_elsewhere(mapped, here | {one[24:] for one in here if len(one) == 32})
    return bool(address.strip("0")) and not is_loopback and address not in here


def _address(text: str) -> str:
    return text.partition(":")[0]


def _sockets(folder: Path) -> list[str]:
    found = []
    for link in folder.iterdir():
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if target.startswith("socket:"):
            found.append(target)
    return found
