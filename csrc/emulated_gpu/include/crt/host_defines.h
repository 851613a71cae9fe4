/* CUDA's own crt/host_defines.h comes with the compiler package, not with the runtime wheel that
 * torch installs.  These are the macros of it that cuda_runtime_api.h uses when a plain C compiler
 * reads it. */
#ifndef GPULEDGER_CRT_HOST_DEFINES_H
#define GPULEDGER_CRT_HOST_DEFINES_H
#define __host__
#define __device__
#define __global__
#define __device_builtin__
#define __cudart_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __specialization_static static
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#endif
