// SPDX-License-Identifier: Apache-2.0
// Applies what an adapter of PEFT changes outside the blocks: the table of token embeddings and the head.
#pragma once

#include <memory>

#include "models/lora.h"
#include "models/weights.h"

namespace shiftrt {

// `table` as the change says, in float32. Throws Error naming `what` for another shape.
Matrix<float> ChangedTable(const TensorView& table, const LoraTable& change, const char* what);
// The weights with the changed embedding table, in its type; `weights` itself where the adapter leaves it. A head that
// was the embedding table keeps the values from before, unless the adapter says that both stay one table. Throws Error
// for a model that is split over processes, and for a value that the type cannot hold.
std::shared_ptr<const Weights> WithLoraEmbedding(const std::shared_ptr<const Weights>& weights, const Lora& lora);

}  // namespace shiftrt
