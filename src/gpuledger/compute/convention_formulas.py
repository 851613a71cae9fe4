"""One function per convention: the FLOPs that a framework or paper counts for one sequence.

Letters as in the papers: L layers, h hidden size, a heads, d head dimension, q = a d, kv = a_kv d,
f width of the MLP, V vocabulary, s tokens, w window, N parameters. A convention is carried over to
models that its framework does not have by counting the matrices which the model has. Where a
framework takes h for q it is kept: that is what its users divide by.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from ..config.model import Model
from .parameters import ParameterCounts
from .sequence_flops import FORWARD_AND_BACKWARD, SequenceFlops, full_layers

Formula = Callable[[Model, ParameterCounts, int], SequenceFlops]


@dataclass(frozen=True)
class Convention:
    """A way to count model FLOPs, and where it comes from."""

    name: str
    source: str
    """Repository, file and function, or paper and section."""
    formula: str
    """Per token, forward and backward, in paper letters."""
    attention: str
    """How it counts the attention core."""
    vocabulary: str
    """What it counts outside the blocks."""
    flops: Formula


CONVENTIONS: dict[str, Convention] = {}
"""Every convention by its name, in the order in which tables list them."""


def convention(source: str, formula: str, attention: str, vocabulary: str
               ) -> Callable[[Formula], Formula]:
    """Register a formula under its function's name."""
    def register(function: Formula) -> Formula:
        name = function.__name__
        CONVENTIONS[name] = Convention(name, source, formula, attention, vocabulary, function)
        return function
    return register


# ---- pairs of query and key that one head of one layer multiplies --------------------------------

def exact_pairs(seq_len: int, window: int) -> int:
    """Pairs under a causal mask: query i sees min(i + 1, window) keys. [F2]"""
    s, w = seq_len, min(seq_len, window)
    return w * (w + 1) // 2 + (s - w) * w


def window_of(model: Model, seq_len: int) -> int:
    """Keys that a query of a windowed layer sees at most, never more than the sequence has."""
    return min(seq_len, model.sliding_window or seq_len)


# ---- the two ways to count weights ---------------------------------------------------------------

def count_matrices(model: Model, counts: ParameterCounts, seq_len: int,
                   core: int, windowed_core: int) -> SequenceFlops:
    """6 FLOPs per token and element of a matrix: the blocks' and the head's. [F3]

    (s, m) x (m, n) costs 2 s m n forward and twice that backward. Norms, biases and activations
    multiply no matrix, and looking up an embedding multiplies nothing.
    """
    s, h, V = seq_len, model.hidden_size, model.vocab_size
    return SequenceFlops(
        seq_len=s,
        num_layers=model.num_layers, full_layers=full_layers(model),
        block=6 * s * counts.block.matrices, core=core, windowed_core=windowed_core,
        vocabulary=6 * s * h * V)


def count_parameters(model: Model, counts: ParameterCounts, seq_len: int,
                     cores: tuple[int, int], *, but: int = 0,
                     core_passes: Fraction = FORWARD_AND_BACKWARD) -> SequenceFlops:
    """6 FLOPs per token and parameter, all of them `but` so many outside the blocks. [F4]"""
    s = seq_len
    outside = counts.total - counts.blocks - but
    return SequenceFlops(
        seq_len=s, num_layers=model.num_layers, full_layers=full_layers(model),
        block=6 * s * counts.block.total, core=cores[0], windowed_core=cores[1],
        vocabulary=6 * s * outside, core_passes=core_passes)


# ---- conventions ---------------------------------------------------------------------------------

@convention("Megatron-LM, megatron/training/training.py: num_floating_point_operations; windows as "
            "Megatron-Bridge, training/utils/flop_utils.py: num_floating_point_operations",
            "6 L (h (2q + 2kv) + g h f) + 6 L q s + 6 h V",
            "half the square; windowed layers exactly", "head")
def megatron(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Matrices, half the square of attention, the head. The default. [F5]

    Counts no norm, bias, activation, embedding or recompute. Megatron takes the vocabulary padded
    to a multiple of 128 tp; here it is the model's `vocab_size` as it stands. Megatron-LM counts a
    windowed layer as a full one; Megatron-Bridge counts its pairs, and so does this.
    NeMo's and MaxText's (since July 2025) counts of these models are the same.
    """
    q, s, w = model.num_heads * model.head_dim, seq_len, window_of(model, seq_len)
    half_square = 6 * q * s * s
    windowed = 12 * q * exact_pairs(s, w) if w < s else half_square
    return count_matrices(model, counts, s, half_square, windowed)


@convention("causal mask, no approximation",
            "6 L (h (2q + 2kv) + g h f) + 6 L q (s + 1) + 6 h V",
            "pairs under the mask, s (s + 1) / 2", "head")
def exact(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Matrices, the pairs that the causal mask leaves, the head. [F6]

    As `megatron`, with the diagonal: query i sees i + 1 keys, or its window.
    """
    q, s = model.num_heads * model.head_dim, seq_len
    return count_matrices(model, counts, s, 12 * q * exact_pairs(s, s),
                          12 * q * exact_pairs(s, window_of(model, s)))


@convention("nanotron, src/nanotron/models/llama.py: get_flops",
            "6 L (h (2q + 2kv) + g h f) + 12 L q s + 6 h V", "full square", "head")
def nanotron(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Matrices, the full square of attention, the head. [F7]

    Also Korthikanti et al. (2205.05198) App. A, 72 B L s h^2 (1 + s/6h + V/12hL), for its models.
    Knows no windows. nanotron has gated MLPs only; here the gate counts where there is one.
    """
    q, s = model.num_heads * model.head_dim, seq_len
    square = 12 * q * s * s
    return count_matrices(model, counts, s, square, square)


@convention("nanochat, nanochat/gpt.py: estimate_flops",
            "6 N_matrices + sum_l 12 q min(s, w_l)", "full square; windows capped", "head")
def nanochat(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Elements of `Linear` modules, attention over min(s, w) keys, the head. [F7]"""
    q, s = model.num_heads * model.head_dim, seq_len
    return count_matrices(model, counts, s, 12 * q * s * s, 12 * q * s * window_of(model, s))


@convention("torchtitan, torchtitan/models/utils.py: get_nparams_and_active_nparams, "
            "quadratic_attention_flops_per_token",
            "6 (N - N_lookup) + sum_l 12 q min(s, w_l)", "full square; windows capped",
            "head, final norm")
def torchtitan(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters but tables that are only looked up, and attention over min(s, w) keys. [F7]

    N_lookup: learned positions, and the token table unless the head shares it. Norms and biases
    count as if they were matrices. OLMo-core (nn/*: num_flops_per_token) counts the same.
    """
    q, s = model.num_heads * model.head_dim, seq_len
    cores = (12 * q * s * s, 12 * q * s * window_of(model, s))
    return count_parameters(model, counts, s, cores, but=counts.lookup_only)


@convention("PaLM (2204.02311) App. B", "6 N + 12 L q s", "full square",
            "everything, embeddings included")
def palm(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters, untied embedding and positions included, and the full square. [F8]"""
    q, s = model.num_heads * model.head_dim, seq_len
    square = 12 * q * s * s
    return count_parameters(model, counts, s, (square, square))


@convention("nanoGPT, model.py: estimate_mfu", "6 (N - N_positions) + 12 L q s", "full square",
            "everything but learned positions")
def nanogpt(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters but learned positions, and the full square. [F8]

    nanoGPT's head is tied; with an untied one its formula counts the embedding too. It divides by
    312e12 FLOP/s whatever the GPU is; here the peak is the GPU's own.
    """
    q, s = model.num_heads * model.head_dim, seq_len
    square = 12 * q * s * s
    return count_parameters(model, counts, s, (square, square), but=counts.position_embedding)


@convention("picotron, picotron/utils.py: get_mfu", "6 N + 12 L h s", "full square, h for q",
            "everything, embeddings included")
def picotron(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters, and the full square over the hidden size. [F8]

    picotron reads s from max_position_embeddings, which it sets to the sequence length.
    """
    h, s = model.hidden_size, seq_len
    square = 12 * h * s * s
    return count_parameters(model, counts, s, (square, square))


@convention("llm-foundry, llmfoundry/models/mpt/modeling_mpt.py: flops_per_batch",
            "6 (N - N_untied_embedding) + 12 L h s", "full square, h for q",
            "head, learned positions, final norm")
def llm_foundry(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters but an untied token table, and the full square over the hidden size. [F8]"""
    h, s = model.hidden_size, seq_len
    square = 12 * h * s * s
    but = 0 if model.tie_embeddings else counts.token_embedding
    return count_parameters(model, counts, s, (square, square), but=but)


@convention("llm.c, train_gpt2.cu: gpt2_estimate_mfu", "6 N + 6 L h s", "half the square, h for q",
            "everything, embeddings included")
def llm_c(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters, and half the square of attention over the hidden size. [F8]"""
    h, s = model.hidden_size, seq_len
    half_square = 6 * h * s * s
    return count_parameters(model, counts, s, (half_square, half_square))


@convention("lingua, apps/main/transformer.py: get_num_flop_per_token",
            "6 (N - V h) + 7 L h s",
            "half the square, h for q, 3.5 passes",
            "all but one (V, h) matrix")
def lingua(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters but the embedding; attention as FlashAttention's benchmark counts it. [F8]

    Forward 4 L s h / 2, backward 2.5 times that: the kernel computes the scores again. With tied
    weights the one (V, h) matrix that is taken off is the head.
    """
    h, s = model.hidden_size, seq_len
    half_square = 7 * h * s * s
    return count_parameters(model, counts, s, (half_square, half_square),
                            but=counts.token_embedding, core_passes=Fraction(7, 2))


@convention("verl, verl/utils/flops_counter.py: _estimate_qwen2_flops (since January 2026)",
            "6 L (h (2q + 2kv) + g h f) + 6 L q s + 12 h V", "half the square",
            "embedding and head")
def verl(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Matrices, half the square of attention, and two (V, h) matrices, tied or not. [F7]

    verl has gated MLPs only here; the gate counts where there is one.
    """
    q, s = model.num_heads * model.head_dim, seq_len
    half_square = 6 * q * s * s
    flops = count_matrices(model, counts, s, half_square, half_square)
    return replace(flops, vocabulary=2 * flops.vocabulary)


@convention("Chinchilla (2203.15556) App. F",
            "6 L (h (2q + 2kv) + g h f) + L (12 q s + 9 a s) + 12 h V",
            "full square, softmax counted", "embedding and head")
def chinchilla(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Matrices, the full square with its softmax, embedding and head as one-hot products. [F9]

    Per sequence, for its models,
    3 (2 s V h + L (6 s h q + 2 s^2 q + 3 a s^2 + 2 s^2 q + 2 s q h + 4 s h f) + 2 s h V).
    The paper's Table A4 follows only without the two vocabulary terms.
    """
    a, q, s = model.num_heads, model.num_heads * model.head_dim, seq_len
    square = 3 * (4 * q + 3 * a) * s * s
    flops = count_matrices(model, counts, s, square, square)
    return replace(flops, vocabulary=2 * flops.vocabulary)


@convention("Kaplan et al. (2001.08361) section 2.1", "6 N_non_embedding + 6 L q s",
            "half the square", "final norm")
def kaplan(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """Parameters without embeddings and head, and attention. [F8]

    The paper counts 2 L s q forward: one product of the two, over the whole sequence. That is also
    both products over half of it.
    """
    q, s = model.num_heads * model.head_dim, seq_len
    half_square = 6 * q * s * s
    but = counts.embedding + counts.head
    return count_parameters(model, counts, s, (half_square, half_square), but=but)


@convention("the rule of thumb C = 6 N D", "6 N", "not counted", "everything, embeddings included")
def six_n(model: Model, counts: ParameterCounts, seq_len: int) -> SequenceFlops:
    """All parameters and no attention. [F8]"""
    return count_parameters(model, counts, seq_len, (0, 0))
