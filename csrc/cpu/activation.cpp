// bias + GELU and SwiGLU: plain loops.
#include <algorithm>
#include "scalar.h"

namespace cpu {
namespace {

constexpr double kSqrt2 = 1.41421356237309504880;
constexpr double kSqrt2Pi = 2.50662827463100050242;

// The value and the slope of GELU at v.
template <class W>
struct Gelu {
  W value, slope;
};
template <class W>
Gelu<W> gelu(W v, bool tanh_approximation) {
  if (!tanh_approximation) {
    const W cdf = std::erfc(-v / W(kSqrt2)) / 2;
    return {v * cdf, cdf + v * std::exp(-v * v / 2) / W(kSqrt2Pi)};
  }
  const W beta = W(2 / kSqrt2Pi), kappa = W(0.044715);
  const W t = std::tanh(beta * (v + kappa * v * v * v));
  return {v * (1 + t) / 2, (1 + t) / 2 + v * (1 - t * t) / 2 * beta * (1 + 3 * kappa * v * v)};
}

template <class T>
void bias_gelu_forward(const gpuledger::BiasGeluForward& a) {
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      wide_t<T> v = to_wide(in<T>(a.x)[r * a.cols + c]);
      if (a.bias) v += to_wide(in<T>(a.bias)[c]);
      assign(out<T>(a.y)[r * a.cols + c], gelu(v, a.tanh_approximation).value);
    }
}

template <class T>
void bias_gelu_backward(const gpuledger::BiasGeluBackward& a) {
  using W = wide_t<T>;
  const int64_t parts = a.num_partials;
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t p = 0; p < parts; ++p) {
    W* sums = a.dbias ? out<W>(a.partials) + p * a.cols : nullptr;
    if (sums) std::fill(sums, sums + a.cols, W(0));
    for (int64_t r = a.rows * p / parts; r < a.rows * (p + 1) / parts; ++r)
      for (int64_t c = 0; c < a.cols; ++c) {
        W v = to_wide(in<T>(a.x)[r * a.cols + c]);
        if (a.bias) v += to_wide(in<T>(a.bias)[c]);
        const W dx = to_wide(in<T>(a.dy)[r * a.cols + c]) * gelu(v, a.tanh_approximation).slope;
        assign(out<T>(a.dx)[r * a.cols + c], dx);
        if (sums) sums[c] += dx;
      }
  }
  for (int64_t c = 0; a.dbias && c < a.cols; ++c) {
    W sum = 0;
    for (int64_t p = 0; p < parts; ++p) sum += in<W>(a.partials)[p * a.cols + c];
    assign(out<T>(a.dbias)[c], sum);
  }
}

template <class T>
void swiglu_forward(const gpuledger::SwigluForward& a) {
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      const auto v = to_wide(in<T>(a.gate)[r * a.gate_stride + c]);
      const auto silu = v / (1 + std::exp(-v));
      assign(out<T>(a.y)[r * a.y_stride + c], silu * to_wide(in<T>(a.up)[r * a.up_stride + c]));
    }
}

template <class T>
void swiglu_backward(const gpuledger::SwigluBackward& a) {
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) {
      const auto v = to_wide(in<T>(a.gate)[r * a.gate_stride + c]);
      const auto u = to_wide(in<T>(a.up)[r * a.up_stride + c]);
      const auto g = to_wide(in<T>(a.dy)[r * a.dy_stride + c]);
      const auto sigmoid = 1 / (1 + std::exp(-v));
      assign(out<T>(a.dgate)[r * a.dgate_stride + c], g * u * sigmoid * (1 + v * (1 - sigmoid)));
      assign(out<T>(a.dup)[r * a.dup_stride + c], g * v * sigmoid);
    }
}

}  // namespace
}  // namespace cpu

int gpuledger_cpu_bias_gelu_forward(const gpuledger::BiasGeluForward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::bias_gelu_forward<decltype(t)>(*a); });
}
int gpuledger_cpu_bias_gelu_backward(const gpuledger::BiasGeluBackward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::bias_gelu_backward<decltype(t)>(*a); });
}
int gpuledger_cpu_swiglu_forward(const gpuledger::SwigluForward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::swiglu_forward<decltype(t)>(*a); });
}
int gpuledger_cpu_swiglu_backward(const gpuledger::SwigluBackward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::swiglu_backward<decltype(t)>(*a); });
}
