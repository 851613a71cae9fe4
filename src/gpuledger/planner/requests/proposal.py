"""request.md: one page to paste into a proposal. The answer is its first sentence."""

from __future__ import annotations

from collections.abc import Iterator

from ...compute.step_time.of_run import StepTime
from ...config.run import Run
from ...estimate import CATEGORIES, Estimate
from ...memory.outside import Range
from ...report.markdown_table import table
from ...units import count, gib, gib_cell
from .launchers import launcher_of, settings_of_script
from .options import RequestOptions
from .resources import HOUR, Resources, Span
from .words import one_line

DAY = 24 * HOUR


def proposal(estimate: Estimate, time: StepTime, options: RequestOptions, resources: Resources) -> str:
    """The page."""
    run = estimate.run
    blocks = [
        f"# {one_line(run.name)}", answer(estimate, options, resources),
        "## Resources", table(["", "expected", "low", "high"], list(resource_rows(options, resources))),
        f"Low and high: {time.error.text}. Jobs, time limits and hours to ask for are those of the "
        "higher figure.",
        "## Memory of a GPU",
        table(["GiB", "expected", "low", "high"], list(memory_rows(estimate))), memory_note(estimate),
        "## What is assumed", bullets(assumed(estimate, time, options)),
        "## What is not known", bullets(unknown(estimate, options, resources)),
        "## What the script has to do", bullets(script_notes(run, options))]
    return "\n\n".join(blocks) + "\n"


def answer(estimate: Estimate, options: RequestOptions, resources: Resources) -> str:
    """What is asked for, in one sentence; before it, where it does not fit, that one."""
    run = estimate.run
    gpu, memory = run.cluster.gpu, estimate.memory
    money = "" if resources.cost is None else f" ({options.currency} {resources.cost.planned:,.0f})"
    nodes = run.cluster.num_nodes
    sentence = (
        f"We ask for **{resources.gpu_hours.planned:,.0f} GPU hours**{money} on {run.cluster.gpus} "
        f"{one_line(gpu.full_name)} ({nodes} node{'s' if nodes > 1 else ''}) to train "
        f"{one_line(run.model.name)} ({count(estimate.parameters)} parameters) on "
        f"{count(resources.tokens)} tokens in {duration(resources.seconds.planned)}"
        f"{jobs_text(resources)}.")
    if memory.fits:
        return sentence
    return (f"**It does not fit**: {gib(memory.device_used_bytes)} per GPU of "
            f"{gib(memory.capacity_bytes)}. {sentence}")


def jobs_text(resources: Resources) -> str:
    return f", as {resources.jobs} jobs in a row" if resources.jobs > 1 else ""


def duration(seconds: float) -> str:
    """`9.3 days`, `5.2 hours`, `12 minutes`."""
    if seconds >= 2 * DAY:
        return f"{seconds / DAY:,.1f} days"
    return f"{seconds / HOUR:,.1f} hours" if seconds >= 2 * HOUR else f"{seconds / 60:,.0f} minutes"


def resource_rows(options: RequestOptions, resources: Resources) -> Iterator[list[str]]:
    """Quantities with their range, then those that have none."""
    yield ["step", *cells(resources.step_seconds, "s", 2)]
    yield ["training alone", *cells(resources.training_seconds.times(1 / HOUR), "h", 1)]
    yield ["with checkpoints and lost work", *cells(resources.seconds.times(1 / HOUR), "h", 1)]
    yield ["GPU hours", *cells(resources.gpu_hours, "", 0)]
    if resources.energy_kwh is not None:
        yield ["energy, at most", *cells(resources.energy_kwh, "kWh", 0)]
    if resources.cost is not None:
        yield [f"cost at {options.price_per_gpu_hour:,.2f} {options.currency} per GPU hour",
               *cells(resources.cost, options.currency, 0)]
    cadence = resources.cadence
    fixed = {
        "GPUs": f"{resources.gpus:,}",
        "optimizer steps": f"{resources.steps:,}",
        "tokens": f"{resources.tokens:,}",
        "checkpoint, weights": gib(resources.weights_bytes),
        "checkpoint, full": gib(resources.checkpoint_bytes),
        f"storage for {options.kept_checkpoints} full checkpoints": gib(resources.storage_bytes),
        "checkpoint every": "not known" if cadence.interval_seconds is None
        else f"{cadence.steps:,} steps (about {duration(cadence.interval_seconds)})",
        "jobs": f"{resources.jobs:,}"}
    yield from ([name, value, "", ""] for name, value in fixed.items())


def cells(span: Span, unit: str, digits: int) -> list[str]:
    """Expected, low, high."""
    return ["not known" if value is None else f"{value:,.{digits}f} {unit}".strip()
            for value in (span.expected, span.low, span.high)]


def memory_rows(estimate: Estimate) -> Iterator[list[str]]:
    """The worst rank at its peak, up to the capacity; what is outside the allocator as a range."""
    memory = estimate.memory
    for name in CATEGORIES:
        yield [name, gib_cell(memory.category_bytes[name]), "", ""]
    yield ["allocated", gib_cell(memory.peak_allocated_bytes), "", ""]
    reserved = memory.peak_reserved_bytes
    yield ["reserved by the allocator", "not known" if reserved is None else gib_cell(reserved), "", ""]
    for name, part in {"CUDA context": memory.outside.context, "NCCL": memory.outside.nccl}.items():
        yield [name, *(["not known", "", ""] if part is None else gib_cells(part))]
    outside, left = memory.outside.total, memory.capacity_bytes - memory.tensor_bytes
    yield ["used, as far as known", *gib_cells(outside + Range(*[memory.tensor_bytes] * 3))]
    yield ["capacity", gib_cell(memory.capacity_bytes), "", ""]
    yield ["headroom", *map(gib_cell, (left - outside.expected, left - outside.high, left - outside.low))]
    if memory.host.node_bytes:
        yield ["host memory of a node, offloaded", gib_cell(memory.host.node_bytes), "", ""]


def gib_cells(nbytes: Range) -> list[str]:
    """Expected, low, high."""
    return [gib_cell(n) for n in (nbytes.expected, nbytes.low, nbytes.high)]


def memory_note(estimate: Estimate) -> str:
    """Where and when the peak is, and how sure the verdict."""
    memory, stages = estimate.memory, len(estimate.by_stage)
    where = f"stage {memory.stage} of {stages}, the worst one" if stages > 1 else "every rank"
    return f"Peak of {where}, at: {memory.peak_instant}. {fit_text(estimate)} 1 GiB = 2^30 bytes."


def fit_text(estimate: Estimate) -> str:
    """The verdict in a sentence."""
    memory = estimate.memory
    if memory.fits_with_margin:
        return "It fits, also with the most that is published of context and NCCL."
    if memory.fits:
        return "It fits as expected, but too close to call: not with the most, or not all is known."
    if memory.may_fit:
        return "It does not fit as expected, but would with the least that is published."
    return "It does not fit."


def assumed(estimate: Estimate, time: StepTime, options: RequestOptions) -> Iterator[str]:
    """Everything that nobody measured on this cluster."""
    run = estimate.run
    yield (f"{one_line(run.training.precision)}, {run.training.optimizer}, ZeRO stage "
           f"{run.parallel.zero_stage}, dp = {run.parallel.dp}, tp = {run.parallel.tp}, "
           f"pp = {run.parallel.pp}, cp = {run.parallel.cp}: run.yaml has every setting")
    if run.cluster.gpu.power_watts is not None:
        site = (f"PUE {options.pue:g}" if options.pue is not None
                else "without the rest of the site (no PUE was given)")
        yield (f"energy: every GPU at its limit of {run.cluster.gpu.power_watts:g} W all the time, {site}; "
               f"an upper bound, source: {run.cluster.gpu.sources.get('power_watts', 'not said')}")
    yield f"{options.cpus_per_gpu} CPU cores per GPU"
    yield from estimate.assumptions
    yield from time.assumptions


def unknown(estimate: Estimate, options: RequestOptions, resources: Resources) -> Iterator[str]:
    """What the figures leave out."""
    yield from estimate.warnings
    if estimate.run.cluster.gpu.power_watts is None:
        yield f"energy: the power limit of {estimate.run.cluster.gpu.name} is not known"
    if resources.cadence.interval_seconds is None:
        alone = " (pretrain_gpt.py saves when it ends only)" * (launcher_of(estimate.run, options) == "megatron")
        yield f"how often to write checkpoints: {resources.cadence.reason}{alone}"
    if options.mean_time_between_failures_hours is None:
        yield "failures: no mean time between them was given, so no work is counted as lost"
    if resources.cadence.write_seconds is None:
        yield "writing checkpoints: no bandwidth was given, so it takes no time here"
    yield "waiting in the queue, starting, and loading data are not counted"


def script_notes(run: Run, options: RequestOptions) -> Iterator[str]:
    """What the launcher's files cannot say."""
    launcher = launcher_of(run, options)
    if launcher == "megatron":
        yield ("learning rate, data, tokenizer (whose vocabulary must have "
               f"{run.model.vocab_size:,} entries) and RoPE base are yours to add to the arguments")
        return
    if launcher == "torchtitan":
        yield "learning rate, data and tokenizer are torchtitan's defaults until you add them"
        return
    yield from settings_of_script(run)


def bullets(lines: Iterator[str]) -> str:
    return "\n".join(f"* {one_line(line)}" for line in lines)
