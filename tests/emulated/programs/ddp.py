"""DistributedDataParallel under torchrun's environment variables."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("nccl")
local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
model = DistributedDataParallel(model, device_ids=[local_rank])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    loss = model(torch.randn(8, 1024, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss.detach())
held = torch.cuda.memory_stats()["requested_bytes.all.current"]
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, {"rank": dist.get_rank()})
assert len(gathered) == dist.get_world_size() and gathered[0] == {"rank": dist.get_rank()}
dist.barrier()
print(held)
dist.destroy_process_group()
