"""`gputui gpus --recommend`: free and healthy GPUs for another program."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from gputui.core.text import clean
from gputui.core.yaml_forms.problems import shorten
from gputui.core.yaml_forms.quantities import parse_size
from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.profiles.doctor.gpus import read_gpus
from gputui.profiles.gpu_checks import GpuSituation
from gputui.profiles.recommend import recommend, usable
from gputui.profiles.situation import read_situation
from gputui.store.agent import read_agent
from gputui.store.hardware import GpuView
from gputui.ui.cli.context import Exit, fail, print_json, say

TOPOLOGY_SECONDS = 5.0


def print_recommended(
    connection: sqlite3.Connection, gpus: Sequence[GpuView], count: int, memory: str | None, as_json: bool
) -> None:
    """Print UUIDs for CUDA_VISIBLE_DEVICES, or JSON. Ends the command with exit code 3 and the
    reasons if too few GPUs are free.

    UUIDs mean the same GPUs in any CUDA order.
    """
    memory_bytes = None
    if memory is not None:
        memory_bytes = parse_size(memory)
        if memory_bytes is None:
            fail(f"--memory: expected a size such as 16GiB, found {shorten(clean(memory))}", Exit.USAGE)
    agent = read_agent(connection)
    situation = read_situation(connection, time.time())
    if situation is None:
        fail("the driver has not answered yet; try again, or see gputui gpus", Exit.REFUSED)
    pairs: tuple[GpuPair, ...] = ()
    if count > 1 and agent is not None and agent.source == "nvml":
        # Only the driver knows the topology. A child process asks it, because it may hang.
        pairs = read_gpus(None, deadline_seconds=TOPOLOGY_SECONDS).pairs
    recommended = recommend(count, situation, memory_bytes, pairs)
    if recommended is None:
        fail(_refusal(situation, count, memory_bytes), Exit.REFUSED)
    value = ",".join(gpu.uuid for gpu in recommended)
    if not as_json:
        say(value)
        return
    free = {gpu.uuid: gpu for gpu in gpus}
    print_json(
        {
            "cuda_visible_devices": value,
            "gpus": [
                {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "free_bytes": _free_bytes(free[gpu.uuid])}
                for gpu in recommended
            ],
            "links": _links(recommended, pairs),
        }
    )


def _refusal(situation: GpuSituation, count: int, memory_bytes: int | None) -> str:
    """The number of free GPUs, and the reasons why the others are not."""
    free_count = len(usable(situation, memory_bytes))
    reasons = []
    for gpu in sorted(situation.conditions, key=lambda gpu: gpu.facts.index):
        reason = situation.unusable_reason(gpu, memory_bytes) or situation.busy_reason(gpu, memory_bytes)
        if reason is not None:
            reasons.append(f"GPU {gpu.facts.index} {clean(reason)}")
    summary = f"{free_count} of {count} requested GPUs are available"
    if not reasons:
        return f"{summary}; this machine shows no GPU"
    return f"{summary}: {'; '.join(reasons)}"


def _links(recommended: Sequence[GpuFacts], pairs: Sequence[GpuPair]) -> list[dict[str, object]]:
    """The connections between the chosen GPUs, as far as the driver reports them."""
    indices = {gpu.index for gpu in recommended}
    return [
        {"gpus": [pair.first, pair.second], "path": pair.best_path, "p2p": pair.p2p}
        for pair in pairs
        if {pair.first, pair.second} <= indices
    ]


def _free_bytes(gpu: GpuView) -> int | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    return max(0, gpu.memory_total_bytes - gpu.memory_used_bytes)
