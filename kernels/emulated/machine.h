// A GPU block by block on the CPU, for tests: every thread is a fiber, every collective a rendezvous. Kernels run
// twice, with threads taken in ascending and in descending order, and must leave the same bits in memory.
//
// Reported, each with the line of the kernel that asked: a barrier or a collective not all threads reach, one whose
// mask names a lane that has exited, a shuffle from a lane outside its mask, an index outside its shared array, shared
// memory asked for and not used or the other way round, a misaligned access, a copy nobody waits for, arguments that
// lead into another device's memory. Reading shared memory nobody wrote, or a copy not yet waited for, gives NaN.
// Overruns of global and local memory are AddressSanitizer's, from which every allocation is kept exact.
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

// Device memory: exact host allocations, filled with NaN, known to the machine, which snapshots them around launches.
void* Allocate(int64_t bytes, int device = 0);
void Free(void* p) noexcept;
int64_t AllocatedBytes(int device = 0);
// Throws KernelError where one of an object's words is a pointer into the memory of another device: what `who` does on
// `device` does not reach it.
void CheckWords(int device, const void* object, size_t bytes, const std::string& who);
template <typename T>
void CheckReach([[maybe_unused]] int device, [[maybe_unused]] T object, [[maybe_unused]] const std::string& who) {
#if __has_builtin(__builtin_clear_padding)
  __builtin_clear_padding(&object);  // where pointers that were there before would be found
  CheckWords(device, &object, sizeof(object), who);
#endif
}
// A copy that a stream has been told of. It is made before anything else looks at device memory, and no earlier: what
// overwrites its source too soon is seen.
void Defer(std::function<void()> copy);
void MakeDeferred();

// Runs `body` once for every thread of every block, in both orders. `ahead`, if there is one, runs before all of it, as
// early as overlapping launches could make it, and must leave memory as it is. Throws KernelError.
void Launch(const gpu::Grid& grid, int threads, const std::string& kernel, const std::function<void()>& body,
            const std::function<void()>& ahead = {});
// Kernel launches since the program began.
int64_t Launches();

// What a warp collective works on: `apply` sees the lanes that take part, in order, once all have arrived.
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

// Of the running fiber.
gpu::Index3 CurrentBlock();
gpu::Index3 CurrentGrid();
int CurrentThread();
std::byte* TakeShared(int bytes, const Where& where);
void WaitBlock(const Where& where);
void WaitGrid(const Where& where);
void WaitWarp(const Collective& collective, const Where& where);
void IssueCopy(std::byte* to, const void* from, const Where& where);  // 16 bytes; from null: zeros
void CommitCopies();
void WaitCopies(int pending);

}  // namespace shiftrt::emu
