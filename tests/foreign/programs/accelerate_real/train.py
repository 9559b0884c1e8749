"""accelerate itself, started by `accelerate launch`."""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
from accelerate import Accelerator
from fake_gpu import allocate

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--num_steps", type=int, default=150)
parser.add_argument("--output_dir", default="out")
parser.add_argument("--resume_from_checkpoint", default=None)
args = parser.parse_args()

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model, optimizer = accelerator.prepare(model, optimizer)
overall_step = 0
if args.resume_from_checkpoint:
    accelerator.load_state(args.resume_from_checkpoint)
    overall_step = int(os.path.basename(args.resume_from_checkpoint).replace("step_", ""))
while overall_step < args.num_steps:
    allocate(args.batch_size, overall_step)
    time.sleep(0.02)
    loss = model(torch.randn(args.batch_size, 2)).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    overall_step += 1
    if overall_step % 5 == 0:
        accelerator.print(f"step {overall_step}: loss {loss.item():.4f}", flush=True)
    if overall_step % 20 == 0:
        output_dir = f"step_{overall_step}"
        accelerator.save_state(os.path.join(args.output_dir, output_dir))
