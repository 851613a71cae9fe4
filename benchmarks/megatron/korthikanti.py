"""Memory of the first pipeline stage beside figure 1 of Korthikanti et al. 2022 (arXiv 2205.05198).

python benchmarks/megatron/korthikanti.py [--check]

The figure counts the layers alone: 18 bytes for each of 12 h^2 L parameters, and what the layers keep for
backward while most micro-batches are in flight. So two figures of ours stand beside it: the same things
(`layers`), and all there is at the peak (`peak`): embedding, positions, biases, norms, masks of the batch,
gradients on their way, what is run again. Megatron of 2022: unfused attention, dropout, main gradients in
fp32. Writes korthikanti.json beside this file; with --check it fails where that file would change.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1] / "src"), str(HERE)]

from result_file import written_or_checked  # noqa: E402

from gpuledger.config import Run, load_run  # noqa: E402
from gpuledger.estimate import device_of  # noqa: E402
from gpuledger.memory.frameworks.megatron.stage import MegatronStage  # noqa: E402
from gpuledger.memory.pipeline.runner import stage_order  # noqa: E402
from gpuledger.memory.pipeline.schedules import FORWARD, in_flight  # noqa: E402
from gpuledger.memory.pipeline.stage_peak import ChunkWalk  # noqa: E402

FILE = HERE.parent / "published" / "korthikanti_figure1.csv"
GIB = 2**30
SEQ_LEN, VOCAB_SIZE = 2048, 51_200
STATES = ("parameters", "gradients", "optimizer")
OUTSIDE = ("word_embeddings.weight", "position_embeddings.weight", "final norm.weight",
           "final norm.bias", "output_layer.weight")
BYTES_PER_PARAMETER = 18
# Neither layers nor their inputs: the batch, masks and sums of the embedding, the head.
INPUTS = ("embedding", "received activation")


def run_of(row: dict[str, str], *, parallel_sequence: bool) -> Run:
    """The model of a row; with sequence parallelism it recomputes the attention core too."""
    hidden_size, heads = int(row["hidden_size"]), int(row["num_heads"])
    tp, pp = int(row["tp"]), int(row["pp"])
    return load_run({
        "name": row["model"],
        "model": {
            "name": row["model"], "num_layers": int(row["num_layers"]), "hidden_size": hidden_size,
            "num_heads": heads, "num_kv_heads": heads, "head_dim": hidden_size // heads,
            "ffn_hidden_size": 4 * hidden_size, "vocab_size": VOCAB_SIZE,
            "max_position_embeddings": SEQ_LEN, "norm": "layernorm", "activation": "gelu",
            "positions": "learned", "qkv_projection": "fused", "bias": True, "tie_embeddings": True,
            "dropout": 0.1, "attention_dropout": 0.1, "embedding_dropout": 0.1},
        "training": {
            "seq_len": SEQ_LEN, "micro_batch_size": int(row["micro_batch_size"]),
            "global_batch_size": int(row["global_batch_size"]), "precision": "bf16-master",
            "optimizer": "adam", "attention": "eager", "loss": "cross_entropy",
            "recompute": "selective" if parallel_sequence else "none"},
        "parallel": {
            "dp": 1, "tp": tp, "pp": pp, "vpp": int(row["vpp"]), "framework": "megatron",
            "sequence_parallel": parallel_sequence,
            "megatron": {"transformer_impl": "local", "params_dtype": "float16",
                         "accumulate_allreduce_grads_in_fp32": True}},
        "cluster": {"gpu": "a100-80gb-sxm", "gpus": tp * pp, "gpus_per_node": 8}})


def kept_by_layers(chunk: ChunkWalk) -> int:
    """Bytes that the layers of a chunk keep of a micro-batch, the first one's input included."""
    return sum(int(entry.nbytes) for entry in chunk.live_held(FORWARD, 1)
               if "block: " in entry.name or entry.name.endswith(INPUTS))


def layers_of(finder: MegatronStage, run: Run) -> tuple[int, int]:
    """(states, activations) in bytes of the layers alone, at the most micro-batches in flight."""
    elements = sum(int(w.numel) * count for w, count in finder.counted if w.name not in OUTSIDE)
    kept = [kept_by_layers(chunk) for chunk in finder.chunks]
    most = max(sum(n * kept[c] for c, n in forwarded.items()) + kept[step.chunk]
               for step, forwarded, _ in in_flight(stage_order(run, 0)))
    return BYTES_PER_PARAMETER * elements, most


def cells(row: dict[str, str]) -> Iterator[dict[str, Any]]:
    """States, activations, activations with sequence parallelism and selective recompute."""
    for column, parallel_sequence in (("activations_gib", False),
                                      ("activations_sequence_selective_gib", True)):
        run = run_of(row, parallel_sequence=parallel_sequence)
        finder = MegatronStage(run, device_of(run), 0)
        peak = finder.find()
        states, activations = layers_of(finder, run)
        if not parallel_sequence:
            whole = sum(int(s.nbytes) for s in peak.states if s.category in STATES)
            yield cell(row, "states_gib", states, whole)
        yield cell(row, column, activations, int(peak.category_bytes("activations")))


def cell(row: dict[str, str], column: str, layers_bytes: int, peak_bytes: int) -> dict[str, Any]:
    published = float(row[column])
    return {"model": row["model"], "what": column.removesuffix("_gib"), "published_gib": published,
            "layers_bytes": layers_bytes, "layers_gib": round(layers_bytes / GIB, 4),
            "layers_error_percent": round(100 * (layers_bytes / GIB / published - 1), 3),
            "peak_gib": round(peak_bytes / GIB, 4),
            "peak_error_percent": round(100 * (peak_bytes / GIB / published - 1), 2)}


def results() -> list[dict[str, Any]]:
    """Twelve cells."""
    with FILE.open(newline="") as lines:
        return [found for row in csv.DictReader(lines) for found in cells(row)]


def main() -> int:
    found = results()
    for one in found:
        print(f"{one['model']:5} {one['what']:30} {one['published_gib']:9.4f} layers {one['layers_gib']:9.4f} "
              f"({one['layers_error_percent']:+.3f} %) peak {one['peak_gib']:9.4f} "
              f"({one['peak_error_percent']:+.2f} %)")
    return written_or_checked(HERE / "korthikanti.json", found)


if __name__ == "__main__":
    sys.exit(main())
