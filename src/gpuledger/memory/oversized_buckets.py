"""DeepSpeed's buckets on a small model: why a higher ZeRO stage can need more than a lower one. [D3]

The ipg buffer has reduce_bucket_size elements whatever the model has: 5e8 by default, 1 GB of bf16, and
in stages 1 and 2 twice with overlap_comm. Stage 3 keeps it all the time.
"""
from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.run import Run
from gpuledger.program.device import Device
from gpuledger.program.tensor import ITEMSIZE
from gpuledger.units import gib

from .frameworks import unmodelled
from .peak import StepPeak

BUCKET_BYTES = ITEMSIZE["bfloat16"]


def bucket_warnings(run: Run, device: Device, peak_bytes: int) -> Iterator[str]:
    """One sentence where buckets that hold the whole model at once make the peak higher."""
    parallel = run.parallel
    options, stage = parallel.deepspeed, parallel.zero_stage
    if parallel.framework != "deepspeed" or not stage or parallel.world_size > parallel.dp:
        return
    elements = sum(int(w.numel) for w in StepPeak(run, device).weights)
    if options.reduce_bucket_size <= elements:
        return
    buffers = 2 if options.overlap_comm and stage < 3 else 1
    smaller = peak_of(run, device, reduce_bucket_size=elements)
    if smaller >= peak_bytes:
        return
    twice = ", twice with overlap_comm," if buffers == 2 else ""
    yield (f"DeepSpeed's reduce_bucket_size of {options.reduce_bucket_size:,} elements is more than the "
           f"model's {elements:,}: the buffer takes {gib(BUCKET_BYTES * options.reduce_bucket_size)}"
           f"{twice} whatever the model's size{', all the time' if stage == 3 else ''}. "
           f"{than_a_lower_stage(run, device, peak_bytes)}"
           f"deepspeed.reduce_bucket_size={elements} saves {gib(peak_bytes - smaller)}")


def than_a_lower_stage(run: Run, device: Device, peak_bytes: int) -> str:
    """Says so where a lower stage needs less; the highest such stage."""
    for stage in range(run.parallel.zero_stage - 1, -1, -1):
        parallel = run.parallel.model_copy(update={"zero_stage": stage})
        lower = run.model_copy(update={"parallel": parallel})
        if not any(unmodelled(lower)):
            below = int(StepPeak(lower, device).find().requested_bytes)
            if below < peak_bytes:
                return (f"That is why stage {run.parallel.zero_stage} needs {gib(peak_bytes)}, more than "
                        f"stage {stage} with {gib(below)}: ")
    return ""


def peak_of(run: Run, device: Device, **options: int) -> int:
    """Requested bytes at the peak with other options of DeepSpeed's."""
    deepspeed = run.parallel.deepspeed.model_copy(update=options)
    parallel = run.parallel.model_copy(update={"deepspeed": deepspeed})
    return int(StepPeak(run.model_copy(update={"parallel": parallel}), device).find().requested_bytes)
