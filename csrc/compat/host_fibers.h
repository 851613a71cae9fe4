// Every CUDA thread is a fiber of one OS thread. The schedule is adversarial: a warp runs as far as
// it can before the next one starts, the largest skew a GPU could show.
//
// A fiber starts through ucontext, which asks the kernel for the signal mask at every switch; from
// then on it goes by setjmp and longjmp, which do not.
#pragma once
#include "host_run.h"

namespace host_run {

struct Fibers {
  jmp_buf scheduler;
  Thread* current = nullptr;
  std::vector<uint64_t> slots, results;  // one per thread: what a shuffle sends, and what it reads
};
inline Fibers& fibers() {
  static Fibers the_fibers;
  return the_fibers;
}
inline Thread& self() { return *fibers().current; }

// Back to the scheduler, until it resumes this fiber.
__attribute__((noinline)) inline void park(Thread& thread) {
  if (!_setjmp(thread.parked)) _longjmp(fibers().scheduler, 1);
}
__attribute__((noinline)) inline void resume(Thread& thread) {
  fibers().current = &thread;
  if (_setjmp(fibers().scheduler)) return;
  if (thread.started) _longjmp(thread.parked, 1);
  thread.started = true;
  setcontext(&thread.context);
}

inline void wait(State state, unsigned mask, const char* site) {
  Thread& thread = self();
  thread.mask = mask;
  thread.site = site;
  thread.state = state;
  park(thread);
}
inline void barrier(const char* site) { wait(State::at_barrier, 0, site); }

inline uint64_t exchange(unsigned mask, uint64_t value, unsigned source_lane, const char* site) {
  const size_t warp_base = self().warp * kWarpSize;
  fibers().slots[warp_base + self().lane] = value;
  wait(State::at_warp_collective, mask, site);
  return fibers().results[warp_base + source_lane];
}

// One fiber serves one thread of every block that follows.
inline void fiber_main() {
  for (;;) {
    grid().body(grid().arguments);
    self().state = State::done;
    park(self());
  }
}

inline size_t end_of_warp(const Grid& g, size_t warp) {
  const size_t end = (warp + 1) * kWarpSize;
  return end < g.threads.size() ? end : g.threads.size();
}

// Whether every lane that `thread` names waits at the same collective.
inline bool collective_is_complete(Grid& g, const Thread& thread) {
  const size_t base = thread.warp * kWarpSize;
  const size_t lanes = end_of_warp(g, thread.warp) - base;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (!((thread.mask >> lane) & 1)) continue;
    const bool absent = lane >= lanes || g.threads[base + lane].state == State::done;
    if (absent) {
      g.error = std::string("warp mask names an absent or exited lane, at ") + thread.site;
      return false;
    }
    const Thread& other = g.threads[base + lane];
    if (other.state != State::at_warp_collective || other.mask != thread.mask ||
        !same_site(other.site, thread.site))
      return false;
  }
  return true;
}

inline bool release_warp(Grid& g, size_t warp) {
  const size_t base = warp * kWarpSize, end = end_of_warp(g, warp);
  bool released = false;
  for (size_t i = base; i < end && g.error.empty(); ++i) {
    if (g.threads[i].state != State::at_warp_collective) continue;
    if (!collective_is_complete(g, g.threads[i])) continue;
    const unsigned mask = g.threads[i].mask;
    for (size_t lane = 0; lane < kWarpSize; ++lane) {
      if (!((mask >> lane) & 1)) continue;
      fibers().results[base + lane] = fibers().slots[base + lane];
      g.threads[base + lane].state = State::ready;
    }
    released = true;
  }
  return released;
}

inline void run_warp(Grid& g, size_t warp, const std::vector<size_t>& lane_order) {
  do {
    for (size_t lane : lane_order) {
      const size_t i = warp * kWarpSize + lane;
      if (i >= g.threads.size() || g.threads[i].state != State::ready) continue;
      resume(g.threads[i]);
    }
  } while (release_warp(g, warp));
}

// All warps are stuck: either all threads wait at one barrier, or the kernel is wrong.
// Returns false when the block is finished (or g.error says why it cannot go on).
inline bool release_barrier(Grid& g) {
  const Thread* first = nullptr;
  size_t done = 0;
  for (const Thread& thread : g.threads) {
    if (thread.state == State::done) {
      ++done;
      continue;
    }
    if (!first) first = &thread;
    if (thread.state == State::at_warp_collective)
      g.error = std::string("deadlock: lanes wait for a warp collective, at ") + thread.site;
    else if (!same_site(thread.site, first->site))
      g.error = std::string("different barriers: ") + first->site + " and " + thread.site;
    if (!g.error.empty()) return false;
  }
  if (!first) return false;
  if (done) {
    g.error = std::string("__syncthreads after some threads exited, at ") + first->site;
    return false;
  }
  for (Thread& thread : g.threads) thread.state = State::ready;
  return true;
}

inline void create_fiber(Thread& thread) {
  constexpr size_t kStackBytes = 64 << 10;
  thread.stack.resize(kStackBytes);
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.data();
  thread.context.uc_stack.ss_size = kStackBytes;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, fiber_main, 0);
}

inline void run_block(Grid& g, uint64_t salt) {
  for (Thread& thread : g.threads) {
    if (thread.stack.empty()) create_fiber(thread);
    thread.state = State::ready;
  }
  const size_t warps = (g.threads.size() + kWarpSize - 1) / kWarpSize;
  fibers().slots.assign(warps * kWarpSize, 0);
  fibers().results.assign(warps * kWarpSize, 0);
  const auto warp_order = schedule(warps, salt), lane_order = schedule(kWarpSize, salt + 1);
  do {
    for (size_t warp : warp_order) run_warp(g, warp, lane_order);
  } while (g.error.empty() && release_barrier(g));
}

}  // namespace host_run
