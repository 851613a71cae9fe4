/* cuBLAS and cuBLASLt calls that must return data; every other one is generated and does nothing.
 * PyTorch allocates their workspaces itself, from its caching allocator: those are real. */
#include <string.h>

#include "emulated_gpu.h"

int cublasCreate_v2(void** handle) {
  *handle = new_handle();
  return 0;
}
int cublasGetMathMode(void* handle, int* mode) {
  (void)handle;
  *mode = 0; /* CUBLAS_DEFAULT_MATH */
  return 0;
}
int cublasGetPointerMode_v2(void* handle, int* mode) {
  (void)handle;
  *mode = 0; /* CUBLAS_POINTER_MODE_HOST */
  return 0;
}

int cublasLtCreate(void** handle) {
  *handle = new_handle();
  return 0;
}
int cublasLtMatmulDescCreate(void** description, int compute_type, int scale_type) {
  (void)compute_type, (void)scale_type;
  *description = new_handle();
  return 0;
}
int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns,
                               int64_t stride) {
  (void)type, (void)rows, (void)columns, (void)stride;
  *layout = new_handle();
  return 0;
}
int cublasLtMatmulPreferenceCreate(void** preference) {
  *preference = new_handle();
  return 0;
}

/* cublasLtMatmulHeuristicResult_t: one algorithm that needs no workspace of its own. */
typedef struct {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
} HeuristicResult;

int cublasLtMatmulAlgoGetHeuristic(void* handle, void* description, void* a, void* b, void* c,
                                   void* d, void* preference, int requested,
                                   HeuristicResult* results, int* found) {
  (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)preference;
  *found = requested > 0;
  if (*found) memset(results, 0, sizeof *results);
  return 0;
}
