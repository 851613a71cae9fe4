#!/usr/bin/env bash
# Compiles every CUDA file for A100 (sm_80) and H100/H200 (sm_90), and for the host, with every warning
# an error and no register spilled; one line per file and target. Needs nvcc and g++, no GPU, no torch.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHONPATH=src exec "${PYTHON:-python3}" -m gpuledger.torch_runs.kernels check "$@"
