"""`python -m gputui.studies`: the process of one study, started by the agent.

It ends with code 0 when the study is over or paused and no trial is active, when a person stopped
the agent, or when the database was replaced; with 5 when another process serves the study; else
with one line for the agent, which starts it again.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import time
import traceback
from contextlib import closing, suppress
from pathlib import Path

from gputui.core.config import PRIVATE_DIR_MODE, Workspace
from gputui.core.redaction import redact_text
from gputui.runs import identity
from gputui.runs.agent_process import AgentUnreachableError, ensure_agent, read_identity
from gputui.runs.identity import HeldElsewhereError
from gputui.runs.spec import SpecError
from gputui.store.database import StoreError, data_version, is_locked, is_same_file, open_commander
from gputui.studies import rows
from gputui.studies.process import StudyProcess

EXIT_OK = 0
EXIT_FAILED = 3
EXIT_HELD_ELSEWHERE = 5
_OOM_SCORE = b"800"  # of 1000: it is killed before any training, and a restart loses nothing
_NICE = 5  # samplers compute for seconds; the trainings come first

POLL_SECONDS = 0.1
TURN_SECONDS = 1.0  # a turn without a write in the store: budgets of time run out without one
AGENT_SECONDS = 5.0
"""How often to look for changes, to take a turn without one, and to look for the agent."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="gputui.studies", description="One study.")
    parser.add_argument("--profiles", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--study", required=True)
    parser.add_argument("--tell", type=int, required=True, help="descriptor for the error")
    arguments = parser.parse_args()
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)
    code, error_text = serve(Workspace(arguments.profiles, arguments.state), arguments.study)
    if error_text:
        # If the agent is gone, the next one gets the same error.
        with suppress(OSError):
            os.write(arguments.tell, error_text.encode("utf-8", "replace")[:4096])
    return code


def serve(workspace: Workspace, study_id: str) -> tuple[int, str]:
    """Serve a study until it needs no process. Returns the exit code and an error in one line."""
    folder = workspace.studies / study_id
    try:
        # A study whose folder was removed can still be stopped.
        folder.mkdir(mode=PRIVATE_DIR_MODE, parents=True, exist_ok=True)
        identity.take(folder / rows.LOCK_FILE, is_agents=True)
        with closing(open_commander(workspace.database)) as connection:
            _loop(workspace, connection, StudyProcess(workspace, connection, study_id, time.time))
    except HeldElsewhereError:
        return EXIT_HELD_ELSEWHERE, ""
    except (OSError, SpecError, StoreError, AgentUnreachableError, sqlite3.Error) as error:
        return EXIT_FAILED, _one_line(str(error))
    except Exception as error:
        # A sampler may raise anything.
        sys.stderr.write(redact_text(traceback.format_exc()))
        return EXIT_FAILED, _one_line(f"{type(error).__name__}: {error}")
    return EXIT_OK, ""


def _loop(workspace: Workspace, connection: sqlite3.Connection, study: StudyProcess) -> None:
    """Serve until nothing is left to do, or the database was replaced: the next agent starts a
    process for that."""
    version = -1
    turn_at = 0.0
    agent_at = time.monotonic()
    database_stat = workspace.database.stat()
    while True:
        now = time.monotonic()
        if now - agent_at >= AGENT_SECONDS:
            agent_at = now
            if not is_same_file(workspace.database, database_stat):
                return
            if read_identity(workspace) is None:
                if workspace.agent_stopped.exists():
                    return
                ensure_agent(workspace)
        changed = data_version(connection)
        if changed != version or now - turn_at >= TURN_SECONDS:
            version = changed
            turn_at = now
            try:
                if not study.turn():
                    return
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    raise
        time.sleep(POLL_SECONDS)


def _one_line(text: str) -> str:
    return redact_text(" ".join(text.split()))[:500]


if __name__ == "__main__":
    sys.exit(main())
