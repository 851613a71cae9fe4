"""Grids: every cell equals the estimate of its run; refusals in words; interruption; tables, CSV, JSON."""
from __future__ import annotations

import csv
import io
import itertools
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from drawn_runs import random_run, with_settings
from gpuledger.axes import Axis, parse_axis
from gpuledger.cli.main import status_of
from gpuledger.config import RunOptions, resolve_run
from gpuledger.config.run import Run
from gpuledger.errors import GpuledgerError, InputError, Problem
from gpuledger.estimate import device_of, estimate
from gpuledger.memory.allocator import OutOfMemory, OutOfMemoryFigures
from gpuledger.memory.many_peaks import find_peaks
from gpuledger.report.sweep_output import sweep_csv, sweep_json
from gpuledger.sweep import Sweep, sweep

H100S = RunOptions(gpu="h100-80gb-sxm", gpus=8, zero=3)


def setting_texts(settings: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{key}={json.dumps(value)}" for key, value in settings.items())


def check_every_cell(source: str, options: RunOptions, *axes: str) -> Sweep:
    """Each cell against the estimate of the run that `--set` gives."""
    result = sweep(source, options, [parse_axis(text) for text in axes])
    for cell in result.cells:
        assert cell is not None
        try:
            run, _ = resolve_run(source, RunOptions(**{**vars(options), "set": setting_texts(cell.settings)}))
            alone = estimate(run)
        except GpuledgerError as error:
            assert cell.status == "refused"
            assert cell.reason == "; ".join(problem.message for problem in error.problems)
            continue
        assert cell.memory == alone.memory
        assert cell.model_flops_per_step == alone.flops.model_flops_per_step
        assert cell.hardware_flops_per_step == alone.flops.hardware_flops_per_step
        assert cell.status == ("fits" if alone.memory.fits else "does not fit")
    return result


@pytest.mark.parametrize(("source", "axes"), [
    # sizes alone, with one sequence and several, one micro-batch and several
    ("llama-3-8b", ("micro_batch_size=1,2,3", "seq_len=100,4096,8192,100000")),
    ("gpt2", ("micro_batch_size=1,8", "seq_len=1,64,1024,1025", "global_batch_size=64,128")),
    # windows that are and are not shorter than the sequence; kernels that split when queries are few
    ("mistral-7b-v0.1", ("seq_len=512,4096,4097,8192", "micro_batch_size=1,2")),
    ("gemma-2-9b", ("seq_len=512,4096,8192", "recompute=none,every:2,every:3")),
    # every other kind of setting, refusals among them
    ("llama-3-8b", ("precision=fp32,fp16-mixed,bf16,bf16-master", "zero=0..3", "attention=flash,math,eager")),
    ("llama-3.2-1b", ("optimizer=adamw,sgd,adafactor,muon,lion,adamw-8bit", "zero=0,2", "seq_len=64,512")),
    ("llama-3.2-1b", ("loss=cross_entropy,fp32_logits,chunked,fused_linear", "micro_batch_size=1,4",
                      "seq_len=60,64,1000")),
    ("pythia-1b", ("gpus=1,2,8,16", "zero=0,1,2,3", "global_batch_size=16,32", "micro_batch_size=1,2")),
    ("bloom-560m", ("attention=efficient,math,eager", "seq_len=128,500,2048", "micro_batch_size=1,2")),
    ("gpt2", ("model=gpt2,opt-125m,smollm2-135m", "gpu=h100-80gb-sxm,t4-16gb", "seq_len=512,1024")),
    ("gpt2", ("set_to_none=true,false", "optimizer_implementation=foreach,fused,for-loop", "seq_len=32,64")),
])
def test_every_cell_equals_the_estimate_of_its_run(source: str, axes: tuple[str, ...]) -> None:
    check_every_cell(source, H100S, *axes)


@pytest.mark.parametrize("seed", range(12))
def test_random_models_walked_together_equal_each_alone(seed: int) -> None:
    rng = random.Random(seed)
    runs = resized(random_run(seed), rng)
    together = find_peaks(runs, device_of(runs[0]))
    for run, found in zip(runs, together, strict=True):
        memory = estimate(run).memory
        assert found.requested_bytes == memory.peak_requested_bytes
        assert found.rounding_bytes == memory.rounding_bytes
        assert found.instant == memory.peak_instant
        categories = found.category_bytes | {
            "buffers": found.category_bytes["buffers"] + found.rounding_bytes}
        assert categories == memory.category_bytes


def resized(base: Run, rng: random.Random) -> list[Run]:
    """The run with other sizes, several layers deep."""
    base = with_settings(base, model__num_layers=rng.choice([1, 4, 7]))
    longest = base.model.max_position_embeddings if base.model.positions == "learned" else 200
    runs = []
    while len(runs) < 5:
        micro, seq_len = rng.choice([1, 2, 5]), rng.randint(1, longest)
        try:
            run = with_settings(base, training__micro_batch_size=micro, training__seq_len=seq_len,
                                training__global_batch_size=micro * rng.choice([1, 2]))
        except InputError:               # more chunks of the loss than tokens
            continue
        estimate(run)
        runs.append(run)
    micro_batches = runs[0].num_microbatches > 1
    return [run for run in runs if (run.num_microbatches > 1) == micro_batches]


def test_replayed_cells_have_the_reserved_bytes_of_the_command() -> None:
    axes = [parse_axis("micro_batch_size=1,2")]
    result = sweep("gpt2", RunOptions(gpu="t4-16gb", gpus=1), axes, replay=True)
    for cell in result.cells:
        assert cell is not None and cell.memory is not None
        run, _ = resolve_run("gpt2", RunOptions(gpu="t4-16gb", gpus=1, set=setting_texts(cell.settings)))
        assert cell.memory == estimate(run, replay=True).memory
        assert cell.memory.peak_reserved_bytes is not None


def test_many_code_paths_go_to_processes_and_are_equal() -> None:
    result = check_every_cell("pythia-70m", H100S, "precision=fp32,bf16,bf16-mixed,bf16-master",
                              "recompute=none,full,selective,every:2", "micro_batch_size=1,2")
    assert result.finished == 32


def test_ten_thousand_cells_take_less_than_ten_seconds() -> None:
    """CPU seconds, so that what else the machine does is not counted."""
    axes = [parse_axis("micro_batch_size=1..100"), parse_axis("seq_len=80..8000+80")]
    start = time.process_time()
    result = sweep("llama-3-8b", H100S, axes)
    assert result.finished == 10_000 and time.process_time() - start < 10
    statuses = [cell.status for cell in result.cells if cell is not None]
    assert 0 < statuses.count("fits") < 10_000


def test_errors_travel_between_processes_whole() -> None:
    figures = OutOfMemoryFigures(1, 2, 3, 4, 5)
    for error in (InputError.of([Problem("a", "b"), Problem("c", "d")]), OutOfMemory(figures)):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error) and copy.problems == error.problems and str(copy) == str(error)


# ---- axes
@pytest.mark.parametrize(("text", "key", "values"), [
    ("seq_len=1024,2048", "training.seq_len", (1024, 2048)),
    ("micro-batch=1..4", "training.micro_batch_size", (1, 2, 3, 4)),
    ("gpus=0..64+16", "cluster.gpus", (0, 16, 32, 48, 64)),
    ("training.seq_len=1024..9000*2", "training.seq_len", (1024, 2048, 4096, 8192)),
    ("recompute=none,every:2,{every: 3}", "training.recompute", ("none", {"every": 2}, {"every": 3})),
    ("zero=3", "parallel.zero_stage", (3,)),
    ("model=gpt2,llama-3-8b", "model", ("gpt2", "llama-3-8b")),
    ("amsgrad=true,false", "training.amsgrad", (True, False)),
])
def test_axis(text: str, key: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(text) == Axis(key, values)


@pytest.mark.parametrize(("text", "message"), [
    ("seq_len", "is not key=a,b,c"), ("=1,2", "is not key=a,b,c"), ("seq_len= ", "is not key=a,b,c"),
    ("sequence=1,2", "--over sequence: no such key"), ("seq_len=8..1", "no range that ends"),
    ("seq_len=1..8*1", "no range that ends"), ("seq_len=1..9999999999", "more than 1,000,000 values"),
    ("seq_len=[1", "--over training.seq_len"),
])
def test_wrong_axis_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match="error: ") as refusal:
        list(map(str, parse_axis(text).values))
    assert message in refusal.value.problems[0].message


def test_grid_that_is_too_large_or_ambiguous_is_refused() -> None:
    axes = [Axis("training.seq_len", tuple(range(2000))), Axis("training.micro_batch_size", tuple(range(2000)))]
    with pytest.raises(InputError, match="4,000,000 cells"):
        sweep("gpt2", H100S, axes)
    with pytest.raises(InputError, match="given twice"):
        sweep("gpt2", H100S, [axes[0], axes[0]])


# ---- output
@pytest.fixture(scope="module")
def small() -> Sweep:
    return sweep("gpt2", RunOptions(gpu="t4-16gb", gpus=1),
                 [parse_axis("micro_batch_size=1,32,3"), parse_axis("recompute=none,every:2")])


def test_csv_and_json_say_the_same(small: Sweep) -> None:
    rows = list(csv.DictReader(io.StringIO(sweep_csv(small))))
    content = json.loads(sweep_json(small))
    assert content["schema_version"] == 1 and content["num_cells"] == 6
    assert content["over"] == {"training.micro_batch_size": [1, 32, 3],
                               "training.recompute": ["none", {"every": 2}]}
    for row, cell, original in zip(rows, content["cells"], small.cells, strict=True):
        assert original is not None and original.memory is not None
        assert row["status"] == cell["status"] == original.status
        assert int(row["peak_requested_bytes"]) == cell["peak_requested_bytes"]
        assert cell["peak_requested_bytes"] == original.memory.peak_requested_bytes
        assert row["peak_reserved_bytes"] == "" and cell["peak_reserved_bytes"] is None
    assert {row["training.recompute"] for row in rows} == {"none", "every:2"}


def test_cells_say_why_they_do_not_fit(small: Sweep) -> None:
    cell = small.cells[2]
    assert cell is not None and cell.memory is not None and cell.status == "does not fit"
    over = -cell.memory.headroom_bytes / 2**30
    assert cell.reason.startswith(f"{over:.2f} GiB over: activations ")
    assert cell.reason.endswith(f"peak at {cell.memory.peak_instant}")


def test_command_writes_table_csv_and_chart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status = status_of(["sweep", "gpt2", "--gpu", "t4-16gb", "--gpus", "1", "--over", "micro_batch_size=1,32",
                        "--over", "seq_len=512..1024*2", "--csv", str(tmp_path / "a.csv"), "--chart",
                        str(tmp_path / "a.svg")])
    printed = capsys.readouterr()
    assert status == 0 and printed.err == ""
    assert "4 cells: 2 fit, 2 do not" in printed.out and "over: activations" in printed.out
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 5
    assert (tmp_path / "a.svg").read_text().count('class="mark"') == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "a.svg"]


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "nothing to vary"), (("--over", "seq_len=1", "--chart", "a.jpg"), "svg, png, pdf"),
    ((*itertools.chain.from_iterable(("--over", text) for text in (
        "seq_len=1,2", "micro_batch_size=1,2", "zero=0,1", "precision=bf16,fp32")), "--chart", "a.svg"),
     "a chart of 4 varied keys"),
])
def test_command_refuses_before_it_computes(arguments: tuple[str, ...], message: str,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(["sweep", "gpt2", "--gpu", "h100", "--gpus", "1", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent as a POSIX signal")
def test_interrupted_sweep_keeps_what_it_has(tmp_path: Path) -> None:
    """Replays of many runs in processes; Ctrl-C to all of them, as a terminal sends it."""
    out = tmp_path / "part.csv"
    sweeping = subprocess.Popen(
        [sys.executable, "-m", "gpuledger.cli.main", "sweep", "gpt2", "--gpu", "h100", "--gpus", "1", "--replay",
         "--over", "micro_batch_size=1..400", "--csv", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    time.sleep(6)
    os.killpg(sweeping.pid, signal.SIGINT)
    printed, said = sweeping.communicate(timeout=60)
    assert sweeping.returncode == 130
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert 0 < len(rows) < 400 and f"interrupted after {len(rows)} of 400 cells" in said
    assert f"{400 - len(rows)} not reached" in printed
    assert all(int(row["peak_reserved_bytes"]) > 0 for row in rows)
