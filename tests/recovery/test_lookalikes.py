"""What must not be taken for an incident, or not for that one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gputui.recovery.classify import classify, outcome
from gputui.recovery.evidence import Evidence, EvidenceLog, ExitRecord, Observation, collect
from tests.recovery.attempts import PEER_LOST, lay_out, process_ended, rank_failed, report, traceback

QUOTES = [
    'logger.info("handle out of memory errors: torch.OutOfMemoryError: CUDA out of memory")\n',
    "INFO:root:handle out of memory errors: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "config: {'on_error': 'RuntimeError: NCCL error', 'retry_on': ['CUDA out of memory', 'ncclSystemError']}\n",
    "retry_on: torch.OutOfMemoryError\nmessage: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "OutOfMemoryError: this word stands at the start of a line but no traceback is above it\n",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n",
    "NCCL WARN Error while creating shared memory segment is a message that we handle\n",
    "we saw: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nTo enable traceback see: https://pytorch.org/docs\n",
    "No space left on device\nOSError: [Errno 28] No space left on device (from yesterday's log)\n",
    "loss: nan\nnan\nval/perplexity inf\n",
    "Segmentation fault handler installed\nKilled: 0 Fatal errors: 0\n",
    "epoch 3 | took 3600 s (compile, validation, checkpoint)\n",
]


@pytest.mark.parametrize("quote", QUOTES)
@pytest.mark.parametrize("code", [3, -9])
def test_quoted_messages_count_for_nothing(quote: str, code: int, tmp_path: Path) -> None:
    incident = classify(rank_failed(tmp_path, quote * 3, code=code, stdout=quote))
    assert incident.kind == ("nonzero_exit" if code > 0 else "killed")


@pytest.mark.parametrize("quote", QUOTES)
def test_quotes_beside_a_real_exception_do_not_change_it(quote: str, tmp_path: Path) -> None:
    stderr = quote + traceback("KeyError: 'tokens'", rank=1) + quote
    assert classify(rank_failed(tmp_path, stderr, stdout=quote)).kind == "user_exception"


@pytest.mark.parametrize("quote", QUOTES)
def test_a_run_that_succeeds_is_no_incident_whatever_its_log_says(quote: str, tmp_path: Path) -> None:
    evidence = process_ended(tmp_path, quote + traceback("RuntimeError: CUDA out of memory. Tried"), {"code": 0})
    assert outcome(evidence, stop_intended=False) == "succeeded"


def test_an_exception_that_quotes_another_one_is_itself(tmp_path: Path) -> None:
    stderr = traceback("AssertionError: expected 'CUDA out of memory' in the log", rank=1)
    assert classify(rank_failed(tmp_path, stderr)).kind == "user_exception"


def test_advice_inside_a_message_is_ignored(tmp_path: Path) -> None:
    text = "ValueError: bad mask\nCUDA kernel errors might be asynchronously reported at some other API call\n"
    incident = classify(rank_failed(tmp_path, traceback(text.rstrip(), rank=1)))
    assert incident.kind == "user_exception"


def test_a_caught_exception_far_above_a_plain_exit_is_not_its_cause(tmp_path: Path) -> None:
    stderr = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.") + "step done\n" * 50
    incident = classify(rank_failed(tmp_path, stderr, code=1))
    assert incident.kind == "nonzero_exit"


def test_a_caught_exception_of_a_rank_that_was_only_asked_to_end_is_not_the_cause(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "output.log": report({0: -15, 1: -9}, root=1, asked=(0,)),
            "ranks/0/stderr.log": traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
            "ranks/1/stderr.log": "",
        },
    )
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert (incident.kind, incident.rank) == ("killed", 1)


def test_an_import_tried_in_vain_is_not_the_cause_of_what_happens_without_it(tmp_path: Path) -> None:
    text = (
        traceback("ModuleNotFoundError: No module named 'flash_attn'", rank=1)
        + "\n[rank1]: During handling of the above exception, another exception occurred:\n\n"
        + traceback("KeyError: 'tokens'", rank=1)
    )
    assert classify(rank_failed(tmp_path, text)).kind == "user_exception"


def test_a_connection_lost_while_another_error_is_handled_is_not_the_cause(tmp_path: Path) -> None:
    text = (
        traceback("KeyError: 'tokens'", rank=1)
        + "\n[rank1]: During handling of the above exception, another exception occurred:\n\n"
        + PEER_LOST.format(rank=1)
    )
    incident = classify(rank_failed(tmp_path, text))
    assert incident.kind == "user_exception" and "KeyError" in incident.summary


def test_a_download_that_breaks_off_is_not_a_lost_rank(tmp_path: Path) -> None:
    stderr = traceback("ConnectionResetError: [Errno 104] Connection reset by peer", rank=1)
    assert classify(rank_failed(tmp_path, stderr)).kind == "user_exception"


def test_a_kill_after_an_oom_of_some_other_process_long_ago_needs_the_counter_to_grow(tmp_path: Path) -> None:
    grown = {"code": 1, "oom_kills": {"cgroup": 1, "host": 1}}
    still = {"code": 1, "oom_kills": {"cgroup": 0, "host": 0}}
    elsewhere = {"code": 1, "oom_kills": {"cgroup": 0, "host": 1}}
    host_only = {"code": 1, "oom_kills": {"cgroup": None, "host": 1}}
    unknown = {"code": 1, "oom_kills": {"cgroup": None, "host": None}}
    assert classify(rank_failed(tmp_path / "a", "", code=-9, exit=grown)).kind == "host_oom"
    assert classify(rank_failed(tmp_path / "b", "", code=-9, exit=still)).kind == "killed"
    assert classify(rank_failed(tmp_path / "c", "", code=-9, exit=unknown)).kind == "killed"
    assert classify(rank_failed(tmp_path / "d", "", code=-9, exit=elsewhere)).kind == "killed"
    assert classify(rank_failed(tmp_path / "e", "", code=-9, exit=host_only)).kind == "host_oom"


@pytest.mark.parametrize(
    ("known", "kind"),
    [
        # The log names the rank, whose memory group is its own: neither of the counts that were read grew there.
        ({"oom_victims": [701], "oom_kills": {"cgroup": 0, "host": 1}}, "host_oom"),
        # It was killed from outside while the kernel killed another.
        ({"oom_victims": [7], "oom_kills": {"cgroup": 1, "host": 1}}, "killed"),
        # The log cannot be read: the count of the group that the rank was in.
        ({"oom_victims": None, "oom_kills": {"cgroup": 0, "host": 1, "processes": 1}}, "host_oom"),
        # That group is gone, and with it its count.
        ({"oom_victims": None, "oom_kills": {"cgroup": 0, "host": 1, "processes": None}}, "host_oom"),
        ({"oom_victims": None, "oom_kills": {"cgroup": 0, "host": 1, "processes": 0}}, "killed"),
    ],
)
def test_the_kernels_log_decides_before_the_victims_group_and_that_before_the_host(
    tmp_path: Path, known: dict[str, object], kind: str
) -> None:
    evidence = rank_failed(tmp_path, "", code=-9, exit={"code": 1, **known})
    assert classify(evidence).kind == kind
    assert classify(Evidence.from_json(json.loads(json.dumps(evidence.to_json())))).kind == kind


@pytest.mark.parametrize(("own", "kind"), [([701], "host_oom"), ([], "killed")])
def test_a_child_whose_pid_is_unknown_was_killed_for_memory_if_a_victim_was_of_the_run(
    tmp_path: Path, own: list[int], kind: str
) -> None:
    """It filled a memory group of its own, none of whose counts were read."""
    kills = {"oom_kills": {"cgroup": 0, "host": 1, "processes": 0}, "oom_victims": [7, 701], "oom_own_victims": own}
    output = "subprocess.CalledProcessError: Command '['python', 'fill.py']' died with <Signals.SIGKILL: 9>."
    record = ExitRecord.from_json({"code": 1, "pid": 70, **kills})
    stderr = traceback(output)
    evidence = Evidence(launcher="python", exit=record, tails=(EvidenceLog(None, "output", stderr),))
    assert classify(evidence).kind == kind
    assert classify(Evidence.from_json(json.loads(json.dumps(evidence.to_json())))).kind == kind


def test_a_killed_worker_counts_as_out_of_memory_only_with_the_counter(tmp_path: Path) -> None:
    stderr = traceback("RuntimeError: DataLoader worker (pid 7836) is killed by signal: Killed. ", rank=1)
    grown = {"code": 1, "oom_kills": {"cgroup": 2, "host": None}}
    assert classify(rank_failed(tmp_path / "a", stderr, exit=grown)).kind == "host_oom"
    assert classify(rank_failed(tmp_path / "b", stderr)).kind == "dataloader_killed"


# --- ends that were asked for -----------------------------------------------------------------------------------------


def ended(**exit_record: object) -> Evidence:
    return Evidence(exit=ExitRecord.from_json(exit_record), launcher="torchrun")


@pytest.mark.parametrize(
    ("exit_record", "stop_intended", "expected"),
    [
        ({"code": 0}, False, "succeeded"),
        ({"code": 0}, True, "succeeded"),  # it had finished before the stop arrived
        ({"code": 0, "stop_requested": True}, True, "stopped"),
        ({"code": 1, "stop_requested": True}, True, "stopped"),  # torchrun ends with 1 after a graceful stop
        ({"signal": 9, "stop_requested": True, "forced": True}, True, "stopped"),
        ({"code": 1}, True, "stopped"),  # it crashed before the stop arrived; who stops a run wants it stopped
        ({"code": 0, "stop_requested": True}, False, "failed"),  # a shutdown stopped it; scripts end with 0 then
        ({"code": 1}, False, "failed"),
        ({"signal": 11}, False, "failed"),
        ({"error": "No such file or directory: python9"}, False, "failed"),
        ({"lease_conflict": ["GPU-1"]}, False, "failed"),
    ],
)
def test_outcome(exit_record: dict[str, object], stop_intended: bool, expected: str) -> None:
    assert outcome(ended(**exit_record), stop_intended=stop_intended) == expected


def test_no_exit_record_is_a_failure_unless_a_stop_was_meant() -> None:
    evidence = Evidence(exit=None, launcher="torchrun")
    assert outcome(evidence, stop_intended=False) == "failed"
    assert outcome(evidence, stop_intended=True) == "stopped"


def test_a_hang_that_the_agent_ended_is_a_hang(tmp_path: Path) -> None:
    lay_out(tmp_path, {"output.log": report({0: -15, 1: -15}, root=0, asked=(0, 1)), "ranks/0/stderr.log": ""})
    seen = Observation("hang", 100.0, "no step for 90 s, the longest before was 4 s", rank=1, step=17)
    evidence = collect(
        tmp_path, exit=ExitRecord(code=1, stop_requested=True), ended_at=None, observed=[seen], last_step=17
    )
    incident = classify(evidence)
    assert (incident.kind, incident.rank, incident.step) == ("hang", 1, 17)
    assert outcome(evidence, stop_intended=False) == "failed"


def test_what_ranks_raise_while_they_are_being_ended_is_not_the_cause(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "output.log": "W1120 17:41:57.834000 18925 torch/distributed/elastic/agent/server/api.py:753] "
            "Received 15 death signal, shutting down workers\n",
            "ranks/0/stderr.log": traceback("RuntimeError: cannot finish the step any more", rank=0),
        },
    )
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert incident.kind == "stopped_outside"
