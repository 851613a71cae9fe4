// Every CUDA thread is an OS thread, and every barrier has its own mutex, so that a sanitizer sees
// only the ordering that the kernel itself asked for.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <semaphore>
#include <thread>
#include "host_run.h"

namespace host_run {

struct Meeting {
  std::mutex mutex;
  std::condition_variable everyone_arrived;
  unsigned arrived = 0, mask = 0;
  uint64_t generation = 0;
  const char* site = "";
};
struct WarpMeeting {
  uint64_t slots[kWarpSize];
  Meeting by_lowest_lane[kWarpSize];
};
struct Meetings {
  Meeting block;
  std::vector<WarpMeeting> warps;
  std::atomic<bool> failed{false};
  explicit Meetings(size_t num_warps) : warps(num_warps) {}
};
inline std::unique_ptr<Meetings>& meetings() {
  static std::unique_ptr<Meetings> the_meetings;
  return the_meetings;
}
inline thread_local Thread* current_thread = nullptr;
inline Thread& self() { return *current_thread; }

struct Abandoned {};
[[noreturn]] inline void fail(const std::string& why) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (grid().error.empty()) grid().error = why;
  meetings()->failed = true;
  throw Abandoned{};
}

inline void arrive(Meeting& meeting, unsigned expected, unsigned mask, const char* site) {
  constexpr int kPatience = 600;  // tenths of a second
  std::unique_lock<std::mutex> lock(meeting.mutex);
  if (meeting.arrived == 0) {
    meeting.mask = mask;
    meeting.site = site;
  } else if (meeting.mask != mask || !same_site(meeting.site, site)) {
    const std::string where = std::string(meeting.site) + " and " + site;
    lock.unlock();
    fail("different barriers: " + where);
  }
  const uint64_t generation = meeting.generation;
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
    meeting.everyone_arrived.notify_all();
    return;
  }
  for (int waited = 0; meeting.generation == generation; ++waited) {
    meeting.everyone_arrived.wait_for(lock, std::chrono::milliseconds(100));
    if (meetings()->failed) throw Abandoned{};
    if (waited > kPatience && meeting.generation == generation) {
      lock.unlock();
      fail(std::string("deadlock, at ") + site);
    }
  }
}

inline void barrier(const char* site) {
  arrive(meetings()->block, unsigned(grid().threads.size()), 0, site);
}
inline uint64_t exchange(unsigned mask, uint64_t value, unsigned source_lane, const char* site) {
  WarpMeeting& warp = meetings()->warps[self().warp];
  Meeting& meeting = warp.by_lowest_lane[__builtin_ctz(mask)];
  const auto lanes = unsigned(__builtin_popcount(mask));
  warp.slots[self().lane] = value;
  arrive(meeting, lanes, mask, site);
  const uint64_t result = warp.slots[source_lane];
  arrive(meeting, lanes, mask, site);
  return result;
}

// OS threads that outlive a block: to start one costs more than to run it.
class Workers {
 public:
  ~Workers() {
    stopping_ = true;
    for (Worker& worker : workers_) {
      worker.wake.release();
      worker.thread.join();
    }
  }
  // Runs the grid's body once for each of its threads, and returns when all are done.
  void run(Grid& g) {
    while (workers_.size() < g.threads.size()) start();
    for (size_t i = 0; i < g.threads.size(); ++i) {
      workers_[i].cuda_thread = &g.threads[i];
      workers_[i].wake.release();
    }
    for (size_t i = 0; i < g.threads.size(); ++i) workers_[i].done.acquire();
  }

 private:
  struct Worker {
    std::binary_semaphore wake{0}, done{0};
    Thread* cuda_thread = nullptr;
    std::thread thread;
  };
  void start() {
    Worker& worker = workers_.emplace_back();
    worker.thread = std::thread([this, &worker] {
      for (;;) {
        worker.wake.acquire();
        if (stopping_) return;
        current_thread = worker.cuda_thread;
        try {
          grid().body(grid().arguments);
        } catch (const Abandoned&) {
        }
        worker.done.release();
      }
    });
  }
  std::deque<Worker> workers_;  // a deque: workers never move
  std::atomic<bool> stopping_{false};
};

inline void run_block(Grid& g, uint64_t) {
  static Workers workers;
  meetings() = std::make_unique<Meetings>((g.threads.size() + kWarpSize - 1) / kWarpSize);
  workers.run(g);
}

}  // namespace host_run
