"""Programs as users write them, unmodified, on the emulated GPU: their figures, our report."""
from __future__ import annotations

import importlib.util
import json
import os
import pickle
from pathlib import Path

import pytest
from emulated_devices import H100_80GB, T4_16GB

from gpuledger.torch_runs.emulated_gpu.program import ProgramOptions, ProgramResult, run_program
from gpuledger.torch_runs.program_report import report_text

PROGRAMS = Path(__file__).parent / "programs"
MIB = 2**20
# cuBLAS on capability 9.0: 32 MiB for the forward and for the backward thread; torch 2.9 takes
# 1 MiB for cuBLASLt beside them.
WORKSPACES = {64 * MIB, 65 * MIB}


@pytest.fixture
def emulate(emulated, capfd, monkeypatch):
    """Runs a program of this folder: (its result, the last line it printed)."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def run(program, *arguments, device=H100_80GB, **options) -> tuple[ProgramResult, str]:
        command = ["python", str(PROGRAMS / program), *arguments]
        result = run_program(command, ProgramOptions(device=device, **options))
        printed = capfd.readouterr()
        lines = printed.out.strip().splitlines()
        assert result.report["error"] is None or result.exit_status, printed.err
        return result, lines[-1] if lines else ""

    return run


def test_a_plain_loop(emulate):
    result, printed = emulate("plain.py")
    assert result.exit_status == 0
    assert printed == "step 2 loss 0.0000"  # values are not computed
    assert result.report["steps"] == 3
    assert result.report["devices"][0]["num_ooms"] == 0


def test_autocast_with_a_grad_scaler_takes_every_step(emulate):
    result, _ = emulate("autocast_gradscaler.py")
    assert result.exit_status == 0
    assert result.report["steps"] == 3


def test_checkpointing_keeps_only_the_inputs(emulate):
    # 4096 tokens, fp32. Per block: LayerNorm's statistics (2 x 16 KiB) and output (8 MiB), the
    # first Linear's output and GELU's (32 MiB each), the block's own output (8 MiB).
    whole, kept = emulate("checkpointing.py")
    checkpointed, kept_checkpointed = emulate("checkpointing.py", "--checkpoint")
    assert int(kept) == 8 * (80 * MIB + 32 * 1024)
    assert int(kept_checkpointed) == 8 * 8 * MIB
    assert whole.exit_status == checkpointed.exit_status == 0


def test_ddp_as_rank_13_of_64(emulate):
    # Parameters, gradient buckets and two Adam states in fp32; the last loss.
    result, held = emulate("ddp.py", world_size=64, rank=13)
    parameters = 2 * 1024 * 4096 + 4096 + 1024
    assert int(held) - (4 * 4 * parameters + 4) in WORKSPACES
    assert result.report["devices"][0]["index"] == 13 % 8
    assert result.report["nccl"]["communicators"] == [64]
    assert result.report["patches"][0]["name"] == "rendezvous"


def test_fsdp2_as_the_last_rank_of_4096(emulate):
    # Every rank stores ceil(rows / N) = 1 row of each parameter, but the last rank owns only the
    # rows of those with 4096: Adam's states are for these, with a step count for each of 16
    # parameters. The loss is bf16.
    result, held = emulate("fsdp2.py", world_size=4096, rank=4095)
    stored = 4 * (1024 + 1 + 4096 + 1)
    owned = 4 * (1024 + 1)
    assert int(held) - (4 * stored + 8 * owned + 4 * 16 + 2) in WORKSPACES
    assert result.report["nccl"]["communicators"] == [4096]


def test_fsdp1_zero1_hsdp_and_tensor_parallelism(emulate):
    result, printed = emulate("other_frameworks.py", world_size=16, rank=6)
    assert result.exit_status == 0
    layer = 1001 * 1001 + 1001
    flat = -(-layer // 16)
    hsdp = 3 * (-(-1001 // 4) * 1001 + -(-1001 // 4))
    # Embedding, norm, up, down, head: what tensor parallelism over 4 leaves, then rows over 4.
    local = [(1024, 512), (512, 1), (512, 1), (512, 512), (512, 1), (512, 512), (512, 1),
             (1024, 512), (1024, 1)]
    sharded = sum(rows // 4 * columns for rows, columns in local)
    # ZeRO-1 gives six parameters to six of sixteen ranks, the largest first; rank 6 gets none.
    assert json.loads(printed) == [3 * flat, 0, hsdp, sharded]


def test_a_pipeline_stage_keeps_its_receive_buffers(emulate):
    # Parameters, the program's own batch, and for each of 8 micro-batches one received activation
    # and one received gradient of 64 x 512 fp32.
    result, held = emulate("pipeline.py", world_size=4, rank=1)
    parameters, batch, message = 4 * 2 * (512 * 512 + 512), 4 * 8 * 64 * 512, 4 * 64 * 512
    sent = 8 * message if result.report["torch"].startswith("2.9") else 0  # kept by torch 2.9
    assert int(held) - (parameters + batch + 8 * 2 * message + sent) in WORKSPACES
    assert max(result.report["nccl"]["communicators"]) == 4


def test_deepspeed_zero_1_2_and_3(emulate):
    if importlib.util.find_spec("deepspeed") is None:
        pytest.skip("deepspeed is not installed; it is not among the test requirements")
    result, printed = emulate("deepspeed_zero.py", world_size=16, rank=5)
    assert (result.exit_status, printed) == (0, "[1, 2, 3]")


def test_a_llama_of_transformers(emulate):
    if importlib.util.find_spec("transformers") is None:
        if os.environ.get("GPULEDGER_REQUIRE_EMULATED") == "1":
            pytest.fail("transformers is not installed: pip install 'gpuledger[test]'")
        pytest.skip("transformers is not installed")
    result, printed = emulate("transformers_llama.py")
    parameters, held = (int(word) for word in printed.split())
    attention, mlp, norms = 256 * (256 + 128 + 128 + 256), 3 * 256 * 688, 2 * 256
    assert parameters == 2 * 8000 * 256 + 2 * (attention + mlp + norms) + 256
    # bf16 weights and Adam states, a step count each, int64 tokens; the rotary frequencies, 16
    # fp32.
    assert held - (6 * parameters + 4 * 21 + 8 * 2 * 256 + 4 * 16) in WORKSPACES
    assert result.report["steps"] == 2


def test_a_leak_is_growth_per_step_at_the_line_that_allocates(emulate):
    result, _ = emulate("leaking.py")
    growth = result.report["devices"][0]["growth"]
    text = (PROGRAMS / "leaking.py").read_text().splitlines()
    line = 1 + next(number for number, words in enumerate(text) if "cross_entropy" in words)
    assert growth["requested_bytes_per_step"] == 4
    assert growth["allocated_bytes_per_step"] == 512
    assert (growth["first_step"], growth["last_step"]) == (3, 8)
    (holding,) = growth["lines"]
    assert holding["line"].endswith(f"leaking.py:{line} <module>")
    assert "LEAK, 4 bytes requested (512 allocated) more after" in report_text(result.report)


def test_out_of_memory_names_what_holds_the_memory(emulate, tmp_path):
    snapshot = tmp_path / "snapshot.pickle"
    result, _ = emulate("out_of_memory.py", device=T4_16GB, snapshot=snapshot)
    report = result.report
    assert result.exit_status == 1
    assert report["error"].startswith("torch.OutOfMemoryError: CUDA out of memory.")
    (oom,) = report["ooms"]
    assert (oom["device"], oom["step"], oom["wanted_bytes"]) == (0, 2, 256 * MIB)
    top = oom["top_allocations"][0]
    assert top["line"].endswith("out_of_memory.py:9 forward")
    # 52 activations of 16384 x 4096 fp32, and cuBLAS's workspace below capability 9.0; in torch 2.9
    # cuBLASLt has one of 1 MiB beside it.
    workspaces = {53: 8_519_680, 54: 8_519_680 + MIB}[top["blocks"]]
    assert top["requested_bytes"] == 52 * 256 * MIB + workspaces
    assert "OUT OF MEMORY in step 2" in report_text(report)
    # PyTorch's memory viewer reads these two keys.
    seen = pickle.loads(snapshot.read_bytes())
    assert seen["segments"] and any(event["action"] == "oom" for event in seen["device_traces"][0])


@pytest.mark.parametrize(("how", "status"), [("7", 7), ("raise", 1)])
def test_exit_statuses_are_the_programs_own(emulated, capfd, how, status):
    command = ["python", str(PROGRAMS / "exit_status.py"), how, "--flag"]
    result = run_program(command, ProgramOptions(device=H100_80GB))
    printed = capfd.readouterr()
    assert result.exit_status == status
    assert printed.out.splitlines() == [f"__main__ ['{how}', '--flag'] programs", "at exit"]
    if how == "raise":
        _, second, *_ = printed.err[printed.err.index("Traceback"):].splitlines()
        assert "exit_status.py" in second  # the program's own frame comes first
        assert result.report["error"] == "ValueError: on purpose"


def test_torchrun_and_modules_are_understood(emulated, capfd, monkeypatch):
    path = os.pathsep.join([str(PROGRAMS), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    command = ["torchrun", "--nproc_per_node=4", "--nnodes", "2", "-m", "ddp"]
    result = run_program(command, ProgramOptions(device=H100_80GB, rank=5))
    assert result.exit_status == 0, capfd.readouterr().err
    assert (result.report["world_size"], result.report["rank"]) == (8, 5)
    assert result.report["devices"][0]["index"] == 1
