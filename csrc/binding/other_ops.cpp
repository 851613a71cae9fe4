// rotary, dropout, adamw_.
#include "binding.h"

namespace binding {
namespace {

template <class Device>
void rotate(const char* op, const Tensor& x, const Tensor& y, Tensor given_cosine,
            Tensor given_sine, bool interleaved, bool conjugate) {
  const Device device(x);
  const Tensor cosine = torch::stable::contiguous(given_cosine);
  const Tensor sine = torch::stable::contiguous(given_sine);
  gpuledger::Rotary arguments{.dtype = dtype_of(x, op, "x"),
                              .interleaved = interleaved,
                              .conjugate = conjugate,
                              .x = x.const_data_ptr(),
                              .y = y.mutable_data_ptr(),
                              .cosine = cosine.const_data_ptr(),
                              .sine = sine.const_data_ptr(),
                              .batch = x.size(0),
                              .seq = x.size(1),
                              .heads = x.size(2),
                              .head_dim = x.size(3),
                              .pairs = cosine.size(1),
                              .x_strides = {x.stride(0), x.stride(1), x.stride(2)},
                              .y_strides = {y.stride(0), y.stride(1), y.stride(2)}};
  run(Device::rotary, arguments, device.stream, op);
}

void check_rotary(const char* op, const Tensor& x, const Tensor& cosine, const Tensor& sine) {
  STD_TORCH_CHECK(x.dim() == 4, op, ": x must be [batch, seq, heads, head_dim], but is ",
                  describe(x));
  STD_TORCH_CHECK(x.size(3) <= 1 || x.stride(3) == 1, op, ": x ", describe(x),
                  " must have a last stride of 1, but has ", x.stride(3));
  check_device(cosine, x, op, "cosine");
  check_like(sine, cosine, op, "sine");
  const bool fits = cosine.dim() == 2 && cosine.size(0) >= x.size(1) &&
                    2 * cosine.size(1) <= x.size(3) && cosine.scalar_type() == accumulator_of(x);
  STD_TORCH_CHECK(fits, op, ": cosine must be [>= ", x.size(1), ", <= ", x.size(3) / 2, "] ",
                  torch::headeronly::toString(accumulator_of(x)), ", but is ", describe(cosine));
}

template <class Device>
Tensor rotary(Tensor x, Tensor cosine, Tensor sine, bool interleaved, bool conjugate) {
  constexpr auto op = "rotary";
  if (x.dim() == 4 && x.stride(3) != 1) x = torch::stable::contiguous(x);
  check_rotary(op, x, cosine, sine);
  const Tensor y = torch::stable::empty_like(x);
  rotate<Device>(op, x, y, cosine, sine, interleaved, conjugate);
  return y;
}
template <class Device>
void rotary_in_place(Tensor x, Tensor cosine, Tensor sine, bool interleaved, bool conjugate) {
  constexpr auto op = "rotary_";
  check_rotary(op, x, cosine, sine);
  rotate<Device>(op, x, x, cosine, sine, interleaved, conjugate);
}

template <class Device>
Tensor dropout(Tensor given_x, double probability, int64_t seed) {
  constexpr auto op = "dropout";
  STD_TORCH_CHECK(probability >= 0 && probability <= 1, op,
                  ": the probability must lie in [0, 1], but is ", probability);
  const Device device(given_x);
  const Tensor x = torch::stable::contiguous(given_x), y = torch::stable::empty_like(x);
  const gpuledger::Dropout arguments{.dtype = dtype_of(x, op, "x"),
                                     .x = x.const_data_ptr(),
                                     .y = y.mutable_data_ptr(),
                                     .numel = x.numel(),
                                     .probability = probability,
                                     .seed = uint64_t(seed)};
  run(Device::dropout, arguments, device.stream, op);
  return y;
}

// Pointers of a list whose tensors must look like params and be dense.
std::vector<void*> list_pointers(const std::vector<Tensor>& list, const std::vector<Tensor>& params,
                                 ScalarType dtype, const char* name) {
  constexpr auto op = "adamw_";
  STD_TORCH_CHECK(list.size() == params.size(), op, ": ", name, " has ", list.size(),
                  " tensors, but there are ", params.size(), " params");
  std::vector<void*> pointers;
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = std::string(name) + "[" + std::to_string(i) + "]";
    check_device(list[i], params[0], op, where.c_str());
    check_dense(list[i], op, where.c_str());
    STD_TORCH_CHECK(same_shape(list[i], params[i]) && list[i].scalar_type() == dtype, op, ": ",
                    where, " must be shaped like ", describe(params[i]), " and ",
                    torch::headeronly::toString(dtype), ", but is ", describe(list[i]));
    pointers.push_back(list[i].mutable_data_ptr());
  }
  return pointers;
}

template <class Device>
void adamw(std::vector<Tensor> params, std::vector<Tensor> grads, std::vector<Tensor> exp_avgs,
           std::vector<Tensor> exp_avg_sqs, double learning_rate, double beta1, double beta2,
           double eps, double weight_decay, int64_t step) {
  constexpr auto op = "adamw_";
  if (params.empty()) return;
  STD_TORCH_CHECK(exp_avgs.size() == params.size(), op, ": exp_avgs has ", exp_avgs.size(),
                  " tensors, but there are ", params.size(), " params");
  STD_TORCH_CHECK(step >= 1, op, ": step counts from 1, but is ", step);
  const ScalarType dtype = params[0].scalar_type(), state = exp_avgs[0].scalar_type();
  STD_TORCH_CHECK(state == dtype || state == accumulator_of(params[0]), op,
                  ": states must have the params' dtype or be float32, but are ",
                  torch::headeronly::toString(state));
  const auto param_pointers = list_pointers(params, params, dtype, "params");
  const auto grad_pointers = list_pointers(grads, params, dtype, "grads");
  const auto exp_avg_pointers = list_pointers(exp_avgs, params, state, "exp_avgs");
  const auto exp_avg_sq_pointers = list_pointers(exp_avg_sqs, params, state, "exp_avg_sqs");
  std::vector<int64_t> numels;
  for (const Tensor& p : params) numels.push_back(p.numel());
  const Device device(params[0]);
  const gpuledger::AdamW arguments{.dtype = dtype_of(params[0], op, "params"),
                                   .state_dtype = dtype_of(exp_avgs[0], op, "exp_avgs"),
                                   .num_tensors = int64_t(params.size()),
                                   .params = param_pointers.data(),
                                   .grads = grad_pointers.data(),
                                   .exp_avgs = exp_avg_pointers.data(),
                                   .exp_avg_sqs = exp_avg_sq_pointers.data(),
                                   .numels = numels.data(),
                                   .learning_rate = learning_rate,
                                   .beta1 = beta1,
                                   .beta2 = beta2,
                                   .eps = eps,
                                   .weight_decay = weight_decay,
                                   .step = step};
  run(Device::adamw, arguments, device.stream, op);
}

}  // namespace

#define REGISTER_OTHERS(D)                           \
  m.impl("rotary", TORCH_BOX(&rotary<D>));           \
  m.impl("rotary_", TORCH_BOX(&rotary_in_place<D>)); \
  m.impl("dropout", TORCH_BOX(&dropout<D>));         \
  m.impl("adamw_", TORCH_BOX(&adamw<D>));

STABLE_TORCH_LIBRARY_FRAGMENT(GPULEDGER_NAMESPACE, m) {
  m.def("rotary(Tensor x, Tensor cosine, Tensor sine, bool interleaved, bool conjugate) -> Tensor");
  m.def(
      "rotary_(Tensor(a!) x, Tensor cosine, Tensor sine, bool interleaved, bool conjugate) -> ()");
  m.def("dropout(Tensor x, float probability, int seed) -> Tensor");
  m.def(
      "adamw_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] exp_avgs, "
      "Tensor(c!)[] exp_avg_sqs, float learning_rate, float beta1, float beta2, float eps, "
      "float weight_decay, int step) -> ()");
}
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CPU, m){REGISTER_OTHERS(Cpu)}
#ifdef GPULEDGER_WITH_CUDA
STABLE_TORCH_LIBRARY_IMPL(GPULEDGER_NAMESPACE, CUDA, m) {
  REGISTER_OTHERS(Cuda)
}
#endif

}  // namespace binding
