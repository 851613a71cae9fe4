"""What step time depends on: the decoder's sizes, the layout, the device and the software.

All are plain records of numbers, so a field may also be a NumPy array (the planner's many layouts).
Seconds, bytes, FLOPs, and bytes or FLOPs per second.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...config.efficiency import Nccl
from .arithmetic import Number, maximum, minimum, where


@dataclass(frozen=True)
class Decoder:
    """Sizes of the whole, unsharded model, and the length of one sequence in tokens."""

    num_layers: Number
    hidden_size: Number
    num_heads: Number
    num_kv_heads: Number
    head_dim: Number
    ffn_hidden_size: Number
    vocab_size: Number
    seq_len: Number
    gated: bool = False
    rotary: bool = False
    window: Number | None = None
    """Keys that a query of a windowed layer sees at most."""
    windowed_share: float = 0.0
    """Share of the layers that are windowed."""
    tied_embeddings: bool = True
    """Embedding and head are one matrix."""

    @property
    def layer_weights(self) -> Number:
        """Elements of one layer's matrices; norms and biases move too little to matter."""
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        matrices = 3 if self.gated else 2
        return (
            self.hidden_size * (2 * q + 2 * kv) + matrices * self.hidden_size * self.ffn_hidden_size
        )

    @property
    def embedding_weights(self) -> Number:
        """Elements of the embedding, and of the head."""
        return self.vocab_size * self.hidden_size

    def vocabulary_weights(self, pp: Number) -> Number:
        """Elements of embedding and head on a stage that has them: one matrix, or two where they
        are not tied and share the only stage."""
        matrices = 1.0 if self.tied_embeddings else where(pp > 1, 1.0, 2.0)
        return matrices * self.embedding_weights

    @property
    def causal_pairs(self) -> Number:
        """Pairs of query and key that a kernel which skips masked blocks computes: s^2 / 2, or
        w s - w^2 / 2 under a window of w; the mean over the layers."""
        s = self.seq_len
        full = 0.5 * s * s
        if self.window is None:
            return full
        w = minimum(self.window, s)
        return (1 - self.windowed_share) * full + self.windowed_share * (w * s - 0.5 * w * w)


@dataclass(frozen=True)
class Layout:
    """How a step is divided over GPUs. Recompute is given as shares of the layers."""

    gpus: Number
    global_batch_size: Number
    micro_batch_size: Number
    tp: Number = 1
    pp: Number = 1
    vpp: Number = 1
    cp: Number = 1
    zero_stage: Number = 0
    sequence_parallel: Number = 0
    recompute_layers: Number = 0.0
    """Share of the layers whose whole forward pass is run again."""
    recompute_core: Number = 0.0
    """Share of the layers whose attention core is run again (only where it is unfused)."""
    recompute_operators: Number = 0.0
    """Share of the layers that run every second product and all pointwise operators again."""
    gpus_per_node: int = 8
    shard_group: Number | None = None
    """ZeRO over this many ranks, replicated over the others (HSDP); None: over all of dp."""
    schedule: str = "interleaved"
    """A key of `pipeline.SCHEDULES`; interleaved is 1F1B where vpp is 1."""

    @property
    def dp(self) -> Number:
        """Data-parallel ranks."""
        return self.gpus / (self.tp * self.pp * self.cp)

    @property
    def num_microbatches(self) -> Number:
        """Forward and backward passes of one rank in one step."""
        return self.global_batch_size / (self.dp * self.micro_batch_size)

    @property
    def zero_group(self) -> Number:
        """Ranks over which ZeRO divides: data and context parallel, or the group given."""
        ranks = self.dp * self.cp
        return ranks if self.shard_group is None else minimum(self.shard_group, ranks)

    @property
    def sequence_shard(self) -> Number:
        """Ways in which norms and residuals are split: tp under sequence parallelism, else 1."""
        return maximum(self.sequence_parallel * self.tp, 1)


@dataclass(frozen=True)
class Product:
    """Matrix products in one datatype: the dense peak, the best that was ever measured, and the
    bytes of an operand's element."""

    dense_peak_flops_per_second: float
    best_flops_per_second: float
    operand_bytes: int = 2


@dataclass(frozen=True)
class AttentionRate:
    """A fused attention kernel's ceiling over the dense peak at head_dim 128, by pass."""

    forward: float
    backward: float


@dataclass(frozen=True)
class Device:
    """One GPU and its links, with the efficiency curves of its architecture."""

    num_sms: int
    bandwidth_bytes_per_second: float
    link_bytes_per_second: float
    """One direction, to all peers of the node."""
    network_bytes_per_second: float
    """One direction, per GPU."""
    products: Product
    head_products: Product
    """The head stays in 16 bit under fp8."""
    attention: AttentionRate
    nccl: Nccl
    sustained_share: Number = 0.96
    tile_seconds: Number = 4.6e-6
    wave_quantisation: Number = 0.70
    bandwidth_share: float = 0.90
    kernel_seconds: float = 3e-6
    attention_half_length: float = 120.0
    link_share: float = 0.70
    network_share: float = 0.80
    overlap_cost: float = 0.15


@dataclass(frozen=True)
class Traffic:
    """Bytes that a part's pointwise kernels move, and kernels that its host enqueues (products and
    attention included), of one micro-batch on one rank."""

    forward_bytes: Number
    backward_bytes: Number
    forward_kernels: Number
    backward_kernels: Number


@dataclass(frozen=True)
class Counted:
    """Traffic of one layer and of the head, counted from the step program (see counted.py)."""

    layer: Traffic
    head: Traffic
    head_reruns: bool
    """The loss runs the head's product a second time (chunks under a checkpoint)."""


@dataclass(frozen=True)
class Software:
    """What a framework runs, counted from its list of operators. Bytes are device traffic."""

    name: str
    fused_attention: bool
    dropout: bool
    host_seconds: float
    """CPU time to enqueue one kernel; the only number here that a machine has to be asked for."""
    forward_kernels: float
    backward_kernels: float
    norm_bytes: float
    """Per element of a norm's input, forward."""
    weight_cast_bytes: float
    """Per weight and forward pass: autocast reads fp32 and writes 16 bit."""
    logit_bytes: float
    """Per logit, forward and backward, beside the product."""
    accumulate_bytes: float
    """Per parameter and micro-batch after the first: grad += new."""
    optimizer_bytes: float
    """Per parameter that a rank updates."""
    gradient_bytes: float
    """Per parameter in the reduction over data-parallel ranks."""
    overlaps_data_parallel: bool
    overlaps_pipeline_sends: bool
    scatters_sends: bool
    """Pipeline sends carry 1/tp of the activation also without sequence parallelism."""
    overlaps_weight_gather: bool = False
    """ZeRO 1 and 2 gather the updated weights beside the next step's first forward pass."""
    reduces_whole_gradients: bool = False
    """ZeRO 1 and 2 all-reduce gradients, of which each rank then uses its part."""
    fused_softmax: bool = False
    """Unfused attention runs Megatron's kernel for scale, mask and softmax where its size allows."""
    root_holds_head: bool = False
    """ZeRO-3 gathers the head with the embedding, before the first layer (FSDP1's root)."""
    stops_recompute_early: bool = False
    """A recomputed block's last product is not run again, since nothing is saved after it."""
    fp8: bool = False
    counted: Counted | None = None
    """Where it is given it takes the place of all bytes and kernels per layer and logit above."""

    @property
    def layer_kernels(self) -> tuple[Number, Number]:
        """Kernels that one layer's forward and backward enqueue."""
        if self.counted is None:
            return self.forward_kernels, self.backward_kernels
        return self.counted.layer.forward_kernels, self.counted.layer.backward_kernels
