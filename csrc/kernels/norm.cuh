// Residual add + normalisation over the last dim, forward and backward.
//
//   h = x + residual      y = (h - mean) * rstd * weight + bias      rstd = 1 / sqrt(var(h) + eps)
//
// CENTER: LayerNorm. Otherwise RMSNorm: mean = 0 and var(h) = mean(h^2), no bias.
// Saved for backward: h, which is the residual stream and alive anyway, and one or two numbers per
// row.
//
// One block per row, blocks stride over the rows. A row that fits stays in registers (CACHED)
// between the passes; a wider one is read again. VEC elements per access; 1 where a row is not
// 16-byte aligned.
//   nvcc -std=c++17 -arch=sm_90 -c rms_norm.cu
#pragma once
#include "column_sums.cuh"
#include "dispatch.cuh"

namespace norms {
using namespace gpu;
using gpuledger::NormBackward;
using gpuledger::NormForward;

constexpr int kSlots = 4;           // packs of one thread that stay in registers
constexpr int kPacksPerThread = 2;  // aimed at, as long as a block has room
constexpr int kForwardThreads = 1024;
constexpr int kBackwardThreads = 512;  // leaves 128 registers a thread: no spills

template <int VEC, bool CACHED, class F>
__device__ __forceinline__ void for_each_pack(int64_t cols, F&& f) {
  if constexpr (CACHED) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int64_t c = int64_t(slot * blockDim.x + threadIdx.x) * VEC;
      if (c < cols) f(slot, c);
    }
  } else {
    for (int64_t c = int64_t(threadIdx.x) * VEC; c < cols; c += int64_t(blockDim.x) * VEC) f(0, c);
  }
}

template <class T, int VEC, bool CENTER, bool CACHED>
__global__ void __launch_bounds__(kForwardThreads) forward(NormForward a) {
  using A = acc_t<T>;
  using Row = Pack<T, VEC>;
  const bool wide = a.weight_dtype != a.dtype;
  const T* const source = static_cast<const T*>(a.residual ? a.h : a.x);
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t base = row * a.cols;
    Row kept[kSlots]{};
    A sum = 0;  // of h, or of h^2
    for_each_pack<VEC, CACHED>(a.cols, [&](int slot, int64_t c) {
      Row h = load<T, VEC>(static_cast<const T*>(a.x) + base + c);
      if (a.residual) {
        const Row r = load<T, VEC>(static_cast<const T*>(a.residual) + base + c);
#pragma unroll
        for (int i = 0; i < VEC; ++i) h.v[i] = down<T>(up(h.v[i]) + up(r.v[i]));
        store<T, VEC>(static_cast<T*>(a.h) + base + c, h);
      }
#pragma unroll
      for (int i = 0; i < VEC; ++i) sum += CENTER ? up(h.v[i]) : up(h.v[i]) * up(h.v[i]);
      kept[slot] = h;
    });
    // A thread reads back only what it wrote itself.
    const auto fetch = [&](int slot, int64_t c) {
      if constexpr (CACHED) return kept[slot];
      return load<T, VEC>(source + base + c);
    };
    A mean = 0, variance = block_reduce<Sum>(sum) / A(a.cols);
    if constexpr (CENTER) {
      mean = variance;
      A deviation = 0;
      for_each_pack<VEC, CACHED>(a.cols, [&](int slot, int64_t c) {
        const Row h = fetch(slot, c);
#pragma unroll
        for (int i = 0; i < VEC; ++i) deviation += (up(h.v[i]) - mean) * (up(h.v[i]) - mean);
      });
      variance = block_reduce<Sum>(deviation) / A(a.cols);
    }
    const A rstd = rsqrt_(variance + A(a.eps));
    if (threadIdx.x == 0) {
      static_cast<A*>(a.rstd)[row] = rstd;
      if constexpr (CENTER) static_cast<A*>(a.mean)[row] = mean;
    }
    for_each_pack<VEC, CACHED>(a.cols, [&](int slot, int64_t c) {
      const Row h = fetch(slot, c);
      const Pack<A, VEC> w = load_parameter<T, VEC>(a.weight, wide, c);
      Pack<A, VEC> b{};
      if (CENTER && a.bias) b = load_parameter<T, VEC>(a.bias, wide, c);
      Row y;
#pragma unroll
      for (int i = 0; i < VEC; ++i) y.v[i] = down<T>((up(h.v[i]) - mean) * rstd * w.v[i] + b.v[i]);
      store<T, VEC>(static_cast<T*>(a.y) + base + c, y);
    });
  }
}

// With n = (h - mean) * rstd and g = dy * weight:
//   dx = rstd * (g - mean(g) - n * mean(g * n)) + dh
//   dweight = sum over rows of dy * n      dbias = sum over rows of dy
// Every block adds up its own rows, in shared memory if the columns fit there, and writes one
// partial; column_sums.cuh adds the partials.
template <class T, int VEC, bool CENTER, bool CACHED>
__global__ void __launch_bounds__(kBackwardThreads) backward(NormBackward a, bool in_shared) {
  using A = acc_t<T>;
  using Row = Pack<T, VEC>;
  GPU_DYNAMIC_SHARED(A, shared);
  const bool wide = a.weight_dtype != a.dtype, want_bias = CENTER && a.dbias;
  A* const dw_partial = static_cast<A*>(a.partials) + int64_t(blockIdx.x) * a.cols;
  A* const db_partial = dw_partial + a.num_partials * a.cols;
  A* const dw = in_shared ? shared : dw_partial;  // entry c belongs to one thread
  A* const db = in_shared ? shared + a.cols : db_partial;
  for_each_pack<VEC, false>(a.cols, [&](int, int64_t c) {
    store<A, VEC>(dw + c, Pack<A, VEC>{});
    if (want_bias) store<A, VEC>(db + c, Pack<A, VEC>{});
  });
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const int64_t base = row * a.cols;
    const A rstd = static_cast<const A*>(a.rstd)[row];
    const A mean = CENTER ? static_cast<const A*>(a.mean)[row] : A(0);
    Row kept_dy[kSlots]{}, kept_h[kSlots]{};
    const auto fetch = [&](int slot, int64_t c, Row& dy, Row& h) {
      dy = CACHED ? kept_dy[slot] : load<T, VEC>(static_cast<const T*>(a.dy) + base + c);
      h = CACHED ? kept_h[slot] : load<T, VEC>(static_cast<const T*>(a.h) + base + c);
    };
    A sum_g = 0, sum_gn = 0;
    for_each_pack<VEC, CACHED>(a.cols, [&](int slot, int64_t c) {
      kept_dy[slot] = load<T, VEC>(static_cast<const T*>(a.dy) + base + c);
      kept_h[slot] = load<T, VEC>(static_cast<const T*>(a.h) + base + c);
      const Pack<A, VEC> w = load_parameter<T, VEC>(a.weight, wide, c);
#pragma unroll
      for (int i = 0; i < VEC; ++i) {
        const A g = up(kept_dy[slot].v[i]) * w.v[i];
        if constexpr (CENTER) sum_g += g;
        sum_gn += g * ((up(kept_h[slot].v[i]) - mean) * rstd);
      }
    });
    const A mean_gn = block_reduce<Sum>(sum_gn) / A(a.cols);
    const A mean_g = CENTER ? block_reduce<Sum>(sum_g) / A(a.cols) : A(0);
    for_each_pack<VEC, CACHED>(a.cols, [&](int slot, int64_t c) {
      Row dy, h, out{};
      fetch(slot, c, dy, h);
      const Pack<A, VEC> w = load_parameter<T, VEC>(a.weight, wide, c);
      if (a.dh) out = load<T, VEC>(static_cast<const T*>(a.dh) + base + c);
      Pack<A, VEC> dw_pack = load<A, VEC>(dw + c), db_pack{};
      if (want_bias) db_pack = load<A, VEC>(db + c);
#pragma unroll
      for (int i = 0; i < VEC; ++i) {
        const A g = up(dy.v[i]), n = (up(h.v[i]) - mean) * rstd;
        A dx = rstd * (g * w.v[i] - mean_g - n * mean_gn);
        if (a.dh) dx += up(out.v[i]);
        out.v[i] = down<T>(dx);
        dw_pack.v[i] += g * n;
        db_pack.v[i] += g;
      }
      store<T, VEC>(static_cast<T*>(a.dx) + base + c, out);
      store<A, VEC>(dw + c, dw_pack);
      if (want_bias) store<A, VEC>(db + c, db_pack);
    });
  }
  if (!in_shared) return;
  for_each_pack<VEC, false>(a.cols, [&](int, int64_t c) {
    store<A, VEC>(dw_partial + c, load<A, VEC>(dw + c));
    if (want_bias) store<A, VEC>(db_partial + c, load<A, VEC>(db + c));
  });
}

struct Shape {
  bool vector, cached;
  unsigned threads;
};
template <class T>
constexpr bool kMayCache = sizeof(T) < sizeof(double);  // doubles, for gradient checks only, spill

template <class T>
Shape shape_for(int64_t cols, int max_threads, bool pointers_aligned) {
  const bool vector = pointers_aligned && cols % kVectorWidth<T> == 0;
  const int64_t packs = vector ? cols / kVectorWidth<T> : cols;
  const unsigned threads = threads_for(ceil_div(packs, kPacksPerThread), max_threads);
  return {vector, kMayCache<T> && packs <= int64_t(threads) * kSlots, threads};
}

template <class T, bool CENTER>
void launch_forward(const NormForward& a, void* stream) {
  constexpr int V = kVectorWidth<T>;
  constexpr bool C = kMayCache<T>;
  if (a.rows == 0 || a.cols == 0) return;
  const Shape shape =
      shape_for<T>(a.cols, kForwardThreads, aligned({a.x, a.residual, a.weight, a.bias, a.y, a.h}));
  auto* const vector = shape.cached ? forward<T, V, CENTER, C> : forward<T, V, CENTER, false>;
  auto* const scalar = shape.cached ? forward<T, 1, CENTER, C> : forward<T, 1, CENTER, false>;
  GPU_LAUNCH(shape.vector ? vector : scalar, dim3(at_most(a.rows, kMaxBlocks)), dim3(shape.threads),
             0, static_cast<cudaStream_t>(stream), a);
}

template <class T, bool CENTER>
void launch_backward(const NormBackward& a, void* stream) {
  using A = acc_t<T>;
  constexpr int V = kVectorWidth<T>;
  constexpr bool C = kMayCache<T>;
  constexpr int64_t kMaxShared = 96 << 10;  // two such blocks fit on a multiprocessor
  if (a.cols == 0) return;
  const Shape shape = shape_for<T>(a.cols, kBackwardThreads,
                                   aligned({a.dy, a.dh, a.h, a.weight, a.dx, a.partials}));
  const bool want_bias = CENTER && a.dbias;
  const int64_t accumulator_bytes = (want_bias ? 2 : 1) * a.cols * int64_t(sizeof(A));
  const bool in_shared = accumulator_bytes <= kMaxShared;
  const size_t shared_bytes = in_shared ? size_t(accumulator_bytes) : 0;
  auto* const vector = shape.cached ? backward<T, V, CENTER, C> : backward<T, V, CENTER, false>;
  auto* const scalar = shape.cached ? backward<T, 1, CENTER, C> : backward<T, 1, CENTER, false>;
  auto* const kernel = shape.vector ? vector : scalar;
#ifdef __CUDACC__
  if (shared_bytes > 48 << 10)  // more than that has to be asked for
    cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                         cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared_bytes));
#endif
  GPU_LAUNCH(kernel, dim3(unsigned(a.num_partials)), dim3(shape.threads), shared_bytes,
             static_cast<cudaStream_t>(stream), a, in_shared);
  const bool wide = a.weight_dtype != a.dtype;
  const A* const partials = static_cast<const A*>(a.partials);
  column_sums::launch<T>(partials, a.dweight, wide, a.num_partials, a.cols, stream);
  if (want_bias)
    column_sums::launch<T>(partials + a.num_partials * a.cols, a.dbias, wide, a.num_partials,
                           a.cols, stream);
}

}  // namespace norms
