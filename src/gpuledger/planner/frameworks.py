"""Which framework runs a layout, and the run that it is there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from gpuledger.config.frameworks import FSDP1Options, FSDP2Options
from gpuledger.config.parallelism import STAGES, Framework, Parallelism
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError
from gpuledger.estimate import refuse_unmodelled

from .layouts import Layouts, Space
from .question import Question
from .walks import Array

Choice = Framework | None
USUAL: tuple[Choice, ...] = ("single", "ddp", "fsdp2", "megatron", "zero-redundancy-optimizer")
"""In this order: the first that can run a layout does."""
CASTS: dict[str, FSDP1Options | FSDP2Options] = {
    "fsdp1": FSDP1Options(param_dtype="bfloat16", reduce_dtype="float32"),
    "fsdp2": FSDP2Options(param_dtype="bfloat16", reduce_dtype="float32"),
}


def neutral_space(question: Question) -> Space:
    """All layouts, accounted for as states, gathers and activations alone."""
    run = question.run
    training = run.training
    if not question.precision_given:
        training = training.model_copy(update={"precision": "bf16-master"})
    return replace(
        question.space(),
        run=run.model_copy(
            update={"training": training, "parallel": Parallelism(model_parallel="megatron")}
        ),
    )


def framework_run(question: Question, framework: Choice) -> Run:
    """The run in a framework, with the framework's own precision unless the run says which.

    FSDP then casts parameters to bf16 and reduces gradients in fp32, as torchtitan does.
    """
    run, options = question.run, question.run.parallel
    changes: dict[str, Any] = {"framework": framework}
    precision = run.training.precision
    if not question.precision_given:
        precision = "bf16-master" if framework in (None, "megatron", "deepspeed") else "bf16-mixed"
        for name, usual in CASTS.items():
            if framework == name and getattr(options, name) == type(usual)():
                changes[name] = usual
    elif framework is None:
        changes["model_parallel"] = "megatron"
    return run.model_copy(
        update={
            "training": run.training.model_copy(update={"precision": precision}),
            "parallel": options.model_copy(update=changes),
        }
    )


def able(framework: Choice, layouts: Layouts) -> Array:
    """Which layouts a framework can run: its ZeRO stages and its axes."""
    stages = STAGES.get(framework or "", (0, 1, 2, 3))
    fits = np.isin(layouts.zero_stage, stages)
    one = (layouts.pp == 1) & (layouts.cp == 1)
    if framework == "single":
        return fits & (layouts.gpus == 1)
    if framework in ("ddp", "deepspeed", "fsdp1", "zero-redundancy-optimizer", "dataparallel"):
        return fits & one & (layouts.tp == 1) & (layouts.gpus > 1)
    if framework == "fsdp2":
        return fits & (layouts.pp == 1) & (layouts.dp > 1)
    if framework == "megatron":
        return fits & (layouts.gpus > 1)
    return fits


def assigned(question: Question, layouts: Layouts, space: Space) -> Iterator[tuple[Choice, Array]]:
    """(framework, numbers of its layouts); each layout has one, or none that can run it."""
    left = np.ones(len(layouts), bool)
    for framework in question.frameworks or USUAL:
        mine = left & able(framework, layouts)
        chosen = np.flatnonzero(mine)
        if len(chosen) and (question.frameworks or accounts_for(question, framework, layouts, chosen, space)):
            left &= ~mine
            yield framework, chosen
    rest = np.flatnonzero(left)
    if len(rest) and question.frameworks is None:
        yield None, rest


def accounts_for(
    question: Question, framework: Choice, layouts: Layouts, chosen: Array, space: Space
) -> bool:
    """Whether there is an account of this model in the framework, at the simplest of its layouts."""
    simplest = chosen[np.argmin(layouts.tp[chosen] * layouts.pp[chosen] * layouts.cp[chosen])]
    run = replace(space, run=framework_run(question, framework)).run_of(layouts.row(int(simplest)))
    try:
        refuse_unmodelled(run)
    except GpuledgerError:
        return False
    return True
