"""Which checkpoint belongs to which course of training: the cases that went wrong, each with what decides them."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path, PurePath

from msgspec.structs import replace

from gputui.recovery import checkpoint_ledger as ledger
from gputui.recovery.checkpoint_contents import steps_inside
from gputui.recovery.checkpoint_scan import ScanContext, StepAt, after_scan
from gputui.recovery.checkpoint_search import choose
from gputui.recovery.checkpoints import CheckpointInfo
from gputui.recovery.ledger_inputs import AttemptSpan, FoundCheckpoint, NumericTrouble, Rows
from gputui.store.checkpoints import Neighbour
from tests.tables import table
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


def test_a_number_in_a_name_is_the_step_where_the_metrics_may_have_reached_it() -> None:
    lying = [found(f"{name}.pt", 150.0) for name in ("model_000203", "step_203", "model_7", "model_900", "last")]
    context = ScanContext(
        attempts=[span(1, 100.0, 180.0)], now=180.0, folder=PurePath("/c"),
        # Four steps a second: a line that comes a second late hides three.
        recorded_step=lambda _, at: int(4 * (at - 100.0)),
    )  # fmt: skip
    rows = {row.name: row.step for row in after_scan((), lying, context)}
    assert rows == {"model_000203.pt": 203, "step_203.pt": 203, "model_7.pt": 200, "model_900.pt": 200, "last.pt": 200}


def test_names_that_count_samples_are_not_struck_off_with_later_steps() -> None:
    attempts = [span(1, 100.0, 140.0, last=40)]
    lying = [found("ckpt_6400.pt", 110.0), found("ckpt_12800.pt", 120.0), found("ckpt_25600.pt", 140.0)]
    rows = after_scan((), lying, ScanContext(attempts=attempts, now=140.0, recorded_step=steps_of((1, 100.0, 0))))
    rows = ledger.attempt_ended(rows, attempts, 1, "nan_loss", 40)
    assert usable(rows, attempts) == ["ckpt_12800.pt", "ckpt_6400.pt"]


def test_trouble_of_steps_that_start_again_strikes_off_what_was_written_after_it() -> None:
    attempts = [span(1, 100.0, 150.0), span(2, 160.0, 400.0, "/c/epoch_1.pt")]
    lying = [found(f"epoch_{epoch}.pt", at) for epoch, at in ((1, 140.0), (2, 200.0), (3, 250.0), (4, 300.0))]
    rows = tuple(replace(row, step=20) for row in enter((), *lying, attempts=attempts))
    after = ledger.attempt_ended(rows, attempts, 2, "nan_loss", 5, NumericTrouble(270.0))
    assert usable(after, attempts) == ["epoch_3.pt", "epoch_2.pt", "epoch_1.pt"]


# --- courses ----------------------------------------------------------------------------------------------------------


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


@table("kind", sorted(ledger.EXTERNAL_INCIDENTS))
def test_what_never_came_to_its_checkpoint_does_not_count_against_it(kind: str) -> None:
    attempts = [span(1, 100.0, 200.0), span(2, 300.0, 400.0, "/c/step_40.pt", last=None)]
    rows = enter((), found("step_30.pt", 130.0), found("step_40.pt", 140.0), attempts=attempts[:1])
    assert usable(ledger.attempt_ended(rows, attempts, 2, kind, None), attempts)[0] == "step_40.pt"


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


def test_what_cannot_be_read_now_is_told_from_what_is_gone() -> None:
    attempts = [span(1, 100.0, 900.0)]
    rows = enter((), found("s10.pt", 110.0), attempts=attempts)
    assert chosen(rows, attempts, s10="gone") == ([], ["s10"], None)
    assert chosen(rows, attempts, s10="away") == ([], ["s10"], "s10.pt is away")


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


def test_the_only_checkpoint_is_not_lost_by_a_rename_before_the_next_save() -> None:
    attempts = [span(1, 100.0, 200.0)]
    one = found("ckpt.pt", 130.0)._replace(changed_ns=130 * SECOND)
    rows = enter((), one, attempts=attempts)
    later = [*attempts, span(2, 300.0, 400.0, "/c/ckpt.pt", last=34)]
    rows = enter(rows, moved(one, "ckpt_step30.pt")._replace(changed_ns=350 * SECOND), attempts=later)
    assert usable(rows, later) == ["ckpt_step30.pt"] and [row.attempt for row in rows] == [1]
