"""Classification: the cause among several findings, and its sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gputui.recovery.classify import MAX_LINE_CHARACTERS, classify, fingerprint, outcome
from gputui.recovery.evidence import TAIL_BYTES, ErrorFile, Evidence, EvidenceLog, ExitRecord, ObservedCause, collect
from gputui.recovery.kinds import KINDS
from tests.recovery.attempts import PEER_LOST, Case, lay_out, process_ended, rank_failed, recorded, report, traceback
from tests.tables import table
from tests.texts import mentions

TYPO = "NameError: name 'modle' is not defined"
OTHER = "KeyError: 'labels'"
ON_GPU = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {} has a total capacity of 80 GiB"

FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

TYPER = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────╮
│ No such option: --foo Did you mean --food,   │
│ or --fool?                                   │
╰──────────────────────────────────────────────╯
"""
TYRO = """\
╭─ Unrecognized options ─────────────╮
│ Unrecognized options: --foo        │
│ ────────────────────────────────── │
│ For full helptext, run t.py --help │
╰────────────────────────────────────╯
"""
ASCII = "+- Error -----------+\n| No such option: -x |\n+-------------------+\n"

FRAGMENTS = [
    "Traceback (most recent call last):\n", '  File "/a/b.py", line 3, in f\n', "ValueError: x\n",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n", "[rank1]: ", "\n", "\r", "\x00",
    "The above exception was the direct cause of the following exception:\n",
    "Root Cause (first observed failure):\n", "[0]:\n", "  rank      : 1 (local_rank: 1)\n",
    "  exitcode  : -9 (pid: 3) (SIGKILL)\n", "  time      : never\n", "Fatal Python error: Aborted\n",
    "╭── Traceback (most recent call last) ──╮\n", "Last error:\n",
]  # fmt: skip
NOISE = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=30)), max_size=30).map("".join)

RAISED = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/a.py", line 3\n[rank1]: KeyError: 3\n'
NODES = {
    "attempt.json": '{"asks": {"ranks": 1}}', "nodes/0/output.log": report({0: 1}, root=0),
    "nodes/0/ranks/a-1.1_x/attempt_0/0/stderr.log": PEER_LOST.format(rank=0),
    "nodes/1/output.log": report({1: 1}, root=1), "nodes/1/ranks/a-1.1_y/attempt_0/0/stderr.log": RAISED,
}  # fmt: skip

CASES = recorded()


def error_file(message: str, at: int, callstack: str = "") -> str:
    extra = {"py_callstack": callstack or traceback(message), "timestamp": str(at)}
    return json.dumps({"message": {"message": message, "extraInfo": extra}})


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_the_earliest_of_two_causes_wins(tmp_path: Path) -> None:
    blocks = report({0: 1, 1: 1}, root=0)
    first, second = blocks.split("Root Cause")
    earlier = first.replace("17:42:04", "17:41:00") + "Root Cause" + second
    lay_out(
        tmp_path,
        {
            "output.log": earlier,
            "ranks/0/stderr.log": traceback("ValueError: later", rank=0),
            "ranks/1/stderr.log": traceback("KeyError: 'earlier'", rank=1),
        },
    )
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert incident.rank == 1
    assert "earlier" in incident.summary


@table("texts, says, rank", [
    ([TYPO, TYPO], "both ranks raised an exception (NameError: name 'modle' is not defined, train.py:88 in main)", 1),
    ([TYPO] * 3, "all 3 ranks raised an exception", 1), ([TYPO, OTHER], "rank 1 raised an exception (KeyError", 1),
    ([TYPO, TYPO, OTHER, TYPO], "ranks 0, 1 and 3 raised an exception (NameError", 1),
    ([ON_GPU.format(0), ON_GPU.format(1)], "both ranks ran out of GPU memory (tried to allocate 2.00 GiB, train.py", 1),
    (["OSError: [Errno 28] No space left on device", TYPO], "rank 0 found no space left on the disk", 0),
    ([PEER_LOST.format(rank=0).splitlines()[-1].split(": ", 1)[1]] * 2, "rank 1 lost the connection", 1),
])  # fmt: skip
def test_ranks_that_failed_alike_are_told_together(tmp_path: Path, texts: list[str], says: str, rank: int) -> None:
    """Torchrun saw rank 1 fail first, in the same second as the others."""
    logs = {f"ranks/{at}/stderr.log": traceback(text, rank=at) for at, text in enumerate(texts)}
    lay_out(tmp_path, {"output.log": report(dict.fromkeys(range(len(texts)), 1), root=1), **logs})
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert incident.summary.startswith(says)
    assert incident.rank == rank
    verb = "saw rank 1 fail first" if rank == 1 else "named rank 1 first"
    assert f"torchrun: {verb}, with code 1" in incident.evidence_lines


def test_an_exit_code_is_not_explained_by_what_another_rank_said_of_it(tmp_path: Path) -> None:
    logs = {"ranks/0/stderr.log": PEER_LOST.format(rank=0), "ranks/1/stderr.log": ""}
    lay_out(tmp_path, {"output.log": report({0: 1, 1: 3}, root=1), **logs})
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None, last_step=4))
    assert incident.rank == 1
    assert mentions(incident.summary, "rank 1", "code 3")
    logs["ranks/0/stderr.log"] = "fatal: the licence of rank 1 has expired\n"
    lay_out(tmp_path, logs)
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None, last_step=4))
    assert "the licence of rank 1 has expired" in incident.summary


@table("text, at, kind, rank", [
    (FULL, "17:42:04", "cuda_oom", 1), (FULL, "17:42:01", "cuda_oom", 1), (FULL, "17:42:06", "killed", 0),
    ("OSError: [Errno 28] No space left on device", "17:42:04", "disk_full", 1),
    ("RuntimeError: a rank has gone", "17:42:04", "killed", 0),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "17:42:04", "killed", 0),
])  # fmt: skip
def test_ranks_that_a_launcher_kills_when_another_failed_are_a_consequence(
    tmp_path: Path, text: str, at: str, kind: str, rank: int
) -> None:
    """It need not say whom it kills, and all stamps of torchrun may be of one second."""
    before, root = report({0: -9, 1: 1}, root=1).split("Root Cause")
    output = f"{before}Root Cause{root.replace('17:42:04', at)}"
    lay_out(tmp_path, {"output.log": output, "ranks/0/stderr.log": "", "ranks/1/stderr.log": traceback(text, rank=1)})
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert (incident.kind, incident.rank) == (kind, rank)


def test_a_timeout_of_one_rank_gives_way_to_the_crash_of_another(tmp_path: Path) -> None:
    waiting = "RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation"
    lay_out(
        tmp_path,
        {
            "output.log": report({0: 1, 1: -11}, root=0),
            "ranks/0/stderr.log": traceback(waiting, rank=0),
            "ranks/1/stderr.log": "",
        },
    )
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert (incident.kind, incident.rank) == ("segfault", 1)


@table(
    ("record", "kind", "phrase"),
    [
        ({"signal": 9}, "killed", "torchrun was killed from outside (SIGKILL)"),
        (
            {"signal": 9, "oom_kills": {"cgroup": 1, "host": 1}},
            "host_oom",
            "torchrun ran out of memory on the host (SIGKILL)",
        ),
        ({"signal": 11}, "segfault", "torchrun crashed in native code (SIGSEGV)"),
        ({"error": "No such file or directory: /nowhere/python"}, "launch_failed", "/nowhere/python"),
        ({"lease_conflict": ["GPU-77.lock"]}, "lease_conflict", "GPU-77.lock"),
        ({"code": 1, "survivors": [4242]}, "unkillable", "pid 4242"),
        ({"code": 0, "stop_requested": True}, "stopped_outside", "not through gputui"),
        ({"signal": 15, "stop_requested": True, "stop_signal": 2}, "stopped_outside", "SIGINT"),
        ({"code": 1}, "unknown", "for a reason that its logs do not tell (code 1)"),
        (None, "shim_lost", "vanished"),
    ],
)
def test_ends_without_a_word_from_any_rank(
    record: dict[str, object] | None, kind: str, phrase: str, tmp_path: Path
) -> None:
    lay_out(tmp_path, {"output.log": ""})
    exit_record = None if record is None else ExitRecord.from_json(record)
    incident = classify(collect(tmp_path, exit=exit_record, ended_at=None))
    assert incident.kind == kind
    assert phrase in incident.summary


@table("launcher, record, kind", [
    ("python", {"signal": 9}, "killed"), ("python", {"signal": 11}, "segfault"), ("python", {"signal": 15}, "killed"),
    ("python", {"signal": 15, "stop_requested": True}, "stopped_outside"), ("python", {"code": 137}, "nonzero_exit"),
    ("command", {"code": 137}, "killed"), ("command", {"code": 139}, "segfault"),
    ("command", {"code": 255}, "nonzero_exit"), ("python", {"code": 7}, "nonzero_exit"),
])  # fmt: skip
def test_single_processes(launcher: str, record: dict[str, object], kind: str, tmp_path: Path) -> None:
    evidence = process_ended(tmp_path, "step 1\n", record, launcher=launcher)
    assert (classify(evidence).kind, classify(evidence).rank) == (kind, None)
    assert classify(evidence).exit_code == record.get("code")


def test_exit_code_2_before_the_first_step_is_a_wrong_argument(tmp_path: Path) -> None:
    usage = "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --lrr 1\n"
    early = classify(process_ended(tmp_path / "a", usage, {"code": 2}, last_step=None))
    assert early.kind == "config_error"
    assert "unrecognized arguments: --lrr 1" in early.summary
    assert classify(process_ended(tmp_path / "b", usage, {"code": 2}, last_step=40)).kind == "nonzero_exit"


@table("usage, reason", [
    (TYPER, "(No such option: --foo Did you mean --food, or --fool?)"), (TYRO, "(Unrecognized options: --foo)"),
(ASCII, "(No such option: -x)"), ("ERROR: Could not consume arg: --foo\nUsage: t.py <flags>\n", "consume arg: --foo)"),
])  # fmt: skip
def test_the_reason_of_a_usage_error_is_the_line_in_its_box(usage: str, reason: str, tmp_path: Path) -> None:
    early = classify(process_ended(tmp_path / "a", usage, {"code": 2}, last_step=None))
    assert early.kind == "config_error"
    assert reason in early.summary
    late = classify(process_ended(tmp_path / "b", usage, {"code": 3}))
    assert late.kind == "nonzero_exit"
    assert "──" not in late.summary
    assert "--)" not in late.summary


def test_what_was_printed_before_later_steps_is_no_reason(tmp_path: Path) -> None:
    evidence = process_ended(tmp_path, "config: {'lr': 3}\n", {"code": 3})
    (tail,) = evidence.tails
    for seconds, is_quoted in ((-0.5, True), (0.5, False), (None, True)):
        later = None if seconds is None else (tail.written_at or 0.0) + seconds
        incident = classify(replace(evidence, last_step_at=later))
        assert incident.kind == "nonzero_exit"
        assert ("lr" in incident.summary) == is_quoted


def test_an_error_that_was_printed_before_later_steps_is_no_reason(tmp_path: Path) -> None:
    caught = "ERROR: caught\n" + traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")
    evidence = process_ended(tmp_path, caught, {"code": 2})
    (tail,) = evidence.tails
    printed_at = tail.written_at or 0.0
    # A step that is stamped after the end comes from a wrong clock and proves nothing.
    for seconds, kind in ((30.0, "nonzero_exit"), (0.5, "cuda_oom"), (3600.0, "cuda_oom")):
        later = replace(evidence, last_step_at=printed_at + seconds, ended_at=printed_at + 40.0)
        assert (seconds, classify(later).kind) == (seconds, kind)


def test_a_missing_module_names_the_python_that_missed_it_and_no_other_kind_does(tmp_path: Path) -> None:
    python = "/env/bin/python, the first python on PATH outside gputui's own environment"
    for error, is_named in (("ModuleNotFoundError: No module named 'x'", True), ("ValueError: x", False)):
        evidence = rank_failed(tmp_path / error, traceback(error), python=python)
        assert mentions(classify(evidence).summary, python) is is_named


def test_the_step_is_taken_from_the_message_where_it_names_one(tmp_path: Path) -> None:
    stderr = traceback("RuntimeError: injected crash at step 41 on rank 1", rank=1)
    assert classify(rank_failed(tmp_path / "a", stderr, last_step=40)).step == 41
    assert classify(rank_failed(tmp_path / "b", traceback("ValueError: x", rank=1), last_step=40)).step == 40
    assert classify(rank_failed(tmp_path / "c", traceback("ValueError: x", rank=1), last_step=None)).step is None


def test_error_files_of_both_formats_are_read(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "output.log": report({0: -15, 1: 1}, root=1, signalled=(0,)),
            "ranks/1/error.json": json.dumps(
                {"message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 3.00 GiB"}
            ),
        },
    )
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert (incident.kind, incident.rank) == ("cuda_oom", 1)
    assert "3.00 GiB" in incident.summary


# --- what cannot be trusted -------------------------------------------------------------------------------------------


def test_escape_sequences_do_not_get_through(tmp_path: Path) -> None:
    stderr = traceback("ValueError: \x1b]0;owned\x07\x1b[2J bad \x9b31m thing\x00", rank=1)
    incident = classify(rank_failed(tmp_path, stderr))
    for text in (incident.summary, *incident.evidence_lines):
        assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 for char in text)


def test_secrets_in_messages_are_redacted(tmp_path: Path) -> None:
    secret = "hf_" + "aB3" * 12
    stderr = traceback(f"ValueError: {'x' * 120} {secret} and https://me:hunter2@host/path", rank=1)
    incident = classify(rank_failed(tmp_path, stderr))
    text = "\n".join((incident.summary, *incident.evidence_lines))
    assert "hunter2" not in text
    assert "hf_aB3" not in text
    assert "[redacted]" in text


@table("length, is_whole", [(60, True), (300, True), (900, True), (3000, False)])
def test_a_sentence_is_stored_whole_unless_it_is_endless(tmp_path: Path, length: int, is_whole: bool) -> None:
    text = ("word " * length)[: length - 5] + " last"
    of_script = classify(rank_failed(tmp_path, traceback(f"ValueError: {text}", rank=1))).summary
    of_agent = classify(Evidence(observed=(ObservedCause("hang", 100.0, text, rank=0),))).summary
    for summary in (of_script, of_agent):
        assert ("last" in summary) is is_whole
        assert is_whole or summary.endswith("word…")


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    lay_out(tmp_path, {"output.log": report({0: -15, 1: 1}, root=1, signalled=(0,)), "ranks/1/stderr.log": ""})
    path = tmp_path / "nodes" / "0" / "ranks" / "job-1.1_x7f3k2" / "attempt_0" / "1" / "stderr.log"
    with path.open("wb") as file:
        file.truncate(3 << 30)  # a hole: 3 GiB that take no room
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + traceback("RuntimeError: CUDA out of memory. Tried to allocate 1 GiB", rank=1).encode())
    evidence = collect(tmp_path, exit=ExitRecord(code=1), ended_at=None)
    assert classify(evidence).kind == "cuda_oom"
    assert sum(len(tail.text) for tail in evidence.tails) < 2 * TAIL_BYTES


@given(NOISE, NOISE, st.none() | st.integers(-70, 300), st.sampled_from(["torchrun", "python", "command"]))
def test_any_text_gives_an_incident_and_never_an_error(
    output: str, stderr: str, code: int | None, launcher: str
) -> None:
    tails = EvidenceLog(rank=None, stream="output", text=output), EvidenceLog(1, "stderr", stderr)
    errors = (ErrorFile(1, output, stderr, 3.0),)
    incident = classify(Evidence(ExitRecord(code=code), launcher, errors=errors, tails=tails))
    assert incident.kind in KINDS
    assert incident.summary
    assert "\n" not in incident.summary
    assert len(incident.fingerprint) == 16
    assert len(incident.evidence_lines) <= 20


# --- fingerprints -----------------------------------------------------------------------------------------------------


def test_fingerprints_ignore_numbers_addresses_and_paths() -> None:
    text = "ValueError: bad value 17 at 0x7f00ab in /home/a/x.py (pid 4242)"
    first = fingerprint("user_exception", text)
    second = fingerprint("user_exception", "ValueError: bad value 4 at 0x55aa in /data/run-3/y.py (pid 9)")
    assert first == second
    assert fingerprint("user_exception", "ValueError: worse value 17") != first
    assert fingerprint("nan_loss", text) != first


@table(
    ("record", "expected"),
    [
        (ExitRecord(survivors=(42,), stop_requested=True, forced=True), "failed"),
        # The command itself has ended; the processes that it left behind are reported in addition.
        (ExitRecord(code=1, survivors=(42,), stop_requested=True), "stopped"),
    ],
)
def test_what_cannot_be_killed_was_not_stopped(record: ExitRecord, expected: str) -> None:
    assert outcome(Evidence(exit=record, launcher="command"), stop_intended=True) == expected
    assert classify(Evidence(exit=record, launcher="command")).kind == "unkillable"


def test_an_end_without_a_word_on_a_full_disk_had_no_room_for_one(tmp_path: Path) -> None:
    full = ExitRecord(code=1, disk_free_bytes=4096)
    incident = classify(collect(tmp_path, exit=full, ended_at=None, launcher="python", last_step=5))
    assert incident.kind == "disk_full"
    assert "4 KiB" in incident.summary
    roomy = ExitRecord(code=1, disk_free_bytes=1 << 30)
    incident = classify(collect(tmp_path, exit=roomy, ended_at=None, launcher="python", last_step=5))
    assert incident.kind == "nonzero_exit"
    lay_out(tmp_path, {"output.log": traceback("ValueError: 3 channels")})
    incident = classify(collect(tmp_path, exit=full, ended_at=None, launcher="python", last_step=5))
    assert incident.kind == "user_exception"


@table("text, kills, kind, rank", [
    ("RuntimeError: [gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711", 0, "killed", 1),
    ("RuntimeError: a rank has gone", 0, "killed", 1), ("RuntimeError: a rank has gone", 1, "host_oom", 1),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", 0, "cuda_oom", None),
])  # fmt: skip
def test_the_rank_that_a_signal_ended_is_named_where_its_launcher_is_a_script(
    tmp_path: Path, text: str, kills: int, kind: str, rank: int | None
) -> None:
    """Lightning's first process meets the loss before it asks how the other ended; a known cause of its own counts."""
    lay_out(tmp_path, {"output.log": traceback(text)})
    killed = {"rank": 1, "pid": 77, "signal": 9}
    record = ExitRecord.from_json({"code": 1, "killed_ranks": [killed], "oom_kills": {"cgroup": kills}})
    evidence = collect(tmp_path, exit=record, ended_at=None, launcher="python")
    assert Evidence.from_json(json.loads(json.dumps(evidence.to_json()))) == evidence
    incident = classify(evidence)
    assert (incident.kind, incident.rank) == (kind, rank)


def test_launchers_of_several_nodes_each_report_their_own_ranks(tmp_path: Path) -> None:
    """Their stamps are of one second, so that only the ranks' own messages tell which was first."""
    case = Case("nodes", "", rank=None, last_step=4, launcher="torchrun", exit={"code": 1}, files=NODES)
    incident = classify(case.evidence(tmp_path / "one"))
    assert (incident.kind, incident.rank) == ("user_exception", 1)
    # The report of another node names the failed rank, so no rank is said to have left early.
    lost = {**NODES, "nodes/1/ranks/a-1.1_y/attempt_0/0/stderr.log": PEER_LOST.format(rank=1)}
    incident = classify(
        Case("nodes", "", rank=None, last_step=4, launcher="torchrun", exit={"code": 1}, files=lost).evidence(
            tmp_path / "two"
        )
    )
    assert (incident.kind, incident.rank) == ("peer_lost", 0)


@table("case", CASES)
def test_recorded_end_is_taken_for_what_it_was(case: Case, tmp_path: Path) -> None:
    evidence = case.evidence(tmp_path)
    incident = classify(evidence)
    assert (incident.kind, incident.rank) == (case.kind, case.rank)
    assert incident.step == case.last_step
    assert outcome(evidence, stop_intended=False) == "failed"
    assert incident.summary
    assert incident.evidence_lines
    assert all(
        "\n" not in line and len(line) <= MAX_LINE_CHARACTERS for line in (incident.summary, *incident.evidence_lines)
    )
    stored = Evidence.from_json(json.loads(json.dumps(evidence.to_json())))
    assert stored == evidence
    assert classify(stored) == incident


def test_the_rank_that_died_is_named_and_the_other_called_a_consequence(tmp_path: Path) -> None:
    incident = classify(case_of("oom").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("cuda_oom", 1)
    assert "2.00 GiB" in incident.summary
    assert "job.py:28 in main" in incident.summary
    assert incident.witnesses[0] == "exit"
    assert len(incident.witnesses) == len(incident.evidence_lines)
    beginnings = (
        "rank 1: torch.OutOfMemoryError:",
        "rank 0, as a consequence: RuntimeError:",
        "rank 1: raised at job.py:28",
    )
    for start in beginnings:
        assert any(line.startswith(start) for line in incident.evidence_lines), start


def test_the_same_trouble_has_the_same_fingerprint_with_or_without_error_files(tmp_path: Path) -> None:
    prints = {
        classify(case_of(name).evidence(tmp_path / name)).fingerprint
        for name in ("oom_wrapped", "oom_wrapped_recorded")
    }
    assert len(prints) == 1
    of_kill = classify(case_of("killed").evidence(tmp_path / "killed")).fingerprint
    assert of_kill not in prints


def test_a_data_loaders_own_exception_is_quoted(tmp_path: Path) -> None:
    incident = classify(case_of("bad_sample").evidence(tmp_path))
    assert (incident.kind, incident.rank) == ("bad_sample", 1)
    assert mentions(incident.summary, "KeyError: ", "sample 20")
    assert "job.py:55" in incident.summary
