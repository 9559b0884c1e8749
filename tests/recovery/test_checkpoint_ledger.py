"""Checkpoints and lineages of training: the cases that went wrong, each with what decides them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from msgspec.structs import replace

from gputui.recovery.checkpoints import ledger, resumable
from gputui.recovery.checkpoints.choices import CheckpointChoice, choose
from gputui.recovery.checkpoints.ledger import UnsoundLoss
from gputui.recovery.checkpoints.resumable import AttemptSpan, Rows
from gputui.recovery.checkpoints.scans import FolderScan, after_scan
from gputui.recovery.kinds import KINDS
from gputui.runs.checkpoint_files import FoundCheckpoint
from gputui.runs.checkpoint_formats import CheckpointInfo
from gputui.store.checkpoints import CheckpointRow, Neighbour
from tests.ledgers import ledger_row
from tests.tables import table
from tests.texts import mentions


def span(number: int, base: str | None = None, last: int | None = 1, *, is_over: bool = True) -> AttemptSpan:
    begun = 100.0 * number
    ended_at = begun + 90.0 if is_over else None
    return AttemptSpan(number, begun, ended_at, resumed_from=base, last_step=last, has_worked=last is not None)


def file(name: str, content: str | None = None, *, at: float = 0.0, stamp: str = "") -> FoundCheckpoint:
    """A file in /c whose content is called as itself, dated as a false clock has it."""
    return FoundCheckpoint(f"/c/{name}", stamp or f"{name} {content}", 10, int(at * 1e9), content or name)


def scanned(
    rows: Sequence[CheckpointRow],
    *lying: FoundCheckpoint,
    attempts: Sequence[AttemptSpan] = (),
    writer: int | None = None,
    step_of: Callable[[CheckpointRow], int | None] = lambda row: row.step,
    intruder: Callable[[str], str | None] = lambda _: None,
    steps: tuple[int, int] = (-1, -1),
) -> Rows:
    """The ledger after a look; ``steps`` are those that the writer may have made between the two."""
    scan = FolderScan(
        now=1000.0, since=990.0, attempts=attempts, writer=writer, step_of=step_of, intruder=intruder,
        may_be_at=lambda _, step, __, ___: steps[0] <= step <= steps[1], folder=PurePath("/c"),
    )  # fmt: skip
    return after_scan(rows, lying, scan)


def usable(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> list[str]:
    return [row.name for row in resumable.candidates(rows, attempts)]


def whys(rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan]) -> dict[str, str]:
    return {row.name: why for row, why in resumable.refused(rows, attempts)}


ONE = [span(1, last=90)]
ALIVE = [span(1, is_over=False)]


SAME = {
    "copied": [file("step_20.pt"), file("step_40.pt"), file("best.pt", "step_20.pt")],
    "renamed": [file("best.pt", "step_20.pt"), file("step_40.pt")],
    "touched": [file("step_20.pt", stamp="new", at=9e9), file("step_40.pt")],
    "moved to where the other was": [file("step_40.pt", "step_20.pt")],
}


def chosen(
    rows: Sequence[CheckpointRow], attempts: Sequence[AttemptSpan], count: int = 1, **verdicts: str
) -> CheckpointChoice:
    def check(path: Path) -> CheckpointInfo:
        verdict = verdicts.get(path.stem, "whole")
        return CheckpointInfo(
            path, step=None, valid=verdict == "whole", why=f"is {verdict}", size_bytes=1,
            is_unknown=verdict == "unknown", is_unreadable=verdict in ("away", "gone"), is_missing=verdict == "gone",
        )  # fmt: skip

    return choose(rows, attempts, count, check, is_same=lambda _: True)


def names(choice: CheckpointChoice) -> list[str]:
    return [info.path.stem for info in choice.usable]


# --- scans ------------------------------------------------------------------------------------------------------------


def test_what_lay_there_at_the_start_is_nobodys_and_what_appears_in_its_life_is_the_attempts() -> None:
    rows = scanned((), file("step_90.pt", at=5e9))
    rows = scanned(rows, file("step_90.pt", at=5e9), file("step_10.pt", at=1.0), attempts=ALIVE, writer=1)
    assert {row.name: (row.origin, row.attempt) for row in rows} == {
        "step_90.pt": ("foreign", 0), "step_10.pt": ("run", 1),
    }  # fmt: skip
    assert usable(rows, ALIVE) == ["step_10.pt"]
    assert "before" in whys(rows, ALIVE)["step_90.pt"]
    rows = scanned(rows, *(file(row.name) for row in rows), file("later.pt"), attempts=ONE)
    assert "no attempt lived" in whys(rows, ONE)["later.pt"]


def test_the_order_is_that_in_which_they_were_seen_and_of_one_look_that_of_the_steps() -> None:
    files = [file("step_60.pt", at=9e9)]
    rows = scanned((), *files, attempts=ALIVE, writer=1)
    files += [file("step_90.pt", at=1.0), file("step_80.pt", at=5.0), file("step_70.pt", at=3.0)]
    rows = scanned(rows, *files, attempts=ALIVE, writer=1)
    assert usable(rows, ALIVE) == [f"step_{step}.pt" for step in (90, 80, 70, 60)]


@table("what", list(SAME))
def test_the_same_content_is_the_same_checkpoint(what: str) -> None:
    rows = scanned((), file("step_20.pt"), attempts=ALIVE, writer=1)
    rows = scanned(rows, file("step_20.pt"), file("step_40.pt"), attempts=ALIVE, writer=1)
    for writer, attempts in ((1, ALIVE), (None, ONE)):
        after = scanned(rows, *SAME[what], attempts=attempts, writer=writer)
        present = {row.content: (row.place, row.attempt, row.step) for row in after if row.gone_at is None}
        assert present["step_20.pt"] == (1, 1, 20)
        assert present.get("step_40.pt", (2, 1, 40)) == (2, 1, 40)
        struck = tuple(replace(row, verdict="struck", why="was bad") for row in rows)
        assert usable(scanned(struck, *SAME[what], attempts=attempts, writer=writer), attempts) == []


def test_what_is_gone_is_recognized_when_it_comes_back() -> None:
    rows = scanned((), file("a.pt"), file("b.pt"), attempts=ALIVE, writer=1)
    rows = scanned(rows, file("b.pt"), attempts=ALIVE, writer=1)
    assert [row.name for row in rows if row.gone_at is not None] == ["a.pt"]
    rows = scanned(rows, file("b.pt"), file("a.pt"), attempts=ONE)
    assert usable(rows, ONE) == ["b.pt", "a.pt"]
    # Where no recorded file is there, the file system may be unmounted. One that has another name shows that it is not.
    assert usable(scanned(rows, attempts=ONE), ONE) == ["b.pt", "a.pt"]
    assert usable(scanned(rows, file("c.pt"), attempts=ONE), ONE) == ["b.pt", "a.pt"]
    assert usable(scanned(rows, file("best.pt", "a.pt"), attempts=ONE), ONE) == ["best.pt"]


@table("order", [1, -1])
def test_a_copy_of_what_has_stopped_growing_has_too(order: int) -> None:
    rows = scanned((), file("a.pt"), attempts=ALIVE, writer=1)
    rows = scanned(rows, file("best.pt", "a.pt"), attempts=ALIVE, writer=1)
    assert {row.name: row.is_settled for row in rows} == {"a.pt": False, "best.pt": True}
    rows = scanned(rows[::order], file("best.pt", "a.pt"), file("copy.pt", "a.pt"), attempts=ONE)
    assert {row.name: row.is_settled for row in rows if row.gone_at is None} == {"best.pt": True, "copy.pt": True}


@table(("steps", "expected"), [((8, 12), ["step_10.pt"]), ((30, 40), []), ((-1, -1), [])])
def test_deterministic_training_saves_the_same_content_anew(steps: tuple[int, int], expected: list[str]) -> None:
    attempts = [span(1), span(2, is_over=False)]
    rows = scanned((), file("step_10.pt"), attempts=[span(1, is_over=False)], writer=1)
    assert usable(scanned(rows, file("step_10.pt"), attempts=attempts, writer=2, steps=steps), attempts) == []
    rows = scanned(rows, file("step_10.pt", stamp="written"), attempts=attempts, writer=2, steps=steps)
    assert usable(rows, attempts) == expected


def test_what_a_rollback_or_a_person_left_may_be_saved_again_with_the_same_content() -> None:
    attempts = [ONE[0], span(2, "/c/step_10.pt", is_over=False)]
    rows = scanned((), file("step_10.pt"), file("step_20.pt"), attempts=ALIVE, writer=1)
    for ledger_rows in (
        ledger.rolled_back(rows, "/c/step_10.pt", "was left by a rollback"),
        ledger.chosen_by_person(rows, ONE, file("step_10.pt"), 10, 900.0),
    ):
        ledger_rows = ledger.attempt_begins(ledger_rows, ONE, 2, "/c/step_10.pt")
        assert usable(ledger_rows, attempts) == ["step_10.pt"]
        assert "left" in whys(ledger_rows, attempts)["step_20.pt"]
        again = [file("step_10.pt"), file("step_20.pt", stamp="written", at=995.0)]
        after = scanned(ledger_rows, *again, attempts=attempts, writer=2, steps=(18, 22))
        assert usable(after, attempts) == ["step_20.pt", "step_10.pt"]
        assert usable(scanned(after, *again, attempts=attempts, writer=2), attempts) == ["step_20.pt", "step_10.pt"]
        # A file that was only touched, one that was not saved again and one that held a NaN stay struck off.
        touched = file("step_20.pt", stamp="written", at=5.0)
        assert usable(
            scanned(ledger_rows, again[0], touched, attempts=attempts, writer=2, steps=(18, 22)), attempts
        ) == ["step_10.pt"]
        assert usable(scanned(ledger_rows, *again, attempts=attempts, writer=2, steps=(1, 9)), attempts) == [
            "step_10.pt"
        ]
        struck = [replace(row, verdict="struck") if row.step == 20 else row for row in ledger_rows]
        assert usable(scanned(struck, *again, attempts=attempts, writer=2, steps=(18, 22)), attempts) == ["step_10.pt"]


def test_what_is_written_over_a_place_that_a_person_named_is_not_the_attempts() -> None:
    theirs = file("x.pt")._replace(path="/other/x.pt")
    rows = ledger.chosen_by_person((), ONE, theirs, 30, 900.0)
    attempts = [*ONE, span(2, "/other/x.pt", is_over=False)]
    assert usable(rows, attempts) == ["x.pt"]
    rows = scanned(rows, theirs._replace(content="y", stamp="y"), attempts=attempts, writer=2)
    assert usable(rows, attempts) == []
    assert resumable.lost_choice(rows, attempts) is not None


def test_slots_that_are_rotated_keep_what_is_known_of_each() -> None:
    rows = scanned((), file("0", "a"), attempts=ALIVE, writer=1)
    rows = scanned(rows, file("0", "b"), file("1", "a"), attempts=ALIVE, writer=1)
    rows = tuple(replace(row, verdict="struck") if row.content == "b" else row for row in rows)
    rows = scanned(rows, file("1", "b"), file("2", "a"), attempts=ALIVE, writer=1)
    assert {row.name: row.verdict for row in rows if row.gone_at is None} == {"1": "struck", "2": "unexamined"}
    assert usable(rows, ALIVE) == ["2"]


@table(("content", "expected"), [("x 1\ny 2", ["b"]), ("x 1\ny 9", ["a", "b"]), ("x 1\ny 2\nz 3\nw 4", ["a", "b"])])
def test_a_folder_that_is_being_deleted_is_no_new_checkpoint(content: str, expected: list[str]) -> None:
    rows = scanned((), file("a", "x 1\ny 2\nz 3"), file("b"), attempts=ALIVE, writer=1)
    after = scanned(rows, file("a", content), file("b"), attempts=ALIVE, writer=1)
    assert usable(after, ALIVE) == expected


def test_what_another_run_may_have_written_is_named_where_nothing_else_is_left() -> None:
    doubt_text = "may be of job-2, which had the same folder"
    rows = scanned((), file("s10.pt"), attempts=ALIVE, writer=1)
    rows = scanned(rows, file("s10.pt"), file("s20.pt"), attempts=ALIVE, writer=1, intruder=lambda _: doubt_text)
    choice = chosen(rows, ONE)
    assert names(choice) == ["s10"]
    assert choice.doubted is None
    doubt = chosen([row for row in rows if row.name == "s20.pt"], ONE)
    assert doubt.usable == ()
    assert mentions(doubt.doubted or "", "s20.pt", "job-2")


@table(("folder", "pattern", "may"), [
    ("/c", "*", True), ("/c/sub", "*", True), ("/", "*", False), ("/", "*/*", True), ("/d", "**/*", False),
])  # fmt: skip
def test_whose_folder_is_shared(folder: str, pattern: str, may: bool) -> None:
    assert Neighbour("job-2", folder, pattern).may_have_written("/c/sub/x.pt", "/c") is may


# --- what attempts do -------------------------------------------------------------------------------------------------


@table(("kind", "loss", "expected"), [
    # The last sound step is 57, and step_58 was saved before the first bad line.
    ("killed", UnsoundLoss(60, {1: (57, 9.0)}, {1: 50, 2: 58, 3: 60}), ["step_50.pt"]),
    (None, UnsoundLoss(60, {1: (57, 9.0)}, {1: 50, 2: 58, 3: 60}), ["step_50.pt"]),
    ("nan_loss", UnsoundLoss(60, {}, {1: 50, 2: 58, 3: 60}), ["step_60.pt", "step_58.pt", "step_50.pt"]),
    # Where file names have no step, whatever appeared since the last sound line may be bad.
    ("user_exception", UnsoundLoss(60, {1: (57, 2.5)}), ["step_50.pt"]),
    ("user_exception", UnsoundLoss(60, {1: (57, 1.0)}, {1: 50}), ["step_50.pt"]),
    ("killed", UnsoundLoss(0, {1: (-1, 0.0)}, {1: 50, 2: 58, 3: 60}), []),
    ("killed", None, ["step_60.pt", "step_58.pt", "step_50.pt"]),
])  # fmt: skip
def test_what_was_saved_since_the_loss_went_wrong_is_struck_off_whatever_it_ended_by(
    kind: str | None, loss: UnsoundLoss | None, expected: list[str]
) -> None:
    rows = [ledger_row(f"step_{step}.pt", place, step=step) for place, step in ((1, 50), (2, 58), (3, 60))]
    assert usable(ledger.attempt_ended(rows, ONE, 1, kind, loss), ONE) == expected


def test_a_loss_that_is_bad_from_the_first_line_may_have_come_with_the_checkpoint() -> None:
    attempts = [span(1, last=70), span(2, "/c/step_75.pt", last=80)]
    rows = [ledger_row("step_70.pt", 1, step=70), ledger_row("step_75.pt", 2, step=75, base_of=2)]
    from_the_start = UnsoundLoss(76, {1: (70, 9.0), 2: (-1, 0.0)}, {1: 70, 2: 75})
    assert usable(ledger.attempt_ended(rows, attempts, 2, "killed", from_the_start), attempts) == ["step_70.pt"]
    later = UnsoundLoss(78, {2: (77, 9.0)}, {1: 70, 2: 75})
    assert usable(ledger.attempt_ended(rows, attempts, 2, "killed", later), attempts) == ["step_75.pt", "step_70.pt"]


def test_a_person_resumes_from_where_a_rollback_went_back_to() -> None:
    rows: Sequence[CheckpointRow] = [ledger_row(f"step_{step}.pt", step, step=step) for step in (20, 40, 90)]
    rows = ledger.rolled_back(rows, "/c/step_20.pt", "was left by a rollback")
    rows = ledger.attempt_begins(rows, ONE, 2, "/c/step_20.pt")
    attempts = [*ONE, span(2, "/c/step_20.pt", last=67)]
    rows = [*rows, ledger_row("step_60.pt", 91, 2, step=60)]
    assert usable(rows, attempts) == ["step_60.pt", "step_20.pt"]
    assert whys(rows, attempts).keys() == {"step_90.pt", "step_40.pt"}


def test_a_checkpoint_from_which_no_step_was_made_is_passed_over() -> None:
    attempts = [*ONE, span(2, "/c/step_40.pt", last=None)]
    rows: Sequence[CheckpointRow] = [ledger_row("step_30.pt", 1), ledger_row("step_40.pt", 2)]
    rows = ledger.attempt_begins(rows, ONE, 2, "/c/step_40.pt")
    doubted = ledger.attempt_ended(rows, attempts, 2, "user_exception")
    assert usable(doubted, attempts) == ["step_30.pt", "step_40.pt"]
    assert mentions(whys(doubted, attempts)["step_40.pt"], "before its first step")
    assert usable(ledger.attempt_ended(rows, attempts, 2, "corrupt_checkpoint"), attempts) == ["step_30.pt"]
    # Once an attempt made steps from the older checkpoint, the newer one is struck off for good.
    rows = ledger.attempt_begins(doubted, attempts, 3, "/c/step_30.pt")
    assert usable(rows, [*attempts, span(3, "/c/step_30.pt", last=None)])[0] == "step_30.pt"
    assert usable(rows, [*attempts, span(3, "/c/step_30.pt", last=35)]) == ["step_30.pt"]


@table("kind", [kind.name for kind in KINDS.values() if not kind.may_be_checkpoint])
def test_what_never_came_to_its_checkpoint_does_not_count_against_it(kind: str) -> None:
    attempts = [*ONE, span(2, "/c/step_40.pt", last=None)]
    rows = ledger.attempt_begins([ledger_row("step_30.pt"), ledger_row("step_40.pt", 2)], ONE, 2, "/c/step_40.pt")
    assert usable(ledger.attempt_ended(rows, attempts, 2, kind), attempts)[0] == "step_40.pt"


def test_a_person_names_one_of_another_training() -> None:
    rows: Sequence[CheckpointRow] = [
        ledger_row("step_40.pt"), ledger_row("theirs.pt", 2, content="theirs.pt", origin="foreign", why="was there"),
    ]  # fmt: skip
    rows = ledger.chosen_by_person(rows, ONE, file("theirs.pt"), 7, 900.0)
    assert usable(rows, ONE) == ["theirs.pt"]
    # What the attempt writes counts as newer; if that cannot be resumed, the named checkpoint is the next candidate.
    attempts = [*ONE, span(2, "/c/theirs.pt")]
    rows = [*rows, ledger_row("step_10.pt", 9, 2)]
    assert usable(rows, attempts) == ["step_10.pt", "theirs.pt"]
    assert usable(rows, [*attempts, span(3)]) == []
    gone = [replace(row, gone_at=1.0) if row.origin == "named" else row for row in rows if row.attempt == 1]
    assert mentions(chosen(gone, ONE).unreadable, "theirs.pt", "gone")


# --- choosing ---------------------------------------------------------------------------------------------------------


@table(("verdicts", "count", "settled", "expected"), [
    ({"s40": "damaged", "s30": "unknown"}, 1, True, ["s20", "s30"]),
    ({"s40": "unknown", "s30": "unknown", "s20": "unknown", "s10": "unknown"}, 1, True, ["s40", "s30", "s20", "s10"]),
    ({"s40": "unknown"}, 1, False, ["s30"]),
    # Starting from the beginning would lose more than one attempt that fails to load an unsettled checkpoint.
    ({"s40": "unknown", "s30": "unknown", "s20": "unknown", "s10": "unknown"}, 1, False, ["s40"]),
    ({}, 3, True, ["s40", "s30", "s20"]),
])  # fmt: skip
def test_the_newest_that_is_whole_is_taken_and_a_format_that_cannot_be_checked_after_it(
    verdicts: dict[str, str], count: int, settled: bool, expected: list[str]
) -> None:
    rows = [replace(ledger_row(f"s{step}.pt", step), is_settled=settled) for step in (10, 20, 30, 40)]
    # A copy counts as the same checkpoint.
    rows.append(replace(rows[3], path="/c/best.pt"))
    choice = chosen(rows, ONE, count, **verdicts, **({"best": verdicts["s40"]} if "s40" in verdicts else {}))
    assert [name if name != "best" else "s40" for name in names(choice)] == expected
    unsettled = [info for info in choice.refused if verdicts.get(info.path.stem) == "unknown"]
    assert settled or all("half-written" in info.why for info in unsettled)


def test_what_cannot_be_read_now_is_told_from_what_is_gone() -> None:
    rows = [ledger_row("s10.pt")]
    assert chosen(rows, ONE, s10="gone").unreadable is None
    assert chosen(rows, ONE, s10="away").unreadable == "s10.pt is away"


def test_the_files_of_all_ranks_are_one_checkpoint() -> None:
    rows = [ledger_row(f"step_{step}_rank{rank}.pt", step + rank) for step in (10, 20) for rank in (0, 1)]
    assert names(chosen(rows, ONE, 9)) == ["step_20_rank1", "step_10_rank1"]
    choice = chosen(rows, ONE, 9, step_20_rank0="empty")
    assert names(choice) == ["step_10_rank1"]
    assert mentions(choice.refused[0].why, "step_20_rank0.pt", "empty")
    struck = [replace(row, verdict="struck", why="was bad") if row.name == "step_20_rank1.pt" else row for row in rows]
    assert names(chosen(struck, ONE, 9)) == ["step_10_rank1"]
    assert mentions(whys(struck, ONE)["step_20_rank0.pt"], "step_20_rank1.pt", "was bad")


def test_the_newest_that_a_run_wrote_is_none_that_another_run_may_have_written() -> None:
    written = ledger_row("a.pt", 1)
    contested = ledger_row("b.pt", 2, origin="contested", why="may be of b-1")
    assert resumable.newest_own((written, contested)) == written
    assert resumable.newest_own((contested,)) is None
    assert mentions(resumable.seen_checkpoints_sentence((written, contested)), "2 seen", "a.pt", "attempt 1")
    assert mentions(resumable.seen_checkpoints_sentence((contested,)), "1 seen", "b.pt", contested.why)
    older = ledger_row("c.pt", 1, origin="foreign", why="was there before")
    assert resumable.own_words((older,)) == "none of its own"
