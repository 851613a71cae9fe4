"""`estimate(run)`: memory, FLOPs and checkpoint size of one step of a run, from formulas alone."""
from __future__ import annotations

from dataclasses import dataclass, replace

from .compute.conventions import (
    DEFAULT_CONVENTION,
    find_convention,
    hardware_flops_per_sequence,
    model_flops_by_convention,
)
from .compute.parameters import parameter_counts
from .compute.products import DTYPE_OF_PRODUCTS
from .config.cautions import cautions
from .config.fused_kernels import division_problems
from .config.parallelism import Parallelism
from .config.run import Run
from .errors import InputError, NotYetError, Problem
from .garbage import collected_later
from .memory.allocator import AllocatorSettings
from .memory.allocator.allocator import DEFAULT_SETTINGS
from .memory.context import at_heaviest_rank
from .memory.frameworks import unmodelled
from .memory.host import NOTHING_OFFLOADED, HostMemory, host_memory, ranks_per_node
from .memory.outside import Outside, outside_of
from .memory.oversized_buckets import bucket_warnings
from .memory.peak import Live, Peak, StepPeak
from .memory.peak_bytes import PeakBytes, peak_bytes
from .memory.pipeline.finders import Finder, finders
from .memory.replayed import Replayed, replay_run
from .memory.sharding import sharding_assumptions, unmodelled_sharding
from .memory.states import State
from .program.device import Device
from .units import gib

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers")
SIDE_STREAMS = ("deepspeed", "fsdp1")      # frameworks whose segments belong to several streams



@dataclass(frozen=True)
class Memory:
    """Memory of one rank of a pipeline stage in bytes, in steady state. `None` is what is not known.

    category_bytes are live at `peak_instant` and add up to peak_allocated_bytes; what the allocator adds
    to the requests (rounding, unsplit tails) belongs to buffers.
    """

    stage: int
    category_bytes: dict[str, int]
    rounding_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    peak_instant: str
    outside: Outside
    capacity_bytes: int
    num_alloc_retries: int
    out_of_memory: bool
    names_framework: bool = True
    host: HostMemory = NOTHING_OFFLOADED

    @property
    def context_bytes(self) -> int | None:
        """The CUDA context, as expected."""
        return None if self.outside.context is None else self.outside.context.expected

    @property
    def nccl_bytes(self) -> int | None:
        """NCCL, as expected."""
        return None if self.outside.nccl is None else self.outside.nccl.expected

    @property
    def tensor_bytes(self) -> int:
        """Reserved, or allocated where the allocator was not replayed."""
        return self.peak_reserved_bytes or self.peak_allocated_bytes

    @property
    def device_used_bytes(self) -> int:
        """Reserved (or allocated), context and NCCL as far as known, as expected."""
        return self.tensor_bytes + self.outside.total.expected

    @property
    def headroom_bytes(self) -> int:
        """Capacity that is left; negative where it does not fit."""
        return self.capacity_bytes - self.device_used_bytes

    @property
    def fits(self) -> bool:
        """With what is expected of context and NCCL."""
        return not self.out_of_memory and (self.headroom_bytes >= 0 or self.num_alloc_retries > 0)

    @property
    def fits_at_most(self) -> bool:
        """With the most that context and NCCL may take, as far as they are known."""
        return self.fits and self.tensor_bytes + self.outside.total.high <= self.capacity_bytes

    @property
    def fits_with_margin(self) -> bool:
        """So, and nothing is unknown: neither context nor NCCL nor a framework's own buffers."""
        unknown = None in (self.outside.context, self.outside.nccl) or not self.names_framework
        return self.fits_at_most and not unknown

    @property
    def may_fit(self) -> bool:
        """With the least that they may take."""
        return self.fits or (not self.out_of_memory
                             and self.tensor_bytes + self.outside.total.low <= self.capacity_bytes)


@dataclass(frozen=True)
class Flops:
    """FLOPs of one optimizer step over all GPUs, under one convention and under all."""

    convention: str
    model_flops_per_token: int
    model_flops_per_step: int
    hardware_flops_per_step: int
    by_convention: dict[str, int]
    peak_flops_per_second: float | None
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """Bytes of a whole checkpoint: weights alone, and weights with masters and optimizer states."""

    weights_bytes: int
    full_bytes: int


@dataclass(frozen=True)
class Estimate:
    """Everything that `estimate` knows about a run. memory, states and live are the worst stage's."""

    run: Run
    parameters: int
    parameters_per_rank: int
    memory: Memory
    by_stage: tuple[Memory, ...]
    flops: Flops
    checkpoint: Checkpoint
    states: tuple[State, ...]
    live: tuple[Live, ...]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]


@collected_later()
def estimate(run: Run, *, convention: str = DEFAULT_CONVENTION, replay: bool = False,
             settings: AllocatorSettings = DEFAULT_SETTINGS,
             assumptions: tuple[str, ...] = ()) -> Estimate:
    """The account of one steady optimizer step on one rank of each pipeline stage.

    replay: run the whole stream of the worst stage through the allocator model, for exact allocated and
    reserved bytes; otherwise allocated means requested with each tensor rounded up to 512 bytes, and
    reserved is None.
    Raises NotYetError for what is not modelled, InputError for what cannot be.
    """
    refuse_unmodelled(run)
    gpu = run.cluster.gpu
    device = device_of(run)
    run = at_heaviest_rank(run, device)
    stages = list(finders(run, device))
    peaks = [finder.find() for finder in stages]
    worst = max(range(len(peaks)), key=lambda stage: peaks[stage].requested_bytes)
    available = gpu.capacity_bytes - outside_of(run).total.expected
    replayed = replay_run(run, device, settings, available, worst) if replay else None
    by_stage = tuple(replace(account(run, peak, replayed if stage == worst else None, stage),
                             host=host_memory(run, stages[stage].policy, stages[stage].counted))
                     for stage, peak in enumerate(peaks))
    memory = by_stage[worst]
    flops = count_flops(run, convention)
    return Estimate(
        run=run, parameters=parameter_counts(run.model).total,
        parameters_per_rank=max(parameters_of(finder) for finder in stages),
        memory=memory, by_stage=by_stage, flops=flops,
        checkpoint=checkpoint_of(run, whole_model(run, stages[0], device)),
        states=peaks[worst].states, live=peaks[worst].live,
        assumptions=(*assumptions, *sharding_assumptions(run)),
        warnings=(*cautions(run), *bucket_warnings(run, device, int(peaks[worst].requested_bytes)),
                  *warnings_of(run, memory)))


def refuse_unmodelled(run: Run) -> None:
    """Raises NotYetError with every option of the run that has no account yet."""
    problems = []
    if run.parallel.ep > 1:
        problems.append(Problem(f"ep = {run.parallel.ep}: this axis is not modelled yet",
                                "use ep=1; dp, tp, cp and pp are modelled"))
    problems += unmodelled(run)
    problems += unmodelled_sharding(run)
    problems.extend(division_problems(run.parallel, run.training))
    if problems:
        raise NotYetError.of(problems)


def device_of(run: Run) -> Device:
    """What kernels need to know of the GPU. Raises InputError where the GPU's record does not say it."""
    gpu = run.cluster.gpu
    if gpu.num_sms is None:
        raise InputError(f"{gpu.name}: num_sms is not known, and kernels size their scratch by it",
                         "set cluster.gpu.num_sms")
    if gpu.capability is None:
        return Device((0, 0), gpu.num_sms)
    major, _, minor = gpu.capability.partition(".")
    return Device((int(major), int(minor or 0)), gpu.num_sms)


def parameters_of(finder: Finder) -> int:
    """Elements of the parameters that one rank of a stage stores."""
    return sum(share.count * share.local.numel for share in finder.policy.parameters(finder.counted))


def whole_model(run: Run, first: Finder, device: Device) -> StepPeak:
    """The undivided model, for what all ranks hold together."""
    if isinstance(first, StepPeak) and run.parallel.world_size == run.parallel.dp \
            and run.parallel.framework != "megatron" and first.training == run.training:
        return first
    return StepPeak(run.model_copy(update={"parallel": Parallelism()}), device)


def account(run: Run, peak: Peak, replayed: Replayed | None, stage: int = 0) -> Memory:
    """The ledger of the peak instant, with what the allocator adds as a part of the buffers."""
    return memory_of(run, peak_bytes(peak), replayed, stage)


def memory_of(run: Run, peak: PeakBytes, replayed: Replayed | None = None, stage: int = 0) -> Memory:
    """The same from the peak's sums, with nothing offloaded."""
    gpu = run.cluster.gpu
    rounding = (peak.rounding_bytes if replayed is None
                else replayed.peak_allocated_bytes - peak.requested_bytes)
    categories = {name: peak.category_bytes[name] for name in CATEGORIES}
    categories["buffers"] += rounding
    return Memory(
        stage=stage, category_bytes=categories, rounding_bytes=rounding,
        peak_requested_bytes=peak.requested_bytes,
        peak_allocated_bytes=peak.requested_bytes + rounding,
        peak_reserved_bytes=replayed.peak_reserved_bytes if replayed else None,
        peak_instant=peak.instant, outside=outside_of(run),
        capacity_bytes=gpu.capacity_bytes,
        num_alloc_retries=replayed.num_alloc_retries if replayed else 0,
        out_of_memory=replayed.out_of_memory if replayed else False,
        host=HostMemory(ranks_per_node=ranks_per_node(run)),
        names_framework=run.parallel.world_size == 1 or run.parallel.framework not in (None, "single"))


def count_flops(run: Run, convention: str) -> Flops:
    """Model and hardware FLOPs per optimizer step; the peak is null where it is not known."""
    training = run.training
    name = find_convention(convention).name
    by_convention = model_flops_by_convention(run.model, training.seq_len)
    hardware = hardware_flops_per_sequence(run.model, training.seq_len, training.recompute, name)
    dtype = DTYPE_OF_PRODUCTS[training.precision]
    return Flops(
        convention=name, model_flops_per_token=by_convention[name] // training.seq_len,
        model_flops_per_step=by_convention[name] * training.global_batch_size,
        hardware_flops_per_step=hardware * training.global_batch_size,
        by_convention={key: value * training.global_batch_size for key, value in by_convention.items()},
        peak_flops_per_second=getattr(run.cluster.gpu.dense_peak_flops_per_second, dtype), dtype=dtype)


def checkpoint_of(run: Run, finder: StepPeak) -> Checkpoint:
    """Over all ranks, without padding: what torch.save of the state dicts holds. [C1]"""
    weights_bytes = sum(count * w.nbytes for w, count in finder.counted)
    return Checkpoint(int(weights_bytes), int(weights_bytes + finder.whole_states_bytes()))


def depends_on_outside(memory: Memory) -> str:
    """The verdict turns within the uncertainty of what lies outside the allocator."""
    total = memory.outside.total
    said = "it fits as expected" if memory.fits else "it does not fit as expected"
    return (f"too close to call: {said}, but context and NCCL may take {gib(total.low)} to "
            f"{gib(total.high)}, and {gib(memory.capacity_bytes - memory.tensor_bytes)} are left for them")


def warnings_of(run: Run, memory: Memory) -> tuple[str, ...]:
    """What the numbers do not include, and verdicts that are too close to call."""
    warnings = []
    if memory.context_bytes is None:
        warnings.append(f"the runtime's context on {run.cluster.gpu.name} is not known and not included")
    if memory.nccl_bytes is None:
        warnings.append(f"the collective library of {run.cluster.gpu.vendor} is not modelled: "
                        "its buffers are not included")
    if run.parallel.world_size > 1 and run.parallel.framework in (None, "single"):
        warnings.append("a framework's own buffers are not included: no framework is named")
    if memory.fits_at_most != memory.may_fit:
        warnings.append(depends_on_outside(memory))
    if run.parallel.framework in SIDE_STREAMS and memory.peak_reserved_bytes is not None:
        warnings.append(f"{run.parallel.framework} allocates on streams of its own, which are replayed as one: "
                        "reserved bytes are a lower bound")
    if memory.num_alloc_retries:
        warnings.append(f"it fits only after the allocator gave cached memory back "
                        f"{memory.num_alloc_retries} times in the first steps: expect stalls")
    if run.training.attention == "cudnn":
        warnings.append("cuDNN attention's workspace is not known and not included")
    return tuple(warnings)
