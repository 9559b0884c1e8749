"""The table of moves."""

from __future__ import annotations

import pytest

from gputui.store.run_states import MOVES, ForbiddenMoveError, RunState, check_move


def test_every_state_has_its_moves_and_every_move_its_state() -> None:
    assert set(MOVES) == set(RunState)
    assert set().union(*MOVES.values()) == set(RunState) - {RunState.UNKNOWN}


def test_any_other_word_is_an_unknown_state_of_which_processes_may_exist() -> None:
    state = RunState("zombified")
    assert state is RunState.UNKNOWN
    assert state.has_attempt and not state.is_over


def test_only_a_new_queueing_leads_out_of_the_end() -> None:
    for state in RunState:
        if state.is_over:
            assert MOVES[state] == {RunState.QUEUED}


def test_forbidden_moves_are_refused() -> None:
    with pytest.raises(ForbiddenMoveError, match="from queued to running"):
        check_move(RunState.QUEUED, RunState.RUNNING)
    check_move(RunState.RUNNING, RunState.RECOVERING)


def test_an_attempt_always_ends_somewhere() -> None:
    for state in RunState:
        if state.has_attempt:
            assert any(target.is_over for target in MOVES[state])
