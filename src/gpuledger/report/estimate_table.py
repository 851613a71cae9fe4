"""The estimate as text: what is where, when the peak is, and whether it fits."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ..config.parallelism import Parallelism
from ..config.run import Run
from ..config.training import EveryK
from ..estimate import Estimate, Memory
from ..memory.outside import Range
from ..units import count, gib, gib_cell, scaled
from .step_time import time_lines

if TYPE_CHECKING:
    from ..advice import Advice

BAR_WIDTH = 30


def estimate_table(estimate: Estimate, advice: tuple[Advice, ...] = ()) -> str:
    """Heading, ledger, verdict, FLOPs, and advice where it does not fit."""
    blocks = [heading(estimate), ledger(estimate), *host(estimate.memory), *stages(estimate),
              verdict(estimate), compute(estimate)]
    if not estimate.memory.fits:
        blocks.append(advice_table(advice))
    return "\n\n".join(blocks)


def heading(estimate: Estimate) -> str:
    """The run in three lines."""
    run = estimate.run
    training, parallel = run.training, run.parallel
    implementation = "fused" if parallel.framework == "megatron" else training.optimizer_implementation
    gpus = f"{run.cluster.gpus} x {run.cluster.gpu.name}"
    return "\n".join((
        f"{run.name}: {count(estimate.parameters)} parameters ({estimate.parameters:,})",
        f"{training.precision}, {training.optimizer} ({implementation}), "
        f"attention {training.attention}, recompute {recompute_policy(run)}, loss {training.loss}",
        f"{gpus}, {mesh(parallel)}ZeRO stage {parallel.zero_stage}; micro-batch "
        f"{training.micro_batch_size} x {training.seq_len:,} tokens, global batch "
        f"{training.global_batch_size} sequences ({run.num_microbatches} micro-batches)"))


def recompute_policy(run: Run) -> str:
    """What is run again: `every 2`, `full (block, 4 layers)`."""
    recompute, options = run.training.recompute, run.parallel.megatron
    if isinstance(recompute, EveryK):
        return f"every {recompute.every}"
    if recompute == "full" and (options.recompute_method, options.recompute_num_layers) != ("uniform", 1):
        return f"full ({options.recompute_method}, {options.recompute_num_layers} layers)"
    if recompute == "selective" and options.recompute_modules != ("core_attn",):
        return f"selective ({', '.join(options.recompute_modules)})"
    return recompute


def mesh(parallel: Parallelism) -> str:
    """The axes that divide the run: `tp 8 with sequence parallelism, pp 8 (1f1b), dp 2, `."""
    parts = []
    if parallel.tp > 1:
        parts.append(f"tp {parallel.tp}{' with sequence parallelism' if parallel.sequence_parallel else ''}")
    if parallel.cp > 1:
        parts.append(f"cp {parallel.cp} ({parallel.context_exchange})")
    if parallel.pp > 1:
        chunks = f", vpp {parallel.vpp}" if parallel.vpp > 1 else ""
        parts.append(f"pp {parallel.pp} ({parallel.pipeline_schedule}{chunks})")
    return ", ".join([*parts, f"dp {parallel.dp}, "])


def ledger(estimate: Estimate) -> str:
    """Bytes per category at the peak, then what PyTorch and the GPU add, with a bar against the capacity."""
    from tabulate import tabulate

    where = "per GPU" if len(estimate.by_stage) == 1 else f"GPU of stage {estimate.memory.stage}"
    headers = [where, "GiB", "share", f"of {gib(estimate.memory.capacity_bytes)}"]
    rows = [*category_rows(estimate.memory), *device_rows(estimate.memory)]
    return tabulate(rows, headers, disable_numparse=True, colalign=("left", "right", "right", "left"))


def host(m: Memory) -> list[str]:
    """What is offloaded to the host's memory; nothing where nothing is."""
    if not m.host.rank_bytes:
        return []
    return [f"host memory: {gib(m.host.rank_bytes)} per GPU, {gib(m.host.pinned_bytes)} of it pinned; "
            f"{gib(m.host.node_bytes)} on a node of {m.host.ranks_per_node}"]


def stages(estimate: Estimate) -> list[str]:
    """One row per pipeline stage, each at its own peak; nothing without a pipeline."""
    from tabulate import tabulate

    if len(estimate.by_stage) == 1:
        return []
    names = list(estimate.memory.category_bytes)
    rows = [[f"{m.stage}{' (worst)' if m is estimate.memory else ''}",
             *(gib_cell(m.category_bytes[name]) for name in names), gib_cell(m.peak_allocated_bytes),
             m.peak_instant] for m in estimate.by_stage]
    return [str(tabulate(rows, ["stage", *names, "peak GiB", "peak at"], disable_numparse=True,
                         colalign=("left", *("right",) * (len(names) + 1), "left")))]


def category_rows(m: Memory) -> list[list[str]]:
    """What is live at the peak; the allocator's rounding is a row of its own."""
    parts = dict(m.category_bytes)
    parts["buffers"] -= m.rounding_bytes
    parts["rounding, tails"] = m.rounding_bytes
    rows = [[name, gib_cell(nbytes), share(nbytes, m.peak_allocated_bytes), bar(nbytes, m.capacity_bytes)]
            for name, nbytes in parts.items()]
    rows.append(["peak allocated", gib_cell(m.peak_allocated_bytes), "100.0 %",
                 bar(m.peak_allocated_bytes, m.capacity_bytes)])
    return rows


def device_rows(m: Memory) -> list[list[str]]:
    """From allocated to what the device must have."""
    rows = []
    if m.peak_reserved_bytes is not None:
        rows.append(["cached, fragmented", gib_cell(m.peak_reserved_bytes - m.peak_allocated_bytes), "", ""])
        rows.append(["peak reserved", gib_cell(m.peak_reserved_bytes), "",
                     bar(m.peak_reserved_bytes, m.capacity_bytes)])
    rows.append(outside_row("CUDA context", m.outside.context))
    if m.nccl_bytes != 0:
        rows.append(outside_row("NCCL", m.outside.nccl))
    rows.append(["capacity", gib_cell(m.capacity_bytes), "", bar(m.capacity_bytes, m.capacity_bytes)])
    return rows


def outside_row(name: str, nbytes: Range | None) -> list[str]:
    """What is expected, and the range."""
    if nbytes is None:
        return [name, "?", "", ""]
    certain = nbytes.low == nbytes.high
    return [name, gib_cell(nbytes.expected), "",
            "" if certain else f"{gib_cell(nbytes.low)} to {gib_cell(nbytes.high)}"]


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def bar(nbytes: int, capacity: int) -> str:
    """Full width is the capacity; what is beyond it is marked with >."""
    cells = round(BAR_WIDTH * nbytes / capacity)
    return "#" * min(cells, BAR_WIDTH) + (">" if cells > BAR_WIDTH else "")


def verdict(estimate: Estimate) -> str:
    """Peak instant, and fits or does not fit, with the bytes."""
    m = estimate.memory
    if m.fits:
        sure = ", with margin" if m.fits_with_margin else ""
        left = f"fits: {gib(m.headroom_bytes)} of {gib(m.capacity_bytes)} left{sure}"
    else:
        left = f"does not fit: {gib(-m.headroom_bytes)} more than {gib(m.capacity_bytes)}"
    return f"peak at: {m.peak_instant}\n{left}"


def compute(estimate: Estimate) -> str:
    """FLOPs, step time, and checkpoint sizes."""
    flops = estimate.flops
    lines = [
        f"model FLOPs ({flops.convention}): {scaled(flops.model_flops_per_token, 'FLOP')} per token, "
        f"{scaled(flops.model_flops_per_step, 'FLOP')} per step; hardware "
        f"{scaled(flops.hardware_flops_per_step, 'FLOP')} per step"]
    lines += time_lines(estimate)
    checkpoint = estimate.checkpoint
    lines.append(f"checkpoint: weights {gib(checkpoint.weights_bytes)}, with optimizer states "
                 f"{gib(checkpoint.full_bytes)}")
    return "\n".join(lines)


def advice_table(advice: tuple[Advice, ...]) -> str:
    """The changes that make it fit, cheapest first."""
    from tabulate import tabulate

    if not advice:
        return "no combination of up to three changes makes it fit (tried: stage, recompute, micro-batch, " \
               "precision, optimizer, loss, attention, up to 8 times the GPUs)"
    rows = [[a.change.text, gib_cell(a.saved_bytes), gib_cell(a.estimate.memory.headroom_bytes),
             "; ".join(a.change.costs)] for a in advice]
    table = tabulate(rows, ["what would make it fit", "saves GiB", "leaves GiB", "costs"],
                     disable_numparse=True, colalign=("left", "right", "right", "left"))
    return str(table)
