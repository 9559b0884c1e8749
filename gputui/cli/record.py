"""`gputui --record`."""

from __future__ import annotations

import sys

from gputui.cli.context import EXIT_UNREACHABLE, Session, fail


def record(session: Session, interval_seconds: float, duration_seconds: float | None, as_json: bool) -> int:
    """Record in the foreground until stopped."""
    from gputui.agent.start import RecordError
    from gputui.agent.start import record as run_recorder

    try:
        return run_recorder(
            session.workspace,
            interval_seconds=interval_seconds,
            duration_seconds=duration_seconds,
            as_json=as_json,
            output=sys.stdout,
        )
    except RecordError as error:
        fail(str(error), EXIT_UNREACHABLE)
