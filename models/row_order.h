// SPDX-License-Identifier: Apache-2.0
// The orders in which files hold the rows of a tensor, or its columns, where those are not the model's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace shiftrt {

// Row i of the model is row (*order)[i] of the file; null: it is row i. The elements of a vector count as rows.
using RowOrder = std::shared_ptr<const std::vector<int64_t>>;

// In each of so many parts of the file, row i of the first half stands next to row i of the second half. In the model,
// the halves stand one below the other. Queries and keys in GGUF files of Llama are such, whose parts are the heads and
// whose halves are those of the rotary embedding.
RowOrder InterleavedHalves(int64_t rows, int64_t parts);
// The file has, group by group, as many rows of each part as `parts` says. In the model, the parts stand one below the
// other.
RowOrder GroupedParts(int64_t groups, const std::vector<int64_t>& parts);
// After `before` rows that stand alike: the file has the first head of each group, then the second, and so on; the
// model has the heads of the first group, then of the second. A head has `rows` rows. Null if that is the same.
RowOrder TiledHeads(int64_t before, int64_t groups, int64_t heads_of_group, int64_t rows);

// The row of the model that row i of the file is.
RowOrder Inverse(const RowOrder& order);

}  // namespace shiftrt
