/* Kernels: registered by the loader, launched by PyTorch's host code, and never run. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "emulated_gpu.h"

static uint64_t launches;
uint64_t launch_count(void) { return launches; }

/* ---- fills ----
 * torch.zeros, ones and full are kernels, and the scalars they make are read back (GradScaler's
 * found_inf). A value that an earlier tensor left at such an address must not be served for it.  A
 * fill kernel is recognised by its functor's name: vectorized_elementwise_kernel<n,
 * at::native::FillFunctor<T>, std::array<char*, 1>>(int count, FillFunctor<T> value,
 * std::array<char*, 1> data). */
#define MAX_FILL_KERNELS 512

static const void* fill_kernels[MAX_FILL_KERNELS];
static int num_fill_kernels;

void __cudaRegisterFunction(void** library, const char* host_function, char* device_function,
                            const char* device_name, int thread_limit, void* thread, void* block,
                            void* block_size, void* grid_size, int* warp_size) {
  (void)library, (void)device_function, (void)thread_limit, (void)thread, (void)block;
  (void)block_size, (void)grid_size, (void)warp_size;
  int is_fill = strstr(device_name, "elementwise_kernel") && strstr(device_name, "11FillFunctorI");
  if (is_fill && num_fill_kernels < MAX_FILL_KERNELS)
    fill_kernels[num_fill_kernels++] = host_function;
}

static void forget_filled(const void* kernel, void** arguments) {
  for (int i = 0; i < num_fill_kernels; i++) {
    if (fill_kernels[i] != kernel) continue;
    int count = *(int*)arguments[0];
    char* data = *(char**)arguments[2];
    if (count > 0 && is_device_address(data)) forget_values(data, (size_t)count);
    return;
  }
}

static cudaError_t launch(const void* kernel, void** arguments) {
  __sync_add_and_fetch(&launches, 1);
  if (arguments) forget_filled(kernel, arguments);
  return cudaSuccess;
}

/* ---- launches ---- */
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return launch(kernel, arguments);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel,
                                void** arguments) {
  (void)config;
  return launch(kernel, arguments);
}
cudaError_t cudaLaunchCooperativeKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                        size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
}
cudaError_t launch_registered(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                              size_t shared, cudaStream_t stream) __asm__("__cudaLaunchKernel");
cudaError_t launch_registered(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                              size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel((const void*)kernel, grid, block, arguments, shared, stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = (cudaKernel_t)host_function;
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared,
                                     struct CUstream_st* stream) {
  (void)grid, (void)block, (void)shared, (void)stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = *block = (dim3){1, 1, 1};
  *shared = 0;
  *(void**)stream = NULL;
  return cudaSuccess;
}

/* ---- the loader ---- */
static void* loaded_library;
void** __cudaRegisterFatBinary(void* image) {
  (void)image;
  return &loaded_library;
}
void __cudaRegisterFatBinaryEnd(void** library) { (void)library; }
void __cudaUnregisterFatBinary(void** library) { (void)library; }
void __cudaRegisterVar(void) {}
char __cudaInitModule(void** library) {
  (void)library;
  return 1;
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  (void)symbol;
  static uint64_t address;
  if (!address)
    address = reserve_addresses(PAGE_BYTES, 0); /* global variables; not counted, as on a card */
  *pointer = (void*)address;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, size_t bytes, size_t offset,
                               enum cudaMemcpyKind kind) {
  (void)symbol, (void)from, (void)bytes, (void)offset, (void)kind;
  return cudaSuccess;
}
cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code,
                                enum cudaJitOption* jit_options, void** jit_values,
                                unsigned num_jit, enum cudaLibraryOption* options, void** values,
                                unsigned num_options) {
  (void)code, (void)jit_options, (void)jit_values, (void)num_jit;
  (void)options, (void)values, (void)num_options;
  *library = new_handle();
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library, const char* name) {
  (void)library, (void)name;
  *kernel = new_handle();
  return cudaSuccess;
}

/* ---- what kernels are made of ---- */
/* CUB picks its tuning by the newest architecture that a kernel was compiled for; PyTorch's wheels
 * hold these, and CUB fails on one that is not among them. */
static int compiled_architecture(void) {
  static const int ARCHITECTURES[] = {50, 60, 70, 75, 80, 86, 90, 100, 120};
  const Settings* s = settings();
  int found = ARCHITECTURES[0];
  for (size_t i = 0; i < sizeof ARCHITECTURES / sizeof *ARCHITECTURES; i++)
    if (ARCHITECTURES[i] <= 10 * s->capability_major + s->capability_minor)
      found = ARCHITECTURES[i];
  return found;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* attributes, const void* kernel) {
  (void)kernel;
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = compiled_architecture();
  int optin = 49152;
  cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
  attributes->maxDynamicSharedSizeBytes = optin - 1024;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* kernel,
                                                                   int threads, size_t shared,
                                                                   unsigned flags) {
  (void)kernel, (void)threads, (void)shared, (void)flags;
  *blocks = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel,
                                                          int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}
