// RMSNorm and LayerNorm with a residual add in front: plain loops, one row at a time.
#include <algorithm>
#include "scalar.h"

namespace cpu {
namespace {
using gpuledger::NormBackward;
using gpuledger::NormForward;

template <class T>
void norm_forward(const NormForward& a, bool center) {
  using W = wide_t<T>;
  const bool wide = a.weight_dtype != a.dtype;
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* h = in<T>(a.x) + r * a.cols;
    if (a.residual) {
      const T* residual = in<T>(a.residual) + r * a.cols;
      T* sum = out<T>(a.h) + r * a.cols;
      for (int64_t c = 0; c < a.cols; ++c) assign(sum[c], to_wide(h[c]) + to_wide(residual[c]));
      h = sum;
    }
    W mean = 0, square = 0;
    if (center) {
#pragma omp simd reduction(+ : mean)
      for (int64_t c = 0; c < a.cols; ++c) mean += to_wide(h[c]);
      mean /= W(a.cols);
      out<W>(a.mean)[r] = mean;
    }
#pragma omp simd reduction(+ : square)
    for (int64_t c = 0; c < a.cols; ++c) {
      const W v = to_wide(h[c]) - mean;
      square += v * v;
    }
    const W rstd = W(1) / std::sqrt(square / W(a.cols) + W(a.eps));
    out<W>(a.rstd)[r] = rstd;
    T* y = out<T>(a.y) + r * a.cols;
    for (int64_t c = 0; c < a.cols; ++c) {
      W v = (to_wide(h[c]) - mean) * rstd * parameter<T>(a.weight, wide, c);
      if (center && a.bias) v += parameter<T>(a.bias, wide, c);
      assign(y[c], v);
    }
  }
}

template <class T>
void norm_backward_row(const NormBackward& a, bool center, int64_t r, wide_t<T>* dw,
                       wide_t<T>* db) {
  using W = wide_t<T>;
  const bool wide = a.weight_dtype != a.dtype;
  const T* dy = in<T>(a.dy) + r * a.cols;
  const T* h = in<T>(a.h) + r * a.cols;
  const W rstd = in<W>(a.rstd)[r], mean = center ? in<W>(a.mean)[r] : W(0);
  W mean_g = 0, mean_gn = 0;
#pragma omp simd reduction(+ : mean_g, mean_gn)
  for (int64_t c = 0; c < a.cols; ++c) {
    const W g = to_wide(dy[c]) * parameter<T>(a.weight, wide, c);
    mean_g += g;
    mean_gn += g * (to_wide(h[c]) - mean) * rstd;
  }
  mean_g = center ? mean_g / W(a.cols) : W(0);
  mean_gn /= W(a.cols);
  for (int64_t c = 0; c < a.cols; ++c) {
    const W g = to_wide(dy[c]), n = (to_wide(h[c]) - mean) * rstd;
    W dx = (g * parameter<T>(a.weight, wide, c) - mean_g - n * mean_gn) * rstd;
    if (a.dh) dx += to_wide(in<T>(a.dh)[r * a.cols + c]);
    assign(out<T>(a.dx)[r * a.cols + c], dx);
    dw[c] += g * n;
    if (db) db[c] += g;
  }
}

// Rows are cut into num_partials fixed ranges, so the sums do not depend on the number of threads.
template <class T>
void norm_backward(const NormBackward& a, bool center) {
  using W = wide_t<T>;
  const int64_t parts = a.num_partials;
  W* const dw_parts = out<W>(a.partials);
  W* const db_parts = center && a.dbias ? dw_parts + parts * a.cols : nullptr;
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t p = 0; p < parts; ++p) {
    W* dw = dw_parts + p * a.cols;
    W* db = db_parts ? db_parts + p * a.cols : nullptr;
    std::fill(dw, dw + a.cols, W(0));
    if (db) std::fill(db, db + a.cols, W(0));
    for (int64_t r = a.rows * p / parts; r < a.rows * (p + 1) / parts; ++r)
      norm_backward_row<T>(a, center, r, dw, db);
  }
  const bool wide = a.weight_dtype != a.dtype;
  for (int64_t c = 0; c < a.cols; ++c) {
    W dw = 0, db = 0;
    for (int64_t p = 0; p < parts; ++p) dw += dw_parts[p * a.cols + c];
    set_parameter<T>(a.dweight, wide, c, dw);
    if (!db_parts) continue;
    for (int64_t p = 0; p < parts; ++p) db += db_parts[p * a.cols + c];
    set_parameter<T>(a.dbias, wide, c, db);
  }
}

}  // namespace
}  // namespace cpu

int gpuledger_cpu_rms_norm_forward(const gpuledger::NormForward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::norm_forward<decltype(t)>(*a, false); });
}
int gpuledger_cpu_rms_norm_backward(const gpuledger::NormBackward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::norm_backward<decltype(t)>(*a, false); });
}
int gpuledger_cpu_layer_norm_forward(const gpuledger::NormForward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::norm_forward<decltype(t)>(*a, true); });
}
int gpuledger_cpu_layer_norm_backward(const gpuledger::NormBackward* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::norm_backward<decltype(t)>(*a, true); });
}
