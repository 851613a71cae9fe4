/* Streams, events and graph capture.  Work is done the moment it is submitted, so every event is
 * complete and every stream is idle: a block that waits for an event is freed at the next look,
 * never later. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulated_gpu.h"

void* new_handle(void) {
  static uint64_t last = 0x10000;
  return (void*)__sync_add_and_fetch(&last, 64);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = new_handle();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  (void)flags;
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  (void)flags, (void)priority;
  return cudaStreamCreate(stream);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  (void)stream;
  *priority = 0;
  return cudaSuccess;
}

/* ---- events: the host clock at the last record, so that timing code divides by something real
 * ---- */
typedef struct {
  struct timespec recorded;
} Event;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(Event));
  return *event ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  (void)stream;
  clock_gettime(CLOCK_MONOTONIC, &((Event*)event)->recorded);
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  (void)flags;
  return cudaEventRecord(event, stream);
}
static cudaError_t elapsed_milliseconds(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  struct timespec a = ((Event*)start)->recorded, b = ((Event*)end)->recorded;
  *milliseconds =
      (float)((double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) * 1e-6);
  return cudaSuccess;
}
cudaError_t elapsed_v1(float* t, cudaEvent_t a, cudaEvent_t b) __asm__("cudaEventElapsedTime");
cudaError_t elapsed_v1(float* t, cudaEvent_t a, cudaEvent_t b) {
  return elapsed_milliseconds(t, a, b);
}
cudaError_t elapsed_v2(float* t, cudaEvent_t a, cudaEvent_t b) __asm__("cudaEventElapsedTime_v2");
cudaError_t elapsed_v2(float* t, cudaEvent_t a, cudaEvent_t b) {
  return elapsed_milliseconds(t, a, b);
}

/* ---- graph capture: nothing is recorded, but a capture is seen as such, which is what decides the
 * pool that PyTorch allocates from.  One capture at a time; every stream belongs to it while it
 * lasts. ---- */
static int capturing;
static unsigned long long capture_id;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
  (void)stream, (void)mode;
  capturing = 1;
  capture_id++;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  (void)stream;
  capturing = 0;
  *graph = new_handle();
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus* status) {
  (void)stream;
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph,
                                          unsigned long long flags) {
  (void)graph, (void)flags;
  *executable = new_handle();
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  (void)graph, (void)nodes;
  *count = 1; /* an empty graph would draw a warning */
  return cudaSuccess;
}

/* The entry point grew an argument in CUDA 13; asm labels serve both signatures whatever the header
 * says. */
static int capture_info(int* status, unsigned long long* id, void** graph, size_t* count) {
  *status = capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  if (id) *id = capture_id;
  if (graph) *graph = NULL;
  if (count) *count = 0;
  return cudaSuccess;
}
int capture_info_13(void* stream, int* status, unsigned long long* id, void** graph, void** nodes,
                    void** edges, size_t* count) __asm__("cudaStreamGetCaptureInfo");
int capture_info_13(void* stream, int* status, unsigned long long* id, void** graph, void** nodes,
                    void** edges, size_t* count) {
  (void)stream, (void)edges;
  if (nodes) *nodes = NULL;
  return capture_info(status, id, graph, count);
}
int capture_info_v3(void* stream, int* status, unsigned long long* id, void** graph, void** nodes,
                    void** edges, size_t* count) __asm__("cudaStreamGetCaptureInfo_v3");
int capture_info_v3(void* stream, int* status, unsigned long long* id, void** graph, void** nodes,
                    void** edges, size_t* count) {
  return capture_info_13(stream, status, id, graph, nodes, edges, count);
}
int capture_info_v2(void* stream, int* status, unsigned long long* id, void** graph, void** nodes,
                    size_t* count) __asm__("cudaStreamGetCaptureInfo_v2");
int capture_info_v2(void* stream, int* status, unsigned long long* id, void** graph, void** nodes,
                    size_t* count) {
  (void)stream;
  if (nodes) *nodes = NULL;
  return capture_info(status, id, graph, count);
}

/* Host functions and callbacks run at once: the stream is idle. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  (void)stream;
  if (!capturing) function(data);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                  unsigned flags) {
  (void)flags;
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}
