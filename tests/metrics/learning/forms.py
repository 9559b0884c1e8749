# ruff: noqa: E501 (lines as programs print them)
"""Metric lines in the forms that programs print, with what they say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Record = dict[str, Any]
"""The step, the total and the metrics of a line; no epoch."""


class Printed(NamedTuple):
    """A part of the output, and the record that it is; None for one without."""

    text: str
    record: Record | None = None


def falling(step: int, places: int = 4) -> float:
    """A loss at a step."""
    return round(0.5 + 3 * math.exp(-step / 97) + 0.05 * math.sin(step), places)


def rising(step: int, places: int = 2) -> float:
    """An accuracy in percent at a step."""
    return round(90 - 80 * math.exp(-step / 110) + math.sin(step), places)


def nanogpt() -> Iterator[Printed]:
    for step in range(0, 1000, 10):
        if step % 250 == 0:
            losses = {"train/loss": falling(step), "val/loss": falling(step - 30)}
            yield Printed(
                f"step {step}: train loss {falling(step):.4f}, val loss {falling(step - 30):.4f}",
                {"step": step, **losses},
            )
            yield Printed("saving checkpoint to out")
        yield Printed(
            f"iter {step}: loss {falling(step):.4f}, time {120 + step % 7}.31ms, mfu {rising(step):.2f}%",
            {"step": step, "loss": falling(step), "mfu": rising(step, 2)},
        )


def hugging_face(*, as_text: bool = False) -> Iterator[Printed]:
    bar = "\r  {}%|{:10}| {}/{} [00:{:02d}<01:00,  1.{}it/s]"
    for step in range(1, 601):
        drawn = bar.format(step // 6, "█" * (step // 60), step, 600, step % 60, step % 10)
        if step % 10 != 0:  # the bar is drawn ten times a second, and again below what is written
            yield Printed(drawn)
        if step % 10 == 0:
            values: Record = {
                "loss": falling(step),
                "grad_norm": 1.5 + step % 13,
                "learning_rate": 5e-05 * (601 - step) / 600,
            }
            printed = {**values, "epoch": round(step / 200, 2)}
            line = {name: str(value) for name, value in printed.items()} if as_text else printed
            yield Printed(f"\r{' ' * 60}\r{line}\n{drawn}", {"step": step, **values})
        if step % 200 == 0:
            for batch in range(1, 26):
                yield Printed(bar.format(batch * 4, "█" * (batch // 3), batch, 25, batch, 3))
            evaluated: Record = {"eval_loss": falling(step - 20), "eval_accuracy": rising(step) / 100}
            times = {"eval_runtime": 3.21, "eval_samples_per_second": 77.5 + step, "epoch": step / 200}
            line = {**evaluated, **times}
            yield Printed(f"\r{' ' * 60}\r{line}\n{drawn}", {"step": step, **evaluated})
    yield Printed("\n{'train_runtime': 61.2, 'train_samples_per_second': 98.1, 'train_loss': 0.9, 'epoch': 3.0}\n")


def lightning() -> Iterator[Printed]:
    for epoch in range(4):
        yield Printed(f"\rEpoch {epoch}:   0%|          | 0/200 [00:00<?, ?it/s, v_num=0]")
        for batch in range(5, 201, 5):
            step = epoch * 200 + batch
            bar = f"{batch // 2:3d}%|{'█' * (batch // 20):10}| {batch}/200 [00:{batch % 60:02d}<00:15, 7.{batch % 10}1it/s"
            yield Printed(
                f"\rEpoch {epoch}: {bar}, v_num=0, train_loss={falling(step, 3):.3f}]",
                {"step": step, "train_loss": falling(step, 3)},
            )
        for batch in range(1, 11):
            yield Printed(
                f"\rValidation DataLoader 0: {batch * 10}%|{'█' * batch:10}| {batch}/10 [00:00<00:00, 99.1it/s]"
            )
    yield Printed("`Trainer.fit` stopped: `max_epochs=4` reached.\n")


def growing_bar() -> Iterator[Printed]:
    """As Lightning with a validation: the bar has more names from the second epoch on."""
    for epoch in range(4):
        later = {"val_loss": falling(epoch), "loss_epoch": falling(epoch + 1)} if epoch else {}
        for batch in range(1, 101, 3):
            step = epoch * 100 + batch
            values = {"loss_step": falling(step), **later}
            postfix = ", ".join(f"{name}={value}" for name, value in values.items())
            yield Printed(
                f"\rEpoch {epoch}: {batch}%|{'█' * (batch // 10):10}| {batch}/100 [00:12<00:15, 7.1it/s, v_num=3, {postfix}]",
                {"step": step, **values},
            )


def accelerate() -> Iterator[Printed]:
    for step in range(1, 301):
        rate = f"1.{step % 10}s/it" if step % 3 else f"1.{step % 7}2it/s"
        yield Printed(
            f"\rSteps: {step // 3:3d}%|{'▏' * (step // 30):10}| {step}/300 [00:40<31:00, {rate}, lr=1e-5, "
            f"step_loss={falling(step):.4f}]",
            {"step": step, "total_steps": 300, "lr": 1e-5, "step_loss": falling(step)},
        )


def imagenet() -> Iterator[Printed]:
    for epoch in range(3):
        for batch in range(0, 1000, 20):
            step = epoch * 1000 + batch
            yield Printed(
                f"Epoch: [{epoch}][{batch:4d}/1000]\tTime  0.2{batch % 10} ( 0.25)\tData  0.00 ( 0.01)\t"
                f"Loss {falling(step):.4e} (4.8000e+00)\tAcc@1 {rising(step):6.2f} ( 10.20)",
                {"step": step, "loss": falling(step), "acc@1": rising(step, 2)},
            )
        for batch in range(0, 100, 20):
            yield Printed(
                f"Test: [{batch:3d}/100]\tTime  0.2 ( 0.2)\tLoss {falling(batch):.4e} (1.2e+00)\tAcc@1  10.0{batch} (9.1)"
            )
        values = {"test/acc@1": rising(step + 3), "test/acc@5": rising(step + 5)}
        yield Printed(f" *   Acc@1 {rising(step + 3):.3f} Acc@5 {rising(step + 5):.3f}", {"step": step, **values})


def mnist() -> Iterator[Printed]:
    for epoch in range(1, 5):
        for samples in range(0, 60000, 1280):
            step = (epoch - 1) * 60000 + samples
            yield Printed(
                f"Train Epoch: {epoch} [{samples}/60000 ({samples // 600}%)]\tLoss: {falling(step // 640):.6f}",
                {"step": step, "loss": falling(step // 640)},
            )
        values = {"test/loss": round(0.2 / epoch, 4), "test/accuracy": (9000 + epoch) / 10000}
        yield Printed(
            f"\nTest set: Average loss: {0.2 / epoch:.4f}, Accuracy: {9000 + epoch}/10000 (90%)\n",
            {"step": step, **values},
        )


def word_language_model() -> Iterator[Printed]:
    for epoch in range(1, 4):
        for batch in range(200, 2983, 100):
            step = (epoch - 1) * 2983 + batch
            loss = falling(step // 20, 2)
            yield Printed(
                f"| epoch {epoch:3d} | {batch:5d}/ 2983 batches | lr 20.00 | ms/batch {12 + batch % 3}.31 | "
                f"loss {loss:5.2f} | ppl {rising(batch, 2):8.2f}",
                {"step": step, "lr": 20.0, "loss": loss, "ppl": rising(batch, 2)},
            )
        yield Printed("-" * 89)
        step = (epoch - 1) * 2983 + 2900
        yield Printed(
            f"| end of epoch {epoch:3d} | time: 12.3{epoch}s | valid loss {falling(epoch, 2):5.2f} | "
            f"valid ppl {rising(epoch, 2):8.2f}",
            {"step": step, "val/loss": falling(epoch, 2), "val/ppl": rising(epoch, 2)},
        )
        yield Printed("-" * 89)


def timm() -> Iterator[Printed]:
    for epoch in range(3):
        for batch in [*range(0, 1250, 50), 1250]:
            step = epoch * 1251 + batch
            yield Printed(
                f"Train: {epoch} [{batch:4d}/1251 ({batch * 100 // 1250:3d}%)]  Loss: {falling(step, 3):.3f} (5.34)  "
                f"Time: 0.42{batch % 10}s, 612.1{batch % 7}/s  (0.421s, 610.12/s)  LR: 4.000e-04  Data: 0.010 (0.023)",
                {"step": step, "loss": falling(step, 3), "lr": 4e-4},
            )
        for batch in range(0, 197, 49):
            end = batch == 196
            record = {"step": step, "test/loss": falling(epoch, 3), "test/acc@1": rising(epoch, 2)} if end else None
            yield Printed(
                f"Test: [{batch:4d}/196]  Time: 0.123 (0.121)  Loss:  {falling(epoch, 3):6.3f} ( 2.100)  Acc@1: {rising(epoch):6.2f} ( 50.10)",
                record,
            )


def keras() -> Iterator[Printed]:
    for epoch in range(1, 5):
        yield Printed(f"Epoch {epoch}/4\n")
        for batch in range(1, 188, 2):
            step = (epoch - 1) * 188 + batch
            bar = f"\x1b[1m{batch}/188\x1b[0m \x1b[32m{'━' * (batch // 10)}\x1b[0m\x1b[37m{'━' * (20 - batch // 10)}\x1b[0m "
            yield Printed(
                f"\r{bar}\x1b[1m{batch // 60}s\x1b[0m {batch % 5 + 1}ms/step - accuracy: {rising(step) / 100:.4f} - "
                f"loss: {falling(step):.4f}",
                {"step": step, "total_steps": 752, "accuracy": round(rising(step) / 100, 4), "loss": falling(step)},
            )
        step = epoch * 188
        yield Printed(
            f"\r188/188 {'━' * 20} 3s 4ms/step - accuracy: {rising(step) / 100:.4f} - loss: {falling(step):.4f} - "
            f"val_loss: {falling(step - 9):.4f}\n",
            {
                "step": step, "total_steps": 752, "accuracy": round(rising(step) / 100, 4), "loss": falling(step),
                "val_loss": falling(step - 9),
            },
        )  # fmt: skip


def keras_quiet() -> Iterator[Printed]:
    for epoch in range(1, 13):
        yield Printed(f"Epoch {epoch}/12")
        yield Printed(
            f"36/36 - {epoch % 2}s - {epoch + 3}ms/step - accuracy: {rising(epoch) / 100:.4f} - loss: {falling(epoch):.4f}",
            {"step": epoch * 36, "total_steps": 432, "accuracy": round(rising(epoch) / 100, 4), "loss": falling(epoch)},
        )


def detectron() -> Iterator[Printed]:
    for step in range(19, 2000, 20):
        yield Printed(
            f"[11/28 10:00:{step % 60:02d} d2.utils.events]:  eta: 1:23:{step % 60:02d}  iter: {step}  "
            f"total_loss: {falling(step)}  loss_cls: {falling(step + 1)}    time: 0.31  last_time: 0.3{step % 10}  "
            f"data_time: 0.01  lr: {step / 1e5:.5g}  max_mem: {5000 + step % 50}M",
            {
                "step": step,
                "total_loss": falling(step),
                "loss_cls": falling(step + 1),
                "lr": float(f"{step / 1e5:.5g}"),
            },
        )


def mmengine() -> Iterator[Printed]:
    prefix = "2026/11/28 10:00:01 - mmengine - INFO - "
    for epoch in range(1, 5):
        for batch in range(50, 939, 50):
            step = (epoch - 1) * 938 + batch
            yield Printed(
                f"{prefix}Epoch(train)  [{epoch}][{batch:3d}/938]  lr: 1.0000e-02  eta: 0:12:{batch % 60:02d}  time: 0.12  "
                f"data_time: 0.003  memory: 1024  loss: {falling(step):.4f}",
                {"step": step, "lr": 0.01, "loss": falling(step)},
            )
        yield Printed(f"{prefix}Saving checkpoint at {epoch} epochs")
        yield Printed(
            f"{prefix}Epoch(val)  [{epoch}][40/40]    accuracy/top1: {rising(epoch, 2):.2f}  data_time: 0.01  time: 0.02",
            {"step": step, "val/accuracy/top1": rising(epoch, 2)},
        )


def megatron() -> Iterator[Printed]:
    for step in range(100, 5000, 100):
        yield Printed(
            f" iteration {step:8d}/   50000 | consumed samples: {step * 256:12d} | elapsed time per iteration (ms): "
            f"{312 + step % 7}.4 | learning rate: {step / 1e8:.3E} | global batch size:   256 | lm loss: {falling(step):.6E} | "
            "loss scale: 1.0 | grad norm: 1.200 | number of skipped iterations:   0 | number of nan iterations:   0 |",
            {
                "step": step, "total_steps": 50000, "learning_rate": float(f"{step / 1e8:.3E}"),
                "lm_loss": falling(step), "grad_norm": 1.2, "loss_scale": 1.0,
            },
        )  # fmt: skip


def fairseq() -> Iterator[Printed]:
    for epoch in range(1, 4):
        for batch in range(100, 2001, 100):
            step = (epoch - 1) * 2000 + batch
            yield Printed(
                f"2026-11-28 10:00:01 | INFO | train_inner | epoch {epoch:03d}: {batch:6d} / 2000 loss={falling(step)}, "
                f"ppl={rising(step, 2)}, wps={10000 + batch}, ups=1.2, wpb=3500.1, bsz=128, num_updates={step}, lr=1e-07, "
                f"gnorm={falling(batch, 3)}, train_wall={batch}, wall={step}",
                {"step": step, "loss": falling(step), "ppl": rising(step, 2), "lr": 1e-7, "gnorm": falling(batch, 3)},
            )


def torchtitan(ranks: int = 2) -> Iterator[Printed]:
    for step in range(10, 1000, 10):
        for rank in range(ranks):
            yield Printed(
                f"[rank{rank}]:[titan] 2026-11-28 10:00:01,123 - root - INFO - step: {step:2d}  loss: {falling(step):7.4f}  "
                f"grad_norm: {falling(step + 1):.4f}  memory: 12.1{step % 10}GiB(15.2{step % 10}%)  tps: 12,{100 + step % 900}  "
                f"mfu: {rising(step):.2f}%",
                None
                if rank
                else {"step": step, "loss": falling(step), "grad_norm": falling(step + 1), "mfu": rising(step, 2)},
            )


def rank_of_ranks(ranks: int = 2) -> Iterator[Printed]:
    """The number of processes behind each rank is nothing of the training."""
    for step in range(10, 1000, 10):
        for rank in range(ranks):
            record = {"step": step, "loss": falling(step)} if rank == 0 else None
            yield Printed(f"[rank {rank}/{ranks}] step {step} loss {falling(step):.4f}", record)


def deepspeed() -> Iterator[Printed]:
    for step in range(10, 500, 10):
        yield Printed(
            f"[2026-11-28 10:00:01,123] [INFO] [logging.py:96:log_dist] [Rank 0] step={step}, skipped=0, "
            f"lr=[{1e-5 * step:.3g}], mom=[(0.9, 0.999)]"
        )
        yield Printed(
            f"[Rank 0] steps: {step} loss: {falling(step):.4f} iter time (s): 0.{step} samples/sec: {step + 10}.1",
            {"step": step, "loss": falling(step)},
        )


def ultralytics() -> Iterator[Printed]:
    header = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"
    for epoch in range(1, 6):
        yield Printed(f"\n{header}\n")
        for batch in range(1, 9):
            step = (epoch - 1) * 8 + batch
            bar = f"{batch * 100 // 8}%|{'█' * batch:10}| {batch}/8 [00:01<00:00,  7.1it/s]"
            yield Printed(
                f"\r{epoch:7d}/5      2.1{batch}G     {falling(step):.4g}      {falling(step + 1):.4g}      1.{step:02d}          "
                f"{20 + step * 7 % 13}        640: {bar}",
                {
                    "step": step, "total_steps": 40, "box_loss": float(f"{falling(step):.4g}"),
                    "cls_loss": float(f"{falling(step + 1):.4g}"), "dfl_loss": float(f"1.{step:02d}"),
                },
            )  # fmt: skip
        yield Printed(
            "\n                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95): 100%|████| 4/4 [00:00<00:00]\n"
        )
        yield Printed(
            f"                   all        128        929      0.6{epoch}      0.53      0.6{epoch}      0.44\n"
        )


def spacy() -> Iterator[Printed]:
    yield Printed("E    #       LOSS TOK2VEC  LOSS NER  ENTS_F  SCORE ")
    yield Printed("---  ------  ------------  --------  ------  ------")
    for step in range(0, 4000, 200):
        values = {"loss_tok2vec": falling(step, 2), "loss_ner": falling(step + 9, 2), "ents_f": rising(step, 2)}
        yield Printed(
            f"{step // 700:3d} {step:7d} {falling(step):13.2f} {falling(step + 9):9.2f} {rising(step):7.2f} {rising(step) / 100:7.2f}",
            {"step": step, **values, "score": round(rising(step) / 100, 2)},
        )


def fastai() -> Iterator[Printed]:
    yield Printed("epoch     train_loss  valid_loss  accuracy  time    ")
    for epoch in range(12):
        yield Printed(
            f"{epoch}         {falling(epoch):.6f}    {falling(epoch + 1):.6f}    {rising(epoch) / 100:.6f}  00:{epoch:02d}     ",
            {
                "step": epoch, "train_loss": falling(epoch), "valid_loss": falling(epoch + 1),
                "accuracy": round(rising(epoch) / 100, 6),
            },
        )  # fmt: skip


def skorch() -> Iterator[Printed]:
    yield Printed("  epoch    train_loss    valid_acc    valid_loss     dur")
    yield Printed("-------  ------------  -----------  ------------  ------")
    for epoch in range(1, 31):
        values = {
            "train_loss": falling(epoch),
            "valid_acc": round(rising(epoch) / 100, 4),
            "valid_loss": falling(epoch + 2),
        }
        yield Printed(
            f"{epoch:7d}        \x1b[36m{falling(epoch):.4f}\x1b[0m       \x1b[32m{rising(epoch) / 100:.4f}\x1b[0m        "
            f"{falling(epoch + 2):.4f}  0.02{epoch:02d}",
            {"step": epoch, **values},
        )


def skorch_best() -> Iterator[Printed]:
    """With a mark at the best values, and a column of marks alone."""
    yield Printed("  epoch    train_loss    valid_acc    valid_loss    cp     dur")
    yield Printed("-------  ------------  -----------  ------------  ----  ------")
    for epoch in range(1, 31):
        mark = "   +" if epoch % 3 == 1 or epoch == 30 else "    "
        yield Printed(
            f"{epoch:7d}        \x1b[36m{falling(epoch):.4f}\x1b[0m       {rising(epoch) / 100:.4f}        "
            f"{falling(epoch + 2):.4f}  {mark}  0.02{epoch:02d}",
            {
                "step": epoch, "train_loss": falling(epoch), "valid_acc": round(rising(epoch) / 100, 4),
                "valid_loss": falling(epoch + 2),
            },
        )  # fmt: skip


def scikit_learn() -> Iterator[Printed]:
    """As SGDClassifier(verbose=1)."""
    for epoch in range(1, 21):
        yield Printed(f"-- Epoch {epoch}")
        values = {"norm": 1.5 + epoch % 7 / 10, "bias": round(0.3 - epoch % 5 / 10, 2), "loss": falling(epoch)}
        yield Printed(
            f"Norm: {values['norm']}, NNZs: 20, Bias: {values['bias']}, T: {epoch * 100}, Avg. loss: {values['loss']}",
            {"step": epoch, **values},
        )
        yield Printed(f"Total training time: 0.{epoch:02d} seconds.")


def episodes() -> Iterator[Printed]:
    for episode in range(1, 200):
        values = {"score": rising(episode), "epsilon": round(1 / (episode + 1), 3)}
        text = f"\rEpisode {episode}\tAverage Score: {values['score']:.2f}\tEpsilon: {values['epsilon']:.3f}"
        yield Printed(text, {"step": episode, **values})


def stable_baselines() -> Iterator[Printed]:
    for round_ in range(1, 21):
        rows: dict[str, Any] = {
            "rollout/": "", "   ep_len_mean": 20.5 + round_, "   ep_rew_mean": 19.5 + 2 * round_, "time/": "",
            "   fps": 1234 + round_, "   iterations": round_, "   time_elapsed": 8 * round_,
            "   total_timesteps": 2048 * round_,
        }  # fmt: skip
        record = {"step": 2048 * round_, "rollout/ep_len_mean": 20.5 + round_, "rollout/ep_rew_mean": 19.5 + 2 * round_}
        if round_ > 1:
            rows |= {"train/": "", "   approx_kl": 0.0089 / round_, "   loss": falling(round_)}
            record |= {"train/approx_kl": 0.0089 / round_, "train/loss": falling(round_)}
        yield Printed("-" * 42)
        lines = [f"| {name:22} | {value!s:13} |" for name, value in rows.items()]
        yield Printed("\n".join([*lines, "-" * 42]), record if round_ > 1 else None)


def xgboost() -> Iterator[Printed]:
    for step in range(60):
        yield Printed(
            f"[{step}]\ttrain-rmse:{falling(step):.5f}\teval-rmse:{falling(step + 3):.5f}",
            {"step": step, "train-rmse": falling(step), "eval-rmse": falling(step + 3)},
        )


def lightgbm() -> Iterator[Printed]:
    yield Printed("Training until validation scores don't improve for 50 rounds")
    for step in range(5, 151, 5):
        yield Printed(f"[{step}]\tvalid_0's l2: {falling(step)}", {"step": step, "valid_0's_l2": falling(step)})


def key_values(form: str = "{date},123 INFO step={step} loss={loss}") -> Callable[[], Iterator[Printed]]:
    """A logger's lines of one form."""

    def lines() -> Iterator[Printed]:
        for step in range(10, 600, 10):
            text = form.format(date=f"2026-11-28 10:{step // 60:02d}:{step % 60:02d}", step=step, loss=falling(step))
            yield Printed(text, {"step": step, "loss": falling(step)})

    return lines


def json_lines() -> Iterator[Printed]:
    for step in range(1, 60):
        line = {"event": "train step", "level": "info", "timestamp": f"2026-11-28T10:00:{step:02d}Z", "step": step,
                "loss": falling(step), "lr": 0.001, "tokens": step * 1024}  # fmt: skip
        yield Printed(json.dumps(line), {"step": step, "loss": falling(step), "lr": 0.001})


def dictionaries() -> Iterator[Printed]:
    for step in range(1, 40):
        yield Printed(
            f"{{'accuracy': {rising(step)},\n 'loss': {falling(step)},\n 'step': {step}}}",
            {"step": step, "loss": falling(step), "accuracy": rising(step)},
        )


def people() -> Iterator[Printed]:
    for epoch in range(1, 6):
        for batch in range(0, 100, 10):
            step = (epoch - 1) * 100 + batch
            yield Printed(
                f"ep {epoch}/5 it {batch} | L={falling(step, 2)} acc={rising(step, 1)}%",
                {"step": step, "L": falling(step, 2), "acc": rising(step, 1)},
            )


def tensors() -> Iterator[Printed]:
    for epoch in range(20):
        yield Printed(
            f"epoch {epoch} loss: tensor({falling(epoch)}, device='cuda:0', grad_fn=<NllLossBackward0>)",
            {"step": epoch, "loss": falling(epoch)},
        )


def bare_columns() -> Iterator[Printed]:
    yield Printed("step, loss, accuracy")
    yield Printed("Loading the data\nUsing 4 workers")
    for step in range(0, 400, 10):
        yield Printed(
            f"{step}, {falling(step)}, {rising(step)}", {"step": step, "loss": falling(step), "accuracy": rising(step)}
        )


def notebook() -> Iterator[Printed]:
    for epoch in range(1, 7):
        for batch in range(5, 21, 5):
            step = (epoch - 1) * 20 + batch
            yield Printed(
                f"[{epoch}, {batch:5d}] loss: {falling(step, 3):.3f}", {"step": step, "loss": falling(step, 3)}
            )


def epochs_of_two() -> Iterator[Printed]:
    for epoch in (1, 2):
        yield Printed(f"Epoch {epoch} loss {falling(epoch)}", {"step": epoch, "loss": falling(epoch)})


def graph_network() -> Iterator[Printed]:
    for epoch in range(1, 100):
        values = {
            "loss": falling(epoch),
            "train": round(rising(epoch) / 100, 4),
            "val": round(rising(epoch - 1) / 100, 4),
        }
        texts = ", ".join(f"{name.title()}: {value:.4f}" for name, value in values.items())
        yield Printed(f"Epoch: {epoch:03d}, {texts}", {"step": epoch, **values})


def beside_a_bar() -> Iterator[Printed]:
    """As x-transformers: lines without a step, and a bar without a value."""
    for step in range(1, 101):
        yield Printed(f"\rtraining: {step}%|{'█' * (step // 10):10}| {step}/100 [00:{step % 60:02d}<01:00, 1.1s/it]")
        if step % 10 == 0:
            yield Printed(f"\rtraining loss: {falling(step)}\n", {"step": step, "train/loss": falling(step)})


def adversarial() -> Iterator[Printed]:
    for epoch in range(3):
        for batch in range(0, 1583, 50):
            step = epoch * 1583 + batch
            yield Printed(
                f"[{epoch}/25][{batch}/1583]\tLoss_D: {falling(step)}\tLoss_G: {falling(step + 9)}\tD(x): {falling(step + 5)}\t"
                f"D(G(z)): 0.3{batch} / 0.2{batch}",
                {"step": step, "loss_d": falling(step), "loss_g": falling(step + 9), "D(x)": falling(step + 5)},
            )


def nested_bars() -> Iterator[Printed]:
    for epoch in range(5):
        yield Printed(f"\rEpochs:  {epoch * 10}%|{'█' * epoch:10}| {epoch}/10 [00:0{epoch}<00:10,  1.1s/it]")
        for batch in range(2, 51, 4):
            step = epoch * 50 + batch
            yield Printed(
                f"\rTrain: {batch * 2}%|{'█' * (batch // 5):10}| {batch}/50 [00:00<00:01, 40.1it/s, loss={falling(step)}]",
                {"step": step, "loss": falling(step)},
            )
        for batch in range(1, 11):
            record = {"step": step, "val/loss": falling(epoch + batch)} if batch == 10 else None
            yield Printed(
                f"\rValid: {batch * 10}%|{'█' * batch:10}| {batch}/10 [00:00<00:01, 40.1it/s, loss={falling(epoch + batch)}]",
                record,
            )


def cifar_bar() -> Iterator[Printed]:
    """As pytorch-cifar: a bar of a terminal, with the place behind it."""
    for epoch in range(3):
        yield Printed(f"\nEpoch: {epoch}\n")
        for batch in range(1, 392, 5):
            step = epoch * 391 + batch
            bar = f"[{'=' * (batch // 10)}>{'.' * (39 - batch // 10)}]"
            yield Printed(
                f"\r {bar}  Step: {10 + batch % 9}ms | Tot: {batch // 9}s{batch}ms | Loss: {falling(step, 3):.3f} | "
                f"Acc: {rising(step):.3f}% ({batch * 12}/{batch * 128})" + " " * 30 + "\b" * 40 + f" {batch}/391 ",
                {"step": step, "loss": falling(step, 3), "acc": rising(step)},
            )


def under_a_header() -> Iterator[Printed]:
    """As rsl_rl and OLMo: the step on a line, the metrics on lines of their own."""
    for step in range(40):
        yield Printed("#" * 80)
        yield Printed(f"                     \x1b[1m Learning iteration {step}/1500 \x1b[0m                      \n")
        yield Printed(f"                       Computation: 4{step}123 steps/s (collection: 1.23s, learning 0.31s)")
        yield Printed(
            f"               Value function loss: {falling(step)}", {"step": step, "value_function_loss": falling(step)}
        )
        yield Printed(f"                       Mean reward: {rising(step)}", {"step": step, "reward": rising(step)})
        yield Printed(f"                        Total time: {step * 2}.12s")


def of_phases() -> Iterator[Printed]:
    """As the tutorial on transfer learning: an epoch on a line, a line for each phase below it."""
    for epoch in range(12):
        yield Printed(f"Epoch {epoch}/11\n----------")
        for phase, part in (("train", "train"), ("val", "val")):
            loss = falling(epoch * 9 + (part == "val"))
            accuracy = round(rising(epoch) / 100, 4)
            yield Printed(
                f"{phase} Loss: {loss:.4f} Acc: {accuracy:.4f}",
                {"step": epoch, f"{part}/loss": loss, f"{part}/acc": accuracy},
            )
        yield Printed("")


FORMS: dict[str, Callable[[], Iterator[Printed]]] = {
    "nanoGPT": nanogpt,
    "Hugging Face": hugging_face,
    "Hugging Face as text": lambda: hugging_face(as_text=True),
    "Lightning": lightning,
    "growing bar": growing_bar,
    "accelerate": accelerate,
    "imagenet": imagenet,
    "mnist": mnist,
    "word_language_model": word_language_model,
    "timm": timm,
    "keras": keras,
    "keras quiet": keras_quiet,
    "detectron2": detectron,
    "mmengine": mmengine,
    "Megatron": megatron,
    "fairseq": fairseq,
    "torchtitan": torchtitan,
    "DeepSpeed": deepspeed,
    "Ultralytics": ultralytics,
    "spaCy": spacy,
    "fastai": fastai,
    "skorch": skorch,
    "skorch with marks": skorch_best,
    "scikit-learn": scikit_learn,
    "episodes": episodes,
    "SB3": stable_baselines,
    "XGBoost": xgboost,
    "LightGBM": lightgbm,
    "logger": key_values(),
    "logfmt": key_values('ts="{date}" level=info msg="train step" step={step} loss={loss}'),
    "loguru": key_values("{date}.123 | INFO     | __main__:train:45 - step {step} loss {loss}"),
    "absl": key_values("I1128 10:00:01.123456 140231 train.py:26] step: {step}, loss: {loss}"),
    "hydra": key_values("[{date},123][__main__][INFO] - step {step} loss {loss}"),
    "DiT": key_values("(step={step:07d}) Train Steps/Sec: 1.23, Loss: {loss}"),
    "JSON": json_lines,
    "dictionaries": dictionaries,
    "people": people,
    "tensors": tensors,
    "bare columns": bare_columns,
    "notebook": notebook,
    "two epochs": epochs_of_two,
    "graph network": graph_network,
    "beside a bar": beside_a_bar,
    "adversarial": adversarial,
    "nested bars": nested_bars,
    "cifar bar": cifar_bar,
    "under a header": under_a_header,
    "of phases": of_phases,
    "rank of ranks": rank_of_ranks,
}
