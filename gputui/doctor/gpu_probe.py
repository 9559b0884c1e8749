"""Reads the GPUs once, in a process of its own: the driver may hang.

    python -m gputui.doctor.gpu_probe [SCENARIO]

prints one JSON object. With a scenario the GPUs are simulated and have no topology.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from gputui.gpu.model import GpuFacts, GpuSample, GpuSlowSample, Inventory
from gputui.gpu.topology import PATHS, GpuPair
from gputui.host.child import ChildError, run_child

DEADLINE_SECONDS = 15.0
# Of nvml.h; the binding has READ as a tuple, which no call takes.
_P2P_READ = 0
_P2P_NVLINK = 2
_NVLINKS_MAX = 36


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The driver's answer. ``problem`` is one line saying why there is nothing, or which GPU is missing. ``cuda`` is
    the newest CUDA version that the driver supports. ``nvlinks`` counts active links by GPU index, None if the
    GPU has none."""

    source: str
    problem: str | None = None
    driver_version: str | None = None
    cuda: tuple[int, int] | None = None
    facts: tuple[GpuFacts, ...] = ()
    samples: Mapping[str, GpuSample] = field(default_factory=dict)
    slow: Mapping[str, GpuSlowSample] = field(default_factory=dict)
    pairs: tuple[GpuPair, ...] = ()
    nvlinks: Mapping[int, int | None] = field(default_factory=dict)


def read_gpus(scenario: Path | None, *, deadline_seconds: float = DEADLINE_SECONDS) -> GpuReading:
    """Ask the driver in a child process, at most until the deadline."""
    argv = [sys.executable, "-P", "-m", "gputui.doctor.gpu_probe"]
    if scenario is not None:
        argv.append(str(scenario))
    source = "nvml" if scenario is None else "simulated"
    try:
        answered = run_child(argv, deadline_seconds=deadline_seconds)
        return decode(answered.output)
    except ChildError as error:
        return GpuReading(source, problem=f"the driver {error}; it may hang (dmesg says more)")
    except (ValueError, KeyError, TypeError):
        return GpuReading(source, problem=f"the driver could not be asked: {answered.last_words}")


def decode(text: str) -> GpuReading:
    """Raises ValueError, KeyError or TypeError for anything but what `main` prints."""
    data = json.loads(text)
    return GpuReading(
        source=data["source"],
        problem=data["problem"],
        driver_version=data["driver_version"],
        cuda=None if data["cuda"] is None else (data["cuda"][0], data["cuda"][1]),
        facts=tuple(GpuFacts(**each) for each in data["facts"]),
        samples={each["uuid"]: GpuSample(**each) for each in data["samples"]},
        slow={each["uuid"]: GpuSlowSample(**each) for each in data["slow"]},
        pairs=tuple(GpuPair(**each) for each in data["pairs"]),
        nvlinks={int(index): count for index, count in data["nvlinks"].items()},
    )


def main(argv: list[str]) -> int:
    """Read and print."""
    at = time.time()
    if argv:
        from gputui.gpu.simulated import SimulatedSource

        inventory, fast, slow = _tiers(SimulatedSource(Path(argv[0]), None, at), at)
        links: dict[str, Any] = {"cuda": None, "pairs": [], "nvlinks": {}}
    else:
        from gputui.gpu.nvml import NvmlSource

        inventory, fast, slow = _tiers(NvmlSource(), at)
        links = _topology(inventory) if inventory.gpus else {"cuda": None, "pairs": [], "nvlinks": {}}
    found = {
        "source": inventory.source,
        "problem": inventory.problem,
        "driver_version": inventory.driver_version,
        "facts": [asdict(gpu) for gpu in inventory.gpus],
        "samples": fast,
        "slow": slow,
    }
    sys.stdout.write(json.dumps(found | links) + "\n")
    return 0


def _tiers(source: Any, at: float) -> tuple[Inventory, list[dict[str, Any]], list[dict[str, Any]]]:
    inventory: Inventory = source.inventory(at)
    fast = [asdict(gpu) for gpu in source.fast(at).gpus] if inventory.gpus else []
    for _ in inventory.gpus:
        source.link_step()  # each reads the PCIe link of another GPU
    slow = [asdict(gpu) for gpu in source.slow(at).gpus] if inventory.gpus else []
    return inventory, fast, slow


def _topology(inventory: Inventory) -> dict[str, Any]:
    import pynvml as nvml

    found: dict[str, Any] = {"cuda": None, "pairs": [], "nvlinks": {}}
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        found["cuda"] = [version // 1000, version % 1000 // 10]
    handles = {}
    for gpu in inventory.gpus:
        with contextlib.suppress(nvml.NVMLError):
            handles[gpu.index] = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    for index, handle in handles.items():
        found["nvlinks"][index] = active_links(nvml, handle)
    for (first, one), (second, other) in combinations(handles.items(), 2):
        found["pairs"].append(asdict(pair_of(nvml, first, one, second, other)))
    return found


def active_links(nvml: Any, handle: Any) -> int | None:
    """How many NVLinks are up; None if the GPU has none, or the driver does not say."""
    active = None
    for link in range(_NVLINKS_MAX):
        try:
            active = (active or 0) + int(nvml.nvmlDeviceGetNvLinkState(handle, link) == 1)
        except nvml.NVMLError:
            break
    return active


def pair_of(nvml: Any, first: int, one: Any, second: int, other: Any) -> GpuPair:
    """What the driver says of two GPUs; ``first`` and ``second`` are their indices."""
    levels = (
        nvml.NVML_TOPOLOGY_INTERNAL,
        nvml.NVML_TOPOLOGY_SINGLE,
        nvml.NVML_TOPOLOGY_MULTIPLE,
        nvml.NVML_TOPOLOGY_HOSTBRIDGE,
        nvml.NVML_TOPOLOGY_NODE,
        nvml.NVML_TOPOLOGY_SYSTEM,
    )
    paths = dict(zip(levels, PATHS[1:], strict=True))
    path = None
    with contextlib.suppress(nvml.NVMLError):
        path = paths.get(nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    return GpuPair(
        first,
        second,
        _p2p(nvml, one, other, _P2P_READ),
        _p2p(nvml, one, other, _P2P_NVLINK),
        path,
    )


def _p2p(nvml: Any, one: Any, other: Any, kind: int) -> bool | None:
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(one, other, kind) == nvml.NVML_P2P_STATUS_OK)
    except nvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
