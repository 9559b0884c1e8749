"""The processes of an attempt as its shim reads them from /proc: who is below it, which ranks they are, and what the
kernel has killed for want of memory.

Standard library only, for any Python from 3.9 on: the shim imports it on targets too.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

DEAD = ("Z", "X", "x")
YOUNG_SECONDS = 10.0  # a launcher sets the environment of a rank long before
# An OOM kill explains an end that follows within one or two of these looks, not hours later.
OOM_LOOK_SECONDS = 60.0

# Positions in `stat_fields`.
STATE = 0
PARENT = 1
START_TICKS = 19
EXIT_CODE = 49


class Stat(NamedTuple):
    """A process as /proc/PID/stat has it.

    Attributes:
        parent: the PID of its parent.
        state: a letter, see proc(5).
        start_ticks: when it began, in clock ticks since the boot.
    """

    parent: int
    state: str
    start_ticks: int

    @property
    def is_dead(self) -> bool:
        """It has ended, whether or not its parent knows."""
        return self.state in DEAD


# --- procfs ------------------------------------------------------------------------------------


def all_pids() -> list[int]:
    """Every PID in procfs; none if it cannot be read for the moment."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def newest_pid() -> int | None:
    """The number that the kernel gave last, to a process or a thread; None if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text("ascii").split()[4]) or None
    return None


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (field 3); None without such a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text[text.rfind(")") + 2 :].split()


def stat_of(pid: int) -> Stat | None:
    """Parent, state and start of a process, or None if there is none."""
    fields = stat_fields(pid)
    if fields is None:
        return None
    return Stat(int(fields[PARENT]), fields[STATE], int(fields[START_TICKS]))


def start_ticks_of(pid: int) -> int | None:
    """When a process began, in clock ticks since the boot, or None if there is none."""
    process = stat_of(pid)
    if process is None:
        return None
    return process.start_ticks


def wait_status_of(pid: int, start_ticks: int) -> int | None:
    """The wait status of a dead process whose parent has not asked for it; None if unknown."""
    fields = stat_fields(pid)
    if fields is None or fields[STATE] not in DEAD or int(fields[START_TICKS]) != start_ticks:
        return None
    return int(fields[EXIT_CODE])


def name_of(pid: int) -> str:
    """The name of a process's program as the kernel has it; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    return ""


def catches(pid: int, number: int) -> bool:
    """Return whether a process handles a signal; False if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text("utf-8", "replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def environment_of(pid: int) -> dict[bytes, bytes]:
    """The environment that a process was started with; empty if it cannot be read or was
    overwritten."""
    try:
        raw = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    return {name: value for name, is_pair, value in (item.partition(b"=") for item in raw.split(b"\0")) if is_pair}


def boot_id() -> str:
    """``BOOT/NAMESPACE``: the kernel's random name of this boot, and the PID namespace.

    PIDs are meaningful within both alone: a container and its host see different ones.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def children_in(stats: dict[int, Stat]) -> dict[int, list[int]]:
    """PIDs by the PID of their parent."""
    children: dict[int, list[int]] = {}
    for pid, process in stats.items():
        children.setdefault(process.parent, []).append(pid)
    return children


def below(root: int, children: dict[int, list[int]]) -> set[int]:
    """Everything below ``root`` in a process tree."""
    pids: set[int] = set()
    waiting = [root]
    while waiting:
        more = [pid for pid in children.get(waiting.pop(), ()) if pid not in pids]
        pids.update(more)
        waiting += more
    return pids


# --- ranks -------------------------------------------------------------------------------------


def rank_in(environment: Mapping[bytes, bytes]) -> tuple[int | None, int | None]:
    """The rank in an environment, and the number of ranks on this machine.

    Launchers of one machine, such as Lightning's, set the local rank alone.
    """
    values = {name: int(value) for name, value in environment.items() if value.isdigit()}
    rank = values.get(b"RANK")
    size = values.get(b"LOCAL_WORLD_SIZE")
    if b"RANK" not in environment and b"LOCAL_RANK" in environment:
        size = values.get(b"WORLD_SIZE") if size is None else size
        if not values.get(b"NODE_RANK") and not values.get(b"GROUP_RANK"):
            rank = values.get(b"LOCAL_RANK")
    return rank, size


def rank_by_output(pid: int, folder: str) -> int | None:
    """The rank to whose log below ``folder`` a process writes.

    torchrun keeps one log per local rank, which is the rank on one node; a program cannot lose this by setting its
    title.
    """
    try:
        path = os.readlink(f"/proc/{pid}/fd/1")  # noqa: PTH115 - for every process, every second
    except OSError:
        return None
    # …/attempts/N/ranks/ID/attempt_0/RANK/stdout.log
    parts = path.split("/")
    is_log = path.startswith(folder + "/") and parts[-1] == "stdout.log" and parts[-5:-4] == ["ranks"]
    if is_log and parts[-2].isdigit():
        return int(parts[-2])
    return None


class Descendant:
    """A process of the run.

    Attributes:
        rank: None if unknown.
        size: the number of ranks on this machine; None if unknown.
        has_own_rank: its own environment has named its rank.
        young_until: until then its environment is read again (monotonic).
    """

    def __init__(self, pid: int, parent: int, start_ticks: int, read_until: float) -> None:
        self.pid = pid
        self.parent = parent
        self.start_ticks = start_ticks
        self.rank: int | None = None
        self.size: int | None = None
        self.has_own_rank = False
        # Until it calls exec, a fork has its parent's environment, so it is read repeatedly.
        self.young_until = read_until

    def to_json(self) -> dict[str, int | None]:
        return {"pid": self.pid, "start_ticks": self.start_ticks, "rank": self.rank, "local_world_size": self.size}


class Family:
    """The processes of the run below this one, with what their environments said when they were young.

    A look is cheap: nothing happens while the kernel has given out no new PID, and of all other
    processes only new ones are read.

    Attributes:
        members: the processes of the run, by PID.
        others: the PIDs of all others.
        newest: the PID that the kernel gave last.
        first: the rank 0 that starts the other ranks itself.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.members: dict[int, Descendant] = {}
        self.others: set[int] = set()
        self.newest: int | None = None
        self.first: Descendant | None = None

    def look(self, now: float) -> bool:
        """Update the members; return whether they changed. ``now`` is monotonic."""
        before = [member.to_json() for member in self.members.values()]
        newest = newest_pid()
        if newest is None or newest != self.newest:
            if newest is None or self.newest is None or newest < self.newest:
                # PIDs have wrapped around: any number may be another process now.
                self.others.clear()
            self.newest = newest
            self.admit(now)
        for member in self.members.values():
            if now < member.young_until:
                self.read(member)
        self.find_first_rank()
        return before != [member.to_json() for member in self.members.values()]

    def admit(self, now: float) -> None:
        """Find new members, and forget what is gone."""
        pids = set(all_pids())
        shim_pid = os.getpid()
        self.others &= pids
        candidates = ((pid, stat_of(pid)) for pid in pids - self.others)
        stats = {pid: stat for pid, stat in candidates if stat is not None and not stat.is_dead}
        former = self.members
        self.members = {}
        ours = below(shim_pid, children_in(stats))
        for pid in sorted(ours, key=lambda pid: (stats[pid].start_ticks, pid)):
            process = stats[pid]
            member = former.get(pid)
            if member is None or member.start_ticks != process.start_ticks:
                member = Descendant(pid, process.parent, process.start_ticks, now + YOUNG_SECONDS)
            self.members[pid] = member
        # A process whose parent has just gone may be below this one at the next look.
        elsewhere = stats.keys() - ours - {shim_pid}
        visible = stats.keys() | self.others
        self.others |= {pid for pid in elsewhere if not stats[pid].parent or stats[pid].parent in visible}

    def leader(self, pid: int) -> Descendant | None:
        """The member with this PID if it is a rank itself, not a helper of one."""
        member = self.members.get(pid)
        if member is None or member.rank is None:
            return None
        parent = self.members.get(member.parent)
        if parent is None or parent.rank != member.rank:
            return member
        return None

    def find_first_rank(self) -> None:
        """Find the rank 0 that sets its own environment, which cannot be seen.

        It is a script that starts the other ranks itself, the parent of ranks from 1 on.
        """
        ranked = [member for member in self.members.values() if member.has_own_rank and member.rank is not None]
        if any(member.rank == 0 for member in ranked):
            if self.first is not None:
                # It is a launcher, which had begun another rank before the first.
                self.first.rank = None
                self.first = None
            return
        parent = self.members.get(min(ranked, key=lambda member: member.rank or 0).parent) if ranked else None
        if parent is not None and parent.rank is None:
            parent.rank = 0
            parent.size = ranked[0].size
            self.first = parent

    def read(self, member: Descendant) -> None:
        """Read a member's rank from its environment, its output, or its parent."""
        environment = environment_of(member.pid)
        parent = self.members.get(member.parent)
        own_rank, size = rank_in(environment)
        member.has_own_rank = member.has_own_rank or own_rank is not None
        rank = rank_by_output(member.pid, self.folder) if own_rank is None else own_rank
        if parent is not None:
            rank = parent.rank if rank is None and member.rank is None else rank
            size = parent.size if size is None and member.size is None else size
        member.rank = member.rank if rank is None else rank
        member.size = member.size if size is None else size


# --- OOM kills ---------------------------------------------------------------------------------


class OomWatch:
    """The kernel's counts of OOM kills, of the shim's control group and of the host, as they grew
    within the last one or two looks.

    Attributes:
        look_at: when the next look is to begin (monotonic).
        before_counts: those at the look before the last.
        counts: those at the last look.
    """

    def __init__(self) -> None:
        self.before_counts = oom_kills()
        self.counts = oom_kills()
        self.look_at = time.monotonic() + OOM_LOOK_SECONDS

    def look(self, now: float) -> None:
        """Begin a new look. ``now`` is monotonic."""
        self.look_at = now + OOM_LOOK_SECONDS
        self.before_counts = self.counts
        self.counts = oom_kills()

    def record(self) -> dict[str, int | None]:
        """The new kills by counter; None for one that is unknown."""
        kills: dict[str, int | None] = {}
        for name, after in oom_kills().items():
            before = self.before_counts[name]
            kills[name] = None if after is None or before is None else after - before
        return kills


def oom_kills(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> dict[str, int | None]:
    """The number of OOM kills so far, in this process's control group (of either version) and on the host."""
    in_group = None
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self" / "cgroup").read_text("utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            file = None
            if not controllers:
                file = groups / path.lstrip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                file = groups / "memory" / path.lstrip("/") / "memory.oom_control"
            if file is not None and in_group is None:
                in_group = counter_in(file)
    return {"cgroup": in_group, "host": counter_in(proc / "vmstat")}


def counter_in(path: Path) -> int | None:
    """The count of OOM kills in a file of the kernel's counters; None if it has none."""
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text("ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None
