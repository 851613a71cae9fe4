"""Building on demand: the cache, the command line, and what happens without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from kernel_cases import library, ops

from gpuledger.errors import InputError
from gpuledger.torch_runs.kernels import build, load, sources, toolchain
from gpuledger.torch_runs.kernels.check import check_one

__all__ = ["ops"]


def run_module(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpuledger.torch_runs.kernels", *arguments],
                          env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False)


def test_a_second_build_comes_from_the_cache(ops: object) -> None:
    done = run_module("build", "cpu", "host")
    assert done.returncode == 0, done.stderr
    for line, mode in zip(done.stdout.splitlines(), ("cpu", "host"), strict=True):
        assert line.startswith(f"{mode}: {build.build(mode)} (")
        assert build.build(mode).is_relative_to(sources.cache_folder())


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.delenv("GPULEDGER_CACHE", raising=False)
    assert sources.cache_folder() == Path("/xdg/gpuledger")
    monkeypatch.setenv("GPULEDGER_CACHE", "/chosen")
    assert sources.cache_folder() == Path("/chosen")
    monkeypatch.delenv("GPULEDGER_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert sources.cache_folder() == Path.home() / ".cache" / "gpuledger"


def test_the_key_follows_sources_and_flags(ops: object, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, link = build.compile_steps("cpu", ()), build.link_command("cpu", ())
    key = build.cache_key(steps, link)
    assert build.cache_key(steps, (*link, "-lm")) != key
    assert build.cache_key(steps[1:], link) != key
    monkeypatch.setattr(build, "source_files", lambda folder: sources.source_files(folder)[1:])
    assert build.cache_key(steps, link) != key


def test_without_a_compiler_it_says_what_to_do(tmp_path: Path) -> None:
    done = run_module("build", "cpu", CXX="no-such-compiler", GPULEDGER_CACHE=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr == ("error: no C++ compiler: no-such-compiler is not on the PATH\n"
                           "hint: install g++ 11 or newer, or set CXX\n")


def test_without_nvcc_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain.os, "access", lambda *_: False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda _: None)
    with pytest.raises(InputError, match="no CUDA compiler"):
        toolchain.find_nvcc()


def test_a_compiler_error_is_shown_without_a_traceback() -> None:
    with pytest.raises(InputError, match=r"nothing\.cpp"):
        toolchain.run([toolchain.find_cxx(), "-c", "nothing.cpp"])


def test_an_unknown_library_is_refused() -> None:
    with pytest.raises(InputError, match="unknown kernel library 'gpu'"):
        build.build("gpu")


def test_an_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.9.1+cu128")
    with pytest.raises(InputError, match=r"need torch 2\.11 or newer, but this is 2\.9\.1"):
        build.torch_folder()


def test_cuda_after_cpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library("cpu")
    from gpuledger.torch_runs.kernels import library as loader
    if loader._loaded["gpuledger"] == "cuda":
        pytest.skip("the CUDA library was loaded first: nothing to refuse")
    with pytest.raises(InputError, match="CPU kernels are loaded already"):
        load("cuda")


def test_a_kernel_that_spills_fails_the_check(tmp_path: Path) -> None:
    try:
        toolchain.find_nvcc()
    except InputError as error:
        pytest.skip(f"no CUDA compiler: {error.problems[0].message}")
    source = tmp_path / "spills.cu"
    source.write_text("__global__ void f(float* p, int n) {\n  volatile float a[64];\n"
                      "  a[n] = p[n];\n  p[0] = a[n + 1];\n}\n")
    checked = check_one(source, "sm_90", tmp_path)
    assert "FAILED" in str(checked) and "Local memory used" in checked.failure


def test_every_cuda_file_compiles_for_the_host_without_a_warning(tmp_path: Path) -> None:
    source = sources.cuda_files(sources.source_folder())[0]
    assert check_one(source, "host", tmp_path).failure == ""


def test_the_c_abi_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    """A CUDA entry point returns a CUDA error where no GPU is: the error path, without one."""
    if torch.cuda.is_available():
        pytest.skip("a GPU is present")
    try:
        nvcc = toolchain.find_nvcc()
    except InputError as error:
        pytest.skip(f"no CUDA compiler: {error.problems[0].message}")
    folder = sources.source_folder()
    library_file, caller = tmp_path / "libdropout.so", tmp_path / "call.py"
    toolchain.run([nvcc, *build.CUDA_FLAGS, "-arch=sm_80", "-shared", "-cudart", "static",
                   folder / "kernels" / "dropout.cu", "-o", library_file])
    caller.write_text(
        "import ctypes, sys\n"
        "class Dropout(ctypes.Structure):\n"
        "    _fields_ = [('dtype', ctypes.c_int), ('x', ctypes.c_void_p), ('y', ctypes.c_void_p),\n"
        "                ('numel', ctypes.c_int64), ('p', ctypes.c_double),\n"
        "                ('seed', ctypes.c_uint64)]\n"
        "call = ctypes.CDLL(sys.argv[1]).gpuledger_cuda_dropout\n"
        "print(call(ctypes.byref(Dropout(0, 0, 0, 8, 0.5, 1)), None))\n"
        "print(call(ctypes.byref(Dropout(9, 0, 0, 8, 0.5, 1)), None))\n")
    printed = toolchain.run([sys.executable, caller, library_file]).split()
    assert int(printed[0]) > 0 and printed[1] == "-1"
