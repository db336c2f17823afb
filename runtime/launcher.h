// SPDX-License-Identifier: Apache-2.0
// Joins the processes that mpirun or srun has started (docs/scale.md). MPI is loaded only then, so that the program
// starts on machines without it. OpenMPI and MPICH (and what follows MPICH's binary interface: Intel MPI, MVAPICH, Cray
// MPICH) are told apart at run time: one program serves both.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "runtime/processes.h"

namespace shiftrt {

enum class MpiKind { kOpenMpi, kMpich };

// The information that a launcher gives to the processes that it starts.
struct Launch {
  std::string variable;        // the environment variable that names it
  std::optional<int> size;     // the number of processes, if known
  std::optional<MpiKind> mpi;  // nothing: srun gives the processes no way to find each other
};

// Finds the launcher by its environment variables; no value if there is none. `environment` is getenv().
// SHIFTRT_MPI=openmpi or mpich decides if a launcher serves both. Throws UsageError for another value of it.
std::optional<Launch> FindLaunch(const std::function<const char*(const char*)>& environment);

// Connects the processes of this launch. Without a launcher, or if it started one process, this process is alone.
// Throws Error if MPI cannot be loaded or started.
std::shared_ptr<Processes> JoinProcesses();

}  // namespace shiftrt
