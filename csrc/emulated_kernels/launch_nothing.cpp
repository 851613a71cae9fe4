// What the binding calls for CUDA tensors on the emulated GPU: nothing runs there. The binding
// checks and allocates as it does on a GPU, so that memory is the same, and no nvcc is needed.
#include "../include/kernels.h"

#define LAUNCH_NOTHING(NAME, ARGUMENTS)                                               \
  extern "C" int gpuledger_cuda_##NAME(const gpuledger::ARGUMENTS*, void* /*stream*/) { \
    return gpuledger::kOk;                                                            \
  }

LAUNCH_NOTHING(rms_norm_forward, NormForward)
LAUNCH_NOTHING(rms_norm_backward, NormBackward)
LAUNCH_NOTHING(layer_norm_forward, NormForward)
LAUNCH_NOTHING(layer_norm_backward, NormBackward)
LAUNCH_NOTHING(bias_gelu_forward, BiasGeluForward)
LAUNCH_NOTHING(bias_gelu_backward, BiasGeluBackward)
LAUNCH_NOTHING(swiglu_forward, SwigluForward)
LAUNCH_NOTHING(swiglu_backward, SwigluBackward)
LAUNCH_NOTHING(count_targets, CountTargets)
LAUNCH_NOTHING(cross_entropy_rows, CrossEntropyRows)
LAUNCH_NOTHING(mean_loss, MeanLoss)
LAUNCH_NOTHING(scale_in_place, ScaleInPlace)
LAUNCH_NOTHING(rotary, Rotary)
LAUNCH_NOTHING(dropout, Dropout)
LAUNCH_NOTHING(adamw, AdamW)
