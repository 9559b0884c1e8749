"""Observations of the processes and GPUs of a simulated run, by its activity."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from benchmarks.recovery.healthy import Activity
from gputui.recovery.watch.activity import ProcessSnapshot
from gputui.runs.process_readings import ProcessReading
from gputui.store.series import GpuSample

USUAL_WATTS = 500.0
# In all others a rank is at work in nearly every look.
MAY_IDLE: frozenset[Activity] = frozenset({"await network", "suspended", "wait", "spin", "stopped"})


@dataclass
class Seen:
    """The processes of a run, with counters that grow from look to look."""

    chance: random.Random
    ranks: int
    gpus: bool
    cpu: list[float] = field(init=False)
    io: list[int] = field(init=False)
    queued: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.cpu = [0.0] * self.ranks
        self.queued = [0.0] * self.ranks
        self.io = [0] * self.ranks

    def look(self, at: float, seconds: float, activity: Activity) -> tuple[ProcessSnapshot, dict[str, GpuSample]]:
        """A look at this moment (monotonic seconds), so long after the one before."""
        states = []
        samples = {}
        pause = self.chance.random() < 0.03
        for rank in range(self.ranks):
            what = self._of_rank(activity, rank)
            if pause and what == "gpu":
                what = "idle"
            states.append(self._advance(rank, what, seconds))
            if self.gpus:
                samples[f"GPU-{rank}"] = self._gpu(rank, what)
        readings = {
            (rank if self.ranks > 1 else None): [
                ProcessReading(
                    100 + rank,
                    1,
                    states[rank],
                    cpu_seconds=self.cpu[rank],
                    queued_seconds=self.queued[rank],
                    io_bytes=self.io[rank],
                    private_bytes=1 << 30,
                )
            ]
            for rank in range(self.ranks)
        }
        # What waits for the network has a connection, or asks for an address.
        is_closed = activity not in ("await network", "start")
        return ProcessSnapshot(at, dict(readings), [], self.ranks, is_closed), samples

    def _of_rank(self, activity: Activity, rank: int) -> str:
        draw = self.chance
        others = "spin" if self.gpus else "idle"
        busy = "gpu" if self.gpus else "cpu"
        match activity:
            case "step" | "validate":
                return busy
            case "validate alone":
                return busy if rank == 0 else others
            case "compile":
                return "cpu"
            case "compile alone":
                return "cpu" if rank == 0 else "idle"
            case "save" | "finish":
                return draw.choice(("cpu", "io", "io", "disk")) if rank == 0 else others
            case "save sharded":
                return draw.choice(("cpu", "io", "io", "disk"))
            case "start":
                return draw.choice(("cpu", "io", "disk"))
            case "read data":
                return draw.choice(("io", "disk"))
            case "prepare data":
                return "cpu"
            case "crowded":
                return "queued"
            case "spin":
                return others
            case "stopped":
                return "stopped" if rank == self.ranks - 1 else others
            case "await network" | "suspended" | "wait":
                return "idle"

    def _advance(self, rank: int, what: str, seconds: float) -> str:
        draw = self.chance
        # What helpers of a rank do all the time.
        self.cpu[rank] += seconds * draw.uniform(0.0, 0.03)
        self.io[rank] += int(seconds * draw.uniform(0.0, 2000.0))
        if what in ("cpu", "gpu", "spin") and (what == "cpu" or self.gpus):
            self.cpu[rank] += seconds * draw.uniform(0.5, 1.0)
        elif what == "io":
            self.io[rank] += int(seconds * draw.uniform(1e6, 5e8))
        elif what == "queued":
            self.queued[rank] += seconds * draw.uniform(0.3, 0.9)
        return {"stopped": "T", "disk": "D", "cpu": "R", "gpu": "R"}.get(what, "S")

    def _gpu(self, rank: int, what: str) -> GpuSample:
        draw = self.chance
        used = 0.0
        memory = 0.0
        watts = 90.0
        if what == "gpu":
            used = draw.uniform(30.0, 100.0)
            memory = draw.uniform(10.0, 60.0)
            watts = draw.uniform(0.6, 1.1) * USUAL_WATTS
        elif what == "spin":
            used = 100.0
            memory = draw.uniform(0.0, 1.5)
            watts = draw.uniform(0.3, 0.5) * USUAL_WATTS
        return GpuSample(f"GPU-{rank}", utilization_percent=used, memory_utilization_percent=memory, power_watts=watts)
