"""In the form of the DDP tutorial's multigpu_torchrun.py: a snapshot that is written over and loaded where it is there."""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
from fake_gpu import allocate


class Trainer:
    def __init__(self, model, save_every, snapshot_path):
        self.gpu_id = int(os.environ.get("LOCAL_RANK", "0"))
        self.model = model
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            print("Loading snapshot")
            snapshot = torch.load(snapshot_path, weights_only=True)
            self.epochs_run = snapshot["EPOCHS_RUN"]
            print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _save_snapshot(self, epoch):
        snapshot = {"MODEL_STATE": self.model.state_dict(), "EPOCHS_RUN": epoch}
        torch.save(snapshot, self.snapshot_path + ".tmp")
        os.replace(self.snapshot_path + ".tmp", self.snapshot_path)
        print(f"Epoch {epoch} | Training snapshot saved at {self.snapshot_path}")

    def train(self, max_epochs, batch_size):
        for epoch in range(self.epochs_run, max_epochs):
            allocate(batch_size, epoch)
            time.sleep(0.05)
            loss = 2.0 / (epoch + 1)
            if self.gpu_id == 0:
                print(f"Epoch {epoch} | loss {loss:.4f}", flush=True)
            if self.gpu_id == 0 and (epoch + 1) % self.save_every == 0:
                self._save_snapshot(epoch + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="simple distributed training job")
    parser.add_argument("total_epochs", type=int, help="Total epochs to train the model")
    parser.add_argument("save_every", type=int, help="How often to save a snapshot")
    parser.add_argument("--batch_size", default=32, type=int, help="Input batch size on each device (default: 32)")
    parser.add_argument("--snapshot", default="snapshot.pt")
    options = parser.parse_args()
    Trainer(torch.nn.Linear(2, 1), options.save_every, options.snapshot).train(options.total_epochs, options.batch_size)
