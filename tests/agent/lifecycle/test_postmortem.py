"""What an attempt left is judged by what was said, and kept without the secrets in it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from gputui.agent.lifecycle.active_run import PostmortemTask
from gputui.agent.lifecycle.postmortem import examine, seen_by_driver
from gputui.config import Workspace
from gputui.redaction import REDACTED, Redactor
from gputui.store.attempts import Attempt, get_attempt
from gputui.store.runs import get_run
from tests.tui.filling import NOW, Filler, uuid


def test_a_secret_that_is_a_word_of_the_message_does_not_change_the_verdict(tmp_path: Path) -> None:
    secret = "CUDA out of memory"
    (tmp_path / "output.log").write_text(
        'Traceback (most recent call last):\n  File "/x.py", line 3, in <module>\n    main()\n'
        f"torch.OutOfMemoryError: {secret}. Tried to allocate 2.00 GiB. password=hunter2\n"
    )
    attempt = Attempt("r-1", 1, "running", {}, (), {}, 1.0, 1.0)
    task = PostmortemTask(
        folder=tmp_path,
        attempt=attempt,
        exit_record={"code": 1},
        survivors=(),
        launcher="python",
        rebooted=False,
        ended_at=2.0,
        checkpoints=None,
        checkpoints_wanted=0,
        redactor=Redactor([secret]),
    )
    findings = examine(task)
    assert findings.incident.kind == "cuda_oom"
    shown = repr(findings)
    assert REDACTED in shown and secret not in shown and "hunter2" not in shown
    assert any(REDACTED in line for line in findings.incident.evidence_lines)


def test_an_error_of_a_program_on_a_shared_gpu_is_nobodys(workspace: Workspace) -> None:
    with closing(Filler(workspace)) as filler:
        connection = filler.connection
        filler.gpus(1)
        filler.run("a-1", gpus=(0,))
        filler.attempt("a-1", 1, gpus=(0,), started_ago=600.0)
        connection.executemany(
            "INSERT INTO gpu_events (at, uuid, event, code, text) VALUES (?, ?, 'xid', ?, 'x')",
            [(NOW - 10, uuid(0), code) for code in (31, 95)],
        )
        run, attempt = get_run(connection, "a-1"), get_attempt(connection, "a-1", 1)
        assert run is not None and attempt is not None
        alone, shared = (
            {one.kind for one in seen_by_driver(connection, run, attempt, None, NOW, is_shared=is_shared)}
            for is_shared in (False, True)
        )
    assert alone == {"illegal_access", "ecc"} and shared == {"ecc"}
