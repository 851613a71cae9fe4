// y = gelu(x + bias), x: [rows, cols], bias: [cols] or null.
//
// A thread owns VEC neighbouring columns and walks down the rows of its slice, so that it reads the
// bias once and keeps its share of the bias gradient in registers. Without a bias the whole tensor
// is one row.
#include "activation.cuh"

namespace bias_gelu {
using namespace activation;
using gpuledger::BiasGeluBackward;
using gpuledger::BiasGeluForward;

template <class T, int VEC>
__device__ __forceinline__ Pack<acc_t<T>, VEC> load_bias(const void* bias, int64_t c) {
  return bias ? load_parameter<T, VEC>(bias, false, c) : Pack<acc_t<T>, VEC>{};
}

// One group of N columns, N being VEC, or 1 in the tail.
template <class T, int N, bool TANH>
__device__ __forceinline__ void forward_columns(const BiasGeluForward& a, int64_t c) {
  const Pack<acc_t<T>, N> bias = load_bias<T, N>(a.bias, c);
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    Pack<T, N> v = load<T, N>(static_cast<const T*>(a.x) + row * a.cols + c);
#pragma unroll
    for (int i = 0; i < N; ++i) v.v[i] = down<T>(gelu<TANH>(up(v.v[i]) + bias.v[i]));
    store<T, N>(static_cast<T*>(a.y) + row * a.cols + c, v);
  }
}
template <class T, int N, bool TANH>
__device__ __forceinline__ void backward_columns(const BiasGeluBackward& a, int64_t c) {
  using A = acc_t<T>;
  const Pack<A, N> bias = load_bias<T, N>(a.bias, c);
  Pack<A, N> sum{};
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const Pack<T, N> x = load<T, N>(static_cast<const T*>(a.x) + row * a.cols + c);
    Pack<T, N> g = load<T, N>(static_cast<const T*>(a.dy) + row * a.cols + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const A dx = up(g.v[i]) * gelu_slope<TANH>(up(x.v[i]) + bias.v[i]);
      g.v[i] = down<T>(dx);
      sum.v[i] += dx;
    }
    store<T, N>(static_cast<T*>(a.dx) + row * a.cols + c, g);
  }
  if (a.dbias) store<A, N>(static_cast<A*>(a.partials) + blockIdx.y * a.cols + c, sum);
}

template <class T, int VEC, bool TANH, class Arguments>
__global__ void __launch_bounds__(kThreads) run(Arguments a) {
  const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
  const auto columns = [&](auto width, int64_t c) {
    constexpr int N = decltype(width)::value;
    if constexpr (std::is_same_v<Arguments, BiasGeluForward>)
      forward_columns<T, N, TANH>(a, c);
    else
      backward_columns<T, N, TANH>(a, c);
  };
  if (first + VEC <= a.cols)
    columns(std::integral_constant<int, VEC>(), first);
  else
    for (int64_t c = first; c < a.cols; ++c) columns(std::integral_constant<int, 1>(), c);
}

template <class T, class Arguments>
void launch(Arguments a, int64_t slices, bool pointers_aligned, void* stream) {
  constexpr int V = kVectorWidth<T>;
  if (a.cols == 0) slices = 0;  // without rows, the partial sums still have to become 0
  const bool vector = pointers_aligned && (a.rows == 1 || a.cols % V == 0);
  const int64_t packs = vector ? ceil_div(a.cols, V) : a.cols;
  const unsigned threads = threads_for(packs, kThreads);
  auto* const narrow =
      a.tanh_approximation ? run<T, 1, true, Arguments> : run<T, 1, false, Arguments>;
  auto* const wide =
      a.tanh_approximation ? run<T, V, true, Arguments> : run<T, V, false, Arguments>;
  if (slices)
    GPU_LAUNCH(vector ? wide : narrow, dim3(unsigned(ceil_div(packs, threads)), unsigned(slices)),
               dim3(threads), 0, static_cast<cudaStream_t>(stream), a);
}

template <class Arguments>
Arguments flattened(Arguments a) {
  if (a.bias) return a;
  a.cols *= a.rows;
  a.rows = 1;
  return a;
}

}  // namespace bias_gelu

GPU_ENTRY(bias_gelu_forward)(const gpuledger::BiasGeluForward* given, void* stream) {
  const gpuledger::BiasGeluForward a = bias_gelu::flattened(*given);
  return gpu::dispatch(a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const int64_t slices = a.rows < bias_gelu::kMaxSlices ? a.rows : bias_gelu::kMaxSlices;
    bias_gelu::launch<T>(a, slices, gpu::aligned({a.x, a.bias, a.y}), stream);
  });
}
GPU_ENTRY(bias_gelu_backward)(const gpuledger::BiasGeluBackward* given, void* stream) {
  const gpuledger::BiasGeluBackward a = bias_gelu::flattened(*given);
  return gpu::dispatch(a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool aligned = gpu::aligned({a.dy, a.x, a.bias, a.dx, a.partials});
    bias_gelu::launch<T>(a, a.dbias ? a.num_partials : 1, aligned, stream);
    if (a.dbias && a.cols)
      column_sums::launch<T>(a.partials, a.dbias, false, a.num_partials, a.cols, stream);
  });
}
