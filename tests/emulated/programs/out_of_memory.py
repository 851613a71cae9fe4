"""Runs out of memory on a small card, in the second step's forward pass."""
import torch
from torch import nn


def forward(blocks, x, repeat):
    for block in blocks:
        for _ in range(repeat):
            x = torch.relu(block(x))
    return x


blocks = nn.ModuleList(nn.Linear(4096, 4096) for _ in range(8)).cuda()
optimizer = torch.optim.SGD(blocks.parameters(), lr=1e-3)
for step in range(2):
    x = torch.randn(16384, 4096, device="cuda")
    forward(blocks, x, repeat=1 if step == 0 else 8).sum().backward()
    optimizer.step()
