"""The kinds of incidents, as data."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

SHARED_OOM = "shared_gpu_oom"


class Tier(IntEnum):
    """The distance of a finding from the cause. A nearer one wins, whatever the log's order."""

    CAUSE = 0
    SYMPTOM = 1  # a process timed out waiting; the one it waited for often looks healthy in the log
    CONSEQUENCE = 2  # a process failed because another one ended


class Kind(Struct, frozen=True):
    """One kind of incident, named as in profiles, the database and JSON.

    ``title`` is for headings, ``says`` a sentence in which ``{who}`` is "rank 1" or "the run",
    ``help`` one for the documentation. ``deterministic``: never retried, because it would fail in
    the same way. ``needs_step``: never retried before the first step, as it then suggests a wrong
    setup.
    """

    name: str
    title: str
    says: str
    help: str
    tier: Tier = Tier.CAUSE
    deterministic: bool = False
    needs_step: bool = False


_KINDS = (
    # memory
    Kind("cuda_oom", "out of GPU memory", "{who} ran out of GPU memory",
         "PyTorch or another library could not allocate GPU memory."),
    Kind(SHARED_OOM, "out of the memory of a shared GPU",
         "{who} ran out of GPU memory while other trials were on the GPU",
         "The same for a trial that shared its GPU (trials_per_gpu of a study). From then on "
         "it has a GPU alone."),
    Kind("host_oom", "out of host memory", "{who} ran out of memory on the host",
         "A process got SIGKILL just after the kernel's count of OOM kills rose, or could not "
         "allocate memory."),
    Kind("memory_leak", "host memory leak",
         "{who} held more and more of the host's memory until it was nearly used up",
         "Private memory grew steadily until less than a tenth, or 5 min, was left. gputui "
         "ends the attempt before the kernel does."),
    Kind("shm_full", "shared memory full", "{who} found no room in shared memory (/dev/shm)",
         "Data loader workers or NCCL could not get shared memory; fewer workers need less."),
    # communication
    Kind("nccl_timeout", "collective timed out",
         "{who} waited in vain for the other ranks in a collective operation",
         "The NCCL watchdog or gloo gave up waiting. The log seldom names the missing rank.",
         tier=Tier.SYMPTOM),
    Kind("nccl_error", "NCCL error", "{who} met an NCCL error",
         "NCCL reported an error and no other rank shows an earlier cause.", tier=Tier.SYMPTOM),
    Kind("peer_lost", "lost another rank",
         "{who} lost the connection to another rank, and nothing says why that one ended",
         "A peer closed or reset connections: nearly always because another rank ended.",
         tier=Tier.CONSEQUENCE),
    Kind("rank_left_early", "a rank ended early",
         "{who} ended without an error while the other ranks went on",
         "One rank exited with code 0, then the others failed: usually unevenly divided data."),
    Kind("port_in_use", "port in use", "{who} found its network port already in use",
         "Another process took the rendezvous port, or one that the script listens on."),
    Kind("rendezvous", "ranks did not meet", "{who} could not join the other ranks at the start",
         "The ranks did not find each other in time at the start."),
    Kind("hang", "no progress", "{who} made no progress any more",
         "No new step for longer than the run's own history explains.", tier=Tier.SYMPTOM),
    # ends of processes
    Kind("killed", "killed from outside", "{who} was killed from outside",
         "A process ended by SIGKILL or another such signal, and neither gputui nor the "
         "kernel's OOM killer sent it."),
    Kind("segfault", "crash in native code", "{who} crashed in native code",
         "A process ended by SIGSEGV, SIGBUS, SIGILL, SIGFPE or SIGABRT."),
    Kind("user_exception", "exception in the script", "{who} raised an exception",
         "A Python exception of no other kind. Never retried before the run's first step.",
         needs_step=True),
    Kind("nonzero_exit", "ended with an error code", "{who} ended with an error code",
         "A nonzero exit code without a traceback. Never retried before the run's first step.",
         needs_step=True),
    Kind("stopped_outside", "stopped from outside",
         "{who} was asked to stop, but not through gputui",
         "SIGTERM, SIGINT or SIGHUP arrived from outside: a shutdown, a logout or another "
         "person."),
    Kind("interrupted", "machine rebooted",
         "the machine was rebooted or lost power during the attempt",
         "The machine's boot ID changed while the attempt was running."),
    Kind("shim_lost", "supervisor process lost",
         "the process that watched over the attempt vanished, so that how it ended is not known",
         "No exit record was written: the attempt's supervising process (the shim) was killed."),
    Kind("unkillable", "process cannot be killed", "{who} does not react to SIGKILL",
         "A process hangs in the kernel, usually in the GPU driver, until a reboot; or it "
         "belongs to another user, as a child of sudo does. The attempt's GPUs stay leased "
         "until it is gone.", deterministic=True),
    # a scheduler elsewhere
    Kind("preempted", "preempted", "{who} had to give way to another job on its target",
         "The target's scheduler preempted the job and did not requeue it."),
    Kind("time_limit", "time limit reached", "{who} reached its time limit on its target",
         "The target's scheduler ended the job at its limit and did not requeue it."),
    Kind("node_fail", "node failed", "the node of {who} failed",
         "The target reported the node as failed, or its job ended without any record."),
    # the set-up
    Kind("import_error", "import failed", "{who} could not import a module",
         "ImportError or ModuleNotFoundError: a package is missing in the training environment.",
         deterministic=True),
    Kind("config_error", "wrong set-up", "{who} rejected its arguments or set-up",
         "Wrong arguments (exit code 2), a script that is missing or has a syntax error, or a "
         "set-up that cannot work.", deterministic=True),
    Kind("launch_failed", "could not be started", "the command could not be started",
         "The interpreter or program does not exist or may not be executed.", deterministic=True),
    Kind("lease_conflict", "GPU taken by another home",
         "a GPU was taken meanwhile by a run of another gputui home",
         "The lock file of a GPU was held by another process when the attempt began."),
    Kind("incompatible_checkpoint", "checkpoint does not fit",
         "{who} could not load the checkpoint into this model",
         "Sizes or names in the checkpoint differ from those of the model.", deterministic=True),
    Kind("corrupt_checkpoint", "damaged checkpoint", "{who} could not read the checkpoint",
         "The file that the attempt resumed from is damaged or incomplete."),
    # numbers
    Kind("nan_loss", "loss is not a number", "{who} saw a loss or gradient that is not finite",
         "Loss or gradient norm became NaN or infinite."),
    Kind("loss_spike", "loss jumped", "the loss rose far above its recent course and stayed there",
         "The loss rose far above its recent median for many steps."),
    Kind("straggler", "slow rank", "{who} is much slower than the others",
         "A rank takes much longer per step than the others; a warning, not an end."),
    # hardware and driver
    Kind("illegal_access", "illegal GPU access", "{who} crashed in a GPU kernel",
         "An illegal memory access, a failed device-side assertion or a failed launch."),
    Kind("ecc", "GPU memory error", "{who} met an uncorrectable error in the GPU's memory",
         "An uncorrectable ECC error."),
    Kind("nvlink_error", "NVLink error", "{who} met an NVLink error",
         "An uncorrectable error on the links between GPUs."),
    Kind("gpu_lost", "GPU lost", "{who} lost its GPU",
         "The GPU fell off the bus or the driver calls it lost; it needs a reset or a reboot."),
    Kind("gpu_busy", "GPU not available", "{who} found its GPU busy or unavailable",
         "The GPU is in exclusive use by another process, or needs a reset."),
    Kind("overheating", "GPU too hot", "the GPU of {who} became so hot that it lowered its clocks",
         "The hardware lowers a GPU's clocks because of its temperature; a warning, not an end."),
    Kind("driver_mismatch", "driver does not fit", "{who} could not use the NVIDIA driver",
         "The driver was updated without a reboot, or is too old for this PyTorch.",
         deterministic=True),
    Kind("cuda_init", "CUDA could not start", "{who} could not initialise CUDA",
         "No CUDA device is visible or the driver does not initialise.", deterministic=True),
    # data and disks
    Kind("dataloader_killed", "data loader worker died", "{who} lost a data loader worker",
         "A data loader worker was killed or ended unexpectedly."),
    Kind("bad_sample", "data could not be loaded", "{who} could not load a sample",
         "An exception inside a data loader worker."),
    Kind("dataloader_stall", "data loader timed out", "{who} waited in vain for its data loader",
         "A data loader gave no batch within its timeout; look at the storage."),
    Kind("resource_limit", "limit of files or processes reached",
         "{who} reached a limit on open files, threads or processes",
         "Too many open files, or no further thread or process allowed."),
    Kind("disk_full", "disk full", "{who} found no space left on the disk",
         "Writing failed for lack of space or quota."),
    Kind("read_only_fs", "disk failed", "{who} met a file system that is read-only or failing",
         "The file system became read-only or reported input/output errors.", deterministic=True),
    # gputui's own verdicts
    Kind("crash_loop", "crash loop", "the same trouble came back again and again without progress",
         "Several attempts in a row ended without getting further.", deterministic=True),
    Kind("unknown", "unknown cause", "the run ended for a reason that its logs do not tell",
         "Nothing in the exit status, error files and logs says why; one plain restart is tried."),
)  # fmt: skip

KINDS: dict[str, Kind] = {kind.name: kind for kind in _KINDS}
"""Every kind by its name, in the order of the documentation."""
