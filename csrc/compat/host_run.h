// The grid of the launch that is running, and what fibers and threads both need.
#pragma once
#include <pthread.h>
#include <cstdlib>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>
#ifndef GPULEDGER_HOST_THREADS
#include <csetjmp>
#include <ucontext.h>
#endif
#include "host_types.h"

namespace host_run {

constexpr size_t kWarpSize = 32;
constexpr size_t kMaxThreads = 1024;
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
  jmp_buf parked;
  bool started = false;
  std::vector<char> stack;
#endif
};

struct Grid {
  dim3 size, block_size, block;
  std::vector<Thread> pool = std::vector<Thread>(kMaxThreads);
  std::span<Thread> threads;  // those of the block that runs
  std::vector<char> shared;
  void (*body)(void*) = nullptr;  // of one thread
  void* arguments = nullptr;
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

// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): one number of a sequence that starts at state.
inline uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9E3779B97F4A7C15;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

// 0..count-1 in the order that GPULEDGER_HOST_ORDER asks for: forward, reverse, or a seed.
inline std::vector<size_t> schedule(size_t count, uint64_t salt) {
  const char* wanted = std::getenv("GPULEDGER_HOST_ORDER");
  const bool forward = !wanted || !std::strcmp(wanted, "forward");
  const bool reverse = !forward && !std::strcmp(wanted, "reverse");
  std::vector<size_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = reverse ? count - 1 - i : i;
  if (forward || reverse) return order;
  uint64_t state = std::strtoull(wanted, nullptr, 10) * 7919 + salt;
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[next_random(state) % i]);
  return order;
}

void run_block(Grid& grid, uint64_t salt);

inline void prepare(Grid& g, dim3 size, dim3 block, size_t shared_bytes) {
  const size_t count = size_t(block.x) * block.y * block.z;
  if (count == 0 || count > kMaxThreads || shared_bytes > kMaxSharedBytes || !size.x || !size.y ||
      !size.z || size.y > 65535 || size.z > 65535)
    throw std::runtime_error("invalid launch configuration");
  g.size = size;
  g.block_size = block;
  g.error.clear();
  g.shared.assign(shared_bytes + 256, 0);
  g.threads = std::span(g.pool).first(count);
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = g.threads[i];
    thread.lane = unsigned(i % kWarpSize);
    thread.warp = unsigned(i / kWarpSize);
    thread.index = dim3(unsigned(i % block.x), unsigned(i / block.x % block.y),
                        unsigned(i / (size_t(block.x) * block.y)));
  }
}

struct Lock {
  pthread_mutex_t& mutex;
  explicit Lock(pthread_mutex_t& m) : mutex(m) { pthread_mutex_lock(&mutex); }
  ~Lock() { pthread_mutex_unlock(&mutex); }
};

// Runs body(arguments) once for every thread of the grid.
inline void launch(dim3 size, dim3 block, size_t shared_bytes, void (*body)(void*),
                   void* arguments) {
  static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
  const Lock lock(one_at_a_time);
  Grid& g = grid();
  prepare(g, size, block, shared_bytes);
  g.body = body;
  g.arguments = arguments;
  for (size_t i : schedule(size_t(size.x) * size.y * size.z, 1)) {
    g.block = dim3(unsigned(i % size.x), unsigned(i / size.x % size.y),
                   unsigned(i / (size_t(size.x) * size.y)));
    std::memset(g.shared.data(), 0xFF, g.shared.size());  // NaN: nothing may count on zeros
    run_block(g, i + 2);
    if (!g.error.empty()) {
      g.pool = std::vector<Thread>(kMaxThreads);  // some stand in the middle of the kernel
      throw std::runtime_error("cuda_on_host: " + g.error);
    }
  }
}

}  // namespace host_run
