// SPDX-License-Identifier: Apache-2.0
// Speed on the GPU of each kernel and of whole decoders, with its floor: the least time that the device's limits allow.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bench/model_bench.h"
#include "runtime/cuda/cuda.h"

namespace shiftrt {

// The measured limits of the device: bytes per second of a copy, counting reads and writes, and FLOP per second of
// large products in bfloat16 and in float64.
struct GpuLimits {
  double copy_bandwidth = 0, matrix_peak = 0, double_peak = 0;
};

// The widths of the model at whose sizes kernels are timed; by default those of Llama-3.1-8B. A model without gated
// delta networks has a shape without heads, and one without mixtures no experts.
struct GpuKernelShape {
  int64_t hidden = 4096, intermediate = 14336, vocab = 128256;
  int64_t heads = 32, kv_heads = 8, head_dim = 128;
  GatedDeltaShape delta;
  MixtureSpec mixture;

  GpuKernelShape() = default;
  explicit GpuKernelShape(const ModelConfig& config)
      : hidden(config.hidden),
        intermediate(config.intermediate),
        vocab(config.vocab),
        heads(config.heads),
        kv_heads(config.kv_heads),
        head_dim(config.head_dim) {
    if (config.block.gated_delta) delta = config.block.delta;
    if (config.block.mixed) mixture = config.block.mixture;
  }

  int64_t query_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  int64_t qkv_dim() const { return query_dim() + 2 * kv_dim(); }
};

struct GpuKernelTime {
  std::string room;                   // its file in kernels/cuda/, without the ending
  std::string name;                   // the operation and its size
  double seconds = 0;                 // per launch, inside a replayed graph of many launches over rotating inputs
  double seconds_launched_alone = 0;  // one launch outside a graph, including the cost of the launch
  double bytes = 0, flops = 0;        // the least that the operation needs
  double floor = 0;                   // the larger of the times that these take at the limits
};

class KernelBench;
// Kernels that are measured together. If one group fails, the others still give figures.
struct GpuKernelGroup {
  const char* name;
  void (*run)(KernelBench&);
};
const std::vector<GpuKernelGroup>& GpuKernelGroups();

// Throws Error without a GPU.
GpuLimits MeasureGpuLimits(const Context& context);
// FLOP per second of large products with operands of this type: GpuLimits::matrix_peak for bfloat16.
double MeasureGpuProductPeak(const Context& context, DType type);
// Times the kernels of one group at the sizes of a model in bfloat16, on random data.
std::vector<GpuKernelTime> BenchGpuKernels(const Context& context, const GpuLimits& limits, const GpuKernelShape& shape,
                                           const GpuKernelGroup& group, Progress& progress);

struct GpuVariantTime {
  std::string name;  // original, pruned, pruned + LRA 64, pruned + merged LRA 64
  double decode_tokens_per_second = 0, decode_floor = 0;
  double joules_per_token = 0;  // the whole GPU's while it decodes; NaN if the driver does not report energy
};
// Sequences of the original that append a token each per step. The rates are those of all of them.
struct GpuTogetherTime {
  int64_t sequences = 0;
  double tokens_per_second = 0, floor = 0;  // floor: that of the weights, which a step reads once
};
struct GpuModelBench {
  std::vector<GpuVariantTime> variants;   // in that order
  std::vector<GpuTogetherTime> together;  // for 1, 4 and 16
  double prefill_tokens_per_second = 0, prefill_floor = 0;
};
// Times one model: decoding of four plans (a quarter of the blocks removed, adapters of random values) in alternating
// rounds, and prefill and several sequences of the original. The caches of all plans have the same capacity, so that
// attention uses the same number of splits.
GpuModelBench BenchGpuModel(const Context& context, std::shared_ptr<const Weights> weights, const GpuLimits& limits,
                            const ModelBenchOptions& options, Progress& progress);

}  // namespace shiftrt
