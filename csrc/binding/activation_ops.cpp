// bias_gelu, swiglu, and their backward passes.
#include "binding.h"

namespace binding {
namespace {

template <class Device>
Tensor bias_gelu(Tensor given_x, MaybeTensor given_bias, bool tanh) {
  constexpr auto op = "bias_gelu";
  const Rows shape = rows_of(given_x, op);
  if (given_bias) {
    check_device(*given_bias, given_x, op, "bias");
    check_shape(*given_bias, {shape.cols}, given_x.scalar_type(), op, "bias");
  }
  const Device device(given_x);
  const Tensor x = torch::stable::contiguous(given_x);
  const MaybeTensor bias = contiguous(given_bias);
  const Tensor y = torch::stable::empty_like(x);
  const gpuledger::BiasGeluForward arguments{.dtype = dtype_of(x, op, "x"),
                                             .tanh_approximation = tanh,
                                             .x = x.const_data_ptr(),
                                             .bias = pointer(bias),
                                             .y = y.mutable_data_ptr(),
                                             .rows = shape.rows,
                                             .cols = shape.cols};
  run(Device::bias_gelu_forward, arguments, device.stream, op);
  return y;
}

template <class Device>
std::tuple<Tensor, Tensor> bias_gelu_backward(Tensor given_dy, Tensor given_x,
                                              MaybeTensor given_bias, bool tanh) {
  constexpr auto op = "bias_gelu_backward";
  const Rows shape = rows_of(given_x, op);
  check_like(given_dy, given_x, op, "dy");
  if (given_bias) check_shape(*given_bias, {shape.cols}, given_x.scalar_type(), op, "bias");
  const Device device(given_x);
  const Tensor x = torch::stable::contiguous(given_x), dy = torch::stable::contiguous(given_dy);
  const MaybeTensor bias = contiguous(given_bias);
  const int64_t parts = partials_for(shape.rows);
  const Tensor dx = torch::stable::empty_like(x);
  const Tensor dbias = new_empty(x, {bias ? shape.cols : 0}, x.scalar_type());
  MaybeTensor partials;
  if (bias) partials = new_empty(x, {parts, shape.cols}, accumulator_of(x));
  const gpuledger::BiasGeluBackward arguments{
      .dtype = dtype_of(x, op, "x"),
      .tanh_approximation = tanh,
      .dy = dy.const_data_ptr(),
      .x = x.const_data_ptr(),
      .bias = pointer(bias),
      .dx = dx.mutable_data_ptr(),
      .dbias = bias ? dbias.mutable_data_ptr() : nullptr,
      .partials = partials ? partials->mutable_data_ptr() : nullptr,
      .num_partials = parts,
      .rows = shape.rows,
      .cols = shape.cols};
  run(Device::bias_gelu_backward, arguments, device.stream, op);
  return {dx, dbias};
}

// The distance between rows, where the last dim is dense and the others are one regular sequence:
// the halves of a matmul's output, for instance. Any other tensor is copied.
struct Strided {
  Tensor tensor;
  int64_t stride;
};
Strided with_row_stride(const Tensor& t) {
  const int64_t last = t.dim() - 1, cols = t.size(last);
  bool regular = t.stride(last) == 1 || cols == 1;
  int64_t stride = cols, rows = 1;
  for (int64_t i = last - 1; i >= 0 && regular; --i) {
    if (t.size(i) == 1) continue;
    if (rows == 1) stride = t.stride(i);
    regular = t.stride(i) == stride * rows;
    rows *= t.size(i);
  }
  if (regular && stride >= cols) return {t, stride};
  return {torch::stable::contiguous(t), cols};
}
Tensor new_like(const Tensor& t) {
  const auto sizes = t.sizes();
  return new_empty(t, std::vector<int64_t>(sizes.begin(), sizes.end()), t.scalar_type());
}

template <class Device>
Tensor swiglu(Tensor given_gate, Tensor given_up) {
  constexpr auto op = "swiglu";
  const Rows shape = rows_of(given_gate, op);
  check_like(given_up, given_gate, op, "up");
  const Device device(given_gate);
  const auto gate = with_row_stride(given_gate), up = with_row_stride(given_up);
  const Tensor y = new_like(given_gate);
  const gpuledger::SwigluForward arguments{.dtype = dtype_of(y, op, "gate"),
                                           .gate = gate.tensor.const_data_ptr(),
                                           .up = up.tensor.const_data_ptr(),
                                           .y = y.mutable_data_ptr(),
                                           .rows = shape.rows,
                                           .cols = shape.cols,
                                           .gate_stride = gate.stride,
                                           .up_stride = up.stride,
                                           .y_stride = shape.cols};
  run(Device::swiglu_forward, arguments, device.stream, op);
  return y;
}

template <class Device>
std::tuple<Tensor, Tensor> swiglu_backward(Tensor given_dy, Tensor given_gate, Tensor given_up) {
  constexpr auto op = "swiglu_backward";
  const Rows shape = rows_of(given_gate, op);
  check_like(given_up, given_gate, op, "up");
  check_like(given_dy, given_gate, op, "dy");
  const Device device(given_gate);
  const auto gate = with_row_stride(given_gate), up = with_row_stride(given_up);
  const auto dy = with_row_stride(given_dy);
  const Tensor dgate = new_like(given_gate), dup = new_like(given_gate);
  const gpuledger::SwigluBackward arguments{.dtype = dtype_of(dgate, op, "gate"),
                                            .dy = dy.tensor.const_data_ptr(),
                                            .gate = gate.tensor.const_data_ptr(),
                                            .up = up.tensor.const_data_ptr(),
                                            .dgate = dgate.mutable_data_ptr(),
                                            .dup = dup.mutable_data_ptr(),
                                            .rows = shape.rows,
                                            .cols = shape.cols,
                                            .dy_stride = dy.stride,
                                            .gate_stride = gate.stride,
                                            .up_stride = up.stride,
                                            .dgate_stride = shape.cols,
                                            .dup_stride = shape.cols};
  run(Device::swiglu_backward, arguments, device.stream, op);
  return {dgate, dup};
}

}  // namespace

#define REGISTER_ACTIVATIONS(D)                                    \
  m.impl("bias_gelu", TORCH_BOX(&bias_gelu<D>));                   \
  m.impl("bias_gelu_backward", TORCH_BOX(&bias_gelu_backward<D>)); \
  m.impl("swiglu", TORCH_BOX(&swiglu<D>));                         \
  m.impl("swiglu_backward", TORCH_BOX(&swiglu_backward<D>));

STABLE_TORCH_LIBRARY_FRAGMENT(GPULEDGER_NAMESPACE, m) {
  m.def("bias_gelu(Tensor x, Tensor? bias, bool tanh) -> Tensor");
  m.def(
      "bias_gelu_backward(Tensor dy, Tensor x, Tensor? bias, bool tanh) -> "
      "(Tensor dx, Tensor dbias)");
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_backward(Tensor dy, Tensor gate, Tensor up) -> (Tensor dgate, Tensor dup)");
}
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CPU, m){REGISTER_ACTIVATIONS(Cpu)}
#ifdef GPULEDGER_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CUDA, m) {
  REGISTER_ACTIVATIONS(Cuda)
}
#endif

}  // namespace binding
