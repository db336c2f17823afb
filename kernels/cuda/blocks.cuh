// SPDX-License-Identifier: Apache-2.0
// Reads quantised blocks that lie in planes (blocks.h). A lane takes a piece of 32 weights of one row at a time: four
// runs of eight adjacent columns. A format has
//
//   Raw Load(row, piece)           the bytes of a piece, still encoded, so that several loads can be in flight
//   Column(piece, run)             the first column of a run
//   Codes(raw, run, codes)         the eight numbers of a run, plus kBias: an integer below 2^24, exact in float32
//   Scale(raw, piece, run)         what these numbers are multiplied by, exact in float32
//   Offset(raw, piece, run)        what is added then, for formats with kOffset
//
// An integer of up to seven bits becomes a float without a conversion: in the bits 16 to 22 of the float32 128 it is
// 128 plus the integer. Conversions have a fraction of the throughput of other instructions.
#pragma once

#include "kernels/cuda/blocks.h"
#include "kernels/cuda/platform.cuh"

namespace shiftrt::gpu {

inline constexpr int kPieceColumns = 32;

// The addresses at which the planes of a row begin. Dense rows have one.
struct BlockRow {
  const uint8_t* planes[kMostPlanes];
};

// A WeightPart as kernels take it.
struct StoredPart {
  const uint8_t* planes[kMostPlanes] = {};
  DType type = DType::kBFloat16;
  int end = 0;  // the first row behind it

  // Row `row` of the part, of `cols` columns.
  template <DType kType>
  SHIFTRT_DEVICE BlockRow Row(int row, int cols) const {
    BlockRow at = {};
    if constexpr (kType == DType::kBFloat16) {
      at.planes[0] = planes[0] + static_cast<int64_t>(row) * cols * 2;
    } else {
      constexpr auto kPlanes = PlanesOf(kType);
      const int64_t block = static_cast<int64_t>(row) * (cols / static_cast<int>(LayoutOf(kType).elements));
#pragma unroll
      for (int p = 0; p < kMostPlanes; ++p)
        if (kPlanes[p].bytes > 0) at.planes[p] = planes[p] + block * kPlanes[p].bytes;
    }
    return at;
  }
};

// The rows from column `begin` on, which begins a block. Their pitch remains `cols`.
inline StoredPart Stored(const WeightPart& part, int64_t cols, int64_t begin = 0) {
  StoredPart stored;
  stored.type = part.array.dtype;
  stored.end = static_cast<int>(part.rows);
  const auto* at = static_cast<const uint8_t*>(part.array.data);
  if (!TakesBlocks(stored.type)) {
    stored.planes[0] = at + (part.first * cols + begin) * static_cast<int64_t>(SizeOf(stored.type));
    return stored;
  }
  const int64_t elements = LayoutOf(stored.type).elements, in_row = cols / elements;
  for (int p = 0; p < kMostPlanes; ++p) {
    const int64_t bytes = PlanesOf(stored.type)[p].bytes;
    stored.planes[p] = bytes > 0 ? at + (part.first * in_row + begin / elements) * bytes : nullptr;
    at += part.matrix_rows * in_row * bytes;
  }
  return stored;
}

// Byte `byte` of a word, an integer below 128, plus 128.
SHIFTRT_DEVICE float CodeOf(uint32_t word, int byte) {
  return FloatOf(BytePermute(word, 0x43000000u, 0x7044u | static_cast<uint32_t>(byte) << 8));
}
SHIFTRT_DEVICE float HalfOf(uint32_t word) {
  Float16 half;
  half.bits = static_cast<uint16_t>(word);
  return Widen(half);
}

SHIFTRT_DEVICE float UnsignedByte(uint32_t word, int byte) { return static_cast<float>(word >> (8 * byte) & 255); }

template <DType kType>
struct BlockFormat;

// 16 bytes whose low nibbles are the first two runs of a piece, and whose high nibbles are the others.
SHIFTRT_DEVICE void NibbleCodes(const uint32_t (&words)[4], int run, float (&codes)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t nibbles = words[run % 2 * 2 + half] >> (run / 2 * 4) & 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < 4; ++i) codes[4 * half + i] = CodeOf(nibbles, i);
  }
}

// weight = d (q - 8).
template <>
struct BlockFormat<DType::kQ4_0> {
  static constexpr float kBias = 136;
  static constexpr bool kOffset = false;
  struct Raw {
    uint32_t q[4], d[1];
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    LoadOnceWords<16>(row.planes[0] + piece * 16, raw.q);
    LoadOnceWords<2>(row.planes[1] + piece * 2, raw.d);
    return raw;
  }
  static SHIFTRT_DEVICE int Column(int piece, int run) { return 32 * piece + 8 * run; }
  static SHIFTRT_DEVICE void Codes(const Raw& raw, int run, float (&codes)[8]) { NibbleCodes(raw.q, run, codes); }
  static SHIFTRT_DEVICE float Scale(const Raw& raw, int, int) { return HalfOf(raw.d[0]); }
  static SHIFTRT_DEVICE float Offset(const Raw&, int, int) { return 0; }
};

// weight = d q, q a signed byte. Eight bits do not fit above 128: the code is made in the low bits of 2^23, with the
// sign flipped, and the excess is taken off at once, exactly.
template <>
struct BlockFormat<DType::kQ8_0> {
  static constexpr float kBias = 0;
  static constexpr bool kOffset = false;
  struct Raw {
    uint32_t q[2][4], d[1];
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    LoadOnceWords<16>(row.planes[0] + piece * 32, raw.q[0]);
    LoadOnceWords<16>(row.planes[0] + piece * 32 + 16, raw.q[1]);
    LoadOnceWords<2>(row.planes[1] + piece * 2, raw.d);
    return raw;
  }
  static SHIFTRT_DEVICE int Column(int piece, int run) { return 32 * piece + 8 * run; }
  static SHIFTRT_DEVICE void Codes(const Raw& raw, int run, float (&codes)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t bytes = raw.q[run / 2][run % 2 * 2 + half] ^ 0x80808080u;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes[4 * half + i] =
            FloatOf(BytePermute(bytes, 0x4b000000u, 0x7440u | static_cast<uint32_t>(i))) - (8388608.0f + 128.0f);
    }
  }
  static SHIFTRT_DEVICE float Scale(const Raw& raw, int, int) { return HalfOf(raw.d[0]); }
  static SHIFTRT_DEVICE float Offset(const Raw&, int, int) { return 0; }
};

// The scales of the groups 2 pair and 2 pair + 1 of a block of Q4_K, then their minimums, as bytes. `head` is d and e,
// a word of the scales of groups 0 to 3 and one of their minimums, whose upper two bits belong to the groups 4 to 7,
// and a word with the lower four bits of both for these.
SHIFTRT_DEVICE uint32_t ScalesOfPair(const uint32_t (&head)[4], int pair) {
  const uint32_t bytes = pair % 2 == 0 ? 0x5410 : 0x7632;
  const uint32_t own = BytePermute(head[1], head[2], bytes), low = BytePermute(head[3], head[3] >> 4, bytes);
  return pair < 2 ? own & 0x3f3f3f3fu : (low & 0x0f0f0f0fu) | (own >> 2 & 0x30303030u);
}

// weight = d s q - e m, with a scale s and a minimum m of six bits for every 32 columns. A piece has 16 columns of each
// of two adjacent groups.
template <>
struct BlockFormat<DType::kQ4_K> {
  static constexpr float kBias = 128;
  static constexpr bool kOffset = true;
  struct Raw {
    uint32_t q[4], head[4];  // head: d and e, then 12 bytes of scales and minimums
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    LoadOnceWords<16>(row.planes[0] + piece * 16, raw.q);
    LoadOnceWords<16>(row.planes[1] + piece / 8 * 16, raw.head);
    return raw;
  }
  static SHIFTRT_DEVICE int Column(int piece, int run) {
    return 64 * (piece / 2) + 16 * (piece % 2) + 32 * (run / 2) + 8 * (run % 2);
  }
  static SHIFTRT_DEVICE void Codes(const Raw& raw, int run, float (&codes)[8]) { NibbleCodes(raw.q, run, codes); }
  static SHIFTRT_DEVICE float Scale(const Raw& raw, int piece, int run) {
    return HalfOf(raw.head[0]) * UnsignedByte(ScalesOfPair(raw.head, piece / 2 % 4), run / 2);
  }
  static SHIFTRT_DEVICE float Offset(const Raw& raw, int piece, int run) {
    return -(HalfOf(raw.head[0] >> 16) * UnsignedByte(ScalesOfPair(raw.head, piece / 2 % 4), 2 + run / 2));
  }
};

// weight = d s (q - 32), with a scale s of eight bits for every 16 columns. A piece has eight columns of each quarter
// of 128 columns, whose upper two bits are in the same eight bytes.
template <>
struct BlockFormat<DType::kQ6_K> {
  static constexpr float kBias = 160;
  static constexpr bool kOffset = false;
  struct Raw {
    uint32_t low[2][2], high[2], scales[2], d[1];
  };
  static SHIFTRT_DEVICE Raw Load(const BlockRow& row, int piece) {
    Raw raw;
    const int part = piece / 4, eight = piece % 4 * 8;  // in units of 128 columns
    LoadOnceWords<8>(row.planes[0] + part * 64 + eight, raw.low[0]);
    LoadOnceWords<8>(row.planes[0] + part * 64 + 32 + eight, raw.low[1]);
    LoadOnceWords<8>(row.planes[1] + part * 32 + eight, raw.high);
    LoadOnceWords<8>(row.planes[2] + part * 8, raw.scales);
    LoadOnceWords<2>(row.planes[3] + part / 2 * 2, raw.d);
    return raw;
  }
  static SHIFTRT_DEVICE int Column(int piece, int run) { return 128 * (piece / 4) + 8 * (piece % 4) + 32 * run; }
  static SHIFTRT_DEVICE void Codes(const Raw& raw, int run, float (&codes)[8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t nibbles = raw.low[run % 2][half] >> (run / 2 * 4) & 0x0f0f0f0fu;
      const uint32_t twos = raw.high[half] >> (run * 2) & 0x03030303u;
#pragma unroll
      for (int i = 0; i < 4; ++i) codes[4 * half + i] = CodeOf(nibbles | twos << 4, i);
    }
  }
  static SHIFTRT_DEVICE float Scale(const Raw& raw, int piece, int run) {
    const int shift = 16 * (run % 2) + piece % 4 / 2 * 8;
    return HalfOf(raw.d[0]) * static_cast<float>(static_cast<int8_t>(raw.scales[run / 2] >> shift));
  }
  static SHIFTRT_DEVICE float Offset(const Raw&, int, int) { return 0; }
};

// The eight weights of a run, with the one rounding that the format's definition in float32 has.
template <typename Format>
SHIFTRT_DEVICE void WeightsOf(const typename Format::Raw& raw, int piece, int run, float (&weights)[8]) {
  Format::Codes(raw, run, weights);
  const float scale = Format::Scale(raw, piece, run), offset = Format::Offset(raw, piece, run);
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float product = scale * (weights[j] - Format::kBias);
    weights[j] = Format::kOffset ? product + offset : product;
  }
}

}  // namespace shiftrt::gpu
