"""In the form of timm's train.py: a logger that writes to stderr, epochs with steps in them, summary.csv without a step,
last.pth.tar in output/experiment, --resume FILE; a rank per process of torchrun, or one without."""

import argparse
import csv
import logging
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
from fake_gpu import allocate
from timm_parts import create_model

_logger = logging.getLogger("train")
parser = argparse.ArgumentParser(description="PyTorch ImageNet Training")
parser.add_argument("--data-dir", metavar="DIR", help="path to dataset (root dir)")
parser.add_argument("--resume", default="", type=str, metavar="PATH", help="Resume full model and optimizer state")
parser.add_argument("-b", "--batch-size", type=int, default=16, metavar="N")
parser.add_argument("--grad-accum-steps", type=int, default=1, metavar="N")
parser.add_argument("--lr", type=float, default=None, metavar="LR")
parser.add_argument("--clip-grad", type=float, default=None, metavar="NORM")
parser.add_argument("--grad-checkpointing", action="store_true", default=False)
parser.add_argument("-j", "--workers", type=int, default=0, metavar="N")
parser.add_argument("--epochs", type=int, default=12, metavar="N")
parser.add_argument("--output", default="", type=str, metavar="PATH")
parser.add_argument("--experiment", default="", type=str, metavar="NAME")


def main():
    args = parser.parse_args()
    handler = logging.StreamHandler()
    logging.basicConfig(level=logging.INFO, handlers=[handler], format="%(message)s")
    rank = int(os.environ.get("RANK", "0"))
    model = create_model()
    start_epoch = 0
    if args.resume:
        start_epoch = torch.load(args.resume, weights_only=True)["epoch"] + 1
        _logger.info(f"Loaded checkpoint '{args.resume}' (epoch {start_epoch - 1})")
    output_dir = os.path.join(args.output or "output/train", args.experiment or "run")
    if rank == 0:
        os.makedirs(output_dir, exist_ok=True)
    updates_per_epoch = 15
    for epoch in range(start_epoch, args.epochs):
        for update_idx in range(updates_per_epoch):
            began = time.time()
            allocate(args.batch_size, epoch * updates_per_epoch + update_idx)
            time.sleep(0.02)
            loss_now = 2.0 / (epoch * updates_per_epoch + update_idx + 1)
            if rank == 0 and update_idx % 2 == 0:
                seconds = time.time() - began
                _logger.info(
                    f"Train: {epoch} [{update_idx:>4d}/{updates_per_epoch} "
                    f"({100.0 * (update_idx + 1) / updates_per_epoch:>3.0f}%)]  "
                    f"Loss: {loss_now:#.3g} ({loss_now:#.3g})  "
                    f"Time: {seconds:.3f}s, {args.batch_size / seconds:>7.2f}/s  "
                    f"LR: {args.lr or 0.05:.3e}  "
                )
        if rank == 0:
            with open(os.path.join(output_dir, "summary.csv"), "a", newline="") as file:
                writer = csv.DictWriter(file, ["epoch", "train_loss", "eval_top1"])
                if epoch == 0:
                    writer.writeheader()
                writer.writerow({"epoch": epoch, "train_loss": loss_now, "eval_top1": 10.0 + epoch})
            saved = os.path.join(output_dir, "last.pth.tar")
            torch.save({"epoch": epoch, "state_dict": model.state_dict()}, saved + ".tmp")
            os.replace(saved + ".tmp", saved)


if __name__ == "__main__":
    main()
