// The grid of the launch that is running, and what fibers and threads both need.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>
#ifndef GPULEDGER_HOST_THREADS
#include <ucontext.h>
#endif
#include "host_types.h"

namespace host_run {

constexpr size_t kWarpSize = 32;
constexpr size_t kMaxSharedBytes = 227 << 10;  // of one block, compute capability 9.0

enum class State { ready, at_barrier, at_warp_collective, done };

struct Thread {
  dim3 index;
  unsigned lane = 0, warp = 0;
  State state = State::ready;
  const char* site = "";  // source line of the barrier it waits at
  unsigned mask = 0;      // lanes of the warp collective it waits at
#ifndef GPULEDGER_HOST_THREADS
  ucontext_t context;
  std::unique_ptr<char[]> stack;
#endif
};

struct Grid {
  dim3 size, block_size, block;
  std::vector<Thread> threads;
  std::vector<char> shared;
  std::function<void()> body;
  std::string error;
};
inline Grid& grid() {
  static Grid the_grid;
  return the_grid;
}

inline char* dynamic_shared() {
  const auto address = reinterpret_cast<uintptr_t>(grid().shared.data());
  return reinterpret_cast<char*>((address + 127) & ~uintptr_t(127));
}
inline bool same_site(const char* a, const char* b) { return a == b || !std::strcmp(a, b); }

// 0..count-1 in the order that GPULEDGER_HOST_ORDER asks for: forward, reverse, or a seed.
inline std::vector<size_t> schedule(size_t count, uint64_t salt) {
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = i;
  const char* wanted = std::getenv("GPULEDGER_HOST_ORDER");
  if (!wanted || !std::strcmp(wanted, "forward")) return order;
  if (!std::strcmp(wanted, "reverse")) {
    std::reverse(order.begin(), order.end());
    return order;
  }
  std::mt19937_64 random(std::strtoull(wanted, nullptr, 10) * 7919 + salt);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

void run_block(Grid& grid, uint64_t salt);

inline void prepare(Grid& g, dim3 size, dim3 block, size_t shared_bytes) {
  const size_t count = size_t(block.x) * block.y * block.z;
  if (count == 0 || count > 1024 || shared_bytes > kMaxSharedBytes || !size.x || !size.y ||
      !size.z || size.y > 65535 || size.z > 65535)
    throw std::runtime_error("invalid launch configuration");
  g.size = size;
  g.block_size = block;
  g.error.clear();
  g.shared.assign(shared_bytes + 256, 0);
  if (g.threads.size() != count) g.threads = std::vector<Thread>(count);
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = g.threads[i];
    thread.lane = unsigned(i % kWarpSize);
    thread.warp = unsigned(i / kWarpSize);
    thread.index = dim3(unsigned(i % block.x), unsigned(i / block.x % block.y),
                        unsigned(i / (size_t(block.x) * block.y)));
  }
}

inline void launch(dim3 size, dim3 block, size_t shared_bytes, std::function<void()> body) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  Grid& g = grid();
  prepare(g, size, block, shared_bytes);
  g.body = std::move(body);
  for (size_t i : schedule(size_t(size.x) * size.y * size.z, 1)) {
    g.block = dim3(unsigned(i % size.x), unsigned(i / size.x % size.y),
                   unsigned(i / (size_t(size.x) * size.y)));
    std::memset(g.shared.data(), 0xFF, g.shared.size());  // NaN: nothing may count on zeros
    run_block(g, i + 2);
    if (!g.error.empty()) {
      g.threads.clear();
      throw std::runtime_error("cuda_on_host: " + g.error);
    }
  }
  g.body = nullptr;
}

}  // namespace host_run
