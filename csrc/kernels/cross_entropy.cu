// Softmax cross-entropy that overwrites the logits with their gradient.
//
// One block per row. The first pass keeps a running maximum and sum of exponentials per thread, the
// second writes (softmax - onehot) / count. Vocabularies need no padding: a row starts with single
// elements up to the next 16-byte boundary, and ends with single elements.
#include "dispatch.cuh"

namespace cross_entropy {
using namespace gpu;
using gpuledger::CountTargets;
using gpuledger::CrossEntropyRows;
using gpuledger::MeanLoss;
using gpuledger::ScaleInPlace;

constexpr int kThreads = 1024;
template <class T>
constexpr int kRowThreads = sizeof(T) < sizeof(double) ? 1024 : 256;  // doubles need the registers
constexpr int kScaleThreads = 256;

// Calls f(width, index) for a row of any alignment: VEC elements where possible, 1 at both ends.
template <class T, class F>
__device__ __forceinline__ void for_each_group(const T* row, int64_t cols, F&& f) {
  constexpr int V = kVectorWidth<T>;
  const std::integral_constant<int, 1> one;
  const auto misaligned = int(reinterpret_cast<uintptr_t>(row) % kAccessBytes / sizeof(T));
  const int64_t to_boundary = (V - misaligned) % V;
  const int64_t head = to_boundary < cols ? to_boundary : cols;
  const int64_t packs = (cols - head) / V, tail = head + packs * V;
  for (int64_t c = threadIdx.x; c < head; c += blockDim.x) f(one, c);
  for (int64_t p = threadIdx.x; p < packs; p += blockDim.x)
    f(std::integral_constant<int, V>(), head + p * V);
  for (int64_t c = tail + threadIdx.x; c < cols; c += blockDim.x) f(one, c);
}

// exp(v - maximum), where a maximum of -inf (nothing seen but -inf and NaN) must not hide a NaN.
template <class A>
__device__ __forceinline__ A exp_below(A v, A maximum) {
  return exp_(v - (maximum == -A(INFINITY) ? A(0) : maximum));
}

template <class T>
__device__ __forceinline__ void fill_row(T* row, int64_t cols, acc_t<T> value) {
  for_each_group(row, cols, [&](auto width, int64_t c) {
    constexpr int N = decltype(width)::value;
    Pack<T, N> v;
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = down<T>(value);
    store<T, N>(row + c, v);
  });
}

template <class T>
__global__ void __launch_bounds__(kRowThreads<T>) rows(CrossEntropyRows a) {
  using A = acc_t<T>;
  const A scale = a.count ? A(1) / A(*a.count) : A(1);
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    T* const row = static_cast<T*>(a.logits) + r * a.row_stride;
    A* const loss = static_cast<A*>(a.losses) + r;
    const int64_t target = a.target[r];
    const bool ignored = target == a.ignore_index;
    if (ignored || target < 0 || target >= a.cols) {  // the same for the whole block
      const A value = ignored ? A(0) : A(NAN);
      if (threadIdx.x == 0) *loss = value;
      if (a.write_gradient) fill_row(row, a.cols, value);
      continue;
    }
    const A target_logit = up(row[target]);  // before the barriers below: the row is overwritten
    A maximum = -A(INFINITY), sum = 0;
    for_each_group(row, a.cols, [&](auto width, int64_t c) {
      constexpr int N = decltype(width)::value;
      const Pack<T, N> v = load<T, N>(row + c);
      A larger = maximum;
#pragma unroll
      for (int i = 0; i < N; ++i) larger = Max::combine<A>(up(v.v[i]), larger);
      sum *= exp_below(maximum, larger);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += exp_below(A(up(v.v[i])), larger);
      maximum = larger;
    });
    const A row_maximum = block_reduce<Max>(maximum);
    const A row_sum = block_reduce<Sum>(sum * exp_below(maximum, row_maximum));
    if (threadIdx.x == 0) *loss = log_(row_sum) - (target_logit - row_maximum);
    if (!a.write_gradient) continue;
    const A normaliser = A(1) / row_sum;
    for_each_group(row, a.cols, [&](auto width, int64_t c) {
      constexpr int N = decltype(width)::value;
      Pack<T, N> v = load<T, N>(row + c);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const A probability = exp_(up(v.v[i]) - row_maximum) * normaliser;
        v.v[i] = down<T>((probability - A(c + i == target ? 1 : 0)) * scale);
      }
      store<T, N>(row + c, v);
    });
  }
}

__global__ void __launch_bounds__(kThreads) count_targets(CountTargets a) {
  // Counted in 32-bit halves, because a shuffle carries what a double can: exact up to 2^53.
  double count = 0;
  for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x)
    count += a.target[r] != a.ignore_index ? 1 : 0;
  count = block_reduce<Sum>(count);
  if (threadIdx.x == 0) *a.count = int64_t(count);
}

template <class A>
__global__ void __launch_bounds__(kThreads) mean_loss(MeanLoss a) {
  A sum = 0;
  for (int64_t r = threadIdx.x; r < a.rows; r += blockDim.x)
    sum += static_cast<const A*>(a.losses)[r];
  sum = block_reduce<Sum>(sum);
  if (threadIdx.x == 0) *static_cast<A*>(a.loss) = a.count ? sum / A(*a.count) : sum;
}

template <class T>
__global__ void __launch_bounds__(kScaleThreads) scale_in_place(ScaleInPlace a) {
  constexpr int V = kVectorWidth<T>;
  using A = acc_t<T>;
  T* const x = static_cast<T*>(a.x);
  const A factor = *static_cast<const A*>(a.factor) / (a.count ? A(*a.count) : A(1));
  if (factor == A(1)) return;
  const int64_t stride = int64_t(gridDim.x) * blockDim.x;
  const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t packs = a.numel / V;
  for (int64_t p = first; p < packs; p += stride) {
    Pack<T, V> v = load<T, V>(x + p * V);
#pragma unroll
    for (int i = 0; i < V; ++i) v.v[i] = down<T>(up(v.v[i]) * factor);
    store<T, V>(x + p * V, v);
  }
  for (int64_t i = packs * V + first; i < a.numel; i += stride) x[i] = down<T>(up(x[i]) * factor);
}

}  // namespace cross_entropy

GPU_ENTRY(count_targets)(const gpuledger::CountTargets* a, void* stream) {
  return gpu::status_of([&] {
    GPU_LAUNCH(cross_entropy::count_targets, dim3(1),
               dim3(gpu::threads_for(a->rows, cross_entropy::kThreads)), 0,
               static_cast<cudaStream_t>(stream), *a);
  });
}
GPU_ENTRY(cross_entropy_rows)(const gpuledger::CrossEntropyRows* a, void* stream) {
  return gpu::dispatch(a->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (a->rows == 0 || a->cols == 0) return;
    const int64_t packs = gpu::ceil_div(a->cols, gpu::kVectorWidth<T>);
    GPU_LAUNCH(cross_entropy::rows<T>, dim3(gpu::at_most(a->rows, gpu::kMaxBlocks)),
               dim3(gpu::threads_for(packs, cross_entropy::kRowThreads<T>)), 0,
               static_cast<cudaStream_t>(stream), *a);
  });
}
GPU_ENTRY(mean_loss)(const gpuledger::MeanLoss* a, void* stream) {
  const auto launch = [&](auto* kernel) {
    return gpu::status_of([&] {
      GPU_LAUNCH(kernel, dim3(1), dim3(gpu::threads_for(a->rows, cross_entropy::kThreads)), 0,
                 static_cast<cudaStream_t>(stream), *a);
    });
  };
  if (a->dtype == gpuledger::F32) return launch(cross_entropy::mean_loss<float>);
  if (a->dtype == gpuledger::F64) return launch(cross_entropy::mean_loss<double>);
  return gpuledger::kUnsupportedDtype;
}
GPU_ENTRY(scale_in_place)(const gpuledger::ScaleInPlace* a, void* stream) {
  return gpu::dispatch(a->dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    if (a->numel == 0) return;
    const int64_t packs = gpu::ceil_div(a->numel, gpu::kVectorWidth<T>);
    const unsigned threads = gpu::threads_for(packs, cross_entropy::kScaleThreads);
    GPU_LAUNCH(cross_entropy::scale_in_place<T>,
               dim3(gpu::at_most(gpu::ceil_div(packs, threads), gpu::kMaxBlocks)), dim3(threads), 0,
               static_cast<cudaStream_t>(stream), *a);
  });
}
