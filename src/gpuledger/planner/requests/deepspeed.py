"""ds_config.json: the run in DeepSpeed's own keys."""

from __future__ import annotations

import json
from typing import Any

from ...config.frameworks import OffloadOptions
from ...config.run import Run
from ...errors import InputError, Problem

CONFIG_NAME = "ds_config.json"
CLIP_NORM = 1.0


def ds_config(run: Run) -> dict[str, Any]:
    """The configuration of deepspeed.initialize; the optimizer stays the script's own.

    Raises InputError for a mesh or a precision that the file cannot say.
    Ref: deepspeed/runtime/config.py, deepspeed/runtime/zero/config.py (0.19.8).
    """
    training = run.training
    problems = [Problem(f"{axis} = {size}: ds_config.json divides over dp only",
                        f"set {axis}: 1, or use framework: megatron")
                for axis, size in mesh(run).items() if size > 1]
    if training.precision not in ("fp32", "tf32", "bf16-master"):
        problems.append(Problem(
            f"precision: {training.precision} is not what DeepSpeed's engine keeps",
            "set precision: bf16-master (bf16 weights, fp32 masters) or fp32"))
    if problems:
        raise InputError.of(problems)
    return {
        "train_batch_size": training.global_batch_size,
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": run.num_microbatches,
        "gradient_clipping": CLIP_NORM if training.gradient_clipping else 0.0,
        "bf16": {"enabled": training.precision == "bf16-master"},
        "zero_optimization": zero_optimization(run),
        "zero_allow_untested_optimizer": True,
        # offload to the CPU takes the script's optimizer, not DeepSpeed's CPUAdam alone
        "zero_force_ds_cpu_optimizer": False,
    }


def zero_optimization(run: Run) -> dict[str, Any]:
    """All keys of the run's options, said even where they are DeepSpeed's defaults."""
    options = run.parallel.deepspeed
    zero: dict[str, Any] = {"stage": run.parallel.zero_stage} | options.model_dump()
    for name in ("offload_optimizer", "offload_param"):
        offload: OffloadOptions = getattr(options, name)
        if offload.device == "none":
            del zero[name]
    if options.overlap_comm is None:
        del zero["overlap_comm"]
    return zero


def mesh(run: Run) -> dict[str, int]:
    """The axes beside dp."""
    return {axis: getattr(run.parallel, axis) for axis in ("tp", "pp", "cp")}


def ds_config_text(run: Run) -> str:
    """The file."""
    return json.dumps(ds_config(run), indent=2) + "\n"
