// SPDX-License-Identifier: Apache-2.0
// Sums of tapped activations, on the device of the decoder that has them: calibration copies sums from a GPU to the
// host, not activations.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/rows.h"
#include "kernels/gram.h"
#include "models/weights.h"
#include "runtime/context.h"
#include "runtime/linalg/placed.h"
#include "runtime/processes.h"

namespace shiftrt {

// The sums of one site (RidgeSumsView in kernels/gram.h), in host memory or in that of a GPU's solver.
struct RidgeMatrices {
  linalg::PlacedMatrix gram, cross;  // (n + 1, n + 1), of which the upper triangle is valid, and (n + 1, d)

  RidgeSumsView ToWrite() { return {gram.ToWrite().view(), cross.ToWrite().view()}; }
};

// The sums of one site while a pass runs.
class DeviceRidgeSums {
 public:
  virtual ~DeviceRidgeSums() = default;
  // kernels/gram.h; rows tapped or kept. `weights` may be empty.
  virtual void Add(const Rows& h, const Rows& delta, std::span<const double> weights) = 0;
  // The matrices this was made for become what was added, on whichever device. On a CPU they are it already. On a GPU
  // they stay in its memory, if there is room (linalg::Solver::MayStay), until more is added: then they are copied to
  // the host first.
  virtual void Store() = 0;
};

// Products of pairs of rows, on their way from the device while it goes on.
class PendingProducts {
 public:
  virtual ~PendingProducts() = default;
  // Starts the products of each pair of rows, tapped or kept.
  virtual void Start(const Rows& a, const Rows& b) = 0;
  // Waits for the products that were started last and returns them; returns nothing if they were taken before.
  virtual std::vector<RowProducts> Take() = 0;
};

// Rows that go between the GPUs of several processes, all at the same time. Those from one process to another arrive in
// the order of Send(), and the receiver asks for as many.
class RowExchange {
 public:
  virtual ~RowExchange() = default;
  virtual void Send(int to, const Rows& rows) = 0;  // which stay as they are until Run() returns
  // On this process's GPU. They are there once Run() has returned, until the next call of this.
  virtual Rows Receive(int from, int64_t count, int64_t hidden) = 0;
  // All processes call it. Throws as WithMemoryForBatch() does where one has no room for what it receives.
  virtual void Run() = 0;
};

// Calls call() in all processes. Where the device of one has no memory for it, all throw OutOfMemory, so that they
// divide their work alike.
void WithMemoryForAll(Processes& processes, const std::function<void()>& call);
// WithMemoryForAll() for work that is done for one batch after another. The processes of a split model work at
// different batches and do not wait for each other: there, Error takes the place of OutOfMemory.
void WithMemoryForBatch(Processes& processes, const std::function<void()>& call);

class Tally {
 public:
  explicit Tally(const Context& context) : processes_(context.processes) {}
  virtual ~Tally() = default;
  // The processes that share the batches whose rows it takes.
  Processes& processes() const { return *processes_; }
  // The number of devices whose rows it takes, and which work at the same time.
  virtual int64_t devices() const = 0;
  // Goes on from what `into` holds, which lasts longer than the result.
  virtual std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(RidgeMatrices& into) = 0;
  virtual std::unique_ptr<PendingProducts> MakeProducts() = 0;
  // Null where rows are the host's, and where nobody shares the batches.
  virtual RowExchange* exchange() { return nullptr; }

 private:
  std::shared_ptr<Processes> processes_;
};

// For what decoders of these weights tap, on any of the context's GPUs. Not for use by several threads. All of the
// context's processes make it at the same time.
std::unique_ptr<Tally> MakeTally(const Context& context, std::shared_ptr<const Weights> weights);
std::unique_ptr<Tally> MakeCpuTally(const Context& context);
// Throws Error where this build or this machine has no CUDA, and for several GPUs without NCCL.
std::unique_ptr<Tally> MakeCudaTally(const Context& context, std::shared_ptr<const Weights> weights);

}  // namespace shiftrt
