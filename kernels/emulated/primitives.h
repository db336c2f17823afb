// SPDX-License-Identifier: Apache-2.0
// The functions of platform.cuh on the emulator, with the same names and meanings, and with checks. The last, defaulted
// argument of each is the line of its caller, for errors.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/grid.h"
#include "kernels/emulated/machine.h"
#include "runtime/dtype.h"

#define SHIFTRT_DEVICE inline

namespace shiftrt::gpu {

using Where = std::source_location;

inline int Thread() { return emu::CurrentThread(); }
inline Index3 Block() { return emu::CurrentBlock(); }
inline Index3 GridBlocks() { return emu::CurrentGrid(); }
inline int Lane() { return Thread() % kWarpSize; }
inline int Warp() { return Thread() / kWarpSize; }

// A pointer into a shared array that checks the bounds.
template <typename T>
class Shared {
 public:
  Shared() = default;
  Shared(T* begin, int count) : begin_(begin), count_(count) {}
  Shared operator+(int offset) const {
    Shared moved = *this;
    moved.at_ += offset;
    return moved;
  }
  // Passes the line of the caller to operator[].
  struct At {
    int index;
    Where where;
    At(int index, Where where = Where::current()) : index(index), where(where) {}
  };
  T& operator[](At at) const { return *Get(at.index, 1, at.where); }
  // Access to `count` elements from `offset` on. An access to several elements must be aligned to 16 bytes.
  T* Get(int offset, int count, const Where& where) const {
    T* const at = Place(offset, count, where);
    emu::Touch(at, count * static_cast<int>(sizeof(T)), where);
    return at;
  }
  // The same for those who do not access the elements themselves.
  T* Place(int offset, int count, const Where& where) const {
    const int first = at_ + offset;
    if (first < 0 || first + count > count_)
      emu::FailAt(where, "element " + std::to_string(first + (first < 0 ? 0 : count - 1)) + " of a shared array of " +
                             std::to_string(count_));
    if (count > 1 && reinterpret_cast<uintptr_t>(begin_ + first) % 16 != 0)
      emu::FailAt(where, "a 16-byte access of shared memory is misaligned");
    return begin_ + first;
  }

 private:
  T* begin_ = nullptr;
  int count_ = 0;
  int at_ = 0;
};

class SharedArena {
 public:
  template <typename T>
  Shared<T> Take(int count, Where where = Where::current()) {
    return {reinterpret_cast<T*>(emu::TakeShared(SharedBytes<T>(count), where)), count};
  }
};

inline void SyncThreads(Where where = Where::current()) { emu::WaitBlock(where); }
inline void SyncGrid(Where where = Where::current()) { emu::WaitGrid(where); }
inline void SyncWarp(uint32_t mask = kFullWarp, Where where = Where::current()) {
  emu::WaitWarp({"SyncWarp", mask, nullptr, [](const auto&, const Where&) {}}, where);
}

template <typename T>
struct ShuffleSlot {
  T value;
  int source;
  T result;
};
template <typename T>
T Exchange(T value, int source, uint32_t mask, const Where& where) {
  ShuffleSlot<T> slot{value, source, value};
  emu::WaitWarp({"Shuffle", mask, &slot,
                 [](const std::vector<emu::Participant>& lanes, const Where& where) {
                   const ShuffleSlot<T>* by_lane[kWarpSize] = {};
                   for (const emu::Participant& lane : lanes)
                     by_lane[lane.lane] = static_cast<const ShuffleSlot<T>*>(lane.slot);
                   for (const emu::Participant& lane : lanes) {
                     auto* mine = static_cast<ShuffleSlot<T>*>(lane.slot);
                     const bool named = mine->source >= 0 && mine->source < kWarpSize;
                     const ShuffleSlot<T>* theirs = named ? by_lane[mine->source] : nullptr;
                     if (theirs == nullptr)
                       emu::FailAt(where, "lane " + std::to_string(lane.lane) + " shuffles from lane " +
                                              std::to_string(mine->source) + ", which does not take part");
                     mine->result = theirs->value;
                   }
                 }},
                where);
  return slot.result;
}
template <typename T>
T ShuffleXor(T value, int lane_mask, uint32_t mask = kFullWarp, Where where = Where::current()) {
  return Exchange(value, Lane() ^ lane_mask, mask, where);
}
template <typename T>
T Shuffle(T value, int lane, uint32_t mask = kFullWarp, Where where = Where::current()) {
  return Exchange(value, lane, mask, where);
}

// Needs no atomic instruction, because a fiber is never interrupted.
inline uint32_t AtomicAdd(Shared<uint32_t> to, uint32_t value, Where where = Where::current()) {
  uint32_t* const at = to.Get(0, 1, where);
  return std::exchange(*at, *at + value);
}

inline void AtomicAdd(uint32_t* to, uint32_t value) { *to += value; }
inline void AtomicAdd(uint64_t* to, uint64_t value) { *to += value; }

inline bool LastToArrive(uint32_t* arrivals, uint32_t blocks, Shared<uint32_t> flag, Where where = Where::current()) {
  SyncThreads(where);
  if (Thread() == 0) flag[0] = emu::Arrive(arrivals, blocks, where) ? 1 : 0;
  SyncThreads(where);
  return flag[0] != 0;
}

inline void WaitForEarlier(Where where = Where::current()) { emu::WaitForEarlier(where); }
inline void AllowNext(Where where = Where::current()) { emu::AllowNext(where); }

inline void CheckAligned16(const void* p, const Where& where) {
  if (reinterpret_cast<uintptr_t>(p) % 16 != 0) emu::FailAt(where, "a 16-byte access of global memory is misaligned");
}

template <typename T>
void CopyAsync16(Shared<T> to, const T* from, bool valid, Where where = Where::current()) {
  if (valid) CheckAligned16(from, where);
  emu::IssueCopy(reinterpret_cast<std::byte*>(to.Get(0, 16 / sizeof(T), where)), valid ? from : nullptr, where);
}
inline void CopyAsyncCommit() { emu::CommitCopies(); }
template <int kPending>
void CopyAsyncWait() {
  emu::WaitCopies(kPending);
}

struct MatrixSlot {
  const uint16_t* row;
  uint32_t out[4];
};
inline uint32_t PackBits(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }
template <bool kTransposed, typename T>
void LoadFour(uint32_t (&out)[4], Shared<T> row, const Where& where) {
  MatrixSlot slot{reinterpret_cast<const uint16_t*>(row.Get(0, 8, where)), {}};
  emu::WaitWarp({"LoadMatrices", kFullWarp, &slot,
                 [](const std::vector<emu::Participant>& lanes, const Where&) {
                   const auto element = [&](int matrix, int i, int j) {
                     return static_cast<MatrixSlot*>(lanes[8 * matrix + i].slot)->row[j];
                   };
                   for (int lane = 0; lane < kWarpSize; ++lane) {
                     const int i = lane / 4, j = 2 * (lane % 4);
                     for (int m = 0; m < 4; ++m)
                       static_cast<MatrixSlot*>(lanes[lane].slot)->out[m] =
                           kTransposed ? PackBits(element(m, j, i), element(m, j + 1, i))
                                       : PackBits(element(m, i, j), element(m, i, j + 1));
                   }
                 }},
                where);
  std::memcpy(out, slot.out, sizeof(out));
}
template <typename T>
void LoadMatrices(uint32_t (&out)[4], Shared<T> row, Where where = Where::current()) {
  LoadFour<false>(out, row, where);
}
template <typename T>
void LoadMatricesTransposed(uint32_t (&out)[4], Shared<T> row, Where where = Where::current()) {
  LoadFour<true>(out, row, where);
}

inline float Widen(float x) { return x; }
inline float Widen(BFloat16 x) { return static_cast<float>(x); }
inline float Widen(Float16 x) { return static_cast<float>(x); }
template <typename T>
T Narrow(float x) {
  return T(x);
}
template <typename T>
uint32_t Pack2(float low, float high) {
  return PackBits(Narrow<T>(low).bits, Narrow<T>(high).bits);
}

struct ProductSlot {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};
template <typename T>
float Half(uint32_t word, int which) {
  T value;
  value.bits = static_cast<uint16_t>(word >> (16 * which));
  return Widen(value);
}
// Rounds to float32 once per call; the hardware keeps at least this precision while it adds the sixteen products.
template <typename T>
void MultiplyAccumulate(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                        Where where = Where::current()) {
  ProductSlot slot{d, a, {b0, b1}};
  emu::WaitWarp({"MultiplyAccumulate", kFullWarp, &slot,
                 [](const std::vector<emu::Participant>& lanes, const Where&) {
                   float a[16][16], b[16][8];
                   for (int lane = 0; lane < kWarpSize; ++lane) {
                     const auto& mine = *static_cast<ProductSlot*>(lanes[lane].slot);
                     const int group = lane / 4, pair = 2 * (lane % 4);
                     for (int half = 0; half < 2; ++half) {
                       for (int r = 0; r < 4; ++r)
                         a[group + 8 * (r % 2)][pair + half + 8 * (r / 2)] = Half<T>(mine.a[r], half);
                       for (int r = 0; r < 2; ++r) b[pair + half + 8 * r][group] = Half<T>(mine.b[r], half);
                     }
                   }
                   for (int lane = 0; lane < kWarpSize; ++lane) {
                     auto& mine = *static_cast<ProductSlot*>(lanes[lane].slot);
                     for (int r = 0; r < 4; ++r) {
                       const int row = lane / 4 + 8 * (r / 2), col = 2 * (lane % 4) + r % 2;
                       double sum = mine.d[r];
                       for (int k = 0; k < 16; ++k) sum += static_cast<double>(a[row][k]) * b[k][col];
                       mine.d[r] = static_cast<float>(sum);
                     }
                   }
                 }},
                where);
}

struct DoubleProductSlot {
  double* d;
  double a, b;
};
inline void MultiplyAccumulateEight(double (&d)[2], double a, double b, const Where& where) {
  DoubleProductSlot slot{d, a, b};
  emu::WaitWarp({"MultiplyAccumulateDouble", kFullWarp, &slot,
                 [](const std::vector<emu::Participant>& lanes, const Where&) {
                   const auto at = [&](int lane) { return static_cast<DoubleProductSlot*>(lanes[lane].slot); };
                   for (int lane = 0; lane < kWarpSize; ++lane)
                     for (int r = 0; r < 2; ++r)
                       for (int k = 0; k < 4; ++k)
                         at(lane)->d[r] += at(lane / 4 * 4 + k)->a * at(4 * (2 * (lane % 4) + r) + k)->b;
                 }},
                where);
}

inline void MultiplyAccumulateDouble(double (&upper)[2], double (&lower)[2], double a_upper, double a_lower, double b,
                                     Where where = Where::current()) {
  MultiplyAccumulateEight(upper, a_upper, b, where);
  MultiplyAccumulateEight(lower, a_lower, b, where);
}

template <typename T>
void Load8(const T* from, float (&out)[8], Where where = Where::current()) {
  CheckAligned16(from, where);
  for (int i = 0; i < 8; ++i) out[i] = Widen(from[i]);
}
template <typename T>
struct Raw8 {
  T values[8] = {};
};
template <typename T>
Raw8<T> LoadOnce8(const T* from, Where where = Where::current()) {
  CheckAligned16(from, where);
  Raw8<T> raw;
  std::memcpy(raw.values, from, sizeof(raw));
  emu::CountStreamed(sizeof(raw));
  return raw;
}
template <typename T>
void Widen8(const Raw8<T>& raw, float (&out)[8]) {
  for (int i = 0; i < 8; ++i) out[i] = Widen(raw.values[i]);
}
template <int kBytes>
void LoadOnceWords(const uint8_t* from, uint32_t (&out)[(kBytes + 3) / 4], Where where = Where::current()) {
  static_assert(kBytes == 2 || kBytes == 4 || kBytes == 8 || kBytes == 16);
  if (reinterpret_cast<uintptr_t>(from) % kBytes != 0)
    emu::FailAt(where, "an access of " + std::to_string(kBytes) + " bytes of global memory is misaligned");
  out[0] = 0;
  std::memcpy(out, from, kBytes);
  emu::CountStreamed(kBytes);
}
template <typename T>
void LoadPairs(const T* from, uint32_t (&pairs)[4], Where where = Where::current()) {
  CheckAligned16(from, where);
  std::memcpy(pairs, from, sizeof(pairs));
}
inline uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  return out;
}
template <bool kSignedA, bool kSignedB>
int32_t DotBytes(uint32_t a, uint32_t b, int32_t sum) {
  const auto byte = [](uint32_t word, int i, bool is_signed) {
    const auto unsigned_byte = static_cast<int32_t>(word >> (8 * i) & 255);
    return is_signed && unsigned_byte > 127 ? unsigned_byte - 256 : unsigned_byte;
  };
  auto out = static_cast<uint32_t>(sum);  // the sum may overflow
  for (int i = 0; i < 4; ++i) out += static_cast<uint32_t>(byte(a, i, kSignedA) * byte(b, i, kSignedB));
  return static_cast<int32_t>(out);
}
template <typename T>
void Store8(T* to, const float (&in)[8], Where where = Where::current()) {
  CheckAligned16(to, where);
  for (int i = 0; i < 8; ++i) to[i] = Narrow<T>(in[i]);
}
template <typename T>
void Store2(T* to, float low, float high, Where where = Where::current()) {
  if (reinterpret_cast<uintptr_t>(to) % 4 != 0) emu::FailAt(where, "a 4-byte access of global memory is misaligned");
  to[0] = Narrow<T>(low);
  to[1] = Narrow<T>(high);
}
template <typename T>
void StorePairs(T* to, const uint32_t (&pairs)[4], Where where = Where::current()) {
  CheckAligned16(to, where);
  std::memcpy(to, pairs, sizeof(pairs));
}
inline void LoadShared4(Shared<float> from, float (&out)[4], Where where = Where::current()) {
  std::memcpy(out, from.Get(0, 4, where), sizeof(out));
}
inline void LoadShared4(Shared<uint32_t> from, uint32_t (&out)[4], Where where = Where::current()) {
  std::memcpy(out, from.Get(0, 4, where), sizeof(out));
}
inline void StoreShared4(Shared<float> to, float a, float b, float c, float d, Where where = Where::current()) {
  const float values[4] = {a, b, c, d};
  std::memcpy(to.Get(0, 4, where), values, sizeof(values));
}
inline void StoreShared4(Shared<uint32_t> to, uint32_t a, uint32_t b, uint32_t c, uint32_t d,
                         Where where = Where::current()) {
  const uint32_t values[4] = {a, b, c, d};
  std::memcpy(to.Get(0, 4, where), values, sizeof(values));
}

inline float Larger(float a, float b) { return a > b || a != a ? a : b; }
inline float Magnitude(float x) { return std::abs(x); }
inline float Exp(float x) { return std::exp(x); }
inline double Exp(double x) { return std::exp(x); }
inline float Exp2(float x) {
  const float power = std::exp2(x);
  return power < 0x1p-126f ? 0.0f : power;
}
inline float Quotient(float a, float b) { return a / b; }
inline float Log(float x) { return std::log(x); }
inline double Log(double x) { return std::log(x); }
inline float Tanh(float x) { return std::tanh(x); }
inline float Erf(float x) { return std::erf(x); }
inline float SquareRoot(float x) { return std::sqrt(x); }
inline double SquareRoot(double x) { return std::sqrt(x); }
inline uint32_t Bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
inline float Infinity() { return std::numeric_limits<float>::infinity(); }
inline float ReciprocalSqrt(float x) { return 1.0f / std::sqrt(x); }
inline void SinCos(double x, double* sine, double* cosine) {
  *sine = std::sin(x);
  *cosine = std::cos(x);
}

template <typename K>
void Launch(Stream stream, const Grid& grid, const typename K::Args& args, Where where = Where::current()) {
  emu::CheckReach(stream.device, args, where.function_name());
  const emu::Kernel kernel{.name = where.function_name(),
                           .threads = K::kThreads,
                           .most_shared_bytes = MostSharedBytes<K>(),
                           .hopper = ForHopper<K>(),
                           .waits = WaitsItself<K>(),
                           .allows_next = AllowsNextItself<K>(),
                           .cluster_blocks = ClusterBlocks<K>()};
  // A recorded launch keeps the arguments that it had.
  emu::Submit([grid, kernel, args] { emu::Launch(grid, kernel, [&args] { K::Run(args); }); });
}

}  // namespace shiftrt::gpu
