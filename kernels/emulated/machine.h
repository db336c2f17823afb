// SPDX-License-Identifier: Apache-2.0
// Emulates a GPU on the CPU for tests, block by block. Every thread is a fiber, and in a collective all its threads
// wait for each other. A kernel runs twice, with the threads in ascending and in descending order, and must leave the
// same bits in memory.
//
// These errors are reported with the line of the kernel: a barrier or collective that not all threads reach; a mask
// that names a lane that has exited; a shuffle from a lane outside the mask; an index outside a shared array; a launch
// with more or less shared memory than the kernel takes; a misaligned access; an asynchronous copy without a wait;
// arguments that point into another device's memory; a kernel that waits for earlier launches itself and does not.
// Shared memory reads as NaN until it is written, or until the copy into it is waited for. Allocations have their exact
// size, so that AddressSanitizer finds overruns of global and local memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/grid.h"

namespace shiftrt::emu {

using Where = std::source_location;

class KernelError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// Throws KernelError "kernel: block (x, y, z) thread t: message [file:line]".
[[noreturn]] void FailAt(const Where& where, const std::string& message);

// Device memory: host allocations of the exact size, filled with NaN. The machine saves them before each launch.
void* Allocate(int64_t bytes, int device = 0);
void Free(void* p) noexcept;
int64_t AllocatedBytes(int device = 0);
// Throws KernelError if a word of the object is a pointer into the memory of another device than `device`. `who` names
// the operation in the error.
void CheckWords(int device, const void* object, size_t bytes, const std::string& who);
template <typename T>
void CheckReach([[maybe_unused]] int device, [[maybe_unused]] const T& object,
                [[maybe_unused]] const std::string& who) {
#if __has_builtin(__builtin_clear_padding)
  T copy = object;
  __builtin_clear_padding(&copy);  // padding may contain old pointers
  CheckWords(device, &copy, sizeof(copy), who);
#endif
}
// Submits `work` to a stream: runs it, or keeps it while a launch graph is recorded. `work` owns its arguments.
void Submit(std::function<void()> work);
// Calls `body` and returns what it submits, which does not run.
std::vector<std::function<void()>> RecordSubmitted(const std::function<void()>& body);
// Throws KernelError if a launch graph is being recorded: a GPU refuses `what` then.
void RefuseWhileRecording(const char* what);

// Enqueues a copy. It is executed just before the next access to device memory, as late as possible, so that a test
// notices if the source is overwritten too early.
void Defer(std::function<void()> copy);
void MakeDeferred();

struct Kernel {
  std::string name;
  int threads = 0;
  int most_shared_bytes = 0;
  bool hopper = false;       // it uses kernels/cuda/hopper.cuh
  bool waits = false;        // it calls WaitForEarlier() itself
  bool allows_next = false;  // it calls AllowNext() itself
  int cluster_blocks = 1;    // along x
};
// Runs `body` once for every thread of every block, in both orders. Throws KernelError.
void Launch(const gpu::Grid& grid, const Kernel& kernel, const std::function<void()>& body);
// Says that all launches have ended. What they wrote is no longer withheld from kernels that have yet to wait.
void Finish();
// Kernel launches since the start of the program.
int64_t Launches();
// Barriers of whole grids that they passed.
int64_t GridBarriers();
// Bytes that kernels read by LoadOnce8() since the start of the program: all of them, and those that a thread read
// before it called AllowNext(), and before WaitForEarlier().
struct StreamedBytes {
  int64_t all = 0, before_next = 0, before_wait = 0;
};
StreamedBytes Streamed();

// A warp collective. Once all lanes of the mask have arrived, `apply` is called once with these lanes in order.
struct Participant {
  int lane = 0;
  void* slot = nullptr;
};
struct Collective {
  const char* name = "";
  uint32_t mask = 0;
  void* slot = nullptr;
  void (*apply)(const std::vector<Participant>& lanes, const Where& where) = nullptr;
};
// An event that a thread waits for by itself, and its description for an error.
struct Event {
  bool (*done)(const void* object, int64_t wanted) = nullptr;
  std::string (*describe)(const void* object, int64_t wanted) = nullptr;
  const void* object = nullptr;
  int64_t wanted = 0;
};

// The following functions refer to the running fiber.
gpu::Index3 CurrentBlock();
gpu::Index3 CurrentGrid();
int CurrentThread();
std::byte* TakeShared(int bytes, const Where& where);
void WaitBlock(const Where& where);
void WaitGrid(const Where& where);
void WaitWarp(const Collective& collective, const Where& where);
void WaitUntil(const Event& event, const Where& where);
// Until all threads that run together have come here, device memory that launches have written is NaN.
void WaitForEarlier(const Where& where);
void AllowNext(const Where& where);
void CountStreamed(int64_t bytes);
int CurrentRank(const Where& where);  // the block's rank in its cluster
void WaitCluster(const Where& where);
// NaN until the store arrives at the mbarrier, which is as late as the kernel allows. Reports a store before all blocks
// have started or to one that has ended, and one that nobody waits for.
void StoreToBlock(const std::byte* at, int rank, float value, const void* mbarrier, const Where& where);
// The tile memory of the thread's block. Reports a kernel that does not declare that it is for compute capability 9.0.
class TileMemory;
TileMemory& Tiles(const Where& where);
// Reports an access of shared memory to the TileMemory of the block, if it has one.
void Touch(const void* at, int bytes, const Where& where);
// Adds 1 to a counter by which blocks find out which of them is the last of `blocks`: that one sets it to 0 again.
// Reports a counter that is not 0 when its first block arrives, or at the end of the launch.
bool Arrive(uint32_t* counter, uint32_t blocks, const Where& where);
void IssueCopy(std::byte* to, const void* from, const Where& where);  // 16 bytes; from null: zeros
void CommitCopies();
void WaitCopies(int pending);

}  // namespace shiftrt::emu
