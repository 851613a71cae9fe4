"""Mixed precision with fp16 autocast and a GradScaler."""
import torch
from torch import nn

model = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True, norm_first=True), num_layers=2,
    enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
scaler = torch.amp.GradScaler("cuda")
for _ in range(3):
    x = torch.randn(4, 128, 256, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
assert len(optimizer.state) == len(list(model.parameters())), "every step was skipped"
