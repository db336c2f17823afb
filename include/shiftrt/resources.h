// SPDX-License-Identifier: Apache-2.0
/// \file
/// Limits of a computation: threads, memory, GPUs and processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shiftrt/arithmetic.h"

namespace shiftrt {

/// The processes that share the work of one program, started by mpirun or srun (docs/scale.md). They run the same
/// program, make the same calls, and all get the results of one process.
class Processes;
/// Connects the processes that a launcher has started. Call it once, before everything else.
/// \return the processes; this one alone if there is no launcher
/// \throws Error if MPI cannot be loaded or started
std::shared_ptr<Processes> JoinProcesses();

/// \param processes what JoinProcesses() has returned
/// \return the number of this process, from 0; process 0 is the one that should print and write files
int RankOf(const Processes& processes);
/// \param processes what JoinProcesses() has returned
/// \return how many processes there are
int CountOf(const Processes& processes);
/// Waits until all processes have called it. A process that ends while others still work counts as failed: call this in
/// all of them at the end of the program.
/// \param processes what JoinProcesses() has returned
/// \throws Error if another process has failed
void Barrier(Processes& processes);
/// Tells the others that this process cannot go on, so that they end at once instead of waiting for its answer. Call it
/// in the outermost handler of exceptions.
/// \param processes what JoinProcesses() has returned
/// \param reason what has happened
/// \return true if the first process has taken the reason and reports it; false if this one should
bool ReportFailure(Processes& processes, const std::string& reason) noexcept;

struct Context;

/// Limits of a computation: threads, memory, GPUs and processes. The defaults are all cores that the process may use,
/// and no GPU.
///
/// The results on a CPU depend on the number of threads in their last bits only, and not on what other threads of the
/// program do at the same time.
struct Resources {
  /// Threads of one computation, the calling one included; 0: one per core that the process may use.
  int threads = 0;
  /// Bytes of host memory that the sums over calibration text may take, or the activations that a training keeps; 0:
  /// three quarters of what is free. Where it is too little, the calibration makes several passes over the text, and a
  /// training computes activations again.
  int64_t calibration_memory = 0;
  /// Indices of the GPUs to use; empty: none. The first one runs the model, the others take a share of calibration
  /// passes. A GPU that does not exist, or a library built without CUDA, is a UsageError of the field "gpus".
  std::vector<int> gpus = {};
  /// Precision of products with weights on the CPU. kBFloat16 is a UsageError of the field "products" where the CPU has
  /// no instructions for it, or the instruction set was lowered.
  Products products = Products::kAuto;
  /// Processes that share the work with this one (JoinProcesses()); null: this process alone.
  std::shared_ptr<Processes> processes = {};
  /// The result of Prepare(); null: each call prepares for itself.
  std::shared_ptr<const Context> prepared = {};
};

/// Checks resources and prepares them, so that calls that are given the result share it: copies of weights in the
/// memory of GPUs, and the division of a host's memory between processes. If there are GPUs, calls of several threads
/// that are given the result take turns: each waits until the one before it has ended.
/// \param resources what computations may use of the machine
/// \return the same, prepared
/// \throws UsageError for resources that this machine lacks
Resources Prepare(const Resources& resources);
/// \param prepared what Prepare() has returned
/// \return the same for work of this process alone, in which the other processes take no part
Resources Alone(const Resources& prepared);

}  // namespace shiftrt
