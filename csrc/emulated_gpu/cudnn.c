/* cuDNN: its graph interface (fused attention, convolutions) and batch normalization.
 *
 * A graph is built, "one engine supports it" is the answer, its plan wants no workspace, and
 * running it does nothing.  PyTorch allocates outputs and what is saved for backward, so those are
 * real; what the real plan would want as workspace is known to cuDNN on a real GPU alone, and is
 * not counted here. RNNs, CTC loss and the older convolution interface answer "not supported"
 * instead of guessing sizes. */
#include <stddef.h>
#include <stdint.h>

#include "emulated_gpu.h"

/* Fixed by cuDNN's ABI (cudnn_graph.h). */
enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_SUPPORTED = 3000 };
enum { TYPE_INT64 = 3, TYPE_INT32 = 23, TYPE_CHAR = 24 };
enum { ENGINE_HEURISTIC_RESULTS = 202, ENGINE_CONFIG_ENGINE = 300, GRAPH_ENGINE_COUNT = 802 };

int cudnnCreate(void** handle) {
  *handle = new_handle();
  return CUDNN_STATUS_SUCCESS;
}
int cudnnBackendCreateDescriptor(int type, void** descriptor) {
  (void)type;
  *descriptor = new_handle();
  return CUDNN_STATUS_SUCCESS;
}

int cudnnBackendGetAttribute(void* descriptor, int attribute, int type, int64_t requested,
                             int64_t* count, void* elements) {
  (void)descriptor;
  int is_number = type == TYPE_INT64 || type == TYPE_INT32 || type == TYPE_CHAR;
  int is_one_engine = attribute == ENGINE_HEURISTIC_RESULTS || attribute == ENGINE_CONFIG_ENGINE;
  if (count) *count = is_number || is_one_engine; /* everything else is an empty list */
  if (!is_number || requested < 1 || !elements) return CUDNN_STATUS_SUCCESS;
  if (type == TYPE_INT64) *(int64_t*)elements = attribute == GRAPH_ENGINE_COUNT;
  if (type == TYPE_INT32) *(int32_t*)elements = 0;
  if (type == TYPE_CHAR) *(char*)elements = '\0';
  return CUDNN_STATUS_SUCCESS;
}

/* ---- batch normalization: no workspace, no reserve ---- */
int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void* handle, int mode, int ops,
                                                             void* x, void* z, void* y, void* scale,
                                                             void* activation, size_t* bytes) {
  (void)handle, (void)mode, (void)ops, (void)x, (void)z, (void)y, (void)scale, (void)activation;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void* handle, int mode, int ops, void* x,
                                                      void* y, void* dy, void* dz, void* dx,
                                                      void* scale, void* activation,
                                                      size_t* bytes) {
  (void)handle, (void)mode, (void)ops, (void)x, (void)y, (void)dy, (void)dz, (void)dx, (void)scale;
  (void)activation;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}
int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void* handle, int mode, int ops,
                                                         void* activation, void* x, size_t* bytes) {
  (void)handle, (void)mode, (void)ops, (void)activation, (void)x;
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}

/* ---- what would need sizes that only cuDNN knows ---- */
int cudnnSetRNNDescriptor_v8(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnDropoutGetStatesSize(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnGetCTCLossWorkspaceSize(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnGetCTCLossWorkspaceSize_v8(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnGetConvolutionForwardAlgorithm_v7(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnGetConvolutionBackwardDataAlgorithm_v7(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnFindConvolutionForwardAlgorithmEx(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnFindConvolutionBackwardDataAlgorithmEx(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
int cudnnFindConvolutionBackwardFilterAlgorithmEx(void) { return CUDNN_STATUS_NOT_SUPPORTED; }
