// Whole-model speed on the CPU, next to its floors.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/decoder.h"
#include "runtime/progress.h"

namespace shiftrt {

struct ModelBenchOptions {
  int64_t prefill = 512;  // tokens of the prompt
  int64_t context = 128;  // positions already in the cache when decoding is timed
  int64_t decode = 16;    // tokens a timed round
  int64_t rounds = 5;     // bandwidth probe, decode and prefill in turn, this often
};

// Medians over the rounds. Floors: prefill at the measured float32 peak, decoding at the measured read bandwidth. Both
// drift on a shared machine, so they are measured every round and the shares are medians of the rounds' own.
struct ModelBenchResult {
  double read_bandwidth = 0;  // bytes a second
  double float32_peak = 0;    // FLOP a second
  double prefill_tokens_per_second = 0, prefill_floor = 0, prefill_share_of_peak = 0;
  double decode_tokens_per_second = 0, decode_floor = 0, decode_share_of_bandwidth = 0;
  int64_t bytes_per_token = 0;
  double flops_per_token = 0;  // products of the blocks, without attention and head
};

// FLOP of the blocks' products on one token: two a weight.
double BlockFlopsPerToken(const Weights& weights);

ModelBenchResult BenchModel(const Context& context, std::shared_ptr<const Weights> weights,
                            const ModelBenchOptions& options, Progress& progress);

}  // namespace shiftrt
