"""The emulated GPU itself: what torch sees of it, and how capacity and segments behave."""
from __future__ import annotations

import dataclasses

from emulated_devices import A100_80GB, H100_80GB, T4_16GB

MIB = 2**20


def test_properties_are_those_asked_for(emulated):
    seen = emulated.run("""
import json, torch
p = torch.cuda.get_device_properties(1)
torch.cuda.set_device(1)
print(json.dumps([torch.cuda.device_count(), p.name, p.major, p.minor, p.multi_processor_count,
                  p.total_memory, list(torch.cuda.mem_get_info())]))
""", device=dataclasses.replace(A100_80GB, context_bytes=500 * MIB), devices=3)
    total = A100_80GB.total_bytes
    assert seen == [3, A100_80GB.name, 8, 0, 108, total, [total - 500 * MIB, total]]


def test_memory_statistics_of_a_matmul_and_its_backward(emulated):
    # Two fp32 inputs of 4 MiB and two gradients, the scalar loss (512 B), and cuBLAS's workspace of
    # capability 9.0: 32 MiB, which PyTorch allocates for each handle and stream, so once for the
    # forward thread and once for the backward thread.
    seen = emulated.run("""
import json, torch
x, w = (torch.empty(1024, 1024, device="cuda", requires_grad=True) for _ in range(2))
loss = (x @ w).sum()
loss.backward()
print(json.dumps([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()]))
""")
    workspaces = 2 * 32 * MIB
    assert seen[0] == 4 * 4 * MIB + workspaces + 512
    assert seen[1] == 2 * MIB + 20 * MIB + workspaces


def test_out_of_memory_at_capacity(emulated):
    seen = emulated.run("""
import json, torch
blocks, error = [], ""
try:
    while True:
        blocks.append(torch.empty(2**30, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError as exception:
    error = str(exception)
print(json.dumps([len(blocks), torch.cuda.memory_stats()["num_ooms"], error]))
""", device=T4_16GB)
    blocks, num_ooms, error = seen
    assert blocks == T4_16GB.total_bytes // 2**30 == 14
    assert num_ooms == 1
    assert "Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 14.56 GiB" in error


def test_expandable_segments_map_and_unmap(emulated):
    seen = emulated.run("""
import json, torch
a = torch.empty(90 * 2**20, dtype=torch.uint8, device="cuda")
segment = torch.cuda.memory_snapshot()[0]
reserved, free = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
del a
torch.cuda.empty_cache()
print(json.dumps([segment["is_expandable"], reserved, free, torch.cuda.memory_reserved(),
                  torch.cuda.mem_get_info()[0]]))
""", variables={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
    total, mapped = H100_80GB.total_bytes, 100 * MIB  # whole pages of 20 MiB
    assert seen == [True, mapped, total - mapped, 0, total]


def test_devices_have_their_own_memory(emulated):
    seen = emulated.run("""
import json, torch
x = torch.empty(2**22, dtype=torch.uint8, device="cuda:1")
y = x.to("cuda:0")[: 2**20].clone()
del x
print(json.dumps([[torch.cuda.memory_allocated(d), torch.cuda.max_memory_allocated(d)]
                  for d in (0, 1)]))
""", devices=2)
    assert seen == [[1 * MIB, 5 * MIB], [0, 4 * MIB]]


def test_attention_is_chosen_by_capability(emulated):
    program = """
import json, torch, torch.nn.functional as F
q = torch.empty(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
out = F.scaled_dot_product_attention(q, q, q, is_causal=True)
print(json.dumps([out.grad_fn.name(), torch.cuda.is_bf16_supported(including_emulation=False)]))
"""
    ampere = emulated.run(program, device=A100_80GB)
    assert ampere == ["ScaledDotProductFlashAttentionBackward0", True]
    turing = emulated.run(program, device=T4_16GB)
    assert turing[0] != "ScaledDotProductFlashAttentionBackward0" and turing[1] is False


def test_small_values_from_the_host_survive_on_the_device(emulated):
    seen = emulated.run("""
import json, torch
sent = torch.tensor([3, 4]).cuda()
copied, doubled = sent.clone(), sent * 2
values = [sent.tolist(), copied.tolist(), doubled.tolist()]
address = sent.data_ptr()
del sent
filled = torch.zeros(2, dtype=torch.long, device="cuda")
print(json.dumps([*values, filled.data_ptr() == address, filled.tolist()]))
""")
    # What a kernel computes is not known; a fill hides what an earlier tensor left at its address.
    assert seen == [[3, 4], [3, 4], [0, 0], True, [0, 0]]


def test_generated_stand_ins_are_traced_at_their_first_call(emulated, tmp_path):
    trace = tmp_path / "trace.txt"
    emulated.run("""
import torch
x = torch.ones(4, 4, device="cuda")
(x @ x) @ x
print("null")
""", trace=trace)
    called = trace.read_text().split()
    assert called.count("cublasSgemm_v2") == 1
