"""`gputui agent orphans`."""

from __future__ import annotations

import os
import time
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
    held: dict[tuple[int, int | None], int] = {}
    if found:
        with closing(session.reader()) as connection:
            found = orphans.orphans(found, repository.run_statuses(connection))
            for gpu in read_gpus(connection, time.time()):
                for process in gpu.processes or ():
                    key = (process.pid, process.start_ticks)
                    held[key] = held.get(key, 0) + (process.memory_bytes or 0)
    left = set(orphans.end([orphan.identity for orphan in found])) if kill else set()
    if kill and found:
        ended = [{**_shape(orphan), "killed": orphan.identity not in left} for orphan in found]
        session.command("orphans_ended", None, processes=ended)
    memory = [held.get((orphan.identity.pid, orphan.identity.start_ticks)) for orphan in found]
    if as_json:
        print_json(
            [
                {**_shape(orphan), "gpu_memory_bytes": size, "killed": orphan.identity not in left if kill else None}
                for orphan, size in zip(found, memory, strict=True)
            ]
        )
    elif not found:
        say("no orphans: every process of a run belongs to an attempt that is alive")
    else:
        rows = [
            (
                str(orphan.identity.pid),
                orphan.run_id,
                str(orphan.attempt or "–"),
                "–" if size is None else units.bytes_text(size),
                "" if not kill else "cannot be killed" if orphan.identity in left else "ended",
                orphan.command,
            )
            for orphan, size in zip(found, memory, strict=True)
        ]
        print_table(("PID", "RUN", "ATTEMPT", "GPU MEMORY", "", "COMMAND"), rows)
        if not kill:
            say("gputui agent orphans --kill ends them")
    if left and not as_json:
        pids = ", ".join(str(identity.pid) for identity in left)
        say(f"not even SIGKILL ends {pids}; a hung driver is likely, and a reboot needed")
    raise SystemExit(EXIT_REFUSED if left else EXIT_OK)


def _shape(orphan: orphans.MarkedProcess) -> dict[str, Any]:
    return {"pid": orphan.identity.pid, "run_id": orphan.run_id, "attempt": orphan.attempt, "command": orphan.command}
