// SPDX-License-Identifier: Apache-2.0
// The matrix-vector product with quantised weights. One kernel reads all formats, because the rows of joined matrices
// may differ in theirs: a warp chooses by its rows.
//
// Instructions are scarcer than bytes with four bits per weight. At 4.2 TB/s an H200 receives 7.5e12 weights of Q4_K
// per second, for each of which its 132 x 128 lanes at 1.755 GHz can issue four instructions. So four weights at a time
// are multiplied as bytes (dp4a), which needs x as integers.
#include <algorithm>

#include "kernels/cuda/blocks.cuh"
#include "kernels/cuda/matvec.cuh"

namespace shiftrt::gpu {

namespace {

constexpr int kBlockMatVecBlocks = 2;  // per multiprocessor
constexpr int kGroupColumns = 32;

// Sixteen elements of x in units of their group, as words of four bytes: 256 times the upper bytes, which are signed,
// plus the lower ones, which are not.
struct Sixteen {
  uint32_t upper[4], lower[4];
};
struct GroupFacts {
  float unit;        // the largest absolute value of the group divided by 32767
  float sum;         // the sum of the rounded elements
  uint32_t sums[2];  // the sums of the integers of each half, modulo 2^32
};

SHIFTRT_DEVICE float SignedFloat(uint32_t integer) { return static_cast<float>(static_cast<int32_t>(integer)); }

// The vector in shared memory, rounded to 16 bits within each group of 32 columns, as on a CPU (kernels/matmul.h).
// The two bytes of the two halves of groups, and GroupFacts, are five arrays of 16 bytes per group. Adjacent lanes read
// groups that are one or two apart, or both halves of groups that are four apart. Where a group is stored is exchanged
// within eight groups, so that the eight lanes that are served together find theirs in different banks.
struct RoundedVector {
  static constexpr int kRun = kGroupColumns / 2, kSpan = kWarpSize * kRun;
  static constexpr int kArrays = 5, kFacts = 4;
  static constexpr uint32_t kShift = 0x4b400000;  // the float32 1.5 * 2^23
  Shared<uint32_t> words;
  int groups;

  // More columns do not fit into the shared memory of a block, which a norm needs, too.
  static constexpr int kMostColumns = (kMaxSharedBytes - 256) / (kArrays * 16 * kSpan / kGroupColumns) * kSpan;
  static constexpr int Words(int cols) { return kArrays * 4 * Groups(cols); }
  static constexpr int Groups(int cols) { return (cols + kSpan - 1) / kSpan * (kSpan / kGroupColumns); }
  static constexpr int Bytes(int cols) { return SharedBytes<uint32_t>(Words(cols)); }
  static SHIFTRT_DEVICE RoundedVector Take(SharedArena& arena, int cols) {
    return {arena.Take<uint32_t>(Words(cols)), Groups(cols)};
  }
  SHIFTRT_DEVICE Shared<uint32_t> At(int array, int group, int half) const {
    return words + 4 * (array * groups + (group ^ group / 8 % 2 ^ 2 * half));
  }

  SHIFTRT_DEVICE Sixteen Get(int group, int half) const {
    Sixteen x;
    LoadShared4(At(half, group, half), x.upper);
    LoadShared4(At(2 + half, group, half), x.lower);
    return x;
  }
  SHIFTRT_DEVICE GroupFacts Facts(int group) const {
    uint32_t facts[4];
    LoadShared4(At(kFacts, group, 0), facts);
    return {FloatOf(facts[0]), FloatOf(facts[1]), {facts[2], facts[3]}};
  }

  // All lanes of a warp write together. Two adjacent ones have a group. Adding 1.5 * 2^23 rounds to the nearest
  // integer, which is then in the low bits.
  SHIFTRT_DEVICE void Set(int at, const float (&x)[kRun]) const {
    const int group = at / kGroupColumns, half = at / kRun % 2;
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kRun; ++j) largest = Larger(largest, Magnitude(x[j]));
    const float unit = WarpMax<2>(largest) * (1.0f / 32767), inverse = unit > 0 ? Quotient(1.0f, unit) : 0;
    Sixteen out;
    uint32_t sum = 0 - kRun * kShift;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t integers[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        integers[i] = Bits(x[4 * word + i] * inverse + FloatOf(kShift));
        sum += integers[i];
      }
      const uint32_t first = BytePermute(integers[0], integers[1], 0x5140),
                     last = BytePermute(integers[2], integers[3], 0x5140);
      out.lower[word] = BytePermute(first, last, 0x5410);
      out.upper[word] = BytePermute(first, last, 0x7632);
    }
    StoreShared4(At(half, group, half), out.upper[0], out.upper[1], out.upper[2], out.upper[3]);
    StoreShared4(At(2 + half, group, half), out.lower[0], out.lower[1], out.lower[2], out.lower[3]);
    const uint32_t other = ShuffleXor(sum, 1);
    const float whole = unit * SignedFloat(sum + other);
    if (half == 0) StoreShared4(At(kFacts, group, 0), Bits(unit), Bits(whole), sum, other);
  }
};

// The sum of products of integers of weights and of x. `upper` counts 256 times.
struct ByteSum {
  int32_t upper = 0, lower = 0;

  template <bool kSigned>
  SHIFTRT_DEVICE void Add(const uint32_t (&weights)[4], const Sixteen& x) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      upper = DotBytes<kSigned, true>(weights[i], x.upper[i], upper);
      lower = DotBytes<kSigned, false>(weights[i], x.lower[i], lower);
    }
  }
  // Modulo 2^32, because integers of an x that is not finite mean nothing, and their sums may be any.
  SHIFTRT_DEVICE uint32_t Value() const { return static_cast<uint32_t>(upper) * 256 + static_cast<uint32_t>(lower); }
};

// The lower nibbles of 16 bytes, or the upper ones where they are, as 16 times their number.
SHIFTRT_DEVICE void NibblesInPlace(const uint32_t (&words)[4], int upper, uint32_t (&codes)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) codes[i] = words[i] & (upper == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
}

// A lane multiplies a piece of kColumns columns of some rows with x. All sums of a group are integers, exact in 32
// bits. The scales of the format and the unit of the group are applied to them. Load() reads a piece of one row, and
// Add() multiplies it. A lane has kUnderWay pieces loaded before it multiplies: about 128 bytes.
template <DType kType>
struct PieceDots;

// weight = d (q - 8).
template <>
struct PieceDots<DType::kQ4_0> : BlockFormat<DType::kQ4_0> {
  static constexpr int kColumns = kPieceColumns, kUnderWay = 8;
  template <int kRows>
  static SHIFTRT_DEVICE void Add(const Raw (&raw)[kRows], const RoundedVector& x, int piece, float (&sums)[kRows]) {
    ByteSum low[kRows], high[kRows];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sixteen sixteen = x.Get(piece, half);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t codes[4];
        NibblesInPlace(raw[r].q, half, codes);
        (half == 0 ? low : high)[r].template Add<false>(codes, sixteen);
      }
    }
    const GroupFacts facts = x.Facts(piece);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t sum = 16 * low[r].Value() + high[r].Value() - 128 * (facts.sums[0] + facts.sums[1]);
      sums[r] += HalfOf(raw[r].d[0]) * (facts.unit / 16) * SignedFloat(sum);
    }
  }
};

// weight = d q, q a signed byte.
template <>
struct PieceDots<DType::kQ8_0> : BlockFormat<DType::kQ8_0> {
  static constexpr int kColumns = kPieceColumns, kUnderWay = 4;
  template <int kRows>
  static SHIFTRT_DEVICE void Add(const Raw (&raw)[kRows], const RoundedVector& x, int piece, float (&sums)[kRows]) {
    ByteSum sum[kRows];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Sixteen sixteen = x.Get(piece, half);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sum[r].template Add<true>(raw[r].q[half], sixteen);
    }
    const float unit = x.Facts(piece).unit;
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] += HalfOf(raw[r].d[0]) * unit * SignedFloat(sum[r].Value());
  }
};

// weight = d s q - e m. A piece is two groups: the lower nibbles of 32 bytes, and the upper ones.
template <>
struct PieceDots<DType::kQ4_K> {
  static constexpr int kColumns = 64, kUnderWay = 4;
  struct Raw {
    uint32_t q[2][4], head[4];
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    LoadOnceWords<16>(row.planes[0] + piece * 32, raw.q[0]);
    LoadOnceWords<16>(row.planes[0] + piece * 32 + 16, raw.q[1]);
    LoadOnceWords<16>(row.planes[1] + piece / 4 * 16, raw.head);
    return raw;
  }
  template <int kRows>
  static SHIFTRT_DEVICE void Add(const Raw (&raw)[kRows], const RoundedVector& x, int piece, float (&sums)[kRows]) {
    float scaled[kRows] = {}, offset[kRows] = {};
#pragma unroll
    for (int group = 0; group < 2; ++group) {
      ByteSum sum[kRows];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Sixteen sixteen = x.Get(2 * piece + group, half);
#pragma unroll
        for (int r = 0; r < kRows; ++r) {
          uint32_t codes[4];
          NibblesInPlace(raw[r].q[half], group, codes);
          sum[r].template Add<false>(codes, sixteen);
        }
      }
      const GroupFacts facts = x.Facts(2 * piece + group);
      const float unit = group == 0 ? facts.unit : facts.unit / 16;
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint32_t pair = ScalesOfPair(raw[r].head, piece % 4);
        scaled[r] += UnsignedByte(pair, group) * (unit * SignedFloat(sum[r].Value()));
        offset[r] += UnsignedByte(pair, 2 + group) * facts.sum;
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r)
      sums[r] += HalfOf(raw[r].head[0]) * scaled[r] - HalfOf(raw[r].head[0] >> 16) * offset[r];
  }
};

// weight = d s (q - 32). A piece is a half of each of four adjacent groups, with a scale for each.
template <>
struct PieceDots<DType::kQ6_K> {
  static constexpr int kColumns = 64, kUnderWay = 2;
  struct Raw {
    uint32_t low[2][4], high[4], scales[2], d[1];
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    const int part = piece / 2, half = piece % 2 * 16;  // in units of 128 columns
    LoadOnceWords<16>(row.planes[0] + part * 64 + half, raw.low[0]);
    LoadOnceWords<16>(row.planes[0] + part * 64 + 32 + half, raw.low[1]);
    LoadOnceWords<16>(row.planes[1] + part * 32 + half, raw.high);
    LoadOnceWords<8>(row.planes[2] + part * 8, raw.scales);
    LoadOnceWords<2>(row.planes[3] + part / 2 * 2, raw.d);
    return raw;
  }
  template <int kRows>
  static SHIFTRT_DEVICE void Add(const Raw (&raw)[kRows], const RoundedVector& x, int piece, float (&sums)[kRows]) {
    const int half = piece % 2;
    float scaled[kRows] = {};
#pragma unroll
    for (int run = 0; run < 4; ++run) {
      const int group = piece / 2 * 4 + run;
      const Sixteen sixteen = x.Get(group, half);
      const GroupFacts facts = x.Facts(group);
      const uint32_t excess = 32 * (half == 0 ? facts.sums[0] : facts.sums[1]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        uint32_t codes[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t nibbles = raw[r].low[run % 2][i] >> (run / 2 * 4) & 0x0f0f0f0fu;
          const uint32_t twos = run < 2 ? raw[r].high[i] << (4 - 2 * run) : raw[r].high[i] >> (2 * run - 4);
          codes[i] = nibbles | (twos & 0x30303030u);
        }
        ByteSum sum;
        sum.template Add<false>(codes, sixteen);
        // Byte 2 run + half of eight.
        const uint32_t scales = BytePermute(raw[r].scales[0], raw[r].scales[1], half == 0 ? 0x6420 : 0x7531);
        const float scale = static_cast<float>(static_cast<int8_t>(scales >> (8 * run)));
        scaled[r] += scale * (facts.unit * SignedFloat(sum.Value() - excess));
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] += HalfOf(raw[r].d[0]) * scaled[r];
  }
};

// Dense rows beside quantised ones. They are few, so the integers of x become floats again.
template <>
struct PieceDots<DType::kBFloat16> {
  static constexpr int kColumns = 32, kUnderWay = 2;
  struct Raw {
    Raw8<BFloat16> eights[4];
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    const auto* const from = reinterpret_cast<const BFloat16*>(row.planes[0]) + piece * kColumns;
#pragma unroll
    for (int i = 0; i < 4; ++i) raw.eights[i] = LoadOnce8(from + 8 * i);
    return raw;
  }
  template <int kRows>
  static SHIFTRT_DEVICE void Add(const Raw (&raw)[kRows], const RoundedVector& x, int piece, float (&sums)[kRows]) {
    const float unit = x.Facts(piece).unit;
#pragma unroll
    for (int eight = 0; eight < 4; ++eight) {
      const Sixteen sixteen = x.Get(piece, eight / 2);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float weights[8], sum = 0;
        Widen8(raw[r].eights[eight], weights);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const int word = eight % 2 * 2 + j / 4, shift = j % 4 * 8;
          const int upper = static_cast<int8_t>(sixteen.upper[word] >> shift);
          sum += weights[j] * static_cast<float>(upper * 256 + static_cast<int>(sixteen.lower[word] >> shift & 255));
        }
        sums[r] += unit * sum;
      }
    }
  }
};

// One lane's part of the dot products of rows of one format.
template <typename Dots, int kRows>
SHIFTRT_DEVICE void BlockDots(const BlockRow (&rows)[kRows], const RoundedVector& x, int cols, float (&sums)[kRows]) {
  constexpr int kUnroll = Dots::kUnderWay / kRows;
  const int pieces = cols / Dots::kColumns;
  for (int first = 0; first < pieces; first += kUnroll * kWarpSize) {
    typename Dots::Raw raw[kUnroll][kRows];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      // The last piece in the place of one that does not exist: registers that are written only on a condition would
      // be occupied everywhere.
      const int piece = first + u * kWarpSize + Lane(), there = piece < pieces ? piece : pieces - 1;
#pragma unroll
      for (int r = 0; r < kRows; ++r) raw[u][r] = Dots::Load(rows[r], there);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      // Otherwise the compiler delays loads of weights, and reads the vector for several pieces at once and spills.
      SyncWarp();
      const int piece = first + u * kWarpSize + Lane();
      if (piece < pieces) Dots::Add(raw[u], x, piece, sums);
    }
  }
}

// Calls body(std::integral_constant<DType, type>()) with the type of a part.
template <typename Body>
SHIFTRT_DEVICE void WithStored(DType type, Body&& body) {
  switch (type) {
    case DType::kQ4_0: return body(std::integral_constant<DType, DType::kQ4_0>());
    case DType::kQ8_0: return body(std::integral_constant<DType, DType::kQ8_0>());
    case DType::kQ4_K: return body(std::integral_constant<DType, DType::kQ4_K>());
    case DType::kQ6_K: return body(std::integral_constant<DType, DType::kQ6_K>());
    default: return body(std::integral_constant<DType, DType::kBFloat16>());
  }
}

struct Quantised {};  // in the place of a type of weights

}  // namespace

template <>
struct MatVecWeights<Quantised> {
  using Cache = BFloat16;
  using SharedVector = RoundedVector;
  static constexpr bool kAlwaysShared = true;
  StoredPart parts[3];
  int cols;  // the columns of the parts, of which a product may take fewer

  // For weights in one part.
  SHIFTRT_DEVICE void SkipRows(int rows, int in_row) {
    WithStored(parts[0].type, [&](auto type) {
      const BlockRow at = parts[0].template Row<type()>(rows, in_row);
#pragma unroll
      for (int p = 0; p < kMostPlanes; ++p) parts[0].planes[p] = at.planes[p];
    });
  }
  static constexpr int LeastBlocks(bool) { return kBlockMatVecBlocks; }
  // Nothing is loaded ahead: a row's format decides how many registers its first weights take.
  template <int kRows>
  struct Ahead {};
  template <int kRows>
  SHIFTRT_DEVICE void LoadAhead(const int (&)[kRows], int, Ahead<kRows>&) const {}
  // Rows of different formats, a gate and an up projection or neighbours, are each taken kRows times.
  template <int kRows>
  SHIFTRT_DEVICE void Dots(const int (&rows)[kRows], const RoundedVector& x, int used, Ahead<kRows>&,
                           float (&sums)[kRows]) const {
    int part[kRows], within[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      part[r] = rows[r] < parts[0].end ? 0 : rows[r] < parts[1].end ? 1 : 2;
      within[r] = rows[r] - (part[r] > 0 ? parts[part[r] - 1].end : 0);
    }
    constexpr int kLast = kRows - 1;
    const bool alike = parts[part[0]].type == parts[part[kLast]].type;
    for (int taken = 0; taken < (alike ? 1 : kRows); ++taken) {
      // An index that is not known to the compiler would put the arrays into memory.
      const int first = alike || taken == 0 ? part[0] : part[kLast], last = alike || taken > 0 ? part[kLast] : part[0];
      const int first_row = alike || taken == 0 ? within[0] : within[kLast],
                last_row = alike || taken > 0 ? within[kLast] : within[0];
      float found[kRows] = {};
      WithStored(parts[first].type, [&](auto type) {
        BlockRow at[kRows];
        at[0] = parts[first].template Row<type()>(first_row, cols);
        if constexpr (kRows > 1) at[kLast] = parts[last].template Row<type()>(last_row, cols);
        BlockDots<PieceDots<type()>>(at, x, used, found);
      });
#pragma unroll
      for (int r = 0; r < kRows; ++r)
        if (alike || r == taken) sums[r] = found[r];
    }
  }
};

namespace {

constexpr const char* kOperation = "matrix-vector product with quantised weights";

// The weights of a product from column `begin` on.
MatVecWeights<Quantised> WeightsFrom(const MatVecProblem& problem, int64_t begin) {
  MatVecWeights<Quantised> w;
  w.cols = static_cast<int>(problem.cols);
  int rows = 0;
  for (int i = 0; i < 3; ++i) {
    if (i < problem.w.count) {
      const WeightPart& part = problem.w.parts[i];
      Require(TakesBlocks(part.array.dtype) || part.array.dtype == DType::kBFloat16, kOperation,
              "Q4_0, Q8_0, Q4_K, Q6_K or bfloat16, not blocks of bytes",
              static_cast<int64_t>(SizeOf(part.array.dtype)));
      Require(problem.cols % LayoutOf(part.array.dtype).elements == 0, kOperation, "columns that are whole blocks",
              problem.cols);
      w.parts[i] = Stored(part, problem.cols, begin);
      rows += static_cast<int>(part.rows);
    }
    w.parts[i].end = rows;
  }
  Require(rows == problem.rows, kOperation, "as many rows as its parts have", problem.rows);
  return w;
}

// The product with so many columns of the weights as the vector has.
template <Finish kFinish>
void LaunchColumns(Stream stream, const MatVecWeights<Quantised>& w, const MatVecProblem& problem, const float* addend,
                   int multiprocessors, const RotatedHeads& heads) {
  const MatVecTile tile = ChooseMatVecTile(problem.rows, IsPaired(kFinish), false, multiprocessors);
  const auto launch = [&](auto kernel) {
    using Kernel = decltype(kernel);
    Launch<Kernel>(stream, {.x = tile.blocks, .shared_bytes = Kernel::SharedFor(static_cast<int>(problem.cols))},
                   MatVecArgs<Kernel, kFinish>(w, problem, addend, heads));
  };
  const auto with_rows = [&](auto norm) {
    if constexpr (!IsPaired(kFinish))
      if (tile.rows_per_warp == 1) return launch(MatVecKernel<Quantised, norm(), kFinish, 1>());
    launch(MatVecKernel<Quantised, norm(), kFinish, 2>());
  };
  if (problem.norm_weight == nullptr) return with_rows(std::false_type());
  if constexpr (kFinish == Finish::kAdd) {
    Refuse(kOperation, "no norm before an addition", problem.cols);
  } else {
    with_rows(std::true_type());
  }
}

}  // namespace

template <Finish kFinish>
void LaunchBlockMatVec(Stream stream, const MatVecProblem& problem, const float* addend, int multiprocessors,
                       const RotatedHeads& heads) {
  Require(problem.cols % kPieceColumns == 0, kOperation, "a multiple of 32 columns", problem.cols);
  constexpr bool kInParts = kFinish == Finish::kStore || kFinish == Finish::kAdd;
  Require(problem.cols <= RoundedVector::kMostColumns || (kInParts && problem.norm_weight == nullptr), kOperation,
          "a vector that fits into shared memory", problem.cols);
  const auto columns = [&](int64_t begin) {
    MatVecProblem part = problem;
    part.x = problem.x + begin;
    part.cols = std::min<int64_t>(problem.cols - begin, RoundedVector::kMostColumns);
    return part;
  };
  LaunchColumns<kFinish>(stream, WeightsFrom(problem, 0), columns(0), addend, multiprocessors, heads);
  if constexpr (kInParts) {
    for (int64_t begin = RoundedVector::kMostColumns; begin < problem.cols; begin += RoundedVector::kMostColumns) {
      MatVecProblem part = columns(begin);
      part.bias = nullptr;
      LaunchColumns<Finish::kAdd>(stream, WeightsFrom(problem, begin), part, problem.y, multiprocessors, heads);
    }
  }
}

template <Finish kFinish>
void LaunchBlocksOfExperts(Stream stream, const MatVecProblem& problem, const ExpertSlots& slots, int multiprocessors) {
  Require(problem.cols % kPieceColumns == 0, kOperation, "a multiple of 32 columns", problem.cols);
  Require(problem.cols <= RoundedVector::kMostColumns, kOperation, "a vector that fits into shared memory",
          problem.cols);
  LaunchOfExperts<Quantised, kFinish>(stream, WeightsFrom(problem, 0), problem, slots, multiprocessors);
}

template void LaunchBlocksOfExperts<Finish::kStore>(Stream, const MatVecProblem&, const ExpertSlots&, int);
template void LaunchBlocksOfExperts<Finish::kSwiGlu>(Stream, const MatVecProblem&, const ExpertSlots&, int);
template void LaunchBlocksOfExperts<Finish::kGeGlu>(Stream, const MatVecProblem&, const ExpertSlots&, int);
template void LaunchBlockMatVec<Finish::kStore>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kAdd>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kSwiGlu>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kGeGlu>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);
template void LaunchBlockMatVec<Finish::kRotate>(Stream, const MatVecProblem&, const float*, int, const RotatedHeads&);

}  // namespace shiftrt::gpu
