"""Random runs with fused kernels: prints [[counted by FlopCounterMode, estimated], ...]."""
from __future__ import annotations

import json
import random
import sys

import torch

from gpuledger.compute.counted_flops import counted_flops
from gpuledger.config.run import Run
from gpuledger.torch_runs.self_check.case import current_device
from gpuledger.torch_runs.self_check.draw import draw_run
from gpuledger.torch_runs.speed import count_flops
from gpuledger.torch_runs.stream import make_trainer


def pair(run: Run) -> list[int]:
    counted = count_flops(make_trainer(run))["total"]
    torch.cuda.empty_cache()
    return [counted, counted_flops(run.model, run.training, run.num_microbatches, current_device())]


if __name__ == "__main__":
    rng = random.Random(int(sys.argv[1]))
    print(json.dumps([pair(draw_run(rng, "fused")) for _ in range(int(sys.argv[2]))]))
