// Rotary embedding, dropout by seed, and AdamW: plain loops.
#include "scalar.h"

namespace cpu {
namespace {

template <class T>
void rotate_head(const gpuledger::Rotary& a, const T* x, T* y, int64_t position) {
  using W = wide_t<T>;
  for (int64_t i = 0; i < a.pairs; ++i) {
    const int64_t first = a.interleaved ? 2 * i : i;
    const int64_t second = a.interleaved ? 2 * i + 1 : i + a.pairs;
    const W cosine = in<W>(a.cosine)[position * a.pairs + i];
    const W sine = in<W>(a.sine)[position * a.pairs + i] * (a.conjugate ? W(-1) : W(1));
    const W u = to_wide(x[first]), v = to_wide(x[second]);
    assign(y[first], u * cosine - v * sine);
    assign(y[second], u * sine + v * cosine);
  }
  for (int64_t d = 2 * a.pairs; d < a.head_dim; ++d) y[d] = x[d];
}

template <class T>
void rotary(const gpuledger::Rotary& a) {
#pragma omp parallel for schedule(static) if (a.batch * a.seq * a.heads * a.head_dim > \
                                                  kParallelWork)
  for (int64_t token = 0; token < a.batch * a.seq; ++token) {
    const int64_t b = token / a.seq, s = token % a.seq;
    for (int64_t h = 0; h < a.heads; ++h)
      rotate_head(a, in<T>(a.x) + b * a.x_strides[0] + s * a.x_strides[1] + h * a.x_strides[2],
                  out<T>(a.y) + b * a.y_strides[0] + s * a.y_strides[1] + h * a.y_strides[2], s);
  }
}

// Philox4x32-10, written from the paper: word `lane` of the block numbered `counter`.
uint32_t random_word(uint64_t counter, uint64_t key, int lane) {
  uint32_t c[4] = {uint32_t(counter), uint32_t(counter >> 32), 0, 0};
  uint32_t k[2] = {uint32_t(key), uint32_t(key >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t(0xD2511F53u) * c[0], right = uint64_t(0xCD9E8D57u) * c[2];
    const uint32_t next[4] = {uint32_t(right >> 32) ^ c[1] ^ k[0], uint32_t(right),
                              uint32_t(left >> 32) ^ c[3] ^ k[1], uint32_t(left)};
    std::memcpy(c, next, sizeof(c));
    k[0] += 0x9E3779B9u;  // the golden ratio
    k[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return c[lane];
}

template <class T>
void dropout(const gpuledger::Dropout& a) {
  using W = wide_t<T>;
  const double threshold = a.probability * 4294967296.0;
  const W scale = a.probability < 1 ? W(1 / (1 - a.probability)) : W(0);
#pragma omp parallel for schedule(static) if (a.numel > kParallelWork)
  for (int64_t i = 0; i < a.numel; ++i) {
    // floor: a word is an integer, so word >= floor(threshold) keeps what the GPU keeps
    const bool keep = random_word(uint64_t(i) / 4, a.seed, int(i % 4)) >= std::floor(threshold);
    assign(out<T>(a.y)[i], to_wide(in<T>(a.x)[i]) * (keep ? scale : W(0)));
  }
}

template <class P, class S>
void adamw_tensor(const gpuledger::AdamW& a, int64_t t) {
  using W = wide_t<P>;
  const double step = double(a.step);
  const double correction1 = 1 - std::pow(a.beta1, step);
  const double correction2 = 1 - std::pow(a.beta2, step);
  P* param = out<P>(a.params[t]);
  const P* grad = in<P>(a.grads[t]);
  S *exp_avg = out<S>(a.exp_avgs[t]), *exp_avg_sq = out<S>(a.exp_avg_sqs[t]);
#pragma omp parallel for schedule(static) if (a.numels[t] > kParallelWork)
  for (int64_t i = 0; i < a.numels[t]; ++i) {
    const W g = to_wide(grad[i]);
    const W m = W(a.beta1) * to_wide(exp_avg[i]) + W(1 - a.beta1) * g;
    const W v = W(a.beta2) * to_wide(exp_avg_sq[i]) + W(1 - a.beta2) * g * g;
    const W denominator = std::sqrt(v) / W(std::sqrt(correction2)) + W(a.eps);
    const W decayed = to_wide(param[i]) * W(1 - a.learning_rate * a.weight_decay);
    assign(param[i], decayed - W(a.learning_rate / correction1) * m / denominator);
    assign(exp_avg[i], m);
    assign(exp_avg_sq[i], v);
  }
}

}  // namespace
}  // namespace cpu

int gpuledger_cpu_rotary(const gpuledger::Rotary* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::rotary<decltype(t)>(*a); });
}
int gpuledger_cpu_dropout(const gpuledger::Dropout* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) { cpu::dropout<decltype(t)>(*a); });
}
int gpuledger_cpu_adamw(const gpuledger::AdamW* a, void*) {
  return cpu::with_dtype(a->dtype, [&](auto t) {
    using P = decltype(t);
    for (int64_t i = 0; i < a->num_tensors; ++i) {
      if (a->state_dtype == a->dtype)
        cpu::adamw_tensor<P, P>(*a, i);
      else
        cpu::adamw_tensor<P, cpu::wide_t<P>>(*a, i);
    }
  });
}
