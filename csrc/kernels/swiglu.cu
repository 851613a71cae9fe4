// y = silu(gate) * up, silu(v) = v / (1 + exp(-v)). Rows may be strided: gate and up can be the
// halves of one matmul's output. Backward recomputes the sigmoid.
#include "activation.cuh"

namespace swiglu {
using namespace activation;
using gpuledger::SwigluBackward;
using gpuledger::SwigluForward;

template <class T, int N>
__device__ __forceinline__ void columns(const SwigluForward& a, int64_t row, int64_t c) {
  using A = acc_t<T>;
  const auto gate = load<T, N>(static_cast<const T*>(a.gate) + row * a.gate_stride + c);
  const auto upper = load<T, N>(static_cast<const T*>(a.up) + row * a.up_stride + c);
  Pack<T, N> y;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const A v = up(gate.v[i]);
    y.v[i] = down<T>(v / (A(1) + exp_(-v)) * up(upper.v[i]));
  }
  store<T, N>(static_cast<T*>(a.y) + row * a.y_stride + c, y);
}
template <class T, int N>
__device__ __forceinline__ void columns(const SwigluBackward& a, int64_t row, int64_t c) {
  using A = acc_t<T>;
  const auto dy = load<T, N>(static_cast<const T*>(a.dy) + row * a.dy_stride + c);
  const auto gate = load<T, N>(static_cast<const T*>(a.gate) + row * a.gate_stride + c);
  const auto upper = load<T, N>(static_cast<const T*>(a.up) + row * a.up_stride + c);
  Pack<T, N> dgate, dup;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const A v = up(gate.v[i]), s = sigmoid(v), g = up(dy.v[i]);
    dgate.v[i] = down<T>(g * up(upper.v[i]) * s * (A(1) + v * (A(1) - s)));
    dup.v[i] = down<T>(g * v * s);
  }
  store<T, N>(static_cast<T*>(a.dgate) + row * a.dgate_stride + c, dgate);
  store<T, N>(static_cast<T*>(a.dup) + row * a.dup_stride + c, dup);
}

template <class T, int VEC, class Arguments>
__global__ void __launch_bounds__(kThreads) run(Arguments a) {
  const int64_t first = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    if (first + VEC <= a.cols)
      columns<T, VEC>(a, row, first);
    else
      for (int64_t c = first; c < a.cols; ++c) columns<T, 1>(a, row, c);
  }
}

// Every row starts on a 16-byte boundary, or there is only one.
template <class T>
bool vectorizable(int64_t rows, bool pointers_aligned, std::initializer_list<int64_t> strides) {
  for (int64_t stride : strides)
    if (rows > 1 && stride % kVectorWidth<T>) return false;
  return pointers_aligned;
}

template <class T, class Arguments>
void launch(const Arguments& a, bool vector, void* stream) {
  constexpr int V = kVectorWidth<T>;
  if (a.rows == 0 || a.cols == 0) return;
  const int64_t packs = vector ? ceil_div(a.cols, V) : a.cols;
  const unsigned threads = threads_for(packs, kThreads);
  auto* const kernel = vector ? run<T, V, Arguments> : run<T, 1, Arguments>;
  GPU_LAUNCH(kernel, dim3(unsigned(ceil_div(packs, threads)), at_most(a.rows, kMaxSlices)),
             dim3(threads), 0, static_cast<cudaStream_t>(stream), a);
}

// Rows that follow each other without a gap are one long row.
template <class Arguments>
Arguments flattened(Arguments a, bool dense) {
  if (!dense) return a;
  a.cols *= a.rows;
  a.rows = 1;
  return a;
}

}  // namespace swiglu

GPU_ENTRY(swiglu_forward)(const gpuledger::SwigluForward* given, void* stream) {
  const int64_t n = given->cols;
  const bool dense = given->gate_stride == n && given->up_stride == n && given->y_stride == n;
  const auto a = swiglu::flattened(*given, dense);
  return gpu::dispatch(a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vector = swiglu::vectorizable<T>(a.rows, gpu::aligned({a.gate, a.up, a.y}),
                                                {a.gate_stride, a.up_stride, a.y_stride});
    swiglu::launch<T>(a, vector, stream);
  });
}
GPU_ENTRY(swiglu_backward)(const gpuledger::SwigluBackward* given, void* stream) {
  const int64_t n = given->cols;
  const bool dense = given->dy_stride == n && given->gate_stride == n && given->up_stride == n &&
                     given->dgate_stride == n && given->dup_stride == n;
  const auto a = swiglu::flattened(*given, dense);
  return gpu::dispatch(a.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vector = swiglu::vectorizable<T>(
        a.rows, gpu::aligned({a.dy, a.gate, a.up, a.dgate, a.dup}),
        {a.dy_stride, a.gate_stride, a.up_stride, a.dgate_stride, a.dup_stride});
    swiglu::launch<T>(a, vector, stream);
  });
}
