/* The few values that survive on the device.
 *
 * Device memory holds nothing and reads back as zeros.  But libraries send small values to the
 * device only to read them back (DDP's bucket order, "does every rank agree?" checks, gathered
 * objects), and break on zeros.  So small values that came from the host, or from a collective on
 * such values, are remembered. They are served until something else is written there, or MAX_AGE
 * kernels have been launched since: any kernel may have written there, and freed addresses are
 * reused.  What a kernel computes, fills included, is never known. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "emulated_gpu.h"

#define MAX_VALUES 512
#define MAX_VALUE_BYTES (1 << 20)
#define MAX_AGE 64

typedef struct {
  const char* address;
  size_t bytes;
  char* content;
  uint64_t written_at; /* launch count */
} Value;

static Value values[MAX_VALUES];
static int next_slot;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(Value* value) {
  free(value->content);
  memset(value, 0, sizeof *value);
}

static void drop_overlapping(const char* address, size_t bytes) {
  for (int i = 0; i < MAX_VALUES; i++) {
    Value* value = &values[i];
    if (value->content && value->address < address + bytes &&
        address < value->address + value->bytes)
      drop(value);
  }
}

void remember_value(const void* device_address, const void* host_bytes, size_t bytes) {
  pthread_mutex_lock(&lock);
  drop_overlapping(device_address, bytes);
  char* content = bytes && bytes <= MAX_VALUE_BYTES ? malloc(bytes) : NULL;
  if (content) {
    memcpy(content, host_bytes, bytes);
    drop(&values[next_slot]);
    values[next_slot] = (Value){device_address, bytes, content, launch_count()};
    next_slot = (next_slot + 1) % MAX_VALUES;
  }
  pthread_mutex_unlock(&lock);
}

void forget_values(const void* device_address, size_t bytes) {
  pthread_mutex_lock(&lock);
  drop_overlapping(device_address, bytes);
  pthread_mutex_unlock(&lock);
}

int recall_value(const void* device_address, void* host_bytes, size_t bytes) {
  const char* address = device_address;
  int known = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MAX_VALUES && !known; i++) {
    const Value* value = &values[i];
    if (!value->content || address < value->address || launch_count() - value->written_at > MAX_AGE)
      continue;
    if (address + bytes > value->address + value->bytes) continue;
    memcpy(host_bytes, value->content + (address - value->address), bytes);
    known = 1;
  }
  pthread_mutex_unlock(&lock);
  return known;
}

/* From anywhere to anywhere, by unified addresses. */
void copy_value(void* to, const void* from, size_t bytes) {
  int to_device = is_device_address(to), from_device = is_device_address(from);
  if (!to_device && !from_device) {
    memmove(to, from, bytes);
  } else if (!to_device) {
    if (!recall_value(from, to, bytes)) memset(to, 0, bytes);
  } else if (!from_device) {
    remember_value(to, from, bytes);
  } else {
    char* content = bytes && bytes <= MAX_VALUE_BYTES ? malloc(bytes) : NULL;
    if (content && recall_value(from, content, bytes))
      remember_value(to, content, bytes);
    else
      forget_values(to, bytes);
    free(content);
  }
}

void fill_value(void* address, int byte, size_t bytes) {
  if (is_device_address(address))
    forget_values(address, bytes);
  else
    memset(address, byte, bytes);
}

/* ---- the runtime's copies ---- */
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind) {
  (void)kind;
  copy_value(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  (void)stream;
  return cudaMemcpy(to, from, bytes, kind);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  (void)to_device, (void)from_device, (void)stream;
  copy_value(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream) {
  (void)kind, (void)stream;
  if (is_device_address(to)) return cudaSuccess;
  for (size_t row = 0; row < height; row++)
    copy_value((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* address, int byte, size_t bytes) {
  fill_value(address, byte, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* address, int byte, size_t bytes, cudaStream_t stream) {
  (void)stream;
  return cudaMemset(address, byte, bytes);
}
