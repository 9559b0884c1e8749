"""`gputui --record`."""

from __future__ import annotations

import sys

from gputui.cli.context import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, Session, fail


def record(
    session: Session, interval_seconds: float, duration_seconds: float | None, as_json: bool, prometheus: str | None
) -> int:
    """Record in the foreground until stopped; ``prometheus`` is the address that may be scraped meanwhile."""
    if prometheus is not None:
        _expose(session, prometheus)
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


def _expose(session: Session, text: str) -> None:
    """Listen for scrapes, and say where. What is asked of standard output stays as it was."""
    from gputui.reports.prometheus.server import AddressError, parse_address, serve

    try:
        address = parse_address(text)
    except AddressError as error:
        fail(f"--prometheus: {error}", EXIT_USAGE)
    try:
        found = serve(session.workspace.database, address)
    except AddressError as error:
        fail(f"--prometheus: {error}; choose another port", EXIT_REFUSED)
    if not found.is_loopback:
        print(  # noqa: T201
            f"gputui: whoever can reach {found.host} may read what is recorded; 127.0.0.1 keeps it on this machine",
            file=sys.stderr,
        )
    print(f"gputui: metrics for Prometheus on http://{found.host}:{found.port}/metrics", file=sys.stderr)  # noqa: T201
