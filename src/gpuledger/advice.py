"""When a run does not fit: the cheapest changes that make it fit, each computed, with what it saves and costs."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from .config.options import SHORT_OPTIONS
from .config.problems import validated
from .config.run import Run
from .errors import GpuledgerError
from .estimate import Estimate, count_flops, device_of, estimate
from .memory.pipeline.finders import finders

MAX_CHANGES = 3            # how many changes are combined at most
WANTED = 3                 # how many answers are given
MAX_WALKS = 150            # candidates whose peak is computed, so that the answer comes in a second or two
UNKNOWN_CONTEXT_BYTES = 2**30      # headroom that an answer leaves where the context's size is not known


@dataclass(frozen=True)
class Change:
    """One or several settings changed together. `price` orders changes; `costs` says it in words."""

    settings: dict[str, Any]
    costs: tuple[str, ...]
    price: float

    @property
    def text(self) -> str:
        return " ".join(option(key, value) for key, value in self.settings.items())


def option(key: str, value: Any) -> str:
    """The setting as the command line takes it."""
    if isinstance(value, dict):
        value = ":".join(str(part) for item in value.items() for part in item)
    name = OPTION_NAMES.get(key)
    return f"{name} {value}" if name else f"--set {key}={value}"


OPTION_NAMES = {path: f"--{name.replace('_', '-')}" for name, path in SHORT_OPTIONS.items()}


@dataclass(frozen=True)
class Advice:
    """A change after which the run fits: per GPU, bytes saved and bytes left."""

    change: Change
    estimate: Estimate
    saved_bytes: int


def advise(base: Estimate) -> tuple[Advice, ...]:
    """The cheapest changes that make the run fit, fewest settings first; empty if none was found.

    Each candidate is a whole estimate of the changed run; the answers are replayed through the allocator,
    but for 8-bit optimizers.
    """
    singles = list(single_changes(base))
    states = StatesBytes()
    for size in range(1, MAX_CHANGES + 1):
        found: list[Advice] = []
        for change in sorted(merged(singles, size), key=lambda c: c.price):
            advice = _tried(base, change, states)
            if advice is not None:
                found.append(advice)
            if len(found) == WANTED:
                break
        if found:
            return tuple(found)
    return ()


class StatesBytes:
    """Bytes of the states alone, a lower bound of the peak that spares most candidates their walk."""

    def __init__(self) -> None:
        self.known: dict[tuple[object, ...], int] = {}
        self.walks = 0

    def of(self, run: Run) -> int:
        training, parallel = run.training, run.parallel
        key = (parallel.zero_stage, parallel.dp, training.precision, training.optimizer,
               training.optimizer_implementation)
        if key not in self.known:
            self.known[key] = max(f.states_bytes for f in finders(run, device_of(run)))
        return self.known[key]


def _tried(base: Estimate, change: Change, states: StatesBytes) -> Advice | None:
    """The estimate of the changed run if it fits, replayed; None if it does not or is refused."""
    try:
        run = changed(base.run, change.settings)
        if states.of(run) > run.cluster.gpu.capacity_bytes or states.walks >= MAX_WALKS:
            return None
        states.walks += 1
        if not fits_surely(estimate(run, convention=base.flops.convention)):
            return None
        # the stream of the sliced 8-bit update is too long to replay while somebody waits
        sliced = run.training.optimizer == "adamw-8bit"
        after = estimate(run, convention=base.flops.convention, replay=not sliced)
    except GpuledgerError:
        return None
    if not fits_surely(after):
        return None
    if sliced:
        saved = base.memory.peak_allocated_bytes - after.memory.peak_allocated_bytes
    else:
        saved = base.memory.device_used_bytes - after.memory.device_used_bytes
    return Advice(change, after, saved)


def fits_surely(result: Estimate) -> bool:
    """It fits with the most that context and NCCL may take, or leaves 1 GiB where nothing is known."""
    memory = result.memory
    unknown = None in (memory.outside.context, memory.outside.nccl)
    return (memory.fits and memory.headroom_bytes >= UNKNOWN_CONTEXT_BYTES if unknown
            else memory.fits_at_most)


def merged(singles: list[Change], size: int) -> Iterator[Change]:
    """Combinations of `size` changes that touch different settings."""
    for group in combinations(singles, size):
        keys = [key for change in group for key in change.settings]
        if len(keys) == len(set(keys)):
            settings = {k: v for change in group for k, v in change.settings.items()}
            yield Change(settings, tuple(c for change in group for c in change.costs),
                         sum(change.price for change in group))


def single_changes(base: Estimate) -> Iterator[Change]:
    """Every setting that can save memory, with its price: extra FLOPs as a share of the step's, extra
    traffic and changed arithmetic as fixed ranks, GPUs as multiples."""
    yield from _free_changes(base.run)
    yield from _micro_batches(base.run)
    yield from _zero_stages(base)
    yield from _recompute(base)
    yield from _precisions(base.run)
    yield from _more_gpus(base.run)


def _free_changes(run: Run) -> Iterator[Change]:
    training = run.training
    if training.optimizer in ("adam", "adamw", "sgd") and training.optimizer_implementation != "fused":
        yield Change({"training.optimizer_implementation": "fused"},
                     ("nothing: the same arithmetic in one kernel",), 0.0)
    if training.loss in ("cross_entropy", "fp32_logits") and not training.keep_logits:
        yield Change({"training.loss": "chunked"}, ("the head's forward product a second time",), 0.02)
    if training.attention in ("eager", "math"):
        kernel = "efficient" if training.precision in ("fp32", "tf32") else "flash"
        yield Change({"training.attention": kernel}, ("nothing: usually faster",), 0.0)


def _micro_batches(run: Run) -> Iterator[Change]:
    size = run.training.micro_batch_size
    smaller = [n for n in range(size // 2, 0, -1) if size % n == 0]
    for n in smaller:
        yield Change({"training.micro_batch_size": n},
                     (f"{size // n} times as many, smaller micro-batches",), 0.03 * (size // n))


def _zero_stages(base: Estimate) -> Iterator[Change]:
    parallel, weights = base.run.parallel, base.checkpoint.weights_bytes
    if parallel.dp == 1:
        return
    for stage in range(parallel.zero_stage + 1, 4):
        extra = weights * base.run.num_microbatches if stage == 3 else 0
        cost = (f"{extra / 2**30:.2f} GiB more to gather per GPU and step" if extra
                else "no more traffic than data parallelism")
        yield Change({"parallel.zero_stage": stage}, (cost,), 0.01 * stage + (0.05 if extra else 0))


def _recompute(base: Estimate) -> Iterator[Change]:
    training = base.run.training
    modes: dict[str, list[Any]] = {"none": ["selective", {"every": 2}, "full"], "selective": ["full"]}
    for mode in modes.get(str(training.recompute), []):
        run = changed(base.run, {"training.recompute": mode})
        extra = _extra_flops(base, run)
        yield Change({"training.recompute": mode}, (f"{100 * extra:.1f} % more FLOPs",), 0.1 + extra)


def _extra_flops(base: Estimate, run: Run) -> float:
    after = count_flops(run, base.flops.convention).hardware_flops_per_step
    return after / base.flops.hardware_flops_per_step - 1


def _precisions(run: Run) -> Iterator[Change]:
    mixed = {"fp32": ["bf16-mixed"], "tf32": ["bf16-mixed"], "fp16-mixed": ["bf16-master"],
             "bf16-mixed": ["bf16-master"]}
    for precision in mixed.get(run.training.precision, []):
        words = {"bf16-mixed": "products in bf16", "bf16-master": "gradients and residual stream in bf16"}
        yield Change({"training.precision": precision}, (f"other arithmetic: {words[precision]}",), 0.5)
    if run.training.optimizer in ("adam", "adamw"):
        yield Change({"training.optimizer": "adamw-8bit",
                      "training.optimizer_implementation": "for-loop"},
                     ("other arithmetic: 8-bit optimizer states",), 0.6)


def _more_gpus(run: Run) -> Iterator[Change]:
    for factor in (2, 4, 8):
        gpus, dp = run.cluster.gpus * factor, run.parallel.dp * factor
        batch, micro = run.training.global_batch_size, run.training.micro_batch_size
        settings: dict[str, Any] = {"cluster.gpus": gpus}
        costs = [f"{factor} times the GPUs"]
        if batch % (micro * dp):
            settings["training.global_batch_size"] = micro * dp
            costs.append(f"global batch {micro * dp} instead of {batch}")
        if run.parallel.zero_stage:
            yield Change(settings, tuple(costs), float(factor))
        else:
            yield Change({**settings, "parallel.zero_stage": 3},
                         (*costs, "weights gathered in every micro-batch"), factor + 0.1)


def changed(run: Run, settings: dict[str, Any]) -> Run:
    """The run with these dotted settings, validated again. Raises InputError where they do not go together."""
    keys = run.model_dump()
    for path, value in settings.items():
        part, name = path.split(".")
        keys[part][name] = value
    axes = keys["parallel"]
    axes["dp"] = keys["cluster"]["gpus"] // (axes["tp"] * axes["pp"] * axes["cp"])
    training = keys["training"]
    if training["loss"] not in ("chunked", "fused_linear"):
        training.pop("loss_chunks", None)
    return validated(Run, keys)
