"""What the overview shows beyond samples and runs, read from a database filled by hand."""

from __future__ import annotations

from contextlib import closing

import pytest

from gputui.config import Workspace
from gputui.store.database import open_reader
from gputui.tui.app import GputuiApp
from gputui.tui.data.feed import Feed
from gputui.tui.data.machine import COSTS_PER_READ, XID_SECONDS, GpuPageReader
from gputui.tui.data.reader import SnapshotReader
from gputui.tui.data.snapshot import Interest
from gputui.tui.pages.processes.page import ProcessesScreen
from tests.tui.filling import NOW, Filler, an_hour_later, uuid
from tests.tui.test_screens import SMALL, text, until


def test_costs_are_worked_out_a_few_at_a_time_and_follow_their_run(filler: Filler, workspace: Workspace) -> None:
    filler.overnight()
    for number in range(COSTS_PER_READ + 2):
        run_id = f"broke-{number}"
        filler.run(run_id, "failed", ended_ago=100.0 + number)
        filler.attempt(run_id, 1, "failed", ended_ago=100.0 + number, code=1, last_step=5)
        filler.incident(run_id, 1, "user_exception", "it raised", verdict="stop")
    reader = SnapshotReader(workspace)
    with closing(open_reader(workspace.database)) as connection:
        first = reader.read(connection, NOW, Interest())
        assert reader.is_behind and sum(row.cost is not None for row in first.runs) == COSTS_PER_READ
        second = reader.read(connection, NOW, Interest())
        costs = {row.run.run_id: row.cost for row in second.runs}
        assert sum(cost is not None for cost in costs.values()) == COSTS_PER_READ + 3 and costs["gpt2-124m-1"] is None
        vit = costs["vit-b16-1"]
        assert vit is not None and vit.lost_steps == 422 and vit.incidents == 2
        filler.incident("vit-b16-1", 3, "hang", "no step for 10 minutes", step=9440)
        third = reader.read(connection, NOW, Interest())
        again = next(row.cost for row in third.runs if row.run.run_id == "vit-b16-1")
        assert again is not None and (again.incidents, again.unknown) == (3, 1)
        # A target reports only later which checkpoint it chose.
        filler.connection.execute(
            "UPDATE attempts SET resumed_from = '/c/step_10.pt', resumed_step = 10 "
            "WHERE run_id = 'vit-b16-1' AND number = 3"
        )
        fourth = reader.read(connection, NOW, Interest())
        later = next(row.cost for row in fourth.runs if row.run.run_id == "vit-b16-1")
        assert later is not None and later.lost_steps is not None and later.lost_steps > (again.lost_steps or 0)


def test_xids_count_for_a_day(filler: Filler, workspace: Workspace) -> None:
    filler.many_gpus(2)
    filler.xid(0, 31, "memory page fault", seconds_ago=XID_SECONDS + 5)
    filler.xid(1, 31, "memory page fault", seconds_ago=XID_SECONDS - 5)
    filler.xid(1, 31, "memory page fault")
    with closing(open_reader(workspace.database)) as connection:
        machine = SnapshotReader(workspace).read(connection, NOW, Interest()).machine
    assert dict(machine.xids) == {uuid(1): 2} and machine.queue_pause is None and not machine.quarantined


def test_the_queue_stands_in_the_order_in_which_it_is_served(filler: Filler, workspace: Workspace) -> None:
    for run_id, priority in (("a-1", 0), ("b-1", 5), ("c-1", 5)):
        filler.run(run_id, "queued", started_ago=None)
        filler.connection.execute("UPDATE runs SET priority = ? WHERE run_id = ?", (priority, run_id))
    with closing(open_reader(workspace.database)) as connection:
        runs = SnapshotReader(workspace).read(connection, NOW, Interest()).runs
    assert [row.run.run_id for row in runs] == ["b-1", "c-1", "a-1"]


def test_a_gpus_history_is_read_anew_only_with_a_new_bucket(
    filler: Filler, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    filler.many_gpus(1)
    reader = GpuPageReader()
    with closing(open_reader(workspace.database)) as connection:
        first = reader.read(connection, uuid(0), 600.0, NOW)
        same = reader.read(connection, uuid(0), 600.0, NOW + 0.5)
        later = reader.read(connection, uuid(0), 600.0, NOW + 6.0)
    assert first.history is same.history and later.history is not first.history
    assert first.leased_since == NOW and first.history is not None


async def test_procfs_is_read_by_the_feed_while_the_page_is_open(workspace: Workspace, filler: Filler) -> None:
    filler.overnight()
    feed = Feed(workspace, wall=an_hour_later)
    feed.start()
    app = GputuiApp(workspace, feed, feed.first(5.0))
    async with app.run_test(size=SMALL) as pilot:
        assert app.snapshot.processes is None
        await pilot.press("p")
        await pilot.pause()
        assert isinstance(app.screen, ProcessesScreen)
        await until(pilot, lambda: app.snapshot.processes is not None)
        assert "processes" in text(app, "total") and "777" in text(app, "body")
        await pilot.press("escape")
        await until(pilot, lambda: app.snapshot.processes is None)
    feed.stop()
