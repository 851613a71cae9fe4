"""Arguments and options that several commands share, each described once."""
from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

RunArgument = Annotated[str, typer.Argument(
    metavar="RUN", help="run file, run preset, model preset, or a Hugging Face config.json")]
Gpu = Annotated[Optional[str], typer.Option("--gpu", help="GPU preset, for example h100-80gb-sxm")]
Gpus = Annotated[Optional[int], typer.Option("--gpus", help="number of GPUs")]
Zero = Annotated[Optional[int], typer.Option("--zero", help="ZeRO stage, 0 to 3")]
Precision = Annotated[Optional[str], typer.Option("--precision", help="for example bf16-mixed")]
SeqLen = Annotated[Optional[int], typer.Option("--seq-len", help="tokens of a sequence")]
MicroBatch = Annotated[Optional[int], typer.Option("--micro-batch", help="sequences per forward pass")]
GlobalBatch = Annotated[Optional[int], typer.Option("--global-batch", help="sequences per optimizer step")]
Tp = Annotated[Optional[int], typer.Option("--tp", help="tensor-parallel ranks")]
Pp = Annotated[Optional[int], typer.Option("--pp", help="pipeline stages")]
Recompute = Annotated[Optional[str], typer.Option(
    "--recompute", help="none, selective, full or every:K")]
Set = Annotated[Optional[list[str]], typer.Option(
    "--set", metavar="KEY=VALUE", help="any other key of the run; repeatable")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
ConventionOption = Annotated[str, typer.Option("--convention", help="FLOPs convention")]
GpuOfEmulation = Annotated[Optional[str], typer.Option(
    "--gpu", help="GPU preset to emulate (a program's default: h100-80gb-sxm)")]
Snapshot = Annotated[Optional[Path], typer.Option(
    "--snapshot", help="write a snapshot for PyTorch's memory viewer")]


def say(word: str, lines: tuple[str, ...]) -> None:
    """Messages go to stderr, so that stdout holds data alone."""
    for line in lines:
        typer.echo(f"{word}: {line}", err=True)
