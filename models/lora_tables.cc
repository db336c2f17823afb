// SPDX-License-Identifier: Apache-2.0
#include "models/lora_tables.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "runtime/context.h"
#include "runtime/elements.h"
#include "runtime/parallel.h"

namespace shiftrt {

Matrix<float> ChangedTable(const TensorView& table, const LoraTable& change, const char* what) {
  const int64_t rows = table.rows(), cols = table.cols(), rank = change.a.rows();
  const bool fits = (change.whole.empty() || (change.whole.rows() == rows && change.whole.cols() == cols)) &&
                    (rank == 0 || (change.a.cols() == cols && change.b.rows() == rows && change.b.cols() == rank));
  Check(fits, "an adapter's {} does not have the shape of the model's ({}, {})", what, rows, cols);
  Matrix<float> changed(rows, cols);
  const auto scale = static_cast<float>(change.scale);
  ParallelFor(Cores(), rows, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> from(cols);
    for (int64_t i = begin; i < end; ++i) {
      float* const out = changed.row(i);
      std::fill_n(out, cols, 0.0f);
      for (int64_t r = 0; r < rank; ++r)
        for (int64_t j = 0; j < cols; ++j) out[j] += change.b(i, r) * change.a(r, j);
      WidenRow(table, i, from.data());
      for (int64_t j = 0; j < cols; ++j)
        out[j] = (change.whole.empty() ? from[j] : change.whole(i, j)) + scale * out[j];
    }
  });
  return changed;
}

std::shared_ptr<const Weights> WithLoraEmbedding(const std::shared_ptr<const Weights>& weights, const Lora& lora) {
  if (lora.embedding.empty()) return weights;
  weights->RequireWhole("an adapter of the embedding table");
  const TensorView& before = weights->embedding;
  const Matrix<float> values = ChangedTable(before, lora.embedding, "embedding table");
  auto changed = std::make_shared<Weights>(*weights);
  changed->storage.push_back(weights);  // the other tensors are views of its memory
  const DType type = ExpandedType(before.dtype);
  changed->embedding.dtype = type;
  WithType(type, [&]<typename T>(std::type_identity<T>) {
    auto table = std::make_shared<Buffer<T>>(before.elements());
    for (int64_t i = 0; i < values.size(); ++i) {
      table->data()[i] = T(values.data()[i]);
      Check(std::isfinite(static_cast<float>(table->data()[i])),
            "the adapter's embedding table has a number that {} cannot hold", Name(type));
    }
    changed->embedding.data = table->data();
    changed->storage.push_back(std::move(table));
  });
  if (lora.one_table) {
    changed->head = changed->embedding;
  } else {
    changed->config.tied_head = false;
  }
  return changed;
}

}  // namespace shiftrt
