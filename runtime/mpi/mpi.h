// SPDX-License-Identifier: Apache-2.0
// The functions of MPI (MPI 3.1, https://www.mpi-forum.org/docs) that shiftrt uses, called through the binary interface
// of the implementation that was loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "runtime/launcher.h"

namespace shiftrt {

// Only the thread that calls Start() may call the others. All throw Error naming the function that fails.
class Mpi {
 public:
  // MPI_Request: a pointer in OpenMPI, an integer in MPICH.
  union Request {
    void* pointer;
    int number;
  };
  static constexpr int kAnySource = -1;

  static std::unique_ptr<Mpi> Load(MpiKind kind);
  virtual ~Mpi() = default;
  virtual void Start() = 0;  // MPI_Init_thread, MPI_THREAD_FUNNELED; errors are returned
  virtual int Rank() = 0;
  virtual int Size() = 0;
  virtual Request Send(std::span<const std::byte> bytes, int to, int tag) = 0;  // MPI_Isend; at most 2 GiB
  virtual Request Receive(std::span<std::byte> bytes, int from, int tag) = 0;   // MPI_Irecv
  virtual bool Test(Request& request) = 0;                                      // MPI_Test
  virtual void Cancel(Request& request) = 0;  // MPI_Cancel of a receive; Test() is true afterwards
  virtual void Finalize() = 0;
};

}  // namespace shiftrt
