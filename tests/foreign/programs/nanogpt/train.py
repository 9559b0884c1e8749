"""In the form of nanoGPT: options are globals, the accumulation is that of all ranks and must divide by them, lines are
printed by rank 0 with milliseconds, one checkpoint is written over and over, nothing listens for SIGTERM."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
import torch.distributed as dist
from fake_gpu import allocate
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

out_dir = "out"
eval_interval = 20
log_interval = 1
init_from = "scratch"  # 'scratch' or 'resume'
gradient_accumulation_steps = 5 * 8  # used to simulate larger batch sizes
batch_size = 12  # if gradient_accumulation_steps > 1, this is the micro-batch size
learning_rate = 6e-4  # max learning rate
max_iters = 300
seconds = 0.02
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, bool, str))]
exec(open(os.path.join(os.path.dirname(__file__), "configurator.py")).read())

ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="gloo")
    ddp_rank = int(os.environ["RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    master_process = ddp_rank == 0
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process = True
if master_process:
    os.makedirs(out_dir, exist_ok=True)

model = torch.nn.Linear(2, 1)
iter_num = 0
if init_from == "resume":
    print(f"Resuming training from {out_dir}")
    checkpoint = torch.load(os.path.join(out_dir, "ckpt.pt"), weights_only=True)
    model.load_state_dict(checkpoint["model"])
    iter_num = checkpoint["iter_num"]
if ddp:
    # As there: no rank goes on, and writes over what it loaded, before all have loaded it.
    model = DDP(model)
raw_model = model.module if ddp else model

t0 = time.time()
while iter_num <= max_iters:
    if iter_num % eval_interval == 0 and master_process:
        losses = {"train": 3.0 / (iter_num + 1), "val": 3.1 / (iter_num + 1)}
        print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
        if iter_num > 0:
            checkpoint = {"model": raw_model.state_dict(), "iter_num": iter_num}
            print(f"saving checkpoint to {out_dir}")
            torch.save(checkpoint, os.path.join(out_dir, "ckpt.pt"))
    allocate(batch_size, iter_num)
    time.sleep(seconds)
    loss = torch.tensor(3.0 / (iter_num + 1))
    if ddp:
        dist.all_reduce(loss)
    t1 = time.time()
    dt = t1 - t0
    t0 = t1
    if iter_num % log_interval == 0 and master_process:
        lossf = loss.item()
        print(f"iter {iter_num}: loss {lossf:.4f}, time {dt * 1000:.2f}ms, mfu {0.5 * 100:.2f}%")
    iter_num += 1

if ddp:
    destroy_process_group()
