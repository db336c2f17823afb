// A depth plan says which blocks run and which adapters stand between them. Pruned, corrected and merged models are
// plans over the same weights; nothing else in the program knows that a model is pruned.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tensor.h"

namespace shiftrt {

// A linear residual adapter, h += h A + b or h += (h P) Q + b (row vectors, float32).
struct Lra {
  Matrix<float> a;     // (d, d), or empty
  Matrix<float> p, q;  // (d, r), (r, d), or empty
  Matrix<float> b;     // (1, d)

  bool low_rank() const { return a.empty(); }
  int64_t hidden() const { return b.cols(); }
  int64_t rank() const { return low_rank() ? p.cols() : hidden(); }
  int64_t parameters() const { return a.size() + p.size() + q.size() + b.size(); }
};

struct BlockWeights;

struct BlockStage {
  int64_t layer = 0;
  std::shared_ptr<const BlockWeights> folded = nullptr;  // tensors of its own, of the same shapes; null: the model's
};
struct AdapterStage {
  std::vector<int64_t> layers;  // the removed layers it stands for, ascending
  std::shared_ptr<const Lra> lra;
};
using Stage = std::variant<BlockStage, AdapterStage>;

struct DepthPlan {
  std::vector<Stage> stages;

  static DepthPlan Original(int64_t layers);
  // All layers but `removed` (any order, no duplicates, each in [0, layers)).
  static DepthPlan Pruned(int64_t layers, std::span<const int64_t> removed);
  // Pruned, with adapters[i] where layer removed[i] was; null leaves that site bare.
  static DepthPlan Corrected(int64_t layers, std::span<const int64_t> removed,
                             std::span<const std::shared_ptr<const Lra>> adapters);

  std::vector<int64_t> KeptLayers() const;
  std::vector<int64_t> RemovedLayers(int64_t layers) const;  // of a model of so many, ascending
  int64_t blocks() const;
};

}  // namespace shiftrt
