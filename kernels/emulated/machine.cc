// SPDX-License-Identifier: Apache-2.0
#include "kernels/emulated/machine.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "kernels/emulated/global_memory.h"
#include "kernels/emulated/tile_memory.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SHIFTRT_ASAN 1
#else
#define SHIFTRT_ASAN 0
#endif

namespace shiftrt::emu {

namespace {

namespace context = boost::context::detail;

constexpr size_t kStackBytes = 192 * 1024, kGuardBytes = 4096;

// The stack of a fiber. Its lowest page is not accessible, so that an overflow faults. Stacks are reused, because
// mapping them is slow.
class Stack {
 public:
  Stack() {
    void* p = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(p);
    mprotect(base_, kGuardBytes, PROT_NONE);
  }
  ~Stack() { munmap(base_, kGuardBytes + kStackBytes); }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  void* bottom() const { return base_ + kGuardBytes; }
  void* top() const { return base_ + kGuardBytes + kStackBytes; }

 private:
  std::byte* base_;
};

enum class State { kReady, kWarp, kBlock, kCluster, kGrid, kEarlier, kEvent, kDone };

struct PendingCopy {
  std::byte* to;
  const void* from;
  Where where;
};

struct BlockState {
  gpu::Index3 index;
  std::unique_ptr<std::byte[]> shared;  // has the exact size, so that AddressSanitizer finds an overrun
  std::unique_ptr<TileMemory> tiles;    // if the kernel uses it
};

struct Thread {
  int index = 0;
  BlockState* block = nullptr;
  Stack* stack = nullptr;
  context::fcontext_t fiber = nullptr;
  State state = State::kReady;
  Where where;            // the line at which the thread waits
  Collective collective;  // when waiting in its warp
  Event event;            // when waiting for one
  int shared_taken = 0;
  bool waited = false;                           // for earlier launches
  bool allowed = false;                          // the next launch to start
  std::vector<std::vector<PendingCopy>> copies;  // committed groups, oldest first
  std::vector<PendingCopy> open_copies;
  void* fake_stack = nullptr;
};

struct WarpState {
  int waiting = 0, done = 0;  // lanes
};

// The state of the launch in progress. Blocks run in series, so there is one.
struct Machine {
  gpu::Grid grid;
  int block_threads = 0;
  std::string kernel;
  bool hopper = false, waits = false, allows_next = false;
  int cluster_blocks = 1;
  const std::function<void()>* body = nullptr;
  bool descending = false;
  std::vector<BlockState> blocks;
  std::vector<Thread> threads;
  std::vector<WarpState> warps;
  Thread* current = nullptr;
  context::fcontext_t scheduler = nullptr;
  void* scheduler_fake_stack = nullptr;
  const void* scheduler_stack = nullptr;
  size_t scheduler_stack_bytes = 0;
  std::exception_ptr error;
  std::map<uint32_t*, Where> counters;  // by which blocks found out who is last
  Withheld withheld;
  bool cluster_started = false;  // all threads of the cluster have passed a barrier
};

Machine* machine = nullptr;
std::vector<std::unique_ptr<Stack>> stacks;
int64_t launches = 0;
int64_t grid_barriers = 0;
StreamedBytes streamed;
std::vector<std::function<void()>>* recording = nullptr;

WarpState& WarpOf(const Thread& thread) {
  return machine->warps[static_cast<size_t>(&thread - machine->threads.data()) / 32];
}

std::string At(const Where& where) {
  const std::string file = where.file_name();
  return " [" + file.substr(file.rfind('/') + 1) + ":" + std::to_string(where.line()) + "]";
}

void StartSwitch([[maybe_unused]] void** save, [[maybe_unused]] const void* bottom, [[maybe_unused]] size_t bytes) {
#if SHIFTRT_ASAN
  __sanitizer_start_switch_fiber(save, bottom, bytes);
#endif
}
void FinishSwitch([[maybe_unused]] void* saved, [[maybe_unused]] const void** bottom, [[maybe_unused]] size_t* bytes) {
#if SHIFTRT_ASAN
  __sanitizer_finish_switch_fiber(saved, bottom, bytes);
#endif
}

// Switches from a fiber to the scheduler, and returns when the fiber is resumed. A finished fiber releases its fake
// stack.
void Leave(Thread& thread) {
  StartSwitch(thread.state == State::kDone ? nullptr : &thread.fake_stack, machine->scheduler_stack,
              machine->scheduler_stack_bytes);
  const context::transfer_t from = context::jump_fcontext(machine->scheduler, nullptr);
  FinishSwitch(thread.fake_stack, nullptr, nullptr);
  machine->scheduler = from.fctx;
}

void CheckFinished(const Thread& thread) {
  if (thread.block->tiles != nullptr) thread.block->tiles->CheckThread();
  if (!thread.open_copies.empty()) FailAt(thread.open_copies[0].where, "an asynchronous copy is never committed");
  for (const auto& group : thread.copies)
    if (!group.empty()) FailAt(group[0].where, "an asynchronous copy is never waited for");
  if (machine->waits && !thread.waited) FailAt(Where::current(), "exits without having waited for earlier launches");
  if (thread.shared_taken != 0 && thread.shared_taken != machine->grid.shared_bytes)
    throw KernelError(machine->kernel + ": launched with " + std::to_string(machine->grid.shared_bytes) +
                      " bytes of shared memory, takes " + std::to_string(thread.shared_taken));
}

void FiberMain(context::transfer_t from) {
  FinishSwitch(nullptr, &machine->scheduler_stack, &machine->scheduler_stack_bytes);
  machine->scheduler = from.fctx;
  Thread& thread = *machine->current;
  try {
    (*machine->body)();
    CheckFinished(thread);
  } catch (...) {
    machine->error = std::current_exception();
  }
  thread.state = State::kDone;
  ++WarpOf(thread).done;
  Leave(thread);
}

void Resume(Thread& thread) {
  machine->current = &thread;
  StartSwitch(&machine->scheduler_fake_stack, thread.stack->bottom(), kStackBytes);
  thread.fiber = context::jump_fcontext(thread.fiber, nullptr).fctx;
  FinishSwitch(machine->scheduler_fake_stack, nullptr, nullptr);
  machine->current = nullptr;
  if (machine->error) std::rethrow_exception(machine->error);
}

void Block(State state, const Where& where) {
  Thread& thread = *machine->current;
  thread.state = state;
  thread.where = where;
  Leave(thread);
}

bool SameLine(const Where& a, const Where& b) {
  return a.line() == b.line() && (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

// Releases `threads` if all of them wait in `state` at the same line.
bool Release(std::span<Thread> threads, State state) {
  const bool all = std::all_of(threads.begin(), threads.end(), [&](const Thread& thread) {
    return thread.state == state && SameLine(thread.where, threads[0].where);
  });
  if (all)
    for (Thread& thread : threads) thread.state = State::kReady;
  return all;
}

std::string Describe(const Thread& thread) {
  const std::string name = "thread " + std::to_string(thread.index) + " ";
  switch (thread.state) {
    case State::kDone: return name + "has exited";
    case State::kWarp: return name + "waits in " + thread.collective.name + At(thread.where);
    case State::kGrid: return name + "waits at a grid barrier" + At(thread.where);
    case State::kCluster: return name + "waits at a barrier of the cluster" + At(thread.where);
    case State::kEarlier: return name + "waits for earlier launches" + At(thread.where);
    case State::kEvent:
      return name + thread.event.describe(thread.event.object, thread.event.wanted) + At(thread.where);
    default: return name + "waits at a barrier" + At(thread.where);
  }
}

// Called when no thread can run: reports a waiting thread and a thread that it waits for.
[[noreturn]] void FailStuck() {
  const Thread* waiting = nullptr;
  for (const Thread& thread : machine->threads)
    if (thread.state != State::kDone && waiting == nullptr) waiting = &thread;
  machine->current = const_cast<Thread*>(waiting);
  for (Thread& other : machine->threads) {
    if (other.state != State::kEvent) continue;
    machine->current = &other;
    FailAt(other.where, "never continues: " + Describe(other));
  }
  for (const Thread& other : machine->threads) {
    const bool all_blocks =
        waiting->state == State::kGrid || waiting->state == State::kCluster || waiting->state == State::kEarlier;
    const bool same_block = all_blocks || other.block == waiting->block;
    const bool same_warp = waiting->state != State::kWarp || other.index / 32 == waiting->index / 32;
    const bool named = waiting->state != State::kWarp || (waiting->collective.mask >> (other.index % 32) & 1) != 0;
    if (!same_block || !same_warp || !named) continue;
    if (other.state == waiting->state && SameLine(other.where, waiting->where)) continue;
    FailAt(waiting->where, "divergent: " + Describe(*waiting) + " but " + Describe(other));
  }
  FailAt(waiting->where, "divergent: " + Describe(*waiting));
}

// Runs the threads in `machine->threads` until all have finished.
void RunThreads() {
  const auto count = static_cast<int>(machine->threads.size());
  while (true) {
    bool progress = false;
    for (int warp = 0; warp < count / 32; ++warp) {
      bool again = true;
      while (again) {  // a warp runs until it waits for other warps, because shuffles need only its own lanes
        again = false;
        for (int lane = 0; lane < 32; ++lane) {
          const int at = warp * 32 + lane;
          Thread& thread = machine->threads[machine->descending ? count - 1 - at : at];
          if (thread.state != State::kReady) continue;
          Resume(thread);
          again = progress = true;
        }
      }
    }
    const std::span<Thread> all(machine->threads);
    for (int first = 0; first < count; first += machine->block_threads)
      progress |= Release(all.subspan(first, machine->block_threads), State::kBlock);
    progress |= machine->grid.cooperative && Release(all, State::kGrid);
    if (Release(all, State::kCluster)) machine->cluster_started = progress = true;
    if (Release(all, State::kEarlier)) {
      machine->withheld.GiveBack();
      progress = true;
    }
    for (Thread& thread : all) {
      if (thread.state != State::kEvent || !thread.event.done(thread.event.object, thread.event.wanted)) continue;
      thread.state = State::kReady;
      progress = true;
    }
    // A copy arrives when nothing else can go on.
    for (size_t block = 0; block < machine->blocks.size() && !progress; ++block)
      progress = machine->blocks[block].tiles != nullptr && machine->blocks[block].tiles->LandOne();
    if (std::all_of(all.begin(), all.end(), [](const Thread& thread) { return thread.state == State::kDone; })) return;
    if (!progress) FailStuck();
  }
}

// Runs these blocks concurrently.
void RunBlocks(std::vector<BlockState> blocks) {
  machine->blocks = std::move(blocks);
  const size_t count = machine->blocks.size() * machine->block_threads;
  while (stacks.size() < count) stacks.push_back(std::make_unique<Stack>());
  machine->threads.clear();
  machine->threads.resize(count);
  machine->warps.assign(count / 32, {});
  for (size_t i = 0; i < count; ++i) {
    Thread& thread = machine->threads[i];
    thread.index = static_cast<int>(i % machine->block_threads);
    thread.block = &machine->blocks[i / machine->block_threads];
    thread.stack = stacks[i].get();
#if SHIFTRT_ASAN
    __asan_unpoison_memory_region(thread.stack->bottom(), kStackBytes);  // a fiber that did not return left it poisoned
#endif
    thread.fiber = context::make_fcontext(thread.stack->top(), kStackBytes, FiberMain);
  }
  machine->cluster_started = false;
  if (machine->waits) machine->withheld.Take();
  RunThreads();
  for (const BlockState& block : machine->blocks)
    if (block.tiles != nullptr) block.tiles->CheckBlock(machine->kernel);
}

BlockState MakeBlock(int at) {
  const gpu::Grid& grid = machine->grid;
  BlockState block{{at % grid.x, at / grid.x % grid.y, at / (grid.x * grid.y)},
                   std::make_unique<std::byte[]>(grid.shared_bytes),
                   nullptr};
  std::memset(block.shared.get(), kPoison, grid.shared_bytes);
  if (machine->hopper)
    block.tiles = std::make_unique<TileMemory>(block.shared.get(), grid.shared_bytes, machine->block_threads,
                                               machine->descending);
  return block;
}

void RunGrid() {
  const gpu::Grid& grid = machine->grid;
  const int total = grid.x * grid.y * grid.z, together = grid.cooperative ? total : machine->cluster_blocks;
  for (int i = 0; i < total; i += together) {
    // The order of blocks that run concurrently is set with the order of their threads.
    const int first = machine->descending ? total - together - i : i;
    std::vector<BlockState> blocks;
    for (int at = first; at < first + together; ++at) blocks.push_back(MakeBlock(at));
    RunBlocks(std::move(blocks));
  }
}

}  // namespace

void FailAt(const Where& where, const std::string& message) {
  const Thread& thread = *machine->current;
  const gpu::Index3 block = thread.block->index;
  throw KernelError(machine->kernel + ": block (" + std::to_string(block.x) + ", " + std::to_string(block.y) + ", " +
                    std::to_string(block.z) + ") thread " + std::to_string(thread.index) + ": " + message + At(where));
}

static void CheckCounters() {
  for (const auto& [counter, where] : std::exchange(machine->counters, {}))
    if (*counter != 0)
      throw KernelError(machine->kernel + ": leaves a counter of blocks at " + std::to_string(*counter) + At(where));
}

void Launch(const gpu::Grid& grid, const Kernel& kernel, const std::function<void()>& body) {
  MakeDeferred();
  Machine here;
  here.grid = grid;
  here.block_threads = kernel.threads;
  here.kernel = kernel.name;
  here.hopper = kernel.hopper;
  here.waits = kernel.waits;
  here.allows_next = kernel.allows_next;
  here.cluster_blocks = kernel.cluster_blocks;
  machine = &here;
  struct Leaving {
    ~Leaving() { machine = nullptr; }
  } leaving;
  if (kernel.threads <= 0 || kernel.threads > 1024 || kernel.threads % 32 != 0 || grid.x <= 0 || grid.y <= 0 ||
      grid.z <= 0 || grid.y > gpu::kMostBlocksAlongZ || grid.z > gpu::kMostBlocksAlongZ)
    throw KernelError(kernel.name + ": no GPU supports this grid of (" + std::to_string(grid.x) + ", " +
                      std::to_string(grid.y) + ", " + std::to_string(grid.z) + ") x " + std::to_string(kernel.threads));
  if (grid.x % kernel.cluster_blocks != 0 || (grid.cooperative && (kernel.cluster_blocks > 1 || kernel.waits)))
    throw KernelError(kernel.name + ": a grid of whole clusters, which is not cooperative, not one of " +
                      std::to_string(grid.x) + " blocks along x");
  if (grid.shared_bytes > kernel.most_shared_bytes)
    throw KernelError(kernel.name + ": asks for " + std::to_string(grid.shared_bytes) +
                      " bytes of shared memory, more than every GPU that runs it has");
  ++launches;
  const Snapshot before;
  here.body = &body;
  RunGrid();
  CheckCounters();
  const Snapshot ascending;
  before.Restore();
  here.descending = true;
  RunGrid();
  CheckCounters();
  ascending.CheckSame(here.kernel);
  before.MarkWritten();
}

int64_t Launches() { return launches; }
int64_t GridBarriers() { return grid_barriers; }
StreamedBytes Streamed() { return streamed; }

void Submit(std::function<void()> work) {
  if (recording == nullptr) return work();
  recording->push_back(std::move(work));
}
std::vector<std::function<void()>> RecordSubmitted(const std::function<void()>& body) {
  std::vector<std::function<void()>> submitted;
  struct Recording {
    ~Recording() { recording = nullptr; }
  } until_the_end;
  recording = &submitted;
  body();
  return submitted;
}
void RefuseWhileRecording(const char* what) {
  if (recording != nullptr) throw KernelError(std::string(what) + " while a launch graph is recorded");
}

gpu::Index3 CurrentBlock() { return machine->current->block->index; }
gpu::Index3 CurrentGrid() { return {machine->grid.x, machine->grid.y, machine->grid.z}; }
int CurrentThread() { return machine->current->index; }

std::byte* TakeShared(int bytes, const Where& where) {
  Thread& thread = *machine->current;
  std::byte* taken = thread.block->shared.get() + thread.shared_taken;
  thread.shared_taken += bytes;
  if (thread.shared_taken > machine->grid.shared_bytes)
    FailAt(where, "takes " + std::to_string(thread.shared_taken) + " bytes of shared memory, launched with " +
                      std::to_string(machine->grid.shared_bytes));
  return taken;
}

bool Arrive(uint32_t* counter, uint32_t blocks, const Where& where) {
  if (machine->counters.emplace(counter, where).second && *counter != 0)
    FailAt(where, "a counter of blocks that is " + std::to_string(*counter) + " before the first of them arrives");
  const bool last = ++*counter == blocks;
  if (last) *counter = 0;
  return last;
}

void WaitBlock(const Where& where) { Block(State::kBlock, where); }

void WaitGrid(const Where& where) {
  if (!machine->grid.cooperative) FailAt(where, "a grid barrier in a launch that is not cooperative");
  const gpu::Index3 block = CurrentBlock();
  // Each launch runs twice.
  if (!machine->descending && CurrentThread() == 0 && block.x + block.y + block.z == 0) ++grid_barriers;
  Block(State::kGrid, where);
}

void WaitForEarlier(const Where& where) {
  if (!machine->waits) FailAt(where, "a kernel without kWaits waits for earlier launches");
  machine->current->waited = true;
  Block(State::kEarlier, where);
}

void AllowNext(const Where& where) {
  if (!machine->allows_next) FailAt(where, "a kernel without kAllowsNext allows the next launch to start");
  machine->current->allowed = true;
}
void CountStreamed(int64_t bytes) {
  if (machine->descending) return;  // each launch runs twice
  streamed.all += bytes;
  if (machine->allows_next && !machine->current->allowed) streamed.before_next += bytes;
  if (machine->waits && !machine->current->waited) streamed.before_wait += bytes;
}

int CurrentRank(const Where& where) {
  if (machine->cluster_blocks == 1) FailAt(where, "a kernel without kClusterBlocks asks for the block of its cluster");
  return CurrentBlock().x % machine->cluster_blocks;
}

void WaitCluster(const Where& where) {
  if (machine->cluster_blocks == 1) FailAt(where, "a kernel without kClusterBlocks waits for its cluster");
  Block(State::kCluster, where);
}

void StoreToBlock(const std::byte* at, int rank, float value, const void* mbarrier, const Where& where) {
  if (rank < 0 || rank >= machine->cluster_blocks)
    FailAt(where,
           "a store to block " + std::to_string(rank) + " of a cluster of " + std::to_string(machine->cluster_blocks));
  if (!machine->cluster_started) FailAt(where, "a store to a block of the cluster that may not have started");
  const BlockState& target = machine->blocks[rank];
  const bool runs = std::any_of(machine->threads.begin(), machine->threads.end(), [&](const Thread& thread) {
    return thread.block == &target && thread.state != State::kDone;
  });
  if (!runs) FailAt(where, "a store to a block of the cluster that has ended");
  const std::byte* const here = machine->current->block->shared.get();
  target.tiles->TakeStore(target.shared.get() + (at - here), value,
                          target.shared.get() + (static_cast<const std::byte*>(mbarrier) - here), where);
}

// The last lane to arrive executes the collective and continues; the others continue when they are scheduled again.
void WaitWarp(const Collective& collective, const Where& where) {
  Thread& self = *machine->current;
  if ((collective.mask >> (self.index % 32) & 1) == 0)
    FailAt(where, std::string(collective.name) + ": the mask leaves out the calling lane");
  self.state = State::kWarp;
  self.where = where;
  self.collective = collective;
  Thread* const warp = &self - self.index % 32;
  WarpState& counts = WarpOf(self);
  if (++counts.waiting < std::popcount(collective.mask) && counts.done == 0) return Leave(self);
  static std::vector<Participant>
      lanes;  // static, because after an error the fiber's stack is discarded without running destructors
  lanes.clear();
  for (int lane = 0; lane < 32; ++lane) {
    if ((collective.mask >> lane & 1) == 0) continue;
    const Thread& other = warp[lane];
    if (other.state == State::kDone)
      FailAt(where,
             std::string(collective.name) + ": the mask names lane " + std::to_string(lane) + ", which has exited");
    if (other.state != State::kWarp || other.collective.mask != collective.mask ||
        other.collective.apply != collective.apply || !SameLine(other.where, where))
      return Leave(self);
    lanes.push_back({lane, other.collective.slot});
  }
  collective.apply(lanes, where);
  counts.waiting -= static_cast<int>(lanes.size());
  for (const Participant& lane : lanes) warp[lane.lane].state = State::kReady;
}

void WaitUntil(const Event& event, const Where& where) {
  if (event.done(event.object, event.wanted)) return;
  machine->current->event = event;
  Block(State::kEvent, where);
}

TileMemory& Tiles(const Where& where) {
  TileMemory* const tiles = machine->current->block->tiles.get();
  if (tiles == nullptr) FailAt(where, "a kernel without kHopper uses hopper.cuh");
  return *tiles;
}
void Touch(const void* at, int bytes, const Where& where) {
  TileMemory* const tiles = machine->current->block->tiles.get();
  if (tiles != nullptr) tiles->Touch(at, bytes, where);
}

void IssueCopy(std::byte* to, const void* from, const Where& where) {
  if (machine->withheld.Holds(from))
    FailAt(where, "a copy of what an earlier launch may still write, before the wait for it");
  std::memset(to, kPoison, 16);
  machine->current->open_copies.push_back({to, from, where});
}

void CommitCopies() {
  Thread& thread = *machine->current;
  if (thread.open_copies.empty() && thread.copies.empty()) return;  // there is nothing to wait for in an empty group
  thread.copies.push_back(std::move(thread.open_copies));
  thread.open_copies.clear();
}

void WaitCopies(int pending) {
  std::vector<std::vector<PendingCopy>>& groups = machine->current->copies;
  while (static_cast<int>(groups.size()) > pending) {
    for (const PendingCopy& copy : groups.front()) {
      if (copy.from != nullptr) {
        std::memcpy(copy.to, copy.from, 16);
      } else {
        std::memset(copy.to, 0, 16);
      }
    }
    groups.erase(groups.begin());
  }
}

}  // namespace shiftrt::emu
