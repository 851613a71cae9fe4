// Typed buffers that both implementations fill, and their comparison.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>
#include "../../../csrc/cpu/scalar.h"

using gpuledger::Dtype;

inline size_t size_of(int dtype) {
  return dtype == gpuledger::F64 ? 8 : dtype == gpuledger::F32 ? 4 : 2;
}
inline int accumulator_of(int dtype) { return dtype == gpuledger::F64 ? dtype : gpuledger::F32; }

// `count` elements in an allocation of their own, so that AddressSanitizer sees every element
// beyond the last; `shift` elements off a 16-byte boundary.
class Array {
 public:
  Array(int dtype, int64_t count, int shift = 0) : dtype_(dtype), count_(count), shift_(shift) {
    if (posix_memalign(&memory_, 16, size_of(dtype) * size_t(count + shift) + (count + shift == 0)))
      std::abort();
    std::memset(memory_, 0xFF, size_of(dtype) * size_t(count + shift));  // NaN
  }
  Array(const Array& other) : Array(other.dtype_, other.count_, other.shift_) {
    std::memcpy(data(), other.data(), size_of(dtype_) * size_t(count_));
  }
  ~Array() { std::free(memory_); }
  Array& operator=(const Array&) = delete;

  void* data() const { return static_cast<char*>(memory_) + size_of(dtype_) * size_t(shift_); }
  int64_t count() const { return count_; }
  int dtype() const { return dtype_; }

  double get(int64_t i) const {
    double value = 0;
    cpu::with_dtype(dtype_, [&](auto t) { value = cpu::to_wide(cpu::in<decltype(t)>(data())[i]); });
    return value;
  }
  void set(int64_t i, double value) {
    cpu::with_dtype(dtype_, [&](auto t) {
      using T = decltype(t);
      cpu::assign(cpu::out<T>(data())[i], cpu::wide_t<T>(value));
    });
  }
  static Array random(int dtype, int64_t count, int shift = 0) {
    static std::mt19937 generator(1);
    std::normal_distribution<double> normal;
    Array result(dtype, count, shift);
    for (int64_t i = 0; i < count; ++i) result.set(i, normal(generator));
    return result;
  }

 private:
  void* memory_ = nullptr;
  int dtype_;
  int64_t count_;
  int shift_;
};

struct Score {
  int comparisons = 0, failures = 0;
  uint64_t checksum = 0;  // of the kernels' results: the same under every schedule
  void add(const Array& results) {
    const auto* bytes = static_cast<const unsigned char*>(results.data());
    for (size_t i = 0; i < size_of(results.dtype()) * size_t(results.count()); ++i)
      checksum = (checksum ^ bytes[i]) * 0x100000001B3;  // FNV-1a
  }
};
inline Score& score() {
  static Score the_score;
  return the_score;
}
inline void expect(bool right, const std::string& what) {
  ++score().comparisons;
  if (right) return;
  ++score().failures;
  std::printf("FAILED: %s\n", what.c_str());
}

// ||a - b|| / ||b|| below what the dtype's rounding explains; NaN never passes.
inline void expect_close(const std::string& name, const Array& a, const Array& b) {
  score().add(a);
  const double tolerance[] = {5e-6, 1e-2, 2e-3, 1e-12};
  double error = 0, norm = 0;
  for (int64_t i = 0; i < a.count(); ++i) {
    error += (a.get(i) - b.get(i)) * (a.get(i) - b.get(i));
    norm += b.get(i) * b.get(i);
  }
  const double relative = std::sqrt(error) / (std::sqrt(norm) + 1e-30);
  const bool right = a.count() == 0 || relative <= tolerance[a.dtype()];
  expect(right, name + " dtype " + std::to_string(a.dtype()) + ": relative error " +
                    std::to_string(relative));
}
inline void expect_equal(const std::string& name, const Array& a, const Array& b) {
  const bool same = !std::memcmp(a.data(), b.data(), size_of(a.dtype()) * size_t(a.count()));
  expect(same, name + " differs");
}
