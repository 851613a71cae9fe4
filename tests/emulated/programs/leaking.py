"""A loop with a bug: the losses are kept as tensors, so each step leaves one behind."""
import torch
import torch.nn.functional as F

model = torch.nn.Sequential(
    torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
losses = []
for _ in range(8):
    x = torch.randn(32, 256, device="cuda")
    loss = F.cross_entropy(model(x), torch.zeros(32, dtype=torch.long, device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss)
print("mean loss", torch.stack(losses).mean().item())
