/* Device memory: addresses that nothing stands behind, and a capacity that runs out where a card's
 * would.
 *
 * Addresses are never reused until the space is used up, then the next gap that fits is taken: the
 * order in which the allocation traces of real GPUs hand out segments. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulated_gpu.h"

#define SPACE_BYTES \
  (16ULL << 40) /* expandable segments reserve 9/8 of a card for each pool and stream */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t space_start, space_end, next_address;
static RangeTable live;
static uint64_t device_used_bytes[MAX_DEVICES];

static uint64_t whole_pages(uint64_t bytes) {
  return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* The address space is reserved, so that no host allocation can land in it; nothing is ever mapped.
 */
static void reserve_space(void) {
  if (space_start) return;
  for (uint64_t bytes = SPACE_BYTES; bytes >= (1ULL << 38); bytes /= 2) {
    void* start = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) continue;
    space_start = whole_pages((uint64_t)start);
    space_end = (uint64_t)start + bytes;
    break;
  }
  next_address = space_start;
}

int is_device_address(const void* address) {
  return space_start && (uint64_t)address >= space_start && (uint64_t)address < space_end;
}

static uint64_t gap_at_or_after(uint64_t start, uint64_t bytes) {
  size_t position = range_position(&live, start);
  if (position > 0) {
    Range before = live.items[position - 1];
    if (before.address + before.bytes > start) start = before.address + before.bytes;
  }
  for (; position < live.count; position++) {
    if (live.items[position].address - start >= bytes) return start;
    start = live.items[position].address + live.items[position].bytes;
  }
  return space_end - start >= bytes ? start : 0;
}

uint64_t reserve_addresses(uint64_t bytes, int device) {
  bytes = whole_pages(bytes ? bytes : 1);
  pthread_mutex_lock(&lock);
  reserve_space();
  uint64_t address = gap_at_or_after(next_address, bytes);
  if (!address) address = gap_at_or_after(space_start, bytes);
  if (address && range_insert(&live, (Range){address, bytes, device}))
    next_address = address + bytes;
  else
    address = 0;
  pthread_mutex_unlock(&lock);
  return address;
}

int release_addresses(uint64_t address, Range* released) {
  pthread_mutex_lock(&lock);
  int found = range_remove(&live, address, released);
  pthread_mutex_unlock(&lock);
  return found;
}

void assign_device(uint64_t address, int device) {
  pthread_mutex_lock(&lock);
  Range* range = range_containing(&live, address);
  if (range) range->device = device;
  pthread_mutex_unlock(&lock);
}

static int device_of(const void* address) {
  pthread_mutex_lock(&lock);
  Range* range = range_containing(&live, (uint64_t)address);
  int device = range && range->device >= 0 ? range->device : 0;
  pthread_mutex_unlock(&lock);
  return device;
}

int take_capacity(int device, uint64_t bytes) {
  const Settings* s = settings();
  pthread_mutex_lock(&lock);
  int fits = device_used_bytes[device] + bytes + s->context_bytes <= s->total_bytes;
  if (fits) device_used_bytes[device] += bytes;
  pthread_mutex_unlock(&lock);
  return fits;
}

void give_capacity(int device, uint64_t bytes) {
  pthread_mutex_lock(&lock);
  device_used_bytes[device] -= bytes;
  pthread_mutex_unlock(&lock);
}

uint64_t used_bytes(int device) { return device_used_bytes[device]; }

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  int device = current_device();
  uint64_t pages = whole_pages(bytes ? bytes : 1);
  *pointer = NULL;
  if (!take_capacity(device, pages)) return cudaErrorMemoryAllocation;
  *pointer = (void*)reserve_addresses(pages, device);
  if (*pointer) return cudaSuccess;
  give_capacity(device, pages);
  return cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void* pointer) {
  Range released;
  if (!pointer) return cudaSuccess;
  if (release_addresses((uint64_t)pointer, &released))
    give_capacity(released.device, released.bytes);
  else
    free(pointer); /* cudaMallocManaged below */
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** pointer, size_t bytes, cudaStream_t stream) {
  (void)stream;
  return cudaMalloc(pointer, bytes);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) {
  (void)stream;
  return cudaFree(pointer);
}

/* Managed memory may be touched by the host, so it is host memory; it is not counted on the device.
 */
cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  (void)flags;
  return posix_memalign(pointer, 4096, bytes ? bytes : 1) ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Settings* s = settings();
  uint64_t used = used_bytes(current_device()) + s->context_bytes;
  *total_bytes = s->total_bytes;
  *free_bytes = used < s->total_bytes ? s->total_bytes - used : 0;
  return cudaSuccess;
}

/* ---- pinned host memory: real memory, remembered so that Tensor.is_pinned() is answered rightly
 * ---- */
static RangeTable pinned;

static void pin(void* pointer, size_t bytes) {
  pthread_mutex_lock(&lock);
  range_insert(&pinned, (Range){(uint64_t)pointer, bytes ? bytes : 1, -1});
  pthread_mutex_unlock(&lock);
}
static void unpin(void* pointer) {
  pthread_mutex_lock(&lock);
  range_remove(&pinned, (uint64_t)pointer, NULL);
  pthread_mutex_unlock(&lock);
}
static int is_pinned(const void* pointer) {
  pthread_mutex_lock(&lock);
  int found = range_containing(&pinned, (uint64_t)pointer) != NULL;
  pthread_mutex_unlock(&lock);
  return found;
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  (void)flags;
  if (posix_memalign(pointer, 4096, bytes ? bytes : 1)) return cudaErrorMemoryAllocation;
  pin(*pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  return cudaHostAlloc(pointer, bytes, 0);
}
cudaError_t cudaFreeHost(void* pointer) {
  unpin(pointer);
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  (void)flags;
  pin(pointer, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* pointer) {
  unpin(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostGetDevicePointer(void** device_pointer, void* host_pointer, unsigned flags) {
  (void)flags;
  *device_pointer = host_pointer; /* unified addressing */
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* attributes,
                                     const void* pointer) {
  memset(attributes, 0, sizeof *attributes);
  if (is_device_address(pointer)) {
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = device_of(pointer);
    attributes->devicePointer = (void*)pointer;
  } else if (is_pinned(pointer)) {
    attributes->type = cudaMemoryTypeHost;
    attributes->devicePointer = attributes->hostPointer = (void*)pointer;
  } else {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2; /* cudaInvalidDeviceId */
    attributes->hostPointer = (void*)pointer;
  }
  return cudaSuccess;
}
