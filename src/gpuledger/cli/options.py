"""Arguments and options that several commands share, each described once."""

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[str, typer.Argument(
    metavar="RUN", help="run file, run preset, model preset, Hugging Face config.json, or a "
    "Megatron-LM launch script")]
Gpu = Annotated[str | None, typer.Option("--gpu", help="GPU preset, for example h100-80gb-sxm")]
Gpus = Annotated[int | None, typer.Option("--gpus", help="number of GPUs")]
Zero = Annotated[int | None, typer.Option("--zero", help="ZeRO stage, 0 to 3")]
Precision = Annotated[str | None, typer.Option("--precision", help="for example bf16-mixed")]
SeqLen = Annotated[int | None, typer.Option("--seq-len", help="tokens of a sequence")]
MicroBatch = Annotated[int | None, typer.Option("--micro-batch", help="sequences per forward pass")]
GlobalBatch = Annotated[int | None, typer.Option("--global-batch", help="sequences per optimizer step")]
Tp = Annotated[int | None, typer.Option("--tp", help="tensor-parallel ranks")]
Pp = Annotated[int | None, typer.Option("--pp", help="pipeline stages")]
Recompute = Annotated[str | None, typer.Option(
    "--recompute", help="none, selective, per_op, full or every:K")]
Set = Annotated[list[str] | None, typer.Option(
    "--set", metavar="KEY=VALUE", help="any other key of the run; repeatable")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
ConventionOption = Annotated[str, typer.Option("--convention", help="FLOPs convention")]
GpuOfEmulation = Annotated[str | None, typer.Option(
    "--gpu", help="GPU preset to emulate (a program's default: h100-80gb-sxm)")]
Snapshot = Annotated[Path | None, typer.Option(
    "--snapshot", help="write a snapshot for PyTorch's memory viewer")]


def say(word: str, lines: tuple[str, ...]) -> None:
    """Messages go to stderr, so that stdout holds data alone."""
    for line in lines:
        typer.echo(f"{word}: {line}", err=True)
