// SPDX-License-Identifier: Apache-2.0
// Speed of a whole model on the CPU, with its floors: the least times that the limits of the machine allow.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/record.h"
#include "engine/decoder.h"
#include "runtime/progress.h"

namespace shiftrt {

struct ModelBenchOptions {
  int64_t prefill = 512;   // tokens of the prompt
  int64_t context = 128;   // positions already in the cache when decoding is timed
  int64_t decode = 16;     // tokens per timed round and sequence
  int64_t sequences = 16;  // sequences decoded together
  int64_t rounds = 5;      // each runs the bandwidth probe, decoding of one sequence and of several, and prefill
};

// Medians over the rounds. The floors are prefill at the measured peak of its products and decoding at the measured
// read bandwidth; for several sequences the larger of both times, reading the weights once and the products of all.
// Both limits drift on a shared machine, so they are measured in every round. A share is the median of the shares of
// the rounds.
struct ModelBenchResult {
  BenchFigure read_bandwidth{"read_bandwidth"};  // bytes per second
  BenchFigure float32_peak{"float32_peak"};      // FLOP per second
  BenchFigure product_peak{"product_peak"};      // FLOP per second of products with the weights' type
  BenchFigure prefill{"prefill_tokens_per_second"}, prefill_share{"prefill_share_of_peak"};
  BenchFigure decode{"decode_tokens_per_second"}, decode_share{"decode_share_of_bandwidth"};
  // The rates of the sequences that are decoded together are those of all of them.
  BenchFigure together{"together_tokens_per_second"}, together_share{"together_share_of_floor"};
  double prefill_floor = 0, decode_floor = 0, together_floor = 0;  // in tokens per second
  int64_t bytes_per_token = 0;
  double flops_per_token = 0;  // products of the blocks, without attention and head

  std::vector<BenchFigure> figures() const;
};

ModelBenchResult BenchModel(const Context& context, const std::shared_ptr<const Weights>& weights,
                            const ModelBenchOptions& options, Progress& progress);

}  // namespace shiftrt
