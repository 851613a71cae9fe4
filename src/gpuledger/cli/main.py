"""The `gpuledger` command: parses, calls one function per command, and turns errors into two lines."""
import gc
import os
import sys
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import GpuledgerError
from . import torch_commands
from .options import (
    ConventionOption,
    GlobalBatch,
    Gpu,
    Gpus,
    Json,
    MicroBatch,
    Pp,
    Precision,
    Recompute,
    RunArgument,
    SeqLen,
    Set,
    Snapshot,
    Tp,
    Zero,
    say,
)

app = typer.Typer(
    name="gpuledger", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Accounts for every byte and every FLOP of a GPT training run before anyone asks for the GPUs.")

def version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        from .. import __version__
        typer.echo(f"gpuledger {__version__}")
        raise typer.Exit


@app.callback()
def main(show_version: Annotated[bool, typer.Option(
        "--version", callback=version, is_eager=True, help="Print the version and exit.")] = False) -> None:
    """Accounts for every byte and every FLOP of a GPT training run before anyone asks for the GPUs."""


@app.command()
def estimate(
    run: RunArgument, gpu: Gpu = None, gpus: Gpus = None, zero: Zero = None, precision: Precision = None,
    seq_len: SeqLen = None, micro_batch: MicroBatch = None, global_batch: GlobalBatch = None,
    tp: Tp = None, pp: Pp = None, recompute: Recompute = None, set_: Set = None,
    convention: ConventionOption = "megatron",
    alloc_conf: Annotated[str | None, typer.Option(
        "--alloc-conf", help="PYTORCH_CUDA_ALLOC_CONF, for example expandable_segments:True")] = None,
    events: Annotated[Path | None, typer.Option(
        "--events", help="write the stream of allocations and frees as JSON lines")] = None,
    snapshot: Snapshot = None,
    explain: Annotated[bool, typer.Option("--explain", help="every entry with its formula")] = False,
    require_fit: Annotated[bool, typer.Option(
        "--require-fit", help="exit status 1 if it does not fit")] = False,
    json: Json = False,
) -> None:
    """Memory by category, the peak and its instant, FLOPs; and what would make it fit."""
    from ..config import RunOptions
    from .estimate import EstimateOptions, run_estimate

    options = RunOptions(gpu=gpu, gpus=gpus, zero=zero, precision=precision, seq_len=seq_len,
                         micro_batch=micro_batch, global_batch=global_batch, tp=tp, pp=pp,
                         recompute=recompute, set=tuple(set_ or ()))
    how = EstimateOptions(convention=convention, alloc_conf=alloc_conf, events=events,
                          snapshot=snapshot, explain=explain,
                          require_fit=require_fit, json=json)
    raise typer.Exit(run_estimate(run, options, how))


@app.command()
def mfu(
    run: RunArgument,
    tokens_per_second: Annotated[float | None, typer.Option(
        "--tokens-per-second", help="measured, of the whole run")] = None,
    tokens_per_second_per_gpu: Annotated[float | None, typer.Option(
        "--tokens-per-second-per-gpu", help="measured, of one GPU")] = None,
    step_seconds: Annotated[float | None, typer.Option(
        "--step-seconds", help="measured time of one optimizer step")] = None,
    gpu: Gpu = None, gpus: Gpus = None, precision: Precision = None, seq_len: SeqLen = None,
    global_batch: GlobalBatch = None, recompute: Recompute = None, set_: Set = None,
    convention: ConventionOption = "megatron", json: Json = False,
) -> None:
    """A measured throughput as MFU and HFU under every convention of the field."""
    from ..compute.mfu import Measured
    from ..config import RunOptions, resolve_run
    from .mfu import mfu as print_mfu

    options = RunOptions(gpu=gpu, gpus=gpus, precision=precision, seq_len=seq_len,
                         global_batch=global_batch, recompute=recompute, set=tuple(set_ or ()))
    resolved, assumptions = resolve_run(run, options)
    say("assumed", assumptions)
    measured = Measured(tokens_per_second, tokens_per_second_per_gpu, step_seconds)
    print_mfu(resolved, measured, convention=convention, as_json=json)


@app.command()
def sweep(
    run: RunArgument,
    over: Annotated[list[str] | None, typer.Option(
        "--over", metavar="KEY=A,B,C", help="vary this key; repeatable. Ranges: 1..8, 1024..32768*2")] = None,
    gpu: Gpu = None, gpus: Gpus = None, zero: Zero = None, precision: Precision = None,
    seq_len: SeqLen = None, micro_batch: MicroBatch = None, global_batch: GlobalBatch = None,
    tp: Tp = None, pp: Pp = None, recompute: Recompute = None, set_: Set = None,
    replay: Annotated[bool, typer.Option(
        "--replay", help="replay each run through the allocator, as estimate does (slower)")] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="write all cells to this file")] = None,
    chart: Annotated[Path | None, typer.Option(
        "--chart", help="write a heat map: .svg, .png or .pdf")] = None,
    json: Json = False,
) -> None:
    """A grid of runs over any keys: which fit, how much they need, and why the others do not."""
    from ..config import RunOptions
    from .sweep import SweepOptions, run_sweep

    options = RunOptions(gpu=gpu, gpus=gpus, zero=zero, precision=precision, seq_len=seq_len,
                         micro_batch=micro_batch, global_batch=global_batch, tp=tp, pp=pp,
                         recompute=recompute, set=tuple(set_ or ()))
    how = SweepOptions(over=tuple(over or ()), replay=replay, csv=csv, chart=chart, json=json)
    raise typer.Exit(run_sweep(run, options, how))


@app.command()
def plan(
    run: RunArgument, gpu: Gpu = None,
    gpus: Annotated[str | None, typer.Option(
        "--gpus", help="64; 8..512; 64,128; or min, as few as possible")] = None,
    by: Annotated[str | None, typer.Option(
        "--by", help="what is least: time (of a step), gpus, gpu-hours or cost")] = None,
    tokens: Annotated[str | None, typer.Option(
        "--tokens", help="tokens to train on, for example 300B or 15T")] = None,
    days: Annotated[float | None, typer.Option("--days", help="deadline for --tokens")] = None,
    precision: Precision = None, seq_len: SeqLen = None, global_batch: GlobalBatch = None,
    set_: Set = None,
    over: Annotated[list[str] | None, typer.Option(
        "--over", metavar="KEY=A,B,C",
        help="values of one axis, for example tp=1,2 or framework=fsdp2; repeatable")] = None,
    headroom: Annotated[float, typer.Option(
        "--headroom", help="percent of the memory that is kept free")] = 5.0,
    top: Annotated[int, typer.Option("--top", help="plans to show")] = 5,
    out: Annotated[Path | None, typer.Option(
        "-o", "--out", help="folder for the request (run file, launcher, Slurm and Kubernetes jobs) and "
        "a page of the answer with its chart")] = None,
    price: Annotated[float | None, typer.Option("--price", help="of one GPU hour")] = None,
    request: Annotated[list[str] | None, typer.Option(
        "--request", metavar="KEY=VALUE",
        help="a key of the request (docs/requests.md), for example partition=gpu; repeatable")] = None,
    chart: Annotated[Path | None, typer.Option(
        "--chart", help="step time against memory: .svg, .png or .pdf")] = None,
    require_fit: Annotated[bool, typer.Option(
        "--require-fit", help="exit status 1 if nothing fits")] = False,
    json: Json = False,
) -> None:
    """The best layouts of a model on so many GPUs, out of all, and the request for the best one."""
    from ..config import RunOptions
    from ..planner.ask import Wishes
    from .plan import PlanOptions, run_plan

    options = RunOptions(gpu=gpu, precision=precision, seq_len=seq_len, global_batch=global_batch,
                         set=tuple(set_ or ()))
    wishes = Wishes(gpus=gpus, by=by, tokens=tokens, days=days, price=price, headroom_percent=headroom, top=top,
                    over=tuple(over or ()))
    how = PlanOptions(wishes, out=out, chart=chart, request=tuple(request or ()),
                      require_fit=require_fit, json=json)
    raise typer.Exit(run_plan(run, options, how))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(
        metavar="RUN...", help="run files, run presets, model presets, or config.json files")],
    out: Annotated[Path, typer.Option("-o", "--out", help="folder for the report's files")],
    over: Annotated[list[str] | None, typer.Option(
        "--over", metavar="KEY=A,B,C", help="each run once per value of this key; repeatable")] = None,
    gpu: Gpu = None, gpus: Gpus = None, zero: Zero = None, precision: Precision = None,
    seq_len: SeqLen = None, micro_batch: MicroBatch = None, global_batch: GlobalBatch = None,
    tp: Tp = None, pp: Pp = None, recompute: Recompute = None, set_: Set = None,
    md: Annotated[bool, typer.Option("--md", help="write report.md too")] = False,
    compare: Annotated[bool, typer.Option(
        "--compare", help="two runs side by side, differences first")] = False,
    measured: Annotated[list[Path] | None, typer.Option(
        "--measured", help="output of emulate or validate --json, for the timeline and the parity "
        "chart")] = None,
) -> None:
    """Charts (SVG, PNG, PDF) and one self-contained HTML page."""
    from ..config import RunOptions
    from .report import ReportOptions, run_report

    options = RunOptions(gpu=gpu, gpus=gpus, zero=zero, precision=precision, seq_len=seq_len,
                         micro_batch=micro_batch, global_batch=global_batch, tp=tp, pp=pp,
                         recompute=recompute, set=tuple(set_ or ()))
    how = ReportOptions(out=out, over=tuple(over or ()), markdown=md, compare=compare,
                        measured=tuple(measured or ()))
    raise typer.Exit(run_report(runs, options, how))


@app.command()
def presets(
    kind: Annotated[str | None, typer.Argument(help="models, gpus, clusters or runs")] = None,
    name: Annotated[str | None, typer.Argument(help="show this one")] = None,
    json: Json = False,
) -> None:
    """List what gpuledger knows, or show one preset with its source."""
    from .presets import show_presets

    show_presets(kind, name, as_json=json)


app.command()(torch_commands.emulate)
app.command()(torch_commands.validate)
app.command()(torch_commands.calibrate)


def run() -> None:
    """The console script."""
    gc.set_threshold(100_000)       # next to nothing that so short a process makes is garbage
    sys.exit(status_of(sys.argv[1:]))


def status_of(arguments: list[str]) -> int:
    """Run the command line and return its exit status: 0 answered, 1 does not fit, 2 wrong input."""
    arguments, program = split_program(arguments)
    try:
        result = app_for(arguments)(arguments, standalone_mode=False, obj=program)
        return result if isinstance(result, int) else 0
    except GpuledgerError as error:
        typer.echo(str(error), err=True)
        return 2
    except usage_error() as error:
        return say_usage(error)
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        typer.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def app_for(arguments: list[str]) -> typer.Typer:
    """The app with the called command alone, since typer builds all that it knows; or with all of them."""
    called = [known for known in app.registered_commands
              if known.callback is not None and [known.callback.__name__] == arguments[:1]]
    if not called:
        return app
    alone = copy(app)
    alone.registered_commands = called
    return alone


def split_program(arguments: list[str]) -> tuple[list[str], list[str] | None]:
    """`emulate ... -- python train.py`: the user's command is kept apart, untouched."""
    if arguments[:1] == ["emulate"] and "--" in arguments:
        position = arguments.index("--")
        return arguments[:position], arguments[position + 1:]
    return arguments, None


def usage_error() -> type[Exception]:
    """click's UsageError, which typer carries with it since 0.26 and imports before."""
    return typer.BadParameter.__mro__[1]


def say_usage(error: Any) -> int:
    """What is wrong with the command line, or the help where there was none."""
    context, message = error.ctx, error.format_message()
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help(), err=True)
        return 2
    path = context.command_path if context is not None else "gpuledger"
    one_line = " ".join(message.split())
    typer.echo(f"error: {one_line}\nhint: {path} --help lists the options", err=True)
    return 2


if __name__ == "__main__":
    run()
