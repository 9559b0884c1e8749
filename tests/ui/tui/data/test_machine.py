"""The overview beyond samples and runs, read from a database filled by hand."""

from __future__ import annotations

from contextlib import closing

from gputui.core.config import Workspace
from gputui.store.database import open_reader
from gputui.ui.tui.data.reader import SnapshotReader
from gputui.ui.tui.data.run_rows import COSTS_PER_READ
from gputui.ui.views.snapshot import Interest, Moment
from tests.homes import NOW, Home
from tests.stories import overnight


def test_costs_are_worked_out_a_few_at_a_time_and_follow_their_run(home: Home, workspace: Workspace) -> None:
    overnight(home)
    for number in range(COSTS_PER_READ + 2):
        run_id = f"broke-{number}"
        home.run(run_id, "failed", ended_ago=100.0 + number)
        home.attempt(run_id, 1, "failed", ended_ago=100.0 + number, code=1, last_step=5)
        home.incident(run_id, 1, "user_exception", "it raised", verdict="stop")
    reader = SnapshotReader(workspace)
    with closing(open_reader(workspace.database)) as connection:
        first = reader.read(connection, NOW, Interest())
        assert reader.is_behind
        assert sum(row.cost is not None for row in first.runs) == COSTS_PER_READ
        second = reader.read(connection, NOW, Interest())
        costs = {row.run.run_id: row.cost for row in second.runs}
        assert sum(cost is not None for cost in costs.values()) == COSTS_PER_READ + 3
        assert costs["gpt2-124m-1"] is None
        vit = costs["vit-b16-1"]
        assert vit is not None
        assert vit.lost_steps == 422
        assert vit.incidents == 2
        home.incident("vit-b16-1", 3, "hang", "no step for 10 minutes", step=9440)
        third = reader.read(connection, NOW, Interest())
        again = next(row.cost for row in third.runs if row.run.run_id == "vit-b16-1")
        assert again is not None
        assert (again.incidents, again.unknown) == (3, 1)
        # A target reports only later which checkpoint it chose.
        home.connection.execute(
            "UPDATE attempts SET resumed_from = '/c/step_10.pt', resumed_step = 10 "
            "WHERE run_id = 'vit-b16-1' AND number = 3"
        )
        fourth = reader.read(connection, NOW, Interest())
        later = next(row.cost for row in fourth.runs if row.run.run_id == "vit-b16-1")
        assert later is not None
        assert later.lost_steps is not None
        assert later.lost_steps > (again.lost_steps or 0)


def test_the_step_of_a_run_is_that_of_its_loss_now_and_then(home: Home, workspace: Workspace) -> None:
    home.run("job-1", "running")
    home.attempt("job-1", 1, "running")
    home.metrics("job-1", 1, [{"step": step, "time": NOW - 60 + step, "loss": 1.0} for step in range(10)])
    # TensorBoard's files have the validation too, by epochs.
    home.connection.execute("UPDATE metric_sources SET format = 'tensorboard' WHERE run_id = 'job-1'")
    home.metrics("job-1", 1, [{"step": 1, "time": NOW - 40, "val/accuracy": 0.5}])
    reader = SnapshotReader(workspace)
    with closing(open_reader(workspace.database)) as connection:
        for moment, step in ((None, 9), (Moment(NOW - 30), 9), (Moment(NOW - 55), 5)):
            snapshot = reader.read(connection, NOW, Interest(moment=moment))
            assert [row.progress.step for row in snapshot.runs] == [step]
