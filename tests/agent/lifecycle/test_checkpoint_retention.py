"""``checkpoints: {keep: …}``: what is removed while a run goes on well, and never what a resume needs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path, PurePath

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.agent.lifecycle.checkpoint_retention import CheckpointRetention
from gputui.core.config import Workspace, locate
from gputui.recovery.checkpoints import ledger
from gputui.recovery.checkpoints.choices import choose
from gputui.runs.spec import RunSpec
from gputui.runs.stored_spec import spec_of
from gputui.store import checkpoints
from gputui.store.events import read_events
from gputui.store.rows import update
from tests.agent.lifecycle.checkpoint_home import CheckpointHome
from tests.conftest import wait_until
from tests.homes import add_line, add_run

GOES_ON = {"policy": "restart-only"}
"""A policy that goes over no checkpoint."""

ACTIONS = ["save"] * 4 + ["damaged"] * 2 + ["nan"] * 2 + ["prune"] * 3 + ["fail", "back", "again"]


class KeptHome(CheckpointHome):
    """A home whose run keeps some of its checkpoints."""

    def keeps(self, keep: int | None, best: str | None = None, recovery: dict[str, object] = GOES_ON) -> None:
        spec = spec_of(self.run_of())
        assert spec.checkpoints is not None
        changed = replace(spec, checkpoints=replace(spec.checkpoints, keep=keep, keep_best=best), recovery=recovery)
        self.connection.execute("UPDATE runs SET spec = ?", (json.dumps(changed.to_json()),))
        self.retention = CheckpointRetention(self.services)

    def begin_from(self, number: int, path: str | None) -> None:
        """Begin an attempt of the run, which may have ended: from a checkpoint, or from the start."""
        update(self.connection, "runs", {"run_id": "a-1"}, state="running", ended_at=None)
        self.begin(number, path)

    def prune(self) -> None:
        """Let the agent look at the run after a scan, until it has removed what it will."""
        self.retention.note_scan("a-1")
        self.retention.poll()
        wait_until(lambda: all(job.is_over for _, job in self.retention.jobs.values()), what="the removal")
        self.retention.poll()

    def saves(self, *steps: int, metric: str = "loss", values: dict[int, float] | None = None) -> None:
        """Save at each step after a line of it, with a scan each."""
        for step in steps:
            self.step(step)
            if values is not None:
                self.report(step, metric, values[step])
            self.save(f"step_{step}.pt")
            self.now += 5.0
            self.scan()

    def report(self, step: int, metric: str, value: float) -> None:
        """A line with another metric."""
        add_line(self.connection, step, self.now, {"step": step, metric: value}, attempt=self.run_of().attempt)
        self.connection.execute("UPDATE metric_sources SET byte_offset = (SELECT count(*) FROM metrics)")

    def end_well(self) -> None:
        self.end(None)
        self.connection.execute("UPDATE runs SET state = 'succeeded', ended_at = ? WHERE run_id = 'a-1'", (self.now,))

    def files(self) -> list[str]:
        return sorted((path.name for path in self.folder.iterdir()), key=lambda name: int(name.split("_")[1][:-3]))


@pytest.fixture
def home(workspace: Workspace) -> Iterator[KeptHome]:
    with closing(KeptHome(workspace)) as home:
        home.keeps(2)
        home.begin_from(1, None)
        yield home


def lineage(folder: Path, actions: list[str], *, keeps: int | None, rollback: int) -> list[list[str]]:
    """What could be resumed from at the end of each attempt, the best first, as many as a decision may
    want: the ladder goes back once, and again only after a save."""
    workspace = locate(folder, {})
    workspace.create()
    home = KeptHome(workspace)
    # Nothing of this store needs to survive a crash.
    home.connection.execute("PRAGMA synchronous = OFF")
    ladders = {"nan_loss": [{"rollback": rollback}]}
    home.keeps(keeps, recovery={"policy": "restart-only", "ladders": ladders})
    number = 1
    step = 0
    left_to_go_back = rollback
    home.begin_from(number, None)
    home.connection.execute("UPDATE runs SET state = 'running'")
    choices = []
    for action in [*actions, "fail"]:
        if action in ("save", "damaged", "nan"):
            step += 10
            left_to_go_back = rollback
            nan_from = 0 if action == "nan" else 1 << 60
            home.step(*range(step - 9, step + 1), nan_from=nan_from)
            home.save(f"step_{step}.pt", b"PK\x03\x04 cut short" if action == "damaged" else None)
            home.now += 5.0
            home.scan()
        elif action == "prune":
            home.prune()
        else:
            home.end("nan_loss" if action == "back" else "killed")
            search = home.search()
            usable = choose(search.rows, search.attempts, 1 + rollback, folder=search.folder).usable
            choices.append([info.path.name for info in usable[: 1 + left_to_go_back]])
            back = left_to_go_back if action == "back" else 0
            left_to_go_back -= back
            base = None if action == "again" or len(usable) <= back else usable[back]
            if base is not None and back:
                rows = ledger.rolled_back(search.rows, str(base.path), "was left by a rollback")
                checkpoints.save(home.connection, "a-1", search.rows, rows)
            number += 1
            path = None if base is None else str(base.path)
            home.begin_from(number, path)
            home.connection.execute("UPDATE runs SET state = 'running'")
            step = 0 if base is None else int(PurePath(base.path).stem.split("_")[1])
    home.connection.close()
    return choices


def test_the_newest_stay_and_one_that_may_be_incomplete(home: KeptHome) -> None:
    home.saves(10, 20, 30, 40)
    home.prune()
    assert home.files() == ["step_20.pt", "step_30.pt", "step_40.pt"]
    home.end_well()
    home.prune()
    assert home.files() == ["step_30.pt", "step_40.pt"], "the last one counts when it is over"
    kinds = [event.kind for event in read_events(home.connection, "a-1")]
    assert kinds == ["checkpoints_pruned"], "said once"
    names = [PurePath(row.path).name for row in checkpoints.of_run(home.connection, "a-1")]
    assert names == ["step_30.pt", "step_40.pt"], "the ledger knows"


def test_nothing_is_removed_without_the_key(home: KeptHome) -> None:
    home.keeps(None)
    home.saves(10, 20, 30, 40)
    home.prune()
    assert len(home.files()) == 4


def test_damaged_ones_do_not_count(home: KeptHome) -> None:
    home.saves(10, 20)
    for step in (30, 40, 50):
        home.step(step)
        home.save(f"step_{step}.pt", b"PK\x03\x04 cut short")
        home.scan()
    home.prune()
    assert {"step_10.pt", "step_20.pt"} <= set(home.files())


def test_what_the_policy_may_go_back_over_stays(home: KeptHome) -> None:
    home.keeps(1, recovery={"policy": "standard", "ladders": {"nan_loss": [{"rollback": 3}]}})
    home.saves(*range(10, 90, 10))
    home.prune()
    assert home.files() == [f"step_{step}.pt" for step in (40, 50, 60, 70, 80)]
    home.end_well()
    home.prune()
    assert home.files() == ["step_80.pt"], "what has succeeded goes back over nothing"


def test_nothing_is_removed_while_the_loss_is_no_number_or_a_recovery_is_decided(home: KeptHome) -> None:
    home.saves(10, 20, 30)
    home.step(40, 50, nan_from=40)
    home.save("step_50.pt")
    home.scan()
    home.prune()
    assert len(home.files()) == 4
    home.step(60)
    home.connection.execute("UPDATE runs SET state = 'recovering'")
    home.prune()
    assert len(home.files()) == 4


def test_what_a_waiting_run_names_stays(home: KeptHome) -> None:
    spec = RunSpec(
        name="b", launcher="python", program=("x.py",), python="/p", workdir=str(home.folder),
        params={"weights": "step_10.pt", "out": str(home.folder)}, args=(f"--init={home.folder}/step_20.pt",),
    )  # fmt: skip
    add_run(home.connection, "b-1", spec=spec)
    home.saves(*range(10, 80, 10))
    home.end_well()
    home.prune()
    assert home.files() == [f"step_{step}.pt" for step in (10, 20, 60, 70)]


@pytest.mark.parametrize(("metric", "best"), [("val/loss", 30), ("val/accuracy", 20)])
def test_the_best_by_a_metric_stays(home: KeptHome, metric: str, best: int) -> None:
    home.keeps(2, metric)
    values = {10: 0.5, 20: 0.9, 30: 0.1, 40: 0.4, 50: 0.3, 60: 0.2}
    home.saves(*values, metric=metric, values=values)
    home.end_well()
    home.prune()
    assert home.files() == [f"step_{step}.pt" for step in (best, 50, 60)]


def test_files_of_others_stay(home: KeptHome) -> None:
    theirs = home.save("step_1.pt")
    home.connection.execute("UPDATE runs SET state = 'succeeded'")
    home.keeps(1)
    home.begin_from(2, None)
    home.saves(10, 20, 30)
    home.end_well()
    home.prune()
    assert theirs.exists()
    assert home.files() == ["step_1.pt", "step_30.pt"]


# --- any history ------------------------------------------------------------------------------------------------------


# Three hundred histories take two minutes, most of it for syncing files.
@pytest.mark.timeout(900)
@given(st.lists(st.sampled_from(ACTIONS), min_size=6, max_size=30), st.integers(1, 3), st.integers(1, 2))
@example([*["save"] * 3, *["damaged"] * 3, "prune"], 1, 1)
@example([*["save"] * 4, "prune", "back"], 1, 2)
@example([*["save"] * 3, *["nan"] * 4, "prune", "save"], 1, 1)
def test_no_history_loses_what_a_resume_would_have_had(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], keeps: int, rollback: int
) -> None:
    home = tmp_path_factory.mktemp("home")
    with_keep = lineage(home / "keep", actions, keeps=keeps, rollback=rollback)
    assert with_keep == lineage(home / "all", actions, keeps=None, rollback=rollback)
