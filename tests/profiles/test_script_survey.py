"""Facts from a script's text: where it saves, what it prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gputui.metrics.contract import ParsedLine
from gputui.metrics.printed import OutputPatterns
from gputui.profiles.init.printed_patterns import patterns_of
from gputui.profiles.init.script_survey import Survey, survey_script
from gputui.profiles.init.syntax import fill_options
from tests.tables import table


def survey(folder: Path, text: str) -> Survey:
    # A byte order mark, as editors of Windows write it.
    (folder / "a.py").write_text(f"\ufeff{text}")
    return survey_script(folder / "a.py")


SAVES = [
    ("torch.save(x, f'{args.out}/ckpt_{step}.pt')", "OUT/ckpt_*.pt"),
    ("torch.save(x, os.path.join(args.out, 'epoch_%03d.pth' % epoch))", "OUT/epoch_*.pth"),
    ("torch.save(x, args.out + '/last.pt')", "OUT/last.pt"),
    ("torch.save(x, Path(args.out) / 'models' / 'm_{}.pt'.format(step))", "OUT/models/m_*.pt"),
    ("path = os.path.join('runs', name, 'best.pt')\ntorch.save(x, path)", "runs/*/best.pt"),
    ("d = f'step_{n}'\nd = os.path.join(args.out, d)\naccelerator.save_state(d)", "OUT/step_*"),
    ("trainer.save_checkpoint(f'{args.out}/x-{n}.ckpt')", "OUT/x-*.ckpt"),
    ("model.save_pretrained('out/final')", "out/final"),
    ("torch.save(x, tmp)\nos.replace(tmp, f'out/step_{n}.pt')", "out/step_*.pt"),
    ("fabric.save(f'out/{n}.ckpt', state)", "out/*.ckpt"),
    ("torch.save(x, os.path.join(args.out or 'runs', 'last.pt'))", "OUT/last.pt"),
]


@table(("text", "path"), SAVES)
def test_where_it_saves(tmp_path: Path, text: str, path: str) -> None:
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--out', default='x')\n"
    assert [fill_options(each, {"out": "OUT"}) for each in survey(tmp_path, parser + text).saves] == [path]


PRINTED = [
    # the statement, a line that it prints, and what is to be read of it
    (
        "print(f'iter {iter_num}: loss {lossf:.4f}, time {dt*1000:.2f}ms, mfu {running_mfu*100:.2f}%')",
        "iter 10: loss 4.2281, time 17.50ms, mfu -100.00%",
        {"step": 10, "loss": 4.2281, "step_time": 0.0175, "mfu": -100.0},
    ),
    (
        "_logger.info(f'Train: {epoch} [{update_idx:>4d}/{updates_per_epoch} ({100. * i:>3.0f}%)]  '\n"
        "f'Loss: {loss_now:#.3g} ({loss_avg:#.3g})  Time: {t.val:.3f}s, {rate:>7.2f}/s  LR: {lr:.3e}')",
        "Train: 2 [   4/16 ( 31%)]  Loss: 2.01 (2.1)  Time: 0.093s,  171.66/s  LR: 1.000e-03",
        {"step": 4, "epoch": 2, "loss": 2.01, "loss_avg": 2.1, "step_time": 0.093, "samples_per_s": 171.66,
         "lr": 1e-3},
    ),
    (
        "print('Epoch: [%d][%d/%d] Loss %.3f' % (epoch, i, len(loader), loss))",
        "Epoch: [1][3/10] Loss 0.500",
        {"step": 3, "epoch": 1, "loss": 0.5},
    ),
    (
        "print(f'Step {step:,} of {n:,} loss {loss:.2f} tok/sec: {tok:,} acc {acc:.1%} time {t:.1f}ms, speed {h(x)}')",
        "Step 1,200 of 2,400 loss 0.50 tok/sec: 12,029 acc 45.0% time 12.3ms, speed 1.2k",
        {"step": 1200, "total_steps": 2400, "loss": 0.5, "tokens_per_s": 12029, "acc": 45, "step_time": 0.0123,
         "speed": 1200},
    ),
    ("print(f'step {step} loss {loss:.4f} tok/s {tok}')", "step 3 loss 0.5000 tok/s 900",
     {"step": 3, "loss": 0.5, "tokens_per_s": 900}),
    ("print(f'step {step} tok/sec: {tok:,}')", "step 3 tok/sec: 12,029", {"step": 3, "tokens_per_s": 12029}),
    (
        "entries = [f'epoch {epoch}', f'it {i}/{n}']\nentries.append(f'loss {loss:.2f}')\nprint('\\t'.join(entries))",
        "epoch 1\tit 3/10\tloss 0.50", {"step": 3, "epoch": 1, "loss": 0.5},
    ),
    (
        "losses, top1 = 0, 0\nlosses = AverageMeter('Loss', ':.2e')\n"
        "top1 = AverageMeter('Acc@1', use_accel, ':6.2f', Summary.AVERAGE)\n"
        "progress = ProgressMeter(len(loader), [losses, top1], prefix='Epoch: [{}]'.format(epoch))",
        "Epoch: [1][  3/10]\tLoss 5.00e-01 (6.00e-01)\tAcc@1  12.50 (  9.00)",
        {"step": 3, "epoch": 1, "loss": 0.5, "acc_1": 12.5},
    ),
    (
        "print('Train Epoch: {} [{}/{} ({:.0f}%)]\\tLoss: {:.6f}'.format(\n"
        "epoch, batch_idx * len(data), len(train_loader.dataset), 100. * batch_idx / n, loss.item()))",
        "Train Epoch: 1 [640/60000 (1%)]\tLoss: 0.250000",
        {"step": 640, "epoch": 1, "loss": 0.25},
    ),
    ("print('{{train}} step {} loss {:.2f}'.format(step, loss))", "{train} step 4 loss 0.50", {"step": 4, "loss": 0.5}),
    ("logger.info('step %d loss %.3f lr %.2e', step, loss, lr)", "step 4 loss 0.5 lr 1.00e-02",
     {"step": 4, "loss": 0.5, "lr": 0.01}),
    ("print(f'step {step}/{total} loss={loss:.3f} tok/s={tps:.0f}')", "step 4/10 loss=0.500 tok/s=1200",
     {"step": 4, "total_steps": 10, "loss": 0.5, "tokens_per_s": 1200}),
    ("print('step', step, 'loss', loss.item())", "step 7 loss 0.25", {"step": 7, "loss": 0.25}),
    ("print(f'[{step:6d}] train loss: {l:.2f} | grad norm: {g:.2f}')", "[    12] train loss: 0.50 | grad norm: 1.25",
     {"step": 12, "train_loss": 0.5, "grad_norm": 1.25}),
    ("print(f'\\nstep {global_step} loss nan? {loss:.1f}')", "step 3 loss nan? nan", {"step": 3, "loss": "NaN"}),
]  # fmt: skip


@table(("text", "line", "expected"), PRINTED)
def test_a_pattern_of_what_is_printed_finds_it(tmp_path: Path, text: str, line: str, expected: dict[str, Any]) -> None:
    (made,) = patterns_of(survey(tmp_path, text).printed)
    assert made.steps in ("global", "in_epoch")
    parsed = OutputPatterns([made.pattern], units={name: {"ms": 1e-3}[unit] for name, unit in made.units.items()})
    answer = parsed.parse(line.encode())
    assert isinstance(answer, ParsedLine)
    assert dict(answer.values) == (expected if "NaN" in expected.values() else pytest.approx(expected))


INNER = "for epoch in range(3):\n for i, x in enumerate(loader):\n  "
COUNTER = "it = 0\nfor epoch in range(3):\n for x in loader:\n  it += 1\n  "
OUTER = "for step in range(99):\n  "
FUNCTION = "def train(x, epoch):\n it = 0\n for y in x:\n  it += 1\n  "
COURSES = [
    # the statements; the groups that count; what the step counts
    (OUTER + "print(f'epoch {step // n} step {step}/{n} loss {x:.1f}')", "epoch step total_steps", "global"),
    (OUTER + "print(f'[{step // n}] step {step} loss {x:.1f}')", "step", "global"),
    (OUTER + "print(f'ep {step // n} it {step} loss {x:.1f}')", "epoch step", "global"),
    (OUTER + "print(f'{step // n} {step} loss {x:.1f}')", "step", "global"),
    (INNER + "print('epoch %d, iter %d, loss = %.4f' % (epoch, i, loss))", "epoch iter", "guess"),
    (INNER + "print(f'epoch={epoch} it={i}/{n} loss={loss}')", "epoch iter total", "in_epoch"),
    (INNER + "print(f'epoch {epoch} step {epoch * n + i}/{n} loss {x}')", "epoch step total_steps", "global"),
    (INNER + "print(f'iter {i} loss {loss}')", "iter", "unclear"),
    (COUNTER + "print(f'Epoch[{epoch}] Iteration[{it}/{n}] Loss: {x}')", "epoch step total_steps", "global"),
    (COUNTER + "print(f'Epoch[{epoch}] Iteration[{it}/{len(y)}] Loss: {x}')", "epoch step", "global"),
    (FUNCTION + "print(f'{epoch} it {it}/{n} loss {x}')", "epoch iter total", "in_epoch"),
    ("print(f'Epoch[{s.epoch}] Iteration[{s.it}/{s.n}] Loss: {x}')", "epoch iter total", "guess"),
    ("accum = a // n\nprint(f'Total batch size {a} => gradient accumulation steps: {accum}')", "", ""),
    ("print('step {} loss {'.format(step, loss))", "", ""),  # a format that would fail
]


@table(("text", "groups", "steps"), COURSES)
def test_what_a_step_counts(tmp_path: Path, text: str, groups: str, steps: str) -> None:
    made = patterns_of(survey(tmp_path, text).printed)
    counts = {"epoch", "step", "iter", "total", "total_steps"}
    found = [
        (counts & set(re.findall(r"<(\w+)>", one.pattern)), "guess" if one.is_guess else one.steps) for one in made
    ]
    assert found == ([(set(groups.split()), steps)] if steps else [])
