"""Each text of the catalogue, where a program writes it, is taken for its kind."""

# ruff: noqa: E501 - texts as they are printed

from __future__ import annotations

import json
import re
from pathlib import Path

from gputui.recovery.classify import classify
from gputui.recovery.evidence import AttemptGpus
from gputui.recovery.kinds import KINDS, Kind
from gputui.recovery.signatures import EXCEPTIONS, LINES
from tests.recovery.attempts import process_ended, rank_failed, traceback
from tests.tables import table
from tests.texts import mentions

ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)
NCCL = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {0}, NCCL version 2.27.5\n{1}"

# fmt: off
RAISED = [
    *(("cuda_oom", text) for text in """RuntimeError: CUDA driver error: out of memory
RuntimeError: Triton Error [CUDA]: out of memory
RuntimeError: cuda runtime error (2) : out of memory at /pytorch/aten/src/THC/THCGeneral.cpp:50
RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED
RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(handle)`
RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
RuntimeError: hipErrorOutOfMemory
jaxlib.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 34359738368 bytes.
jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate request for 2.00GiB
x.errors_impl.ResourceExhaustedError: OOM when allocating tensor on /device:GPU:0
x.errors_impl.InternalError: Failed copying input tensor: Dst tensor is not initialized.
cupy.cuda.memory.OutOfMemoryError: Out of memory allocating 8,589,934,592 bytes.
cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory
MemoryError: std::bad_alloc: RMM failure at:/pool.hpp:196: Maximum pool size exceeded
numba.cuda.cudadrv.driver.CudaAPIError: [2] Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY
Fail: [ONNXRuntimeError] : 1 : FAIL : CUDA failure 2: out of memory ; GPU=0
x.Fail: [ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer
torch.OutOfMemoryError: Allocation on device
my.lib.GpuOutOfMemoryError
RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB
RuntimeError: Error: 'err == cudaSuccess' failed: StandardGpuResources: alloc fail type Temp dev 0 size 1610612736 bytes
xgboost.core.XGBoostError: x.cuh:423: Memory allocation error on worker 0: bad_alloc: cudaErrorMemoryAllocation
pycuda._driver.MemoryError: cuMemAlloc failed: out of memory
jaxlib.XlaRuntimeError: INTERNAL: Failed to allocate 123456 bytes for new constant on GPU
RuntimeError: Unable to find a valid cuDNN algorithm to run convolution
RuntimeError: GET was unable to find an engine to execute this computation
x.errors_impl.NotFoundError: No algorithm worked! Error messages:
RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`
RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`
RuntimeError: Failed to create cuBLAS handle
XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed.""".splitlines()),
    ("cuda_oom", NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes")),
    ("host_oom", NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA host alloc 608 bytes")),
    ("nccl_error", NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 1 'invalid argument'")),
    ("host_oom", "py4j.protocol.Py4JJavaError: An error occurred: java.lang.OutOfMemoryError: Java heap space"),
    ("host_oom", "pyarrow.lib.ArrowMemoryError: malloc of size 123 failed"),
    ("host_oom", "x.ResourceExhaustedError: OOM when allocating tensor on /device:CPU:0"),
    ("host_oom", "ray.exceptions.OutOfMemoryError: T killed due to the node running low on memory"),
    ("host_oom", "RuntimeError: cudaHostAlloc failed: out of memory"),
    ("host_oom", "RuntimeError: unable to mmap 9 bytes from file <m>: Cannot allocate memory (12)"),
    ("host_oom", "MemoryError: std::bad_alloc"),
    ("shm_full", "RuntimeError: unable to mmap 9 bytes from file </torch_1>: Cannot allocate memory (12)"),
    ("resource_limit", "RuntimeError: unable to open shared memory object </t>: Too many open files (24)"),
    ("cuda_oom", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB of which 11.25 MiB is free. Process 4242 has 79.08 GiB memory in use. Of the allocated memory 77.00 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."),
    ("cuda_oom", "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total capacity)"),
    ("cuda_oom", "torch.AcceleratorError: CUDA error: out of memory" + ASYNC),
    ("cuda_oom", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("cuda_oom", "torch.OutOfMemoryError: Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit"),
    ("cuda_oom", NCCL.format("unhandled cuda error (run with NCCL_DEBUG=INFO for details)", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'")),
    ("host_oom", "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000000 bytes. Error code 12 (Cannot allocate memory)"),
    ("host_oom", "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array with shape (1000000,)"),
    ("host_oom", "OSError: [Errno 12] Cannot allocate memory"),
    ("shm_full", NCCL.format("unhandled system error (run with NCCL_DEBUG=INFO for details)", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-XYZ123 (size 9637888), error: No space left on device (28)")),
    ("shm_full", "RuntimeError: unable to write to file </torch_4242_1>: No space left on device (28)"),
    ("shm_full", "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1234'"),
    *(("shm_full", f"RuntimeError: {text}") for text in (
        "/dev/shm is full", "insufficient shared memory (shm)", "unable to open shared memory object </torch_1>: No space left on device (28)",
        "the partition /dev/shm is too small", "[Errno 28] No space left on device: '/psm_1'",
    )),
    ("shm_full", NCCL.format("unhandled system error", "ncclSystemError: System call failed.\nLast error:\nError: failed to extend /dev/shm/nccl-X to 33030532 bytes, error: No space left on device (28)")),
    ("disk_full", "OSError: [Errno 28] No space left on device"),
    ("disk_full", "safetensors_rust.SafetensorError: Error while serializing: I/O error: Disk quota exceeded (os error 122)"),
    ("disk_full", "h5py.X: unable to write (errno = 122, error message = 'Disk quota exceeded')"),
    ("disk_full", "OSError: [Errno 122] Disk quota exceeded: 'step_10.pt'"),
    ("disk_full", "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"),
    ("disk_full", "RuntimeError: PytorchStreamWriter failed writing file data/12: file write failed"),
    ("read_only_fs", "OSError: [Errno 30] Read-only file system: '/data/run/step_10.pt'"),
    ("read_only_fs", "OSError: [Errno 5] Input/output error"),
    ("read_only_fs", "RuntimeError: [Errno 116] Stale file handle: '/data/train/shard-3.tar'"),
    ("read_only_fs", "x.IoError: Stale NFS file handle (os error 116)"),
    ("resource_limit", "RuntimeError: unable to create thread: Resource temporarily unavailable"),
    ("resource_limit", 'pyo3_runtime.PanicException: The global thread pool has not been initialized.: ThreadPoolBuildError { kind: IOError(Os { code: 11, message: "Resource temporarily unavailable" }) }'),
    ("resource_limit", "OSError: [Errno 24] Too many open files: '/data/a.jpg'"),
    ("resource_limit", "RuntimeError: received 0 items of ancdata"),
    ("resource_limit", "RuntimeError: can't start new thread"),
    ("resource_limit", "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
    ("ecc", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered" + ASYNC),
    ("nvlink_error", "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("nvlink_error", "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
    ("gpu_lost", "pynvml.NVMLError_GpuIsLost: GPU is lost"),
    ("gpu_busy", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable" + ASYNC),
    ("driver_mismatch", "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch"),
    ("driver_mismatch", "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"),
    ("illegal_access", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered" + ASYNC),
    ("illegal_access", "RuntimeError: CUDA error: device-side assert triggered" + ASYNC),
    ("cuda_init", "RuntimeError: CUDA error: invalid device ordinal" + ASYNC),
    ("cuda_init", "RuntimeError: No CUDA GPUs are available"),
    ("cuda_init", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver"),
    ("cuda_init", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized"),
    ("port_in_use", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"),
    ("port_in_use", "OSError: [Errno 98] Address already in use"),
    ("rendezvous", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("rendezvous", "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:23456"),
    ("rendezvous", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError"),
    ("config_error", NCCL.format("invalid usage (run with NCCL_DEBUG=WARN for details)", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000")),
    ("nccl_error", NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 999 'unknown'")),
    ("nccl_error", NCCL.format("unhandled system error", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\nsocketStartConnect: Connect to 10.0.0.2<5555> failed : Software caused connection abort")),
    ("nccl_error", NCCL.format("internal error", "ncclInternalError: Internal check failed.\nLast error:\nsomething odd")),
    ("nccl_timeout", "torch.distributed.DistBackendError: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out."),
    ("nccl_timeout", "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv operation to complete"),
    ("nccl_timeout", "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 2000 ms"),
    ("dataloader_stall", "RuntimeError: DataLoader timed out after 60 seconds"),
    ("dataloader_killed", "RuntimeError: DataLoader worker (pid 7836) is killed by signal: Killed. "),
    ("dataloader_killed", "RuntimeError: DataLoader worker (pid(s) 7858, 7859) exited unexpectedly"),
    ("bad_sample", 'ValueError: Caught ValueError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n  File "/venv/torch/utils/data/_utils/worker.py", line 374, in _worker_loop\n    data = fetcher.fetch(index)\nValueError: cannot read image 17'),
    ("disk_full", 'OSError: Caught OSError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n  File "/home/me/cache.py", line 3, in put\n    file.write(data)\nOSError: [Errno 28] No space left on device'),
    ("incompatible_checkpoint", 'RuntimeError: Error(s) in loading state_dict for GPT:\n\tMissing key(s) in state_dict: "h.0". '),
    ("incompatible_checkpoint", "ValueError: loaded state dict contains a parameter group that doesn't match the size of optimizer's group"),
    ("incompatible_checkpoint", "trainer.errors.CheckpointError: checkpoint /r/step_00000040.pt was made with --width 32, this run has 64; use the same value, or --resume none"),
    ("corrupt_checkpoint", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal miniz error."),
    ("corrupt_checkpoint", "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value"),
    ("corrupt_checkpoint", "EOFError: Ran out of input"),
    ("corrupt_checkpoint", "safetensors_rust.SafetensorError: Error while deserializing header: InvalidHeaderDeserialization"),
    ("corrupt_checkpoint", "CheckpointError: checkpoint /r/step_00000040.pt is corrupt: sha256 mismatch"),
    ("nan_loss", "FloatingPointError: loss is nan and the gradient norm 3.2 at step 41"),
    ("nan_loss", "RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output."),
    ("nan_loss", "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0"),
    ("nan_loss", "ValueError: Expected parameter logits (Tensor of shape (1, 3)) of distribution Categorical() to satisfy the constraint IndependentConstraint(Real(), 1), but found invalid values:\ntensor([[nan, 1., 2.]])"),
    ("nan_loss", "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."),
    ("nan_loss", "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped."),
    ("nan_loss", "AssertionError: loss is nan"),
    ("config_error", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, use spawn"),
    ("config_error", "AssertionError: Torch not compiled with CUDA enabled"),
    ("config_error", "ValueError: ResNetForImageClassification does not support activation checkpointing."),
    ("config_error", "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False."),
    ("import_error", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("import_error", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
    ("user_exception", "KeyError: 'tokens'"),
    ("user_exception", "__main__.main.<locals>.StrangeError: what a day"),
    ("user_exception", "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"),
]

PRINTED = [
    *(("cuda_oom", 1, f"{text}\n") for text in """Error out of memory at line 380 in file /bnb/pythonInterface.c
GPUassert: out of memory main.cu 12
CUDA error at x.cu:12 code=2(cudaErrorMemoryAllocation) "cudaMalloc(&p, n)"
ggml_backend_cuda_buffer: allocating 4096.00 MiB: cudaMalloc failed: out of memory""".splitlines()),
    *(("cuda_oom", 1, f"{text}\n") for text in """Error: CUDA out of memory. Tried to allocate 2.00 GiB
2026-11-28 10:00:00.1 | ERROR    | __main__:main:5 - CUDA out of memory. Tried to allocate 2.00 GiB
{"levelname": "ERROR", "message": "CUDA out of memory. Tried to allocate 2.00 GiB"}
ERROR: LoadError: Out of GPU memory trying to allocate 1.000 GiB
called `Result::unwrap()` on an `Err` value: DriverError(CUDA_ERROR_OUT_OF_MEMORY, "out of memory")""".splitlines()),
    *(("cuda_oom", -6, f"terminate called after throwing an instance of {text}\n") for text in (
        "'std::runtime_error'\n  what():  CUDA error: out of memory",
        "'dmlc::Error'\n  what():  [10:00:00] x.cu:12: Check failed: e == cudaSuccess: cudaMalloc failed: out of memory",
        "'std::invalid_argument'\n  what():  GPU alloc failed",
        "'faiss::FaissException'\n  what():  Error in allocMemory at x.cpp:452:\nError: 'e == cudaSuccess' failed: failed to cudaMalloc 12 bytes (error 2 out of memory)\nFatal Python error: Aborted",
    )),
    ("cuda_oom", -6, "libc++abi: terminating due to uncaught exception of type std::runtime_error: CUDA error: out of memory\n"),
    ("disk_full", 1, "ERROR: could not save: No space left on device\n"),
    ("read_only_fs", 1, "Error: cannot read shard 3: Stale file handle\n"),
    ("resource_limit", 1, "libgomp: Thread creation failed: Resource temporarily unavailable\n"),
    ("resource_limit", -11, "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 64: Resource temporarily unavailable\n"),
    ("resource_limit", -6, "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable\n"),
    ("host_oom", 1, "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have been OOM Killed.\n"),
    ("host_oom", -9, "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0.\nsrun: error: n1: task 0: Out Of Memory\n"),
    ("nan_loss", 1, "/pytorch/TensorCompare.cu:112: f: block: [0,0,0], thread: [0,0,0] Assertion `probability tensor contains either `inf`, `nan` or element < 0` failed.\n" + traceback("torch.AcceleratorError: CUDA error: device-side assert triggered", rank=1)),
    ("shm_full", 1, "box:1:2 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n" + traceback(NCCL.format("unhandled system error", "ncclSystemError: System call failed."), rank=1)),
    ("host_oom", 1, "(raylet) [2026] 1 Workers killed due to memory pressure (OOM)\n"),
    ("nccl_timeout", -6, "[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL()\n"),
    ("cuda_oom", -6, "terminate called after throwing an instance of 'rmm::out_of_memory'\n  what():  std::bad_alloc: CUDA error at: x.hpp:70: cudaErrorMemoryAllocation out of memory\n"),
    ("nccl_timeout", -6, "[rank1]:[E1120 17:41:57.834000000 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n[rank1]:[E1120 17:41:58.834000000 ProcessGroupNCCL.cpp:683] [Rank 1] To avoid data inconsistency, we are taking the entire process down.\n"),
    ("nccl_timeout", -6, "[rank1]:[F1120 17:49:57.834000000 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0 Rank 1] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n"),
    ("shm_full", 1, "box:4242:4343 [1] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-XYZ (size 9637888), error: No space left on device (28)\n" + traceback(NCCL.format("unhandled system error", "ncclSystemError: System call failed."), rank=1)),
    ("cuda_oom", 1, "box:4242:4343 [1] transport/p2p.cc:222 NCCL WARN Cuda failure 2 'out of memory'\n" + traceback(NCCL.format("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed."), rank=1)),
    ("shm_full", 1, "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n\x00" + traceback("RuntimeError: DataLoader worker (pid(s) 7858) exited unexpectedly", rank=1)),
    ("nan_loss", 1, "Loss is nan, stopping training\n{'loss': nan}\n"),
    ("illegal_access", -6, "terminate called after throwing an instance of 'c10::AcceleratorError'\n  what():  CUDA error: an illegal memory access was encountered\nFatal Python error: Aborted\n"),
    ("segfault", -11, "Fatal Python error: Segmentation fault\n"),
    ("segfault", -7, ""),
    ("killed", -9, ""),
    ("killed", -15, ""),
    ("nonzero_exit", 3, ""),
    ("user_exception", 1, "╭─────── Traceback (most recent call last) ───────╮\n│ train.py:3 in main   │\n╰──────────╯\nKeyError: 'x'\n"),
]

NO_ENGINE = "RuntimeError: FIND was unable to find an engine to execute this computation"
FULL = AttemptGpus(1, 97.0)
ROOMY = AttemptGpus(1, 30.0)
UNSAMPLED = AttemptGpus(1)
NONE = AttemptGpus()

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"
RICH = """\
\x1b[31m╭─ \x1b[1mTraceback (most recent call last) ─╮\x1b[0m
\x1b[31m│\x1b[0m train.py:9 in main                 \x1b[31m│\x1b[0m
\x1b[31m╰────────────────────────────────────╯\x1b[0m
\x1b[1;91mtorch.OutOfMemoryError: \x1b[0mCUDA out of
memory. Tried to allocate 2.00 GiB.
"""


# fmt: on


@table("kind, exception", RAISED)
def test_exception_of_a_rank_or_a_single_process(kind: str, exception: str, tmp_path: Path) -> None:
    """A single process has no prefix that tells where a message of several lines ends."""
    of_rank = classify(rank_failed(tmp_path / "rank", traceback(exception, rank=1)))
    output = "step 40 loss 1.2\n" + traceback(exception)
    of_process = classify(process_ended(tmp_path / "process", output, {"code": 1}))
    assert (of_rank.kind, of_rank.rank, of_process.kind, of_process.rank) == (kind, 1, kind, None)


@table("kind, code, stderr", PRINTED)
def test_what_native_code_prints(kind: str, code: int, stderr: str, tmp_path: Path) -> None:
    """PyTorch's C++ writes the month without a leading zero."""
    for month in ("1120", "515"):
        printed = re.sub(r"\[([EFW])1120 ", rf"[\g<1>{month} ", stderr)
        incident = classify(rank_failed(tmp_path / month, printed, code=code))
        assert (incident.kind, incident.rank) == (kind, 1)


@table("exception, kinds", [
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", ("cuda_oom",) * 4),
    (NO_ENGINE, ("cuda_oom", "user_exception", "cuda_oom", "cuda_oom")),
    ("RuntimeError: out of memory", ("cuda_oom", "user_exception", "cuda_oom", "user_exception")),
    ("MemoryError: out of memory", ("host_oom",) * 4),
    ("redis.exceptions.OutOfMemoryError: command not allowed", ("cuda_oom", "user_exception") * 2),
])  # fmt: skip
def test_the_gpus_decide_about_texts_that_only_mostly_mean_their_memory(
    exception: str, kinds: tuple[str, ...], tmp_path: Path
) -> None:
    for number, (gpus, kind) in enumerate(zip((FULL, ROOMY, UNSAMPLED, NONE), kinds, strict=True)):
        evidence = rank_failed(tmp_path / str(number), traceback(exception, rank=1), gpus=gpus)
        assert (gpus, classify(evidence).kind) == (gpus, kind)


@table("exception, kind", [
    ("ValueError: Loss is nan, stopping training", "nan_loss"), ("RuntimeError: grad norm = nan", "nan_loss"),
    ("RuntimeError: val loss did not improve; best 0.3, inf", "user_exception"),
    ("ValueError: loss reduction 'nan' is not valid", "user_exception"),
    ("KeyError: 'train/loss/nan'", "user_exception"),
])  # fmt: skip
def test_only_a_loss_that_is_no_number_is_one(exception: str, kind: str, tmp_path: Path) -> None:
    assert classify(rank_failed(tmp_path, traceback(exception, rank=1))).kind == kind


@table("value", ["no", 3, None, {"frames": 3}, [1, {"a": 2}]])
def test_frames_of_any_form_in_a_json_line_are_read(value: object, tmp_path: Path) -> None:
    line = json.dumps({"exc_value": "no", "exc_type": value, "frames": value})
    assert classify(process_ended(tmp_path, f"step 1\n{line}\n", {"code": 1})).kind


@table("output", [
    RICH, re.sub("(?m)^", "web-1  | ", RICH),
    *(re.sub("(?m)^(?=.)", prefix, traceback(OOM) + "done\n") for prefix in (
        "3: ", "\x1b[36m(RayTrainWorker pid=4711)\x1b[0m ", "name-1  | ", "2026-11-26 18:00:01,5 - main - ERROR - ",
        "[2026-11-26T18:00:01Z] ", "ERROR:root:",
    )),
    re.sub(r"(\S*Error|line|main)", "\x1b[1;35m\\1\x1b[0m", traceback(OOM)),
])  # fmt: skip
def test_colours_boxes_and_prefixes_hide_no_exception(output: str, tmp_path: Path) -> None:
    incident = classify(process_ended(tmp_path, f"step 1\n{output}srun: error: exit code 1\n", {"code": 1}))
    assert incident.kind == "cuda_oom"
    assert "\x1b" not in incident.summary
    assert "2.00 GiB" in incident.summary


@table("prefix", ["", "web-1  | ", "2026-11-26 18:00:01 ERROR "])
@table("record", [
    {"event": "failed", "exception": traceback(OOM)}, {"level": "error", "error": {"stack": ["x", traceback(OOM)]}},
    {"event": "failed", "exception": [{"exc_type": "OutOfMemoryError", "exc_value": "Tried to allocate 2.00 GiB", "frames": [
        {"filename": "/home/me/train.py", "lineno": 88, "name": "main"}]}]},
    {"message": "no " * 2000, "exc_info": "x\n" + traceback(OOM), "time": 3},
])  # fmt: skip
def test_a_traceback_inside_of_a_json_line_is_read(record: dict[str, object], prefix: str, tmp_path: Path) -> None:
    output = f"{prefix}{json.dumps({'event': 'step', 'loss': 1})}\n{prefix}{json.dumps(record)}\n"
    incident = classify(process_ended(tmp_path, output, {"code": 1}))
    assert incident.kind == "cuda_oom"
    assert mentions(incident.summary, "2.00 GiB", "train.py:88")
    of_rank = classify(rank_failed(tmp_path / "rank", "", stdout=output))
    assert (of_rank.kind, of_rank.rank) == ("cuda_oom", 1)


def test_a_prefix_before_the_ranks_own_is_removed(tmp_path: Path) -> None:
    lines = "".join(f"3: {line}\n" for line in traceback(OOM, rank=3).splitlines())
    incident = classify(process_ended(tmp_path, lines, {"code": 1}, launcher="command"))
    assert (incident.kind, incident.rank) == ("cuda_oom", 3)


def test_nccl_warnings_are_found_on_standard_output_too(tmp_path: Path) -> None:
    warning = "box:4242:4343 [1] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-XYZ (size 9)\n"
    stderr = traceback(NCCL.format("unhandled system error", "ncclSystemError: System call failed."), rank=1)
    assert classify(rank_failed(tmp_path, stderr, stdout=warning)).kind == "shm_full"


def test_every_kind_has_a_sentence_and_every_signature_a_kind() -> None:
    assert {signature.kind for signature in (*EXCEPTIONS, *LINES)} <= set(KINDS)
    for kind in KINDS.values():
        sentence = kind.says.format(who="rank 1")
        assert sentence
        assert not sentence.endswith(".")
        assert "{" not in sentence
        assert kind.help.endswith(".")
        assert kind.title


def test_a_new_kind_of_incident_answers_every_question() -> None:
    assert Kind.__struct_defaults__ == ()
