"""One stage of a 1F1B pipeline with static shapes."""
import inspect
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

HIDDEN, TOKENS, MICROBATCHES = 512, 64, 8
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
rank, stages = dist.get_rank(), dist.get_world_size()
part = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)).cuda()
optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
activation = torch.empty(TOKENS, HIDDEN, device="meta", requires_grad=True)
gradient = torch.empty(TOKENS, HIDDEN, device="meta")
shapes = {
    "input_args": (activation if rank else gradient,),
    "output_args": (activation,),
    "input_grads": (gradient,) if rank else None,
    "output_grads": (gradient,) if rank < stages - 1 else None,
}
known = inspect.signature(PipelineStage).parameters  # torch 2.9 takes the first two only
stage = PipelineStage(part, rank, stages, torch.device("cuda", torch.cuda.current_device()),
                      **{name: shape for name, shape in shapes.items() if name in known})
schedule = Schedule1F1B(stage, n_microbatches=MICROBATCHES,
                        loss_fn=lambda output, target: (output - target).square().mean())
batch = torch.zeros(TOKENS * MICROBATCHES, HIDDEN, device="cuda")
for _ in range(2):
    if rank == 0:
        schedule.step(batch)
    elif rank == stages - 1:
        schedule.step(target=batch)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.memory_allocated())
