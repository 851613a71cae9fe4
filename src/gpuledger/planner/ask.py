"""From what the user gives to a `Question`: a run without a mesh, numbers of GPUs, axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from gpuledger.axes import MAX_CELLS, RANGE, Axis, parse_axis
from gpuledger.config.options import RunOptions, parse_assignment
from gpuledger.config.parallelism import Framework
from gpuledger.config.problems import shown, suggestion, validated
from gpuledger.config.resolve import resolve_run
from gpuledger.config.run import Run
from gpuledger.config.sources import Source
from gpuledger.config.training import Training
from gpuledger.errors import InputError

from .frameworks import Choice
from .question import AXES, By, Question

NO_MESH = (
    "cluster.gpus=1", "parallel.dp=1", "parallel.tp=1", "parallel.pp=1", "parallel.vpp=1",
    "parallel.cp=1", "parallel.sequence_parallel=false", "parallel.schedule=null",
    "parallel.stage_layers=null", "training.micro_batch_size=1", "training.recompute=full",
)  # fmt: skip
FEWEST = "min"
MOST_GPUS = 4096
COUNT = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)", re.IGNORECASE)
FACTORS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Wishes:
    """What is wanted of a plan, as the command line takes it."""

    gpus: str | None = None
    by: str | None = None
    tokens: str | None = None
    days: float | None = None
    price: float | None = None
    headroom_percent: float = 5.0
    top: int = 5
    over: Sequence[str] = ()


def question_of(
    source: Source, options: RunOptions, wishes: Wishes
) -> tuple[Question, tuple[str, ...]]:
    """The question, and one line for each thing that was assumed.

    Raises InputError for a run, a number or an axis that cannot be, and where the global batch or
    the GPUs are not given: a plan assumes neither.
    """
    if wishes.gpus is None:
        raise InputError("the number of GPUs is not given",
                         "pass --gpus: 64, or 8..512, or 64,128, or min for as few as possible")
    _check_settings(options.set)
    given = replace(options, gpus=None, set=(*options.set, *NO_MESH))
    run, assumptions = resolve_run(source, given)
    if any(line.startswith("global_batch_size") for line in assumptions):
        raise InputError("the global batch is not given",
                         "pass --global-batch, the sequences of one optimizer step")
    precision_given = not any(line.startswith("precision") for line in assumptions)
    question = Question(
        run=run, gpus=gpu_counts(wishes.gpus, run), by=_by(wishes), days=wishes.days,
        price=wishes.price,
        tokens=None if wishes.tokens is None else parse_count(wishes.tokens, "--tokens"),
        headroom_percent=wishes.headroom_percent, top=wishes.top, over=_axes(wishes.over, run),
        precision_given=precision_given)
    _check(question)
    return question, tuple(_said(assumptions, precision_given))


def _said(assumptions: Sequence[str], precision_given: bool) -> Iterator[str]:
    """What was assumed, but for what the plan chooses."""
    chosen = ("micro_batch_size", "zero_stage", "recompute", "gpus_per_node", "precision")
    yield from (line for line in assumptions if not line.startswith(chosen))
    if not precision_given:
        yield ("precision: bf16 as each framework does it (megatron: 16-bit weights with fp32 masters; "
               "fsdp2: fp32 shards, gathered in bf16, reduced in fp32; ddp: autocast)")


def _check_settings(texts: Sequence[str]) -> None:
    """What a plan chooses is not set: that would be passed over without a word."""
    chosen = {path for text in NO_MESH for path in [text.partition("=")[0]]} | set(AXES)
    for text in texts:
        path = parse_assignment(text)[0]
        if path in chosen - {"parallel.framework"}:
            name = AXES.get(path)
            raise InputError(f"--set {text[:60]}: a plan chooses {path}",
                             f"give the axis its values: --over {name}=..." if name
                             else "leave it out")


def _check(question: Question) -> None:
    if question.days is not None and question.tokens is None:
        raise InputError(f"--days {question.days:g} is a deadline for nothing", "pass --tokens too")
    if question.price is not None and not question.price >= 0:
        raise InputError(f"--price {question.price:g} is no price", "pass what one GPU hour costs")
    if question.by == "cost" and question.price is None:
        raise InputError("--by cost: what a GPU hour costs is not given", "pass --price")
    if question.days is not None and not question.days > 0:
        raise InputError(f"--days {question.days:g} is no time", "pass a positive number of days")
    if not 0 <= question.headroom_percent < 100:
        raise InputError(f"--headroom {question.headroom_percent:g} is no share of the memory",
                         "pass a percentage from 0 on, below 100")
    if question.top < 1:
        raise InputError(f"--top {question.top} asks for no plan", "pass 1 or more")
    question.space()


def _by(wishes: Wishes) -> By:
    """Fewest GPUs where they are asked for or there is a deadline, else the shortest step."""
    usual: By = "gpus" if wishes.gpus == FEWEST or wishes.days is not None else "time"
    names: tuple[By, ...] = get_args(By)
    if wishes.by is None:
        return usual
    for name in names:
        if wishes.by == name:
            return name
    raise InputError(f"--by {wishes.by}: plans are not ranked by that",
                     suggestion(wishes.by, names, "rankings"))


def gpu_counts(text: str, run: Run) -> tuple[int, ...]:
    """`64`, `64,128`, `8..512` (whole nodes), `8..512*2`, or `min`: up to MOST_GPUS.

    Raises InputError for anything else.
    """
    per_node = run.cluster.gpus_per_node
    if text.strip() == FEWEST:
        return (*range(1, per_node + 1), *range(2 * per_node, MOST_GPUS + 1, per_node))
    counts: list[int] = []
    for item in text.split(","):
        counts += _range(item.strip(), per_node)
    wrong = next((n for n in counts if n < 1 or (n > per_node and n % per_node)), None)
    if not counts or wrong is not None:
        raise InputError(
            f"--gpus {text}: {'no number' if wrong is None else wrong} is not a number of whole "
            f"nodes of {per_node}",
            f"use up to {per_node} GPUs, or multiples of {per_node}; or set cluster.gpus_per_node")
    return tuple(dict.fromkeys(sorted(counts)))


def _range(item: str, per_node: int) -> list[int]:
    if item.isascii() and item.isdecimal() and len(item) < 9:
        return [int(item)]
    found = RANGE.fullmatch(item)
    if found is None or len(item) > 30:
        raise InputError(f"--gpus {item[:40]} is no number of GPUs",
                         "write 64, or 8..512, or 64,128, or min for as few as possible")
    if found[4]:
        return [int(value) for value in parse_axis(f"cluster.gpus={item}").values]
    first, last = int(found[1]), int(found[2])
    if first > last or first < 1 or last > MAX_CELLS:
        raise InputError(f"--gpus {item} is no range", "write first..last, ascending")
    return [n for n in range(first, last + 1) if n <= per_node or n % per_node == 0]


def parse_count(text: str, option: str) -> int:
    """`2000000000`, `2e12`, `300B` or `15T`. Raises InputError for anything else."""
    found = COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    number = round(float(found[1]) * FACTORS[found[2].lower()]) if found and len(text) < 30 else 0
    if not 0 < number <= 10**18:
        raise InputError(f"{option} {text[:40]} is no number of tokens",
                         "write for example 300B, 15T or 2e12")
    return number


def _axes(texts: Sequence[str], run: Run) -> Mapping[str, tuple[Any, ...]]:
    """The values of --over, by axis; a framework that the run names is the only one."""
    found: dict[str, tuple[Any, ...]] = {}
    if run.parallel.framework is not None:
        found["framework"] = (run.parallel.framework,)
    for text in texts:
        axis = parse_axis(text)
        name = AXES.get(axis.key)
        if name is None:
            raise InputError(f"--over {axis.key}: a plan does not choose that",
                             suggestion(axis.key, tuple(AXES), "axes"))
        found[name] = _validated(axis, run)
    return found


def _validated(axis: Axis, run: Run) -> tuple[Any, ...]:
    """The values as the run's record has them. Raises InputError for one that it refuses."""
    values: list[Any] = []
    for value in axis.values:
        if axis.name == "framework":
            values.append(_framework(value))
        elif axis.name == "recompute":
            keys = run.training.model_dump(mode="json") | {"recompute": value}
            values.append(validated(Training, keys, "training").recompute)
        elif isinstance(value, int) and value >= 0:
            values.append(value)
        else:
            raise InputError(f"--over {axis.key}: {shown(value)} is no size", "use whole numbers")
    return tuple(values)


def _framework(value: Any) -> Choice:
    names = get_args(Framework)
    if value is not None and value not in names:
        raise InputError(f"--over parallel.framework: {shown(str(value))} is none",
                         suggestion(str(value), names, "frameworks"))
    found: Choice = value
    return found
