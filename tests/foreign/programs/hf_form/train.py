"""In the form of the Hugging Face Trainer: metrics in trainer_state.json with each checkpoint, the newest of which
--resume_from_checkpoint takes; a bar and dictionaries on the way; SIGTERM is not listened for."""

import argparse
import json
import os
import shutil
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from fake_gpu import allocate

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", default="out")
parser.add_argument("--per_device_train_batch_size", type=int, default=8)
parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
parser.add_argument("--learning_rate", type=float, default=5e-5)
parser.add_argument("--max_steps", type=int, default=120)
parser.add_argument("--save_steps", type=int, default=10)
parser.add_argument("--resume_from_checkpoint", default=None)
args = parser.parse_args()

rank = int(os.environ.get("RANK", "0"))
history, step = [], 0
if args.resume_from_checkpoint:
    with open(os.path.join(args.resume_from_checkpoint, "trainer_state.json")) as file:
        state = json.load(file)
    history, step = state["log_history"], state["global_step"]
while step < args.max_steps:
    allocate(args.per_device_train_batch_size, step)
    time.sleep(0.03)
    step += 1
    if step % 5 == 0:
        history.append({"epoch": step / 100, "loss": 2.0 / step, "learning_rate": args.learning_rate, "step": step})
        if rank == 0:
            print({"loss": 2.0 / step, "learning_rate": args.learning_rate, "epoch": step / 100})
    if step % args.save_steps == 0 and rank == 0:
        output_dir = os.path.join(args.output_dir, f"checkpoint-{step}")
        partial = os.path.join(args.output_dir, f"tmp-checkpoint-{step}")
        os.makedirs(partial, exist_ok=True)
        with open(os.path.join(partial, "trainer_state.json"), "w") as file:
            json.dump({"global_step": step, "log_history": history}, file)
        with open(os.path.join(partial, "model.safetensors"), "wb") as file:
            header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
            file.write(len(header).to_bytes(8, "little") + header + bytes(4))
        shutil.rmtree(output_dir, ignore_errors=True)
        os.replace(partial, output_dir)
