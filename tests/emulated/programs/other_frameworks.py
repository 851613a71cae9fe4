"""FSDP1, ZeroRedundancyOptimizer on DDP, HSDP, and tensor parallelism under FSDP2, in turn."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

LOCAL_RANK = int(os.environ["LOCAL_RANK"])


def layers():
    return nn.Sequential(*(nn.Linear(1001, 1001) for _ in range(3)))


def train(model, optimizer):
    for _ in range(2):
        model(torch.randn(4, 1001, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def fsdp1():
    model = FullyShardedDataParallel(
        layers(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=LOCAL_RANK,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), sync_module_states=True)
    train(model, torch.optim.AdamW(model.parameters()))
    return sum(p.numel() for p in model.parameters())


def zero1():
    model = DistributedDataParallel(layers().cuda(), find_unused_parameters=True,
                                    gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    train(model, optimizer)
    return sum(p.numel() for group in optimizer.optim.param_groups for p in group["params"])


def hsdp(mesh):
    model = layers().cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    train(fully_shard(model, mesh=mesh), torch.optim.AdamW(model.parameters()))
    return sum(p.to_local().numel() for p in model.parameters())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm = nn.Embedding(4096, 512), nn.LayerNorm(512)
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.head = nn.Linear(512, 4096)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(self.norm(x + self.down(F.relu(self.up(x)))))


def tensor_parallel(mesh):
    model = parallelize_module(Block().cuda(), mesh["shard"], {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1),
                                use_local_output=False),
    })
    fully_shard(model, mesh=mesh["replicate"])
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.zeros(2, 256, dtype=torch.long, device="cuda")
    with loss_parallel():
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    return sum(p.to_local().numel() for p in model.parameters())


device = torch.device("cuda", LOCAL_RANK)
dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
torch.cuda.set_device(device)
on_host = torch.ones(3)
dist.all_reduce(on_host)
mesh = init_device_mesh("cuda", (dist.get_world_size() // 4, 4),
                        mesh_dim_names=("replicate", "shard"))
print([fsdp1(), zero1(), hsdp(mesh), tensor_parallel(mesh)])
