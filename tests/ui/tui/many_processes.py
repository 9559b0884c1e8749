"""A machine with several hundred processes, for the tests of the page that lists them."""

from __future__ import annotations

from gputui.runs.processes import HostProcess, ProcessReader
from gputui.store.hardware import GpuView
from gputui.ui.tui.data.feed import Feed
from tests.homes import GIB, Home
from tests.stories import many_gpus
from tests.ui.tui.conftest import StillFeed

RUN = "llama-1"
RANKS = 4
LOADERS = 70
FOREIGN = 12


def host_process(pid: int, parent: int, command: str, *, rank: int | None = None, cpu: float = 10.0) -> HostProcess:
    return HostProcess(
        pid,
        parent,
        pid + 7,
        state="S",
        user="me",
        command=command,
        cpu_percent=cpu,
        memory_bytes=(pid % 50 + 1) << 20,
        run_id=RUN,
        rank=rank,
    )


class StillProcesses(ProcessReader):
    """A shim, a launcher, ranks with loader workers: as procfs would show them."""

    def __init__(self) -> None:
        self.hosts = {100: host_process(100, 1, "shim"), 101: host_process(101, 100, "torchrun train.py")}
        for rank in range(RANKS):
            pid = 1000 + rank
            self.hosts[pid] = host_process(pid, 101, f"python train.py --rank {rank}", rank=rank, cpu=95.0 + rank)
            for number in range(LOADERS):
                worker = 2000 + rank * 100 + number
                self.hosts[worker] = host_process(worker, pid, "python train.py", rank=rank, cpu=float(number))

    def read(self, gpus: object) -> dict[int, HostProcess]:
        return dict(self.hosts)


def fill(home: Home) -> None:
    """Four ranks on four GPUs, strangers on the others; more than 290 processes with those of `StillProcesses`."""
    many_gpus(home, 8)
    for rank in range(RANKS):
        entry = {
            "pid": 1000 + rank, "user": "me", "command": "python train.py", "memory_bytes": (60 + rank) * GIB,
            "kind": "C", "run_id": RUN, "rank": rank, "start_ticks": 1007 + rank, "sm_percent": 90 + rank,
        }  # fmt: skip
        home.processes(rank, entry)
    for index in range(4, 8):
        home.processes(
            index,
            *(
                {"pid": 5000 + index * 10 + number, "user": "alice", "command": f"python sweep.py --part {number}",
                 "memory_bytes": (number + 1) * GIB, "kind": "C", "start_ticks": None if number == 0 else 9}
                for number in range(FOREIGN // 4)
            ),
        )  # fmt: skip


def give(feed: Feed) -> StillProcesses:
    """Let a still feed read these processes in place of the machine's."""
    processes = StillProcesses()
    assert isinstance(feed, StillFeed)
    feed.use_processes(processes)
    return processes


def everything(gpus: tuple[GpuView, ...]) -> int:
    return 2 + RANKS * (1 + LOADERS) + FOREIGN
