"""Lookalikes: texts that are no incident, or not that one."""

from __future__ import annotations

from pathlib import Path

from gputui.recovery.classify import classify, outcome
from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from gputui.recovery.process_ends import printed_at_end
from gputui.recovery.wrappers import without_commands, wrapped_code
from tests.recovery.attempts import PEER_LOST, lay_out, process_ended, rank_failed, report, traceback
from tests.tables import table

QUOTES = [
    'logger.info("handle out of memory errors: torch.OutOfMemoryError: CUDA out of memory")\n',
    "INFO:root:handle out of memory errors: RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "config: {'on_error': 'RuntimeError: NCCL error', 'retry_on': ['CUDA out of memory', 'ncclSystemError']}\n",
    "retry_on: torch.OutOfMemoryError\nmessage: CUDA out of memory. Tried to allocate 2.00 GiB\n",
    "OutOfMemoryError: this word stands at the start of a line but no traceback is above it\n",
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB\n",
    "2026-01-01: I external/xla/cuda_driver.cc:1101] failed to allocate 2.00GiB: CUDA_ERROR_OUT_OF_MEMORY\n",
    "NCCL WARN Error while creating shared memory segment is a message that we handle\n",
    "we saw: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)\n",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nTo enable traceback see: https://pytorch.org/docs\n",
    "warn: cudaMalloc failed: out of memory, falling back to host memory\n",
    "CUDA: model.cc:3 recovered from out of memory\nGPU 0: config.cpp:12 would be out of memory at 64\n",
    "No space left on device\nOSError: [Errno 28] No space left on device (from yesterday's log)\n",
    "loss: nan\nnan\nval/perplexity inf\n", "Segmentation fault handler installed\nKilled: 0 Fatal errors: 0\n",
    "ERROR: CUDA out of memory, skipping batch\n", "Error: CUDA out of memory\n" + "step done\n" * 6,
    '{"level": "info", "event": "CUDA out of memory is retried"}\n',
    "on_error: CUDA out of memory\n", "gpu: {'error': 'CUDA out of memory'}\n",
    "epoch 3 | took 3600 s (compile, validation, checkpoint)\n",
]  # fmt: skip

IMPORT = traceback("ModuleNotFoundError: No module named 'flash_attn'", rank=1)
KEY = traceback("KeyError: 'tokens'", rank=1)

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
COMMAND = "['/v/bin/python', 'train.py', '--lr', '0.1', '--name', 'a long one']"
RETURNED = f"subprocess.CalledProcessError: Command '{COMMAND}' returned non-zero exit status {{code}}."
DIED = f"subprocess.CalledProcessError: Command '{COMMAND}' died with <Signals.SIGKILL: 9>."
OBSERVER = (
    "[rank: 1] Child process with PID 77 terminated with code {code}. Forcefully terminating all other processes to "
    "avoid zombies 🧟\n"
)


@table("quote", QUOTES)
def test_quoted_messages_count_for_nothing(quote: str, tmp_path: Path) -> None:
    ended = {code: classify(rank_failed(tmp_path / f"{code}", quote * 3, code=code, stdout=quote)) for code in (3, -9)}
    assert {code: incident.kind for code, incident in ended.items()} == {3: "nonzero_exit", -9: "killed"}
    raised = quote + traceback("KeyError: 'tokens'", rank=1) + quote
    assert classify(rank_failed(tmp_path / "raised", raised, stdout=quote)).kind == "user_exception"
    well = quote + traceback("RuntimeError: CUDA out of memory. Tried")
    assert outcome(process_ended(tmp_path / "well", well, {"code": 0}), stop_intended=False) == "succeeded"


@table("exception", [
    "AssertionError: expected 'CUDA out of memory' in the log",
    "ValueError: on_error may be CUDA out of memory or none",
    "RuntimeError: no rule for 'CUDA out of memory'",
    "FileNotFoundError: no file cuda_out_of_memory.log",
    "argparse.ArgumentError: argument --gpu-oom: what to do when the GPU is out of memory",
    "UserWarning: GPU near out of memory",
    "RuntimeError: CUDA assertion in step 3; this is not an out of memory",
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376",
    "google.api_core.exceptions.ResourceExhausted: 429 RESOURCE_EXHAUSTED: Quota exceeded for GPU",
    "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
    "RuntimeError: unable to open shared memory object </torch_5_1> in read-write mode: No such file or directory (2)",
    "ValueError: bad mask\nCUDA kernel errors might be asynchronously reported at some other API call",
    "ValueError: loss must be finite, may not be nan", "RuntimeError: could not find an engine named sqlite",
    "RuntimeError: no rule for out of memory on 'CUDA'",
    "ConnectionResetError: [Errno 104] Connection reset by peer",
])  # fmt: skip
def test_exceptions_that_only_read_like_known_ones(exception: str, tmp_path: Path) -> None:
    assert classify(rank_failed(tmp_path, traceback(exception, rank=1))).kind == "user_exception"


def test_a_caught_exception_far_above_a_plain_exit_is_not_its_cause(tmp_path: Path) -> None:
    stderr = traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.") + "step done\n" * 50
    incident = classify(rank_failed(tmp_path, stderr, code=1))
    assert incident.kind == "nonzero_exit"


def test_a_caught_exception_of_a_rank_that_was_only_asked_to_end_is_not_the_cause(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "output.log": report({0: -15, 1: -9}, root=1, signalled=(0,)),
            "ranks/0/stderr.log": traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
            "ranks/1/stderr.log": "",
        },
    )
    incident = classify(collect(tmp_path, exit=ExitRecord(code=1), ended_at=None))
    assert (incident.kind, incident.rank) == ("killed", 1)


@table("end, remarks", [("", 1), ("done\n", 0), ("\n", 1)])
def test_a_process_that_ends_well_after_an_exception_is_remarked_on(tmp_path: Path, end: str, remarks: int) -> None:
    output = traceback("KeyError: 'tokens'") + end
    assert len(printed_at_end(process_ended(tmp_path / "1", output, {"code": 0}))) == remarks
    assert printed_at_end(process_ended(tmp_path / "2", f"Exception ignored in: <f>\n{output}", {"code": 0})) == []


@table("first, then", [(IMPORT, KEY), (KEY, PEER_LOST.format(rank=1))])
def test_an_import_tried_in_vain_or_a_connection_lost_over_an_error_is_not_the_cause(
    tmp_path: Path, first: str, then: str
) -> None:
    between = "\n[rank1]: During handling of the above exception, another exception occurred:\n\n"
    incident = classify(rank_failed(tmp_path, first + between + then))
    assert incident.kind == "user_exception"
    assert "KeyError" in incident.summary


def test_a_kill_after_an_oom_of_some_other_process_long_ago_needs_the_counter_to_grow(tmp_path: Path) -> None:
    counts = {(1, 1): "host_oom", (0, 0): "killed", (0, 1): "killed", (None, 1): "host_oom", (None, None): "killed"}
    kinds = {}
    for cgroup, host in counts:
        record = {"code": 1, "oom_kills": {"cgroup": cgroup, "host": host}}
        kinds[cgroup, host] = classify(rank_failed(tmp_path / f"{cgroup}{host}", "", code=-9, exit=record)).kind
    assert kinds == counts


# --- ends that were asked for -----------------------------------------------------------------------------------------


@table(
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
        (None, False, "failed"),
        (None, True, "stopped"),
    ],
)
def test_outcome(exit_record: dict[str, object] | None, stop_intended: bool, expected: str) -> None:
    record = None if exit_record is None else ExitRecord.from_json(exit_record)
    assert outcome(Evidence(exit=record, launcher="torchrun"), stop_intended=stop_intended) == expected


def test_a_hang_that_the_agent_ended_is_a_hang(tmp_path: Path) -> None:
    lay_out(tmp_path, {"output.log": report({0: -15, 1: -15}, root=0, signalled=(0, 1)), "ranks/0/stderr.log": ""})
    cause = ObservedCause("hang", 100.0, "no step for 90 s, the longest before was 4 s", rank=1, step=17)
    evidence = collect(
        tmp_path, exit=ExitRecord(code=1, stop_requested=True), ended_at=None, observed=[cause], last_step=17
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


@table("launcher, output, record, kind, rank, expected", [
    ("command", traceback("wandb.errors.UsageError: No API key") + traceback(RETURNED.format(code=1)), {"code": 1},
     "user_exception", None, "UsageError: No API key, train.py:88 in main"),
    ("python", traceback(RETURNED.format(code=3)), {"code": 1}, "nonzero_exit", None, "code 3"),
    ("python", traceback(DIED), {"code": 1}, "killed", None, "SIGKILL"),
    ("python", '{"event": "no file x", "level": "error"}\n', {"code": 3}, "nonzero_exit", None,
     "(code 3: error: no file"),
    ("python", "step 1\nboom: x too large\n", {"code": 1}, "nonzero_exit", None, "(code 1: boom: x too large)"),
    ("command", "make: *** [Makefile:2: train] Error 7\n", {"code": 2}, "nonzero_exit", None, "code 7"),
    ("command", "make: *** [Makefile:2: train] Error 137\n", {"code": 2}, "killed", None, "SIGKILL"),
    ("command", "make: *** [Makefile:2: train] Killed\n", {"code": 2}, "killed", None, "SIGKILL"),
    ("command", "make[1]: *** [train] Segmentation fault (core dumped)\nmake: *** [all] Error 2\n", {"code": 2},
     "segfault", None, "SIGSEGV"),
    ("command", traceback(OOM) + "".join(f"epoch {n}\n" for n in range(30)) + "make: *** [t] Error 3\n", {"code": 2},
     "nonzero_exit", None, "code 3"),
    ("python", OBSERVER.format(code=-9), {"signal": 9}, "killed", 1, "SIGKILL"),
    ("python", traceback(OOM, rank=1) + OBSERVER.format(code=1), {"signal": 9}, "cuda_oom", 1, "2.00 GiB"),
    ("command", traceback("KeyError: 'a'", rank=1), {"code": 1}, "user_exception", 1, "KeyError: 'a'"),
    ("command", traceback(RETURNED.format(code=128), rank=0), {"code": 1}, "user_exception", 0,
     "subprocess.CalledProcessError: python ended with code 128"),
])  # fmt: skip
def test_the_cause_is_what_the_wrapper_started(
    launcher: str, output: str, record: dict[str, object], kind: str, rank: int | None, expected: str, tmp_path: Path
) -> None:
    incident = classify(process_ended(tmp_path, output, record, launcher=launcher))
    assert (incident.kind, incident.rank) == (kind, rank)
    assert expected in incident.summary
    assert "--lr" not in incident.summary


def test_the_innermost_wrapper_says_how_it_ended() -> None:
    assert wrapped_code(f"{RETURNED.format(code=7)}\nmake: *** [t] Error 1\n") == 7
    assert wrapped_code("step 1\n") is None
    assert without_commands(DIED).split(": ") == ["subprocess.CalledProcessError", "python ended by signal 9"]
    assert without_commands("CUDA out of memory") == "CUDA out of memory"
