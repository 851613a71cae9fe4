"""Activation checkpointing: peak memory with and without it, as a program measures it itself."""
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

use_checkpoint = "--checkpoint" in sys.argv
block = lambda: nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))  # noqa: E731
blocks = nn.ModuleList(block() for _ in range(8)).cuda()
x = torch.randn(16, 256, 512, device="cuda", requires_grad=True)
torch.cuda.reset_peak_memory_stats()
y = x
for layer in blocks:
    y = checkpoint(layer, y, use_reentrant=False) if use_checkpoint else layer(y)
y.sum().backward()
print(torch.cuda.max_memory_allocated())
