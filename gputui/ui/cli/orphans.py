"""`gputui agent orphans`."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import closing
from typing import Any

import click

from gputui.core import units
from gputui.runs import orphans, repository
from gputui.store.hardware import read_gpus
from gputui.ui.cli.context import EXIT_OK, EXIT_REFUSED, Session, json_option, print_json, print_table, say


@click.command("orphans")
@click.option("--kill", is_flag=True, help="End them: SIGTERM, and SIGKILL after 5 s.")
@json_option
@click.pass_obj
def command(session: Session, kill: bool, as_json: bool) -> None:
    """List processes that have outlived their run; --kill ends them.

    Only processes of this user that carry the mark of a run of this home are listed, and none other is ever killed.
    """
    found = orphans.without_ancestors(orphans.find_marked(session.workspace.runs), os.getpid())
    if found and (kill or not session.workspace.database.exists()):
        # The agent reads back what a lost database does not know: without it, live runs might look like strangers.
        session.need_agent()
    memory_bytes: Counter[tuple[int, int | None]] = Counter()
    if found:
        with closing(session.reader()) as connection:
            found = orphans.orphans(found, repository.run_statuses(connection))
            for gpu in read_gpus(connection, time.time()):
                for process in gpu.processes or ():
                    memory_bytes[process.pid, process.start_ticks] += process.memory_bytes or 0
    left = set(orphans.end([orphan.identity for orphan in found])) if kill else set()
    if kill and found:
        ended = [{**_shape(orphan), "killed": orphan.identity not in left} for orphan in found]
        session.command("orphans_ended", None, processes=ended)
    shapes: list[dict[str, Any]] = [
        {
            **_shape(orphan),
            "gpu_memory_bytes": memory_bytes.get((orphan.identity.pid, orphan.identity.start_ticks)),
            "killed": orphan.identity not in left if kill else None,
        }
        for orphan in found
    ]
    if as_json:
        print_json(shapes)
    elif not found:
        say("no orphans: every process of a run belongs to an attempt that is alive")
    else:
        print_table(("PID", "RUN", "ATTEMPT", "GPU MEMORY", "", "COMMAND"), [_cells(shape) for shape in shapes])
        if not kill:
            say("gputui agent orphans --kill ends them")
    if left and not as_json:
        pids = ", ".join(str(identity.pid) for identity in left)
        say(f"not even SIGKILL ends {pids}; a hung driver is likely, and a reboot needed")
    raise SystemExit(EXIT_REFUSED if left else EXIT_OK)


def _shape(orphan: orphans.MarkedProcess) -> dict[str, Any]:
    return {"pid": orphan.identity.pid, "run_id": orphan.run_id, "attempt": orphan.attempt, "command": orphan.command}


def _cells(shape: dict[str, Any]) -> tuple[str, ...]:
    size_bytes, killed = shape["gpu_memory_bytes"], shape["killed"]
    return (
        str(shape["pid"]),
        shape["run_id"],
        str(shape["attempt"] or "–"),
        "–" if size_bytes is None else units.bytes_text(size_bytes),
        {None: "", True: "ended", False: "cannot be killed"}[killed],
        shape["command"],
    )
