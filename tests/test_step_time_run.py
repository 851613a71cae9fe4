"""The step time of a run: records to inputs, error range, JSON and table."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gpuledger.compute.step_time import of_run
from gpuledger.compute.step_time.counted import block_traffic, head_traffic
from gpuledger.compute.step_time.curves import data, efficiency_of, software
from gpuledger.compute.step_time.device import CURVES, device_of_gpu
from gpuledger.compute.step_time.error_range import family_of
from gpuledger.compute.step_time.inputs import Software
from gpuledger.compute.step_time.of_run import optimizer_bytes, profile_of, step_time
from gpuledger.config import (
    Run,
    RunOptions,
    list_presets,
    load_gpu,
    load_model,
    load_run,
    resolve_run,
)
from gpuledger.config.efficiency import Efficiency
from gpuledger.config.training import Training
from gpuledger.errors import InputError
from gpuledger.estimate import estimate
from gpuledger.report.estimate_json import content
from gpuledger.report.step_time import time_lines
from step_time_inputs import A100


def run(preset: str = "llama-3-8b-h100x8", *settings: str) -> Run:
    return resolve_run(preset, RunOptions(set=settings))[0]


# ---- records to inputs ----------------------------------------------------------------------


def test_an_a100_is_the_device_of_its_preset() -> None:
    assert device_of_gpu(load_gpu("a100-80gb-sxm"), "bf16", "flash2") == A100


def test_every_curve_of_every_architecture_says_where_it_comes_from() -> None:
    for name, values in data("architectures").items():
        named = set(values["sources"])
        assert named == {"all"} or named >= set(values) - {"sources"}, name
        assert set(values) >= {*CURVES, "attention", "host_seconds", "sources"}
    for profile in data("frameworks").values():
        assert profile["source"]
        missing = {f.name for f in fields(Software)} - set(profile)
        assert missing <= {"host_seconds", "stops_recompute_early", "fp8", "counted"}


def test_every_gpu_preset_has_a_device_or_says_what_is_missing() -> None:
    for name in list_presets("gpus"):
        gpu = load_gpu(name)
        kind = "bf16" if gpu.dense_peak_flops_per_second.bf16 else "fp16"
        if gpu.num_sms is None or gpu.bandwidth_bytes_per_second is None:
            with pytest.raises(InputError, match="is not known, so there is no step time"):
                device_of_gpu(gpu, kind, "efficient")
        else:
            assert device_of_gpu(gpu, kind, "efficient").num_sms == gpu.num_sms
    with pytest.raises(InputError, match="fp8 peak of a100-80gb-sxm is not known"):
        device_of_gpu(load_gpu("a100-80gb-sxm"), "fp8", "flash2")
    with pytest.raises(InputError, match="nothing is known of the attention kernel flash3"):
        device_of_gpu(load_gpu("a100-80gb-sxm"), "bf16", "flash3")
    with pytest.raises(InputError, match="there is no software profile 'jax'"):
        software("jax", host_seconds=0.0)


def test_measured_curves_of_a_gpu_win() -> None:
    measured = Efficiency(
        sustained_share=0.9,
        host_seconds=5e-6,
        measured_on="here",
        sources={},
        best_matmul_flops_per_second={"bf16": 650e12},
    )
    gpu = load_gpu("h100-80gb-sxm").model_copy(update={"efficiency": measured})
    found = efficiency_of(gpu)
    assert (found.sustained_share, found.host_seconds) == (0.9, 5e-6)
    assert found.best_matmul_flops_per_second["bf16"] == 650e12
    assert found.best_matmul_flops_per_second["fp8"] == 1402.6e12  # still the published one
    assert found.tile_seconds == 3.0e-6  # still Hopper's
    slower = run().model_copy(update={"cluster": run().cluster.model_copy(update={"gpu": gpu})})
    assert step_time(slower).breakdown.gemm > step_time(run()).breakdown.gemm
    assert step_time(slower).error.calibrated
    assert step_time(slower).error.low_seconds is None


def test_a_run_is_the_row_of_korthikanti() -> None:
    """GPT-3 175B, 64 A100, tp 8, pp 8, vpp 3, sequence parallel, selective: 13.75 s measured."""
    gpt = resolve_run(
        "gpt3-175b-a100x1024",
        RunOptions(
            gpus=64,
            pp=8,
            global_batch=64,
            set=(
                "model.vocab_size=51200",
                "model.dropout=0.1",
                "parallel.vpp=3",
                "training.attention=eager",
                "training.precision=bf16-master",
                "parallel.dp=1",
            ),
        ),
    )[0]
    assert profile_of(gpt) == "megatron-2021"
    assert step_time(gpt).step_seconds == pytest.approx(13.75, rel=0.06)


def test_layouts_follow_the_run() -> None:
    every = of_run.layout_of(run("llama-3-8b-h100x8", "training.recompute=every:3"))
    assert every.recompute_layers == 11 / 32
    mesh = of_run.layout_of(load_run("gpt3-175b-a100x1024"))
    assert (mesh.tp, mesh.pp, mesh.vpp, mesh.dp, mesh.num_microbatches) == (8, 16, 3, 8.0, 192.0)
    assert (mesh.recompute_core, mesh.sequence_parallel) == (1.0, 1)
    windowed = of_run.decoder_of(load_model("gemma-2-9b"), run().training)
    assert (windowed.window, windowed.windowed_share) == (4096, 0.5)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 4 + 2 * 4 * 3),
        ({"gradient_clipping": True}, 4 + 2 * 4 * 3 + 12),
        ({"optimizer": "sgd"}, 4 + 2 * 4),
        ({"optimizer": "sgd", "momentum": 0.9}, 4 + 2 * 4 * 2),
        ({"precision": "bf16"}, 2 + 2 * 2 * 3),
        ({"precision": "bf16-master"}, 2 + 2 * 4 * 3 + 2),
    ],
)
def test_traffic_of_the_optimizer(settings: dict[str, Any], expected: int) -> None:
    base = {
        "seq_len": 8,
        "micro_batch_size": 1,
        "global_batch_size": 1,
        "precision": "bf16-mixed",
        "optimizer": "adamw",
        "attention": "flash",
        "recompute": "none",
        "loss": "cross_entropy",
    }
    assert optimizer_bytes(Training(**{**base, **settings})) == expected


# ---- counted from the program ---------------------------------------------------------------


def training(precision: str) -> Training:
    return Training(
        seq_len=1024,
        micro_batch_size=4,
        global_batch_size=4,
        precision=precision,
        optimizer="adamw",
        attention="flash",
        recompute="none",
        loss="cross_entropy",
    )


def test_the_program_moves_what_the_closed_form_says() -> None:
    """GPT-2 in pure bf16, per token and hidden element: 46.0 forward (closed form: 44), 84 backward
    (88)."""
    traffic = block_traffic(load_model("gpt2"), training("bf16"))
    elements = 4 * 1024 * 768
    assert round(traffic.forward_bytes / elements, 2) == 46.02
    assert round(traffic.backward_bytes / elements, 1) == 84.0
    assert (traffic.forward_kernels, traffic.backward_kernels) == (12, 22)


def test_autocast_moves_twice_as_much() -> None:
    pure = block_traffic(load_model("gpt2"), training("bf16"))
    mixed = block_traffic(load_model("gpt2"), training("bf16-mixed"))
    assert mixed.forward_bytes / pure.forward_bytes == pytest.approx(1.9, abs=0.05)


def test_traffic_is_affine_in_the_micro_batch_and_falls_with_tp() -> None:
    model, base = load_model("llama-3-8b"), training("bf16")
    one, two, three = (
        block_traffic(model, base.model_copy(update={"micro_batch_size": n})) for n in (1, 2, 3)
    )
    assert three.forward_bytes - two.forward_bytes == two.forward_bytes - one.forward_bytes
    assert block_traffic(model, base, tp=2).forward_bytes < block_traffic(model, base).forward_bytes
    assert head_traffic(model, base, tp=2).forward_bytes < head_traffic(model, base).forward_bytes


# ---- what is printed ------------------------------------------------------------------------


def test_json_adds_up() -> None:
    time = content(estimate(run("gpt2-a100")))["time"]
    parts = time["breakdown"]
    assert sum(parts["terms"].values()) == pytest.approx(time["step_seconds"], rel=1e-12)
    assert parts["compute"] + parts["exposed_communication"] + parts["bubble"] + parts[
        "optimizer"
    ] == pytest.approx(time["step_seconds"], rel=1e-12)
    flops = content(estimate(run("gpt2-a100")))["flops"]
    assert time["mfu"] == flops["model_flops_per_step"] / (time["step_seconds"] * 312e12)
    assert time["hfu"] == flops["hardware_flops_per_step"] / (time["step_seconds"] * 312e12)
    assert time["at_peak_seconds"] == flops["hardware_flops_per_step"] / 312e12
    assert time["tokens_per_second_per_gpu"] == pytest.approx(512 * 1024 / time["step_seconds"])
    assert time["error_range"]["low_seconds"] < time["error_range"]["high_seconds"]
    json.dumps(time)


def test_an_uncalibrated_h100_in_bf16_says_that_it_reads_too_fast() -> None:
    error = step_time(run()).error
    assert error.family == "H100, PyTorch, 16 bit"
    assert error.bias is not None
    assert error.bias < -0.15
    assert "reads too fast" in error.text
    assert any("reads too fast" in line for line in time_lines(estimate(run())))


def test_a_family_without_published_steps_says_so() -> None:
    error = step_time(run("mistral-7b-l40sx8")).error
    assert error.bias is None
    assert "not known" in error.text
    assert family_of("ampere", "megatron-core", "fp16") == "A100, Megatron, 16 bit"


def test_an_unknown_peak_is_no_step_time() -> None:
    bare = run().model_copy(
        update={
            "cluster": run().cluster.model_copy(
                update={
                    "gpu": load_gpu("h100-80gb-sxm").model_copy(
                        update={"bandwidth_bytes_per_second": None}
                    )
                }
            )
        }
    )
    result = estimate(bare)
    assert time_lines(result) == [
        "step time is not known: h100-80gb-sxm: bandwidth_bytes_per_second "
        "is not known, so there is no step time"
    ]
    assert content(result)["time"]["step_seconds"] is None


def test_assumptions_are_said() -> None:
    told = step_time(load_run("mistral-7b-l40sx8")).assumptions
    assert any("no bf16 matrix product of l40s-48gb was measured" in line for line in told)
    assert any("12 us of host time" in line for line in told)
    spread = run("llama-3-70b-h100x64", "cluster.network_bytes_per_second=null")
    assert any("network of 50 GB/s per GPU" in line for line in step_time(spread).assumptions)


def test_the_page_shows_what_is_printed() -> None:
    page = (Path(__file__).parents[1] / "docs" / "step_time.md").read_text()
    shown = page.split("```")[1].split()
    assert shown == " ".join(time_lines(estimate(load_run("llama-3-8b-h100x8")))).split()


def test_an_estimate_imports_no_numpy() -> None:
    code = (
        "import sys; from gpuledger.config import load_run\n"
        "from gpuledger.estimate import estimate\n"
        "from gpuledger.report.estimate_table import estimate_table\n"
        "estimate_table(estimate(load_run('gpt2-a100'))); print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
