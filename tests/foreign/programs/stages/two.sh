#!/usr/bin/env bash
# Two stages in a row, each of them torchrun; the second goes on from what the first has saved.
set -euo pipefail
out=$1
batch_size=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
launch=("$PYTHON" -m torch.distributed.run --standalone --nproc-per-node=2 "$here/multigpu.py")
"${launch[@]}" "${STAGE_ONE:-40}" 10 --batch_size "$batch_size" --snapshot "$out/snapshot.pt"
echo "stage two"
"${launch[@]}" "${STAGE_TWO:-80}" 10 --batch_size "$batch_size" --snapshot "$out/snapshot.pt"
