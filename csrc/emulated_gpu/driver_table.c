/* The driver API: this library is also libcuda.so.1.  PyTorch looks driver functions up by name at
 * run time; every one that cuda.h declares is exported here, written or generated, so a look-up is
 * a dlsym. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "emulated_gpu.h"

static int unknown_function(void) { return 0; }

static void* entry_point(const char* name) {
  static void* self;
  Dl_info where;
  if (!self && dladdr((void*)entry_point, &where))
    self = dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  void* function = self ? dlsym(self, name) : NULL;
  if (function) return function;
  log_generic_call(name);
  return (void*)unknown_function;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult* status) {
  (void)version, (void)flags;
  *function = entry_point(name);
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t driver_entry_point(
    const char* name, void** function, unsigned long long flags,
    enum cudaDriverEntryPointQueryResult* status) __asm__("cudaGetDriverEntryPoint");
cudaError_t driver_entry_point(const char* name, void** function, unsigned long long flags,
                               enum cudaDriverEntryPointQueryResult* status) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, status);
}
CUresult proc_address(const char* name, void** function, int version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult* status) __asm__("cuGetProcAddress_v2");
CUresult proc_address(const char* name, void** function, int version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult* status) {
  (void)version, (void)flags;
  *function = entry_point(name);
  if (status) *status = CU_GET_PROC_ADDRESS_SUCCESS;
  return CUDA_SUCCESS;
}

/* ---- devices and contexts: one context, always current ---- */
#define THE_CONTEXT ((CUcontext)0x1000)

CUresult cuDriverGetVersion(int* version) {
  *version = CUDA_VERSION;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = settings()->num_devices;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  (void)device;
  snprintf(name, (size_t)length, "%s", settings()->name);
  return CUDA_SUCCESS;
}
/* cudaDeviceAttr and CUdevice_attribute share their numbers. */
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return (CUresult)cudaDeviceGetAttribute(value, (enum cudaDeviceAttr)attribute, device);
}
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  (void)device;
  if (flags) *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  (void)device;
  *context = THE_CONTEXT;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = THE_CONTEXT;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "emulated GPU error";
  return CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }

/* ---- modules: what Triton and NVRTC load ---- */
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  (void)image;
  *module = new_handle();
  return CUDA_SUCCESS;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned num_options,
                            CUjit_option* options, void** values) {
  (void)num_options, (void)options, (void)values;
  return cuModuleLoadData(module, image);
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  (void)module, (void)name;
  *function = new_handle();
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  (void)function;
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
           : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                  : 0;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function, int threads,
                                                     size_t shared) {
  (void)function, (void)threads, (void)shared;
  *blocks = 2;
  return CUDA_SUCCESS;
}
