"""Signatures: the texts by which incidents are recognised, as data.

The texts are those of PyTorch 2 (c10, torch.distributed, torch.utils.data, the caching allocator),
NCCL 2, gloo, CUDA's error strings and CPython, and how other libraries (Triton, XLA, TensorFlow,
CuPy, RMM, ONNX Runtime, Ray, HIP) say that memory ran out. Two sorts:

- EXCEPTIONS match an exception that ended a process: its ``Type: message``.
- LINES match whole lines of a log, from their start: what native code prints before it ends.

Lines that only give advice are removed before anything is compared."""

from __future__ import annotations

import re
from itertools import pairwise

from msgspec import Struct

from gputui.recovery.kinds import KINDS, Tier
from gputui.recovery.tracebacks import Chain, Raised, bare
from gputui.runs.logs import lines_of


class Signature(Struct, frozen=True):
    """A pattern and the kind that it indicates. The first match of a table wins.

    Attributes:
        pattern: searched in ``Type: message`` (EXCEPTIONS) or matched from a line's start (LINES).
        within: a function that the exception must have passed through; None for any.
        weak: any other exception of the same chain wins, because this one often only reports it.
        tier: overrides the kind's tier.
    """

    kind: str
    pattern: re.Pattern[str]
    within: re.Pattern[str] | None = None
    weak: bool = False
    tier: Tier | None = None

    @property
    def rank(self) -> Tier:
        return KINDS[self.kind].tier if self.tier is None else self.tier


def _raises(
    kind: str, *patterns: str, within: str | None = None, weak: bool = False, tier: Tier | None = None
) -> Signature:
    text = "|".join(f"(?:{pattern})" for pattern in patterns)
    return Signature(kind, re.compile(text, re.MULTILINE), re.compile(within) if within else None, weak, tier)


def _prints(kind: str, pattern: str) -> Signature:
    return Signature(kind, re.compile(pattern))


# Recommendations in messages, which are no evidence.
ADVICE = re.compile(
    r"If reserved but unallocated memory is large.*"
    r"|See documentation for Memory Management.*"
    r"|CUDA kernel errors might be asynchronously reported.*"
    r"|For debugging consider passing CUDA_LAUNCH_BLOCKING.*"
    r"|Compile with `TORCH_USE_CUDA_DSA`.*"
    r"|Device-side assertions were explicitly omitted.*"
    r"|Search for `cuda\w+' in https?://\S+ for more information.*"
    r"|To enable traceback see:.*"
    r"|Please try to raise your shared memory limit\."
    r"|This is typically caused by a remote worker.*"
    r"|Check the logs of the remote worker.*"
    r"|In PyTorch 2\.6, we changed the default value.*"
)

# How CUDA's and HIP's interfaces, and libraries on top of them, say that a GPU has no memory left.
_GPU = r"(?i:\b(?:CUDA|HIP|ROCm|GPU(?:assert)?|Triton)(?:\b|_)|\b(?:cu|cuda|hip)(?:Mem|Malloc|Error))"
_FULL = r"(?<!not )(?<!not an )(?i:out[ _]of[ _]memory)|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
_GPU_FULL = rf"(?={_GPU}).*(?:{_FULL})"
# The types that libraries raise for lack of memory; others only quote it.
_NATIVE = (
    r"\A(?:[\w:]+[.:])*(?:Exception|system_error|(?!\w*Warning)\w*(?:Runtime|[Mm]emory|CUDA|Cuda|HIP|Hip|API|System"
    r"|Internal|Accelerator|MXNet|XGBoost|LightGBM|Logic|Fail)\w*): "
)
# A program that goes on after lack of memory, or speaks of it, is not ended by it.
_ENDED = r"(?!.*(?i:recover|fall(?:ing|s)? ?back|retry|would))"

EXCEPTIONS: tuple[Signature, ...] = (
    # Memory first: the texts of other layers quote it.
    _raises("host_oom", r"killed due to the node running low on memory",
            r"\bcuda(?:HostAlloc|MallocHost|HostRegister)\b.*out of memory",
            r"^(?:\w+\.)*ResourceExhaustedError: .*\bdevice:CPU:"),
    _raises("cuda_oom",
            r"^(?:\w+\.)*OutOfMemoryError: .*(?i:out of memory|tried to allocate|preemptively rejected)",
            r"\A\S*Error: (?:CUDA|HIP|CUDA error:|HIP error:) out of memory",
            _NATIVE + rf"(?:.*[^'\"`\w])?{_GPU_FULL}",
            _NATIVE + r".*\b(?:CU|HIP|ROC)[A-Z]+_(?:STATUS_)?(?:INTERNAL_ERROR_DEVICE_)?ALLOC(?:ATION)?_FAILED\b",
            _NATIVE + r"RESOURCE_EXHAUSTED: .*(?i:out of memory|failed to allocate|to reserve)",
            r"\A(?:\w+\.)*ResourceExhaustedError: .*(?:OOM when|failed to allocate memory|Graph execution error)",
            r"\[ONNXRuntimeError\] .*(?:Failed to allocate memory for requested buffer|smaller than requested bytes)",
            r"\bRMM failure at:.*Maximum pool size exceeded",
            r"^(?:\w+\.)*InternalError: .*Dst tensor is not initialized",
            r"would exceed per_process_memory_fraction limit",
            r"Cuda failure (?:\d+ )?'out of memory'"),
    _raises("resource_limit", r"unable to \w+ .*: Too many open files \(24\)"),
    _raises("shm_full", r"Error while creating shared memory segment",
            r"is killed by signal: Bus error",
            r"unable to (?:allocate|resize|mmap|write to)(?: \d+ bytes from)? (?:shared memory|file </torch_)",
            r"unable to open shared memory object .*\((?:12|28)\)", r"\[Errno 28\] .*'/dev/shm/"),
    _raises("host_oom", r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"^(?:\w+\.)*_?(?:Array)?MemoryError\b", r"\Abad_alloc: std::bad_alloc\Z",
            r"\[Errno 12\] Cannot allocate memory",
            r"unable to mmap .*: Cannot allocate memory \(12\)"),
    # Disks
    _raises("disk_full", r"\[Errno 28\]", r"\[Errno 122\]",
            r"\[enforce fail at inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+",
            r"PytorchStreamWriter failed writing file", r"\bNo space left on device"),
    _raises("read_only_fs", r"\[Errno 30\]", r"\[Errno 5\] Input/output error"),
    _raises("resource_limit", r"\[Errno 24\]", r"received 0 items of ancdata",
            r"can't start new thread", r"\[Errno 11\] Resource temporarily unavailable"),
    # GPUs and driver
    _raises("ecc", r"uncorrectable ECC error encountered"),
    _raises("nvlink_error", r"uncorrectable NVLink error detected", r"Invalid access of peer GPU memory over nvlink"),
    _raises("gpu_lost", r"\bGPU is lost\b", r"NVMLError_GpuIsLost", r"[Ff]allen off the bus"),
    _raises("gpu_busy", r"CUDA-capable device\(s\) is/are busy or unavailable"),
    _raises("driver_mismatch", r"Driver/library version mismatch",
            r"driver version is insufficient for CUDA runtime version",
            r"NVIDIA driver on your system is too old"),
    _raises("illegal_access",
            r"(?:CUDA|HIP) error: (?:an illegal memory access|an illegal instruction|misaligned address|"
            r"device-side assert triggered|unspecified launch failure|invalid program counter|"
            r"operation not supported on global/shared address space|the launch timed out)",
            r"Cuda failure (?:\d+ )?'(?:an illegal memory access|unspecified launch failure)"),
    _raises("cuda_init", r"no CUDA-capable device is detected",
            r"CUDA error: (?:initialization error|system not yet initialized|invalid device ordinal|unknown error)",
            r"CUDA driver initialization failed", r"Unexpected error from cudaGetDeviceCount",
            r"Found no NVIDIA driver on your system", r"No CUDA GPUs are available"),
    # The start: before "lost another rank", whose texts appear in these as well.
    _raises("port_in_use", r"\bEADDRINUSE\b", r"\[Errno 98\]", r"server socket has failed to (?:listen|bind)"),
    _raises("rendezvous", r"^(?:\w+\.)*Rendezvous\w*Error\b", r"Gloo connectFullMesh failed",
            r"Timed out after \d+ seconds waiting for clients",
            r"client socket has (?:timed out|failed to connect)"),
    # Communication
    _raises("config_error", r"\bncclInvalidUsage\b"),
    _raises("peer_lost", r"\bncclRemoteError\b",
            r"gloo/\S+\] .*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Socket closed)",
            r"Application timeout caused pair closure",
            r"\b(?:recvValue|recvVector|sendBytes|recvBytes) failed\b",
            r"failed to recv, got 0 bytes", r"NCCL communicator was aborted on rank"),
    _raises("nccl_timeout", r"Watchdog caught collective operation timeout",
            r"watchdog got stuck for \d+ seconds",
            r"gloo/\S+\] Timed out waiting \d+ms for (?:recv|send) operation",
            r"failed to pass monitoredBarrier in \d+ ms",
            r"^(?:\w+\.)*DistStoreError: .*(?:wait timeout|[Tt]imed out)"),
    _raises("nccl_error", r"\bnccl(?:UnhandledCuda|System|Internal)Error\b",
            r"^(?:\w+\.)*DistBackendError: NCCL error in:"),
    # Data
    _raises("dataloader_stall", r"\ARuntimeError: DataLoader timed out after"),
    _raises("dataloader_killed", r"\ARuntimeError: DataLoader worker \(pid \d+\) is killed by signal"),
    _raises("dataloader_killed",
            r"\ARuntimeError: DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly", weak=True),
    # Checkpoints
    _raises("incompatible_checkpoint", r"Error\(s\) in loading state_dict for",
            r"loaded state dict (?:has a different number of|contains a) parameter group",
            r"CheckpointError: checkpoint .* was made with "),
    _raises("corrupt_checkpoint", r"PytorchStreamReader failed",
            r"invalid header or archive is corrupted", r"^(?:\w+\.)*UnpicklingError: ",
            r"^EOFError: Ran out of input", r"^(?:\w+\.)*SafetensorError: ",
            r"^(?:\w+\.)*BadZipFile: ", r"files saved in the legacy \.tar format",
            r"CheckpointError: checkpoint .* (?:is corrupt|cannot be (?:used|read|loaded))"),
    _raises("corrupt_checkpoint",
            r"\A(?:OSError|EOFError|KeyError|(?:\w+\.)*RuntimeError|ValueError)\b(?!: Attempting to deserialize)",
            within=r"torch/serialization\.py in _?(?:legacy_)?load\Z"),
    # Numbers
    _raises("nan_loss", r"^FloatingPointError: (?=.*\b(?:nan|inf)\b)",
            r"Function '\w+' returned nan values in its \d+th output"),
    # The set-up
    _raises("config_error", r"\A(?:SyntaxError|IndentationError|TabError): ",
            r"Cannot re-initialize CUDA in forked subprocess",
            r"Torch not compiled with CUDA enabled",
            r"Attempting to deserialize object on a CUDA device but", r"\ASettingsError: ",
            r"does not support (?:activation|gradient) checkpointing"),
    _raises("import_error", r"\A(?:ModuleNotFoundError|ImportError): ", weak=True),
    _raises("bad_sample", r"\A\S+: Caught \w+ in DataLoader worker process", weak=True),
    # Ends on request
    _raises("stopped_outside", r"^(?:\w+\.)*SignalException: Process \d+ got signal:", tier=Tier.CONSEQUENCE),
    _raises("stopped_outside", r"^KeyboardInterrupt\b", tier=Tier.CONSEQUENCE),
)  # fmt: skip

_NCCL_LOG = r"(?:\[\S+ \S+\] )?\S+:\d+:\d+ \[\d+\] (?:\S+ )?(?:\S+:\d+ )?NCCL WARN .*"
_TORCH_LOG = r"\[[EF](?:\d{3,4} [\d:.]+)? (?:\d+ )?ProcessGroupNCCL\.cpp:\d+\] .*"

LINES: tuple[Signature, ...] = (
    _prints("nccl_timeout",
            _TORCH_LOG + r"(?:Watchdog caught collective operation timeout|watchdog got stuck for \d+ seconds)"),
    _prints("shm_full", _NCCL_LOG + r"Error while creating shared memory segment"),
    _prints("shm_full", r"ERROR: Unexpected bus error encountered in worker\."),
    _prints("cuda_oom", _NCCL_LOG + r"Cuda failure (?:\d+ )?'out of memory'"),
    # Native code that names its source file, and exits.
    _prints("cuda_oom", rf"{_ENDED}(?=.*\.(?:c|cc|cpp|cu|cuh|h|hpp|hip)\W+\d)\[?{_GPU_FULL}"),
    _prints("cuda_oom", r"Error out of memory at line \d+ in file "),
    _prints("cuda_oom", rf"{_ENDED}\w+: .*\bcudaMalloc failed: out of memory"),
    _prints("host_oom", r"\(raylet\b.*\bkilled due to (?:memory pressure|the node running low on memory)"),
    _prints("driver_mismatch", r"Failed to initialize NVML: Driver/library version mismatch"),
    _prints("nan_loss", r"Loss is (?:nan|inf), stopping training"),
    _prints("config_error", r"\S*python[\d.]*: can't (?:open file|find '__main__' module)"),
    _prints("import_error", r"\S*python[\d.]*: (?:No module named \S+|Error while finding module specification for )"),
)  # fmt: skip

_TERMINATE = re.compile(r"^terminate called after throwing an instance of '([^']+)'")
_WHAT = re.compile(r"^\s+what\(\):\s+(.*)$")


def without_advice(text: str) -> str:
    """The message without recommendations."""
    return ADVICE.sub("", text).strip()


def match_exception(raised: Raised) -> Signature | None:
    """The first signature that an exception matches, or None."""
    text = without_advice(raised.text)
    for signature in EXCEPTIONS:
        if signature.pattern.search(text) and (
            signature.within is None or any(signature.within.search(step) for step in raised.path)
        ):
            return signature
    return None


def match_chain(chain: Chain) -> tuple[Raised, Signature | None]:
    """The most informative exception of a chain, and its signature, None if it matches none.

    A known cause counts anywhere in the chain, because other exceptions may follow from it. A weak
    one counts only at the end: programs try an import and continue without it."""
    matched = [(raised, match_exception(raised)) for raised in reversed(chain.raised)]
    last, signature = matched[0]
    known = [(raised, found) for raised, found in matched if found is not None and not found.weak]
    for raised, found in known:
        if found.rank is Tier.CAUSE:
            return raised, found
    if signature is not None and signature.rank is not Tier.CONSEQUENCE:
        return last, signature
    for raised, found in known:
        if found.rank is Tier.SYMPTOM:
            return raised, found
    unknown = [raised for raised, found in matched if found is None]
    if signature is not None:
        # The connection broke while another error was being handled.
        return (unknown[0], None) if unknown else (last, signature)
    return known[0] if known else (last, None)


def match_lines(text: str) -> list[tuple[Signature, str]]:
    """Lines of native code that indicate an incident, with their signatures, in the order of the
    log."""
    matches = []
    for line in lines_of(text):
        line = bare(line)
        for signature in LINES:
            if signature.pattern.match(line):
                matches.append((signature, line))
                break
    return matches


def terminate_message(text: str) -> Raised | None:
    """The C++ exception that ended a process, as the C++ runtime prints it."""
    raised = None
    lines = [*(bare(line) for line in lines_of(text)), ""]
    for line, after in pairwise(lines):
        if match := _TERMINATE.match(line):
            message = _WHAT.match(after)
            raised = Raised(match[1].rsplit("::", 1)[-1], message[1] if message else "")
    return raised
