"""Homes of former versions: an archive each, of the database as SQL and of the folders of its runs.

Texts hold ``{folder}`` for where the home was. An archive is made once, by the version that it is of, and never again.
"""

from __future__ import annotations

import json
import lzma
import sqlite3
import tarfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.machine import Machine

HERE = Path(__file__).parent
SCHEMA_29 = "home_schema_29"
"""With packs, minutes, hours and days of two GPUs, runs of every end, a queued one, alerts, a GPU in quarantine."""

RECORDED = (
    "gpu_samples", "gpu_slow_samples", "host_samples", "gpu_minutes", "gpu_hours", "gpu_days", "host_minutes",
    "host_hours", "host_days",
)  # fmt: skip
LAST_SAMPLE = 1_795_361_400.001
UNTIL_NOW = ("age_seconds", "xids_last_day")
"""What is counted until now. A past moment has its own."""


def unpack(name: str, machine: Machine) -> None:
    """Put a home into the machine's folder, in the schema that it has."""
    with tarfile.open(HERE / f"{name}.tar.xz") as archive:
        archive.extractall(machine.folder, filter="data")
    for path in machine.folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".sql", ".txt", ".yaml", ".log"):
            path.write_text(path.read_text("utf-8").replace("{folder}", str(machine.folder)), "utf-8")
    dump = machine.folder / "home.sql"
    with closing(sqlite3.connect(machine.workspace.database)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.executescript(dump.read_text("utf-8"))
    dump.unlink()


def shown(machine: Machine) -> dict[str, Any]:
    """What the commands print about a home, without what depends on the time of day; TZ is to be UTC."""
    runs = machine.json("ps")
    found: dict[str, Any] = {"ps": runs}
    for command in ("ps --active", "alerts --all", "queue"):
        found[command] = machine.json(*command.split())
    for run in runs:
        run_id = run["id"]
        found[f"show {run_id}"] = machine.json("show", run_id)
        found[f"explain {run_id}"] = machine.gputui("explain", run_id).splitlines()
        if run["state"] == "queued":
            continue
        found[f"metrics {run_id}"] = machine.json("metrics", run_id)
        for form in ("csv", "jsonl"):
            out = machine.folder / f"out.{form}"
            machine.gputui("export", run_id, "--to", form, "--out", str(out), "--force")
            found[f"export {run_id} --to {form}"] = out.read_text("utf-8").splitlines()
    for seconds in (60, 1800, 5400, 26 * 3600):
        at = time.strftime("%Y-%m-%d %H:%M", time.localtime(LAST_SAMPLE - seconds))
        found[f"--once --at {seconds} s before"] = {
            name: value for name, value in machine.json("--once", "--at", at).items() if name != "agent"
        }
    found["gpus"] = machine.json("--once", "--readonly")["gpus"]
    for gpu in found["gpus"]:
        for key in UNTIL_NOW:
            del gpu[key]
    return json.loads(json.dumps(found).replace(str(machine.folder), "{folder}"))  # type: ignore[no-any-return]


def recorded(connection: sqlite3.Connection) -> dict[str, list[dict[str, Any]]]:
    """Every sample, minute, hour and day, oldest first."""
    found = {}
    for table in RECORDED:
        cursor = connection.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        found[table] = sorted(rows, key=lambda row: (row.get("gpu_id", 0), row["at"]))
    return found


def expected(name: str) -> dict[str, Any]:
    """``{shown, recorded}`` as the version that made the home printed and read it."""
    with lzma.open(HERE / f"{name}_expected.json.xz", "rt", encoding="utf-8") as file:
        value: dict[str, Any] = json.load(file)
    for gpu in value["shown"]["gpus"]:
        for key in UNTIL_NOW:
            gpu.pop(key, None)
    return value
