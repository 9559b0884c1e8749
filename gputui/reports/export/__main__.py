"""`python -m gputui.reports.export`: one sink of a run, started by the agent.

It reads targets from the run's private specification, because they may contain a password, which must not be on a
command line. It ends with code 0 when the run is over and written, else with one line for the agent.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path
from typing import cast

from gputui.core.config import Workspace
from gputui.core.redaction import redact_text
from gputui.reports.export.follower import Follower, Target
from gputui.reports.export.formats import FORMATS, Format
from gputui.reports.export.line_file import cannot_write
from gputui.reports.export.sink import ExportError
from gputui.reports.export.sink_factory import absolute_target
from gputui.runs.command import sink_target
from gputui.runs.identity import HeldElsewhereError
from gputui.runs.spec import SpecError
from gputui.runs.submission import SPEC_FILE, read_spec
from gputui.store.database import StoreError

EXIT_OK, EXIT_FAILED = 0, 3
# Of 1000: the kernel kills this process before any training.
_OOM_SCORE = b"800"
_NICE = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="gputui.reports.export", description="One sink of one run.")
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--to", choices=tuple(FORMATS), required=True)
    parser.add_argument("--tell", type=int, required=True, help="descriptor for the error")
    arguments = parser.parse_args()
    os.nice(_NICE)
    with suppress(OSError):  # not allowed everywhere
        Path("/proc/self/oom_score_adj").write_bytes(_OOM_SCORE)
    code, words = follow(arguments.state, arguments.run, cast("Format", arguments.to))
    if words:
        # If the agent is gone, the next one gets the same error.
        with suppress(OSError):
            os.write(arguments.tell, words.encode("utf-8", "replace")[:4096])
    return code


def follow(state: Path, run_id: str, name: Format) -> tuple[int, str]:
    """Follow a run to its end. Returns the exit code and an error in one line."""
    workspace = Workspace(profiles=state, state=state)
    run_dir = workspace.run_dir(run_id)
    shown: str = name
    try:
        spec = read_spec(run_dir / SPEC_FILE)
        template = spec.sinks.get(name)
        if template is None:
            return EXIT_FAILED, f"the run's profile has no sink {name}"
        if prefix := FORMATS[name].environment:
            # The tracking server's settings, from the profile or the launching shell.
            given = {**(spec.shell.environment if spec.shell is not None else {}), **spec.env}
            os.environ.update({key: value for key, value in given.items() if key.startswith(prefix)})
        target = sink_target(template, spec.params, run_id=run_id, run_dir=str(run_dir))
        target = shown = absolute_target(name, target, Path("/"))
        followed = Target(run_id, run_dir, name, target)
        Follower(workspace.database, followed, guard=signal.alarm, is_agents=True).run()
    except HeldElsewhereError as error:
        return EXIT_FAILED, f"another process holds {error}"
    except SpecError as error:
        return (EXIT_FAILED, str(error)) if run_dir.exists() else (EXIT_OK, "")
    except OSError as error:
        return EXIT_FAILED, _one_line(str(cannot_write(Path(error.filename or shown), error)))
    except (ExportError, StoreError, sqlite3.Error) as error:
        return EXIT_FAILED, _one_line(str(error))
    except Exception as error:
        # A tracker's library may raise anything.
        return EXIT_FAILED, _one_line(f"{type(error).__name__}: {error}")
    return EXIT_OK, ""


def _one_line(text: str) -> str:
    return redact_text(" ".join(text.split()))[:500]


if __name__ == "__main__":
    sys.exit(main())
