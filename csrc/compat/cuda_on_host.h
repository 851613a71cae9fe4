// Runs CUDA C++ kernel sources on the CPU, for tests: slow and strict.
//
//   default                    every CUDA thread is a fiber (host_fibers.h)
//   -DGPULEDGER_HOST_THREADS   every CUDA thread is an OS thread (host_threads.h): ThreadSanitizer
//   then
//                              finds missing barriers, AddressSanitizer accesses out of bounds
//
// It refuses what hardware may forgive: barriers that not all threads reach, masks that name absent
// lanes, deadlocks. Dynamic shared memory starts as NaN.
// GPULEDGER_HOST_ORDER=forward|reverse|<seed> permutes warps, lanes and blocks, so that a race
// shows as a result that depends on the order. Covered: what the kernels use. Not covered: PTX,
// asynchronous copies, tensor cores, clusters.
#pragma once
#include <cstdio>
#include <tuple>
#ifdef GPULEDGER_HOST_THREADS
#include "host_threads.h"
#else
#include "host_fibers.h"
#endif

namespace host_run {

template <class... Parameters, class... Arguments>
void launch_kernel(dim3 size, dim3 block, size_t shared_bytes, cudaStream_t,
                   void (*kernel)(Parameters...), Arguments&&... arguments) {
  struct Call {
    void (*kernel)(Parameters...);
    std::tuple<Parameters...> arguments;
  } call{kernel, {std::forward<Arguments>(arguments)...}};
  launch(
      size, block, shared_bytes,
      [](void* p) { std::apply(static_cast<Call*>(p)->kernel, static_cast<Call*>(p)->arguments); },
      &call);
}

template <class T>
T shuffle(unsigned mask, T value, unsigned source_lane, const char* site) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = exchange(mask, bits, source_lane, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace host_run

#define GPULEDGER_TEXT_OF(x) #x
#define GPULEDGER_TEXT(x) GPULEDGER_TEXT_OF(x)
// __COUNTER__ tells two barriers on one line apart.
#define GPULEDGER_SITE __FILE__ ":" GPULEDGER_TEXT(__LINE__) " #" GPULEDGER_TEXT(__COUNTER__)

#define threadIdx (::host_run::self().index)
#define blockIdx (::host_run::grid().block)
#define blockDim (::host_run::grid().block_size)
#define gridDim (::host_run::grid().size)
#define __syncthreads() ::host_run::barrier(GPULEDGER_SITE)
#define __shfl_xor_sync(mask, value, offset) \
  ::host_run::shuffle((mask), (value), ::host_run::self().lane ^ unsigned(offset), GPULEDGER_SITE)
#define GPU_DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(::host_run::dynamic_shared())
#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...) \
  ::host_run::launch_kernel((grid), (block), (shared_bytes), (stream), (kernel), __VA_ARGS__)

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
