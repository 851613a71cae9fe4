// The pieces of the cross-entropy losses; loss.py puts them together.
#include "binding.h"

namespace binding {
namespace {

template <class Device>
Tensor count_targets(Tensor given_target, int64_t ignore_index) {
  constexpr auto op = "count_targets";
  check_shape(given_target, {given_target.numel()}, ScalarType::Long, op, "target");
  const Device device(given_target);
  const Tensor target = torch::stable::contiguous(given_target);
  const Tensor count = new_empty(target, {1}, ScalarType::Long);
  const gpuledger::CountTargets arguments{
      .target = static_cast<const int64_t*>(target.const_data_ptr()),
      .count = static_cast<int64_t*>(count.mutable_data_ptr()),
      .rows = target.numel(),
      .ignore_index = ignore_index};
  run(Device::count_targets, arguments, device.stream, op);
  return count;
}

template <class Device>
void cross_entropy_rows(Tensor logits, Tensor losses, Tensor given_target, MaybeTensor count,
                        int64_t ignore_index, bool write_gradient) {
  constexpr auto op = "cross_entropy_rows_";
  STD_TORCH_CHECK(logits.dim() == 2, op, ": logits must be [tokens, vocabulary], but is ",
                  describe(logits));
  const int64_t rows = logits.size(0), cols = logits.size(1);
  STD_TORCH_CHECK(cols <= 1 || logits.stride(1) == 1, op, ": logits ", describe(logits),
                  " must have a last stride of 1, because it is changed in place, but has ",
                  logits.stride(1));
  STD_TORCH_CHECK(rows <= 1 || logits.stride(0) >= cols, op, ": the rows of logits ",
                  describe(logits), " overlap: their stride is ", logits.stride(0));
  check_device(given_target, logits, op, "target");
  check_device(losses, logits, op, "losses");
  check_shape(given_target, {rows}, ScalarType::Long, op, "target");
  check_shape(losses, {rows}, accumulator_of(logits), op, "losses");
  check_dense(losses, op, "losses");
  if (count) check_shape(*count, {1}, ScalarType::Long, op, "count");
  const Device device(logits);
  const Tensor target = torch::stable::contiguous(given_target);
  const gpuledger::CrossEntropyRows arguments{
      .dtype = dtype_of(logits, op, "logits"),
      .write_gradient = write_gradient,
      .logits = logits.mutable_data_ptr(),
      .target = static_cast<const int64_t*>(target.const_data_ptr()),
      .count = static_cast<const int64_t*>(pointer(count)),
      .losses = losses.mutable_data_ptr(),
      .rows = rows,
      .cols = cols,
      .row_stride = rows > 1 ? logits.stride(0) : cols,
      .ignore_index = ignore_index};
  run(Device::cross_entropy_rows, arguments, device.stream, op);
}

template <class Device>
Tensor mean_loss(Tensor given_losses, MaybeTensor count) {
  constexpr auto op = "mean_loss";
  check_shape(given_losses, {given_losses.numel()}, accumulator_of(given_losses), op, "losses");
  if (count) check_shape(*count, {1}, ScalarType::Long, op, "count");
  const Device device(given_losses);
  const Tensor losses = torch::stable::contiguous(given_losses);
  const Tensor loss = new_empty(losses, {}, losses.scalar_type());
  const gpuledger::MeanLoss arguments{.dtype = dtype_of(losses, op, "losses"),
                                      .losses = losses.const_data_ptr(),
                                      .count = static_cast<const int64_t*>(pointer(count)),
                                      .loss = loss.mutable_data_ptr(),
                                      .rows = losses.numel()};
  run(Device::mean_loss, arguments, device.stream, op);
  return loss;
}

template <class Device>
void scale_in_place(Tensor x, Tensor factor, MaybeTensor count) {
  constexpr auto op = "scale_";
  check_dense(x, op, "x");
  check_device(factor, x, op, "factor");
  check_shape(factor, {}, accumulator_of(x), op, "factor");
  if (count) check_shape(*count, {1}, ScalarType::Long, op, "count");
  const Device device(x);
  const gpuledger::ScaleInPlace arguments{.dtype = dtype_of(x, op, "x"),
                                          .x = x.mutable_data_ptr(),
                                          .factor = factor.const_data_ptr(),
                                          .count = static_cast<const int64_t*>(pointer(count)),
                                          .numel = x.numel()};
  run(Device::scale_in_place, arguments, device.stream, op);
}

}  // namespace

#define REGISTER_LOSSES(D)                                          \
  m.impl("count_targets", TORCH_BOX(&count_targets<D>));            \
  m.impl("cross_entropy_rows_", TORCH_BOX(&cross_entropy_rows<D>)); \
  m.impl("mean_loss", TORCH_BOX(&mean_loss<D>));                    \
  m.impl("scale_", TORCH_BOX(&scale_in_place<D>));

STABLE_TORCH_LIBRARY_FRAGMENT(GPULEDGER_NAMESPACE, m) {
  m.def("count_targets(Tensor target, int ignore_index) -> Tensor");
  m.def(
      "cross_entropy_rows_(Tensor(a!) logits, Tensor(b!) losses, Tensor target, Tensor? count, "
      "int ignore_index, bool write_gradient) -> ()");
  m.def("mean_loss(Tensor losses, Tensor? count) -> Tensor");
  m.def("scale_(Tensor(a!) x, Tensor factor, Tensor? count) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CPU, m){REGISTER_LOSSES(Cpu)}
#ifdef GPULEDGER_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CUDA, m) {
  REGISTER_LOSSES(Cuda)
}
#endif

}  // namespace binding
