// One AdamW step (Loshchilov and Hutter, 1711.05101) over many tensors in few launches.
//
//   m = b1 m + (1 - b1) g      v = b2 v + (1 - b2) g^2
//   p = p (1 - lr wd) - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//
// Tensors are cut into chunks; a launch carries the pointers of up to kTensors tensors and the
// place of up to kBlocks chunks in its arguments, so no list is copied to the GPU and nothing is
// allocated.
#include <cmath>
#include "dispatch.cuh"

namespace adamw {
using namespace gpu;
using gpuledger::AdamW;

constexpr int kThreads = 256;
constexpr int64_t kChunk = 1 << 16;
constexpr int kTensors = 32, kBlocks = 320;

struct Batch {
  void* params[kTensors];
  const void* grads[kTensors];
  void* exp_avgs[kTensors];
  void* exp_avg_sqs[kTensors];
  int64_t numels[kTensors];
  int32_t chunk[kBlocks];
  uint8_t tensor[kBlocks];
};
// Kernel arguments may take 4,096 bytes on every GPU.
static_assert(sizeof(Batch) + 8 * sizeof(double) <= 4096);

template <class A>
struct Factors {
  A decay, beta2, step_size, root_correction, eps;
  A one_minus_beta1, one_minus_beta2;  // subtracted in double: 1 - 0.999f is off by 5e-5
};

template <class A>
__device__ __forceinline__ void update(A& p, A g, A& m, A& v, const Factors<A>& f) {
  m += f.one_minus_beta1 * (g - m);
  v = f.beta2 * v + f.one_minus_beta2 * g * g;
  p = p * f.decay - f.step_size * m / (sqrt_(v) / f.root_correction + f.eps);
}

// P: params and grads, S: optimizer states, never narrower than P.
template <class P, class S, int N>
__device__ __forceinline__ void update_pack(P* param, const P* grad, S* exp_avg, S* exp_avg_sq,
                                            const Factors<acc_t<P>>& factors) {
  using A = acc_t<P>;
  Pack<P, N> p = load<P, N>(param);
  const Pack<P, N> g = load<P, N>(grad);
  Pack<S, N> m = load<S, N>(exp_avg), v = load<S, N>(exp_avg_sq);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    A p_i = up(p.v[i]), m_i = up(m.v[i]), v_i = up(v.v[i]);
    update<A>(p_i, up(g.v[i]), m_i, v_i, factors);
    p.v[i] = down<P>(p_i);
    m.v[i] = down<S>(m_i);
    v.v[i] = down<S>(v_i);
  }
  store<P, N>(param, p);
  store<S, N>(exp_avg, m);
  store<S, N>(exp_avg_sq, v);
}

template <class P, class S>
__global__ void __launch_bounds__(kThreads) run(Batch batch, Factors<acc_t<P>> factors) {
  constexpr int N = kVectorWidth<S>;
  const int t = batch.tensor[blockIdx.x];
  const int64_t start = batch.chunk[blockIdx.x] * kChunk, left = batch.numels[t] - start;
  const int64_t count = left < kChunk ? left : kChunk;
  P* const param = static_cast<P*>(batch.params[t]) + start;
  const P* const grad = static_cast<const P*>(batch.grads[t]) + start;
  S* const exp_avg = static_cast<S*>(batch.exp_avgs[t]) + start;
  S* const exp_avg_sq = static_cast<S*>(batch.exp_avg_sqs[t]) + start;
  const auto bits = reinterpret_cast<uintptr_t>(param) | reinterpret_cast<uintptr_t>(grad) |
                    reinterpret_cast<uintptr_t>(exp_avg) | reinterpret_cast<uintptr_t>(exp_avg_sq);
  const int64_t packs = bits % kAccessBytes ? 0 : count / N;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x)
    update_pack<P, S, N>(param + i * N, grad + i * N, exp_avg + i * N, exp_avg_sq + i * N, factors);
  for (int64_t i = packs * N + threadIdx.x; i < count; i += blockDim.x)
    update_pack<P, S, 1>(param + i, grad + i, exp_avg + i, exp_avg_sq + i, factors);
}

template <class A>
Factors<A> factors_of(const AdamW& a) {
  const double step = double(a.step);
  return {.decay = A(1 - a.learning_rate * a.weight_decay),
          .beta2 = A(a.beta2),
          .step_size = A(a.learning_rate / (1 - std::pow(a.beta1, step))),
          .root_correction = A(std::sqrt(1 - std::pow(a.beta2, step))),
          .eps = A(a.eps),
          .one_minus_beta1 = A(1 - a.beta1),
          .one_minus_beta2 = A(1 - a.beta2)};
}

// Fills one batch after the other; a tensor that does not fit into one goes on in the next.
template <class P, class S>
void launch(const AdamW& a, void* stream) {
  const auto factors = factors_of<acc_t<P>>(a);
  Batch batch{};
  int tensors = 0, blocks = 0;
  const auto flush = [&] {
    if (blocks)
      GPU_LAUNCH((run<P, S>), dim3(unsigned(blocks)), dim3(kThreads), 0,
                 static_cast<cudaStream_t>(stream), batch, factors);
    tensors = blocks = 0;
  };
  for (int64_t t = 0; t < a.num_tensors; ++t) {
    const int64_t chunks = ceil_div(a.numels[t], kChunk);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const bool first_of_batch = chunk == 0 || blocks == 0;
      if (first_of_batch) {
        batch.params[tensors] = a.params[t];
        batch.grads[tensors] = a.grads[t];
        batch.exp_avgs[tensors] = a.exp_avgs[t];
        batch.exp_avg_sqs[tensors] = a.exp_avg_sqs[t];
        batch.numels[tensors++] = a.numels[t];
      }
      batch.tensor[blocks] = uint8_t(tensors - 1);
      batch.chunk[blocks++] = int32_t(chunk);
      const bool last_of_tensor = chunk + 1 == chunks;
      if (blocks == kBlocks || (last_of_tensor && tensors == kTensors)) flush();
    }
  }
  flush();
}

}  // namespace adamw

GPU_ENTRY(adamw)(const gpuledger::AdamW* a, void* stream) {
  const bool wide_states = a->state_dtype != a->dtype;
  return gpu::dispatch(a->dtype, [&](auto type) {
    using P = typename decltype(type)::type;
    if constexpr (sizeof(P) < sizeof(float)) {
      if (wide_states) return adamw::launch<P, float>(*a, stream);
    }
    adamw::launch<P, P>(*a, stream);
  });
}
