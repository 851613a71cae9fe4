// The CUDA kernels, run on the CPU, against the plain loops: every entry point through the C ABI.
// Stand-alone, so that it can be built with sanitizers, with gcov, and with planted bugs.
//   main            everything
//   main sanitize   small sizes (a sanitizer makes every barrier slow)
//   main race | out_of_bounds | misaligned     proves that a sanitizer sees the like
#include "../../../csrc/compat/gpu.h"
#include "../../../csrc/include/kernels.h"
#include "arrays.h"

using namespace gpuledger;

namespace {

struct Size {
  int64_t rows, cols;
};
bool small = false;

std::vector<int> dtypes() {
#ifdef GPULEDGER_ONLY_F32
  return {F32};
#else
  return {F32, BF16, F16, F64};
#endif
}
std::vector<Size> sizes() {
  if (small) return {{3, 264}, {2, 37}};  // two warps, one warp
  return {{5, 96}, {3, 77}, {9, 260}, {300, 24}, {1, 8}, {0, 16}, {3, 0}};
}
void ok(int status, const std::string& name) {
  expect(status == kOk, name + ": status " + std::to_string(status));
}

void check_norm(bool center, int dtype, Size size, int weight_dtype, bool extra, int shift) {
  const std::string name = std::string(center ? "layer" : "rms") + "_norm " +
                           std::to_string(size.rows) + "x" + std::to_string(size.cols);
  const int wide = accumulator_of(dtype);
  const int64_t n = size.rows * size.cols,
                parts = std::min<int64_t>(std::max<int64_t>(size.rows, 1), 4);
  const Array x = Array::random(dtype, n, shift), residual = Array::random(dtype, n);
  const Array weight = Array::random(weight_dtype, size.cols);
  const Array bias = Array::random(weight_dtype, size.cols);
  const Array dy = Array::random(dtype, n), dh = Array::random(dtype, n);
  auto run = [&](auto forward, auto backward, std::vector<Array>& out) {
    Array y(dtype, n), h(dtype, n), mean(wide, size.rows), rstd(wide, size.rows);
    const bool with_bias = center && extra;
    const NormForward f{dtype,
                        weight_dtype,
                        x.data(),
                        extra ? residual.data() : nullptr,
                        weight.data(),
                        with_bias ? bias.data() : nullptr,
                        y.data(),
                        extra ? h.data() : nullptr,
                        center ? mean.data() : nullptr,
                        rstd.data(),
                        size.rows,
                        size.cols,
                        1e-5};
    ok(forward(&f, nullptr), name);
    Array dx(dtype, n), dweight(weight_dtype, size.cols), dbias(weight_dtype, size.cols);
    Array partials(wide, (with_bias ? 2 : 1) * parts * size.cols);
    const NormBackward b{dtype,
                         weight_dtype,
                         dy.data(),
                         extra ? dh.data() : nullptr,
                         extra ? h.data() : x.data(),
                         weight.data(),
                         center ? mean.data() : nullptr,
                         rstd.data(),
                         dx.data(),
                         dweight.data(),
                         with_bias ? dbias.data() : nullptr,
                         partials.data(),
                         parts,
                         size.rows,
                         size.cols};
    ok(backward(&b, nullptr), name + " backward");
    for (const Array* a : {&y, &rstd, &dx, &dweight}) out.push_back(*a);
    if (extra) out.push_back(h);
    if (center) out.push_back(mean);
    if (with_bias) out.push_back(dbias);
  };
  std::vector<Array> got, want;
  if (center) {
    run(gpuledger_host_layer_norm_forward, gpuledger_host_layer_norm_backward, got);
    run(gpuledger_cpu_layer_norm_forward, gpuledger_cpu_layer_norm_backward, want);
  } else {
    run(gpuledger_host_rms_norm_forward, gpuledger_host_rms_norm_backward, got);
    run(gpuledger_cpu_rms_norm_forward, gpuledger_cpu_rms_norm_backward, want);
  }
  const char* results[] = {" y", " rstd", " dx", " dweight", " 5th", " 6th", " 7th"};
  for (size_t i = 0; i < got.size(); ++i)
    if (size.cols) expect_close(name + results[i], got[i], want[i]);
}

void check_bias_gelu(int dtype, Size size, bool tanh, bool with_bias, int shift) {
  const std::string name =
      "bias_gelu " + std::to_string(size.rows) + "x" + std::to_string(size.cols);
  const int64_t n = size.rows * size.cols, parts = 2;
  const Array x = Array::random(dtype, n, shift), dy = Array::random(dtype, n);
  const Array bias = Array::random(dtype, size.cols);
  const void* given_bias = with_bias ? bias.data() : nullptr;
  auto run = [&](auto forward, auto backward, std::vector<Array>& out) {
    Array y(dtype, n), dx(dtype, n), dbias(dtype, size.cols);
    Array partials(accumulator_of(dtype), parts * size.cols);
    const BiasGeluForward f{dtype, tanh, x.data(), given_bias, y.data(), size.rows, size.cols};
    ok(forward(&f, nullptr), name);
    const BiasGeluBackward b{dtype,
                             tanh,
                             dy.data(),
                             x.data(),
                             given_bias,
                             dx.data(),
                             with_bias ? dbias.data() : nullptr,
                             partials.data(),
                             parts,
                             size.rows,
                             size.cols};
    ok(backward(&b, nullptr), name + " backward");
    out.push_back(y);
    out.push_back(dx);
    if (with_bias) out.push_back(dbias);
  };
  std::vector<Array> got, want;
  run(gpuledger_host_bias_gelu_forward, gpuledger_host_bias_gelu_backward, got);
  run(gpuledger_cpu_bias_gelu_forward, gpuledger_cpu_bias_gelu_backward, want);
  for (size_t i = 0; i < got.size(); ++i) expect_close(name, got[i], want[i]);
}

void check_swiglu(int dtype, Size size, int64_t gap, int shift) {
  const std::string name = "swiglu " + std::to_string(size.rows) + "x" + std::to_string(size.cols);
  const int64_t n = size.rows * size.cols, stride = size.cols + gap, up_stride = stride + gap;
  const Array gate = Array::random(dtype, size.rows * stride, shift);
  const Array up = Array::random(dtype, size.rows * up_stride), dy = Array::random(dtype, n);
  auto run = [&](auto forward, auto backward, std::vector<Array>& out) {
    Array y(dtype, n), dgate(dtype, n), dup(dtype, n);
    const SwigluForward f{dtype,     gate.data(), up.data(), y.data(), size.rows,
                          size.cols, stride,      up_stride, size.cols};
    ok(forward(&f, nullptr), name);
    const SwigluBackward b{dtype,      dy.data(), gate.data(), up.data(), dgate.data(),
                           dup.data(), size.rows, size.cols,   size.cols, stride,
                           up_stride,  size.cols, size.cols};
    ok(backward(&b, nullptr), name + " backward");
    for (const Array* a : {&y, &dgate, &dup}) out.push_back(*a);
  };
  std::vector<Array> got, want;
  run(gpuledger_host_swiglu_forward, gpuledger_host_swiglu_backward, got);
  run(gpuledger_cpu_swiglu_forward, gpuledger_cpu_swiglu_backward, want);
  for (size_t i = 0; i < got.size(); ++i) expect_close(name, got[i], want[i]);
}

void check_cross_entropy(int dtype, Size size, int64_t gap, bool mean, bool write) {
  const std::string name =
      "cross_entropy " + std::to_string(size.rows) + "x" + std::to_string(size.cols);
  const int wide = accumulator_of(dtype);
  const int64_t stride = size.cols + gap, n = size.rows * stride;
  const Array logits = Array::random(dtype, n), factor = Array::random(wide, 1);
  std::vector<int64_t> target(size_t(size.rows));
  for (int64_t r = 0; r < size.rows; ++r) target[size_t(r)] = r % 4 == 3 ? -100 : r * 7 % size.cols;
  auto run = [&](auto count_fn, auto rows_fn, auto mean_fn, auto scale_fn,
                 std::vector<Array>& out) {
    int64_t count = -1;
    Array row(logits), losses(wide, size.rows), loss(wide, 1);
    const CountTargets c{target.data(), &count, size.rows, -100};
    ok(count_fn(&c, nullptr), name);
    expect(count == size.rows - size.rows / 4, name + ": count");
    const int64_t* divisor = mean ? &count : nullptr;
    const CrossEntropyRows r{dtype,         write,     row.data(), target.data(), divisor,
                             losses.data(), size.rows, size.cols,  stride,        -100};
    ok(rows_fn(&r, nullptr), name);
    const MeanLoss m{wide, losses.data(), divisor, loss.data(), size.rows};
    ok(mean_fn(&m, nullptr), name);
    const ScaleInPlace s{dtype, row.data(), factor.data(), divisor, n};
    ok(scale_fn(&s, nullptr), name);
    for (const Array* a : {&row, &losses}) out.push_back(*a);
    if (size.rows) out.push_back(loss);
  };
  std::vector<Array> got, want;
  run(gpuledger_host_count_targets, gpuledger_host_cross_entropy_rows, gpuledger_host_mean_loss,
      gpuledger_host_scale_in_place, got);
  run(gpuledger_cpu_count_targets, gpuledger_cpu_cross_entropy_rows, gpuledger_cpu_mean_loss,
      gpuledger_cpu_scale_in_place, want);
  for (size_t i = 0; i < got.size(); ++i) expect_close(name, got[i], want[i]);
  if (!write) return;
  const int64_t outside = size.cols;  // no such class: NaN, not a wrong number
  Array row(logits), losses(wide, size.rows);
  const CrossEntropyRows r{dtype,         1, row.data(), &outside, nullptr,
                           losses.data(), 1, size.cols,  stride,   -100};
  if (size.rows == 0) return;
  ok(gpuledger_host_cross_entropy_rows(&r, nullptr), name);
  expect(std::isnan(losses.get(0)) && std::isnan(row.get(0)), name + ": target outside");
}

void check_scale_by_one(int dtype) {
  Array x = Array::random(dtype, 41), factor(accumulator_of(dtype), 1);
  const Array before(x);
  factor.set(0, 1);
  const ScaleInPlace s{dtype, x.data(), factor.data(), nullptr, x.count()};
  ok(gpuledger_host_scale_in_place(&s, nullptr), "scale");
  expect_equal("scale by one", x, before);
}

void check_rotary(int dtype, int64_t pairs, int64_t rest, bool interleaved, int shift) {
  const int64_t batch = 2, seq = small ? 2 : 5, heads = 3, dim = 2 * pairs + rest;
  const int64_t n = batch * seq * heads * dim;
  const Array x = Array::random(dtype, n, shift);
  const Array cosine = Array::random(accumulator_of(dtype), seq * pairs);
  const Array sine = Array::random(accumulator_of(dtype), seq * pairs);
  auto run = [&](auto kernel, Array& y, const void* from, bool conjugate) {
    Rotary r{dtype, interleaved, conjugate, from, y.data(), cosine.data(), sine.data(), batch, seq,
             heads, dim,         pairs,     {},   {}};
    const int64_t strides[] = {seq * heads * dim, heads * dim, dim};
    std::copy(strides, strides + 3, r.x_strides);
    std::copy(strides, strides + 3, r.y_strides);
    ok(kernel(&r, nullptr), "rotary");
  };
  for (bool conjugate : {false, true}) {
    Array got(dtype, n, shift), want(dtype, n, shift), in_place(x);
    run(gpuledger_host_rotary, got, x.data(), conjugate);
    run(gpuledger_cpu_rotary, want, x.data(), conjugate);
    run(gpuledger_host_rotary, in_place, in_place.data(), conjugate);
    expect_close("rotary", got, want);
    expect_equal("rotary in place", in_place, got);
  }
}

void check_dropout(int dtype, int64_t n, int shift) {
  const Array x = Array::random(dtype, n, shift);
  for (double probability : {0.0, 0.3, 1.0}) {
    Array got(dtype, n, shift), want(dtype, n, shift);
    const Dropout g{dtype, x.data(), got.data(), n, probability, 0x123456789ABCDEF0};
    Dropout w = g;
    w.y = want.data();
    ok(gpuledger_host_dropout(&g, nullptr), "dropout");
    ok(gpuledger_cpu_dropout(&w, nullptr), "dropout");
    expect_equal("dropout " + std::to_string(n), got, want);
  }
}

void check_adamw(int dtype, int state_dtype, const std::vector<int64_t>& numels, int shift) {
  struct Run {
    std::vector<Array> params, exp_avgs, exp_avg_sqs;
  };
  Run host;
  std::vector<Array> grads;
  host.params.reserve(numels.size());
  for (int64_t n : numels) {
    host.params.push_back(Array::random(dtype, n, shift));
    grads.push_back(Array::random(dtype, n));
    host.exp_avgs.push_back(Array::random(state_dtype, n));
    host.exp_avg_sqs.push_back(Array::random(state_dtype, n));
    for (int64_t i = 0; i < n; ++i) {
      Array& v = host.exp_avg_sqs.back();
      v.set(i, std::abs(v.get(i)));
    }
  }
  Run plain = host;
  auto step = [&](auto kernel, Run& run) {
    std::vector<void*> params, exp_avgs, exp_avg_sqs;
    std::vector<const void*> gradients;
    for (size_t i = 0; i < numels.size(); ++i) {
      params.push_back(run.params[i].data());
      gradients.push_back(grads[i].data());
      exp_avgs.push_back(run.exp_avgs[i].data());
      exp_avg_sqs.push_back(run.exp_avg_sqs[i].data());
    }
    const AdamW a{dtype,
                  state_dtype,
                  int64_t(numels.size()),
                  params.data(),
                  gradients.data(),
                  exp_avgs.data(),
                  exp_avg_sqs.data(),
                  numels.data(),
                  1e-2,
                  0.9,
                  0.999,
                  1e-8,
                  0.1,
                  3};
    ok(kernel(&a, nullptr), "adamw");
  };
  step(gpuledger_host_adamw, host);
  step(gpuledger_cpu_adamw, plain);
  for (size_t i = 0; i < numels.size(); ++i) {
    expect_close("adamw params", host.params[i], plain.params[i]);
    expect_close("adamw exp_avg", host.exp_avgs[i], plain.exp_avgs[i]);
    expect_close("adamw exp_avg_sq", host.exp_avg_sqs[i], plain.exp_avg_sqs[i]);
  }
}

// ---- kernels that are wrong on purpose: the host run must refuse them ----
__global__ void half_a_barrier(float* out) {
  if (threadIdx.x < 16) __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void two_barriers(float* out) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void absent_lane(float* out) {
  if (threadIdx.x < 40) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, out[threadIdx.x], 1);
}
__global__ void half_a_shuffle(float* out) {
  if (threadIdx.x % 2) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
  __syncthreads();
}
__global__ void unwritten(float* out) {
  GPU_DYNAMIC_SHARED(float, shared);
  out[threadIdx.x] = shared[threadIdx.x];
}
__global__ void race(float* out) {
  __shared__ float shared[64];
  shared[threadIdx.x] = float(threadIdx.x);
  out[threadIdx.x] = shared[threadIdx.x ^ 1];
}
__global__ void out_of_bounds(float* out) { out[threadIdx.x + 1] = 1; }
__global__ void misaligned(float* out) { gpu::store<float, 4>(out + 1, gpu::Pack<float, 4>{}); }

void launch(void (*kernel)(float*), unsigned threads, float* out) {
  GPU_LAUNCH(kernel, dim3(1), dim3(threads), 256, nullptr, out);
}
void expect_refusal(void (*kernel)(float*), unsigned threads, const char* name) {
  std::vector<float> out(64);
  try {
    launch(kernel, threads, out.data());
    expect(false, std::string(name) + " was not refused");
  } catch (const std::runtime_error&) {
    expect(true, name);
  }
}
void check_strictness() {
  expect_refusal(half_a_barrier, 64, "half_a_barrier");
  expect_refusal(two_barriers, 64, "two_barriers");
  expect_refusal(absent_lane, 40, "absent_lane");
  expect_refusal(half_a_shuffle, 32, "half_a_shuffle");
  std::vector<float> out(64);
  launch(unwritten, 64, out.data());
  expect(std::isnan(out[5]), "shared memory must start as NaN");
}

void check_kernels_of(int dtype) {
  for (Size size : sizes()) {
    for (bool flag : {false, true}) {
      if (small && !flag) continue;
      for (bool center : {false, true}) {
        check_norm(center, dtype, size, dtype, flag, 0);
        if (dtype == BF16 || dtype == F16) check_norm(center, dtype, size, F32, flag, 0);
        if (flag) check_norm(center, dtype, size, dtype, flag, 1);
      }
      for (bool tanh : {false, true}) check_bias_gelu(dtype, size, tanh, flag, flag);
      check_bias_gelu(dtype, size, true, flag, 0);
      check_swiglu(dtype, size, flag ? 16 : 0, 0);
      check_swiglu(dtype, size, flag ? 3 : 0, 1);
      if (size.cols) check_cross_entropy(dtype, size, flag ? 5 : 0, flag, true);
    }
    if (size.cols) check_cross_entropy(dtype, size, 0, true, false);
  }
  for (bool interleaved : {false, true})
    for (int64_t rest : {0, 8}) {
      check_rotary(dtype, 8, rest, interleaved, 0);
      check_rotary(dtype, 3, rest, interleaved, 0);
      check_rotary(dtype, 8, rest, interleaved, 1);
    }
  for (int64_t n : {0, 1, 64, 77})
    for (int shift : {0, 1}) check_dropout(dtype, n, shift);
  check_scale_by_one(dtype);
  check_adamw(dtype, dtype, {5, 0, 64, 77}, 0);
  check_adamw(dtype, accumulator_of(dtype), {5, 64}, 1);
}

void check_large_shapes() {
  const int dtype = F32;
  for (bool center : {false, true}) {
    check_norm(center, dtype, {2, 16400}, dtype, true, 0);  // too wide for registers
    check_norm(center, dtype, {2, 4100}, dtype, true, 1);   // the same, element by element
    check_norm(center, dtype, {1, 25000}, dtype, true, 0);  // and for shared memory
  }
  check_adamw(dtype, dtype, {65536 * 2 + 3, 7}, 0);           // more than one chunk
  check_adamw(dtype, dtype, std::vector<int64_t>(70, 9), 0);  // more than one launch
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  std::vector<float> out(64);
  if (mode == "race") return launch(race, 64, out.data()), 0;
  if (mode == "out_of_bounds") return launch(out_of_bounds, 64, out.data()), 0;
  if (mode == "misaligned") return launch(misaligned, 1, out.data()), 0;
  small = mode == "sanitize";
  for (int dtype : dtypes()) check_kernels_of(dtype);
  if (!small) {
    check_large_shapes();
    check_strictness();
  }
  const NormForward unknown{.dtype = 9};
  expect(gpuledger_host_rms_norm_forward(&unknown, nullptr) == kUnsupportedDtype, "dtype 9");
  std::printf("%d comparisons, %d failures, checksum %016llx\n", score().comparisons,
              score().failures, static_cast<unsigned long long>(score().checksum));
  return score().failures ? 1 : 0;
}
