"""The program of one micro-batch of a pipeline stage of Megatron-LM."""

from __future__ import annotations

from gpuledger.config.run import Run
from gpuledger.config.training import Training

from ..device import Device
from ..local import Local
from ..model import Program, Stage
from ..precision import PRECISIONS
from ..program import Tape
from ..tensor import Tensor
from .linears import Layout
from .model import embedding, head, layer


def build_megatron(run: Run, device: Device, stage: Stage, num_layers: int | None = None) -> Program:
    """As `program.model.build`, of Megatron's modules.

    num_layers overrides the stage's (see memory/layers.py).
    """
    model, training = run.model, run.training
    options, local = run.parallel.megatron, Local.of_rank(model, training, run.parallel)
    tape = Tape(PRECISIONS[training.precision], device)
    layout = Layout(model, local, options)
    tape.tables = rotary_tables(layout)
    token_weight: Tensor | None = None
    received: Tensor | None = None
    if stage.embedding:
        x, token_weight = embedding(tape, layout)
    else:
        x = received = Tensor("received activation", (layout.stream_tokens, model.hidden_size),
                              tape.precision.weight_dtype)
    x = layers(tape, layout, training, stage.num_layers if num_layers is None else num_layers, x)
    weights = tape.weights
    if not stage.head:
        batch = batch_of(run) if stage.embedding else ()
        return Program(tape.root, x, None, tuple(weights), tape, None, received, True, batch)
    tied = token_weight if model.tie_embeddings else None
    loss = head(tape, layout, x, tied)
    return Program(tape.root, loss, None, tuple(weights), tape, None, received, False, batch_of(run))


def layers(tape: Tape, layout: Layout, training: Training, count: int, x: Tensor) -> Tensor:
    """The chunk's layers; with full recompute in checkpoints of recompute_num_layers each (uniform), or of
    one each, the first recompute_num_layers of them (block). [M18]

    Ref: Megatron-LM megatron/core/transformer/transformer_block.py (_checkpointed_forward).
    """
    options, full = layout.options, training.recompute == "full"
    group = options.recompute_num_layers if full and options.recompute_method == "uniform" else 1
    last = options.recompute_num_layers if full and options.recompute_method == "block" else count
    if group == 1:
        for number in range(count):
            x = layer(tape, layout, training, number, x, checkpoint=full and number < last)
        return x
    for first in range(0, count, group):
        with tape.part(f"blocks from {first}", x, checkpoint=True):
            for number in range(first, min(first + group, count)):
                x = layer(tape, layout, training, number, x, checkpoint=False)
    return x


def rotary_tables(layout: Layout) -> tuple[Tensor, ...]:
    """A chunk's inverse frequencies, and the angles of its positions, which it forms once and keeps. [M22]

    Ref: Megatron-LM megatron/core/models/common/embeddings/rotary_pos_embedding.py.
    """
    model = layout.model
    if model.positions != "rotary":
        return ()
    width = model.rotary_dim or model.head_dim
    return (Tensor("inverse frequencies", (width // 2,), "float32", "table"),
            Tensor("rotary angles", (layout.local.seq_len, width), "float32", "table"))


def batch_of(run: Run) -> tuple[Tensor, ...]:
    """What a stage with embedding or head gets of a micro-batch: labels and loss mask; tokens and
    positions too where the rank reads the data itself; the attention mask, one byte a pair. [M15]

    Ref: Megatron-LM megatron/training/utils.py (get_batch_on_this_tp_rank).
    """
    b, s = run.training.micro_batch_size, run.training.seq_len
    options, axes = run.parallel.megatron, run.parallel
    made = [Tensor("labels", (b, s), "int64", "table"), Tensor("loss mask", (b, s), "float32", "table")]
    if axes.pp == 1 or (axes.tp == 1 and not options.keeps_batches):
        made += [Tensor(name, (b, s), "int64", "table") for name in ("tokens", "position ids")]
    if options.attention_mask_in_dataloader:
        made.append(Tensor("attention mask", (b, s, s), "bool", "table"))
    return tuple(made)
