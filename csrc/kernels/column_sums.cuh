// Second stage of a sum over rows: out[c] = sum over p of partials[p, c], always in the same order.
//   partials: accumulator [num_partials, cols]; out: [cols] of T, or of the accumulator's dtype
#pragma once
#include "../compat/gpu.h"

namespace column_sums {
using namespace gpu;

constexpr int kRowLanes = 8;

template <class T>
__global__ void __launch_bounds__(kWarp* kRowLanes)
    reduce(const acc_t<T>* partials, void* out, bool wide, int64_t num_partials, int64_t cols) {
  using A = acc_t<T>;
  __shared__ A tile[kRowLanes][kWarp + 1];  // + 1: no two lanes of a column share a bank
  const int64_t c = int64_t(blockIdx.x) * kWarp + threadIdx.x;
  A sum = 0;
  if (c < cols)
    for (int64_t p = threadIdx.y; p < num_partials; p += kRowLanes) sum += partials[p * cols + c];
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= cols) return;
  sum = 0;
#pragma unroll
  for (int i = 0; i < kRowLanes; ++i) sum += tile[i][threadIdx.x];
  if (wide)
    static_cast<A*>(out)[c] = sum;
  else
    static_cast<T*>(out)[c] = down<T>(sum);
}

template <class T>
void launch(const void* partials, void* out, bool wide, int64_t num_partials, int64_t cols,
            void* stream) {
  GPU_LAUNCH(reduce<T>, dim3(unsigned(ceil_div(cols, kWarp))), dim3(kWarp, kRowLanes), 0,
             static_cast<cudaStream_t>(stream), static_cast<const acc_t<T>*>(partials), out, wide,
             num_partials, cols);
}

}  // namespace column_sums
