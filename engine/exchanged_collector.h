// SPDX-License-Identifier: Apache-2.0
// The collector of several processes that share the batches of a pass.
#pragma once

#include <functional>
#include <memory>

#include "engine/collector.h"
#include "runtime/processes.h"

namespace shiftrt {

// Wraps the collector of this process's device. `weights`: the model whose blocks it receives rows of, which may be
// split over processes.
//
// The sums of a site have an owner among the processes. The others send it the rows of their batches, and it adds the
// batches of a round in their order, as a process that is alone does: the same additions, and the same bits. Rows of a
// CPU are sent at once. Those of a GPU wait for the end of the round, when all rows of all sites go to their owners'
// GPUs at the same time. When the sums are completed, the owner shares them with all. For each token of another
// process, 4 (n + d) + 24 bytes are sent to the owner, and 8 more if tokens have weights. Where the model is split, the
// owner is among the processes that hold the site's last block, and the sums stay with it.
std::unique_ptr<Collector> MakeExchangedCollector(const Context& context, std::unique_ptr<Collector> own,
                                                  const Weights& weights);

// Rows that go between the GPUs of several processes, all at the same time. Those from one process to another arrive in
// the order of Send(), and the receiver asks for as many.
class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual void Send(int to, const Rows& rows) = 0;  // the rows must not change until Run() returns
  // On this process's GPU. They are there once Run() has returned, until the next call of this.
  virtual Rows Receive(int from, int64_t count, int64_t hidden) = 0;
  // All processes call it. Throws as WithMemoryForBatch() does where one has no room for what it receives.
  virtual void Run() = 0;
};

// Calls call() in all processes. Where the device of one has no memory for it, all throw OutOfMemory.
void WithMemoryForAll(Processes& processes, const std::function<void()>& call);
// The same for what is done for one batch after another. The processes of a split model work at different batches and
// do not wait for each other: there, Error takes the place of OutOfMemory.
void WithMemoryForBatch(Processes& processes, const std::function<void()>& call);

}  // namespace shiftrt
