"""The GPUs: which are available, and which are held by processes that cannot be killed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gputui.agent.context import AgentContext
from gputui.agent.recording.recorder import Recorder
from gputui.core.yaml_forms.problems import ProfileError
from gputui.machine.gpu_model import GpuFacts
from gputui.profiles.home_files import SettingsFile, load_used_gpus
from gputui.recovery.watch.rules import titles_by_subject
from gputui.runs import repository
from gputui.runs.gpu_conditions import GpuCondition
from gputui.runs.repository import GpuHolders
from gputui.runs.scheduler import GpuAvailability
from gputui.store.alerts import lasting
from gputui.store.hardware import excluded, quarantined, set_excluded
from gputui.store.runs import get_run

# Poll interval for the end of processes that cannot be killed.
LOOK_SECONDS = 15.0


def gpu_availability(
    context: AgentContext,
    lingering: Collection[str] = (),
    holder: Callable[[str], str | None] = lambda _uuid: None,
) -> list[GpuAvailability] | None:
    """The GPUs that the driver lists, then leased ones that it does not list. Raises sqlite3.Error.

    Args:
        lingering: the UUIDs of GPUs that unkillable processes hold.
        holder: names the home or user that holds the lock of a GPU.

    Returns:
        None before the first inventory.
    """
    inventory = context.recorder.inventory
    if inventory is None:
        return None
    leases = repository.leases(context.connection)
    conditions = _conditions(context, inventory.gpus, leases, lingering, holder)
    unlisted = leases.keys() - {gpu.uuid for gpu in inventory.gpus}
    reason = "is missing: " + (inventory.problem or "the driver does not list it")
    return [
        *(condition.availability() for condition in conditions),
        *(_missing_gpu(uuid, leases[uuid], reason) for uuid in unlisted),
    ]


def _conditions(
    context: AgentContext,
    gpus: Sequence[GpuFacts],
    leases: Mapping[str, GpuHolders],
    lingering: Collection[str],
    lock_holder: Callable[[str], str | None],
) -> Iterator[GpuCondition]:
    """The conditions of the GPUs that the driver lists. Raises sqlite3.Error."""
    connection = context.connection
    recorder = context.recorder
    in_use = repository.leases_in_use(connection)
    failed = quarantined(connection)
    unused = excluded(connection)
    alerts = titles_by_subject(lasting(connection))
    for facts in gpus:
        uuid = facts.uuid
        processes = recorder.processes.get(uuid) or ()
        holders = leases.get(uuid, GpuHolders())
        quarantine = failed[uuid].words if uuid in failed else None
        locked_by = None if uuid in in_use else lock_holder(uuid)
        yield GpuCondition(
            facts,
            recorder.fast.get(uuid),
            recorder.slow.get(uuid),
            [process for process in processes if recorder.owner(process) is None],
            has_processes=bool(processes),
            holders=holders.run_ids,
            shared_by=holders.shared_by,
            shares=holders.shares,
            quarantine=quarantine,
            alert=alerts.get(uuid),
            locked_by=locked_by,
            is_excluded=uuid in unused,
            is_lingering=uuid in lingering,
        )


def _missing_gpu(uuid: str, holders: GpuHolders, reason: str) -> GpuAvailability:
    """A leased GPU that the driver does not list."""
    return GpuAvailability(
        uuid,
        index=None,
        holders=holders.run_ids,
        blocked_by=reason,
        out_of_service=True,
        shared_by=holders.shared_by,
        shares=holders.shares,
    )


@dataclass(slots=True)
class UsedGpus:
    """The choice of ``gpus.yaml``: the GPUs that runs of this home may have.

    Attributes:
        used: their indices or UUIDs; None for all.
        has_choice: false until the file was valid once; the stored choice stays until then.
        stored_for: the GPUs that the choice was stored for, with their names; None: it is to be stored.
    """

    context: AgentContext
    used: frozenset[int | str] | None = None
    has_choice: bool = False
    stored_for: dict[str, set[int | str]] | None = None
    file: SettingsFile[frozenset[int | str] | None] = field(init=False)

    def __post_init__(self) -> None:
        self.file = SettingsFile(self.context.workspace.gpus, load_used_gpus)

    def poll(self) -> None:
        """Store which GPUs the file excludes, if it or the GPUs have changed. An invalid one changes
        nothing. Raises sqlite3.Error."""
        version = self.file.newer()
        if version is not None:
            if isinstance(version.content, ProfileError):
                first_problem, *_ = version.content.problems
                self._note(f"{first_problem}; the choice of GPUs stays as it was")
            else:
                self.used = version.content
                self.has_choice = True
                self.stored_for = None
            self.file.follow(version)
        gpus = self.context.recorder.facts.values()
        names: dict[str, set[int | str]] = {gpu.uuid: {gpu.uuid, gpu.index} for gpu in gpus}
        if self.has_choice and names != self.stored_for:
            self._store(names)
            self.stored_for = names

    def _store(self, names: Mapping[str, set[int | str]]) -> None:
        if self.used is None:
            set_excluded(self.context.connection, set())
            return
        set_excluded(self.context.connection, {uuid for uuid in names if not self.used & names[uuid]})
        missing = self.used.difference(*names.values())
        if names and missing:
            listed = ", ".join(sorted(map(str, missing)))
            self._note(f"{self.file.path.name} names GPUs that are not there: {listed}")

    def _note(self, text: str) -> None:
        self.context.note_about("GPUs", "used_gpus_unusable", text)


def foreign_bytes(recorder: Recorder, uuid: str) -> int | None:
    """A GPU's memory that no run of this home uses: the driver's and that of other processes.

    None if its processes or their memory are unknown.
    """
    processes = recorder.processes.get(uuid)
    if processes is None:
        return None
    sample = recorder.fast.get(uuid)
    total = 0
    if sample is not None and sample.memory_reserved_bytes is not None:
        total = sample.memory_reserved_bytes
    for process in processes:
        if recorder.owner(process) is not None:
            continue
        if process.memory_bytes is None:
            return None
        total += process.memory_bytes
    return total


@dataclass(slots=True, eq=False)
class HeldGpus:
    """The GPUs of an ended attempt whose processes may hold them still.

    Attributes:
        due_at: the next look for such processes (monotonic).
        is_seen: such processes were found.
    """

    run_id: str
    attempt: int
    uuids: Sequence[str]
    due_at: float = -math.inf
    is_seen: bool = False


@dataclass(slots=True)
class GpuHolds:
    """The GPUs of ended attempts until none of their processes is left, which is at once unless one cannot be
    killed.

    A run that is over then returns its leases; a recovering run keeps them, and may start on other GPUs
    before.
    """

    context: AgentContext
    entries: list[HeldGpus] = field(default_factory=list)

    def adopt(self) -> None:
        """Hold the GPUs of all ended attempts whose runs have a lease or are not over. Raises
        sqlite3.Error."""
        ended = self.context.connection.execute(
            "SELECT run_id, number, gpus FROM attempts "
            "WHERE ended_at NOTNULL AND gpus != '[]' "
            "AND run_id IN (SELECT run_id FROM leases UNION SELECT run_id FROM runs WHERE ended_at IS NULL)"
        ).fetchall()
        for run_id, number, gpus in ended:
            self.begin(run_id, number, json.loads(gpus))

    def begin(self, run_id: str, attempt: int, uuids: Sequence[str]) -> None:
        """Hold the GPUs of an attempt that has ended."""
        if uuids:
            self.entries.append(HeldGpus(run_id, attempt, uuids))

    def uuids(self) -> set[str]:
        return {uuid for entry in self.entries for uuid in entry.uuids}

    def next_due(self) -> float:
        """Monotonic time of the next check, infinite without held GPUs."""
        return min((entry.due_at for entry in self.entries), default=math.inf)

    def poll(self) -> bool:
        """Release the GPUs that are free; True if there was one. Raises sqlite3.Error."""
        context = self.context
        now = context.monotonic()
        due_entries = [entry for entry in self.entries if now >= entry.due_at]
        if not due_entries:
            return False
        count = len(self.entries)
        scan = context.scanner.scan()
        for entry in due_entries:
            if scan.processes_of(context.workspace.run_dir(entry.run_id), entry.attempt):
                entry.is_seen = True
                entry.due_at = now + LOOK_SECONDS
            else:
                self._release(entry)
        return len(self.entries) < count

    def _release(self, entry: HeldGpus) -> None:
        connection = self.context.connection
        run = get_run(connection, entry.run_id)
        if run is not None and run.state.is_over:
            for uuid in self._held_by_no_other(entry):
                repository.end_lease(connection, run.run_id, uuid)
        if run is not None and entry.is_seen:
            text = f"no process of attempt {entry.attempt} holds {', '.join(entry.uuids)} any more; usable again"
            self.context.note("gpus_released", text, run.run_id)
        self.entries.remove(entry)

    def _held_by_no_other(self, entry: HeldGpus) -> list[str]:
        """The GPUs of an entry that no other attempt of its run holds."""
        others = [hold for hold in self.entries if hold is not entry and hold.run_id == entry.run_id]
        still_held = {uuid for hold in others for uuid in hold.uuids}
        return [uuid for uuid in entry.uuids if uuid not in still_held]
