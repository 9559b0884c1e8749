"""Read the GPUs once, in a separate process, because the driver may hang.

    python -m gputui.profiles.doctor.gpu_probe [SCENARIO]

prints one JSON object. With a scenario the GPUs are simulated and have no topology.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gputui.machine.child import ChildError, run_child
from gputui.machine.gpu_model import GpuFacts, Inventory
from gputui.machine.topology import PATHS, GpuPair
from gputui.store.series import GpuSample, GpuSlowSample

DEADLINE_SECONDS = 15.0
# From nvml.h. The binding defines READ as a tuple, which no call accepts.
_P2P_READ = 0
_P2P_NVLINK = 2
_NVLINKS_MAX = 36


class GpuReading(Struct, frozen=True):
    """The driver's answer. ``problem`` is one line: why there are no GPUs, or which one is missing. ``cuda`` is the
    newest CUDA version that the driver supports. ``nvlinks`` counts active links by GPU index, None without NVLink."""

    source: str
    problem: str | None = None
    driver_version: str | None = None
    cuda: tuple[int, int] | None = None
    facts: tuple[GpuFacts, ...] = ()
    samples: Mapping[str, GpuSample] = msgspec.field(default_factory=dict)
    slow: Mapping[str, GpuSlowSample] = msgspec.field(default_factory=dict)
    pairs: tuple[GpuPair, ...] = ()
    nvlinks: Mapping[int, int | None] = msgspec.field(default_factory=dict)


def read_gpus(scenario: Path | None, *, deadline_seconds: float = DEADLINE_SECONDS) -> GpuReading:
    """Ask the driver in a child process, at most until the deadline."""
    argv = [sys.executable, "-P", "-m", "gputui.profiles.doctor.gpu_probe"]
    if scenario is not None:
        argv.append(str(scenario))
    source = "nvml" if scenario is None else "simulated"
    try:
        answered = run_child(argv, deadline_seconds=deadline_seconds)
        return decode(answered.output)
    except ChildError as error:
        return GpuReading(source, problem=f"the driver {error}; it may hang (dmesg says more)")
    except (ValueError, KeyError, TypeError):
        return GpuReading(source, problem=f"the driver could not be asked: {answered.stderr_tail}")


def decode(text: str) -> GpuReading:
    """Parse the output of `main`. Raises ValueError, KeyError or TypeError."""
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
    """Read the GPUs and print them."""
    at = time.time()
    if argv:
        from gputui.machine.simulated import SimulatedSource

        inventory, fast, slow = _tiers(SimulatedSource(Path(argv[0]), None, at), at)
        links: dict[str, Any] = {"cuda": None, "pairs": [], "nvlinks": {}}
    else:
        from gputui.machine.nvml import NvmlSource

        inventory, fast, slow = _tiers(NvmlSource(), at)
        links = _topology(inventory) if inventory.gpus else {"cuda": None, "pairs": [], "nvlinks": {}}
    reading = {
        "source": inventory.source,
        "problem": inventory.problem,
        "driver_version": inventory.driver_version,
        "facts": [msgspec.to_builtins(gpu) for gpu in inventory.gpus],
        "samples": fast,
        "slow": slow,
    }
    sys.stdout.write(json.dumps(reading | links) + "\n")
    return 0


def _tiers(source: Any, at: float) -> tuple[Inventory, list[dict[str, Any]], list[dict[str, Any]]]:
    inventory: Inventory = source.inventory(at)
    fast = [msgspec.to_builtins(gpu) for gpu in source.fast(at).gpus] if inventory.gpus else []
    for _ in inventory.gpus:
        source.link_step()  # each reads the PCIe link of another GPU
    slow = [msgspec.to_builtins(gpu) for gpu in source.slow(at).gpus] if inventory.gpus else []
    return inventory, fast, slow


def _topology(inventory: Inventory) -> dict[str, Any]:
    import pynvml as nvml

    topology: dict[str, Any] = {"cuda": None, "pairs": [], "nvlinks": {}}
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlInit()
        version = nvml.nvmlSystemGetCudaDriverVersion_v2()
        topology["cuda"] = [version // 1000, version % 1000 // 10]
    handles = {}
    for gpu in inventory.gpus:
        with contextlib.suppress(nvml.NVMLError):
            handles[gpu.index] = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
    for index, handle in handles.items():
        topology["nvlinks"][index] = active_links(nvml, handle)
    for (first, first_handle), (second, second_handle) in combinations(handles.items(), 2):
        topology["pairs"].append(msgspec.to_builtins(pair_of(nvml, first, first_handle, second, second_handle)))
    return topology


def active_links(nvml: Any, handle: Any) -> int | None:
    """The number of active NVLinks; None if the GPU has none or the driver does not report them."""
    active = None
    for link in range(_NVLINKS_MAX):
        try:
            active = (active or 0) + int(nvml.nvmlDeviceGetNvLinkState(handle, link) == 1)
        except nvml.NVMLError:
            break
    return active


def pair_of(nvml: Any, first: int, first_handle: Any, second: int, second_handle: Any) -> GpuPair:
    """The connection of two GPUs with the indices ``first`` and ``second``."""
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
        path = paths.get(nvml.nvmlDeviceGetTopologyCommonAncestor(first_handle, second_handle))
    p2p, nvlink = (_p2p_status(nvml, first_handle, second_handle, kind) for kind in (_P2P_READ, _P2P_NVLINK))
    return GpuPair(first, second, p2p, nvlink, path)


def _p2p_status(nvml: Any, first: Any, second: Any, kind: int) -> bool | None:
    """Whether a kind of direct access works; None if the driver does not say."""
    try:
        return bool(nvml.nvmlDeviceGetP2PStatus(first, second, kind) == nvml.NVML_P2P_STATUS_OK)
    except nvml.NVMLError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
