// SPDX-License-Identifier: Apache-2.0
// The functions of hopper.cuh on the emulator, with the same names and meanings, and with the checks of tile_memory.h.
// Products read their operands through the same descriptors as the hardware does.
#pragma once

#include <array>
#include <type_traits>
#include <vector>

#include "kernels/emulated/tile_memory.h"

namespace shiftrt::gpu {

inline const void* PlaceOf(Shared<Mbarrier> barrier, const Where& where) { return barrier.Place(0, 1, where); }

inline void InitMbarrier(Shared<Mbarrier> barrier, int arrivals, Where where = Where::current()) {
  emu::Tiles(where).InitMbarrier(PlaceOf(barrier, where), arrivals, where);
}
inline void FenceMbarriers(Where where = Where::current()) { emu::Tiles(where).FenceMbarriers(); }
inline void Arrive(Shared<Mbarrier> barrier, Where where = Where::current()) {
  emu::Tiles(where).Arrive(PlaceOf(barrier, where), 0, where);
}
inline void ArriveExpecting(Shared<Mbarrier> barrier, int bytes, Where where = Where::current()) {
  emu::Tiles(where).Arrive(PlaceOf(barrier, where), bytes, where);
}
inline void WaitMbarrier(Shared<Mbarrier> barrier, uint32_t parity, Where where = Where::current()) {
  emu::Tiles(where).Wait(PlaceOf(barrier, where), parity, false, where);
}
inline void WaitForCluster(Shared<Mbarrier> barrier, uint32_t parity, Where where = Where::current()) {
  emu::Tiles(where).Wait(PlaceOf(barrier, where), parity, true, where);
}

template <typename T>
void CopyBox(Shared<T> to, const BoxMap& map, int row, int column, Shared<Mbarrier> barrier,
             Where where = Where::current()) {
  const auto rows = static_cast<int>(emu::DecodeBoxes(map).box[1]);
  emu::Tiles(where).CopyBox(reinterpret_cast<std::byte*>(to.Place(0, rows * kBoxColumns, where)), map, row, column,
                            PlaceOf(barrier, where), where);
}
inline void FenceAsync(Where where = Where::current()) { emu::Tiles(where).FenceAsync(); }
template <typename T>
void ClearShared16(Shared<T> to, Where where = Where::current()) {
  std::memset(static_cast<void*>(to.Get(0, 16 / sizeof(T), where)), 0, 16);
}

inline void SyncSome(int id, int threads, Where where = Where::current()) {
  emu::Tiles(where).ArriveNamed(id, threads, true, where);
}
inline void ArriveSome(int id, int threads, Where where = Where::current()) {
  emu::Tiles(where).ArriveNamed(id, threads, false, where);
}

// The emulator has as many registers as a thread wants.
template <int kCount>
void GiveRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}
template <int kCount>
void TakeRegisters() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
}
template <typename... Registers>
void Pin(Registers&...) {}

template <typename T>
uint64_t RowsTile(Shared<T> at, Where where = Where::current()) {
  return DescribeRows(emu::Tiles(where).AddressOf(at.Place(0, 8, where), where));
}
template <typename T>
uint64_t ColumnsTile(Shared<T> at, int box_elements, Where where = Where::current()) {
  return DescribeColumns(emu::Tiles(where).AddressOf(at.Place(0, 8, where), where),
                         box_elements * static_cast<int>(sizeof(T)));
}

// Calls the emulator for one array of registers of all lanes of a warp.
template <bool kFence, typename Registers>
void Name(Registers& registers, const Where& where) {
  using Element = std::remove_all_extents_t<Registers>;
  emu::WaitWarp({"FenceProducts or WaitProducts", kFullWarp, &registers,
                 [](const std::vector<emu::Participant>& lanes, const Where& where) {
                   if (kFence) {
                     emu::Tiles(where).FenceRegisters(lanes, sizeof(Registers) / sizeof(uint32_t),
                                                      std::is_same_v<Element, float>);
                   } else {
                     emu::Tiles(where).RequireComplete(lanes, where);
                   }
                 }},
                where);
}
// For up to three arrays, because the line of the caller cannot follow any number of arguments.
template <typename A>
void FenceProducts(A& a, Where where = Where::current()) {
  Name<true>(a, where);
}
template <typename A, typename B>
void FenceProducts(A& a, B& b, Where where = Where::current()) {
  Name<true>(a, where), Name<true>(b, where);
}
template <typename A, typename B, typename C>
void FenceProducts(A& a, B& b, C& c, Where where = Where::current()) {
  Name<true>(a, where), Name<true>(b, where), Name<true>(c, where);
}

inline void CommitProducts(Where where = Where::current()) {
  emu::WaitWarp({"CommitProducts", kFullWarp, nullptr,
                 [](const auto&, const Where& where) { emu::Tiles(where).CommitProducts(); }},
                where);
}
template <int kPending>
void WaitProducts(Where where = Where::current()) {
  emu::WaitWarp({"WaitProducts", kFullWarp, nullptr,
                 [](const auto&, const Where& where) { emu::Tiles(where).WaitProducts(kPending); }},
                where);
}
template <int kPending, typename A>
void WaitProducts(A& a, Where where = Where::current()) {
  WaitProducts<kPending>(where);
  Name<false>(a, where);
}
template <int kPending, typename A, typename B>
void WaitProducts(A& a, B& b, Where where = Where::current()) {
  WaitProducts<kPending>(where);
  Name<false>(a, where), Name<false>(b, where);
}

template <typename T>
float WidenBits(uint16_t bits) {
  T value;
  value.bits = bits;
  return Widen(value);
}
inline void Multiply(emu::WarpgroupProduct product, const Where& where) {
  emu::WaitWarp({"a product of a warpgroup", kFullWarp, &product,
                 [](const std::vector<emu::Participant>& lanes, const Where& where) {
                   std::array<const emu::WarpgroupProduct*, kWarpSize> products;
                   for (int lane = 0; lane < kWarpSize; ++lane)
                     products[lane] = static_cast<const emu::WarpgroupProduct*>(lanes[lane].slot);
                   emu::Tiles(where).Multiply(products, where);
                 }},
                where);
}
template <typename T>
void MultiplyTiles(float (&d)[64], uint64_t a, uint64_t b, bool add, Where where = Where::current()) {
  Multiply({d, nullptr, a, b, false, 128, add, WidenBits<T>}, where);
}
template <typename T, int kCount>
void MultiplyRegisters(float (&d)[kCount], const uint32_t (&a)[4], uint64_t b, Where where = Where::current()) {
  static_assert(kCount == 32 || kCount == 64);
  Multiply({d, a, 0, b, true, 2 * kCount, true, WidenBits<T>}, where);
}

inline int BlockOfCluster(Where where = Where::current()) { return emu::CurrentRank(where); }
inline void SyncCluster(Where where = Where::current()) { emu::WaitCluster(where); }
inline void StoreToBlock(Shared<float> at, int block, float value, Shared<Mbarrier> barrier,
                         Where where = Where::current()) {
  emu::StoreToBlock(reinterpret_cast<std::byte*>(at.Place(0, 1, where)), block, value, PlaceOf(barrier, where), where);
}

template <typename K>
bool ClusterFits(Stream stream) {
  return RunsHopperKernels(stream.device);
}

}  // namespace shiftrt::gpu
