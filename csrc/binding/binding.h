// What every file of the binding shares: devices, checks whose messages name the tensor,
// allocation.
//
// The binding uses torch's stable C++ ABI alone, so one library loads in every torch from
// TORCH_TARGET_VERSION on. Build flags:
//   GPULEDGER_NAMESPACE   the namespace of the operators: gpuledger, or gpuledger_host
//   GPULEDGER_CPU_PREFIX  what CPU tensors run: gpuledger_cpu_, or gpuledger_host_
//   GPULEDGER_WITH_CUDA   registers gpuledger_cuda_ for CUDA tensors too
#pragma once
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>
#include "../include/kernels.h"

#ifdef GPULEDGER_WITH_CUDA
// Lives in libtorch_cuda: null in a CPU build of torch, where no CUDA tensor can ask for it.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device,
                                                                                   void** stream);
#endif

namespace binding {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using MaybeTensor = std::optional<Tensor>;

// ---- devices: which kernels run, on which stream ----
#define GPULEDGER_CONCAT_OF(a, b) a##b
#define GPULEDGER_CONCAT(a, b) GPULEDGER_CONCAT_OF(a, b)
#define GPULEDGER_KERNEL_TABLE(PREFIX)                                                       \
  static constexpr auto rms_norm_forward = GPULEDGER_CONCAT(PREFIX, rms_norm_forward);       \
  static constexpr auto rms_norm_backward = GPULEDGER_CONCAT(PREFIX, rms_norm_backward);     \
  static constexpr auto layer_norm_forward = GPULEDGER_CONCAT(PREFIX, layer_norm_forward);   \
  static constexpr auto layer_norm_backward = GPULEDGER_CONCAT(PREFIX, layer_norm_backward); \
  static constexpr auto bias_gelu_forward = GPULEDGER_CONCAT(PREFIX, bias_gelu_forward);     \
  static constexpr auto bias_gelu_backward = GPULEDGER_CONCAT(PREFIX, bias_gelu_backward);   \
  static constexpr auto swiglu_forward = GPULEDGER_CONCAT(PREFIX, swiglu_forward);           \
  static constexpr auto swiglu_backward = GPULEDGER_CONCAT(PREFIX, swiglu_backward);         \
  static constexpr auto count_targets = GPULEDGER_CONCAT(PREFIX, count_targets);             \
  static constexpr auto cross_entropy_rows = GPULEDGER_CONCAT(PREFIX, cross_entropy_rows);   \
  static constexpr auto mean_loss = GPULEDGER_CONCAT(PREFIX, mean_loss);                     \
  static constexpr auto scale_in_place = GPULEDGER_CONCAT(PREFIX, scale_in_place);           \
  static constexpr auto rotary = GPULEDGER_CONCAT(PREFIX, rotary);                           \
  static constexpr auto dropout = GPULEDGER_CONCAT(PREFIX, dropout);                         \
  static constexpr auto adamw = GPULEDGER_CONCAT(PREFIX, adamw);

struct Cpu {
  GPULEDGER_KERNEL_TABLE(GPULEDGER_CPU_PREFIX)
  explicit Cpu(const Tensor&) {}
  void* stream = nullptr;
};

#ifdef GPULEDGER_WITH_CUDA
struct Cuda {
  GPULEDGER_KERNEL_TABLE(gpuledger_cuda_)
  explicit Cuda(const Tensor& t) : guard(t.get_device_index()) {
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(t.get_device_index(), &stream));
  }
  torch::stable::accelerator::DeviceGuard guard;
  void* stream = nullptr;
};
#endif

template <class Arguments>
void run(int (*kernel)(const Arguments*, void*), const Arguments& arguments, void* stream,
         const char* op) {
  const int status = kernel(&arguments, stream);
  STD_TORCH_CHECK(status == gpuledger::kOk, op, ": the kernel failed with status ", status);
}

// ---- checks ----
inline std::string describe(const Tensor& t) {
  std::string text = "[";
  for (int64_t i = 0; i < t.dim(); ++i) text += (i ? ", " : "") + std::to_string(t.size(i));
  return text + "] " + torch::headeronly::toString(t.scalar_type());
}
inline int dtype_of(const Tensor& t, const char* op, const char* name) {
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return gpuledger::F32;
    case ScalarType::BFloat16:
      return gpuledger::BF16;
    case ScalarType::Half:
      return gpuledger::F16;
    case ScalarType::Double:
      return gpuledger::F64;
    default:
      STD_TORCH_CHECK(false, op, ": ", name,
                      " must be float32, bfloat16, float16 or float64, but is ", describe(t));
  }
  return gpuledger::kUnsupportedDtype;
}
inline ScalarType accumulator_of(const Tensor& t) {
  return t.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}
inline void check_device(const Tensor& t, const Tensor& reference, const char* op,
                         const char* name) {
  STD_TORCH_CHECK(
      t.is_cuda() == reference.is_cuda() && t.get_device_index() == reference.get_device_index(),
      op, ": ", name, " lies on another device than the first tensor");
}
inline bool same_shape(const Tensor& a, const Tensor& b) {
  if (a.dim() != b.dim()) return false;
  for (int64_t i = 0; i < a.dim(); ++i)
    if (a.size(i) != b.size(i)) return false;
  return true;
}
inline void check_like(const Tensor& t, const Tensor& reference, const char* op, const char* name) {
  check_device(t, reference, op, name);
  STD_TORCH_CHECK(t.scalar_type() == reference.scalar_type() && same_shape(t, reference), op, ": ",
                  name, " must be ", describe(reference), ", but is ", describe(t));
}
inline void check_shape(const Tensor& t, std::vector<int64_t> shape, ScalarType dtype,
                        const char* op, const char* name) {
  bool same = t.dim() == int64_t(shape.size()) && t.scalar_type() == dtype;
  std::string expected = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    same = same && t.size(int64_t(i)) == shape[i];
    expected += (i ? ", " : "") + std::to_string(shape[i]);
  }
  STD_TORCH_CHECK(same, op, ": ", name, " must be ", expected, "] ",
                  torch::headeronly::toString(dtype), ", but is ", describe(t));
}
inline void check_dense(const Tensor& t, const char* op, const char* name) {
  STD_TORCH_CHECK(t.is_contiguous(), op, ": ", name, " ", describe(t),
                  " must be contiguous, because it is changed in place");
}

// ---- shapes ----
struct Rows {
  int64_t rows, cols;
};
inline Rows rows_of(const Tensor& t, const char* op) {
  STD_TORCH_CHECK(t.dim() >= 1, op, ": x must have at least one dim");
  const int64_t cols = t.size(t.dim() - 1);
  return {cols ? t.numel() / cols : 0, cols};
}
// Partial sums of a reduction over rows: fixed, so that the scratch does not depend on the device.
inline int64_t partials_for(int64_t rows) {
  constexpr int64_t kMaxPartials = 256;
  return std::max<int64_t>(1, std::min(rows, kMaxPartials));
}

// ---- pointers ----
inline MaybeTensor contiguous(const MaybeTensor& t) {
  return t ? MaybeTensor(torch::stable::contiguous(*t)) : std::nullopt;
}
inline const void* pointer(const MaybeTensor& t) { return t ? t->const_data_ptr() : nullptr; }
inline Tensor new_empty(const Tensor& like, std::vector<int64_t> shape, ScalarType dtype) {
  return torch::stable::new_empty(like, shape, dtype);
}

}  // namespace binding
