"""Activation checkpointing: what a forward pass keeps, as a program measures it itself."""
import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def block():
    return nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))


blocks = nn.ModuleList(block() for _ in range(8)).cuda()
x = torch.randn(4096, 512, device="cuda", requires_grad=True)
blocks[0](x)  # cuBLAS takes its workspace
before = torch.cuda.memory_allocated()
y = x
for layer in blocks:
    y = checkpoint(layer, y, use_reentrant=False) if "--checkpoint" in sys.argv else layer(y)
kept = torch.cuda.memory_allocated() - before
y.sum().backward()
print(kept)
