"""DeepSpeed ZeRO, stages 1, 2 and 3, one after the other."""
import os

os.environ |= {"DS_BUILD_OPS": "0", "DS_SKIP_CUDA_CHECK": "1", "DS_ACCELERATOR": "cuda"}
import deepspeed
import torch
from torch import nn


def train(stage):
    model = nn.Sequential(*(nn.Linear(1001, 1001) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
        "zero_optimization": {
            "stage": stage, "reduce_bucket_size": 2_000_000, "overlap_comm": True},
        "zero_allow_untested_optimizer": True, "steps_per_print": 10**9})
    for _ in range(2):
        engine.backward(engine(torch.randn(4, 1001, device="cuda", dtype=torch.bfloat16)).sum())
        engine.step()
    return engine.zero_optimization_stage()


deepspeed.init_distributed()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
print([train(stage) for stage in (1, 2, 3)])
