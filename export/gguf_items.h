// SPDX-License-Identifier: Apache-2.0
// The layers and the tensors of a GGUF file. A plan of whole blocks is written in the architecture of its family, with
// a layer per block; one with half blocks, adapters or MLPs of other units in llama.cpp's architecture deci, with a
// layer per stage (models/gguf_layers.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/gguf.h"
#include "models/model.h"
#include "runtime/context.h"

namespace shiftrt {

inline constexpr const char* kGgufByLayer = "deci";

// True if the plan has half blocks, adapters, or MLPs of other units than the configuration.
bool NeedsLayers(const Weights& weights, const DepthPlan& plan);
bool HoldsFamily(const GgufArchitecture& architecture, const ModelConfig& config);

// The plan with the factors of its adapters multiplied out, in float32: what the layers of a file compute.
DepthPlan WithDenseAdapters(const Context& context, const DepthPlan& plan);

// The layers of the file that a plan is written to.
class GgufFileLayers {
 public:
  struct Layer {
    int64_t block = -1;  // its index among the kept blocks, or -1
    Halves halves = Halves::kBoth;
    const Lra* lra = nullptr;  // or null
    // A matrix is in the place of the attention: that of an adapter, or zeros in the first layer, because llama.cpp
    // takes the sizes of heads from it.
    bool matrix = false;
  };
  // `weights`: those that the plan is over. The plan must outlive the result.
  GgufFileLayers(const Weights& weights, const DepthPlan& plan);

  const GgufArchitecture& architecture() const { return architecture_; }
  const std::vector<Layer>& layers() const { return layers_; }
  const GgufSizes& sizes() const { return sizes_; }  // empty where all layers are alike

 private:
  const GgufArchitecture& architecture_;
  std::vector<Layer> layers_;
  GgufSizes sizes_;
};

// A tensor to write: its parts stand one below the other.
struct GgufItem {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<TensorView> parts;
  BlockType type;
  RowOrder model_rows = nullptr, model_columns = nullptr;  // the parts' row or column that each of the file is
  float (*map)(float) = nullptr;                           // applied to each element before the offset
  float offset = 0;                                        // added to each element
  std::shared_ptr<const Matrix<float>> storage = nullptr;  // keeps a computed tensor

  int64_t bytes() const { return FileTensor{nullptr, type, shape}.bytes(); }
};

using RopeFactors = std::vector<std::pair<const char*, std::vector<float>>>;

// The type that a tensor is stored in. llama.cpp requires float32 for vectors.
BlockType GgufTypeOf(const TensorView& tensor, bool q8_0);

// Every tensor of the file: those of `weights`, which has the kept blocks alone, of the adapters, and the factors of
// the rotary embedding. An adapter's matrix is float32, or Q8_0 as the others are. The arguments must outlive the
// result.
std::vector<GgufItem> GgufItems(const Weights& weights, const GgufFileLayers& layers, bool q8_0,
                                const RopeFactors& factors);

}  // namespace shiftrt
