"""`python -m gpuledger.torch_runs.kernels build [cpu|cuda|host]...` and `... check`."""
from __future__ import annotations

import argparse
import sys
import time

from gpuledger.errors import GpuledgerError
from gpuledger.torch_runs.kernels.build import DEFAULT_ARCHS, MODES, build
from gpuledger.torch_runs.kernels.check import check_all


def main(arguments: list[str]) -> int:
    """Exit status 0: done, 1: a file did not pass the check, 2: the input was wrong."""
    parser = argparse.ArgumentParser(prog="python -m gpuledger.torch_runs.kernels")
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="build kernel libraries into the cache")
    builder.add_argument("modes", nargs="*", metavar="|".join(MODES), default=["cpu"])
    checker = commands.add_parser("check", help="compile every CUDA file with warnings as errors")
    for command in (builder, checker):
        command.add_argument("--archs", default="", help="compute capabilities, such as 80,90")
    chosen = parser.parse_args(arguments)
    archs = tuple(arch for arch in chosen.archs.split(",") if arch)
    if chosen.command == "build":
        for mode in chosen.modes:
            start = time.monotonic()
            print(f"{mode}: {build(mode, archs)} ({time.monotonic() - start:.1f} s)", flush=True)
        return 0
    failed = 0
    for checked in check_all(archs or DEFAULT_ARCHS):
        print(checked, flush=True)
        failed += bool(checked.failure)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except GpuledgerError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
