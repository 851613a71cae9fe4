// The CUDA vocabulary that the kernels use, for g++: index and 16-bit types, qualifiers, error
// codes.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __half {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 value) {
  const uint32_t bits = uint32_t(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}
// Round to nearest even; every NaN becomes 0x7FFF, as on the GPU.
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
  if (value != value) return {0x7FFF};
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return {uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}
inline float __half2float(__half value) {
  _Float16 half;
  std::memcpy(&half, &value.bits, sizeof(half));
  return float(half);
}
inline __half __float2half_rn(float value) {
  const _Float16 half = _Float16(value);
  __half result;
  std::memcpy(&result.bits, &half, sizeof(half));
  return result;
}

#define __global__
#define __device__
#define __shared__ static  // blocks run one after another, so one copy is enough
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

using cudaStream_t = void*;
using cudaError_t = int;
constexpr cudaError_t cudaSuccess = 0;
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
