"""A plain PyTorch script, as people have them: classifies digits, prints its progress, saves now and then."""

import argparse
import time
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=0.05)
parser.add_argument("--iters", type=int, default=2000)
parser.add_argument("--out", default="checkpoints")
parser.add_argument("--save-every", type=int, default=200)
parser.add_argument("--resume", default="")
args = parser.parse_args()

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32, device=device) / 16
labels = torch.tensor(digits.target, device=device)
train_images, train_labels = images[:1500], labels[:1500]
test_images, test_labels = images[1500:], labels[1500:]

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
Path(args.out).mkdir(parents=True, exist_ok=True)

start = 0
if args.resume:
    saved = torch.load(args.resume, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["iter"]
    print(f"resumed from {args.resume}", flush=True)

began, seen = time.time(), 0
for i in range(start + 1, args.iters + 1):
    batch = torch.randint(len(train_labels), (args.batch_size,), device=device)
    loss = nn.functional.cross_entropy(model(train_images[batch]), train_labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seen += args.batch_size

    if i % 10 == 0:
        speed = seen / (time.time() - began)
        print(f"iter {i}: loss {loss.item():.4f}, {speed:.0f} samples/s", flush=True)
        began, seen = time.time(), 0
    if i % args.save_every == 0 or i == args.iters:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter": i}
        torch.save(state, Path(args.out) / f"ckpt_{i}.pt")

with torch.no_grad():
    accuracy = (model(test_images).argmax(1) == test_labels).float().mean().item()
print(f"iter {args.iters}: test accuracy {accuracy:.4f}", flush=True)
