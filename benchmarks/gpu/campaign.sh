#!/usr/bin/env bash
# Measures the validation matrix on this machine's GPU and reconciles every run with its estimate.
#
#   benchmarks/gpu/campaign.sh RESULTS              on a GPU: python3 with torch >= 2.11, no internet needed
#   benchmarks/gpu/campaign.sh RESULTS GPU-PRESET   a rehearsal on the emulated GPU: no GPU, no times
#
# Each run is one JSON file in RESULTS/runs; interrupt it and start it again, and it goes on behind the
# last file. RESULTS/summary.json has the errors over all runs, RESULTS/machine.txt the machine.
# PYTHON names another interpreter.
set -euo pipefail

results=${1:?usage: campaign.sh RESULTS [GPU-PRESET]}
rehearsal=${2:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
export PYTHONPATH="$root/src${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$results/runs"

{
    date -u +%FT%TZ
    git -C "$root" rev-parse HEAD 2>/dev/null || true
    "$python" -c 'import torch; print("torch", torch.__version__, "cuda", torch.version.cuda)'
    if [ -z "$rehearsal" ]; then nvidia-smi; else echo "rehearsal on an emulated $rehearsal"; fi
} > "$results/machine.txt"

"$python" "$root/benchmarks/gpu/campaign.py" "$results" $rehearsal
