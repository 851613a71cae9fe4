"""Builds the stand-alone comparison of the kernels with the plain loops, in many variants."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpuledger.torch_runs.kernels import toolchain
from gpuledger.torch_runs.kernels.sources import FOLDERS, cuda_files, source_folder

HOST = Path(__file__).parent / "kernels_host"
BASE = ("-std=c++20", "-Wno-unknown-pragmas")
ONE_DTYPE = "-DGPULEDGER_ONLY_F32"
THREADS = ("-DGPULEDGER_HOST_THREADS", "-g1", ONE_DTYPE)
VARIANTS = {
    "coverage": ("-O1", "--coverage"),
    "thread": ("-O1", "-fsanitize=thread", *THREADS),
    "address": ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", *THREADS),
    "quick": ("-O0", ONE_DTYPE),
}
SCHEDULES = ("forward", "reverse", "1", "2", "3")


def compile_program(flags: tuple[str, ...], folder: Path, tree: Path | None = None) -> Path:
    """The program built with `flags`, from the checkout or from a copy of it."""
    host = tree / "tests" / "torch_cpu" / HOST.name if tree else HOST
    program = folder / "main"
    command = [toolchain.find_cxx(), *BASE, *flags, host / "all.cpp", "-o", program]
    subprocess.run(command, check=True, cwd=folder)  # gcov's files go to the working folder
    return program


def compile_units(folder: Path) -> dict[str, Path]:
    """Objects of a quick program by source name: all that a planted bug leaves as it is."""
    sources = [
        *cuda_files(source_folder()),
        *(source_folder() / "cpu").glob("*.cpp"),
        HOST / "main.cpp",
    ]
    return dict(
        toolchain.in_parallel(
            lambda source: (source.name, compile_unit(source, folder / f"{source.name}.o")), sources
        )
    )


def compile_unit(source: Path, built: Path) -> Path:
    """One object file for one dtype, without optimisation."""
    subprocess.run(
        [toolchain.find_cxx(), "-x", "c++", *BASE, *VARIANTS["quick"], "-c", source, "-o", built],
        check=True,
    )
    return built


def run_program(
    program: Path, mode: str = "", schedule: str = "forward", timeout: int = 120
) -> subprocess.CompletedProcess[str]:
    """Exit status and output of the program under a schedule. mode: see main.cpp."""
    environment = {**os.environ, "GPULEDGER_HOST_ORDER": schedule}
    return subprocess.run(
        [program, mode],
        env=environment,
        cwd=program.parent,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )


@dataclass(frozen=True)
class PlantedBug:
    """A mistake: `right` stands once in `file` and is replaced by `wrong`."""

    name: str
    file: str
    unit: str  # the translation unit that shows it
    right: str
    wrong: str

    def plant(self, folder: Path) -> Path:
        """A copy of the sources with the mistake in it."""
        tree = folder / self.name
        for name in FOLDERS:
            shutil.copytree(source_folder() / name, tree / "csrc" / name)
        shutil.copytree(HOST, tree / "tests" / "torch_cpu" / HOST.name)
        victim = tree / "csrc" / self.file
        text = victim.read_text()
        assert text.count(self.right) == 1, f"{self.name}: not once in {self.file}: {self.right}"
        victim.write_text(text.replace(self.right, self.wrong))
        return tree

    def program(self, folder: Path, units: dict[str, Path]) -> Path:
        """The quick program with the mistake in it."""
        tree = self.plant(folder)
        wrong = compile_unit(tree / "csrc" / "kernels" / self.unit, tree / "wrong.o")
        program = tree / "main"
        others = [built for name, built in units.items() if name != self.unit]
        # First, because the linker keeps the first copy of a template that several units hold.
        subprocess.run([toolchain.find_cxx(), wrong, *others, "-o", program], check=True)
        return program


PLANTED_BUGS = [
    PlantedBug(
        "barrier_missing_after_write",
        "compat/gpu.h",
        "layer_norm.cu",
        "partial[warp] = v;\n  __syncthreads();",
        "partial[warp] = v;",
    ),
    PlantedBug(
        "barrier_missing_before_reuse",
        "compat/gpu.h",
        "layer_norm.cu",
        "__syncthreads();  // an earlier call may still be reading partial",
        "",
    ),
    PlantedBug(
        "absent_warps_are_read",
        "compat/gpu.h",
        "layer_norm.cu",
        "lane < num_warps ? partial[lane] : Op::template identity<A>()",
        "partial[lane]",
    ),
    PlantedBug(
        "half_of_the_shuffles",
        "compat/gpu.h",
        "layer_norm.cu",
        "int offset = kWarp / 2;",
        "int offset = kWarp / 4;",
    ),
    PlantedBug(
        "one_thread_skips_a_barrier",
        "compat/gpu.h",
        "layer_norm.cu",
        "partial[warp] = v;\n  __syncthreads();",
        "partial[warp] = v;\n  if (threadIdx.x != 5) __syncthreads();",
    ),
    PlantedBug(
        "column_sums_without_barrier",
        "kernels/column_sums.cuh",
        "layer_norm.cu",
        "= sum;\n  __syncthreads();",
        "= sum;",
    ),
    PlantedBug(
        "accumulator_not_zeroed",
        "kernels/norm.cuh",
        "layer_norm.cu",
        "store<A, VEC>(dw + c, Pack<A, VEC>{});",
        "",
    ),
    PlantedBug(
        "residual_gradient_forgotten",
        "kernels/norm.cuh",
        "layer_norm.cu",
        "dx += up(out.v[i])",
        "dx += A(0)",
    ),
    PlantedBug(
        "sum_not_rescaled",
        "kernels/cross_entropy.cu",
        "cross_entropy.cu",
        "sum *= exp_below(maximum, larger);",
        "",
    ),
    PlantedBug(
        "end_of_row_lost",
        "kernels/cross_entropy.cu",
        "cross_entropy.cu",
        "c = tail + threadIdx.x; c < cols;",
        "c = tail + threadIdx.x; c < tail;",
    ),
    PlantedBug(
        "bias_gradient_of_one_row",
        "kernels/bias_gelu.cu",
        "bias_gelu.cu",
        "sum.v[i] += dx",
        "sum.v[i] = dx",
    ),
    PlantedBug(
        "wrong_row_stride",
        "kernels/swiglu.cu",
        "swiglu.cu",
        "dup.v[i] = down<T>(g * v * s);\n  }\n  store<T, N>(static_cast<T*>(a.dgate) + row "
        "* a.dgate_stride + c, dgate);",
        "dup.v[i] = down<T>(g * v * s);\n  }\n  store<T, N>(static_cast<T*>(a.dgate) + row "
        "* a.gate_stride + c, dgate);",
    ),
    PlantedBug(
        "angle_not_reversed",
        "kernels/rotary.cu",
        "rotary.cu",
        "conjugate ? -s.v[i] : s.v[i]",
        "s.v[i]",
    ),
    PlantedBug(
        "mask_drawn_twice",
        "kernels/dropout.cu",
        "dropout.cu",
        "philox(uint64_t(first) / kWords + w, a.seed)",
        "philox(uint64_t(first) / kWords / 2 + w, a.seed)",
    ),
    PlantedBug(
        "element_skipped",
        "kernels/adamw.cu",
        "adamw.cu",
        "i = packs * N + threadIdx.x;",
        "i = packs * N + threadIdx.x + 1;",
    ),
]
