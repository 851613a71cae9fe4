/* NVML (this library is also libnvidia-ml.so.1): torch.cuda.device_count, the fabric probe of
 * expandable segments, and what monitoring tools ask first.  No headers: the few types are fixed by
 * NVML's ABI. */
#include <stdio.h>

#include "emulated_gpu.h"

#define NVML_SUCCESS 0
#define NVML_ERROR_NOT_SUPPORTED 3

typedef struct {
  unsigned long long total, free, used;
} NvmlMemory;

static int device_index(const void* handle) { return (int)(uint64_t)handle - 1; }

int nvmlInit(void) { return NVML_SUCCESS; }
int nvmlInit_v2(void) { return NVML_SUCCESS; }
int nvmlInitWithFlags(unsigned flags) {
  (void)flags;
  return NVML_SUCCESS;
}
int nvmlShutdown(void) { return NVML_SUCCESS; }
const char* nvmlErrorString(int error) { return error ? "Not Supported" : "Success"; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = (unsigned)settings()->num_devices;
  return NVML_SUCCESS;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  *handle = (void*)(uint64_t)(index + 1);
  return NVML_SUCCESS;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** handle) {
  unsigned domain, bus = 1;
  sscanf(bus_id, "%x:%x", &domain, &bus);
  *handle = (void*)(uint64_t)bus;
  return NVML_SUCCESS;
}
int nvmlDeviceGetName(void* handle, char* name, unsigned length) {
  (void)handle;
  snprintf(name, length, "%s", settings()->name);
  return NVML_SUCCESS;
}
int nvmlDeviceGetUUID(void* handle, char* uuid, unsigned length) {
  snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012d", device_index(handle));
  return NVML_SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void* handle, NvmlMemory* memory) {
  const Settings* s = settings();
  int device = device_index(handle);
  uint64_t used = s->context_bytes + (device >= 0 && device < MAX_DEVICES ? used_bytes(device) : 0);
  *memory = (NvmlMemory){s->total_bytes, s->total_bytes - used, used};
  return NVML_SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
  (void)handle;
  *major = settings()->capability_major;
  *minor = settings()->capability_minor;
  return NVML_SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses(void* handle, unsigned* count, void* processes) {
  (void)handle, (void)processes;
  *count = 0;
  return NVML_SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, void* processes) {
  return nvmlDeviceGetComputeRunningProcesses(handle, count, processes);
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = CUDA_VERSION;
  return NVML_SUCCESS;
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  snprintf(version, length, "emulated");
  return NVML_SUCCESS;
}

/* No NVLink fabric: expandable segments then use plain file-descriptor handles. */
int nvmlDeviceGetGpuFabricInfoV(void* handle, void* info) {
  (void)handle, (void)info;
  return NVML_ERROR_NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* handle, unsigned link, int* type) {
  (void)handle, (void)link, (void)type;
  return NVML_ERROR_NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* handle, unsigned link, void* info) {
  (void)handle, (void)link, (void)info;
  return NVML_ERROR_NOT_SUPPORTED;
}
