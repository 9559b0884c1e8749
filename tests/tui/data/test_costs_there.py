"""What every reader says of a failure's cost where only the target knows what was kept."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from gputui.cli.main import command
from gputui.config import Workspace
from gputui.recovery.cost import Cost
from gputui.store.database import open_reader
from gputui.tui.data.reader import SnapshotReader
from gputui.tui.data.snapshot import Interest
from tests.tui.filling import NOW, Filler

RUN = "far-1"


def fail_before_the_second_attempt_began(filler: Filler, kind: str) -> None:
    filler.agent()
    filler.run(RUN, "failed", ended_ago=50.0)
    filler.attempt(RUN, 1, "failed", started_ago=900.0, ended_ago=500.0, code=1, last_step=5)
    filler.metrics(RUN, 1, [{"step": step, "time": NOW - 900 + step, "loss": 1.0} for step in range(6)])
    filler.incident(RUN, 1, "killed", "it was killed", seconds_ago=500.0)
    filler.attempt(RUN, 2, "failed", started_ago=400.0, ended_ago=100.0)
    filler.connection.execute(
        "UPDATE attempts SET started_at = NULL, first_step_at = NULL, first_step = NULL WHERE number = 2"
    )
    filler.connection.execute("UPDATE runs SET target = 'lab', spec = json_set(spec, '$.target', json(?))",
                              (json.dumps({"name": "lab", "kind": kind}),))  # fmt: skip
    filler.connection.commit()


@pytest.mark.parametrize(("kind", "lost"), [("ssh", None), ("slurm", 5)])
def test_no_reader_takes_what_is_unknown_for_everything(
    workspace: Workspace, filler: Filler, tmp_path: Path, kind: str, lost: int | None
) -> None:
    fail_before_the_second_attempt_began(filler, kind)

    def said(*words: str) -> str:
        result = CliRunner().invoke(command, ["--home", str(workspace.state.parent), *words])
        assert result.exit_code == 0, result.output
        return result.output

    shown = json.loads(said("show", RUN, "--json"))
    assert shown["attempts"][0]["incident"]["lost_steps"] == lost
    assert shown["cost_of_failures"]["lost_steps"] == lost
    assert shown["cost_of_failures"]["unknown"] == (1 if lost is None else 0)
    assert ("That cost" in said("explain", RUN)) is (lost is not None)
    said("report", RUN, "--out", str(tmp_path))
    [figures] = json.loads((tmp_path / "cost_analysis.json").read_text())["runs"]
    assert (figures["lost_steps"], figures["incidents_of_unknown_cost"]) == (lost, 1 if lost is None else 0)
    reader = SnapshotReader(workspace)
    with closing(open_reader(workspace.database)) as connection:
        snapshot = reader.read(connection, NOW, replace(Interest(), run_id=RUN))
    [row] = snapshot.runs
    assert row.cost is not None and row.cost.lost_steps == lost
    assert snapshot.page is not None
    [paid] = snapshot.page.costs.values()
    assert (paid == Cost(None, None, None)) is (lost is None) and paid.lost_steps == lost
