#include "norm.cuh"

GPU_ENTRY(layer_norm_forward)(const gpuledger::NormForward* a, void* stream) {
  return gpu::dispatch(a->dtype, [&](auto type) {
    norms::launch_forward<typename decltype(type)::type, true>(*a, stream);
  });
}
GPU_ENTRY(layer_norm_backward)(const gpuledger::NormBackward* a, void* stream) {
  return gpu::dispatch(a->dtype, [&](auto type) {
    norms::launch_backward<typename decltype(type)::type, true>(*a, stream);
  });
}
