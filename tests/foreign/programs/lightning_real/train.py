"""Lightning's Trainer with its own DDP launcher, which starts the other ranks itself."""

import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import lightning as L
import torch
from fake_gpu import allocate
from lightning.pytorch.loggers import CSVLogger

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=32)
parser.add_argument("--accumulate_grad_batches", type=int, default=1)
parser.add_argument("--default_root_dir", default="out")
parser.add_argument("--max_steps", type=int, default=150)
parser.add_argument("--ckpt_path", default=None)
args = parser.parse_args()


class Tiny(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def training_step(self, batch, index):
        allocate(args.batch_size, self.global_step)
        time.sleep(0.05)
        loss = self.layer(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


rows = torch.utils.data.TensorDataset(torch.randn(50_000, 2))
logger = CSVLogger(args.default_root_dir, flush_logs_every_n_steps=5)
saver = L.pytorch.callbacks.ModelCheckpoint(every_n_train_steps=20, save_top_k=-1)
trainer = L.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    max_steps=args.max_steps,
    log_every_n_steps=5,
    logger=logger,
    default_root_dir=args.default_root_dir,
    callbacks=[saver],
    enable_progress_bar=False,
    enable_model_summary=False,
    accumulate_grad_batches=args.accumulate_grad_batches,
)
trainer.fit(Tiny(), torch.utils.data.DataLoader(rows, batch_size=args.batch_size), ckpt_path=args.ckpt_path)
