"""The checkpoints of a run's page: listed and checked in a thread."""

from __future__ import annotations

import zipfile
from pathlib import Path

from msgspec.structs import replace

from gputui.store import checkpoints
from gputui.ui.tui.data import run_details
from gputui.ui.tui.data.run_details import CheckpointQuery, CheckpointReader, LedgerFact
from gputui.ui.views.snapshot import Checkpoint, CheckpointList
from tests.homes import Home
from tests.ledgers import ledger_row


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def write(folder: Path, step: int, *, damaged: bool = False) -> Path:
    path = folder / f"step_{step}.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", b"weights" * 100)
    if damaged:
        content = bytearray(path.read_bytes())
        content[60] ^= 0xFF
        path.write_bytes(content)
    return path


def look(
    reader: CheckpointReader, folder: Path, to_check: str | None = None, facts: dict[str, LedgerFact] | None = None
) -> CheckpointList:
    query = CheckpointQuery(folder, "step_*.pt", to_check, facts or {})
    reader.read(query)
    reader.wait(60.0)
    return reader.read(query)


def test_the_newest_is_checked_and_the_others_when_asked(tmp_path: Path) -> None:
    paths = write(tmp_path, 100, damaged=True), write(tmp_path, 200)
    facts = {str(path): LedgerFact(step, 1, "", step) for path, step in zip(paths, (100, 200), strict=True)}
    clock = Clock()
    reader = CheckpointReader(clock)
    listing = look(reader, tmp_path, to_check=None, facts=facts)
    assert listing.is_known
    assert listing.count == 2
    assert [(checkpoint.step, checkpoint.is_valid) for checkpoint in listing.newest] == [(200, True), (100, None)]
    assert "CRC" in listing.newest[0].why
    assert listing.newest[0].size_bytes
    assert listing.newest[0].modified_at
    listing = look(reader, tmp_path, "step_100.pt", facts)
    assert listing.newest[1].is_valid is False
    assert "damaged" in listing.newest[1].why


def test_one_that_may_be_of_another_run_is_not_checked_in_place_of_the_own_one(tmp_path: Path) -> None:
    owned = write(tmp_path, 100)
    contested = write(tmp_path, 200)
    facts = {
        str(owned): LedgerFact(100, 1, "", 1),
        str(contested): LedgerFact(200, attempt=None, refused="may be of b-1", order=2, is_contested=True),
    }
    listing = look(CheckpointReader(Clock()), tmp_path, to_check=None, facts=facts)
    assert [(checkpoint.step, checkpoint.is_valid) for checkpoint in listing.newest] == [(200, None), (100, True)]
    assert [checkpoint.is_contested for checkpoint in listing.newest] == [True, False]


def test_one_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    write(tmp_path, 100)
    (tmp_path / "step_100.pt.sha256").mkdir()
    (checkpoint,) = look(CheckpointReader(Clock()), tmp_path, "step_100.pt").newest
    assert checkpoint.is_valid is None
    assert "not a regular file" in checkpoint.why


def test_what_comes_later_is_found_a_few_seconds_later(tmp_path: Path) -> None:
    clock = Clock()
    reader = CheckpointReader(clock)
    assert look(reader, tmp_path / "missing") == CheckpointList(is_known=True)
    write(tmp_path, 100)
    assert look(reader, tmp_path).count == 1
    write(tmp_path, 200)
    assert reader.read(CheckpointQuery(tmp_path, "step_*.pt")).count == 1  # listed a moment ago
    clock.now = run_details.LIST_SECONDS
    assert look(reader, tmp_path).newest[0].step == 200


def test_of_a_past_moment_only_what_was_there() -> None:
    listing = CheckpointList((Checkpoint("b", 2, 1, 20.0), Checkpoint("a", 1, 1, 10.0)), 5, is_known=True)
    then = listing.at(15.0, [Checkpoint("c", 1, 1, 12.0, is_gone=True)])
    assert [checkpoint.name for checkpoint in then.newest] == ["c", "a"]
    assert then.count == 5


def test_a_checkpoint_that_is_gone_or_written_again_was_there_in_the_past(home: Home) -> None:
    rows = [
        ledger_row(name, moment, step=moment) for name, moment in (("step_1.pt", 10), ("last.pt", 11), ("kept.pt", 12))
    ]
    gone = [replace(row, gone_at=40.0) for row in rows[:2]]
    home.run("a-1")
    checkpoints.save(home.connection, "a-1", (), rows)
    checkpoints.save(home.connection, "a-1", rows, (*gone, ledger_row("last.pt", 30), rows[2]))
    assert [row.name for row in checkpoints.of_run(home.connection, "a-1")] == ["kept.pt", "last.pt"]
    then = {at: [row[0] for row in checkpoints.gone_since(home.connection, "a-1", at)] for at in (10.5, 39.0, 40.0)}
    assert then == {10.5: ["/c/step_1.pt"], 39.0: ["/c/step_1.pt", "/c/last.pt"], 40.0: []}


def test_what_the_ledger_knows_wins_over_the_name(tmp_path: Path) -> None:
    path = write(tmp_path, 200)
    facts = {str(path): LedgerFact(190, 2, "was left by a rollback")}
    (checkpoint,) = look(CheckpointReader(Clock()), tmp_path, to_check=None, facts=facts).newest
    assert (checkpoint.step, checkpoint.attempt, checkpoint.refused) == (190, 2, "was left by a rollback")
