// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/rowwise.h"
#include "kernels/cuda/warp.cuh"
#include "kernels/dropout.h"

namespace shiftrt::gpu {

namespace {

// A matrix as a kernel takes it.
template <typename T>
struct RowsOf {
  T* data;
  int64_t stride;

  SHIFTRT_DEVICE T* At(int64_t row, int col) const { return data + row * stride + col; }
};
template <typename T>
RowsOf<T> Of(const MatrixView<T>& view) {
  return {view.data, view.stride};
}

// Rows that a kernel writes, as it takes them.
struct WrittenRowsOf {
  RowsOf<float> to;
  BFloat16* rounded;
  int64_t cols;

  template <bool kWide>
  SHIFTRT_DEVICE void Write(int64_t row, int col, int count, const float (&values)[8]) const {
    gpu::Write<kWide>(to.At(row, col), count, values);
    if (rounded != nullptr) gpu::Write<kWide>(rounded + row * cols + col, count, values);
  }
};
WrittenRowsOf Of(const WrittenRows& out) { return {Of(out.rows), out.rounded, out.rows.cols}; }

// Step::At<kWide>(row, col, count) processes `count` elements, at most eight, of a row. Each thread processes eight
// columns. The blocks along y divide the columns of a row.
template <typename Step, bool kWide>
struct RowsKernel {
  static constexpr int kThreads = 128;
  struct Args {
    Step step;
    int cols;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int col = 8 * (Block().y * kThreads + Thread());
    if (col >= args.cols) return;
    args.step.template At<kWide>(Block().x, col, args.cols - col < 8 ? args.cols - col : 8);
  }
};

// The most columns of one launch.
constexpr int64_t kMostColumns = int64_t{8} * 128 * kMostBlocksAlongZ;

// Calls body(first, count) for parts of the columns that a launch takes. The arrays of a training are one row of all
// its numbers.
template <typename Body>
void ForColumns(int64_t cols, const Body& body) {
  for (int64_t first = 0; first < cols; first += kMostColumns) body(first, std::min(kMostColumns, cols - first));
}

template <typename T>
MatrixView<T> Columns(const MatrixView<T>& x, int64_t first, int64_t count) {
  return {x.data == nullptr ? nullptr : x.data + first, x.rows, count, x.stride};
}

// `views` are all that the step reads and writes; the first tells how many rows and columns there are.
template <typename Step, typename First, typename... Views>
void LaunchRows(Stream stream, const Step& step, const First& first, const Views&... views) {
  if (first.rows == 0 || first.cols == 0) return;
  const Grid grid{.x = static_cast<int>(first.rows), .y = Blocks(first.cols, 8 * RowsKernel<Step, true>::kThreads)};
  Require(first.cols <= kMostColumns, "a step on rows", "at most 67107840 columns", first.cols);
  const int cols = static_cast<int>(first.cols);
  if (cols % 8 == 0 && (IsWide(first) && ... && IsWide(views))) {
    Launch<RowsKernel<Step, true>>(stream, grid, {step, cols});
  } else {
    Launch<RowsKernel<Step, false>>(stream, grid, {step, cols});
  }
}

// Calls body(From(), To()) with the types of a copy, of which one is float32 unless they are the same.
template <typename Body>
void WithTypes(const char* operation, DType from, DType to, Body&& body) {
  Require(from == to || from == DType::kFloat32 || to == DType::kFloat32, operation,
          "one type on both sides, or float32 on one, not bytes", static_cast<int64_t>(SizeOf(to)));
  WithType(operation, from == DType::kFloat32 ? to : from, [&](auto type) {
    if (from == to) return body(type, type);
    if (from == DType::kFloat32) return body(float(), type);
    body(type, float());
  });
}

void RequireType(const char* operation, const ConstDeviceRows& rows, DType dtype) {
  Require(rows.array.dtype == dtype, operation, "one type for input and output, not bytes",
          static_cast<int64_t>(SizeOf(rows.array.dtype)));
}

template <typename A, typename B>
void RequireAlike(const char* operation, const A& a, const B& b) {
  Require(a.rows == b.rows, operation, "as many rows on both sides, not", b.rows);
  Require(a.cols == b.cols, operation, "as many columns on both sides, not", b.cols);
}

struct ZeroStep {
  RowsOf<float> x;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    const float zeros[8] = {};
    Write<kWide>(x.At(row, col), count, zeros);
  }
};

template <typename From, typename To>
struct CopyStep {
  RowsOf<const From> from;
  RowsOf<To> to;
  const int32_t *from_rows, *to_rows;  // null: row by row
  float scale;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float values[8];
    Read<kWide>(from.At(from_rows != nullptr ? from_rows[row] : row, col), count, values);
    for (int j = 0; j < 8; ++j) values[j] *= scale;
    Write<kWide>(to.At(to_rows != nullptr ? to_rows[row] : row, col), count, values);
  }
};

struct AddStep {
  RowsOf<const float> from;
  const float* row;
  RowsOf<float> to;
  float factor;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t i, int col, int count) const {
    float values[8], more[8];
    Read<kWide>(to.At(i, col), count, values);
    if (from.data != nullptr) {
      Read<kWide>(from.At(i, col), count, more);
      for (int j = 0; j < 8; ++j) values[j] += factor * more[j];
    }
    if (row != nullptr) {
      Read<kWide>(row + col, count, more);
      for (int j = 0; j < 8; ++j) values[j] += more[j];
    }
    Write<kWide>(to.At(i, col), count, values);
  }
};

struct SoftCapStep {
  RowsOf<float> x;
  float cap;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float values[8];
    Read<kWide>(x.At(row, col), count, values);
    for (int j = 0; j < 8; ++j) values[j] = cap * Tanh(values[j] / cap);
    Write<kWide>(x.At(row, col), count, values);
  }
};

struct DropStep {
  RowsOf<const float> from;
  RowsOf<float> to;
  int64_t cols;
  Dropped dropped;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float values[8];
    Read<kWide>(from.At(row, col), count, values);
    for (int j = 0; j < 8; ++j) {
      const auto index = static_cast<uint64_t>(row * cols + col + j);
      values[j] = Dropout::Bits(dropped.key, index) < dropped.threshold ? 0 : values[j] * dropped.scale;
    }
    Write<kWide>(to.At(row, col), count, values);
  }
};

template <typename T, Activation kActivation>
struct GateStep {
  RowsOf<const T> gate, up;  // up: null without gate
  const float *gate_bias, *up_bias;
  RowsOf<T> out;
  BFloat16* rounded;
  int64_t cols;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float gates[8], ups[8];
    ReadBiased<kWide>(gate, gate_bias, row, col, count, gates);
    for (int j = 0; j < 8; ++j) gates[j] = Activate<kActivation>(gates[j]);
    if (up.data != nullptr) {
      ReadBiased<kWide>(up, up_bias, row, col, count, ups);
      for (int j = 0; j < 8; ++j) gates[j] *= ups[j];
    }
    Write<kWide>(out.At(row, col), count, gates);
    if (rounded != nullptr) Write<kWide>(rounded + row * cols + col, count, gates);
  }

 private:
  template <bool kWide>
  static SHIFTRT_DEVICE void ReadBiased(const RowsOf<const T>& x, const float* bias, int64_t row, int col, int count,
                                        float (&values)[8]) {
    Read<kWide>(x.At(row, col), count, values);
    if (bias == nullptr) return;
    float more[8];
    Read<kWide>(bias + col, count, more);
    for (int j = 0; j < 8; ++j) values[j] += more[j];
  }
};

template <typename Gate, typename T>
struct GateHeadsStep {
  RowsOf<const Gate> both;
  RowsOf<T> x;
  int head_dim;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float gates[8], values[8];
    Read<kWide>(both.At(row, col + (col / head_dim + 1) * head_dim), count, gates);
    Read<kWide>(x.At(row, col), count, values);
    for (int j = 0; j < 8; ++j) values[j] = Quotient(values[j], 1 + Exp(-gates[j]));
    Write<kWide>(x.At(row, col), count, values);
  }
};

// A head's queries stand before its gates in `both`. kJoins: from the two matrices to `both`.
template <bool kJoins>
struct HeadPairsStep {
  WrittenRowsOf both;
  RowsOf<float> queries, gates;
  int head_dim;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    const int of_queries = col + col / head_dim * head_dim, of_gates = of_queries + head_dim;
    float values[8];
    if constexpr (kJoins) {
      Read<kWide>(queries.At(row, col), count, values);
      both.template Write<kWide>(row, of_queries, count, values);
      Read<kWide>(gates.At(row, col), count, values);
      both.template Write<kWide>(row, of_gates, count, values);
    } else {
      Read<kWide>(both.to.At(row, of_queries), count, values);
      Write<kWide>(queries.At(row, col), count, values);
      Read<kWide>(both.to.At(row, of_gates), count, values);
      Write<kWide>(gates.At(row, col), count, values);
    }
  }
};

struct SigmoidGateStep {
  RowsOf<const float> gates;
  WrittenRowsOf x;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float of_gates[8], values[8];
    Read<kWide>(gates.At(row, col), count, of_gates);
    Read<kWide>(x.to.At(row, col), count, values);
    for (int j = 0; j < 8; ++j) values[j] *= Sigmoid(of_gates[j]);
    x.template Write<kWide>(row, col, count, values);
  }
};

struct SigmoidGateGradientStep {
  RowsOf<const float> gates, x;
  WrittenRowsOf dy, dgates;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float of_gates[8], values[8], d[8];
    Read<kWide>(gates.At(row, col), count, of_gates);
    Read<kWide>(x.At(row, col), count, values);
    Read<kWide>(dy.to.At(row, col), count, d);
    for (int j = 0; j < 8; ++j) {
      const float p = Sigmoid(of_gates[j]);
      d[j] *= p;
      values[j] *= d[j] * (1 - p);
    }
    dy.template Write<kWide>(row, col, count, d);
    dgates.template Write<kWide>(row, col, count, values);
  }
};

SHIFTRT_DEVICE float FactorOf(const RowScales& by, int64_t row) {
  return by.sigmoid ? Sigmoid(by.scales[row]) : by.scales[row];
}

struct ScaleEachRowStep {
  RowScales by;
  WrittenRowsOf x;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    const float factor = FactorOf(by, row);
    float values[8];
    Read<kWide>(x.to.At(row, col), count, values);
    for (int j = 0; j < 8; ++j) values[j] *= factor;
    x.template Write<kWide>(row, col, count, values);
  }
};

// A warp has a row.
struct ScaleEachRowGradientKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarpSize;
  struct Args {
    RowScales by;
    RowsOf<const float> rows;
    RowsOf<float> dy;
    float* dscales;
    int64_t count;
    int cols;
  };
  static SHIFTRT_DEVICE void Run(const Args& args) {
    const int64_t row = static_cast<int64_t>(Block().x) * kWarps + Warp();
    if (row >= args.count) return;
    const float factor = FactorOf(args.by, row);
    float sum = 0;
    for (int col = Lane(); col < args.cols; col += kWarpSize) {
      float* const d = args.dy.At(row, col);
      sum += *d * *args.rows.At(row, col);
      *d *= factor;
    }
    sum = WarpSum(sum);
    if (Lane() == 0) args.dscales[row] = args.by.sigmoid ? sum * (1 - factor) : sum;
  }
};

template <Activation kActivation>
struct GateGradientStep {
  RowsOf<const float> gate, up;  // up: null without gate
  WrittenRowsOf dgate, dup;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float gates[8], d[8];
    Read<kWide>(gate.At(row, col), count, gates);
    Read<kWide>(dgate.to.At(row, col), count, d);
    Activated activated[8];
    for (int j = 0; j < 8; ++j) activated[j] = ActivateWithSlope<kActivation>(gates[j]);
    if (up.data != nullptr) {
      float ups[8], more[8];
      Read<kWide>(up.At(row, col), count, ups);
      for (int j = 0; j < 8; ++j) more[j] = d[j] * activated[j].value;
      dup.template Write<kWide>(row, col, count, more);
      for (int j = 0; j < 8; ++j) d[j] *= ups[j] * activated[j].slope;
    } else {
      for (int j = 0; j < 8; ++j) d[j] *= activated[j].slope;
    }
    dgate.template Write<kWide>(row, col, count, d);
  }
};

struct ClampedGateStep {
  ClampedSwiGlu unit;
  WrittenRowsOf gate;
  RowsOf<const float> up;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float gates[8], ups[8];
    Read<kWide>(gate.to.At(row, col), count, gates);
    Read<kWide>(up.At(row, col), count, ups);
    for (int j = 0; j < 8; ++j) gates[j] = ClampedUnit(unit, gates[j], ups[j]);
    gate.template Write<kWide>(row, col, count, gates);
  }
};

// With p = sigmoid(alpha g), the slope of g p is p (1 + alpha g (1 - p)).
struct ClampedGateGradientStep {
  ClampedSwiGlu unit;
  RowsOf<const float> gate, up;
  WrittenRowsOf dgate, dup;
  template <bool kWide>
  SHIFTRT_DEVICE void At(int64_t row, int col, int count) const {
    float gates[8], ups[8], d[8], to_up[8];
    Read<kWide>(gate.At(row, col), count, gates);
    Read<kWide>(up.At(row, col), count, ups);
    Read<kWide>(dgate.to.At(row, col), count, d);
    for (int j = 0; j < 8; ++j) {
      const float g = Below(gates[j], unit.limit), u = Within(ups[j], unit.limit), p = Sigmoid(unit.alpha * g);
      to_up[j] = ups[j] < -unit.limit || ups[j] > unit.limit ? 0 : d[j] * g * p;
      d[j] *= gates[j] > unit.limit ? 0 : (u + 1) * (p * (1 + unit.alpha * g * (1 - p)));
    }
    dup.template Write<kWide>(row, col, count, to_up);
    dgate.template Write<kWide>(row, col, count, d);
  }
};

// Each lane of a warp adds up one column; the warps divide the rows, and their sums are added in order.
struct ColumnSumsKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarpSize;
  struct Args {
    RowsOf<const float> x;
    float* to;
    int64_t rows;
    int cols;
  };
  static constexpr int kShared = SharedBytes<float>(kThreads);
  static SHIFTRT_DEVICE void Run(const Args& args) {
    SharedArena arena;
    const Shared<float> sums = arena.Take<float>(kThreads);
    const int col = Block().x * kWarpSize + Lane();
    float sum = 0;
    if (col < args.cols)
      for (int64_t row = Warp(); row < args.rows; row += kWarps) sum += *args.x.At(row, col);
    sum = LaneSum<kThreads>(sum, sums);
    if (Warp() == 0 && col < args.cols) args.to[col] += sum;
  }
};

}  // namespace

void ZeroRows(Stream stream, MatrixView<float> x) {
  ForColumns(x.cols, [&](int64_t first, int64_t count) {
    const MatrixView<float> part = Columns(x, first, count);
    LaunchRows(stream, ZeroStep{Of(part)}, part);
  });
}

void CopyRows(Stream stream, const ConstDeviceRows& from, const DeviceRows& to) {
  Require(from.rows == to.rows, "copying rows", "as many rows on both sides, not", from.rows);
  GatherRows(stream, nullptr, from, to);
}

void GatherRows(Stream stream, const int32_t* rows, const ConstDeviceRows& from, const DeviceRows& to, float scale) {
  Require(from.cols == to.cols, "copying rows", "as many columns on both sides, not", from.cols);
  WithTypes("copying rows", from.array.dtype, to.array.dtype, [&](auto one, auto other) {
    const auto source = from.Of<decltype(one)>();
    const auto target = to.Of<decltype(other)>();
    ForColumns(to.cols, [&](int64_t first, int64_t count) {
      const auto read = Columns(source, first, count);
      const auto written = Columns(target, first, count);
      LaunchRows(stream, CopyStep<decltype(one), decltype(other)>{Of(read), Of(written), rows, nullptr, scale}, written,
                 read);
    });
  });
}

void ScatterRows(Stream stream, const int32_t* rows, MatrixView<const float> from, MatrixView<float> to) {
  Require(from.cols == to.cols, "scattering rows", "as many columns on both sides, not", to.cols);
  LaunchRows(stream, CopyStep<float, float>{Of(from), Of(to), nullptr, rows, 1}, from, to);
}

void AddRows(Stream stream, MatrixView<const float> from, MatrixView<float> to, const float* row, float factor) {
  if (from.data != nullptr) RequireAlike("adding rows", to, from);
  ForColumns(to.cols, [&](int64_t first, int64_t count) {
    const MatrixView<const float> read = Columns(from, first, count);
    const MatrixView<float> written = Columns(to, first, count);
    const MatrixView<const float> added = Columns(MatrixView<const float>(row, 1, to.cols, 0), first, count);
    LaunchRows(stream, AddStep{Of(read), added.data, Of(written), factor}, written, read, added);
  });
}

void ScaleRows(Stream stream, float factor, MatrixView<float> x) {
  ForColumns(x.cols, [&](int64_t first, int64_t count) {
    const MatrixView<float> part = Columns(x, first, count);
    LaunchRows(stream, CopyStep<float, float>{Of(MatrixView<const float>(part)), Of(part), nullptr, nullptr, factor},
               part);
  });
}

void SoftCapRows(Stream stream, float cap, MatrixView<float> x) {
  Require(cap > 0, "soft cap", "a cap above 0", static_cast<int64_t>(cap));
  LaunchRows(stream, SoftCapStep{Of(x), cap}, x);
}

void DropRows(Stream stream, const Dropped& dropped, MatrixView<const float> from, MatrixView<float> to) {
  RequireAlike("dropout", to, from);
  LaunchRows(stream, DropStep{Of(from), Of(to), from.cols, dropped}, to, from);
}

void GateRows(Stream stream, Activation activation, const GateOperands& of, const DeviceRows& out, BFloat16* rounded) {
  const DType dtype = out.array.dtype;
  RequireAlike("a gated unit", of.gate, out);
  RequireType("a gated unit", of.gate, dtype);
  if (of.up.array.data != nullptr) {
    RequireAlike("a gated unit", of.gate, of.up);
    RequireType("a gated unit", of.up, dtype);
  }
  const auto row = [&](const float* bias) { return MatrixView<const float>(bias, 1, out.cols, 0); };
  WithType("a gated unit", dtype, [&](auto type) {
    using T = decltype(type);
    const auto gate = of.gate.Of<T>(), up = of.up.Of<T>();
    const auto to = out.Of<T>();
    WithActivation(activation, [&](auto kind) {
      LaunchRows(stream, GateStep<T, kind()>{Of(gate), Of(up), of.gate_bias, of.up_bias, Of(to), rounded, out.cols}, to,
                 gate, up, row(of.gate_bias), row(of.up_bias));
    });
  });
}

void GateRowsGradient(Stream stream, Activation activation, MatrixView<const float> gate, MatrixView<const float> up,
                      const WrittenRows& dgate, const WrittenRows& dup) {
  RequireAlike("the gradient of a gated unit", gate, dgate.rows);
  if (up.data != nullptr) {
    RequireAlike("the gradient of a gated unit", gate, up);
    RequireAlike("the gradient of a gated unit", gate, dup.rows);
  }
  WithActivation(activation, [&](auto kind) {
    LaunchRows(stream, GateGradientStep<kind()>{Of(gate), Of(up), Of(dgate), Of(dup)}, gate, up, dgate.rows, dup.rows);
  });
}

void ClampedGateRows(Stream stream, const ClampedSwiGlu& unit, const WrittenRows& gate, MatrixView<const float> up) {
  RequireAlike("a clamped unit", gate.rows, up);
  LaunchRows(stream, ClampedGateStep{unit, Of(gate), Of(up)}, gate.rows, up);
}

void ClampedGateRowsGradient(Stream stream, const ClampedSwiGlu& unit, MatrixView<const float> gate,
                             MatrixView<const float> up, const WrittenRows& dgate, const WrittenRows& dup) {
  RequireAlike("the gradient of a clamped unit", gate, up);
  RequireAlike("the gradient of a clamped unit", gate, dgate.rows);
  RequireAlike("the gradient of a clamped unit", gate, dup.rows);
  LaunchRows(stream, ClampedGateGradientStep{unit, Of(gate), Of(up), Of(dgate), Of(dup)}, gate, up, dgate.rows,
             dup.rows);
}

void GateHeads(Stream stream, const ConstDeviceRows& both, int64_t head_dim, const DeviceRows& x) {
  Require(head_dim % 8 == 0, "gates of heads", "a head dimension that is a multiple of 8", head_dim);
  Require(both.rows == x.rows && both.cols >= 2 * x.cols, "gates of heads", "a gate for each element, not columns",
          both.cols);
  WithTypes("gates of heads", both.array.dtype, x.array.dtype, [&](auto gate, auto type) {
    const auto gates = both.Of<decltype(gate)>();
    const auto values = x.Of<decltype(type)>();
    LaunchRows(stream, GateHeadsStep<decltype(gate), decltype(type)>{Of(gates), Of(values), static_cast<int>(head_dim)},
               values, gates);
  });
}

namespace {

void RequireHeadPairs(int64_t head_dim, MatrixView<const float> both, MatrixView<const float> queries,
                      MatrixView<const float> gates) {
  constexpr const char* kOperation = "queries and gates of heads";
  Require(head_dim % 8 == 0, kOperation, "a head dimension that is a multiple of 8", head_dim);
  RequireAlike(kOperation, queries, gates);
  Require(both.rows == queries.rows && both.cols == 2 * queries.cols, kOperation, "twice as many columns together, not",
          both.cols);
}

// A view of rows that a step only reads, in the place of one that it writes.
MatrixView<float> Mutable(const MatrixView<const float>& x) {
  return {const_cast<float*>(x.data), x.rows, x.cols, x.stride};
}

}  // namespace

void SplitHeads(Stream stream, MatrixView<const float> both, int64_t head_dim, MatrixView<float> queries,
                MatrixView<float> gates) {
  RequireHeadPairs(head_dim, both, queries, gates);
  LaunchRows(stream,
             HeadPairsStep<false>{Of(WrittenRows(Mutable(both))), Of(queries), Of(gates), static_cast<int>(head_dim)},
             queries, gates, both);
}

void JoinHeads(Stream stream, MatrixView<const float> queries, MatrixView<const float> gates, int64_t head_dim,
               const WrittenRows& both) {
  RequireHeadPairs(head_dim, both.rows, queries, gates);
  LaunchRows(stream,
             HeadPairsStep<true>{Of(both), Of(Mutable(queries)), Of(Mutable(gates)), static_cast<int>(head_dim)},
             queries, gates, both.rows);
}

void SigmoidGate(Stream stream, MatrixView<const float> gates, const WrittenRows& x) {
  RequireAlike("gates", gates, x.rows);
  LaunchRows(stream, SigmoidGateStep{Of(gates), Of(x)}, x.rows, gates);
}

void SigmoidGateGradient(Stream stream, MatrixView<const float> gates, MatrixView<const float> x, const WrittenRows& dy,
                         const WrittenRows& dgates) {
  RequireAlike("the gradient of gates", gates, x);
  RequireAlike("the gradient of gates", gates, dy.rows);
  RequireAlike("the gradient of gates", gates, dgates.rows);
  LaunchRows(stream, SigmoidGateGradientStep{Of(gates), Of(x), Of(dy), Of(dgates)}, dy.rows, gates, x, dgates.rows);
}

void ScaleEachRow(Stream stream, const RowScales& by, const WrittenRows& x) {
  LaunchRows(stream, ScaleEachRowStep{by, Of(x)}, x.rows);
}

void ScaleEachRowGradient(Stream stream, const RowScales& by, MatrixView<const float> rows, MatrixView<float> dy,
                          float* dscales) {
  RequireAlike("the gradient of scaled rows", rows, dy);
  if (dy.rows == 0) return;
  using Kernel = ScaleEachRowGradientKernel;
  Launch<Kernel>(stream, {.x = Blocks(dy.rows, Kernel::kWarps)},
                 {by, Of(rows), Of(dy), dscales, dy.rows, static_cast<int>(dy.cols)});
}

void AddColumnSums(Stream stream, MatrixView<const float> x, MatrixView<float> to) {
  Require(to.cols == x.cols, "sums of columns", "as many columns on both sides, not", to.cols);
  if (x.rows == 0 || x.cols == 0) return;
  Launch<ColumnSumsKernel>(stream, {.x = Blocks(x.cols, kWarpSize), .shared_bytes = ColumnSumsKernel::kShared},
                           {Of(x), to.data, x.rows, static_cast<int>(x.cols)});
}

}  // namespace shiftrt::gpu
