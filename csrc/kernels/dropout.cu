// Dropout whose mask is a function of (seed, element index): nothing is kept for backward, which is
// the same call on dy. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011): counter = index / 4, key = seed, one 32-bit word per element.
#include "dispatch.cuh"

namespace dropout {
using namespace gpu;
using gpuledger::Dropout;

constexpr int kThreads = 256;
constexpr int kWords = 4;  // of one Philox call

struct Words {
  uint32_t v[kWords];
};

__device__ __forceinline__ Words philox(uint64_t counter, uint64_t key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  Words c{{uint32_t(counter), uint32_t(counter >> 32), 0, 0}};
  uint32_t key0 = uint32_t(key), key1 = uint32_t(key >> 32);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = kMultiplier0 * c.v[0], product1 = kMultiplier1 * c.v[2];
    c = {{uint32_t(product1 >> 32) ^ c.v[1] ^ key0, uint32_t(product1),
          uint32_t(product0 >> 32) ^ c.v[3] ^ key1, uint32_t(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

// N elements from a multiple of 4 on, or fewer at the end. Dropped elements are multiplied by 0, as
// in PyTorch: a dropped NaN or infinity becomes NaN.
template <class T, bool FULL>
__device__ __forceinline__ void group(const Dropout& a, int64_t first, uint64_t threshold,
                                      acc_t<T> scale) {
  constexpr int N = kVectorWidth<T> < kWords ? kWords : kVectorWidth<T>;
  const T* const x = static_cast<const T*>(a.x) + first;
  T* const y = static_cast<T*>(a.y) + first;
  Pack<T, N> v{};
  if constexpr (FULL) v = load<T, N>(x);
#pragma unroll
  for (int w = 0; w < N / kWords; ++w) {
    const Words random = philox(uint64_t(first) / kWords + w, a.seed);
#pragma unroll
    for (int k = 0; k < kWords; ++k) {
      const int i = w * kWords + k;
      const acc_t<T> factor = random.v[k] >= threshold ? scale : acc_t<T>(0);
      if constexpr (FULL)
        v.v[i] = down<T>(up(v.v[i]) * factor);
      else if (first + i < a.numel)
        y[i] = down<T>(up(x[i]) * factor);
    }
  }
  if constexpr (FULL) store<T, N>(y, v);
}

template <class T, bool VECTOR>
__global__ void __launch_bounds__(kThreads) run(Dropout a, uint64_t threshold, acc_t<T> scale) {
  constexpr int N = kVectorWidth<T> < kWords ? kWords : kVectorWidth<T>;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x * N;
  for (int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N; i < a.numel; i += stride) {
    if (VECTOR && i + N <= a.numel)
      group<T, true>(a, i, threshold, scale);
    else
      group<T, false>(a, i, threshold, scale);
  }
}

template <class T>
void launch(const Dropout& a, void* stream) {
  constexpr int N = kVectorWidth<T> < kWords ? kWords : kVectorWidth<T>;
  if (a.numel == 0) return;
  const int64_t groups = ceil_div(a.numel, N);
  const unsigned threads = threads_for(groups, kThreads);
  const auto threshold = uint64_t(a.probability * 4294967296.0);
  const auto scale = acc_t<T>(a.probability < 1 ? 1 / (1 - a.probability) : 0);
  auto* const kernel = aligned({a.x, a.y}) ? run<T, true> : run<T, false>;
  GPU_LAUNCH(kernel, dim3(at_most(ceil_div(groups, threads), kMaxBlocks)), dim3(threads), 0,
             static_cast<cudaStream_t>(stream), a, threshold, scale);
}

}  // namespace dropout

GPU_ENTRY(dropout)(const gpuledger::Dropout* a, void* stream) {
  return gpu::dispatch(
      a->dtype, [&](auto type) { dropout::launch<typename decltype(type)::type>(*a, stream); });
}
