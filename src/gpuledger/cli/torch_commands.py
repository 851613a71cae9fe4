"""`emulate` and `validate`: the commands that run PyTorch, in processes of its own."""

from pathlib import Path
from typing import Annotated

import typer

from ..errors import InputError
from .options import (
    GlobalBatch,
    GpuOfEmulation,
    Gpus,
    Json,
    MicroBatch,
    Precision,
    Recompute,
    SeqLen,
    Set,
    Snapshot,
    Zero,
)

OptionalRun = Annotated[str | None, typer.Argument(
    metavar="[RUN]", help="run file, preset or config.json; or give a program after --")]


def emulate(
    context: typer.Context, run: OptionalRun = None, gpu: GpuOfEmulation = None, gpus: Gpus = None,
    zero: Zero = None, precision: Precision = None, seq_len: SeqLen = None, micro_batch: MicroBatch = None,
    global_batch: GlobalBatch = None, recompute: Recompute = None, set_: Set = None,
    devices: Annotated[int | None, typer.Option(
        "--devices", help="program: GPUs that the process sees")] = None,
    world_size: Annotated[int | None, typer.Option(
        "--world-size", help="program: ranks of the process group")] = None,
    rank: Annotated[int, typer.Option("--rank", help="program: which of them this process is")] = 0,
    stats: Annotated[Path | None, typer.Option("--stats", help="program: write the report as JSON")] = None,
    snapshot: Snapshot = None, json: Json = False,
) -> None:
    """Real PyTorch on a GPU that is not there: a run beside its estimate, or any program after --."""
    program: list[str] | None = context.obj
    if (run is None) == (program is None):
        raise InputError("emulate takes a RUN or a program after --, and " + (
            "got neither" if run is None else "got both"),
            "gpuledger emulate gpt2 --gpu h100, or gpuledger emulate --gpu h100 -- python train.py")
    if program is not None:
        from .emulate_program import DEFAULT_GPU, EmulateOptions, emulate_program
        raise typer.Exit(emulate_program(program, EmulateOptions(
            gpu=gpu or DEFAULT_GPU, devices=devices, world_size=world_size, rank=rank, as_json=json,
            stats=stats, snapshot=snapshot)))
    from ..config import RunOptions, resolve_run
    from .emulate import run_emulate

    resolved, assumptions = resolve_run(str(run), RunOptions(
        gpu=gpu, gpus=gpus, zero=zero, precision=precision, seq_len=seq_len, micro_batch=micro_batch,
        global_batch=global_batch, recompute=recompute, set=tuple(set_ or ())))
    raise typer.Exit(run_emulate(resolved, assumptions, as_json=json, snapshot=snapshot))


def validate(
    run: OptionalRun = None, precision: Precision = None, seq_len: SeqLen = None,
    micro_batch: MicroBatch = None, global_batch: GlobalBatch = None, recompute: Recompute = None,
    set_: Set = None,
    matrix: Annotated[str | None, typer.Option(
        "--matrix", help="file or preset of many runs: each in a process of its own")] = None,
    output: Annotated[Path, typer.Option(
        "-o", "--output", help="matrix: folder of results; what is there is not run again")] = Path("validation"),
    rehearse: Annotated[str | None, typer.Option(
        "--rehearse", help="on an emulated GPU of this preset: everything but the times")] = None,
    json: Json = False,
) -> None:
    """Real steps on this machine's GPU, reconciled with the estimate term by term."""
    from ..config import RunOptions, load_gpu, resolve_run
    from .validate import bench_of, gpu_assignment, run_validate, run_validate_matrix

    if (run is None) == (matrix is None):
        raise InputError("validate takes a RUN or --matrix, and " + (
            "got neither" if run is None else "got both"),
            "gpuledger validate gpt2, or gpuledger validate --matrix validation -o results")
    emulated = load_gpu(rehearse) if rehearse else None
    if matrix is not None:
        raise typer.Exit(run_validate_matrix(matrix, output, as_json=json, emulated_gpu=emulated))
    bench = bench_of(emulated)
    resolved, assumptions = resolve_run(str(run), RunOptions(
        gpus=1, precision=precision, seq_len=seq_len, micro_batch=micro_batch,
        global_batch=global_batch, recompute=recompute,
        set=(gpu_assignment(bench), *(set_ or ()))))
    raise typer.Exit(run_validate(resolved, bench, assumptions, as_json=json))


def calibrate(
    gpu: Annotated[str | None, typer.Option(
        "--gpu", help="preset or file that describes this GPU; left out, found by its name")] = None,
    output: Annotated[Path | None, typer.Option(
        "-o", "--output", help="the GPU file to write; left out, <preset>-calibrated.yaml")] = None,
    seconds: Annotated[float, typer.Option(
        "--seconds", min=0.1, max=600, help="how long each datatype's products run at the power limit")] = 15.0,
    json: Json = False,
) -> None:
    """Measure this machine's GPU: a file with its efficiency curves, for --gpu everywhere."""
    from .calibrate import run_calibrate

    raise typer.Exit(run_calibrate(gpu, output, seconds, as_json=json))
