"""In the form of accelerate's complete_cv_example.py: one line an epoch, state in folders step_N, --resume_from_checkpoint,
--with_tracking aside."""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
from accelerate_parts import Accelerator
from fake_gpu import allocate


def training_function(config, args):
    accelerator = Accelerator()
    overall_step, starting_epoch = 0, 0
    per_epoch = 10
    if args.resume_from_checkpoint:
        path = os.path.basename(os.path.normpath(args.resume_from_checkpoint))
        overall_step = int(path.replace("step_", ""))
        starting_epoch = overall_step // per_epoch
    for epoch in range(starting_epoch, args.num_epochs):
        for _step in range(per_epoch):
            allocate(args.batch_size, overall_step)
            time.sleep(0.03)
            overall_step += 1
        eval_metric = 0.5 + epoch / 100
        loss = 2.0 / overall_step
        accelerator.print(f"epoch {epoch}, step {overall_step}: loss {loss:.4f}, accuracy {100 * eval_metric:.2f}")
        if accelerator.is_main_process:
            output_dir = f"step_{overall_step}"
            if args.output_dir is not None:
                output_dir = os.path.join(args.output_dir, output_dir)
            accelerator.save_state(output_dir)


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--num_epochs", type=int, default=30)
    parser.add_argument("--output_dir", type=str, default=".")
    parser.add_argument("--resume_from_checkpoint", type=str, default=None)
    args = parser.parse_args()
    training_function({}, args)


if __name__ == "__main__":
    main()
