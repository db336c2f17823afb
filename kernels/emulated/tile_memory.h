// SPDX-License-Identifier: Apache-2.0
// The shared memory of a block as the copy engine and the tensor cores of compute capability 9.0 use it: mbarriers,
// named barriers, copies of boxes and products of warpgroups, all of which go on by themselves after they were started.
// Each is carried out as late as the kernel allows, and in two orders.
//
// These errors are reported with the line of the kernel: an operand or an access of a box before its copy has arrived;
// a copy over a tile that a product still reads; accumulators or operands in registers that change between a product
// and the wait for it, or between the fence and the product; a product without a fence, never committed or never waited
// for; shared memory that threads wrote and then a copy or a product uses without a fence; warps of a warpgroup that
// multiply different things; a copy or a store of other bytes than an mbarrier expects, or that nobody waits for; a
// wait for stores of other blocks that does not make them visible; more arrivals than an mbarrier is for; an mbarrier
// that is used before it was made; a tile that is not aligned to the swizzle; a named barrier left with threads that
// arrived. A wait for the wrong phase ends in one of these, or never.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/tiles.h"
#include "kernels/emulated/machine.h"

namespace shiftrt::emu {

// The arguments that MapBoxes() was given.
gpu::BoxEncoding DecodeBoxes(const gpu::BoxMap& map);

// Bytes of boxes that launches have copied to shared memory since the start of the program.
int64_t BoxBytes();

// A lane's part of a product of a warpgroup. d += a b with d of `columns` columns and a of 16.
struct WarpgroupProduct {
  float* d = nullptr;
  const uint32_t* a = nullptr;  // four registers, or null: a_tile, by rows
  uint64_t a_tile = 0, b_tile = 0;
  bool b_transposed = false;  // by columns
  int columns = 0;
  bool add = true;
  float (*widen)(uint16_t bits) = nullptr;
};

class TileMemory {
 public:
  TileMemory(std::byte* shared, int bytes, int threads, bool descending);

  void InitMbarrier(const void* at, int arrivals, const Where& where);
  void FenceMbarriers();
  void Arrive(const void* at, int64_t bytes, const Where& where);  // bytes: that it expects from now on
  // `cluster`: what other blocks have stored is visible after the wait, too.
  void Wait(const void* at, uint32_t parity, bool cluster, const Where& where);
  // A store of another block of the cluster, which arrives at the mbarrier.
  void TakeStore(std::byte* to, float value, const void* mbarrier, const Where& where);

  void CopyBox(std::byte* to, const gpu::BoxMap& map, int row, int column, const void* mbarrier, const Where& where);
  // Carries out one of the copies that were started, or all stores of other blocks. False: there is none.
  bool LandOne();

  // An access of the thread that is running, which may be a write.
  void Touch(const void* at, int bytes, const Where& where);
  void FenceAsync();

  void ArriveNamed(int id, int threads, bool wait, const Where& where);

  // The following are called by the last lane of a warp to arrive, for all its lanes in order.
  void Multiply(std::span<const WarpgroupProduct* const> lanes, const Where& where);
  // The registers that the lanes name: arrays of `count` words of which `accumulators` says what they are for.
  void FenceRegisters(std::span<const Participant> lanes, size_t count, bool accumulators);
  void CommitProducts();
  void WaitProducts(int pending);
  void RequireComplete(std::span<const Participant> lanes, const Where& where);

  uint32_t AddressOf(const void* at, const Where& where) const;
  // When the running thread has exited, and when all have.
  void CheckThread() const;
  void CheckBlock(const std::string& kernel) const;

 private:
  struct MbarrierState {
    int arrivals = 0, missing = 0;
    int64_t expected_bytes = 0, flying_bytes = 0;
    uint32_t phase = 0;
    int made_by = 0;
    bool fenced = false;
    bool stored_to = false;  // by other blocks
  };
  struct FlyingStore {
    std::byte* to;
    float value;
    uint32_t mbarrier;
    Where where;
  };
  struct FlyingCopy {
    std::byte* to;
    gpu::BoxEncoding from;
    int row, column;
    uint32_t mbarrier;
    Where where;
  };
  // A record of the 16 bytes that a thread may have written since its last fence, and their contents before.
  struct Touched {
    std::array<std::byte, 16> before;
    Where where;
  };
  struct NamedBarrier {
    int arrived = 0, threads = 0;
    int64_t generation = 0;
    Where where;
  };
  // Registers of a warp, found by the first lane's array.
  struct Registers {
    std::array<void*, 32> lanes = {};
    size_t count = 0;  // words of each
    bool fenced = false;
    int products = 0;              // incomplete products
    std::vector<uint32_t> values;  // (lanes, count); while products are not complete: before them
  };
  struct Operand {
    std::vector<uint32_t> addresses;  // addresses of 16-bit elements; none if they are in registers
    std::vector<uint16_t> bits;
  };
  struct Product {
    std::vector<WarpgroupProduct> lanes;
    Operand a, b;  // (16, 16) and (16, columns)
    Where where;
  };
  struct WarpProducts {
    std::map<const void*, Registers> registers;
    int64_t started = 0;                       // since the start of the block
    std::vector<Product> open;                 // not committed
    std::vector<std::vector<Product>> groups;  // committed, the oldest first
  };
  // The products that the warps of a warpgroup have issued, in order.
  struct Issued {
    uint64_t a_tile, b_tile;
    int columns;
    Where where;
  };

  std::byte* Unit(int unit) const;
  int OffsetOf(const void* at, int bytes, const Where& where) const;
  MbarrierState& Find(const void* at, const Where& where);
  static void Advance(MbarrierState& mbarrier);
  // An access by copies or products of 16-byte units first .. first + count - 1.
  void CheckAsync(int first, int count, const Where& where) const;
  Operand ReadRows(uint64_t tile, int first_row, int rows, const Where& where);
  Operand ReadColumns(uint64_t tile, int columns, const Where& where);
  Operand Read(std::vector<uint32_t> addresses, const Where& where);
  std::vector<uint16_t> BitsAt(const std::vector<uint32_t>& addresses) const;
  void AddReaders(const Operand& operand, int count);
  static void CheckDescriptor(uint64_t tile, bool leading, const Where& where);
  void CheckRegisters(WarpProducts& warp, const WarpgroupProduct& first, const Where& where);
  void Complete(WarpProducts& warp, const Product& product);
  static void HandOver(Registers& d, const Where& where);

  std::byte* const shared_;
  const int bytes_;
  const bool descending_;
  std::map<uint32_t, MbarrierState> mbarriers_;
  std::map<int, NamedBarrier> named_;
  std::vector<FlyingCopy> flying_;
  std::vector<FlyingStore> flying_stores_;
  std::map<std::pair<int, int>, Touched> touched_;  // by unit and thread
  // Per unit of 16 bytes: whether a copy is on its way there, whether one ever arrived or a thread may have written,
  // and how many products of warps read it.
  std::vector<bool> arriving_, written_;
  std::vector<int> readers_;
  std::vector<WarpProducts> warps_;
  std::vector<std::vector<Issued>> issued_;  // per warpgroup
};

}  // namespace shiftrt::emu
