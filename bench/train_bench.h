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
  std::string layers;               // train these blocks instead of LoRA, as FinetuneSettings::layers names them
  int64_t rank = 8;                 // the rank of LoRA on every projection
  std::string loss = "ce";  // as ParseTrainingLoss() takes it; "kl" runs the model a second time, as its own teacher
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

// FLOP of one step, with T tokens in sequences of L, of a model with W weights in the products of its blocks. Each
// block takes 2 T W' for its W' weights, and 2 T L q for attention, q the width of the queries (half of the scores
// exist). Every block runs once forwards. The blocks from the lowest trained one on run backwards, which takes 2 T W'
// for the gradient of the products' inputs and two and a half times attention's products; those of them whose
// activations are not kept run forwards again. A block that is trained takes 2 T W' for the gradients of its weights;
// LoRA takes 6 T for each of its `parameters`, and 2 T for those of blocks that run again. The head takes 4 T d V, and
// 2 T d V more if it is trained. A teacher adds a forward pass and 2 T d V for its logits. A GPU computes logits twice,
// which is not counted.
double TrainStepFlops(const Weights& weights, const TrainBenchOptions& options, int64_t parameters,
                      int64_t kept_blocks);

// One step more than `rounds`, the first of which is not counted, on random tokens.
TrainBenchResult BenchTrain(const Context& context, std::shared_ptr<const Weights> weights,
                            const TrainBenchOptions& options, int64_t rounds, Progress& progress);

}  // namespace shiftrt
