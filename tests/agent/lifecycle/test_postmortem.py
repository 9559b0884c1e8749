"""The evidence of an attempt: judged as it was written, stored without its secrets."""

from __future__ import annotations

from pathlib import Path

from gputui.agent.lifecycle.live_attempt import PostmortemTask
from gputui.agent.lifecycle.postmortem import count_from_start, examine
from gputui.agent.lifecycle.run_files import ResolvedRun
from gputui.core.redaction import Redactor
from gputui.core.secret_patterns import REDACTED
from gputui.recovery.policies import POLICIES
from gputui.store.attempts import Attempt
from tests.homes import SPEC
from tests.tables import table


def test_a_secret_that_is_a_word_of_the_message_does_not_change_the_verdict(tmp_path: Path) -> None:
    secret = "CUDA out of memory"
    (tmp_path / "nodes" / "0").mkdir(parents=True)
    (tmp_path / "nodes" / "0" / "output.log").write_text(
        'Traceback (most recent call last):\n  File "/x.py", line 3, in <module>\n    main()\n'
        f"torch.OutOfMemoryError: {secret}. Tried to allocate 2.00 GiB. password=hunter2\n"
    )
    attempt = Attempt("r-1", 1, "running", params={}, gpus=(), launch={}, created_at=1.0, started_at=1.0)
    task = PostmortemTask(
        resolved=ResolvedRun(SPEC, POLICIES["standard"], Redactor([secret])), folder=tmp_path, attempt=attempt,
        exit_record={"code": 1}, survivors=(), rebooted=False, ended_at=2.0, checkpoints=None,
    )  # fmt: skip
    findings = examine(task)
    assert findings.incident.kind == "cuda_oom"
    text = repr(findings)
    assert REDACTED in text
    assert secret not in text
    assert "hunter2" not in text
    assert any(REDACTED in line for line in findings.incident.evidence_lines)


@table("record, started_at, seconds", [
    ({"started_at": 154.0, "ran_seconds": 19.0}, 100.0, 73.0),
    ({"started_at": 100.0, "ran_seconds": 19.0}, 100.0, 19.0),
    ({"started_at": 99.5, "ran_seconds": 19.0}, 100.0, 19.0), ({"started_at": 154.0, "ran_seconds": 19.0}, None, 19.0),
    ({"started_at": None, "ran_seconds": 19.0}, 100.0, 19.0), ({"started_at": 100.0, "ran_seconds": None}, 1.0, None),
])  # fmt: skip
def test_the_time_of_an_attempt_counts_from_its_start(
    record: dict[str, float | None], started_at: float | None, seconds: float | None
) -> None:
    counted = count_from_start(record, started_at)
    assert counted is not None
    assert counted["ran_seconds"] == seconds
    assert count_from_start(None, started_at) is None
