"""Token embedding, its scale, learned positions, its norm and its dropout."""
from __future__ import annotations

from gpuledger.config.model import Model
from gpuledger.config.training import Training

from . import fused_kernels
from . import operators as op
from .local import Local
from .norm import NormWeights, norm
from .program import Tape
from .tensor import Tensor
from .tensor_parallel import vocabulary_embedding


def embedding(tape: Tape, model: Model, training: Training, local: Local) -> tuple[Tensor, Tensor]:
    """Tokens (b, s) -> (b, s, h), and the token weight (v, h), which the head may share."""
    h, b, s = model.hidden_size, local.micro_batch_size, local.residual_seq_len
    token_weight = tape.weight("token.weight", local.vocab_size, h)
    with tape.part("embedding"):
        x = vocabulary_embedding(tape, local, token_weight, (b, local.seq_len), model.vocab_size)
        if model.embedding_scale:
            x = op.elementwise(tape, "scaled token", x)
        if model.positions == "learned":
            rows = model.max_position_embeddings + model.learned_position_offset
            table = tape.weight("position.weight", rows, h)
            table.replicated = tape.dtensors
            if tape.divided_tokens:
                tape.partial_gradients.add(table)
            position = op.embedding(tape, "position", table, (s,))
            # the temporary dies before the rebound x
            x = op.add(tape, "token + position", position, x)
        if model.embedding_norm:
            x = norm(tape, NormWeights.of(tape, "embedding norm", model, training), x)
        if model.embedding_dropout:
            x = fused_kernels.dropout(tape, "embedding dropout", x)
        return x, token_weight
