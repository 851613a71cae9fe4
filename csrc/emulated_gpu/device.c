/* Devices: how many, which one is current, and their properties.
 *
 * Limits per compute capability: CUDA C++ Programming Guide, "Technical Specifications per Compute
 * Capability".  PyTorch's host code sizes scratch buffers with them (reductions, attention splits).
 */
#include <stdio.h>
#include <string.h>

#include "emulated_gpu.h"

#undef cudaGetDeviceProperties

typedef struct {
  int capability; /* ten times major plus minor */
  int max_threads_per_sm, max_blocks_per_sm;
  int shared_bytes_per_sm, shared_bytes_per_block_optin;
  int l2_bytes;
} Limits;

static const Limits LIMITS[] = {
    {70, 2048, 32, 98304, 98304, 6291456},      {75, 1024, 16, 65536, 65536, 4194304},
    {80, 2048, 32, 167936, 166912, 41943040},   {86, 1536, 16, 102400, 101376, 6291456},
    {89, 1536, 24, 102400, 101376, 75497472},   {90, 2048, 32, 233472, 232448, 52428800},
    {100, 2048, 32, 233472, 232448, 132644864}, {120, 1536, 24, 102400, 101376, 100663296},
};

/* The newest generation that is not newer than the device. */
static const Limits* limits(void) {
  const Settings* s = settings();
  const Limits* found = &LIMITS[0];
  for (size_t i = 0; i < sizeof LIMITS / sizeof *LIMITS; i++)
    if (LIMITS[i].capability <= 10 * s->capability_major + s->capability_minor) found = &LIMITS[i];
  return found;
}

static __thread int the_current_device = 0;
int current_device(void) { return the_current_device; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = settings()->num_devices;
  return *count ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaGetDevice(int* device) {
  *device = the_current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= settings()->num_devices) return cudaErrorInvalidDevice;
  the_current_device = device;
  return cudaSuccess;
}

/* CUDA 12 headers rename this entry point with a macro and CUDA 13 headers do not; asm labels
 * export both. */
cudaError_t device_properties(struct cudaDeviceProp* p,
                              int device) __asm__("cudaGetDeviceProperties");
cudaError_t device_properties(struct cudaDeviceProp* p, int device) {
  const Settings* s = settings();
  const Limits* limit = limits();
  if (device < 0 || device >= s->num_devices) return cudaErrorInvalidDevice;
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "%s", s->name);
  memcpy(p->uuid.bytes, "gpuledger-emul", 14);
  p->uuid.bytes[15] = (char)device;
  p->totalGlobalMem = s->total_bytes;
  p->major = s->capability_major;
  p->minor = s->capability_minor;
  p->multiProcessorCount = s->num_sms;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = (size_t)limit->shared_bytes_per_block_optin;
  p->sharedMemPerMultiprocessor = (size_t)limit->shared_bytes_per_sm;
  p->reservedSharedMemPerBlock = 1024;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = limit->max_threads_per_sm;
  p->maxBlocksPerMultiProcessor = limit->max_blocks_per_sm;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->memPitch = 2147483647;
  p->textureAlignment = 512;
  p->l2CacheSize = limit->l2_bytes;
  p->memoryBusWidth = 5120;
  p->asyncEngineCount = 3;
  p->pciBusID = 1 + device;
  p->ECCEnabled = p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = 1;
  p->streamPrioritiesSupported = p->managedMemory = p->cooperativeLaunch = p->memoryPoolsSupported =
      1;
  return cudaSuccess;
}
cudaError_t device_properties_v2(struct cudaDeviceProp* p,
                                 int device) __asm__("cudaGetDeviceProperties_v2");
cudaError_t device_properties_v2(struct cudaDeviceProp* p, int device) {
  return device_properties(p, device);
}

cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp p;
  cudaError_t error = device_properties(&p, device);
  *value = 0;
  if (error) return error;
  switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = p.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxBlockDimX:
      *value = p.maxThreadsDim[0];
      break;
    case cudaDevAttrMaxBlockDimY:
      *value = p.maxThreadsDim[1];
      break;
    case cudaDevAttrMaxBlockDimZ:
      *value = p.maxThreadsDim[2];
      break;
    case cudaDevAttrMaxGridDimX:
      *value = p.maxGridSize[0];
      break;
    case cudaDevAttrMaxGridDimY:
      *value = p.maxGridSize[1];
      break;
    case cudaDevAttrMaxGridDimZ:
      *value = p.maxGridSize[2];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = (int)p.sharedMemPerBlock;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = (int)p.sharedMemPerBlockOptin;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = (int)p.sharedMemPerMultiprocessor;
      break;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      *value = (int)p.reservedSharedMemPerBlock;
      break;
    case cudaDevAttrWarpSize:
      *value = p.warpSize;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = p.regsPerBlock;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = p.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = p.maxThreadsPerMultiProcessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = p.maxBlocksPerMultiProcessor;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = p.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = p.minor;
      break;
    case cudaDevAttrL2CacheSize:
      *value = p.l2CacheSize;
      break;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrMemoryPoolsSupported:
      *value = 1;
      break;
    default:
      break; /* absent features: multicast, fabric handles, GPUDirect */
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  snprintf(text, (size_t)length, "0000:%02x:00.0", 1 + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}
