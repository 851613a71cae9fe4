"""Command lines of programs to emulate."""
from __future__ import annotations

import sys

import pytest

from gpuledger.errors import InputError
from gpuledger.torch_runs.emulated_gpu.launch import Launch, parse_command, rank_environment
from gpuledger.torch_runs.emulated_gpu.program import ProgramOptions, run_program


@pytest.fixture(autouse=True)
def train_py(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(("command", "launch"), [
    ("python train.py --lr 1", Launch("script", "train.py", ("--lr", "1"))),
    ("python3 -u -W ignore train.py", Launch("script", "train.py", (), ("-u", "-W", "ignore"))),
    ("python -m package.train -x", Launch("module", "package.train", ("-x",))),
    ("python -c pass a", Launch("code", "pass", ("a",))),
    ("train.py a", Launch("script", "train.py", ("a",))),
    ("torchrun --standalone --nproc_per_node=8 --nnodes 4 train.py -x",
     Launch("script", "train.py", ("-x",), (), 8, 32)),
    ("torchrun --nproc-per-node gpu --nnodes 1:2 -m package",
     Launch("module", "package", (), (), 8, 16)),
    ("python -m torch.distributed.run --nproc_per_node 2 train.py",
     Launch("script", "train.py", (), (), 2, 2)),
    (f"{sys.executable} train.py", Launch("script", "train.py", ())),
])
def test_what_a_command_starts(command, launch):
    assert parse_command(command.split()) == launch


@pytest.mark.parametrize(("command", "says", "hint"), [
    ("", "no program to emulate", "gpuledger emulate -- python train.py ARGS"),
    ("python", "python was given no program", "gpuledger emulate -- python train.py ARGS"),
    ("python missing.py", "missing.py is not a file", "the current folder is"),
    ("accelerate launch train.py", "accelerate starts many processes",
     "--world-size 8 --rank 0 -- python"),
    ("./run.sh", "./run.sh is not a Python program", "use: python train.py"),
    ("torchrun --nproc-per-node many train.py", "torchrun --nproc-per-node many", "a whole number"),
    ("torchrun --standalone", "torchrun was given no program", "--nproc-per-node 8 train.py"),
    ("/usr/bin/env/python train.py", "/usr/bin/env/python was not found", "write python"),
])
def test_what_cannot_be_started(command, says, hint):
    with pytest.raises(InputError) as error:
        parse_command(command.split())
    assert says in error.value.problems[0].message
    assert hint in error.value.problems[0].hint


@pytest.mark.parametrize(("options", "says"), [
    ({"world_size": 4, "rank": 4}, "--rank 4 of 4 ranks"),
    ({"rank": 1}, "--rank 1 without a world size"),
])
def test_ranks_that_do_not_exist(options, says):
    with pytest.raises(InputError) as error:
        run_program(["python", "train.py"], ProgramOptions(device=None, **options))
    assert error.value.problems[0].message == says


def test_a_world_size_in_two_places():
    with pytest.raises(InputError) as error:
        run_program(["torchrun", "--nproc-per-node", "8", "train.py"],
                    ProgramOptions(device=None, world_size=16))
    assert error.value.problems[0].message == "--world-size 16, but the command starts 8 ranks"


def test_the_environment_of_a_rank_is_torchruns():
    seen = rank_environment(rank=13, world_size=16, ranks_per_node=8)
    assert {name: seen[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                                          "GROUP_RANK", "GROUP_WORLD_SIZE")} == {
        "RANK": "13", "LOCAL_RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8",
        "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
