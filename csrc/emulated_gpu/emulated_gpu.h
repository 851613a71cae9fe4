/* The emulated GPU: a stand-in for the CUDA libraries under a CUDA build of PyTorch.
 *
 * Preloaded (LD_PRELOAD), it answers every CUDA runtime, driver, NVML, cuBLAS, cuDNN and NCCL call
 * that PyTorch makes.  Addresses are handed out and capacity is counted; kernels do nothing.  So
 * the dispatcher, autograd, the kernels' host code and the compiled CUDACachingAllocator above it
 * are the real ones.
 *
 * This header declares what the files share; everything in it is hidden from the outside.
 */
#ifndef GPULEDGER_EMULATED_GPU_H
#define GPULEDGER_EMULATED_GPU_H

#include <stddef.h>
#include <stdint.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#define PAGE_BYTES 2097152ULL /* the driver maps device memory in pages of 2 MiB */
#define MAX_DEVICES 64

#pragma GCC visibility push(hidden)

/* settings.c: what the environment asks for (GPULEDGER_EMULATED_*), read once */
typedef struct {
  char name[256];
  int capability_major, capability_minor;
  int num_sms;
  int num_devices;
  uint64_t total_bytes;   /* per device, as torch sees it: cudaMemGetInfo's total */
  uint64_t context_bytes; /* per device, what a real CUDA context takes; it lowers what is free */
} Settings;
const Settings* settings(void);

/* log.c: the first call of every stand-in that was generated, not written
 * (GPULEDGER_EMULATED_TRACE) */
void log_generic_call(const char* function);

/* device.c */
int current_device(void);

/* ranges.c: an ordered table of disjoint address ranges */
typedef struct {
  uint64_t address, bytes;
  int device; /* -1: not on a device yet */
} Range;
typedef struct {
  Range* items;
  size_t count, capacity;
} RangeTable;
Range* range_containing(const RangeTable* table, uint64_t address);
size_t range_position(const RangeTable* table, uint64_t address);
int range_insert(RangeTable* table, Range range);
int range_remove(RangeTable* table, uint64_t address, Range* removed);

/* memory.c: device address space and capacity; all of these take the lock themselves */
int is_device_address(const void* address);
uint64_t reserve_addresses(uint64_t bytes, int device); /* 0: no room */
int release_addresses(uint64_t address, Range* released);
void assign_device(uint64_t address, int device);
int take_capacity(int device, uint64_t bytes); /* 1: taken, 0: out of memory */
void give_capacity(int device, uint64_t bytes);
uint64_t used_bytes(int device);

/* values.c: the few small values that survive on the device */
void remember_value(const void* device_address, const void* host_bytes, size_t bytes);
void forget_values(const void* device_address, size_t bytes);
int recall_value(const void* device_address, void* host_bytes, size_t bytes); /* 1: known */
void copy_value(void* to, const void* from, size_t bytes);
void fill_value(void* device_address, int byte, size_t bytes);

/* launches.c */
uint64_t launch_count(void);

/* streams_events.c */
void* new_handle(void); /* an opaque, never dereferenced, never repeated handle */

#pragma GCC visibility pop
#endif
