// SPDX-License-Identifier: Apache-2.0
// Speed of a step of fine-tuning, with its floor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "bench/record.h"
#include "models/weights.h"
#include "runtime/context.h"
#include "runtime/progress.h"

namespace shiftrt {

struct TrainBenchOptions {
  int64_t length = 512, batch = 8;  // tokens of a sequence; sequences of a step
  int64_t pass_tokens = 2048;       // tokens that pass through the model together
  bool all = false;                 // train every block and the head instead of LoRA
  int64_t rank = 8;                 // the rank of LoRA on every projection
  std::string loss = "ce";          // as ParseLoss() takes it; "kl" runs the model a second time, as its own teacher
};

struct TrainBenchResult {
  Products products = Products::kFloat32;    // that the training took
  BenchFigure product_peak{"product_peak"};  // measured on the device that trains, in FLOP per second
  BenchFigure seconds{"seconds", BenchFigure::Better::kLower};  // time of a step
  double flops = 0;                                             // FLOP of a step: TrainStepFlops
  double floor_seconds = 0;                                     // flops at the peak
  double tokens_per_second = 0;
  int64_t engine_bytes = 0;         // most that the engine's buffers took
  int64_t peak_resident_bytes = 0;  // the whole process's
  int64_t parameters = 0;           // trained parameters
  int64_t kept_blocks = 0;          // blocks whose activations a step keeps
};

// FLOP of one step that trains so many parameters: of LoRA on every projection, with T tokens in sequences of L, over W
// weights of the blocks' products: 2 T W forwards, and 2 T W for the gradient of the products' inputs; 6 T for each of
// LoRA's parameters; attention's products, 2 T L q per block (half of the scores exist) forwards and two and a half
// times that backwards, q the width of the queries; what a block takes forwards again, for the share `recomputed` of
// the blocks; and 4 T d V for the head, forwards and backwards. Where every block and the head are trained, the
// gradients of weights take 2 T W and 2 T d V in the place of LoRA's share. A teacher adds a pass forwards: 2 T W, 2 T
// L q per block, and 2 T d V for its logits. A GPU computes logits twice, which is not counted.
double TrainStepFlops(const Weights& weights, const TrainBenchOptions& options, int64_t parameters, double recomputed);

// One step more than `rounds`, the first of which is not counted, on random tokens.
TrainBenchResult BenchTrain(const Context& context, std::shared_ptr<const Weights> weights,
                            const TrainBenchOptions& options, int64_t rounds, Progress& progress);

}  // namespace shiftrt
