"""The Hugging Face Trainer itself, with a model of three numbers."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import torch
from fake_gpu import allocate
from transformers import HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x, labels):
        return {"loss": ((self.layer(x) - labels) ** 2).mean()}


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        return {"x": torch.tensor([index % 7, 1.0]), "labels": torch.tensor([float(index % 3)])}


class Gpu(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        allocate(args.per_device_train_batch_size, state.global_step)
        time.sleep(0.02)


(training_args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
trainer = Trainer(model=Tiny(), args=training_args, train_dataset=Rows(), callbacks=[Gpu()])
trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint)
