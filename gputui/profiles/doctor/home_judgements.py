"""Judge a home: its disk, database and agent. Pure. Thresholds are this product's own."""

from __future__ import annotations

from gputui.core.config import is_network_file_system
from gputui.core.units import bytes_text
from gputui.profiles.doctor.home_facts import HomeReading
from gputui.runs.checks import CheckResult
from gputui.version import VERSION

LITTLE_DISK_BYTES = 10 * 2**30
TOO_LITTLE_DISK_BYTES = 2**30
SLOW_DISK_BYTES_PER_SECOND = 50e6
AGENT_SILENT_SECONDS = 10.0


def judge_home(home: HomeReading) -> list[CheckResult]:
    """All judgements of a home, in the order in which they are shown."""
    return [
        judge_disk(home),
        judge_write(home),
        judge_file_system(home),
        judge_database(home),
        judge_agent(home),
        judge_other_agents(home),
    ]


def judge_disk(home: HomeReading) -> CheckResult:
    """Check the room for checkpoints and history."""
    if home.disk_free_bytes is None or home.disk_total_bytes is None:
        return CheckResult("disk", "skip", f"cannot tell how full the disk of {home.state} is")
    detail = f"{bytes_text(home.disk_free_bytes)} of {bytes_text(home.disk_total_bytes)} free for {home.state}"
    remedy = "delete old runs (gputui rm), or choose another --home"
    if home.disk_free_bytes < TOO_LITTLE_DISK_BYTES:
        return CheckResult("disk", "fail", detail, remedy)
    if home.disk_free_bytes < LITTLE_DISK_BYTES:
        return CheckResult("disk", "warn", detail, remedy)
    return CheckResult("disk", "pass", detail)


def judge_write(home: HomeReading) -> CheckResult:
    """Check the write speed, which checkpoints depend on."""
    if home.write_bytes_per_second is None:
        why = home.write_problem or "unknown"
        if home.write_problem == "too full to try":
            return CheckResult("disk speed", "skip", why)
        return CheckResult("disk speed", "fail", f"{home.state}: {why}", "check permissions, the mount and dmesg")
    detail = f"{home.write_bytes_per_second / 1e6:.0f} MB/s written and synced"
    if home.write_bytes_per_second < SLOW_DISK_BYTES_PER_SECOND:
        return CheckResult("disk speed", "warn", detail, "checkpoints will be slow: put the home on a faster disk")
    return CheckResult("disk speed", "pass", detail)


def judge_file_system(home: HomeReading) -> CheckResult:
    """Check for a local file system: SQLite's WAL needs the shared memory of one machine
    (`config.is_network_file_system`)."""
    if home.file_system is None:
        return CheckResult("file system", "skip", f"unknown for {home.state}")
    if is_network_file_system(home.file_system):
        detail = f"{home.state} is on {home.file_system}, where the database cannot work"
        return CheckResult("file system", "fail", detail, "set GPUTUI_HOME, or --home, to a folder on a local disk")
    return CheckResult("file system", "pass", f"local ({home.file_system})")


def judge_database(home: HomeReading) -> CheckResult:
    """Check that the database is intact."""
    size = "" if home.database_bytes is None else f", {bytes_text(home.database_bytes)}"
    if home.database == "missing":
        return CheckResult("database", "skip", f"nothing has been recorded in {home.state} yet")
    if home.database == "slow":
        return CheckResult("database", "skip", f"too large to be read to its end here{size}")
    if home.database != "ok":
        remedy = "gputui agent stop, then start: the agent rebuilds what it can and keeps the old file beside it"
        if "another version" in home.database:
            remedy = f"move {home.state} away, or choose another --home"
        return CheckResult("database", "fail", f"{home.database}{size}", remedy)
    return CheckResult("database", "pass", f"whole, schema {home.schema_version}{size}")


def judge_agent(home: HomeReading) -> CheckResult:
    """Check that the agent is alive, responsive and of this version."""
    agent = home.agent
    if agent is None:
        return CheckResult("agent", "skip", "none runs; whatever needs one starts it")
    if agent.is_stopped:
        remedy = f"kill -CONT {agent.pid} continues it; runs continue meanwhile"
        return CheckResult("agent", "fail", f"pid {agent.pid} was stopped (state T)", remedy)
    if agent.heartbeat_seconds is None:
        return CheckResult("agent", "warn", f"pid {agent.pid} has written nothing yet", "ask again in a moment")
    if agent.heartbeat_seconds > AGENT_SILENT_SECONDS + (agent.interval_seconds or 0.0):
        remedy = "gputui agent stop, then start; runs continue meanwhile; the log is agent.log"
        return CheckResult("agent", "fail", f"pid {agent.pid} silent for {agent.heartbeat_seconds:.0f} s", remedy)
    detail = f"pid {agent.pid}, last heartbeat {agent.heartbeat_seconds:.1f} s ago"
    if agent.sampler_state not in (None, "ok", "starting"):
        remedy = "the driver may hang: see dmesg and agent.log"
        return CheckResult("agent", "warn", f"{detail}; its reader of the GPUs is {agent.sampler_state}", remedy)
    if agent.version != VERSION:
        remedy = "gputui agent stop; the next command starts the new one, and runs continue"
        return CheckResult("agent", "warn", f"{detail}, but of version {agent.version}, not {VERSION}", remedy)
    return CheckResult("agent", "pass", detail)


def judge_other_agents(home: HomeReading) -> CheckResult:
    """Report agents of this user's other homes, which share the GPUs. Lock files keep their runs apart."""
    if not home.other_agents:
        return CheckResult("other agents", "pass", "none of this user")
    named = ", ".join(f"pid {pid} ({state})" for pid, state in home.other_agents)
    return CheckResult("other agents", "pass", f"{len(home.other_agents)} of other homes: {named}")
