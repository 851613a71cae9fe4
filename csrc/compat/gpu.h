// The one header that kernel sources include: CUDA where nvcc compiles, the host run otherwise.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define GPU_DYNAMIC_SHARED(T, name)                               \
  extern __shared__ __align__(16) unsigned char dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(dynamic_shared)
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
#else
#include "cuda_on_host.h"
#endif

namespace gpu {

// ---- numbers: stored as T, computed in acc_t<T> ----
template <class T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};
template <class T>
using acc_t = typename Accumulator<T>::type;

__device__ __forceinline__ float up(float v) { return v; }
__device__ __forceinline__ double up(double v) { return v; }
__device__ __forceinline__ float up(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ __forceinline__ float up(__half v) { return __half2float(v); }

template <class T>
__device__ __forceinline__ T down(acc_t<T> v) {
  return T(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 down<__nv_bfloat16>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half down<__half>(float v) {
  return __float2half_rn(v);
}

// ---- memory: N elements moved together, by accesses of at most 16 bytes ----
constexpr int kAccessBytes = 16;
template <class T>
constexpr int kVectorWidth = kAccessBytes / int(sizeof(T));
template <>
constexpr int kVectorWidth<double> = 1;  // for gradient checks only; two at a time spill registers

template <class T, int N>
struct alignas(sizeof(T) * N < kAccessBytes ? sizeof(T) * N : kAccessBytes) Pack {
  T v[N];
};
template <class T, int N>
__device__ __forceinline__ Pack<T, N> load(const T* p) {
  return *reinterpret_cast<const Pack<T, N>*>(p);
}
template <class T, int N>
__device__ __forceinline__ void store(T* p, const Pack<T, N>& pack) {
  *reinterpret_cast<Pack<T, N>*>(p) = pack;
}

// A parameter vector of dtype T, or of the accumulator's dtype beside 16-bit activations.
template <class T, int N>
__device__ __forceinline__ Pack<acc_t<T>, N> load_parameter(const void* p, bool wide, int64_t i) {
  if (wide) return load<acc_t<T>, N>(static_cast<const acc_t<T>*>(p) + i);
  const Pack<T, N> narrow = load<T, N>(static_cast<const T*>(p) + i);
  Pack<acc_t<T>, N> result;
#pragma unroll
  for (int k = 0; k < N; ++k) result.v[k] = up(narrow.v[k]);
  return result;
}

inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (reinterpret_cast<uintptr_t>(p) % kAccessBytes) return false;
  return true;
}

// ---- reductions: the same value in every thread, summed in an order that never changes ----
constexpr unsigned kFullWarp = 0xffffffffu;
constexpr int kWarp = 32;

struct Sum {
  template <class A>
  __device__ static A identity() {
    return A(0);
  }
  template <class A>
  __device__ static A combine(A a, A b) {
    return a + b;
  }
};
// A NaN is never larger: the sum that follows the maximum has to carry it.
struct Max {
  template <class A>
  __device__ static A identity() {
    return -A(INFINITY);
  }
  template <class A>
  __device__ static A combine(A a, A b) {
    return a > b ? a : b;
  }
};

template <class Op, class A>
__device__ __forceinline__ A warp_reduce(A v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    v = Op::template combine<A>(v, __shfl_xor_sync(kFullWarp, v, offset));
  return v;
}
// All threads of the block must call it; blockDim is (a multiple of 32, 1, 1).
template <class Op, class A>
__device__ __forceinline__ A block_reduce(A v) {
  __shared__ A partial[kWarp];
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp;
  const int num_warps = int(blockDim.x) / kWarp;
  v = warp_reduce<Op>(v);
  __syncthreads();  // an earlier call may still be reading partial
  if (lane == 0) partial[warp] = v;
  __syncthreads();
  return warp_reduce<Op>(lane < num_warps ? partial[lane] : Op::template identity<A>());
}

// ---- functions ----
__device__ __forceinline__ float rsqrt_(float x) { return rsqrtf(x); }
__device__ __forceinline__ double rsqrt_(double x) { return rsqrt(x); }
__device__ __forceinline__ float exp_(float x) { return expf(x); }
__device__ __forceinline__ double exp_(double x) { return exp(x); }
__device__ __forceinline__ float log_(float x) { return logf(x); }
__device__ __forceinline__ double log_(double x) { return log(x); }
__device__ __forceinline__ float tanh_(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_(double x) { return tanh(x); }
__device__ __forceinline__ float erfc_(float x) { return erfcf(x); }
__device__ __forceinline__ double erfc_(double x) { return erfc(x); }
__device__ __forceinline__ float sqrt_(float x) { return sqrtf(x); }
__device__ __forceinline__ double sqrt_(double x) { return sqrt(x); }

// ---- launch shapes ----
constexpr int kMaxBlocks =
    2048;  // of a grid that strides over its work; enough for any GPU of today
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline unsigned at_most(int64_t wanted, int64_t limit) {
  return unsigned(wanted < 1 ? 1 : (wanted < limit ? wanted : limit));
}
// Threads for `work` items: a multiple of 32, so that small sizes start few threads.
inline unsigned threads_for(int64_t work, int limit) {
  return at_most(ceil_div(work < 1 ? 1 : work, kWarp) * kWarp, limit);
}

}  // namespace gpu
