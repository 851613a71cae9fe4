// Softmax cross-entropy that overwrites the logits with their gradient: plain loops.
#include <algorithm>
#include <limits>
#include "scalar.h"

namespace cpu {
namespace {

// The loss of one row; with a scale, the row becomes scale * (softmax - onehot).
template <class T>
wide_t<T> row_loss(T* row, int64_t cols, int64_t target, const wide_t<T>* scale) {
  using W = wide_t<T>;
  W maximum = -std::numeric_limits<W>::infinity(), sum = 0;
  for (int64_t c = 0; c < cols; ++c) maximum = std::max(maximum, to_wide(row[c]));
  for (int64_t c = 0; c < cols; ++c) sum += std::exp(to_wide(row[c]) - maximum);
  const W loss = std::log(sum) - (to_wide(row[target]) - maximum);
  if (!scale) return loss;
  for (int64_t c = 0; c < cols; ++c) {
    const W onehot = c == target ? W(1) : W(0);
    assign(row[c], (std::exp(to_wide(row[c]) - maximum) / sum - onehot) * *scale);
  }
  return loss;
}

template <class T>
void cross_entropy_rows(const gpuledger::CrossEntropyRows& a) {
  using W = wide_t<T>;
  const W scale = a.count ? W(1) / W(*a.count) : W(1);
#pragma omp parallel for schedule(static) if (a.rows * a.cols > kParallelWork)
  for (int64_t r = 0; r < a.rows; ++r) {
    T* row = out<T>(a.logits) + r * a.row_stride;
    W& loss = out<W>(a.losses)[r];
    const int64_t target = a.target[r];
    const bool ignored = target == a.ignore_index;
    if (!ignored && target >= 0 && target < a.cols) {
      loss = row_loss(row, a.cols, target, a.write_gradient ? &scale : nullptr);
      continue;
    }
    loss = ignored ? W(0) : std::numeric_limits<W>::quiet_NaN();
    for (int64_t c = 0; a.write_gradient && c < a.cols; ++c) assign(row[c], loss);
  }
}

template <class W>
void mean_loss(const gpuledger::MeanLoss& a) {
  double sum = 0;
  for (int64_t r = 0; r < a.rows; ++r) sum += in<W>(a.losses)[r];
  *out<W>(a.loss) = W(a.count ? sum / double(*a.count) : sum);
}

template <class T>
void scale_in_place(const gpuledger::ScaleInPlace& a) {
  using W = wide_t<T>;
  const W factor = *in<W>(a.factor) / (a.count ? W(*a.count) : W(1));
  if (factor == W(1)) return;
  T* x = out<T>(a.x);
#pragma omp parallel for schedule(static) if (a.numel > kParallelWork)
  for (int64_t i = 0; i < a.numel; ++i) assign(x[i], to_wide(x[i]) * factor);
}

}  // namespace
}  // namespace cpu

int gpuledger_cpu_count_targets(const gpuledger::CountTargets* a, void*) {
  *a->count = a->rows - std::count(a->target, a->target + a->rows, a->ignore_index);
  return gpuledger::kOk;
}
int gpuledger_cpu_cross_entropy_rows(const gpuledger::CrossEntropyRows* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::cross_entropy_rows<decltype(t)>(*a); });
}
int gpuledger_cpu_mean_loss(const gpuledger::MeanLoss* a, void*) {
  if (a->dtype == gpuledger::F32) return cpu::mean_loss<float>(*a), gpuledger::kOk;
  if (a->dtype == gpuledger::F64) return cpu::mean_loss<double>(*a), gpuledger::kOk;
  return gpuledger::kUnsupportedDtype;
}
int gpuledger_cpu_scale_in_place(const gpuledger::ScaleInPlace* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::scale_in_place<decltype(t)>(*a); });
}
