// Shared by kernels/*.cu: the prefix of the entry points, the dtype switch, the error return.
#pragma once
#include "../compat/gpu.h"
#include "../include/kernels.h"

#ifdef __CUDACC__
#define GPU_ENTRY(name) extern "C" int gpuledger_cuda_##name
#else
#define GPU_ENTRY(name) extern "C" int gpuledger_host_##name
#endif

namespace gpu {

template <class T>
struct Type {
  using type = T;
};

template <class Launch>
int status_of(Launch&& launch) {
#ifdef __CUDACC__
  launch();
  return int(cudaGetLastError());
#else
  try {
    launch();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return gpuledger::kHostRunFailed;
  }
  return gpuledger::kOk;
#endif
}

// Calls launch(Type<T>()) for the T that dtype names.
template <class Launch>
int dispatch(int dtype, Launch&& launch) {
  switch (dtype) {
    case gpuledger::F32:
      return status_of([&] { launch(Type<float>()); });
#ifndef GPULEDGER_ONLY_F32  // the planted-bug tests compile one dtype, to be quick
    case gpuledger::BF16:
      return status_of([&] { launch(Type<__nv_bfloat16>()); });
    case gpuledger::F16:
      return status_of([&] { launch(Type<__half>()); });
    case gpuledger::F64:
      return status_of([&] { launch(Type<double>()); });
#endif
  }
  return gpuledger::kUnsupportedDtype;
}

}  // namespace gpu
