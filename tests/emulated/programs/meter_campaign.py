"""Random runs on the device: does the account add up, is it complete, are the FLOPs counted?

    python meter_campaign.py FIRST_SEED COUNT

Prints one JSON object: how many runs, and every claim that failed, with its numbers.
"""
from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import torch
from random_runs import draw_run

from gpuledger.compute.counted_flops import counted_flops
from gpuledger.config.model import Model
from gpuledger.config.training import Training
from gpuledger.program.device import Device
from gpuledger.torch_runs.counters import Boundary, CounterMeter
from gpuledger.torch_runs.meter import StepAccount, account_for_step
from gpuledger.torch_runs.speed import count_flops
from gpuledger.torch_runs.step import Trainer

CUBLAS_WORKSPACES = 2 * 33_554_432          # capability 9.0: one for each thread that multiplies
ITEMSIZE = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}


def failures(seed: int) -> Iterator[str]:
    model, training = draw_run(seed)
    micro_batches = training.global_batch_size // training.micro_batch_size
    trainer = Trainer(model, training, micro_batches, "cuda")
    trainer.step()
    counters = CounterMeter()
    trainer.step(counters)
    account = account_for_step(trainer)
    yield from failed_sums(account, counters.boundaries)
    yield from failed_owners(account, trainer, model, training)
    yield from failed_flops(trainer, model, training)


def failed_flops(trainer: Trainer, model: Model, training: Training) -> Iterator[str]:
    """FlopCounterMode counts what the program says."""
    properties = torch.cuda.get_device_properties()
    device = Device((properties.major, properties.minor), properties.multi_processor_count)
    counted = count_flops(trainer)["total"]
    estimated = counted_flops(model, training, trainer.num_microbatches, device)
    if counted != estimated:
        yield f"FLOPs: counted {counted}, estimated {estimated}"


def failed_sums(account: StepAccount, counted: list[Boundary]) -> Iterator[str]:
    """Owners and rounding are what memory_stats says, in this step and in the one before."""
    for seen, before in zip(account.boundaries, counted, strict=True):
        total = seen.requested_bytes + seen.rounding_bytes
        if total != seen.allocated_bytes:
            yield f"{seen.instant}: owners {total}, allocated {seen.allocated_bytes}"
        if seen.requested_bytes != before.current["requested_bytes"]:
            yield f"{seen.instant}: owners {seen.requested_bytes}, step before {before.current}"
    highest = max(boundary.peak["requested_bytes"] for boundary in counted)
    if account.peak.requested_bytes != highest:
        yield f"peak: owners {account.peak.requested_bytes}, memory_stats {highest}"


def failed_owners(
    account: StepAccount, trainer: Trainer, model: Model, training: Training
) -> Iterator[str]:
    """Each owner holds what it must, and nothing is left over that has no name."""
    parameters = sum(p.numel() * ITEMSIZE[p.dtype] for p in trainer.network.parameters())
    has_gradients = not training.set_to_none
    for seen in account.boundaries:
        owned = seen.owned_bytes
        expected = {"parameters": parameters, "workspaces": CUBLAS_WORKSPACES}
        if seen.instant == "forward":
            unsaved = loss_bytes(training) + early_bytes(model, training, has_gradients)
            allowed = {unsaved, unsaved + logits_bytes(model, training)}
            if owned["temporaries"] not in allowed:
                yield f"forward: temporaries {owned['temporaries']}, expected one of {allowed}"
        else:
            expected |= {"temporaries": 0, "activations": 0}
        has_gradients |= seen.instant == "backward"
        if seen.instant in ("backward", "optimizer"):
            expected["gradients"] = parameters
        if seen.instant == "zero grad":
            expected["gradients"] = 0 if training.set_to_none else parameters
        yield from (f"{seen.instant}: {owner} {owned[owner]}, expected {nbytes}"
                    for owner, nbytes in expected.items() if owned[owner] != nbytes)


def loss_bytes(training: Training) -> int:
    """A scalar in the dtype of log-probabilities: fp32 where autocast or the loss makes it so."""
    narrow = training.precision in ("bf16", "bf16-master") and training.loss != "fp32_logits"
    return 2 if narrow else 4


def early_bytes(model: Model, training: Training, has_gradients: bool) -> int:
    """fused_linear forms its gradients in the forward pass and keeps them without saving them.

    The weight's becomes its .grad, and is owned as such, where there is none to add it to.
    """
    if training.loss != "fused_linear":
        return 0
    elements = training.micro_batch_size * training.seq_len * model.hidden_size
    elements += model.vocab_size * model.hidden_size * has_gradients
    return elements * (2 if training.precision in ("bf16", "bf16-master") else 4)


def logits_bytes(model: Model, training: Training) -> int:
    """What a caller keeps of logits that autograd does not save."""
    if not training.keep_logits:
        return 0
    narrow = training.precision not in ("fp32", "tf32") and training.loss != "fp32_logits"
    return training.micro_batch_size * training.seq_len * model.vocab_size * (2 if narrow else 4)


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    found = {}
    for seed in range(first, first + count):
        torch.manual_seed(seed)
        failed = list(failures(seed))
        if failed:
            found[seed] = failed
    print(json.dumps({"runs": count, "failures": found}))


if __name__ == "__main__":
    main()
