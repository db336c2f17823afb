// SPDX-License-Identifier: Apache-2.0
// From tapped rows to ridge sums.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/tally.h"
#include "shift/sums/sites.h"
#include "shift/sums/statistics.h"
#include "shift/sums/token_weights.h"

namespace shiftrt {

// Adds rows to ridge sums on the device that has the rows.
//
// Where several processes share the batches, the sums have an owner among them. The others send it their rows, and it
// adds the batches of a round in their order, as a process that is alone does: the same additions, and the same bits.
// Rows of a CPU are sent at once. Those of a GPU wait for the end of the round, when all rows of all sites go to their
// owners' GPUs at the same time. Bytes per token that is not the owner's: 4 (n + d) + 40. Where the model is split, the
// owner is among the processes that hold the site's last block, and the sums stay with it.
class RidgeAdder {
 public:
  // `into` lasts longer than this, and nobody else changes it meanwhile. Throws OutOfMemory where the device has no
  // room for its sums. `holder`: as SiteSums has it. `channel`: a new one of the processes.
  RidgeAdder(Tally& tally, const Site& site, RidgeSums& into, int channel, int holder);
  RidgeAdder(Tally& tally, const Site& site, RidgeSums& into)
      : RidgeAdder(tally, site, into, tally.processes().NewChannel(), -1) {}
  // As RidgeSums::Add, with the weights of `weighting`. The rows are those of `batch`. `stream` (tokens, hidden) is
  // what `delta` is added to; often it is the inputs themselves. Throws Error naming site and row for NaN or infinity
  // in stream or delta. Where all tokens count alike it does not wait for the device: what is wrong with these rows is
  // found by a later Add, when the same device's turn comes again, or by Settle.
  struct Tokens {
    Rows inputs, stream, delta;
  };
  void Add(const Tokens& tokens, const TokenWeighting& weighting, const Batch& batch);
  // Ends a round of adders of one tally, in which so many groups had a batch. All processes call it, also those
  // without. Throws OutOfMemory, as RowExchange does.
  static void EndRound(std::span<RidgeAdder* const> adders, int64_t present);
  void EndRound(int64_t present) {
    RidgeAdder* const one = this;
    EndRound(std::span(&one, 1), present);
  }
  // Bytes of the message with so many rows of a batch, `inputs` and `hidden` numbers each, and of the one with which
  // the owner shares its sums.
  static int64_t RowsBytes(int64_t tokens, int64_t inputs, int64_t hidden, bool weighted);
  static int64_t SharedBytes(int64_t inputs, int64_t hidden);
  // Throws what Add throws. Brings what was added into the sums of every process, or of their holder, which are of no
  // use until then: on a GPU it holds what it held before, on a CPU its matrices are ahead of its totals.
  void Settle();

 private:
  // The rows of a batch on a GPU, and what goes with them.
  struct Held {
    std::vector<RowProducts> products;
    std::vector<double> weights;
    Rows inputs, delta;
  };
  void Hold(const Tokens& tokens, const TokenWeighting& weighting, const Batch& batch);
  Bytes Packed(const Tokens& tokens, const TokenWeighting& weighting, const Batch& batch);
  void AddPacked(const Bytes& message);
  void Add(const Held& held);
  void Offer(int64_t present);
  void Take(int64_t present);
  void Share();
  // Checks and counts rows of which these are the products.
  void Count(std::span<const RowProducts> products, std::span<const double> weights);

  Site site_;
  RidgeSums& into_;
  Processes& processes_;
  const int channel_, holder_, owner_;
  RowExchange* const exchange_;  // of GPUs in several processes
  Bytes own_;                    // the batch of a round that the owner itself has run
  KeptRows kept_inputs_, kept_delta_;
  Held held_;                                              // the same of a GPU, on every process
  std::vector<Held> received_;                             // of the other groups, in their order
  std::unique_ptr<DeviceRidgeSums> sums_;                  // the owner's
  std::vector<std::unique_ptr<PendingProducts>> pending_;  // one per device, used in turn
  size_t turn_ = 0;                                        // the oldest
  double delta_squares_;
  int64_t tokens_;
};

}  // namespace shiftrt
