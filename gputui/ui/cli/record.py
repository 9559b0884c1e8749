"""`gputui --record`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputui.ui.cli.context import Exit, Session, exit_on, fail

if TYPE_CHECKING:
    from gputui.agent.recording.output import FileOutput, Format
    from gputui.reports.prometheus.server import Address

MIN_ROTATED_BYTES = 64 << 10  # smaller files would rotate within seconds


def record(
    session: Session,
    interval_seconds: float,
    duration_seconds: float | None,
    as_json: bool,
    prometheus: str | None,
    output: Path | None,
    rotate: str | None,
) -> int:
    """Record in the foreground until stopped; returns the exit code.

    Args:
        duration_seconds: how long at most; None for always.
        as_json: whether samples are printed as JSON.
        prometheus: the address to serve metrics on, such as ``127.0.0.1:9464``.
        output: a file for every sample too.
        rotate: the size at which a new file is begun, such as ``100MB``.
    """
    samples = output_file(output, rotate)
    if prometheus is not None:
        _expose(session, address_of(prometheus))
    from gputui.agent.startup import RecordError, run_recorder

    with exit_on(RecordError, code=Exit.UNREACHABLE):
        code = run_recorder(
            session.workspace,
            interval_seconds=interval_seconds,
            duration_seconds=duration_seconds,
            as_json=as_json,
            output=sys.stdout,
            samples=samples,
        )
    if code == 0 and sys.stderr.isatty():
        # The terminal has printed ^C, and the prompt must not follow on the same line.
        print("\ngputui: recording ended", file=sys.stderr)  # noqa: T201
    return code


def output_file(output: Path | None, rotate: str | None) -> FileOutput | None:
    """The file for every sample, not opened yet; ends the command if it cannot be one."""
    from gputui.agent.recording.output import FileOutput
    from gputui.core.yaml_forms.quantities import parse_size

    if output is None:
        if rotate is not None:
            fail("--rotate goes with --output", Exit.USAGE)
        return None
    size = None if rotate is None else parse_size(rotate)
    if rotate is not None and (size is None or size < MIN_ROTATED_BYTES):
        fail(f"--rotate: expected a size from {MIN_ROTATED_BYTES >> 10}KiB such as 100MB, found {rotate!r}", Exit.USAGE)
    forms: dict[str, Format] = {".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv"}
    form = forms.get(output.suffix.lower())
    if form is None:
        fail(f"--output: {output} ends neither in .ndjson nor in .csv", Exit.USAGE)
    if not output.parent.is_dir():
        fail(f"--output: there is no folder {output.parent}", Exit.USAGE)
    return FileOutput(output.absolute(), form, size)


def address_of(text: str) -> Address:
    """The address of ``--prometheus``; ends the command if it is none."""
    from gputui.reports.prometheus.server import AddressError, parse_address

    with exit_on(AddressError, code=Exit.USAGE, before="--prometheus: "):
        return parse_address(text)


def _expose(session: Session, address: Address) -> None:
    """Serve metrics, and print the address on standard error."""
    from gputui.reports.prometheus.server import AddressError, serve

    with exit_on(AddressError, code=Exit.REFUSED, before="--prometheus: ", after="; choose another port"):
        actual = serve(session.workspace.database, address)
    if not actual.is_loopback:
        warning = f"anyone who can reach {actual.host} can read the recorded data; 127.0.0.1 keeps it on this machine"
        print(f"gputui: {warning}", file=sys.stderr)  # noqa: T201
    print(f"gputui: metrics for Prometheus on http://{actual.host}:{actual.port}/metrics", file=sys.stderr)  # noqa: T201
