// SPDX-License-Identifier: Apache-2.0
// Sums of tapped activations, on the device of the decoder that has them: calibration copies sums from a GPU to the
// host, and of each token only a few numbers.
//
// A Collector takes what decoders tap from batch to batch. Where several processes share the batches, the collector
// exchanges rows between them, so that every process ends up with the sums of all batches, in the bits of one process
// (engine/exchanged_collector.h). Its users do not know of processes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/rows.h"
#include "kernels/gram.h"
#include "models/weights.h"
#include "runtime/context.h"
#include "runtime/linalg/placed.h"
#include "runtime/shared_items.h"

namespace shiftrt {

class RowExchange;

// The tokens that the sums of a site are of.
struct RidgeTotals {
  int64_t tokens = 0;         // those of a weight above 0
  double delta_squares = 0;   // the sum of the weighted squares of the updates
  std::optional<int> holder;  // the only process that has the sums, of a model that is split; none: all have them
};
// The sums of one site (RidgeSumsView in kernels/gram.h), in host memory or in that of a GPU's solver.
struct RidgeMatrices {
  linalg::PlacedMatrix gram, cross;  // (n + 1, n + 1), of which the upper triangle is valid, and (n + 1, d)
  RidgeTotals totals = {};

  RidgeSumsView ToWrite() { return {gram.ToWrite().view(), cross.ToWrite().view()}; }
};
// A loop over sums: each item is worked on in one process that has the sums.
SharedItems WhereSumsAre(const Context& context, std::span<const RidgeMatrices* const> sums);

// The number of rows of a weight above 0; without weights that of all rows.
int64_t CountedRows(int64_t rows, std::span<const double> weights);

// Sum of the squares of the second rows, weighted where there are weights. Throws Error naming a row that is not
// finite.
double CheckedDeltaSquares(std::span<const RowProducts> inputs_and_deltas, std::span<const double> weights);

// The matrices of one site on a device while a pass runs.
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
  // Waits for the products that were started last and returns them; none when they were taken before.
  virtual std::vector<RowProducts> Take() = 0;
};

// The tokens of a batch at a site. `stream` (tokens, hidden) is what `delta` is added to; often it is the inputs
// themselves.
struct SiteRows {
  Rows inputs, stream, delta;
};
// The weights of rows, given the products of stream and delta. A null function: all rows count alike.
using RowWeights = std::function<std::vector<double>(std::span<const RowProducts> products)>;

// Adds the tokens of one batch after another to the sums of a site.
class RidgeAdder {
 public:
  virtual ~RidgeAdder() = default;
  // Throws Error naming site and row for NaN or infinity in stream or delta. Where all rows count alike it does not
  // wait for the device: what is wrong with these rows is found by a later Add, when the same device's turn comes
  // again, or by Complete.
  virtual void Add(const SiteRows& rows, const RowWeights& weights) = 0;
  // Brings what was added into the sums, which are of no use until then: on a GPU they are what they were before, on a
  // CPU the matrices are ahead of the totals. Throws what Add throws.
  virtual void Complete() = 0;
};
// The sums that an adder adds to, which last longer, and their site.
struct RidgeSite {
  RidgeMatrices& into;
  int64_t first_layer = 0, last_layer = 0;  // the blocks whose updates are added
  std::string name;                         // names the site in errors
};

// Rows that a sink collects over several blocks of one batch. In a model that is split over processes, they follow the
// stream to the process that holds the next block.
class RowTransfer {
 public:
  virtual ~RowTransfer() = default;
  // Called before the sink receives the rows of block `layer`, which are like `alike`, and after it.
  virtual void Before(int64_t layer, std::span<KeptRows* const> kept, const Rows& alike) = 0;
  virtual void After(int64_t layer, std::span<KeptRows* const> kept) = 0;
};

// The records of a probe that wait for the end of a batch. Only BatchRecords derives from it.
class ExchangedRecords {
 public:
  virtual ~ExchangedRecords() = default;
  virtual void Receive(Unpacker records) = 0;
  Packer written;  // the records of the batch that runs
};

class Collector {
 public:
  virtual ~Collector() = default;
  // The number of devices whose rows it takes, and which work at the same time.
  virtual int64_t devices() const = 0;
  // The device's own sums, which go on from what `into` holds. It lasts longer than the result.
  virtual std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(RidgeMatrices& into) = 0;
  virtual std::unique_ptr<PendingProducts> MakeProducts() = 0;
  // One adder per site. May throw OutOfMemory.
  virtual std::vector<std::unique_ptr<RidgeAdder>> MakeAdders(const std::vector<RidgeSite>& sites);
  // For rows that a sink collects over the blocks first .. last. Null where this process has all of these blocks.
  virtual std::unique_ptr<RowTransfer> MakeTransfer(int64_t /*first*/, int64_t /*last*/) { return nullptr; }
  // Calls run(b) for the batches 0 .. count - 1, or for those that this process has of them, in ascending order. Calls
  // ended(first, end, together) in every process when it is done with the batches first .. end - 1; with `together`,
  // all processes are, and what these batches added and recorded has arrived.
  virtual void ForEachBatch(int64_t count, const std::function<void(int64_t batch)>& run,
                            const std::function<void(int64_t first, int64_t end, bool together)>& ended);
  // Calls call(). Where the device of one process has no memory for it, all throw OutOfMemory, so that they divide
  // their work alike.
  virtual void InMemory(const std::function<void()>& call) { call(); }

  // True if records are exchanged between processes rather than delivered at once. `records` lasts as long as batches
  // run.
  virtual bool Exchanges(ExchangedRecords* /*records*/) { return false; }
  // Takes rows of this device to other processes; null where rows go as messages from host memory.
  virtual std::unique_ptr<RowExchange> MakeExchange(const Context& context);
};

// Values that a probe records of each batch. receive(record) is called for the records of all batches, in the order of
// the batches, in every process: at once, or when the batch has ended. `Record` goes through runtime/messages.h.
template <typename Record>
class BatchRecords : private ExchangedRecords {
 public:
  BatchRecords(Collector& collector, std::function<void(const Record&)> receive)
      : receive_(std::move(receive)), exchanged_(collector.Exchanges(this)) {}
  void Add(const Record& record) { exchanged_ ? Write(written, record) : receive_(record); }

 private:
  void Receive(Unpacker records) override {
    while (!records.done()) {
      Record record;
      Read(records, record);
      receive_(record);
    }
  }
  const std::function<void(const Record&)> receive_;
  const bool exchanged_;
};

// Copies of every `step`-th of the streams that are kept of a text's batches (empty where another process has the
// batch), dealt out as a text of these batches alone is. All processes of the context call it.
std::vector<KeptRows> EveryOf(const Context& context, std::span<const KeptRows> streams, int64_t step);

// For what decoders of these weights tap, on any of the context's GPUs. Not for use by several threads. All of the
// context's processes make it at the same time.
std::unique_ptr<Collector> MakeCollector(const Context& context, const std::shared_ptr<const Weights>& weights);
// Those of one process.
std::unique_ptr<Collector> MakeCpuCollector(const Context& context);
// Throws Error where this build or this machine has no CUDA, and for several GPUs without NCCL.
std::unique_ptr<Collector> MakeCudaCollector(const Context& context, std::shared_ptr<const Weights> weights);

}  // namespace shiftrt
