"""Context parallelism: what has no account, and which rank needs most."""
from __future__ import annotations

from collections.abc import Iterator

from gpuledger.config.run import Run
from gpuledger.errors import Problem
from gpuledger.program.device import Device
from gpuledger.program.fused_attention import FLASH_HEAD_DIM_MULTIPLE

EFFICIENT_QUERIES = 32
HEAVIEST_RANKS = (0, 1)                         # one of them needs most, see at_heaviest_rank
RING_KERNELS = ("flash", "efficient")           # that PyTorch's ring attention calls, but for cuDNN's


def context_problems(run: Run) -> Iterator[Problem]:
    """What ring attention cannot do, or has no account of. [X19]"""
    parallel, training, model = run.parallel, run.training, run.model
    cp = parallel.cp
    if training.attention not in RING_KERNELS:
        yield Problem(f"attention: {training.attention} over cp = {cp} ranks is not modelled",
                      "use attention: flash or efficient")
    if training.seq_len % (2 * cp):
        yield Problem(f"seq_len = {training.seq_len} does not divide into the 2 cp = {2 * cp} pieces "
                      "of which each rank has two", f"use a multiple of {2 * cp}")
    elif training.attention == "efficient" and training.seq_len % (2 * cp * EFFICIENT_QUERIES):
        yield Problem(f"attention: efficient over cp = {cp} ranks: half of a rank's {training.seq_len // cp} "
                      f"tokens is no multiple of {EFFICIENT_QUERIES}, to which its logsumexp is padded",
                      f"use seq_len in multiples of {2 * cp * EFFICIENT_QUERIES}, or attention: flash")
    if training.attention == "flash" and model.head_dim % FLASH_HEAD_DIM_MULTIPLE:
        yield Problem(f"head_dim = {model.head_dim} over cp = {cp} ranks: attention: flash would be padded",
                      "use attention: efficient")
    if model.positions == "alibi":
        yield Problem(f"positions: alibi over cp = {cp} ranks: ring attention takes no bias", "use cp: 1")
    if any(model.window(layer) is not None for layer in range(model.num_layers)):
        yield Problem(f"sliding_window over cp = {cp} ranks: ring attention takes no window", "use cp: 1")
    if model.attention_dropout:
        yield Problem(f"attention_dropout = {model.attention_dropout} over cp = {cp} ranks: "
                      "ring attention keeps the random state of its first block only",
                      "set model.attention_dropout: 0")
    if parallel.framework == "deepspeed":
        yield Problem(f"cp = {cp} with framework: deepspeed is not modelled", "use framework: fsdp2 or ddp")


def at_heaviest_rank(run: Run, device: Device) -> Run:
    """The run as the context-parallel rank sees it that needs most.

    Rank 0 needs only half of its queries in every round but the first, the last rank half of the
    keys, those between them one after the other: rank 1 stands for them.
    """
    from .peak import StepPeak
    from .pipeline.stage_peak import StagePeak

    if run.parallel.cp == 1 or run.parallel.cp_rank is not None or run.parallel.framework == "megatron":
        return run

    def peak_bytes(candidate: Run) -> int:
        finder = StepPeak(candidate, device) if run.parallel.pp == 1 else StagePeak(candidate, device, 0, {})
        return int(finder.find().requested_bytes)

    return max((at_rank(run, rank) for rank in HEAVIEST_RANKS), key=peak_bytes)


def at_rank(run: Run, cp_rank: int) -> Run:
    """The run as this context-parallel rank sees it."""
    return run.model_copy(update={
        "parallel": run.parallel.model_copy(update={"cp_rank": cp_rank})})
