"""The user's command line: which program, how many ranks. Plain strings; no torch."""
from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError

PYTHON_FLAGS_WITH_VALUE = ("-W", "-X")
TORCHRUN_FLAGS = ("--standalone", "--no-python", "--no_python", "--run-path", "--run_path",
                  "-m", "--module")
OTHER_LAUNCHERS = ("accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "horovodrun")
DEFAULT_GPUS_PER_NODE = 8


@dataclass(frozen=True)
class Launch:
    """A Python program: ``kind`` is script, module or code. Ranks are None if not given."""

    kind: str
    target: str
    arguments: tuple[str, ...]
    python_flags: tuple[str, ...] = ()
    ranks_per_node: int | None = None
    world_size: int | None = None


def parse_command(command: list[str]) -> Launch:
    """What a command line would start.

    It is python [flags] FILE | -m MODULE | -c CODE, FILE.py, or torchrun.

    Raises InputError for anything else, with the command to use instead where one is known.
    """
    if not command:
        raise InputError("no program to emulate",
                         hint="gpuledger emulate -- python train.py ARGS")
    name = Path(command[0]).name
    if name == "torchrun":
        return _parse_torchrun(command[1:])
    if name.startswith("python"):
        _check_interpreter(command[0])
        return _parse_python(command[1:])
    if name.endswith(".py"):
        return _script(command)
    if name in OTHER_LAUNCHERS:
        raise InputError(
            f"{name} starts many processes; here one process is rank r of N",
            hint="name the ranks and the program itself: "
                 "gpuledger emulate --world-size 8 --rank 0 -- python train.py ARGS",
        )
    raise InputError(f"{command[0]} is not a Python program",
                     hint="use: python train.py, python -m package, train.py, or torchrun train.py")


def _check_interpreter(given: str) -> None:
    """A path must lead to the Python that gpuledger, and so the emulated torch, is installed in."""
    if os.sep not in given:
        return
    found = shutil.which(given)
    if found is None:
        raise InputError(f"{given} was not found", hint="write python")
    if Path(found).parent.resolve() != Path(sys.executable).parent.resolve():
        raise InputError(
            f"{given} is not the Python that gpuledger runs in ({sys.executable})",
            hint=f"install gpuledger there, or write python: it means {sys.executable}",
        )


def _parse_python(words: list[str]) -> Launch:
    flags: list[str] = []
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        taken = 2 if words[0] in PYTHON_FLAGS_WITH_VALUE else 1
        flags += words[:taken]
        words = words[taken:]
    if not words or words[0] == "-" or (words[0] in ("-m", "-c") and len(words) < 2):
        raise InputError("python was given no program",
                         hint="gpuledger emulate -- python train.py ARGS")
    if words[0] == "-m" and words[1] in ("torch.distributed.run", "torch.distributed.launch"):
        return _parse_torchrun(words[2:])
    if words[0] == "-m":
        return Launch("module", words[1], tuple(words[2:]), tuple(flags))
    if words[0] == "-c":
        return Launch("code", words[1], tuple(words[2:]), tuple(flags))
    script = _script(words)
    return Launch(script.kind, script.target, script.arguments, tuple(flags))


def _script(words: list[str]) -> Launch:
    if not Path(words[0]).is_file():
        raise InputError(f"{words[0]} is not a file", hint=f"the current folder is {Path.cwd()}")
    return Launch("script", words[0], tuple(words[1:]))


def _parse_torchrun(words: list[str]) -> Launch:
    """torchrun's options, then the program. The world size is nproc-per-node times nnodes."""
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name, has_value, value = words[0].partition("=")
        words = words[1:]
        if name not in TORCHRUN_FLAGS and not has_value:
            value, words = (words[0], words[1:]) if words else ("", [])
        options[name.replace("_", "-")] = value
    if not words:
        raise InputError("torchrun was given no program",
                         hint="gpuledger emulate -- torchrun --nproc-per-node 8 train.py ARGS")
    ranks_per_node = _count(options, "--nproc-per-node", DEFAULT_GPUS_PER_NODE)
    world_size = ranks_per_node * _count(options, "--nnodes", 1)
    if {"-m", "--module"} & set(options):
        return Launch("module", words[0], tuple(words[1:]), (), ranks_per_node, world_size)
    script = _script(words)
    return Launch("script", script.target, script.arguments, (), ranks_per_node, world_size)


def _count(options: dict[str, str], name: str, gpus: int) -> int:
    """A count as torchrun writes it: a number, MIN:MAX (the maximum), or gpu and auto."""
    text = options.get(name, "1").rpartition(":")[2]
    if text in ("gpu", "auto"):
        return gpus
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"torchrun {name} {options[name]}", hint="a whole number of at least 1")
    return int(text)


def rank_environment(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """The variables that torchrun sets for one rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % ranks_per_node),
        "LOCAL_WORLD_SIZE": str(min(ranks_per_node, world_size)),
        "GROUP_RANK": str(rank // ranks_per_node),
        "GROUP_WORLD_SIZE": str(-(-world_size // ranks_per_node)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": "emulated",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }
