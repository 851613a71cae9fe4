"""The reference model in a DeepSpeed engine."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gpuledger.config.frameworks import OffloadOptions
from gpuledger.config.model import Model
from gpuledger.config.parallelism import Parallelism
from gpuledger.config.training import Training
from gpuledger.errors import InputError

from .frameworks import Wrapped, undivided
from .optimizers import CLIP_NORM

BUILD_NOTHING = {"DS_BUILD_OPS": "0", "DS_SKIP_CUDA_CHECK": "1", "DS_ACCELERATOR": "cuda"}

LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


class DeepSpeedWrapped(Wrapped):
    """A network whose engine runs backward, reduction and update; mixed precision is the engine's."""

    def __init__(self, model: Model, training: Training, parallel: Parallelism, device: str):
        network = undivided(model, training, device).network
        super().__init__(network, network, autocasts=False)
        self.training, self.parallel = training, parallel

    def take(self, optimizer: Any, num_microbatches: int) -> Optimizer:
        """The engine's optimizer around the user's own."""
        deepspeed = imported()
        os.environ["WORLD_SIZE"] = str(self.parallel.dp)
        self.engine, taken, *_ = deepspeed.initialize(
            model=self.network, optimizer=optimizer, dist_init_required=False,
            config=configuration(self.training, self.parallel, num_microbatches))
        self.called = self.engine
        result: Optimizer = taken
        return result

    def recipe(self, training: Training) -> Training:
        """The engine has the fp32 masters."""
        return training.model_copy(update={"precision": "bf16"})

    def backward(self, loss: Tensor) -> bool:
        self.engine.backward(loss)
        return True

    def end_micro_batch(self, last: bool) -> None:
        """The engine counts micro-batches: it updates at the last."""
        if not last:
            self.engine.step()

    def update(self) -> bool:
        self.engine.step()
        return True


def configuration(
    training: Training, parallel: Parallelism, num_microbatches: int
) -> dict[str, Any]:
    """The ds_config that a run stands for."""
    options = parallel.deepspeed
    zero = options.model_dump() | {"stage": parallel.zero_stage}
    for name in ("offload_optimizer", "offload_param"):
        offload: OffloadOptions = getattr(options, name)
        zero[name] = offload.model_dump() if offload.device != "none" else None
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": num_microbatches,
        "gradient_clipping": CLIP_NORM if training.gradient_clipping else 0.0,
        "bf16": {"enabled": True},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }


def imported() -> Any:
    """DeepSpeed without its compiled operators. Raises InputError where it is not installed."""
    if importlib.util.find_spec("deepspeed") is None:
        raise InputError("framework deepspeed needs the package deepspeed",
                         "pip install deepspeed")
    os.environ.update(BUILD_NOTHING)
    for name, value in LAUNCHED.items():
        os.environ.setdefault(name, value)
    import deepspeed

    # It would compare lists with what rank 0 broadcasts, and there is no rank 0 to do it.
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed.runtime.zero"):
            for check in [key for key in vars(module) if key.endswith("_same_as_other_ranks")]:
                setattr(module, check, lambda values: None)
    return deepspeed
