"""Real ends of real torchrun jobs, recorded once, and what each is taken for."""

from __future__ import annotations

import json
from pathlib import Path

from gputui.recovery.classify import classify, outcome
from gputui.recovery.evidence import Evidence
from tests.recovery.attempts import Case, recorded
from tests.tables import table

CASES = recorded()


@table("case", CASES)
def test_recorded_end_is_taken_for_what_it_was(case: Case, tmp_path: Path) -> None:
    evidence = case.evidence(tmp_path)
    incident = classify(evidence)
    assert (incident.kind, incident.rank) == (case.kind, case.rank)
    assert incident.step == case.last_step
    assert outcome(evidence, stop_intended=False) == "failed"
    assert incident.summary and incident.evidence_lines
    assert all("\n" not in line and len(line) <= 400 for line in (incident.summary, *incident.evidence_lines))
    stored = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
    assert stored == evidence and classify(stored) == incident


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


def test_a_data_loaders_own_exception_is_quoted(tmp_path: Path) -> None:
    incident = classify(case_of("bad_sample").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("bad_sample", 1)
    assert "KeyError: 'label of sample 20'" in incident.summary and "job.py:55 in main" in incident.summary
