"""A LLaMA of the transformers library, built from a config: nothing is downloaded."""
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=256, intermediate_size=688, num_hidden_layers=2, vocab_size=8000,
                     num_attention_heads=8, num_key_value_heads=4)
with torch.device("cuda"):
    model = LlamaForCausalLM(config).to(torch.bfloat16)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
tokens = torch.randint(0, 8000, (2, 256), device="cuda")
for _ in range(2):
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
held = torch.cuda.memory_stats()["requested_bytes.all.current"]
print(sum(p.numel() for p in model.parameters()), held)
