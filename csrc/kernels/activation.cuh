// bias + GELU and SwiGLU, forward and backward, element by element.
//
// Only the inputs are saved: backward recomputes the functions, and a matmul that follows can
// recompute the output (see activation.py).
//   nvcc -std=c++20 -arch=sm_90 -c bias_gelu.cu
#pragma once
#include "column_sums.cuh"
#include "dispatch.cuh"

namespace activation {
using namespace gpu;

constexpr int kThreads = 256;
constexpr int kMaxSlices = 65535;  // gridDim.y

// y = 0.5 v erfc(-v / sqrt 2): no cancellation where v is very negative, unlike 1 + erf.
template <bool TANH, class A>
__device__ __forceinline__ A gelu(A v) {
  if constexpr (TANH) {
    const A inner = A(0.79788456080286535588) * (v + A(0.044715) * v * v * v);  // sqrt(2 / pi)
    return A(0.5) * v * (A(1) + tanh_(inner));
  } else {
    return A(0.5) * v * erfc_(A(-0.70710678118654752440) * v);
  }
}
template <bool TANH, class A>
__device__ __forceinline__ A gelu_slope(A v) {
  if constexpr (TANH) {
    constexpr A kBeta = A(0.79788456080286535588), kKappa = A(0.044715);
    const A t = tanh_(kBeta * (v + kKappa * v * v * v));
    const A inner_slope = kBeta * (A(1) + A(3) * kKappa * v * v);
    return A(0.5) * (A(1) + t) + A(0.5) * v * (A(1) - t * t) * inner_slope;
  } else {
    const A density = A(0.39894228040143267794) * exp_(A(-0.5) * v * v);  // 1 / sqrt(2 pi)
    return A(0.5) * erfc_(A(-0.70710678118654752440) * v) + v * density;
  }
}
template <class A>
__device__ __forceinline__ A sigmoid(A v) {
  return A(1) / (A(1) + exp_(-v));
}

}  // namespace activation
