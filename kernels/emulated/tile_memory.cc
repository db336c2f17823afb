// SPDX-License-Identifier: Apache-2.0
#include "kernels/emulated/tile_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <string>

namespace shiftrt::emu {

namespace {

constexpr int kUnit = 16, kWarp = 32, kGroupWarps = 4, kWarpRows = 16, kDepth = 16;
constexpr uint32_t kPoison = 0xffffffffu;

int64_t box_bytes = 0;

std::string Line(const Where& where) {
  const std::string file = where.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line());
}
std::string Count(int64_t n) { return std::to_string(n); }

int WarpOfThread() { return CurrentThread() / kWarp; }

// A field of a descriptor, in bytes.
uint32_t Field(uint64_t descriptor, int bit) { return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4; }

// Row and column of register i of a lane in the 16 rows of its warp.
int RowOf(int lane, int i) { return lane / 4 + 8 * (i / 2 % 2); }
int ColumnOf(int lane, int i) { return 8 * (i / 4) + 2 * (lane % 4) + i % 2; }
// The place in a (16, 16) operand of half of register r of a lane.
int OperandAt(int lane, int r, int half) {
  return (lane / 4 + 8 * (r % 2)) * kDepth + 2 * (lane % 4) + half + 8 * (r / 2);
}
uint16_t Half(uint32_t word, int half) { return static_cast<uint16_t>(word >> 16 * half); }

}  // namespace

int64_t BoxBytes() { return box_bytes; }

gpu::BoxEncoding DecodeBoxes(const gpu::BoxMap& map) {
  gpu::BoxEncoding encoding;
  std::memcpy(&encoding, map.words, sizeof(encoding));
  return encoding;
}

TileMemory::TileMemory(std::byte* shared, int bytes, int threads, bool descending)
    : shared_(shared),
      bytes_(bytes),
      descending_(descending),
      arriving_(bytes / kUnit),
      written_(bytes / kUnit),
      readers_(bytes / kUnit),
      warps_(threads / kWarp),
      issued_(threads / kWarp / kGroupWarps) {}

std::byte* TileMemory::Unit(int unit) const { return shared_ + static_cast<int64_t>(unit) * kUnit; }
int TileMemory::OffsetOf(const void* at, int bytes, const Where& where) const {
  const auto offset = static_cast<const std::byte*>(at) - shared_;
  if (offset < 0 || offset + bytes > bytes_) FailAt(where, "an address outside the block's shared memory");
  return static_cast<int>(offset);
}
uint32_t TileMemory::AddressOf(const void* at, const Where& where) const {
  return static_cast<uint32_t>(OffsetOf(at, 1, where));
}

// --- mbarriers and named barriers ---

TileMemory::MbarrierState& TileMemory::Find(const void* at, const Where& where) {
  const auto found = mbarriers_.find(AddressOf(at, where));
  if (found == mbarriers_.end()) FailAt(where, "an mbarrier that was not initialised");
  return found->second;
}

void TileMemory::InitMbarrier(const void* at, int arrivals, const Where& where) {
  if (arrivals <= 0) FailAt(where, "an mbarrier for " + Count(arrivals) + " arrivals");
  if (!mbarriers_.emplace(AddressOf(at, where), MbarrierState{arrivals, arrivals, 0, 0, 0, CurrentThread()}).second)
    FailAt(where, "an mbarrier is initialised twice");
}
void TileMemory::FenceMbarriers() {
  for (auto& [address, mbarrier] : mbarriers_) mbarrier.fenced |= mbarrier.made_by == CurrentThread();
}

void TileMemory::Advance(MbarrierState& mbarrier) {
  if (mbarrier.missing > 0 || mbarrier.expected_bytes > 0) return;
  ++mbarrier.phase;
  mbarrier.missing = mbarrier.arrivals;
}

void TileMemory::Arrive(const void* at, int64_t bytes, const Where& where) {
  MbarrierState& mbarrier = Find(at, where);
  if (mbarrier.missing == 0)
    FailAt(where, "one arrival too many in a phase of an mbarrier for " + Count(mbarrier.arrivals));
  mbarrier.expected_bytes += bytes;
  --mbarrier.missing;
  Advance(mbarrier);
}

void TileMemory::Wait(const void* at, uint32_t parity, bool cluster, const Where& where) {
  const MbarrierState* const mbarrier = &Find(at, where);
  WaitUntil({[](const void* object, int64_t wanted) {
               return static_cast<int64_t>(static_cast<const MbarrierState*>(object)->phase % 2) != wanted;
             },
             [](const void* object, int64_t wanted) {
               const auto& waited = *static_cast<const MbarrierState*>(object);
               return "waits for a phase of parity " + Count(wanted) + " of an mbarrier in phase " +
                      Count(waited.phase) + ", which misses " + Count(waited.missing) + " arrivals and " +
                      Count(waited.expected_bytes) + " bytes";
             },
             mbarrier, parity},
            where);
  if (mbarrier->stored_to && !cluster) FailAt(where, "stores of other blocks are not visible after WaitMbarrier");
}

void TileMemory::TakeStore(std::byte* to, float value, const void* mbarrier, const Where& where) {
  MbarrierState& barrier = Find(mbarrier, where);
  constexpr int64_t kBytes = sizeof(value);
  if (!barrier.fenced) FailAt(where, "a store arrives at an mbarrier whose making was not fenced");
  if (barrier.flying_bytes + kBytes > barrier.expected_bytes)
    FailAt(where, "a store arrives at an mbarrier that expects " +
                      Count(barrier.expected_bytes - barrier.flying_bytes) + " bytes");
  barrier.flying_bytes += kBytes;
  barrier.stored_to = true;
  std::memset(to, 0xff, kBytes);
  flying_stores_.push_back({to, value, AddressOf(mbarrier, where), where});
}

void TileMemory::ArriveNamed(int id, int threads, bool wait, const Where& where) {
  if (id < 1 || id > 15 || threads <= 0 || threads % kWarp != 0)
    FailAt(where,
           "named barrier " + Count(id) + " for " + Count(threads) + " threads; the GPU has 1 to 15, for whole warps");
  NamedBarrier& barrier = named_[id];
  if (barrier.arrived > 0 && barrier.threads != threads)
    FailAt(where, "named barrier " + Count(id) + " is for " + Count(threads) + " threads here and for " +
                      Count(barrier.threads) + " at " + Line(barrier.where));
  barrier.threads = threads;
  barrier.where = where;
  const int64_t generation = barrier.generation;
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  if (!wait) return;
  WaitUntil({[](const void* object, int64_t before) {
               return static_cast<const NamedBarrier*>(object)->generation != before;
             },
             [](const void* object, int64_t) {
               const auto& waited = *static_cast<const NamedBarrier*>(object);
               return "waits at a named barrier where " + Count(waited.arrived) + " of " + Count(waited.threads) +
                      " threads have arrived";
             },
             &barrier, generation},
            where);
}

// --- Accesses by threads, and copies ---

void TileMemory::Touch(const void* at, int bytes, const Where& where) {
  const int offset = OffsetOf(at, bytes, where);
  for (int unit = offset / kUnit; unit <= (offset + bytes - 1) / kUnit; ++unit) {
    if (arriving_[unit]) FailAt(where, "an access of a box before its copy has arrived");
    Touched touched{{}, where};
    std::memcpy(touched.before.data(), Unit(unit), kUnit);
    touched_.emplace(std::pair(unit, CurrentThread()), touched);
    written_[unit] = true;
  }
}

// Orders the writes of this thread, and those that it has seen of other threads.
void TileMemory::FenceAsync() {
  std::set<int> units;
  for (const auto& [at, touched] : touched_)
    if (at.second == CurrentThread()) units.insert(at.first);
  for (auto& [at, touched] : touched_)
    if (units.contains(at.first)) std::memcpy(touched.before.data(), Unit(at.first), kUnit);
  std::erase_if(touched_, [](const auto& entry) { return entry.first.second == CurrentThread(); });
}

void TileMemory::CheckAsync(int first, int count, const Where& where) const {
  if (first < 0 || (first + count) * kUnit > bytes_)
    FailAt(where, "a tile reaches byte " + Count((first + count) * kUnit - 1) + " of " + Count(bytes_) +
                      " bytes of shared memory");
  for (int unit = first; unit < first + count; ++unit)
    if (arriving_[unit]) FailAt(where, "a tile is used before its copy has arrived");
  if (touched_.empty()) return;
  const auto end = touched_.lower_bound({first + count, 0});
  for (auto at = touched_.lower_bound({first, 0}); at != end; ++at)
    if (std::memcmp(at->second.before.data(), Unit(at->first.first), kUnit) != 0)
      FailAt(where, "a tile that thread " + Count(at->first.second) + " wrote at " + Line(at->second.where) +
                        " and did not fence");
}

void TileMemory::CopyBox(std::byte* to, const gpu::BoxMap& map, int row, int column, const void* mbarrier,
                         const Where& where) {
  const gpu::BoxEncoding from = DecodeBoxes(map);
  const int offset = OffsetOf(to, static_cast<int>(from.box[1]) * gpu::kBoxRowBytes, where);
  const int64_t bytes = static_cast<int64_t>(from.box[1]) * gpu::kBoxRowBytes;
  if (offset % gpu::kBoxAlignment != 0)
    FailAt(where, "a box at byte " + Count(offset) + " of shared memory, which is not a multiple of 1024");
  MbarrierState& barrier = Find(mbarrier, where);
  if (!barrier.fenced) FailAt(where, "a copy arrives at an mbarrier whose making was not fenced");
  if (barrier.flying_bytes + bytes > barrier.expected_bytes)
    FailAt(where, "a copy of " + Count(bytes) + " bytes arrives at an mbarrier that expects " +
                      Count(barrier.expected_bytes - barrier.flying_bytes));
  const int first = offset / kUnit, units = static_cast<int>(bytes) / kUnit;
  CheckAsync(first, units, where);
  for (int unit = first; unit < first + units; ++unit) {
    if (readers_[unit] > 0) FailAt(where, "a copy overwrites a tile that a product still reads");
    arriving_[unit] = true;
  }
  touched_.erase(touched_.lower_bound({first, 0}), touched_.lower_bound({first + units, 0}));
  barrier.flying_bytes += bytes;
  if (!descending_) box_bytes += bytes;  // each launch runs twice
  std::memset(to, 0xff, static_cast<size_t>(bytes));
  flying_.push_back({to, from, row, column, AddressOf(mbarrier, where), where});
}

bool TileMemory::LandOne() {
  if (!flying_stores_.empty()) {
    for (const FlyingStore& store : std::exchange(flying_stores_, {})) {
      std::memcpy(store.to, &store.value, sizeof(store.value));
      MbarrierState& barrier = mbarriers_.at(store.mbarrier);
      barrier.flying_bytes -= sizeof(store.value);
      barrier.expected_bytes -= sizeof(store.value);
      Advance(barrier);
    }
    return true;
  }
  if (flying_.empty()) return false;
  const auto chosen = descending_ ? flying_.end() - 1 : flying_.begin();
  const FlyingCopy copy = *chosen;
  flying_.erase(chosen);
  const auto [columns, rows] = copy.from.sizes;
  const uint32_t begin = static_cast<uint32_t>(copy.to - shared_);
  const int64_t bytes = static_cast<int64_t>(copy.from.box[1]) * gpu::kBoxRowBytes;
  for (int64_t i = 0; i < bytes; i += 2) {
    const int64_t row = copy.row + i / gpu::kBoxRowBytes, column = copy.column + i % gpu::kBoxRowBytes / 2;
    std::byte* const to = shared_ + gpu::Swizzled(begin + static_cast<uint32_t>(i));
    const bool inside =
        row >= 0 && column >= 0 && row < static_cast<int64_t>(rows) && column < static_cast<int64_t>(columns);
    if (inside) {
      std::memcpy(
          to,
          static_cast<const std::byte*>(copy.from.data) + row * static_cast<int64_t>(copy.from.row_bytes) + 2 * column,
          2);
    } else {
      std::memset(to, 0, 2);
    }
  }
  for (int unit = static_cast<int>(begin) / kUnit; unit < (begin + bytes) / kUnit; ++unit) {
    arriving_[unit] = false;
    written_[unit] = true;
  }
  MbarrierState& barrier = mbarriers_.at(copy.mbarrier);
  barrier.flying_bytes -= bytes;
  barrier.expected_bytes -= bytes;
  Advance(barrier);
  return true;
}

// --- Products ---

void TileMemory::CheckDescriptor(uint64_t tile, bool leading, const Where& where) {
  constexpr uint64_t kUnused = ~(uint64_t{3} << 62 | uint64_t{0x3fff} << 32 | uint64_t{0x3fff} << 16 | 0x3fff);
  if (tile >> 62 != 1 || (tile & kUnused) != 0) FailAt(where, "a descriptor of another swizzle than 128 bytes");
  // The hardware applies the swizzle to addresses, so boxes must start where the pattern starts. An operand may start
  // at a later 16-byte piece of a first row.
  if (Field(tile, 0) % gpu::kBoxAlignment >= gpu::kBoxRowBytes || Field(tile, 32) % gpu::kBoxAlignment != 0 ||
      (leading && Field(tile, 16) % gpu::kBoxAlignment != 0))
    FailAt(where, "a tile at byte " + Count(Field(tile, 0)) + " of shared memory is not aligned to its swizzle");
}

std::vector<uint16_t> TileMemory::BitsAt(const std::vector<uint32_t>& addresses) const {
  std::vector<uint16_t> bits(addresses.size());
  for (size_t i = 0; i < addresses.size(); ++i) std::memcpy(&bits[i], shared_ + addresses[i], 2);
  return bits;
}

TileMemory::Operand TileMemory::Read(std::vector<uint32_t> addresses, const Where& where) {
  int checked = -1;
  for (uint32_t& address : addresses) {
    address = gpu::Swizzled(address);
    const int unit = static_cast<int>(address) / kUnit;
    if (unit != checked) CheckAsync(unit, 1, where);
    if (!written_[unit]) FailAt(where, "a tile is used before anything was copied or written to it");
    checked = unit;
  }
  Operand operand{std::move(addresses), {}};
  operand.bits = BitsAt(operand.addresses);
  AddReaders(operand, 1);
  return operand;
}

// By rows ("K-major"): eight rows of 128 bytes, then the next eight at the stride. Row `first_row` + i, column k is
// element 16 i + k.
TileMemory::Operand TileMemory::ReadRows(uint64_t tile, int first_row, int rows, const Where& where) {
  CheckDescriptor(tile, false, where);
  std::vector<uint32_t> addresses;
  for (int row = first_row; row < first_row + rows; ++row)
    for (int k = 0; k < kDepth; ++k)
      addresses.push_back(Field(tile, 0) + row / 8 * Field(tile, 32) + row % 8 * gpu::kBoxRowBytes + 2 * k);
  return Read(std::move(addresses), where);
}

// By columns ("MN-major"): 64 columns of eight rows, the next 64 at the leading offset, the next eight rows at the
// stride. Column j, row k is element 16 j + k.
TileMemory::Operand TileMemory::ReadColumns(uint64_t tile, int columns, const Where& where) {
  CheckDescriptor(tile, columns > gpu::kBoxColumns, where);
  std::vector<uint32_t> addresses;
  for (int column = 0; column < columns; ++column)
    for (int k = 0; k < kDepth; ++k)
      addresses.push_back(Field(tile, 0) + column / gpu::kBoxColumns * Field(tile, 16) +
                          2 * (column % gpu::kBoxColumns) + k / 8 * Field(tile, 32) + k % 8 * gpu::kBoxRowBytes);
  return Read(std::move(addresses), where);
}

void TileMemory::AddReaders(const Operand& operand, int count) {
  for (const uint32_t address : operand.addresses) readers_[address / kUnit] += count;
}

// Accumulators must be fenced, and unchanged since. They are poisoned until the product is waited for.
void TileMemory::CheckRegisters(WarpProducts& warp, const WarpgroupProduct& first, const Where& where) {
  const auto found = warp.registers.find(first.d);
  if (found == warp.registers.end() || !found->second.fenced)
    FailAt(where, "a product without a fence after the last access of its accumulators");
  Registers& d = found->second;
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto* const now = static_cast<const uint32_t*>(d.lanes[lane]);
    for (size_t i = 0; i < d.count; ++i) {
      if (d.products > 0 && now[i] != kPoison)
        FailAt(where, "accumulators are written before the product with them is waited for");
      if (d.products == 0 && first.add && now[i] != d.values[lane * d.count + i])
        FailAt(where, "accumulators are written between the fence and the product");
    }
  }
  ++d.products;
  for (void* const lane : d.lanes) std::memset(lane, 0xff, d.count * sizeof(float));
}

void TileMemory::Multiply(std::span<const WarpgroupProduct* const> lanes, const Where& where) {
  const int index = WarpOfThread(), rank = index % kGroupWarps;
  WarpProducts& warp = warps_[index];
  const WarpgroupProduct& first = *lanes[0];
  if (index / kGroupWarps >= static_cast<int>(issued_.size()))
    FailAt(where, "a product of a warpgroup of fewer than four warps");
  std::vector<Issued>& issued = issued_[index / kGroupWarps];
  if (warp.started == static_cast<int64_t>(issued.size()))
    issued.push_back({first.a_tile, first.b_tile, first.columns, where});
  const Issued& theirs = issued[warp.started++];
  for (const WarpgroupProduct* const lane : lanes)
    if (lane->a_tile != theirs.a_tile || lane->b_tile != theirs.b_tile || lane->columns != theirs.columns)
      FailAt(where, "threads of a warpgroup multiply other tiles than at " + Line(theirs.where));
  CheckRegisters(warp, first, where);

  Product product;
  product.where = where;
  for (const WarpgroupProduct* const lane : lanes) product.lanes.push_back(*lane);
  if (first.a == nullptr) {
    product.a = ReadRows(first.a_tile, kWarpRows * rank, kWarpRows, where);
  } else {
    // The array that the fence named is found by the first lane's address.
    const auto above = warp.registers.upper_bound(first.a);
    const Registers* const fenced = above == warp.registers.begin() ? nullptr : &std::prev(above)->second;
    const auto at = fenced == nullptr ? -1 : first.a - static_cast<const uint32_t*>(fenced->lanes[0]);
    if (at < 0 || at + 4 > static_cast<int64_t>(fenced->count))
      FailAt(where, "a product without a fence after its operand in registers");
    product.a.bits.resize(size_t{kWarpRows} * kDepth);
    for (int lane = 0; lane < kWarp; ++lane) {
      for (int r = 0; r < 4; ++r) {
        const uint32_t word = lanes[lane]->a[r];
        if (word != fenced->values[lane * fenced->count + at + r])
          FailAt(where, "an operand in registers is written between the fence and the product");
        for (int half = 0; half < 2; ++half) product.a.bits[OperandAt(lane, r, half)] = Half(word, half);
      }
    }
  }
  product.b = first.b_transposed ? ReadColumns(first.b_tile, first.columns, where)
                                 : ReadRows(first.b_tile, 0, first.columns, where);
  warp.open.push_back(std::move(product));
}

void TileMemory::FenceRegisters(std::span<const Participant> lanes, size_t count, bool accumulators) {
  Registers& registers = warps_[WarpOfThread()].registers[lanes[0].slot];
  if (registers.products > 0) return;  // the products go on, and more are added to them
  registers.count = count;
  registers.fenced = accumulators;
  registers.values.resize(lanes.size() * count);
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    registers.lanes[lane] = lanes[lane].slot;
    std::memcpy(&registers.values[lane * count], lanes[lane].slot, count * sizeof(uint32_t));
  }
}

void TileMemory::CommitProducts() {
  WarpProducts& warp = warps_[WarpOfThread()];
  warp.groups.push_back(std::move(warp.open));
  warp.open.clear();
}

// Rounds to float32 once per product; the hardware keeps at least this precision while it adds the sixteen terms.
void TileMemory::Complete(WarpProducts& warp, const Product& product) {
  const WarpgroupProduct& first = product.lanes[0];
  const size_t columns = first.columns;
  for (const Operand* const operand : {&product.a, &product.b}) {
    AddReaders(*operand, -1);
    if (!operand->addresses.empty() && BitsAt(operand->addresses) != operand->bits)
      FailAt(product.where, "a tile changes while the product reads it");
  }
  Registers& d = warp.registers.at(first.d);
  std::vector<double> sums(kWarpRows * columns);
  const auto for_each = [&](const auto& body) {  // body(register, sum)
    for (int lane = 0; lane < kWarp; ++lane)
      for (size_t i = 0; i < d.count; ++i)
        body(d.values[lane * d.count + i],
             sums[RowOf(lane, static_cast<int>(i)) * columns + ColumnOf(lane, static_cast<int>(i))]);
  };
  if (first.add) for_each([](uint32_t word, double& sum) { sum = std::bit_cast<float>(word); });
  std::vector<double> b(kDepth * columns);
  for (size_t column = 0; column < columns; ++column)
    for (int k = 0; k < kDepth; ++k) b[k * columns + column] = first.widen(product.b.bits[column * kDepth + k]);
  for (int row = 0; row < kWarpRows; ++row)
    for (int k = 0; k < kDepth; ++k) {
      const double a = first.widen(product.a.bits[row * kDepth + k]);
      for (size_t column = 0; column < columns; ++column) sums[row * columns + column] += a * b[k * columns + column];
    }
  for_each([](uint32_t& word, double sum) { word = std::bit_cast<uint32_t>(static_cast<float>(sum)); });
  for (int lane = 0; lane < kWarp && first.a != nullptr; ++lane)
    for (int r = 0; r < 4; ++r)
      for (int half = 0; half < 2; ++half)
        if (Half(product.lanes[lane].a[r], half) != product.a.bits[OperandAt(lane, r, half)])
          FailAt(product.where, "an operand in registers is written before the product is waited for");
  if (--d.products == 0) HandOver(d, product.where);
}

// The thread may use the accumulators again.
void TileMemory::HandOver(Registers& d, const Where& where) {
  d.fenced = false;
  for (int lane = 0; lane < kWarp; ++lane) {
    auto* const now = static_cast<uint32_t*>(d.lanes[lane]);
    if (std::any_of(now, now + d.count, [](uint32_t word) { return word != kPoison; }))
      FailAt(where, "accumulators are written before the product with them is waited for");
    std::memcpy(now, &d.values[lane * d.count], d.count * sizeof(uint32_t));
  }
}

void TileMemory::WaitProducts(int pending) {
  WarpProducts& warp = warps_[WarpOfThread()];
  while (static_cast<int>(warp.groups.size()) > pending) {
    const std::vector<Product> group = std::move(warp.groups.front());
    warp.groups.erase(warp.groups.begin());
    for (const Product& product : group) Complete(warp, product);
  }
}

void TileMemory::RequireComplete(std::span<const Participant> lanes, const Where& where) {
  const WarpProducts& warp = warps_[WarpOfThread()];
  const auto found = warp.registers.find(lanes[0].slot);
  if (found != warp.registers.end() && found->second.products > 0)
    FailAt(where, "a wait that leaves out the product with these accumulators");
}

// --- The end ---

void TileMemory::CheckThread() const {
  const WarpProducts& warp = warps_[WarpOfThread()];
  if (!warp.open.empty()) FailAt(warp.open[0].where, "a product is never committed");
  for (const std::vector<Product>& group : warp.groups)
    if (!group.empty()) FailAt(group[0].where, "a product is never waited for");
}

void TileMemory::CheckBlock(const std::string& kernel) const {
  if (!flying_.empty())
    throw KernelError(kernel + ": a copy of a box that nobody waits for [" + Line(flying_[0].where) + "]");
  if (!flying_stores_.empty())
    throw KernelError(kernel + ": a store to a block of the cluster that nobody waits for [" +
                      Line(flying_stores_[0].where) + "]");
  for (const auto& [id, barrier] : named_)
    if (barrier.arrived > 0)
      throw KernelError(kernel + ": named barrier " + Count(id) + " is left with " + Count(barrier.arrived) +
                        " threads that arrived [" + Line(barrier.where) + "]");
  for (size_t warp = 0; warp < warps_.size(); ++warp)
    if (warp / kGroupWarps < issued_.size() &&
        warps_[warp].started != static_cast<int64_t>(issued_[warp / kGroupWarps].size()))
      throw KernelError(kernel + ": warp " + Count(static_cast<int64_t>(warp)) +
                        " leaves out a product of its warpgroup [" +
                        Line(issued_[warp / kGroupWarps][warps_[warp].started].where) + "]");
}

}  // namespace shiftrt::emu

namespace shiftrt::gpu {

// A map is what it was made from.
BoxMap MapBoxes(const BoxEncoding& encoding) {
  BoxMap map{};
  static_assert(sizeof(encoding) <= sizeof(map));
  std::memcpy(map.words, &encoding, sizeof(encoding));
  return map;
}

}  // namespace shiftrt::gpu
