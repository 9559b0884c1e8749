"""Which checkpoint belongs to which course of training: the cases that went wrong, each with what decides them."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery.checkpoint_contents import has_same_content, steps_inside
from gputui.recovery.checkpoint_scan import ScanContext, StepAt, after_scan
from gputui.recovery.checkpoint_search import choose
from gputui.recovery.checkpoint_words import checkpoints_sentence, checkpoints_shape
from gputui.recovery.checkpoints import CheckpointInfo, measured
from gputui.recovery.ledger_inputs import AttemptSpan, FoundCheckpoint, NumericTrouble, Rows
from gputui.store.checkpoints import CheckpointRow, Neighbour
from tests.texts import mentions

SECOND = 10**9


def span(
    number: int, begun: float, ended: float | None = None, base: str | None = None, last: int | None = 1
) -> AttemptSpan:
    return AttemptSpan(number, begun, ended, base, last, last is not None)


def found(name: str, at: float, size: int = 10) -> FoundCheckpoint:
    return FoundCheckpoint(f"/c/{name}", int(at * SECOND), size)


def no_steps(_attempt: int, _at: float) -> int | None:
    return None


def enter(
    rows: Rows, *lying: FoundCheckpoint, attempts: list[AttemptSpan], now: float = 1000.0, **more: object
) -> Rows:
    context = ScanContext(
        attempts=attempts,
        now=now,
        recorded_step=no_steps,
        folder=Path("/c"),
        **more,  # type: ignore[arg-type]
    )
    return after_scan(rows, lying, context)


def usable(rows: Rows, attempts: list[AttemptSpan]) -> list[str]:
    return [row.name for row in ledger.candidates(rows, attempts)]


def whys(rows: Rows, attempts: list[AttemptSpan]) -> dict[str, str]:
    return {row.name: why for row, why in ledger.refused(rows, attempts)}


# --- entering ---------------------------------------------------------------------------------------------------------


def test_what_lay_there_before_is_foreign_and_what_an_attempt_wrote_is_its_own() -> None:
    attempts = [span(1, 100.0, 200.0)]
    rows = enter((), found("step_90.pt", 50.0), found("step_10.pt", 150.0), attempts=attempts)
    assert {row.name: (row.origin, row.attempt, row.step) for row in rows} == {
        "step_90.pt": ("foreign", 1, 90),
        "step_10.pt": ("run", 1, 10),
    }
    assert usable(rows, attempts) == ["step_10.pt"]
    assert "before" in whys(rows, attempts)["step_90.pt"]


def test_what_appears_between_two_attempts_is_foreign() -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, "/c/step_10.pt")]
    rows = enter(
        (), found("step_10.pt", 150.0), found("step_60.pt", 250.0), found("step_20.pt", 402.0), attempts=attempts
    )
    assert usable(rows, attempts) == ["step_20.pt", "step_10.pt"]


def test_the_step_is_that_of_the_metrics_when_it_was_written() -> None:
    attempts = [span(1, 100.0, 200.0)]
    context = ScanContext(attempts=attempts, now=1000.0, recorded_step=lambda number, at: int(number * at))
    rows = after_scan((), [found("step_5000.pt", 150.0)], context)
    assert rows[0].step == 150


def test_a_bare_number_is_no_step_where_the_attempt_has_other_steps() -> None:
    attempts = [span(1, 100.0, 200.0)]
    assert attempts[0].last_step is not None

    def step_of(name: str, latest: int | None) -> int | None:
        context = ScanContext(
            attempts=attempts, now=1000.0, recorded_step=no_steps, latest_step=lambda _, __: latest, folder=Path("/c")
        )
        return after_scan((), [found(name, 150.0)], context)[0].step

    assert (step_of("model_7.pth", None), step_of("step_7.pth", None), step_of("step_7/model.pt", None)) == (None, 7, 7)
    # Saved before the first line, which is of step 100.
    assert (step_of("model_50.pth", 99), step_of("model_700.pth", 99)) == (50, None)


def test_where_lines_are_read_after_the_file_was_written_its_name_or_content_tells_the_step() -> None:
    """A line without a time has that at which it was read: at the file's own time only step 93 was known."""
    attempts = [span(1, 100.0, 200.0)]

    def step_of(name: str, *inside: int) -> int | None:
        context = ScanContext(
            attempts=attempts,
            now=1000.0,
            recorded_step=lambda _, at: 93 if at <= 150.0 else 104,
            steps_inside=lambda _: inside,
        )
        rows = after_scan((), [found(name, 150.0)], context)
        return rows[0].step

    assert (step_of("step_100.pt"), step_of("step_5000.pt"), step_of("step_50.pt")) == (100, 93, 93)
    assert (step_of("ckpt.pt"), step_of("ckpt.pt", 100, 7, 5000), step_of("ckpt.pt", 105)) == (93, 100, 105)
    assert step_of("ckpt.pt", 92) == 93


def test_the_steps_inside_a_checkpoint_are_read_without_loading_it(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "loaded"),)

    states = {"state": {0: {"step": 300}}, "iter_num": 70_000, "epoch": 3, "best": Bomb()}
    for protocol in (2, 4):
        path = tmp_path / f"ckpt-{protocol}.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("ckpt/data.pkl", pickle.dumps(states, protocol))
            archive.writestr("ckpt/data/0", bytes(8))
        assert steps_inside(path) == {300, 70_000}
    (tmp_path / "other").write_bytes(b"PK\x03\x04 cut short")
    assert steps_inside(tmp_path / "other") == steps_inside(tmp_path / "none") == frozenset()
    assert not (tmp_path / "loaded").exists()


def test_a_file_that_is_written_again_is_another_one() -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, None, None)]
    rows = enter((), found("last.pt", 150.0), attempts=attempts[:1])
    rows = tuple(replace(row, verdict="struck", why="was bad") for row in rows)
    assert usable(rows, attempts) == []
    rows = enter(rows, found("last.pt", 350.0), attempts=attempts)
    assert [(row.attempt, row.verdict) for row in rows] == [(2, "unexamined")]
    assert usable(rows, attempts) == ["last.pt"]


def steps_of(*since: tuple[int, float, int]) -> StepAt:
    """A step a second of each attempt: (its number, when it began, the step it began from)."""
    begun = {number: (at, step) for number, at, step in since}

    def step_at(number: int, at: float) -> int | None:
        began, step = begun[number]
        return None if at < began else step + int(at - began)

    return step_at


def test_what_was_struck_off_does_not_come_back_by_a_touch() -> None:
    step_at = steps_of((1, 100.0, 0), (2, 200.0, 10))
    first = [span(1, 100.0, 140.0, last=40)]
    lying = [found("step_10.pt", 110.0), found("step_30.pt", 130.0)]
    rows = after_scan((), lying, ScanContext(attempts=first, now=140.0, recorded_step=step_at))
    rows = ledger.attempt_ended(rows, first, 1, "nan_loss", 20)
    both = [*first, span(2, 200.0, base="/c/step_10.pt")]
    rows = ledger.attempt_begins(rows, first, 2, "/c/step_10.pt")
    touched = [lying[0], found("step_30.pt", 205.0)]
    rows = after_scan(rows, touched, ScanContext(attempts=both, now=206.0, recorded_step=step_at, latest_step=step_at))
    assert usable(rows, both) == ["step_10.pt"] and "trouble" in whys(rows, both)["step_30.pt"]
    # Once the attempt comes to that step it writes its own.
    lying = [lying[0], found("step_30.pt", 220.0)]
    rows = after_scan(rows, lying, ScanContext(attempts=both, now=221.0, recorded_step=step_at, latest_step=step_at))
    assert usable(rows, both) == ["step_30.pt", "step_10.pt"]
    assert [(row.attempt, row.step) for row in rows if row.name == "step_30.pt"] == [(2, 30)]


def test_a_name_that_another_training_used_is_written_again_before_the_second_line() -> None:
    """One line does not tell how far the attempt has come: what it wrote since is its own, not a touched file."""
    attempts = [span(1, 200.0, 240.0)]
    step_at = steps_of((1, 201.0, 1))
    rows = enter((), found("step_000005.pt", 110.0), attempts=[], now=120.0)
    lying = [found("step_000005.pt", 220.0)]
    rows = after_scan(
        rows,
        lying,
        ScanContext(attempts=attempts, now=240.0, recorded_step=lambda number, at: step_at(number, min(at, 201.0))),
    )
    assert usable(rows, attempts) == ["step_000005.pt"]


def test_a_folder_whose_deletion_was_cut_short_is_not_the_newest() -> None:
    step_at = steps_of((1, 100.0, 0))
    attempts = [span(1, 100.0, last=33)]
    lying = [found("checkpoint-10", 110.0, 50), found("checkpoint-30", 130.0, 50)]
    rows = after_scan((), lying, ScanContext(attempts=attempts, now=131.0, recorded_step=step_at))
    rows = after_scan(
        rows,
        [found("checkpoint-10", 133.0, 20), lying[1]],
        ScanContext(attempts=attempts, now=134.0, recorded_step=step_at),
    )
    assert usable(rows, attempts) == ["checkpoint-30"] and "step 33" in whys(rows, attempts)["checkpoint-10"]


def test_a_copy_of_what_was_there_before_the_restart_is_not_of_the_new_training(tmp_path: Path) -> None:
    last, copy, own = tmp_path / "last.pt", tmp_path / "last_prev.pt", tmp_path / "first.pt"
    for path, text in ((last, "old"), (copy, "old"), (own, "new")):
        path.write_text(text)
    lying = [FoundCheckpoint(str(path), at * SECOND, 3) for path, at in ((last, 130), (copy, 201), (own, 202))]
    first = [span(1, 100.0, 140.0, last=40)]
    both = [*first, span(2, 200.0, last=5)]
    step_at = steps_of((1, 100.0, 0), (2, 205.0, 0))
    rows = after_scan((), lying[:1], ScanContext(attempts=first, now=140.0, recorded_step=step_at))

    def same(one: str, other: str) -> bool:
        return has_same_content(Path(one), Path(other))

    rows = after_scan(rows, lying, ScanContext(attempts=both, now=210.0, recorded_step=step_at, has_same_content=same))
    assert usable(rows, both) == ["first.pt"] and "copy of last.pt" in whys(rows, both)["last_prev.pt"]


def test_a_copy_of_it_is_none_either_once_steps_are_made(tmp_path: Path) -> None:
    old, copy, repeated = tmp_path / "step_30.pt", tmp_path / "step_best.pt", tmp_path / "again_30.pt"
    for path in (old, copy, repeated):
        path.write_text("weights")
    lying = [FoundCheckpoint(str(path), at * SECOND, 7) for path, at in ((old, 130), (copy, 220), (repeated, 230))]
    first = [span(1, 100.0, 140.0, last=40)]
    both = [*first, span(2, 200.0, last=31)]
    step_at = steps_of((1, 100.0, 0), (2, 200.0, 0))
    rows = after_scan((), lying[:1], ScanContext(attempts=first, now=140.0, recorded_step=step_at))
    rows = after_scan(
        rows, lying, ScanContext(attempts=both, now=231.0, recorded_step=step_at, has_same_content=lambda *_: True)
    )
    assert usable(rows, both) == ["again_30.pt"], "training that is repeated exactly saves the same"
    assert "copy of step_30.pt" in whys(rows, both)["step_best.pt"]


def test_an_old_checkpoint_copied_over_one_that_was_there_is_not_of_the_new_training(tmp_path: Path) -> None:
    """A script that begins anew takes the old training's last checkpoint for its best."""
    old, best = tmp_path / "step_100.pt", tmp_path / "best.pt"
    old.write_text("old")
    best.write_text("sic")
    attempts = [span(1, 100.0, 140.0, last=100), span(2, 200.0, None, last=None)]
    before = [FoundCheckpoint(str(path), at * SECOND, 3) for path, at in ((old, 130), (best, 120))]
    rows = after_scan((), before, ScanContext(attempts=attempts[:1], now=141.0, recorded_step=steps_of((1, 100.0, 70))))
    rows = ledger.attempt_begins(rows, attempts[:1], 2, None)

    def look(at: int, text: str) -> Rows:
        best.write_text(text)
        lying = [before[0], FoundCheckpoint(str(best), at * SECOND, 3)]
        step_at = steps_of((1, 100.0, 70), (2, 210.0, 0))
        same = lambda one, other: has_same_content(Path(one), Path(other))  # noqa: E731
        return after_scan(
            rows, lying, ScanContext(attempts=attempts, now=at + 1.0, recorded_step=step_at, has_same_content=same)
        )

    rows = look(201, "old")
    assert usable(rows, attempts) == [] and "copy of step_100.pt" in whys(rows, attempts)["best.pt"]
    rows = look(230, "new")
    assert usable(rows, attempts) == ["best.pt"]


def test_a_file_that_came_after_the_end_is_not_of_the_attempt_whatever_its_time_says() -> None:
    attempts = [span(1, 100.0, 140.0, last=40)]
    own = FoundCheckpoint("/c/step_30.pt", 130 * SECOND, 7, 130 * SECOND)
    late = FoundCheckpoint("/c/step_900.pt", 139 * SECOND, 7, 500 * SECOND)
    step_at = steps_of((1, 100.0, 0))
    rows = after_scan((), [own], ScanContext(attempts=attempts, now=140.0, recorded_step=step_at))
    rows = after_scan(rows, [own, late], ScanContext(attempts=attempts, now=501.0, recorded_step=step_at))
    assert usable(rows, attempts) == ["step_30.pt"] and "attempt 1" in whys(rows, attempts)["step_900.pt"]
    # So it is in a folder that was moved to another disk.
    moved = [one._replace(path=f"/d{one.path}", changed_ns=500 * SECOND) for one in (own, late)]
    rows = after_scan(rows, moved, ScanContext(attempts=attempts, now=501.0, recorded_step=step_at))
    assert usable(rows, attempts) == ["step_30.pt"] and len(rows) == 2
    # A copy without the exact times is new in all its files.
    copied = [one._replace(modified_ns=one.modified_ns + 1) for one in moved]
    rows = after_scan(rows, copied, ScanContext(attempts=attempts, now=501.0, recorded_step=step_at))
    assert "step_30.pt" in usable(rows, attempts)


def test_a_change_of_mode_or_owner_before_the_first_look_after_the_end_makes_nothing_foreign() -> None:
    attempts = [span(1, 100.0, 140.0, last=40)]
    own = [found(f"step_{step}.pt", 100.0 + step)._replace(changed_ns=500 * SECOND) for step in (10, 20, 30)]
    rows = enter((), own[0], attempts=[span(1, 100.0)], now=120.0)
    unseen = [replace(attempts[0], was_scanned_at_end=False)]
    rows = enter(rows, *own, attempts=unseen, now=501.0)
    assert usable(rows, attempts) == ["step_30.pt", "step_20.pt", "step_10.pt"]


def test_names_that_count_samples_are_not_struck_off_with_later_steps() -> None:
    attempts = [span(1, 100.0, 140.0, last=40)]
    lying = [found("ckpt_6400.pt", 110.0), found("ckpt_12800.pt", 120.0), found("ckpt_25600.pt", 140.0)]
    rows = after_scan((), lying, ScanContext(attempts=attempts, now=140.0, recorded_step=steps_of((1, 100.0, 0))))
    rows = ledger.attempt_ended(rows, attempts, 1, "nan_loss", 40)
    assert usable(rows, attempts) == ["ckpt_12800.pt", "ckpt_6400.pt"]


def test_the_clock_of_a_file_server_may_be_ahead_at_the_end() -> None:
    attempts = [span(1, 100.0, 140.0)]
    assert usable(enter((), found("step_30.pt", 155.0), attempts=attempts, now=141.0), attempts) == ["step_30.pt"]
    # Long after the end it may be of anybody.
    assert usable(enter((), found("step_30.pt", 955.0), attempts=attempts, now=941.0), attempts) == []


def test_two_runs_that_live_at_once_cannot_share_a_folder() -> None:
    attempts = [span(1, 100.0)]
    other = Neighbour("other-1", 120.0, 180.0)
    lying = found("step_1.pt", 110.0), found("step_2.pt", 150.0), found("step_3.pt", 190.0)
    rows = enter((), *lying, attempts=attempts, neighbours=[other])
    assert usable(rows, attempts) == ["step_3.pt", "step_1.pt"]
    assert "other-1" in whys(rows, attempts)["step_2.pt"]


def test_what_is_gone_is_forgotten_unless_it_was_struck_off_or_the_whole_folder_is_away() -> None:
    attempts = [span(1, 100.0)]
    lying = [found(f"step_{step}.pt", 100.0 + step) for step in (1, 2, 3)]
    rows = enter((), *lying, attempts=attempts)
    rows = tuple(replace(row, verdict="struck") if row.name == "step_2.pt" else row for row in rows)
    assert len(enter(rows, attempts=attempts)) == 3
    left = enter(rows, lying[2], attempts=attempts)
    assert sorted(row.name for row in left) == ["step_2.pt", "step_3.pt"]


def test_a_file_has_stopped_growing_when_two_looks_or_its_time_say_so() -> None:
    attempts = [span(1, 100.0)]
    one = found("step_1.raw", 150.0)
    rows = enter((), one, attempts=attempts, now=151.0)
    assert not rows[0].is_settled
    assert enter(rows, one, attempts=attempts, now=155.0)[0].is_settled
    assert not enter(rows, replace_size(one), attempts=attempts, now=152.0)[0].is_settled
    # One that was written when the attempt was killed does not become whole by waiting.
    ended = [span(1, 100.0, 151.0)]
    assert not enter((), one, attempts=ended, now=9000.0)[0].is_settled


def test_what_is_written_after_the_clock_was_set_back_is_of_the_attempt_that_lives() -> None:
    attempts = [span(1, 5000.0)]
    rows = enter((), found("old.pt", 500.0), found("step_1.pt", 990.0), attempts=attempts, now=1000.0)
    assert usable(rows, attempts) == ["step_1.pt"]
    assert whys(rows, attempts).keys() == {"old.pt"}


def test_trouble_of_steps_that_start_again_strikes_off_what_was_written_after_it() -> None:
    attempts = [span(1, 100.0, 150.0), span(2, 160.0, 400.0, "/c/epoch_1.pt")]
    lying = [found(f"epoch_{epoch}.pt", at) for epoch, at in ((1, 140.0), (2, 200.0), (3, 250.0), (4, 300.0))]
    rows = tuple(replace(row, step=20) for row in enter((), *lying, attempts=attempts))
    after = ledger.attempt_ended(rows, attempts, 2, "nan_loss", 5, NumericTrouble(270.0))
    assert usable(after, attempts) == ["epoch_3.pt", "epoch_2.pt", "epoch_1.pt"]


def replace_size(one: FoundCheckpoint) -> FoundCheckpoint:
    return one._replace(size_bytes=(one.size_bytes or 0) + 1)


# --- courses ----------------------------------------------------------------------------------------------------------


def test_a_restart_from_the_start_leaves_what_was() -> None:
    """(a): a run that had finished is restarted, fails at step 25, and has no checkpoint of its own."""
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0)]
    rows = enter((), found("step_100.pt", 190.0), attempts=attempts)
    assert usable(rows, attempts) == []
    assert mentions(whys(rows, attempts)["step_100.pt"], "attempt 2", "start")


def test_another_runs_checkpoints_in_a_fixed_folder_are_not_taken() -> None:
    """(b)"""
    attempts = [span(1, 300.0, 400.0)]
    rows = enter((), found("step_100.pt", 190.0), attempts=attempts)
    assert usable(rows, attempts) == []


def test_what_was_poisoned_is_not_taken_by_the_attempt_after_the_next() -> None:
    """(c): a NaN with no earlier checkpoint; attempt 2 begins anew and is killed."""
    attempts = [span(1, 100.0, 200.0, last=60), span(2, 300.0, 400.0, last=7)]
    rows = enter((), found("step_50.pt", 190.0), attempts=attempts[:1])
    rows = ledger.attempt_ended(rows, attempts[:1], 1, "nan_loss", 3)
    assert usable(rows, attempts[:1]) == []
    rows = ledger.attempt_begins(rows, attempts[:1], 2, None)
    rows = ledger.attempt_ended(rows, attempts, 2, "killed", None)
    assert usable(rows, attempts) == []


def test_a_person_resumes_from_where_a_rollback_went_back_to() -> None:
    """(d): a rollback after a NaN at step 70 to step 20; a person stops at step 67 and resumes."""
    attempts = [span(1, 100.0, 200.0, last=90), span(2, 300.0, 400.0, "/c/step_20.pt", last=67)]
    lying = [found(f"step_{step}.pt", 100.0 + step) for step in (20, 40, 90)]
    rows = enter((), *lying, attempts=attempts[:1])
    rows = ledger.attempt_ended(rows, attempts[:1], 1, "nan_loss", 70)
    assert usable(rows, attempts[:1]) == ["step_40.pt", "step_20.pt"]
    rows = ledger.rolled_back(rows, "/c/step_20.pt", "was left by a rollback")
    rows = ledger.attempt_begins(rows, attempts[:1], 2, "/c/step_20.pt")
    rows = enter(rows, *lying, found("step_60.pt", 350.0), attempts=attempts)
    assert usable(rows, attempts) == ["step_60.pt", "step_20.pt"]
    refused = whys(rows, attempts)
    assert refused.keys() == {"step_90.pt", "step_40.pt"}
    assert mentions(refused["step_90.pt"], "after", "step 70") and mentions(refused["step_40.pt"], "rollback")


def test_numbers_in_names_order_nothing_and_contradictions_are_told() -> None:
    """(e)"""
    attempts = [span(1, 100.0)]
    lying = [found("epoch=1-val_loss=0.93.ckpt", 110.0), found("epoch=5-val_loss=0.40.ckpt", 150.0)]
    rows = enter((), *lying, found("epoch=9-val_loss=0.12.ckpt", 190.0), attempts=attempts)
    assert [name[:7] for name in usable(rows, attempts)] == ["epoch=9", "epoch=5", "epoch=1"]
    assert ledger.out_of_order(rows, attempts) is None
    rows = enter((), found("step_9.pt", 110.0), found("step_4.pt", 120.0), attempts=attempts)
    assert ledger.out_of_order(rows, attempts) == ("step_9.pt", "step_4.pt")
    assert usable(rows, attempts)[0] == "step_4.pt"


def test_a_checkpoint_from_which_no_step_was_made_is_passed_over() -> None:
    """(f): a folder that was cut short while it was saved."""
    attempts = [span(1, 100.0, 200.0, last=45), span(2, 300.0, 400.0, "/c/checkpoint-40", last=None)]
    rows = enter((), found("checkpoint-30", 130.0), found("checkpoint-40", 140.0), attempts=attempts[:1])
    rows = ledger.attempt_begins(rows, attempts[:1], 2, "/c/checkpoint-40")
    rows = ledger.attempt_ended(rows, attempts, 2, "user_exception", None)
    assert usable(rows, attempts) == ["checkpoint-30", "checkpoint-40"]
    assert mentions(whys(rows, attempts)["checkpoint-40"], "before its first step")
    # Once an attempt went on from the one before, it is left for good.
    rows = ledger.attempt_begins(rows, attempts, 3, "/c/checkpoint-30")
    attempts.append(span(3, 500.0, 600.0, "/c/checkpoint-30", last=35))
    assert usable(rows, attempts) == ["checkpoint-30"]


def test_the_last_one_is_tried_again_before_everything_is_given_up() -> None:
    attempts = [span(1, 100.0, 200.0, last=45), span(2, 300.0, 400.0, "/c/step_40.pt", last=None)]
    rows = enter((), found("step_40.pt", 140.0), attempts=attempts[:1])
    rows = ledger.attempt_begins(rows, attempts[:1], 2, "/c/step_40.pt")
    in_doubt = ledger.attempt_ended(rows, attempts, 2, "killed", None)
    assert usable(in_doubt, attempts) == ["step_40.pt"]
    # Unless it is known to be damaged.
    assert usable(ledger.attempt_ended(rows, attempts, 2, "corrupt_checkpoint", None), attempts) == []
    # Where two could not be begun from, neither was at fault, and the newest is taken.
    two = enter((), found("step_30.pt", 130.0), found("step_40.pt", 140.0), attempts=attempts[:1])
    two = ledger.attempt_ended(two, attempts, 2, "killed", None)
    again = [*attempts, span(3, 500.0, 600.0, "/c/step_30.pt", last=None)]
    two = ledger.attempt_begins(two, attempts, 3, "/c/step_30.pt")
    assert usable(ledger.attempt_ended(two, again, 3, "killed", None), again)[0] == "step_40.pt"


@pytest.mark.parametrize("kind", sorted(ledger.EXTERNAL_INCIDENTS))
def test_what_never_came_to_its_checkpoint_does_not_count_against_it(kind: str) -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, "/c/step_40.pt", last=None)]
    rows = enter((), found("step_30.pt", 130.0), found("step_40.pt", 140.0), attempts=attempts[:1])
    assert usable(ledger.attempt_ended(rows, attempts, 2, kind, None), attempts)[0] == "step_40.pt"


def test_one_from_which_a_step_was_made_is_in_doubt_no_more() -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, "/c/step_40.pt", last=44)]
    rows = enter((), found("step_40.pt", 140.0), attempts=attempts[:1])
    rows = tuple(replace(row, verdict="doubtful", failed_starts=1) for row in rows)
    rows = ledger.attempt_begins(rows, attempts[:1], 2, "/c/step_40.pt")
    (row,) = ledger.attempt_ended(rows, attempts, 2, "killed", None)
    assert (row.verdict, row.failed_starts) == ("unexamined", 0)


def test_a_failed_start_is_that_of_the_file_that_was_resumed_from_wherever_a_rotation_moved_it() -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, "/c/slot.0.pt", last=None)]
    rows = enter((), found("slot.1.pt", 130.0), found("slot.0.pt", 140.0), attempts=attempts[:1])
    rows = ledger.attempt_begins(rows, attempts[:1], 2, "/c/slot.0.pt")
    moved = {"/c/slot.0.pt": "/c/slot.1.pt", "/c/slot.1.pt": "/c/slot.0.pt"}
    rows = tuple(replace(row, path=moved[row.path]) for row in rows)
    rows = ledger.attempt_ended(rows, attempts, 2, "user_exception", None)
    assert {row.name: row.failed_starts for row in rows} == {"slot.1.pt": 1, "slot.0.pt": 0}


def test_a_folder_of_an_older_ledger_keeps_its_verdict() -> None:
    attempts = [span(1, 100.0, 200.0)]
    rows = enter((), found("checkpoint-200", 150.0, size=30), attempts=attempts)
    rows = tuple(replace(row, verdict="struck", why="was written after the trouble began") for row in rows)
    today = FoundCheckpoint("/c/checkpoint-200", 149 * SECOND, 20, with_all_files=(150 * SECOND, 30))
    (row,) = enter(rows, today, attempts=attempts)
    assert (row.verdict, row.stamp) == ("struck", today.stamp)


def test_an_attempt_that_came_to_nothing_leaves_nothing_behind() -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, "/c/step_30.pt", last=None)]
    rows = enter((), found("step_30.pt", 130.0), found("step_40.pt", 140.0), attempts=attempts[:1])
    rows = ledger.attempt_begins(rows, attempts[:1], 2, "/c/step_30.pt")
    assert usable(rows, attempts) == ["step_40.pt", "step_30.pt"]
    worked = [attempts[0], replace(attempts[1], has_worked=True, last_step=31)]
    assert usable(rows, worked) == ["step_30.pt"]


def test_a_person_names_one_of_another_training() -> None:
    attempts = [span(1, 100.0, 200.0)]
    rows = enter((), found("step_40.pt", 140.0), found("theirs.pt", 50.0), attempts=attempts)
    rows = ledger.chosen_by_person(rows, attempts, found("theirs.pt", 50.0), 7, 900.0)
    assert usable(rows, attempts) == ["theirs.pt"]
    # What the attempt from there writes comes behind it; what it does not survive leads back to it.
    attempts.append(span(2, 1000.0, 1100.0, "/c/theirs.pt"))
    rows = enter(rows, found("theirs.pt", 50.0), found("step_10.pt", 1050.0), attempts=attempts)
    assert usable(rows, attempts) == ["step_10.pt", "theirs.pt"]
    attempts.append(span(3, 2000.0))
    assert usable(rows, attempts) == []


def test_a_person_goes_back_within_the_training() -> None:
    attempts = [span(1, 100.0, 200.0)]
    rows = enter((), *(found(f"step_{step}.pt", 100.0 + step) for step in (10, 20, 30)), attempts=attempts)
    rows = ledger.chosen_by_person(rows, attempts, found("step_20.pt", 120.0), None, 900.0)
    assert usable(rows, attempts) == ["step_20.pt", "step_10.pt"]


def test_a_ledger_that_is_begun_late_says_the_same() -> None:
    """A run of before the ledger: rolled back to step 20 after a NaN, killed, never told to anybody."""
    attempts = [
        span(1, 100.0, 200.0, last=90),
        span(2, 300.0, 400.0, last=50),
        span(3, 500.0, 600.0, "/c/step_20.pt", last=67),
    ]
    lying = [found("step_95.pt", 195.0), found("step_20.pt", 320.0), found("step_45.pt", 345.0)]
    rows = enter((), *lying, found("step_60.pt", 550.0), found("old.pt", 1.0), attempts=attempts, rebuilt=(1, 2, 3))
    rows = ledger.replayed(rows, attempts, {2: ("nan_loss", 40)})
    assert {row.origin for row in rows} == {"rebuilt", "foreign"}
    assert usable(rows, attempts) == ["step_60.pt", "step_20.pt"]


# --- choosing ---------------------------------------------------------------------------------------------------------


def checked(**verdicts: str) -> object:
    def check(path: Path) -> CheckpointInfo:
        verdict = verdicts.get(path.stem, "whole")
        return CheckpointInfo(
            path, None, verdict == "whole", f"is {verdict}", 1, 1.0,
            is_unknown=verdict == "unknown", is_unreadable=verdict in ("away", "gone"), is_missing=verdict == "gone",
        )  # fmt: skip

    return check


def chosen(
    rows: Rows, attempts: list[AttemptSpan], wanted: int = 1, **verdicts: str
) -> tuple[list[str], list[str], str | None]:
    choice = choose(rows, attempts, wanted, checked(**verdicts))  # type: ignore[arg-type]
    return [info.path.stem for info in choice.usable], [info.path.stem for info in choice.refused], choice.unreadable


def test_the_newest_that_is_whole_is_taken_and_a_format_that_cannot_be_checked_after_it() -> None:
    attempts = [span(1, 100.0, 900.0)]
    rows = enter((), *(found(f"s{step}.pt", 100.0 + step) for step in (10, 20, 30, 40)), attempts=attempts)
    assert chosen(rows, attempts, s40="damaged", s30="unknown") == (["s20", "s30"], ["s40"], None)
    assert chosen(rows, attempts, s40="unknown", s30="unknown", s20="unknown", s10="unknown")[0][0] == "s40"
    growing = tuple(replace(row, is_settled=False) for row in rows)
    assert chosen(growing, attempts, s40="unknown")[0] == ["s30"]
    # The beginning would lose more than an attempt that cannot load it.
    everything = {f"s{step}": "unknown" for step in (10, 20, 30, 40)}
    assert chosen(growing, attempts, **everything)[0] == ["s40"]
    assert chosen(rows, attempts, wanted=3)[0] == ["s40", "s30", "s20"]


def test_what_another_run_may_have_written_is_named_where_nothing_else_is_left() -> None:
    attempts = [span(1, 100.0, 200.0)]
    other = Neighbour("job-2", 115.0, 150.0)
    rows = enter(
        (), *(found(f"s{step}.pt", 100.0 + step) for step in (10, 20, 30)), attempts=attempts, neighbours=[other]
    )
    assert [row.origin for row in rows] == ["run", "contested", "contested"]
    choice = choose(rows, attempts, 1, checked())  # type: ignore[arg-type]
    assert [info.path.stem for info in choice.usable] == ["s10"] and choice.doubted is None
    choice = choose(rows[1:], attempts, 1, checked())  # type: ignore[arg-type]
    assert choice.usable == () and choice.doubted is not None
    assert "s30.pt" in choice.doubted and "job-2" in choice.doubted
    # A person who restarts the run leaves them.
    choice = choose(rows[1:], [*attempts, span(2, 400.0, 410.0)], 1, checked())  # type: ignore[arg-type]
    assert choice.doubted is None


def test_a_chosen_checkpoint_that_cannot_be_loaded_is_not_followed_by_the_beginning() -> None:
    attempts = [span(1, 100.0, 200.0)]
    rows = enter((), found("s10.pt", 110.0), attempts=attempts)
    rows = ledger.chosen_by_person(
        rows, attempts, FoundCheckpoint("/elsewhere/notes.txt", 150 * SECOND, 3), None, 300.0
    )
    rows = ledger.attempt_begins(rows, attempts, 2, "/elsewhere/notes.txt")
    attempts.append(span(2, 300.0, 310.0, "/elsewhere/notes.txt", last=None))
    rows = ledger.attempt_ended(rows, attempts, 2, "corrupt_checkpoint")
    usable, _, unreadable = chosen(rows, attempts)
    assert usable == [] and unreadable is not None and "notes.txt" in unreadable
    # A person who restarts the run asks for just that.
    attempts.append(span(3, 400.0, 410.0))
    assert chosen(rows, attempts)[::2] == ([], None)


def test_what_cannot_be_read_now_is_told_from_what_is_gone() -> None:
    attempts = [span(1, 100.0, 900.0)]
    rows = enter((), found("s10.pt", 110.0), attempts=attempts)
    assert chosen(rows, attempts, s10="gone") == ([], ["s10"], None)
    assert chosen(rows, attempts, s10="away") == ([], ["s10"], "s10.pt is away")


def test_what_was_checked_is_remembered_but_read_again() -> None:
    attempts = [span(1, 100.0, 900.0)]
    rows = enter((), found("s10.pt", 110.0), attempts=attempts)
    (row,) = choose(rows, attempts, 1, checked(s10="damaged")).rows  # type: ignore[arg-type]
    assert (row.verdict, row.why) == ("invalid", "is damaged")
    assert whys((row,), attempts) == {"s10.pt": "is damaged"}
    assert chosen((row,), attempts)[0] == ["s10"]


# --- words ------------------------------------------------------------------------------------------------------------


def test_it_is_told_what_is_passed_over_and_why() -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0)]
    rows = enter((), found("step_100.pt", 190.0), found("step_20.pt", 350.0), attempts=attempts)
    said = checkpoints_sentence(rows, attempts)
    assert mentions(said, "step_20.pt (step 20, attempt 2)") and mentions(said, "step_100.pt", "left")
    newest, older = checkpoints_shape(rows, attempts)
    assert (newest["path"], newest["attempt"], newest["refused"]) == ("/c/step_20.pt", 2, None)
    assert older["refused"] and older["verdict"] == "unexamined"


def test_rows_are_stored_and_changed_by_what_differs(tmp_path: Path) -> None:
    from gputui.runs.repository import transaction
    from gputui.store import checkpoints
    from tests.stores import open_store

    connection = open_store(tmp_path / "gputui.db")
    connection.execute(
        "INSERT INTO runs (run_id, sequence, name, profile, state, spec, params, created_at) "
        "VALUES ('a-1', 1, 'a', 'a', 'failed', '{}', '{}', 1.0)"
    )
    one = CheckpointRow("/c/1.pt", 1, "run", 5, 10, None, 2.0, True, "doubtful", "was tried", 2, None)
    two = CheckpointRow("/c/2.pt", 1, "foreign", 6, None, 3, 2.0)
    for before, after in (((), (one, two)), ((one, two), (replace(one, step=7),))):
        with transaction(connection):
            checkpoints.save(connection, "a-1", before, after)
        assert set(checkpoints.of_run(connection, "a-1")) == set(after)
    assert checkpoints.step_of(connection, "a-1", "/c/1.pt") == 7
    connection.close()


# --- renames and copies -----------------------------------------------------------------------------------------------


def moved(one: FoundCheckpoint, name: str) -> FoundCheckpoint:
    return one._replace(path=f"/c/{name}")


def test_what_was_struck_off_stays_so_when_slots_are_rotated() -> None:
    step_at = steps_of((1, 100.0, 0), (2, 200.0, 20))
    first = [span(1, 100.0, 140.0, last=40)]
    slots = [found("ckpt.0", 130.0), found("ckpt.1", 120.0), found("ckpt.2", 110.0)]
    rows = after_scan((), slots, ScanContext(attempts=first, now=140.0, recorded_step=step_at))
    rows = ledger.attempt_ended(rows, first, 1, "nan_loss", 25)
    assert usable(rows, first) == ["ckpt.1", "ckpt.2"]
    rows = ledger.attempt_begins(rows, first, 2, "/c/ckpt.1")
    both = [*first, span(2, 200.0, 240.0, "/c/ckpt.1", last=30)]
    slots = [found("ckpt.0", 210.0), moved(slots[0], "ckpt.1"), moved(slots[1], "ckpt.2")]
    rows = after_scan(rows, slots, ScanContext(attempts=both, now=240.0, recorded_step=step_at))
    assert usable(rows, both) == ["ckpt.0", "ckpt.2"] and "trouble" in whys(rows, both)["ckpt.1"]
    # Killed between the renames and the new save.
    slots = [moved(slots[0], "ckpt.1"), moved(slots[1], "ckpt.2")]
    rows = after_scan(rows, slots, ScanContext(attempts=both, now=241.0, recorded_step=step_at))
    entries = {row.name: (row.attempt, row.verdict) for row in rows}
    assert entries == {"ckpt.1": (2, "unexamined"), "ckpt.2": (1, "struck")}


def test_a_failed_start_counts_against_the_checkpoint_wherever_it_was_moved() -> None:
    first = [span(1, 100.0, 140.0, last=40)]
    lying = [found("ckpt.0", 130.0), found("ckpt.1", 120.0)]
    rows = enter((), *lying, attempts=first)
    rows = ledger.attempt_begins(rows, first, 2, "/c/ckpt.0")
    both = [*first, span(2, 200.0, 210.0, "/c/ckpt.0", last=None)]
    lying = [moved(lying[0], "ckpt.1"), moved(lying[1], "ckpt.2")]
    rows = ledger.attempt_ended(enter(rows, *lying, attempts=both), both, 2, "user_exception")
    assert usable(rows, both) == ["ckpt.2", "ckpt.1"]
    # A step from there takes the doubt away again.
    rows = ledger.attempt_begins(rows, both, 3, "/c/ckpt.1")
    three = [*both, span(3, 300.0, 310.0, "/c/ckpt.1", last=31)]
    lying = [moved(lying[0], "old"), lying[1]]
    rows = ledger.attempt_ended(enter(rows, *lying, attempts=three), three, 3, "killed")
    assert usable(rows, three) == ["old", "ckpt.2"]


def test_a_struck_folder_stays_so_under_another_name_and_the_newest_one_is_kept_under_its_new_name() -> None:
    attempts = [span(1, 100.0, 200.0)]
    lying = [found("checkpoint-20", 120.0), found("checkpoint-27", 127.0)]
    rows = ledger.attempt_ended(enter((), *lying, attempts=attempts), attempts, 1, "nan_loss", 25)
    rows = enter(rows, lying[0], moved(lying[1], "checkpoint-27.bad"), attempts=attempts)
    assert usable(rows, attempts) == ["checkpoint-20"] and whys(rows, attempts).keys() == {"checkpoint-27.bad"}
    rows = enter(rows, moved(lying[0], "best"), moved(lying[1], "checkpoint-27.bad"), attempts=attempts)
    assert usable(rows, attempts) == ["best"]
    # A name that tells a later step, whose own file is there too, changes nothing.
    rows = enter(rows, moved(lying[0], "checkpoint-27"), attempts=attempts)
    assert usable(rows, attempts) == ["checkpoint-27"]


def test_the_only_checkpoint_is_not_lost_by_a_rename_before_the_next_save() -> None:
    attempts = [span(1, 100.0, 200.0)]
    one = found("ckpt.pt", 130.0)._replace(changed_ns=130 * SECOND)
    rows = enter((), one, attempts=attempts)
    later = [*attempts, span(2, 300.0, 400.0, "/c/ckpt.pt", last=34)]
    rows = enter(rows, moved(one, "ckpt_step30.pt")._replace(changed_ns=350 * SECOND), attempts=later)
    assert usable(rows, later) == ["ckpt_step30.pt"] and [row.attempt for row in rows] == [1]


def test_a_folder_that_was_put_there_after_the_end_is_not_of_the_attempt(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-30"
    folder.mkdir()
    (folder / "model.pt").write_text("weights")
    for path in (folder / "model.pt", folder):
        os.utime(path, (130.0, 130.0))
    one = measured(folder)
    assert one is not None and one.modified_ns == 130 * SECOND and (one.changed_ns or 0) > 10**18
    attempts = [span(1, 100.0, 140.0)]
    own = found("checkpoint-20", 120.0)
    rows = enter(enter((), own, attempts=attempts), own, one, attempts=attempts, now=500.0)
    assert usable(rows, attempts) == ["checkpoint-20"] and "attempt 1" in whys(rows, attempts)["checkpoint-30"]


@pytest.mark.parametrize(("name", "verdict"), [("2b1f7d0c", "unexamined"), ("step_1.pt", "struck")])
def test_a_nan_at_the_step_of_the_base_is_the_attempts_own_if_lines_told_that_step(name: str, verdict: str) -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, f"/c/{name}", last=1)]
    rows = tuple(replace(row, step=1) for row in enter((), found(name, 140.0), attempts=attempts[:1]))
    rows = ledger.attempt_begins(rows, attempts[:1], 2, f"/c/{name}")
    (row,) = ledger.attempt_ended(rows, attempts, 2, "nan_loss", 1, NumericTrouble(sound_until=0))
    assert row.verdict == verdict
