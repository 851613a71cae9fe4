// Rotary position embedding: (a, b) -> (a cos - b sin, a sin + b cos) for every pair of a head.
//
// x: [batch, seq, heads, head_dim] with any strides but the last; y may be x. Tables: [seq, pairs].
// Blocks stride over the tokens; a thread rotates N pairs, N being a vector or 1.
#include "dispatch.cuh"

namespace rotary {
using namespace gpu;
using gpuledger::Rotary;

constexpr int kThreads = 256;

template <class T, int N>
__device__ __forceinline__ void rotate(Pack<T, N>& first, Pack<T, N>& second,
                                       const acc_t<T>* cosine, const acc_t<T>* sine,
                                       bool conjugate) {
  using A = acc_t<T>;
  const Pack<A, N> c = load<A, N>(cosine), s = load<A, N>(sine);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const A a = up(first.v[i]), b = up(second.v[i]);
    const A sin_i = conjugate ? -s.v[i] : s.v[i];
    first.v[i] = down<T>(a * c.v[i] - b * sin_i);
    second.v[i] = down<T>(a * sin_i + b * c.v[i]);
  }
}

// Pairs i .. i + N of one head, read from x and written to y.
template <class T, int N, bool INTERLEAVED>
__device__ __forceinline__ void pairs(const Rotary& a, const T* x, T* y, int64_t table, int64_t i) {
  const acc_t<T>* const cosine = static_cast<const acc_t<T>*>(a.cosine) + table + i;
  const acc_t<T>* const sine = static_cast<const acc_t<T>*>(a.sine) + table + i;
  Pack<T, N> first, second;
  if constexpr (INTERLEAVED && N == 1) {  // an unaligned pair must not be loaded as one
    first.v[0] = x[2 * i], second.v[0] = x[2 * i + 1];
    rotate<T, N>(first, second, cosine, sine, a.conjugate);
    y[2 * i] = first.v[0], y[2 * i + 1] = second.v[0];
  } else if constexpr (INTERLEAVED) {
    Pack<T, 2 * N> both = load<T, 2 * N>(x + 2 * i);
#pragma unroll
    for (int k = 0; k < N; ++k) first.v[k] = both.v[2 * k], second.v[k] = both.v[2 * k + 1];
    rotate<T, N>(first, second, cosine, sine, a.conjugate);
#pragma unroll
    for (int k = 0; k < N; ++k) both.v[2 * k] = first.v[k], both.v[2 * k + 1] = second.v[k];
    store<T, 2 * N>(y + 2 * i, both);
  } else {
    first = load<T, N>(x + i);
    second = load<T, N>(x + a.pairs + i);
    rotate<T, N>(first, second, cosine, sine, a.conjugate);
    store<T, N>(y + i, first);
    store<T, N>(y + a.pairs + i, second);
  }
}

template <class T, int N, bool INTERLEAVED>
__global__ void __launch_bounds__(kThreads) run(Rotary a) {
  const int64_t per_head = a.pairs / N, copied = a.x == a.y ? 0 : a.head_dim - 2 * a.pairs;
  for (int64_t token = blockIdx.x; token < a.batch * a.seq; token += gridDim.x) {
    const int64_t b = token / a.seq, s = token - b * a.seq;
    const T* const x = static_cast<const T*>(a.x) + b * a.x_strides[0] + s * a.x_strides[1];
    T* const y = static_cast<T*>(a.y) + b * a.y_strides[0] + s * a.y_strides[1];
    for (int64_t unit = threadIdx.x; unit < a.heads * per_head; unit += blockDim.x) {
      const int64_t head = unit / per_head, i = (unit - head * per_head) * N;
      pairs<T, N, INTERLEAVED>(a, x + head * a.x_strides[2], y + head * a.y_strides[2], s * a.pairs,
                               i);
    }
    for (int64_t unit = threadIdx.x; unit < a.heads * copied; unit += blockDim.x) {
      const int64_t head = unit / copied, d = 2 * a.pairs + unit - head * copied;
      y[head * a.y_strides[2] + d] = x[head * a.x_strides[2] + d];
    }
  }
}

// Whether every head of x and y and every row of the tables allows packs of N pairs.
template <class T, int N>
bool vectorizable(const Rotary& a) {
  constexpr int V = kVectorWidth<T>;
  if (!aligned({a.x, a.y, a.cosine, a.sine}) || a.pairs % N || a.pairs % (a.interleaved ? N : V))
    return false;
  if (a.pairs * int64_t(sizeof(acc_t<T>)) % kAccessBytes) return false;
  for (int i = 0; i < 3; ++i)
    if (a.x_strides[i] % V || a.y_strides[i] % V) return false;
  return true;
}

template <class T, bool INTERLEAVED>
void launch(const Rotary& a, void* stream) {
  constexpr int V = kVectorWidth<T>, N = INTERLEAVED ? (V + 1) / 2 : V;
  if (a.batch * a.seq * a.heads * a.head_dim == 0) return;
  const bool vector = vectorizable<T, N>(a);
  const int64_t units = a.heads * (vector ? a.pairs / N : a.pairs);
  auto* const kernel = vector ? run<T, N, INTERLEAVED> : run<T, 1, INTERLEAVED>;
  GPU_LAUNCH(kernel, dim3(at_most(a.batch * a.seq, kMaxBlocks)), dim3(threads_for(units, kThreads)),
             0, static_cast<cudaStream_t>(stream), a);
}

}  // namespace rotary

GPU_ENTRY(rotary)(const gpuledger::Rotary* a, void* stream) {
  return gpu::dispatch(a->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (a->interleaved)
      rotary::launch<T, true>(*a, stream);
    else
      rotary::launch<T, false>(*a, stream);
  });
}
