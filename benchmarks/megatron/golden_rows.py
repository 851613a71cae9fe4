"""Megatron-LM's own functional tests as runs: launch arguments, container, and recorded bytes."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuledger.config import Run, load_run
from gpuledger.formats.megatron import run_keys_of
from gpuledger.memory.allocator import AllocatorSettings, parse_alloc_conf

FILE = Path(__file__).parents[1] / "published" / "megatron_golden.csv"
GPUS = {"a100": "a100-80gb-sxm", "h100": "h100-80gb-sxm", "gb200": "gb200-186gb"}
USUAL_GPUS = 8  # of a test whose recipe names no number
# When a rule of the software changed, seen in the recorded values and found in its history.
KEEPS_BATCHES = "2026-05-21"  # Megatron-LM 5e4fc931ba
ENGINE_WORKSPACE = "2025-10-31"  # TransformerEngine #2223: 1,024 bytes more
GB200_CUBLAS = "2026-05-01"  # a newer container: 32 MiB
DEFERRED_WGRAD = "2025-11-01"  # keeps the gradient of the output weight
LTS_OF_2025 = "2025-10-21"


@dataclass(frozen=True)
class Row:
    """One recorded test. `last` is the last rank, the only one whose bytes are recorded."""

    test_case: str
    environment: str
    file_date: str
    value_date: str
    gpus: int
    steady_bytes: int
    peak_bytes: int
    first_step_peak_bytes: int
    variables: dict[str, str]
    arguments: dict[str, Any]

    @property
    def platform(self) -> str:
        return next((name for name in ("gb200", "h100") if name in self.environment), "a100")

    @property
    def resumed(self) -> bool:
        return "_2nd" in self.environment

    @property
    def fused_loss(self) -> bool:
        return bool(self.arguments.get("cross-entropy-loss-fusion"))

    @property
    def unknown_gpus(self) -> bool:
        """The number of GPUs is in no recipe, and not the usual one."""
        return self.test_case.startswith(("gpt3_15b", "gpt3_mcore_reruns"))

    @property
    def old_engine(self) -> bool:
        """A container with a Transformer Engine of early 2024."""
        return "dracooci" in self.environment or (
            self.environment.startswith("lts_dgx_a100") and self.file_date == LTS_OF_2025)

    @property
    def allocator(self) -> AllocatorSettings:
        return parse_alloc_conf(self.variables.get("PYTORCH_CUDA_ALLOC_CONF", ""))

    def run(self) -> Run:
        """The run as the product's reader has it, with what its container adds."""
        keys = run_keys_of(self.arguments, self.gpus)
        keys["name"] = self.test_case
        keys["training"]["attention"] = self.attention(keys["training"]["attention"])
        keys["parallel"]["megatron"] |= self.container(keys["parallel"]["tp"])
        keys["cluster"] = {"gpu": GPUS[self.platform], "gpus": self.gpus, "gpus_per_node": 8}
        return load_run(keys)

    def attention(self, named: str) -> str:
        """Where no backend is named, Transformer Engine takes its fused one from capability 9.0 on, but
        flash on GB200 in deterministic mode; an old one falls back to unfused there."""
        engine = self.arguments.get("transformer-impl", "transformer_engine") == "transformer_engine"
        if named == "eager" or not engine:
            return "eager"
        if self.arguments.get("attention-backend"):
            return "flash"
        deterministic = self.variables.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") == "0"
        if self.old_engine and deterministic:
            return "eager"
        return "cudnn" if self.platform == "h100" else "flash"

    def container(self, tp: int) -> dict[str, Any]:
        """Options that follow from the container and its date."""
        asked = self.variables.get("CUBLAS_WORKSPACE_CONFIG")
        large = (asked == ":4096:8" or (asked is None and (
            self.platform == "h100" or (self.platform == "gb200" and self.value_date >= GB200_CUBLAS))))
        engine = 4 * 2**20 if self.platform == "a100" else (
            32 * 2**20 + 1_024 * (self.value_date >= ENGINE_WORKSPACE))
        changes: dict[str, Any] = {
            "cublas_workspace_bytes": 33_554_432 if large else 8_519_680,
            "engine_workspace_bytes": engine,
            "keeps_batches": self.value_date >= KEEPS_BATCHES and tp == 1,
            "old_transformer_engine": self.old_engine}
        if self.value_date < DEFERRED_WGRAD:
            changes["keeps_deferred_gradient"] = False
        return changes


def recorded_rows() -> list[Row]:
    """All rows of benchmarks/published/megatron_golden.csv."""
    with FILE.open(newline="") as lines:
        return [Row(r["test_case"], r["environment"], r["file_date"], r["value_date"],
                    int(r["gpus"] or USUAL_GPUS), int(r["steady_bytes"]), int(r["peak_bytes"]),
                    int(r["first_step_peak_bytes"] or 0), json.loads(r["environment_variables"]),
                    json.loads(r["arguments"])) for r in csv.DictReader(lines)]
