// SPDX-License-Identifier: Apache-2.0
// Processes that are threads of the test: the same code, without MPI.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "runtime/processes.h"

namespace shiftrt {

class ThreadLink : public Link {
 public:
  struct Post {
    std::mutex mutex;
    std::condition_variable arrived;
    std::map<std::tuple<int, int, int>, std::deque<Bytes>> messages;  // by sender, receiver and channel
  };

  ThreadLink(std::shared_ptr<Post> post, int rank, int size) : post_(std::move(post)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void Send(int to, int channel, Bytes message) override {
    const std::lock_guard lock(post_->mutex);
    post_->messages[{rank_, to, channel}].push_back(std::move(message));
    post_->arrived.notify_all();
  }
  Bytes Receive(int from, int channel) override {
    std::unique_lock lock(post_->mutex);
    std::deque<Bytes>& queue = post_->messages[{from, rank_, channel}];
    post_->arrived.wait(lock, [&] { return !queue.empty(); });
    Bytes message = std::move(queue.front());
    queue.pop_front();
    return message;
  }
  void Flush() override {}
  bool Fail(const std::string&) noexcept override { return true; }
  bool failed() const override { return false; }

 private:
  std::shared_ptr<Post> post_;
  int rank_, size_;
};

// Calls work(processes) in `size` threads, each a process of its own. `work` fails by EXPECT, and throws nothing.
inline void InProcesses(int size, const std::function<void(const std::shared_ptr<Processes>&)>& work) {
  const auto post = std::make_shared<ThreadLink::Post>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&work, post, rank, size] {
      work(std::make_shared<Processes>(std::make_unique<ThreadLink>(post, rank, size)));
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace shiftrt
