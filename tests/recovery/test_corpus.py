"""Real ends of real torchrun jobs, recorded once, and what each is taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.recovery.classify import classify, outcome
from gputui.recovery.evidence import Evidence
from tests.recovery.attempts import Case, recorded

CASES = recorded()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_recorded_end_is_taken_for_what_it_was(case: Case, tmp_path: Path) -> None:
    evidence = case.evidence(tmp_path)
    incident = classify(evidence)
    assert (incident.kind, incident.rank) == (case.kind, case.rank)
    assert incident.step == case.last_step
    assert outcome(evidence, stop_intended=False) == "failed"
    assert incident.summary and incident.evidence_lines
    assert all("\n" not in line and len(line) <= 400 for line in (incident.summary, *incident.evidence_lines))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_stored_evidence_gives_the_same_incident_again(case: Case, tmp_path: Path) -> None:
    evidence = case.evidence(tmp_path)
    stored = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
    assert stored == evidence
    assert classify(stored) == classify(evidence)


def test_corpus_covers_what_a_machine_without_gpu_can_show() -> None:
    assert {
        "cuda_oom",
        "host_oom",
        "killed",
        "segfault",
        "user_exception",
        "nonzero_exit",
        "import_error",
        "config_error",
        "nccl_timeout",
        "rank_left_early",
        "dataloader_killed",
        "bad_sample",
        "shm_full",
        "disk_full",
        "resource_limit",
        "corrupt_checkpoint",
        "incompatible_checkpoint",
        "port_in_use",
        "rendezvous",
        "stopped_outside",
    } <= {case.kind for case in CASES}


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_the_rank_that_died_is_named_and_the_other_called_a_consequence(tmp_path: Path) -> None:
    incident = classify(case_of("oom").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("cuda_oom", 1)
    assert "2.00 GiB" in incident.summary and "job.py:28 in main" in incident.summary
    assert incident.witnesses[0] == "exit" and len(incident.witnesses) == len(incident.evidence_lines)
    assert any(
        line.startswith("rank 1: torch.OutOfMemoryError: CUDA out of memory.") for line in incident.evidence_lines
    )
    assert any(line.startswith("rank 0, as a consequence: RuntimeError:") for line in incident.evidence_lines)
    assert "rank 1: raised at job.py:28 in main" in incident.evidence_lines


def test_the_same_trouble_has_the_same_fingerprint_with_or_without_error_files(tmp_path: Path) -> None:
    prints = {
        classify(case_of(name).evidence(tmp_path / name)).fingerprint
        for name in ("oom_wrapped", "oom_wrapped_recorded")
    }
    assert len(prints) == 1
    other = classify(case_of("killed").evidence(tmp_path / "killed")).fingerprint
    assert other not in prints


def test_a_blamed_healthy_rank_is_cleared(tmp_path: Path) -> None:
    """torchrun blames rank 0, which only lost rank 1."""
    incident = classify(case_of("rank_left_early_recorded").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("rank_left_early", 1)
    assert "launcher" in incident.witnesses


def test_a_rank_that_had_to_be_killed_is_pointed_at(tmp_path: Path) -> None:
    incident = classify(case_of("gloo_timeout").evidence(tmp_path))
    said = [line for line, who in zip(incident.evidence_lines, incident.witnesses, strict=True) if who == "launcher"]
    assert any("rank 1" in line and "killed" in line for line in said)


def test_a_data_loaders_own_exception_is_quoted(tmp_path: Path) -> None:
    incident = classify(case_of("bad_sample").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("bad_sample", 1)
    assert "KeyError: 'label of sample 20'" in incident.summary and "job.py:55 in main" in incident.summary


def test_a_crash_in_native_code_says_where_python_was(tmp_path: Path) -> None:
    incident = classify(case_of("segfault").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("segfault", 1)
    assert "SIGSEGV, job.py:35 in main" in incident.summary
