"""`gputui import`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gputui.metrics.trackers import TrackedRun, tracked_runs
from gputui.runs.repository import fitting_name
from gputui.runs.spec import MetricsSpec, RunSpec
from gputui.store.run_states import RunState
from gputui.ui.cli.context import Exit, RunName, Session, fail, print_json, say, verb
from gputui.ui.cli.run import submit

MAX_RUNS = 50  # more is a wrong folder, such as a whole disk of logs


@verb("import", changes=True, has_json=True)
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--name", type=RunName(), help="What the run is called (else as the folder, or the W&B run).")
def command(session: Session, folder: Path, name: str | None, as_json: bool) -> None:
    """Import what TensorBoard or W&B (offline) wrote into a folder, as finished runs to compare with.

    Scalars are copied into the home; the folder is left as it is.
    """
    runs = tracked_runs(folder.absolute())
    if not runs:
        fail(f"{folder} holds no events.out.tfevents.* and no run-*.wandb file", Exit.USAGE)
    if len(runs) > MAX_RUNS:
        fail(f"{folder} holds {len(runs)} runs; import at most {MAX_RUNS} at once", Exit.USAGE)
    session.need_agent()
    ids: list[str] = []
    try:
        for run in runs:
            ids.append(run_id := submit(session, copy_spec(run), name))
            if not as_json:
                hint = f"once it has succeeded, gputui metrics {run_id} shows it"
                say(f"{run_id} copies {run.source} ({run.kind}); {hint}")
    finally:
        # One may be refused after others were queued.
        if as_json:
            print_json([{"id": run_id, "state": RunState.QUEUED} for run_id in ids])


def copy_spec(run: TrackedRun) -> RunSpec:
    """A run that copies the metrics of another tracker."""
    output = "{run_dir}/metrics.jsonl"
    return RunSpec(
        name=fitting_name(run.name),
        launcher="command",
        # -P: modules in the folder must not be imported.
        program=(sys.executable, "-P", "-m", "gputui.metrics.trackers", run.kind, "{source}", output),
        workdir="{run_dir}",
        args=(),
        # A parameter, because a folder's name may contain braces.
        params={"source": str(run.source)},
        metrics=(MetricsSpec("jsonl", output),),
        recovery={"policy": "off"},
        alerts="off",
    )
