// What the plain CPU loops share: 16-bit numbers, the accumulator type, the dtype switch.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include "../include/kernels.h"

namespace cpu {

constexpr int64_t kParallelWork = 1 << 14;  // elements; below, waking threads costs more

struct BFloat16 {
  uint16_t bits;
};
struct Half {
  uint16_t bits;
};

inline double to_wide(double v) { return v; }
inline float to_wide(float v) { return v; }
inline float to_wide(BFloat16 v) {
  const uint32_t bits = uint32_t(v.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}
inline float to_wide(Half v) {
  _Float16 half;
  std::memcpy(&half, &v.bits, sizeof(half));
  return float(half);
}

inline void assign(double& to, double v) { to = v; }
inline void assign(float& to, float v) { to = v; }
inline void assign(BFloat16& to, float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  const uint32_t half_ulp = 0x7FFF + ((bits >> 16) & 1);  // ties to even
  to.bits = std::isnan(v) ? uint16_t(0x7FFF) : uint16_t((bits + half_ulp) >> 16);
}
inline void assign(Half& to, float v) {
  const _Float16 half = _Float16(v);
  std::memcpy(&to.bits, &half, sizeof(half));
}

template <class T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};
template <class T>
using wide_t = typename Wide<T>::type;

template <class T>
const T* in(const void* p) {
  return static_cast<const T*>(p);
}
template <class T>
T* out(void* p) {
  return static_cast<T*>(p);
}

// Entry i of a parameter vector, which may be float beside 16-bit activations.
template <class T>
wide_t<T> parameter(const void* p, bool wide, int64_t i) {
  return wide ? in<wide_t<T>>(p)[i] : to_wide(in<T>(p)[i]);
}
template <class T>
void set_parameter(void* p, bool wide, int64_t i, wide_t<T> v) {
  if (wide)
    out<wide_t<T>>(p)[i] = v;
  else
    assign(out<T>(p)[i], v);
}

template <class F>
int with_dtype(int dtype, F&& f) {
  switch (dtype) {
    case gpuledger::F32:
      f(float());
      return gpuledger::kOk;
    case gpuledger::BF16:
      f(BFloat16());
      return gpuledger::kOk;
    case gpuledger::F16:
      f(Half());
      return gpuledger::kOk;
    case gpuledger::F64:
      f(double());
      return gpuledger::kOk;
  }
  return gpuledger::kUnsupportedDtype;
}

}  // namespace cpu
