"""One drill for every kind of the catalogue: what an attempt of it leaves, and what must be made of that by the
standard policy. Texts are those that PyTorch 2.13, NCCL 2.27 and CPython 3.11 print."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from gputui.recovery.evidence import Evidence, ExitRecord, ObservedCause, collect
from gputui.runs.spec import Scalar
from tests.recovery.attempts import PEER_LOST, lay_out, rank_failed, recorded, report, traceback

LAST_STEP = 45
EvidenceIn = Callable[[Path], Evidence]


NCCL = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {0}"
WATCHDOG = (
    "[rank1]:[E1120 17:41:57.834000000 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout"
    ": WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
)


@dataclass(frozen=True)
class Drill:
    """``evidence`` is a text that one of the incident's evidence lines must hold; ``actions`` what is done before the
    next attempt; ``changed`` its parameters that differ; ``resumes`` the step of the checkpoint that it begins with."""

    kind: str
    evidence_in: EvidenceIn
    evidence: str
    verdict: Literal["retry", "stop"] = "retry"
    actions: tuple[str, ...] = ("restart",)
    changed: Mapping[str, Scalar] = field(default_factory=dict)
    resumes: int | None = 40
    rank: int | None = 1


def raised(text: str, *, code: int = 1, stderr: str = "", **more: Any) -> EvidenceIn:
    """Rank 1 of two ends with this exception."""
    return lambda folder: rank_failed(
        folder, stderr + traceback(text, rank=1), code=code, **{"last_step": LAST_STEP, **more}
    )


def printed(stderr: str, *, code: int) -> EvidenceIn:
    """Rank 1 of two ends with this code after printing this."""
    return lambda folder: rank_failed(folder, stderr, code=code, last_step=LAST_STEP)


def tape(name: str) -> EvidenceIn:
    """A recorded end of a real torchrun job."""
    case = next(case for case in recorded() if case.name == name)
    return lambda folder: case.evidence(folder)


def observed_cause(kind: str, text: str, rank: int | None = 1) -> EvidenceIn:
    """gputui saw this itself and ended the attempt."""

    def leave(folder: Path) -> Evidence:
        lay_out(folder, {"output.log": report({0: -15, 1: -15}, root=0, signalled=(0, 1)), "ranks/0/stderr.log": ""})
        observed = [ObservedCause(kind, 100.0, text, rank=rank, step=LAST_STEP)]
        record = ExitRecord(code=1, stop_requested=True)
        return collect(folder, exit=record, ended_at=None, observed=observed, last_step=LAST_STEP)

    return leave


def record(rebooted: bool = False, **fields: object) -> EvidenceIn:
    """Only an exit record was left, or none where ``fields`` is empty."""
    exit_record = ExitRecord.from_json(fields) if fields else None
    return lambda folder: Evidence(exit=exit_record, launcher="torchrun", last_step=LAST_STEP, rebooted=rebooted)


def peers_lost(folder: Path) -> Evidence:
    """Every rank lost another one, and nothing says which was first."""
    lost = {f"ranks/{rank}/stderr.log": PEER_LOST.format(rank=rank) for rank in (0, 1)}
    lay_out(folder, {"output.log": report({0: 1, 1: 1}, root=1), **lost})
    return collect(folder, exit=ExitRecord(code=1), ended_at=None, last_step=LAST_STEP)


def killed_for_memory(folder: Path) -> Evidence:
    """A rank ended by SIGKILL when the kernel's count of OOM kills had just grown."""
    grown = {"code": 1, "oom_kills": {"cgroup": 1, "host": 1}}
    return rank_failed(folder, "", code=-9, exit=grown, last_step=LAST_STEP)


DRILLS = [
    # memory
    Drill(
        "cuda_oom",
        tape("oom"),
        "CUDA out of memory",
        changed={"batch_size": 12, "grad_accum": 4},
        resumes=40,
        actions=("shrink_batch",),
    ),
    Drill("shared_gpu_oom", lambda folder: replace(tape("oom")(folder), shared_with=("job-2",)), "CUDA out of memory"),
    Drill("host_oom", killed_for_memory, "OOM killer struck", changed={"num_workers": 2}, actions=("fewer_workers",)),
    Drill(
        "memory_leak",
        observed_cause("memory_leak", "by 9 GiB an hour; the host's memory is full in 4 min", rank=None),
        "by 9 GiB an hour",
        rank=None,
    ),
    Drill(
        "shm_full",
        tape("worker_bus_error"),
        "killed by signal: Bus error",
        changed={"num_workers": 2},
        actions=("fewer_workers",),
    ),
    # communication
    Drill("nccl_timeout", printed(WATCHDOG, code=-6), "Watchdog caught collective operation timeout"),
    Drill("nccl_error", raised(NCCL.format("ncclInternalError: Internal check failed.")), "ncclInternalError"),
    Drill("peer_lost", peers_lost, "Connection closed by peer", rank=1),
    Drill("rank_left_early", tape("rank_left_early_recorded"), "named rank 0 first"),
    Drill("port_in_use", tape("port_in_use"), "EADDRINUSE", rank=None, actions=("new_port",)),
    Drill(
        "rendezvous", tape("rendezvous_store_unreachable"), "C10d store has failed", rank=None, actions=("new_port",)
    ),
    Drill("hang", observed_cause("hang", "no step for 90 s, the longest before was 4 s"), "no step for 90 s"),
    # ends of processes
    Drill("killed", tape("killed"), "SIGKILL"),
    Drill("segfault", tape("segfault"), "SIGSEGV"),
    Drill("user_exception", raised("KeyError: 'tokens'"), "KeyError: 'tokens'"),
    Drill("nonzero_exit", tape("exit_code"), "code 3"),
    Drill("stopped_outside", tape("stopped_outside"), "asked to stop", "stop", resumes=None, rank=None),
    Drill("interrupted", record(rebooted=True), "boot id has changed", "stop", resumes=None, rank=None),
    Drill("shim_lost", record(), "no exit record", rank=None),
    Drill("preempted", record(ended_by="preempted", ended_reason="PREEMPTED"), "PREEMPTED", rank=None),
    Drill("time_limit", record(ended_by="time_limit", ended_reason="TIMEOUT"), "TIMEOUT", rank=None),
    Drill("node_fail", record(ended_by="node_fail", ended_reason="NODE_FAIL: node7"), "node7", rank=None),
    Drill("unkillable", record(code=1, survivors=[4242]), "survives SIGKILL", "stop", resumes=None, rank=None),
    # the set-up
    Drill("import_error", tape("import_error"), "ModuleNotFoundError", "stop", resumes=None),
    Drill("config_error", tape("wrong_argument"), "code 2", "stop", resumes=None, rank=0),
    Drill("launch_failed", record(error="No such file: /p/python9"), "python9", "stop", resumes=None, rank=None),
    Drill(
        "lease_conflict", record(lease_conflict=["GPU-1.lock"]), "lock held by another", rank=None, actions=("wait",)
    ),
    Drill("incompatible_checkpoint", tape("checkpoint_mismatch"), "size mismatch", "stop", resumes=None),
    Drill("corrupt_checkpoint", tape("checkpoint_cut_short"), "OSError: [Errno 22]", resumes=30),
    # numbers
    Drill("nan_loss", raised("FloatingPointError: loss is nan at step 41"), "loss is nan", resumes=40),
    Drill(
        "loss_spike",
        observed_cause("loss_spike", "loss 40 after 2.1", rank=None),
        "loss 40",
        "stop",
        resumes=None,
        rank=None,
    ),
    Drill("straggler", observed_cause("straggler", "rank 1 needs 3 times as long"), "3 times", "stop", resumes=None),
    # hardware and driver
    Drill(
        "illegal_access",
        raised("torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
        "illegal memory access",
    ),
    Drill("ecc", raised("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"), "ECC error"),
    Drill(
        "nvlink_error",
        raised("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
        "NVLink error",
    ),
    Drill("gpu_lost", raised("pynvml.NVMLError_GpuIsLost: GPU is lost"), "GPU is lost", "stop", resumes=None),
    Drill(
        "gpu_busy",
        raised("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
        "busy or unavailable",
        actions=("wait",),
    ),
    Drill(
        "driver_mismatch",
        raised("pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch"),
        "version mismatch",
        "stop",
        resumes=None,
    ),
    Drill("cuda_init", raised("RuntimeError: No CUDA GPUs are available"), "No CUDA GPUs", "stop", resumes=None),
    Drill("overheating", observed_cause("overheating", "GPU 0 at 92 °C"), "92 °C", "stop", resumes=None),
    # data and disks
    Drill("dataloader_killed", tape("worker_killed"), "killed by signal: Killed"),
    Drill("bad_sample", tape("bad_sample"), "label of sample 20"),
    Drill("dataloader_stall", raised("RuntimeError: DataLoader timed out after 60 seconds"), "timed out after 60"),
    Drill(
        "resource_limit",
        tape("open_files"),
        "Too many open files",
        changed={"num_workers": 2},
        actions=("fewer_workers",),
    ),
    Drill("disk_full", tape("disk_full_in_torch_save"), "unexpected pos", actions=("wait_disk",)),
    Drill(
        "read_only_fs",
        raised("OSError: [Errno 30] Read-only file system: '/r/step_10.pt'"),
        "Read-only file system",
        "stop",
        resumes=None,
    ),
    Drill("unknown", record(started_at=1.0), "code None", rank=None),
]
