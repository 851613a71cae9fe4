/* The rest of the CUDA runtime that must return data. */
#include "emulated_gpu.h"

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

/* ---- memory pools: enough for backend:cudaMallocAsync and CUDA graphs to ask about them ---- */
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  *pool = (cudaMemPool_t)(uint64_t)(0x2000 + device);
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                    void* value) {
  (void)attribute;
  *(uint64_t*)value = used_bytes((int)((uint64_t)pool - 0x2000) % MAX_DEVICES);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute,
                                           void* value) {
  (void)device, (void)attribute;
  *(uint64_t*)value = 0;
  return cudaSuccess;
}
