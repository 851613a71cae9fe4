"""Plans: arrays equal the estimate of each layout, the best one is the best, failure is an answer."""
from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuledger.cli.main import status_of
from gpuledger.compute.step_time.of_run import step_time
from gpuledger.config import RunOptions
from gpuledger.errors import GpuledgerError, InputError
from gpuledger.estimate import estimate, refuse_unmodelled
from gpuledger.memory.layers import plan_walk
from gpuledger.planner.ask import Wishes, gpu_counts, parse_count, question_of
from gpuledger.planner.enumerate import layouts
from gpuledger.planner.frameworks import neutral_space
from gpuledger.planner.layouts import Space
from gpuledger.planner.memory import PeakMemory
from gpuledger.planner.plan import Answer, plan
from gpuledger.planner.question import Question
from gpuledger.planner.table import needed_headroom, pareto
from gpuledger.planner.times import StepSeconds
from gpuledger.program.many_sizes import ManySizes
from gpuledger.program.sizes import MixedSizes

H100 = "h100-80gb-sxm"


def question(source: Any, gpus: str, batch: int, *settings: str, seq_len: int = 1024, **wishes: Any) -> Question:
    options = RunOptions(gpu=H100, global_batch=batch, seq_len=seq_len, set=settings)
    return question_of(source, options, Wishes(gpus=gpus, **wishes))[0]


# ---- arrays against single runs
SPACES = {
    "gpt2 on 8": ("gpt2", "8", 32, ()),
    "gpt2 on 1": ("gpt2", "1", 8, ("training.set_to_none=false",)),
    "grouped heads and windows": ("mistral-7b", "32", 64, ("training.loss=fp32_logits",)),
    "few micro-batches of several chunks": ("llama-2-7b", "4", 16, (
        "training.attention=eager", "training.precision=fp16-mixed", "training.loss=fp32_logits",
        "training.optimizer_implementation=fused")),
    "unfused attention": ("llama-3.2-1b", "16", 48, ("training.attention=eager", "training.optimizer=sgd")),
    "stages a block short": ("gpt2", "7", 28, ("model.num_layers=12", "cluster.gpus_per_node=7")),
    "every second block": ("gpt2", "4", 16, ()),
    "context parallelism": ("llama-3.2-1b", "8", 16, ()),
    "fp16 and for-loop": ("gpt2", "8", 16, ("training.precision=fp16-mixed", "training.gradient_clipping=true",
                                            "training.optimizer_implementation=for-loop")),
}
OVER = {"few micro-batches of several chunks": {"tp": "2", "pp": "2", "recompute": ("full",), "micro_batch_size": "8"},
        "every second block": {"recompute": ("none", "every:2")}, "context parallelism": {"cp": "1,2,4"}}


def space_of(name: str) -> Space:
    source, gpus, batch, settings = SPACES[name]
    over = [f"{axis}={values if isinstance(values, str) else ','.join(values)}"
            for axis, values in OVER.get(name, {}).items()]
    asked = question(source, gpus, batch, *settings, over=over)
    return neutral_space(replace(asked, precision_given=True))


@pytest.mark.parametrize("name", SPACES)
def test_arrays_equal_single_runs(name: str) -> None:
    space = space_of(name)
    table, _ = layouts(space)
    peaks, seconds = PeakMemory(space).peaks(table), StepSeconds(space).seconds(table)
    rng = random.Random(name)
    for i in rng.sample(range(len(table)), min(30, len(table))):
        run = space.run_of(table.row(i))
        memory = estimate(run).memory
        assert (memory.peak_requested_bytes, memory.rounding_bytes) == (
            peaks.requested[i], peaks.rounding[i]), (table.row(i), memory.peak_instant)
        assert seconds[i] == pytest.approx(step_time(run).step_seconds, rel=1e-12)


def test_every_layout_divides() -> None:
    asked = question("gpt2", "24", 96, "cluster.gpus_per_node=24")
    space = neutral_space(asked)
    table, dropped = layouts(space)
    assert len(table) == len({tuple(table.row(i).values()) for i in range(len(table))})
    for i in range(len(table)):
        row = table.row(i)
        assert row["tp"] * row["pp"] * row["cp"] * row["dp"] == row["gpus"] == 24
        assert 96 % (row["dp"] * row["micro_batch_size"]) == 0
        refuse_unmodelled(space.run_of(row))
    assert sum(dropped.values()) > 0


def test_enumeration_by_hand() -> None:
    """gpt2 (12 heads, 12 blocks) on 2 GPUs, batch 2, micro-batch 1: one mesh per axis that divides.

    dp 2: ZeRO 0-3 (4). tp 2: with and without sequence parallelism (2). pp 2, two micro-batches:
    vpp 1, 2, 3, 6 (4). Each with and without recompute: 2 x 10. Of the 5 x 7 pairs of tp (1, 2, 3,
    4, 6) and pp (the divisors of 12, and 7, since 12 + 2 divides) three divide 2.
    """
    table, dropped = layouts(neutral_space(question("gpt2", "2", 2, over=["micro_batch_size=1"])))
    assert len(table) == 20
    assert sorted(table.vpp[table.pp == 2].tolist()) == [1, 1, 2, 2, 3, 3, 6, 6]
    assert dropped["tp x pp x cp does not divide the GPUs"] == 5 * 7 - 3


# ---- sizes as columns
def test_many_sizes_remember_and_divide() -> None:
    sizes = ManySizes([2, 4, 6])
    assert (sizes * 3).tolist() == [6, 12, 18] and sizes * 3 is sizes * 3
    assert (7 - sizes).tolist() == [5, 3, 1] and (-sizes % 4).tolist() == [2, 0, 2]
    assert bool(sizes > 1) and not bool(sizes > 6)
    with pytest.raises(MixedSizes) as mixed:
        bool(sizes > 3)
    assert mixed.value.condition.tolist() == [False, True, True]
    assert ManySizes.of([5, 5]) == 5 and int(ManySizes([5, 5])) == 5
    with pytest.raises(MixedSizes):
        int(sizes)


# ---- the answer
@pytest.fixture(scope="module")
def answer() -> Answer:
    return plan(question("llama-3.2-1b", "8", 64, seq_len=4096, tokens="10B", price=2.0))


def test_plans_fit_and_come_best_first(answer: Answer) -> None:
    seconds = [one.time.step_seconds for one in answer.plans]
    assert len(answer.plans) == 5 and seconds == sorted(seconds)
    free = needed_headroom(answer.question)
    assert all(one.headroom_bytes >= free for one in answer.plans)
    assert answer.plans[0].estimate.memory.peak_reserved_bytes is not None
    meshes = {(p.run.parallel.framework, p.run.parallel.tp, p.run.parallel.pp, p.run.parallel.zero_stage)
              for p in answer.plans}
    assert len(meshes) == 5


def test_the_best_is_the_best_of_what_fits(answer: Answer) -> None:
    """Every faster layout of the table was looked at and rejected, or is a variant of it."""
    table, best = answer.table, answer.plans[0]
    faster = np.flatnonzero((table.seconds < table.seconds[best.number]) & answer.fits)
    for i in faster.tolist():
        memory = estimate(table.run_of(i), replay=True).memory
        assert memory.headroom_bytes < needed_headroom(answer.question)


def test_front_has_no_layout_that_another_beats(answer: Answer) -> None:
    table = answer.table
    front = pareto(table, np.arange(len(table.seconds)))
    assert (np.diff(table.seconds[front]) >= 0).all() and (np.diff(table.allocated_bytes[front]) < 0).all()
    for i in range(len(table.seconds)):
        better = (table.seconds[front] <= table.seconds[i]) & (table.allocated_bytes[front] <= table.allocated_bytes[i])
        assert better.any()


def test_fewest_gpus_that_meet_a_deadline() -> None:
    """10B tokens on 1B parameters: the plan's GPUs are enough, and half of them are not."""
    asked = question("llama-3.2-1b", "1,2,4,8,16,32", 64, seq_len=4096, tokens="10B", days=1.0)
    found = plan(asked)
    best = found.plans[0]
    assert found.question.by == "gpus" and best.time.step_seconds <= asked.longest_step_seconds
    fewer = found.table.layouts.gpus < best.run.cluster.gpus
    assert not ((found.table.seconds <= asked.longest_step_seconds) & fewer & found.fits).any()


def test_a_deadline_is_a_longest_step() -> None:
    """1000 tokens are 4 steps of 2 x 128: a day for each of four."""
    asked = question("gpt2", "1", 2, seq_len=128, tokens="1000", days=4.0)
    assert asked.longest_step_seconds == 86_400


def test_nothing_fits_says_by_how_much_and_what_would_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["plan", "gpt3-175b", "--gpu", "a100-80gb-sxm", "--gpus", "8", "--global-batch", "64",
                      "--over", "framework=fsdp2", "--over", "micro_batch_size=1", "--require-fit"]) == 1
    printed = capsys.readouterr()
    assert "nothing fits: the layout that needs least is" in printed.out
    assert "with 64 GPUs" in printed.out and "layouts fit" in printed.out


def test_json_holds_the_numbers_of_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    ours = ["gpt2", "--gpu", H100, "--gpus", "4", "--global-batch", "64", "--json"]
    assert status_of(["plan", *ours, "--top", "2"]) == 0
    content = json.loads(capsys.readouterr().out)
    first = content["plans"][0]
    assert len(content["plans"]) == 2 and content["fits"] and content["space"]["layouts"] > 50
    parallel = first["run"]["parallel"]
    micro = str(first["layout"]["micro_batch_size"])
    assert status_of(["estimate", *ours, "--micro-batch", micro, "--tp", str(parallel["tp"]),
                      "--pp", str(parallel["pp"]), "--zero", str(parallel["zero_stage"]),
                      "--precision", first["run"]["training"]["precision"],
                      "--set", f"parallel.framework={parallel['framework']}"]) == 0
    estimated = json.loads(capsys.readouterr().out)
    assert estimated["memory"]["by_stage"][0]["peak_allocated_bytes"] == first["memory"]["peak_allocated_bytes"]
    assert estimated["time"]["step_seconds"] == pytest.approx(first["time"]["step_seconds"])


def test_request_is_written_for_the_best_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, chart = tmp_path / "request", tmp_path / "plan.svg"
    assert status_of(["plan", "llama-3.2-1b", "--gpu", H100, "--gpus", "8", "--global-batch", "64", "--tokens", "10B",
                      "--price", "2", "-o", str(folder), "--chart", str(chart), "--request", "partition=gpu"]) == 0
    capsys.readouterr()
    assert {"run.yaml", "launch.sh", "job.sbatch", "job.yaml", "request.md"} <= {p.name for p in folder.iterdir()}
    assert "#SBATCH --partition=gpu" in (folder / "job.sbatch").read_text()
    assert chart.read_text().startswith("<svg")
    assert status_of(["estimate", str(folder / "run.yaml"), "--require-fit"]) == 0


# ---- what the user gives
@pytest.mark.parametrize(("text", "number"), [("300B", 300 * 10**9), ("15T", 15 * 10**12), ("2e12", 2 * 10**12),
                                              ("1,000,000", 10**6), ("1.5t", 15 * 10**11)])
def test_counts(text: str, number: int) -> None:
    assert parse_count(text, "--tokens") == number


def test_numbers_of_gpus() -> None:
    run = question("gpt2", "8", 8).run
    assert gpu_counts("4..32", run) == (4, 5, 6, 7, 8, 16, 24, 32)
    assert gpu_counts("8..64*2", run) == (8, 16, 32, 64)
    assert gpu_counts("64,16", run) == (16, 64)
    assert gpu_counts("min", run)[:10] == (1, 2, 3, 4, 5, 6, 7, 8, 16, 24) and gpu_counts("min", run)[-1] == 4096


GPT2 = ("plan", "gpt2", "--gpu", H100)
ON_8 = (*GPT2, "--gpus", "8", "--global-batch", "8")
WRONG = {
    "no GPUs": ([*GPT2, "--global-batch", "8"], "the number of GPUs is not given"),
    "no batch": ([*GPT2, "--gpus", "8"], "the global batch is not given"),
    "half a node": ([*GPT2, "--gpus", "12", "--global-batch", "8"], "12 is not a number of whole"),
    "words": ([*GPT2, "--gpus", "many", "--global-batch", "8"], "many is no number of GPUs"),
    "backwards": ([*GPT2, "--gpus", "64..8", "--global-batch", "8"], "64..8 is no range"),
    "no axis": ([*ON_8, "--over", "seq_len=1,2"],
                "a plan does not choose that"),
    "no such split": ([*ON_8, "--over", "tp=5"],
                      "tp = 5 is in no layout"),
    "no framework": ([*ON_8, "--over", "framework=fsdp"],
                     "framework: 'fsdp' is none"),
    "no ranking": ([*ON_8, "--by", "speed"],
                   "--by speed: plans are not ranked by that"),
    "a deadline for nothing": ([*ON_8, "--days", "3"],
                               "a deadline for nothing"),
    "no number of tokens": ([*ON_8, "--tokens", "lots"],
                            "--tokens lots is no number of tokens"),
    "no price": ([*ON_8, "--by", "cost"],
                 "what a GPU hour costs is not given"),
    "no layout": ([*GPT2, "--gpus", "5", "--global-batch", "8"], "no layout of gpt2 on 5 GPUs"),
    "a request without tokens": ([*ON_8, "-o", "x"],
                                 "a request needs to know how long"),
    "an axis that is set": ([*ON_8, "--set", "tp=4"], "a plan chooses parallel.tp"),
    "all free": ([*ON_8, "--headroom", "100"],
                 "--headroom 100 is no share"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_questions_are_two_lines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words = WRONG[name]
    assert status_of(arguments) == 2
    printed = capsys.readouterr()
    lines = printed.err.strip().splitlines()
    assert words in printed.err and lines[-2].startswith("error: ") and lines[-1].startswith("hint: ")


def test_an_unknown_model_has_no_traceback() -> None:
    with pytest.raises(InputError, match="gpt22"):
        question("gpt22", "8", 8)


def test_walks_of_shallow_parts_leave_blocks_out() -> None:
    """What depths of two to five blocks are read from is what estimate walks for them."""
    run = question("gpt2", "8", 64).run
    for layers in (2, 3, 4, 5):
        assert plan_walk(run.model, run.training, num_layers=layers).copies == 0
    with pytest.raises(GpuledgerError):
        refuse_unmodelled(run.model_copy(update={"parallel": run.parallel.model_copy(update={"ep": 2})}))
