// The C ABI between the kernels and whatever binds them. No torch, no CUDA header.
//
// Every entry point exists three times, under one prefix per implementation:
//   gpuledger_cuda_*   kernels/*.cu compiled by nvcc
//   gpuledger_host_*   the same files compiled by g++ with compat/cuda_on_host.h (tests)
//   gpuledger_cpu_*    cpu/*.cpp, plain loops written independently
//
// Pointers are contiguous memory of `dtype` unless a stride says otherwise. "Accumulator" arrays
// are float, or double where dtype is F64. Counts, strides and indices are in elements and 64 bits
// wide. `stream` is a cudaStream_t and ignored on the CPU.
//
// An entry point returns 0, a positive cudaError_t, or one of the negative codes below.
#pragma once
#include <stdint.h>

namespace gpuledger {

enum Dtype : int { F32 = 0, BF16 = 1, F16 = 2, F64 = 3 };
enum Status : int { kOk = 0, kUnsupportedDtype = -1, kHostRunFailed = -2 };

// h = x + residual (residual may be null: then h is x and not written)
// y = (h - mean) * rstd * weight + bias; rms_norm has no mean and no bias.
struct NormForward {
  int dtype;
  int weight_dtype;  // dtype of weight and bias: dtype, or F32 beside a 16-bit dtype
  const void* x;     // [rows, cols]
  const void* residual;
  const void* weight;  // [cols]
  const void* bias;    // [cols] or null
  void* y;
  void* h;
  void* mean;  // accumulator [rows]; unused by rms_norm
  void* rstd;  // accumulator [rows]
  int64_t rows, cols;
  double eps;
};

// dx is the gradient of h, dh (or null) the part of it that arrives through h itself.
struct NormBackward {
  int dtype;
  int weight_dtype;
  const void* dy;
  const void* dh;
  const void* h;
  const void* weight;
  const void* mean;
  const void* rstd;
  void* dx;
  void* dweight;
  void* dbias;     // null: not wanted
  void* partials;  // accumulator [dbias ? 2 : 1, num_partials, cols]
  int64_t num_partials;
  int64_t rows, cols;
};

// y = gelu(x + bias); bias may be null.
struct BiasGeluForward {
  int dtype;
  int tanh_approximation;
  const void* x;     // [rows, cols]
  const void* bias;  // [cols]
  void* y;
  int64_t rows, cols;
};
struct BiasGeluBackward {
  int dtype;
  int tanh_approximation;
  const void* dy;
  const void* x;
  const void* bias;
  void* dx;
  void* dbias;     // null where bias is
  void* partials;  // accumulator [num_partials, cols]
  int64_t num_partials;
  int64_t rows, cols;
};

// y = silu(gate) * up. Row strides let gate and up be the halves of one matmul's output.
struct SwigluForward {
  int dtype;
  const void* gate;
  const void* up;
  void* y;
  int64_t rows, cols;
  int64_t gate_stride, up_stride, y_stride;
};
struct SwigluBackward {
  int dtype;
  const void* dy;
  const void* gate;
  const void* up;
  void* dgate;
  void* dup;
  int64_t rows, cols;
  int64_t dy_stride, gate_stride, up_stride, dgate_stride, dup_stride;
};

// count[0] = how many targets differ from ignore_index.
struct CountTargets {
  const int64_t* target;
  int64_t* count;
  int64_t rows, ignore_index;
};
// losses[r] = logsumexp(logits[r]) - logits[r, target[r]]; 0 where the target is ignored, NaN where
// it lies outside [0, cols). With write_gradient, logits become (softmax - onehot) / count (count
// null: 1).
struct CrossEntropyRows {
  int dtype;
  int write_gradient;
  void* logits;
  const int64_t* target;
  const int64_t* count;
  void* losses;  // accumulator [rows]
  int64_t rows, cols, row_stride;
  int64_t ignore_index;
};
// loss[0] = sum(losses) / count, summed in a fixed order.
struct MeanLoss {
  int dtype;  // F32 or F64: that of losses and loss
  const void* losses;
  const int64_t* count;
  void* loss;
  int64_t rows;
};
// x *= factor[0] / count[0]; returns at once where that is 1. count may be null.
struct ScaleInPlace {
  int dtype;
  void* x;
  const void* factor;  // accumulator [1]
  const int64_t* count;
  int64_t numel;
};

// Rotates pairs of x by the angles of the tables; y may be x. Dims beyond 2 * pairs are copied.
struct Rotary {
  int dtype;
  int interleaved;  // pairs are (2i, 2i + 1) instead of (i, i + pairs)
  int conjugate;    // rotate by minus the angle: the backward pass
  const void* x;    // [batch, seq, heads, head_dim], any strides but the last, which is 1
  void* y;
  const void* cosine;  // accumulator [>= seq, pairs]
  const void* sine;
  int64_t batch, seq, heads, head_dim, pairs;
  int64_t x_strides[3], y_strides[3];  // batch, seq, heads
};

// y[i] = x[i] * (Philox4x32-10(counter = i / 4, key = seed)[i % 4] >= p * 2^32 ? 1 / (1 - p) : 0)
struct Dropout {
  int dtype;
  const void* x;
  void* y;
  int64_t numel;
  double probability;
  uint64_t seed;
};

// One step of AdamW with decoupled weight decay over a list of tensors.
struct AdamW {
  int dtype;        // of params and grads
  int state_dtype;  // dtype, or F32 beside a 16-bit dtype
  int64_t num_tensors;
  void* const* params;
  const void* const* grads;
  void* const* exp_avgs;
  void* const* exp_avg_sqs;
  const int64_t* numels;
  double learning_rate, beta1, beta2, eps, weight_decay;
  int64_t step;  // 1 for the first
};

}  // namespace gpuledger

#pragma GCC visibility push(default)
#define GPULEDGER_DECLARE_KERNELS(PREFIX)                                           \
  extern "C" {                                                                      \
  int PREFIX##rms_norm_forward(const gpuledger::NormForward*, void* stream);        \
  int PREFIX##rms_norm_backward(const gpuledger::NormBackward*, void* stream);      \
  int PREFIX##layer_norm_forward(const gpuledger::NormForward*, void* stream);      \
  int PREFIX##layer_norm_backward(const gpuledger::NormBackward*, void* stream);    \
  int PREFIX##bias_gelu_forward(const gpuledger::BiasGeluForward*, void* stream);   \
  int PREFIX##bias_gelu_backward(const gpuledger::BiasGeluBackward*, void* stream); \
  int PREFIX##swiglu_forward(const gpuledger::SwigluForward*, void* stream);        \
  int PREFIX##swiglu_backward(const gpuledger::SwigluBackward*, void* stream);      \
  int PREFIX##count_targets(const gpuledger::CountTargets*, void* stream);          \
  int PREFIX##cross_entropy_rows(const gpuledger::CrossEntropyRows*, void* stream); \
  int PREFIX##mean_loss(const gpuledger::MeanLoss*, void* stream);                  \
  int PREFIX##scale_in_place(const gpuledger::ScaleInPlace*, void* stream);         \
  int PREFIX##rotary(const gpuledger::Rotary*, void* stream);                       \
  int PREFIX##dropout(const gpuledger::Dropout*, void* stream);                     \
  int PREFIX##adamw(const gpuledger::AdamW*, void* stream);                         \
  }
GPULEDGER_DECLARE_KERNELS(gpuledger_cuda_)
GPULEDGER_DECLARE_KERNELS(gpuledger_host_)
GPULEDGER_DECLARE_KERNELS(gpuledger_cpu_)
#pragma GCC visibility pop
