/* The driver's virtual memory calls, which PyTorch's expandable segments are built on: addresses
 * are reserved once, physical memory is created and mapped piece by piece.  Only what is created
 * counts. */
#include <pthread.h>

#include "emulated_gpu.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static RangeTable physical; /* handle -> bytes and device */
static uint64_t next_handle = 1;

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option) {
  (void)properties, (void)option;
  *granularity = PAGE_BYTES;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  (void)alignment, (void)hint, (void)flags;
  *address = reserve_addresses(bytes, -1);
  return *address ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  (void)bytes;
  return release_addresses(address, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* properties, unsigned long long flags) {
  (void)flags;
  int device = properties->location.id;
  if (!take_capacity(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  pthread_mutex_lock(&lock);
  *handle = next_handle++;
  range_insert(&physical, (Range){*handle, bytes, device});
  pthread_mutex_unlock(&lock);
  return CUDA_SUCCESS;
}

/* Handles are neighbours, sizes are not address spans here: a handle is found by its number alone.
 */
static Range* physical_memory(CUmemGenericAllocationHandle handle) {
  size_t position = range_position(&physical, handle);
  Range* range = position ? &physical.items[position - 1] : NULL;
  return range && range->address == handle ? range : NULL;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
  (void)bytes, (void)offset, (void)flags;
  pthread_mutex_lock(&lock);
  Range* memory = physical_memory(handle);
  int device = memory ? memory->device : -1;
  pthread_mutex_unlock(&lock);
  if (device < 0) return CUDA_ERROR_INVALID_VALUE;
  assign_device(address, device);
  return CUDA_SUCCESS;
}

/* PyTorch unmaps before it releases, and maps a handle once, so memory goes when its handle does.
 */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Range released = {0, 0, -1};
  pthread_mutex_lock(&lock);
  Range* memory = physical_memory(handle);
  if (memory) {
    released = *memory;
    range_remove(&physical, handle, NULL);
  }
  pthread_mutex_unlock(&lock);
  if (released.device < 0) return CUDA_ERROR_INVALID_VALUE;
  give_capacity(released.device, released.bytes);
  return CUDA_SUCCESS;
}
