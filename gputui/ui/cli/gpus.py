"""`gputui gpus`: the GPUs and their users, and with --recommend those for another program."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

import click

from gputui.core import units
from gputui.core.text import clean
from gputui.core.yaml_forms.problems import ProfileError, shorten
from gputui.core.yaml_forms.quantities import parse_size
from gputui.machine.gpu_model import GpuFacts
from gputui.machine.topology import GpuPair
from gputui.metrics.progress import rank_rows
from gputui.profiles.doctor import gpus as driver_gpus
from gputui.profiles.gpu_checks import GpuSituation
from gputui.profiles.home_files import load_used_gpus
from gputui.profiles.recommend import recommend, usable
from gputui.profiles.situation import read_situation
from gputui.runs.gpu_conditions import EXCLUDED, condition_of
from gputui.runs.process_words import process_words
from gputui.store.agent import AgentView, read_agent
from gputui.store.hardware import GpuView, Quarantined, quarantined, read_gpus, xid_counts
from gputui.store.json_shapes import Shape
from gputui.store.metrics import queries
from gputui.store.runs import find_run
from gputui.ui.cli import completers
from gputui.ui.cli.context import Exit, Session, fail, print_json, print_table, say, verb
from gputui.ui.views.snapshot_json import gpu_shapes

FIRST_SAMPLE_SECONDS = 10.0  # NVML takes seconds to start on a machine with many GPUs

TOPOLOGY_SECONDS = 5.0  # the driver may hang; the list is of use without pairs


@verb("gpus", changes=lambda options: options["clear"] is not None or options["quarantine"] is not None, has_json=True)
@click.option(
    "--clear",
    metavar="GPU",
    shell_complete=completers.gpus,
    help="Let runs have a GPU again that is in quarantine (index or UUID).",
)
@click.option(
    "--quarantine",
    metavar="GPU",
    shell_complete=completers.gpus,
    help="Let no run have a GPU until it is cleared (with --why).",
)
@click.option("--why", metavar="TEXT", help="The reason for --quarantine.")
@click.option(
    "--recommend",
    "recommended_count",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Print the N best free GPUs as CUDA_VISIBLE_DEVICES.",
)
@click.option("--memory", metavar="SIZE", help="Only GPUs with so much free memory, such as 16GiB (--recommend).")
def command(
    session: Session,
    as_json: bool,
    clear: str | None,
    quarantine: str | None,
    why: str | None,
    recommended_count: int | None,
    memory: str | None,
) -> None:
    """The GPUs now, who is on them, and which are in quarantine.

    In a script: CUDA_VISIBLE_DEVICES=$(gputui gpus --recommend 2 --memory 16GiB) python train.py
    """
    if memory is not None and recommended_count is None:
        fail("--memory goes with --recommend", Exit.USAGE)
    if (quarantine is None) != (why is None):
        fail("--quarantine GPU and --why TEXT go together", Exit.USAGE)
    gpus, problem = wait_for_gpus(session)
    connection = session.reader()
    uuid_of = {name: gpu.uuid for gpu in gpus for name in (gpu.uuid, str(gpu.index))}
    if clear is not None:
        session.ask("clear_gpu", None, uuid=uuid_of.get(clear, clear))
    if quarantine is not None:
        session.ask("quarantine_gpu", None, uuid=uuid_of.get(quarantine, quarantine), why=why)
    if recommended_count is not None:
        print_recommended(connection, gpus, recommended_count, memory, as_json)
        return
    quarantines = quarantined(connection)
    if as_json:
        print_json(stored_shapes(connection, gpus, quarantines))
        return
    if not gpus:
        say(problem or "no GPUs have been reported yet")
        return
    situation = read_situation(connection, time.time())
    promised: Mapping[str, str] = {}
    if situation is not None:
        promised = situation.promised
    rows = [_row(gpu, quarantines.get(gpu.uuid), promised.get(gpu.uuid)) for gpu in gpus]
    print_table(("GPU", "STATE", "UTIL", "MEMORY GiB", "TEMP", "POWER", "NAME", "WHO"), rows)
    if problem:
        say(problem)
    try:
        load_used_gpus(session.workspace.gpus)
    except ProfileError as error:
        say(f"{error.problems[0]}; the choice of GPUs stays as it was")


def _row(gpu: GpuView, quarantine: Quarantined | None, promised: str | None) -> tuple[str, ...]:
    """The cells of a GPU, which may be ``promised`` to a queued run."""
    state: str = gpu.state
    if quarantine is None:
        user = gpu_user(gpu, promised)
    else:
        state = "quarantine"
        user = quarantine.words
    memory = f"{units.gibibytes(gpu.memory_used_bytes)} / {units.gibibytes(gpu.memory_total_bytes)}"
    if gpu.facts.memory_is_unified:
        memory += " unified"
    return (
        str(gpu.index),
        state,
        units.percent(gpu.utilization_percent),
        memory,
        units.celsius(gpu.temperature_celsius),
        units.watts(gpu.power_watts),
        gpu.name,
        user,
    )


def stored_shapes(
    connection: sqlite3.Connection, gpus: list[GpuView], quarantines: dict[str, Quarantined]
) -> list[Shape]:
    """The JSON of ``gputui gpus --json``, with the pace of the runs that is stored."""
    now = time.time()
    run_ids = {gpu.run_id for gpu in gpus if gpu.run_id is not None}
    attempts = {run_id: find_run(connection, run_id).attempt for run_id in run_ids}
    ranks = {run_id: rank_rows(queries.ranks(connection, run_id, attempts[run_id])) for run_id in run_ids}
    return gpu_shapes(gpus, ranks, quarantines, xid_counts(connection, now))


def wait_for_gpus(session: Session) -> tuple[list[GpuView], str | None]:
    """The GPUs once an agent, which is started if none runs, has read them; and why there are none."""
    session.need_agent()
    deadline = time.monotonic() + FIRST_SAMPLE_SECONDS
    with closing(session.reader()) as connection:
        while True:
            agent = read_agent(connection)
            gpus = read_gpus(connection, time.time())
            if has_samples(agent, gpus) or time.monotonic() > deadline:
                problem = None if agent is None else agent.gpu_problem
                return gpus, problem
            time.sleep(0.02)


def has_samples(agent: AgentView | None, gpus: Sequence[GpuView]) -> bool:
    """Return whether an agent has sampled its GPUs since it started, or cannot."""
    if agent is None or agent.source is None:
        return agent is not None and agent.gpu_problem is not None
    times = [gpu.at for gpu in gpus if gpu.state != "lost"]
    is_new = not times or any(at is not None and at >= agent.started_at for at in times)
    return is_new or agent.sampler_state not in ("ok", "starting")


def gpu_user(gpu: GpuView, promised: str | None) -> str:
    """The user of a GPU, or the queued run that it is ``promised`` to."""
    if gpu.shared_with:
        return f"{len(gpu.run_ids)} runs: {', '.join(gpu.run_ids)}"
    if gpu.run_id is not None:
        user = gpu.run_id
        if gpu.rank is not None:
            user += f" rank {gpu.rank}"
        if gpu.shared_by == "":
            user += f", on {gpu.shares[gpu.run_id]:g} of the GPU"
        return user
    names = [process_words(process) for process in gpu.processes or ()]
    processes = ", ".join(names[:2])
    if len(names) > 2:
        processes += f" and {len(names) - 2} more"
    if gpu.state in ("lost", "error"):
        return processes or "–"
    if condition_of(gpu).is_free:
        state = "free" if promised is None else f"promised to {promised}"
        if processes:
            return f"{state}, beside {processes}"
        return state
    if gpu.facts.mig_mode:
        return processes or "MIG"
    user = processes
    if gpu.locked_by is not None:
        user = f"held by {gpu.locked_by}"
    if gpu.is_excluded:
        return "; ".join(filter(None, (user, EXCLUDED.removeprefix("is "))))
    return user or "no visible process"


def print_recommended(
    connection: sqlite3.Connection, gpus: Sequence[GpuView], count: int, memory: str | None, as_json: bool
) -> None:
    """Print free and healthy GPUs for another program, as UUIDs for CUDA_VISIBLE_DEVICES or as JSON.

    UUIDs mean the same GPUs in any CUDA order. Ends the command with exit code 3 and the reasons if too few are free.

    Args:
        gpus: all GPUs.
        count: how many are requested.
        memory: the least free memory of each, as typed; None for any.
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
        pairs = driver_gpus.read_gpus(None, deadline_seconds=TOPOLOGY_SECONDS).pairs
    recommended = recommend(count, situation, memory_bytes, pairs)
    if recommended is None:
        fail(_refusal(situation, count, memory_bytes), Exit.REFUSED)
    value = ",".join(gpu.uuid for gpu in recommended)
    if not as_json:
        say(value)
        return
    free_bytes = {gpu.uuid: _free_bytes(gpu) for gpu in gpus}
    shapes = [
        {"index": gpu.index, "uuid": gpu.uuid, "name": gpu.name, "free_bytes": free_bytes[gpu.uuid]}
        for gpu in recommended
    ]
    print_json({"cuda_visible_devices": value, "gpus": shapes, "links": _links(recommended, pairs)})


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
