/* NCCL: this process is rank r of n and the only one.  Communicators come up at once and
 * collectives move nothing.  Small remembered values behave as if every other rank held what this
 * one holds, so that checks of the kind "do all ranks agree?" agree.  NCCL's own device memory is
 * not emulated: it is outside of PyTorch's allocator, and reported apart. */
#include <stdlib.h>
#include <string.h>

#include "emulated_gpu.h"

#define NCCL_UNIQUE_ID_BYTES 128
#define MAX_REDUCED_BYTES 65536

typedef struct {
  int rank, num_ranks; /* num_ranks = 0 after ncclCommSplit, whose caller alone knows it */
  int device;
} Communicator;

/* How many ranks each communicator was made for, for the report: NCCL's memory depends on it. */
#define MAX_LISTED 4096
static int listed[MAX_LISTED];
static int num_communicators;

int gpuledger_emulated_communicators(int* ranks, int max) {
  int count = num_communicators < max ? num_communicators : max;
  memcpy(ranks, listed, (size_t)count * sizeof *ranks);
  return count;
}

static int new_communicator(Communicator** communicator, int num_ranks, int rank) {
  *communicator = malloc(sizeof **communicator);
  if (!*communicator) return 1;
  **communicator = (Communicator){rank, num_ranks, current_device()};
  if (num_communicators < MAX_LISTED) listed[num_communicators++] = num_ranks;
  return 0;
}

/* ---- communicators ---- */
typedef struct {
  char bytes[NCCL_UNIQUE_ID_BYTES];
} UniqueId;

int ncclGetUniqueId(UniqueId* id) {
  memset(id->bytes, 'e', sizeof id->bytes);
  return 0;
}
int ncclCommGetUniqueId(void* communicator, UniqueId* id) {
  (void)communicator;
  return ncclGetUniqueId(id);
}
int ncclCommInitRank(Communicator** communicator, int num_ranks, UniqueId id, int rank) {
  (void)id;
  return new_communicator(communicator, num_ranks, rank);
}
int ncclCommInitRankConfig(Communicator** communicator, int num_ranks, UniqueId id, int rank,
                           void* config) {
  (void)id, (void)config;
  return new_communicator(communicator, num_ranks, rank);
}
int ncclCommInitRankScalable(Communicator** communicator, int num_ranks, int rank, int num_ids,
                             UniqueId* ids, void* config) {
  (void)num_ids, (void)ids, (void)config;
  return new_communicator(communicator, num_ranks, rank);
}
int ncclCommInitAll(Communicator** communicators, int num_devices, const int* devices) {
  for (int i = 0; i < num_devices; i++) {
    if (new_communicator(&communicators[i], num_devices, i)) return 1;
    communicators[i]->device = devices ? devices[i] : i;
  }
  return 0;
}
int ncclCommSplit(Communicator* parent, int color, int key, Communicator** child, void* config) {
  (void)parent, (void)config;
  *child = NULL;
  return color < 0 ? 0 : new_communicator(child, 0, key); /* a negative colour: not a member */
}
int ncclCommDestroy(Communicator* communicator) {
  free(communicator);
  return 0;
}
int ncclCommAbort(Communicator* communicator) { return ncclCommDestroy(communicator); }
int ncclCommCount(const Communicator* communicator, int* count) {
  *count = communicator->num_ranks;
  return 0;
}
int ncclCommUserRank(const Communicator* communicator, int* rank) {
  *rank = communicator->rank;
  return 0;
}
int ncclCommCuDevice(const Communicator* communicator, int* device) {
  *device = communicator->device;
  return 0;
}
int ncclCommGetAsyncError(Communicator* communicator, int* error) {
  (void)communicator;
  *error = 0;
  return 0;
}
const char* ncclGetLastError(const Communicator* communicator) {
  (void)communicator;
  return "";
}
int ncclCommRegister(const Communicator* communicator, void* buffer, size_t bytes, void** handle) {
  (void)communicator, (void)buffer, (void)bytes;
  *handle = new_handle();
  return 0;
}
int ncclCommWindowRegister(Communicator* communicator, void* buffer, size_t bytes, void** window,
                           int flags) {
  (void)communicator, (void)buffer, (void)bytes, (void)flags;
  *window = new_handle();
  return 0;
}
int ncclMemAlloc(void** pointer, size_t bytes) { return cudaMalloc(pointer, bytes) ? 1 : 0; }
int ncclMemFree(void* pointer) {
  cudaFree(pointer);
  return 0;
}
int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence,
                             Communicator* communicator) {
  (void)scalar, (void)type, (void)residence, (void)communicator;
  *op = 4; /* ncclAvg: the factor is 1 / n wherever PyTorch makes one */
  return 0;
}

/* ---- collectives ---- */
enum { INT32 = 2, UINT32 = 3, INT64 = 4, UINT64 = 5, FLOAT32 = 7, FLOAT64 = 8 };
enum { SUM = 0 };

static size_t type_bytes(int type) {
  static const size_t BYTES[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? BYTES[type] : 1;
}

/* Every rank holds the same, so a sum is n times this rank's; minimum, maximum and average are its
 * own. */
static void multiply(char* content, size_t count, int type, int num_ranks) {
  for (size_t i = 0; i < count; i++) {
    if (type == INT32 || type == UINT32) ((int32_t*)content)[i] *= num_ranks;
    if (type == INT64 || type == UINT64) ((int64_t*)content)[i] *= num_ranks;
    if (type == FLOAT32) ((float*)content)[i] *= (float)num_ranks;
    if (type == FLOAT64) ((double*)content)[i] *= num_ranks;
  }
}

static void reduce(const char* from, char* to, size_t count, int type, int op, int num_ranks) {
  size_t bytes = count * type_bytes(type);
  char* content = bytes && bytes <= MAX_REDUCED_BYTES ? malloc(bytes) : NULL;
  if (content && recall_value(from, content, bytes)) {
    if (op == SUM) multiply(content, count, type, num_ranks);
    remember_value(to, content, bytes);
  } else {
    forget_values(to, bytes);
  }
  free(content);
}

static void gather(const char* from, char* to, size_t bytes, int num_ranks) {
  char* content = bytes && num_ranks && bytes * (size_t)num_ranks <= (1 << 20)
                      ? malloc(bytes * num_ranks)
                      : NULL;
  if (content && recall_value(from, content, bytes)) {
    for (int rank = 1; rank < num_ranks; rank++) memcpy(content + rank * bytes, content, bytes);
    remember_value(to, content, bytes * (size_t)num_ranks);
  } else {
    forget_values(to, bytes * (size_t)(num_ranks ? num_ranks : 1));
  }
  free(content);
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int op, Communicator* c,
                  void* stream) {
  (void)stream;
  reduce(from, to, count, type, op, c->num_ranks);
  return 0;
}
int ncclReduce(const void* from, void* to, size_t count, int type, int op, int root,
               Communicator* c, void* stream) {
  (void)stream;
  if (c->rank == root) reduce(from, to, count, type, op, c->num_ranks);
  return 0;
}
int ncclReduceScatter(const void* from, void* to, size_t count, int type, int op, Communicator* c,
                      void* stream) {
  (void)stream;
  const char* own = (const char*)from + (size_t)c->rank * count * type_bytes(type);
  reduce(own, to, count, type, op, c->num_ranks);
  return 0;
}
int ncclBroadcast(const void* from, void* to, size_t count, int type, int root, Communicator* c,
                  void* stream) {
  (void)root, (void)c, (void)stream;
  if (from != to) copy_value(to, from, count * type_bytes(type));
  return 0;
}
int ncclBcast(void* buffer, size_t count, int type, int root, Communicator* c, void* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, c, stream);
}
int ncclAllGather(const void* from, void* to, size_t count, int type, Communicator* c,
                  void* stream) {
  (void)stream;
  gather(from, to, count * type_bytes(type), c->num_ranks);
  return 0;
}
int ncclGather(const void* from, void* to, size_t count, int type, int root, Communicator* c,
               void* stream) {
  return c->rank == root ? ncclAllGather(from, to, count, type, c, stream) : 0;
}
int ncclAlltoAll(const void* from, void* to, size_t count, int type, Communicator* c,
                 void* stream) {
  (void)stream;
  size_t bytes = count * type_bytes(type);
  gather((const char*)from + (size_t)c->rank * bytes, to, bytes, c->num_ranks);
  return 0;
}

/* What a peer sends is what this rank last sent to anyone, if it has the size asked for. */
static char last_sent[MAX_REDUCED_BYTES];
static size_t last_sent_bytes;

int ncclSend(const void* from, size_t count, int type, int peer, Communicator* c, void* stream) {
  (void)peer, (void)c, (void)stream;
  size_t bytes = count * type_bytes(type);
  last_sent_bytes = bytes <= sizeof last_sent && recall_value(from, last_sent, bytes) ? bytes : 0;
  return 0;
}
int ncclRecv(void* to, size_t count, int type, int peer, Communicator* c, void* stream) {
  (void)peer, (void)c, (void)stream;
  size_t bytes = count * type_bytes(type);
  if (last_sent_bytes && bytes == last_sent_bytes)
    remember_value(to, last_sent, bytes);
  else
    forget_values(to, bytes);
  return 0;
}
