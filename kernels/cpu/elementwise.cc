#include "kernels/elementwise.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd_body.h"
#include "kernels/widen.h"
#include "runtime/check.h"
#include "runtime/parallel.h"

namespace shiftrt {

void Embed(const Context& context, std::span<const int32_t> tokens, const TensorView& table, MatrixView<float> out) {
  const int64_t vocab = table.rows(), hidden = table.cols();
  Check(out.rows == static_cast<int64_t>(tokens.size()) && out.cols == hidden,
        "embedding {} tokens of width {} into ({}, {}) does not fit", tokens.size(), hidden, out.rows, out.cols);
  for (size_t t = 0; t < tokens.size(); ++t)
    Check(tokens[t] >= 0 && tokens[t] < vocab, "token {} at position {} is outside the vocabulary of {}", tokens[t], t,
          vocab);
  const auto* bytes = static_cast<const std::byte*>(table.data);
  const auto row_bytes = hidden * static_cast<int64_t>(SizeOf(table.dtype));
  ParallelFor(context, out.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const std::vector<float> row = Widened({bytes + tokens[t] * row_bytes, table.dtype, {hidden}});
      std::memcpy(out.row(t), row.data(), row.size() * sizeof(float));
    }
  });
}

void SwiGlu(const Context& context, MatrixView<float> gate, MatrixView<const float> up) {
  Check(gate.rows == up.rows && gate.cols == up.cols, "SwiGLU of ({}, {}) and ({}, {}) does not fit", gate.rows,
        gate.cols, up.rows, up.cols);
  const SimdBody& body = BodyFor(context.isa);
  ParallelFor(context, gate.rows * gate.cols, 4096, [&](int64_t begin, int64_t end) {
    int64_t at = begin;
    while (at < end) {  // row by row, as views may be strided
      const int64_t row = at / gate.cols, col = at % gate.cols, stop = std::min(gate.cols, col + end - at);
      body.swiglu(gate.row(row) + col, up.row(row) + col, stop - col);
      at += stop - col;
    }
  });
}

void AddTo(const Context& context, MatrixView<const float> x, MatrixView<float> y) {
  Check(x.rows == y.rows && x.cols == y.cols, "sum of ({}, {}) and ({}, {}) does not fit", x.rows, x.cols, y.rows,
        y.cols);
  ParallelFor(context, y.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < y.cols; ++j) y(i, j) += x(i, j);
  });
}

}  // namespace shiftrt
