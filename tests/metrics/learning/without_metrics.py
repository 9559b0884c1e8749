# ruff: noqa: E501 (lines as programs print them)
"""Output of programs that measure no training: nothing may be learned from it."""

from __future__ import annotations

import json
import random

_RANDOM = random.Random(0)


def _many(count: int, form: str, **values: object) -> str:
    """Lines of one form with numbers that vary: ``{i}`` counts, ``{x}`` is a fraction, ``{n}`` a number of bytes."""
    return "\n".join(
        form.format(i=i, x=_RANDOM.random(), n=_RANDOM.randrange(10**6), s=i % 60, **values) for i in range(count)
    )


LOGS: dict[str, str] = {
    "pip": "Collecting torch==2.13.0\n"
    + "\r".join(f"     {'━' * (i // 5)} {i}.3/202.6 MB 3.{i % 10} MB/s eta 0:00:{i % 60:02d}" for i in range(1, 200))
    + "\nInstalling collected packages: mpmath, sympy-1.13.1, torch\nSuccessfully installed mpmath-1.3.0 torch-2.13.0",
    "uv": "Resolved 45 packages in 1.23s\nPrepared 12 packages in 4.5s\nInstalled 45 packages in 210ms\n + numpy==2.1.3",
    "tqdm download": "\r".join(
        f"model.safetensors: {i}%|{'█' * (i // 10):10}| {i * 45}M/4.5G [00:{i % 60:02d}<01:{i % 60:02d}, 30.{i % 10}MB/s]"
        for i in range(100)
    ),
    "wget": _many(30, "{n}K .......... .......... .......... .......... ..........  {i}%  {x:.2f}M {i}s"),
    "curl": "  % Total    % Received % Xferd  Average Speed   Time    Time     Time  Current\n"
    + _many(20, "{i}  100M   {i}  {n}    0     0  {n}      0  0:00:{s:02d}  0:00:{s:02d}  0:00:{s:02d} {n}"),
    "torchvision": "Downloading https://example.org/cifar-10-python.tar.gz to ./data\n"
    + "\r".join(f"{i}.{i % 10}%" for i in range(100)) + "\nExtracting ./data/cifar-10-python.tar.gz",
    "pytest": "============ test session starts ============\nplatform linux -- Python 3.11.4, pytest-8.3.1\n"
    + "\n".join(f"tests/test_loss_{i}.py ........ [{i * 10:3d}%]" for i in range(1, 11))
    + "\n============ 80 passed, 2 skipped in 12.34s ============",
    "unittest": _many(5, "test_accuracy_{i} (tests.test_model.Loss.test_{i}) ... ok") + "\nRan 5 tests in 0.123s\n\nOK",
    "durations": "slowest durations\n" + _many(9, "{x:.2f}s call     tests/test_train.py::test_loss_{i}"),
    "access log": _many(
        40, '10.0.{i}.7 - - [28/Nov/2026:10:00:{s:02d} +0000] "GET /loss/{i} HTTP/1.1" 200 {n} "-" "curl/8.5.0" {x:.3f}'
    ),
    "uvicorn": _many(20, 'INFO:     127.0.0.1:{n} - "POST /predict?step={i} HTTP/1.1" 200 OK'),
    "nvidia-smi": "\n".join(
        "+-----------------------------------------------------------------------------------------+\n"
        "| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |\n"
        "|=========================================+========================+======================|\n"
        f"|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |\n"
        f"| N/A   {30 + i}C    P0             {60 + i}W /  400W |   {i * 100}MiB /  81920MiB |     {i}%      Default |"
        for i in range(12)
    ),
    "dmon": "# gpu    pwr  gtemp  mtemp     sm    mem\n# Idx      W      C      C      %      %\n"
    + _many(30, "    0     {i}     4{i}      -     {i}     {s}"),
    "ls -l": "total 48\n" + _many(20, "-rw-r--r-- 1 root root {n:8d} Nov 28 10:{s:02d} checkpoint_{i}_loss.pt"),
    "du and df": _many(8, "{n}\t./runs/epoch_{i}") + "\n/dev/sda1  100G  {i}G  50G  50% /",
    "config yaml": "model:\n  depth: 12\n  width: 768\noptim:\n  lr: 0.001\n  weight_decay: 0.1\n  betas: [0.9, 0.95]\n"
    "  warmup_steps: 500\ntrain:\n  epochs: 10\n  batch_size: 32\n  loss_scale: 1024\n  label_smoothing: 0.1\nseed: 42",
    "config json": json.dumps({"lr": 0.001, "epochs": 10, "loss": {"weight": 0.5, "kind": "ce"}, "steps": 500}, indent=2),
    "namespace": "Namespace(lr=0.001, epochs=10, batch_size=32, loss_weight=0.5, seed=1, steps=1000, dropout=0.1)",
    "config of each rank": "\n".join(f"[rank{rank}]: lr: 0.001, loss_weight: 0.5, steps: 1000" for rank in range(8)),
    "command line": "+ python train.py --lr 0.001 --epochs 10 --loss ce\n" * 4,
    "countdown": _many(10, "Starting training in {i} seconds").replace("in ", "in 1"),
    "countdown of steps": "\n".join(f"{i} steps left before evaluation, loss scale 2" for i in range(30, 0, -1)),
    "heartbeat": _many(60, "2026-11-28 10:00:{s:02d},123 INFO heartbeat {i}"),
    "heartbeat of steps": _many(60, "[10:00:{s:02d}] step {i} done"),
    "alive": _many(30, "worker 3 alive, iteration {i}, uptime {i}.5 s, mem {n} MB, queue 4"),
    "epochs only": _many(10, "Starting epoch {i}"),
    "data preparation": "\r".join(
        f"Map (num_proc=4): {i}%|{'█' * (i // 10):10}| {i * 100}/10000 [00:{i % 60:02d}<00:{i % 60:02d}, 3000.{i} examples/s]"
        for i in range(101)
    ),
    "tokenising": "\r".join(
        f"Tokenizing: {i}%|{'█' * (i // 10):10}| {i}/100 [00:01<00:01, 99.1it/s, docs={i * 7}, mean_len={100 + i}]"
        for i in range(101)
    ),
    "export": "100%|██████████| 3/3 [00:00<00:00, 12.3it/s]\nSaved model to out/model.onnx",
    "shards": "\r".join(f"Loading checkpoint shards: {i * 25}%|██   | {i}/4 [00:0{i}<00:01, 1.1s/it]" for i in range(5)),
    "nccl": _many(20, "node1:{n}:{n} [0] NCCL INFO Channel {i:02d}/32 : 0[0] -> 1[1] via P2P/CUMEM/read")
    + "\nnode1:123:456 [0] NCCL INFO comm 0x7f2c rank 0 nranks 8 cudaDev 0 busId 7000 commId 0xabc - Init COMPLETE",
    "traceback": "\n".join(
        f'Traceback (most recent call last):\n  File "/app/train.py", line {i * 3}, in train_step\n    loss = model(x)\n'
        f'  File "/app/loss.py", line {i}, in forward\nValueError: loss is not finite, retry {i}'
        for i in range(1, 5)
    ),
    "prose": "We trained for 10 epochs and reached a loss of 0.51 and 91.2% accuracy.\nThe baseline of 2024 had a loss of 0.6.\n"
    "In step 3 of the recipe, the learning rate falls to 0.001.\nTable 2 shows 12 of 34 results.",
    "dates": _many(28, "Backup of 11/{i} finished, 10/12 files, 3/4 disks"),
    "versions": "torch 2.13.0+cu126\nnumpy 2.1.3\nPython 3.11.4\ncuda 12.6, cudnn 9.5.1.17, driver 550.54.15\n" * 3,
    "addresses": _many(12, "rendezvous 10.0.0.{i}:29500 rank {i} of 12"),
    "hashes": "\n".join(f"commit {_RANDOM.getrandbits(160):040x} step {i} of the bisect" for i in range(9)),
    "seeds": _many(10, "seed {n}"),
    "docker build": _many(12, "Step {i}/12 : RUN pip install -r requirements-{i}.txt\n ---> {n}abc"),
    "cmake": _many(60, "[ {i}%] Building CXX object src/CMakeFiles/loss.dir/file{i}.cc.o"),
    "ninja": _many(60, "[{i}/60] c++ -O2 -o loss{i}.o -c loss{i}.cc"),
    "ffmpeg": "\r".join(
        f"frame={i * 30:5d} fps= 25 q=28.0 size= {i * 512}kB time=00:00:{i:02d}.00 bitrate=1048.{i}kbits/s speed=1.2x"
        for i in range(40)
    ),
    "rsync": "\r".join(f"  {i * 32768:,} {i}%   {i}.12MB/s    0:00:{i % 60:02d}" for i in range(100)),
    "apt": _many(9, "Get:{i} http://archive.example.org/ubuntu noble/main amd64 libc6 amd64 2.39 [{n} kB]"),
    "npm": _many(4, "added {n} packages, and audited {n} packages in {i}s"),
    "classification report": "              precision    recall  f1-score   support\n\n"
    + _many(10, "           {i}       {x:.2f}      0.96      0.95       500")
    + "\n\n    accuracy                           0.95      5000",
    "confusion matrix": "[[" + "]\n [".join(" ".join(str(_RANDOM.randrange(99)) for _ in range(5)) for _ in range(5)) + "]]",
    "model summary": "Layer (type)                 Output Shape              Param #\n" + "=" * 60 + "\n"
    + _many(12, "Linear-{i}                   [-1, {i}, 768]            {n:,}")
    + "\nTotal params: 12,345,678",
    "module": _many(12, "    (layer{i}): Linear(in_features=768, out_features={n}, bias=True)"),
    "parameters": _many(24, "blocks.{i}.attn.weight  (768, 768)  mean {x:.4f}  std 0.02"),
    "class accuracy": _many(10, "Accuracy of class {i}: {x:.2f} %"),
    "grid": _many(6, "trial {i}: lr 0.{i} wd 0.1 queued"),
    "optuna": _many(8, "[I 2026-11-28 10:00:{s:02d},123] Trial {i} finished with value: {x} and parameters: {{'lr': {x}}}. "
                    "Best is trial 2 with value: 0.4."),
    "slurm": _many(12, "             {n} gpu      train     user  R    0:{s:02d}      1 node{i}"),
    "kubernetes": _many(9, "2026-11-28T10:00:{s:02d}.123Z I1128 controller.go:{n}] reconciled pod train-{i} generation {i}"),
    "ray": _many(12, "(raylet) [2026-11-28 10:00:{s:02d},123 I 1234 1234] node_manager.cc:{n}: Workers 3, queue {i}"),
    "disk": _many(12, "avg-cpu:  %user {x:.2f} %nice 0.00 %system {x:.2f} %idle 98.{i}"),
    "benchmark": _many(9, "batch {i}: forward {x:.3f} ms, backward {x:.3f} ms, {n} img/s, {n} MiB"),
    "profiler": "-----  -----  -----\nName  Self CPU  CPU total\n-----  -----  -----\n" + _many(9, "aten::conv{i}  {x:.2f}ms  {i}.123ms"),
    "autotune": _many(12, "  triton_mm_{i} 0.{n} ms {x:.1%} ACC_TYPE='tl.float32', BLOCK_K=32, num_stages={i}, num_warps=4"),
    "saving": _many(6, "Saving model checkpoint to out/checkpoint-{i}00\nConfiguration saved in out/checkpoint-{i}00/config.json"),
    "early stopping": _many(6, "EarlyStopping counter: {i} out of 10"),
    "improved": _many(6, "Validation loss decreased (0.5{i} --> 0.4{i}).  Saving model ..."),
    "one line": "epoch 1 loss 0.51\n",
    "scale": _many(4, "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {n}.0"),
    "matrix": _many(40, "{x:.4f} {x:.3f} {x:.2f}"),
    "numbers": _many(40, "{i}"),
    "dataset": _many(9, "Loaded split {i}: {n} samples, {n} tokens, {x:.2f} of the total, 3 classes"),
    "times of steps": _many(30, "step {i}: forward {x:.3f} backward {x:.4f} opt 0.01{i} data 0.002"),
    "monitor": _many(30, "step {i} | gpu mem {x:.2f} | power {n} | util {s}%"),
    "learning rates": _many(30, "epoch {i} lr 0.0{i} momentum 0.9"),
    "cross validation": _many(15, "[CV {i}/15] END ..............C=1.0;, score=0.9{i} total time=   0.{i}s"),
    "harness": "|  Tasks  |Version|Filter|n-shot|Metric|Value |   |Stderr|\n"
    + _many(9, "|task_{i}|      1|none  |     0|acc   |0.{n}|±  |0.0{i}|"),
    "durations of epochs": _many(12, "Epoch {i} took {x:.2f} s, {n} samples, about {s} minutes left"),
    "best so far": _many(12, "best loss so far: {x:.4f} (epoch {i})"),
    "class tables": _many(10, "class {i}: precision {x:.3f} recall 0.9{i} f1 0.8"),
    "requests": _many(20, 'INFO 11-28 10:00:{s:02d} metrics.py:{i}] Avg prompt throughput: {x:.1f} tokens/s, Running: {i} reqs'),
    "steps of a script": "Step 1/3: download\nStep 2/3: convert\nStep 3/3: upload, 0 errors\n" * 3,
}  # fmt: skip
