// rms_norm, layer_norm, their variants with a residual add in front, and their backward passes.
#include "binding.h"

namespace binding {
namespace {

// weight and bias: [cols], of x's dtype or float32 beside 16-bit activations.
void check_parameter(const Tensor& p, const Tensor& x, const char* op, const char* name) {
  check_device(p, x, op, name);
  const bool allowed = p.scalar_type() == x.scalar_type() || p.scalar_type() == accumulator_of(x);
  const int64_t cols = x.size(x.dim() - 1);
  STD_TORCH_CHECK(p.dim() == 1 && p.size(0) == cols && allowed, op, ": ", name, " must be [", cols,
                  "] of x's dtype or float32, but is ", describe(p), " and x is ", describe(x));
}

struct NormInputs {
  const char* op;
  Tensor x;
  MaybeTensor residual;
  Tensor weight;
  MaybeTensor bias;
  double eps;
};
struct NormOutputs {
  Tensor y, h, mean, rstd;
};

template <class Device>
NormOutputs norm_forward(NormInputs in, bool center) {
  const Rows shape = rows_of(in.x, in.op);
  if (in.residual) check_like(*in.residual, in.x, in.op, "residual");
  check_parameter(in.weight, in.x, in.op, "weight");
  if (in.bias) {
    check_parameter(*in.bias, in.x, in.op, "bias");
    check_like(*in.bias, in.weight, in.op, "bias");
  }
  const Device device(in.x);
  const Tensor x = torch::stable::contiguous(in.x), weight = torch::stable::contiguous(in.weight);
  const MaybeTensor residual = contiguous(in.residual), bias = contiguous(in.bias);
  NormOutputs out;
  out.y = torch::stable::empty_like(x);
  if (residual) out.h = torch::stable::empty_like(x);
  if (center) out.mean = new_empty(x, {shape.rows}, accumulator_of(x));
  out.rstd = new_empty(x, {shape.rows}, accumulator_of(x));
  const gpuledger::NormForward arguments{.dtype = dtype_of(x, in.op, "x"),
                                         .weight_dtype = dtype_of(weight, in.op, "weight"),
                                         .x = x.const_data_ptr(),
                                         .residual = pointer(residual),
                                         .weight = weight.const_data_ptr(),
                                         .bias = pointer(bias),
                                         .y = out.y.mutable_data_ptr(),
                                         .h = residual ? out.h.mutable_data_ptr() : nullptr,
                                         .mean = center ? out.mean.mutable_data_ptr() : nullptr,
                                         .rstd = out.rstd.mutable_data_ptr(),
                                         .rows = shape.rows,
                                         .cols = shape.cols,
                                         .eps = in.eps};
  run(center ? Device::layer_norm_forward : Device::rms_norm_forward, arguments, device.stream,
      in.op);
  return out;
}

struct NormSaved {
  Tensor h, weight;
  MaybeTensor mean;
  Tensor rstd;
};
struct NormGradients {
  Tensor dx, dweight, dbias;
};

template <class Device>
NormGradients norm_backward(const char* op, Tensor given_dy, MaybeTensor given_dh, NormSaved saved,
                            bool with_bias) {
  const Device device(saved.h);
  const Tensor h = torch::stable::contiguous(saved.h), dy = torch::stable::contiguous(given_dy);
  const Tensor weight = torch::stable::contiguous(saved.weight);
  const MaybeTensor dh = contiguous(given_dh);
  const Rows shape = rows_of(h, op);
  check_like(dy, h, op, "dy");
  if (dh) check_like(*dh, h, op, "dh");
  check_parameter(weight, h, op, "weight");
  check_shape(saved.rstd, {shape.rows}, accumulator_of(h), op, "rstd");
  if (saved.mean) check_shape(*saved.mean, {shape.rows}, accumulator_of(h), op, "mean");
  const int64_t parts = partials_for(shape.rows);
  NormGradients out;
  out.dx = torch::stable::empty_like(h);
  out.dweight = torch::stable::empty_like(weight);
  out.dbias = new_empty(weight, {with_bias ? shape.cols : 0}, weight.scalar_type());
  const Tensor partials = new_empty(h, {with_bias ? 2 : 1, parts, shape.cols}, accumulator_of(h));
  const gpuledger::NormBackward arguments{
      .dtype = dtype_of(h, op, "h"),
      .weight_dtype = dtype_of(weight, op, "weight"),
      .dy = dy.const_data_ptr(),
      .dh = pointer(dh),
      .h = h.const_data_ptr(),
      .weight = weight.const_data_ptr(),
      .mean = pointer(saved.mean),
      .rstd = saved.rstd.const_data_ptr(),
      .dx = out.dx.mutable_data_ptr(),
      .dweight = out.dweight.mutable_data_ptr(),
      .dbias = with_bias ? out.dbias.mutable_data_ptr() : nullptr,
      .partials = partials.mutable_data_ptr(),
      .num_partials = parts,
      .rows = shape.rows,
      .cols = shape.cols};
  run(saved.mean ? Device::layer_norm_backward : Device::rms_norm_backward, arguments,
      device.stream, op);
  return out;
}

template <class D>
std::tuple<Tensor, Tensor> rms_norm(Tensor x, Tensor weight, double eps) {
  auto [y, h, mean, rstd] =
      norm_forward<D>({"rms_norm", x, std::nullopt, weight, std::nullopt, eps}, false);
  return {y, rstd};
}
template <class D>
std::tuple<Tensor, Tensor, Tensor> add_rms_norm(Tensor x, Tensor residual, Tensor weight,
                                                double eps) {
  auto [y, h, mean, rstd] =
      norm_forward<D>({"add_rms_norm", x, residual, weight, std::nullopt, eps}, false);
  return {y, h, rstd};
}
template <class D>
std::tuple<Tensor, Tensor> rms_norm_backward(Tensor dy, MaybeTensor dh, Tensor h, Tensor weight,
                                             Tensor rstd) {
  auto [dx, dweight, dbias] =
      norm_backward<D>("rms_norm_backward", dy, dh, {h, weight, std::nullopt, rstd}, false);
  return {dx, dweight};
}
template <class D>
std::tuple<Tensor, Tensor, Tensor> layer_norm(Tensor x, Tensor weight, MaybeTensor bias,
                                              double eps) {
  auto [y, h, mean, rstd] =
      norm_forward<D>({"layer_norm", x, std::nullopt, weight, bias, eps}, true);
  return {y, mean, rstd};
}
template <class D>
std::tuple<Tensor, Tensor, Tensor, Tensor> add_layer_norm(Tensor x, Tensor residual, Tensor weight,
                                                          MaybeTensor bias, double eps) {
  auto [y, h, mean, rstd] =
      norm_forward<D>({"add_layer_norm", x, residual, weight, bias, eps}, true);
  return {y, h, mean, rstd};
}
template <class D>
std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(Tensor dy, MaybeTensor dh, Tensor h,
                                                       Tensor weight, Tensor mean, Tensor rstd,
                                                       bool with_bias) {
  auto [dx, dweight, dbias] =
      norm_backward<D>("layer_norm_backward", dy, dh, {h, weight, mean, rstd}, with_bias);
  return {dx, dweight, dbias};
}

}  // namespace

#define REGISTER_NORMS(D)                                        \
  m.impl("rms_norm", TORCH_BOX(&rms_norm<D>));                   \
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm<D>));           \
  m.impl("rms_norm_backward", TORCH_BOX(&rms_norm_backward<D>)); \
  m.impl("layer_norm", TORCH_BOX(&layer_norm<D>));               \
  m.impl("add_layer_norm", TORCH_BOX(&add_layer_norm<D>));       \
  m.impl("layer_norm_backward", TORCH_BOX(&layer_norm_backward<D>));

STABLE_TORCH_LIBRARY_FRAGMENT(GPULEDGER_NAMESPACE, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> (Tensor y, Tensor rstd)");
  m.def(
      "add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps) -> "
      "(Tensor y, Tensor h, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor dy, Tensor? dh, Tensor h, Tensor weight, Tensor rstd) -> "
      "(Tensor dx, Tensor dweight)");
  m.def(
      "layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> "
      "(Tensor y, Tensor mean, Tensor rstd)");
  m.def(
      "add_layer_norm(Tensor x, Tensor residual, Tensor weight, Tensor? bias, float eps) -> "
      "(Tensor y, Tensor h, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward(Tensor dy, Tensor? dh, Tensor h, Tensor weight, Tensor mean, "
      "Tensor rstd, bool with_bias) -> (Tensor dx, Tensor dweight, Tensor dbias)");
}
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CPU, m){REGISTER_NORMS(Cpu)}
#ifdef GPULEDGER_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CUDA, m) {
  REGISTER_NORMS(Cuda)
}
#endif

}  // namespace binding
