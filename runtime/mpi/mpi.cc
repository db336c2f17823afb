// SPDX-License-Identifier: Apache-2.0
#include "runtime/mpi/mpi.h"

#include <array>

#include "runtime/check.h"
#include "runtime/shared_library.h"

namespace shiftrt {

namespace {

// OpenMPI 2 to 5 (libmpi.so.40): handles are addresses of objects that the library exports.
struct OpenMpi {
  using Handle = void*;
  static constexpr int kAnySource = -1;
  static constexpr const char* kName = "OpenMPI";
  static std::vector<std::string> Libraries() { return {"libmpi.so.40"}; }

  explicit OpenMpi(const SharedLibrary& library)
      : world(library.FindObject("ompi_mpi_comm_world")),
        byte(library.FindObject("ompi_mpi_byte")),
        errors_return(library.FindObject("ompi_mpi_errors_return")) {}
  static void* Raw(Mpi::Request& request) { return &request.pointer; }

  Handle world, byte, errors_return;
};

// MPICH 3.1 and later, and all libraries with its binary interface (https://www.mpich.org/abi): handles are integers.
struct Mpich {
  using Handle = int;
  static constexpr int kAnySource = -2;
  static constexpr const char* kName = "MPICH";
  static std::vector<std::string> Libraries() { return {"libmpich.so.12", "libmpi.so.12"}; }

  explicit Mpich(const SharedLibrary&) {}
  static void* Raw(Mpi::Request& request) { return &request.number; }

  Handle world = 0x44000000, byte = 0x4c00010d, errors_return = 0x54000001;
};

template <typename Abi>
class Loaded : public Mpi {
 public:
  Loaded()
      : library_(fmt::format("a launcher of {} has started several processes, which need its library", Abi::kName),
                 Abi::Libraries()),
        abi_(library_) {}

  void Start() override {
    constexpr int kFunneled = 1;  // MPI_THREAD_FUNNELED in both
    int provided = 0;
    Call("MPI_Init_thread", init_, nullptr, nullptr, kFunneled, &provided);
    Check(provided >= kFunneled, "{} does not allow threads (level {})", Abi::kName, provided);
    Call("MPI_Comm_set_errhandler", set_errhandler_, abi_.world, abi_.errors_return);
  }
  int Rank() override {
    int rank = 0;
    Call("MPI_Comm_rank", rank_, abi_.world, &rank);
    return rank;
  }
  int Size() override {
    int size = 0;
    Call("MPI_Comm_size", size_, abi_.world, &size);
    return size;
  }
  Request Send(std::span<const std::byte> bytes, int to, int tag) override {
    Request request{};
    Call("MPI_Isend", isend_, bytes.data(), static_cast<int>(bytes.size()), abi_.byte, to, tag, abi_.world,
         Abi::Raw(request));
    return request;
  }
  Request Receive(std::span<std::byte> bytes, int from, int tag) override {
    Request request{};
    Call("MPI_Irecv", irecv_, bytes.data(), static_cast<int>(bytes.size()), abi_.byte,
         from == kAnySource ? Abi::kAnySource : from, tag, abi_.world, Abi::Raw(request));
    return request;
  }
  bool Test(Request& request) override {
    int done = 0;
    alignas(8) std::array<std::byte, 64> status;  // MPI_Status has 20 bytes in MPICH and 24 in OpenMPI
    Call("MPI_Test", test_, Abi::Raw(request), &done, status.data());
    return done != 0;
  }
  void Cancel(Request& request) override { Call("MPI_Cancel", cancel_, Abi::Raw(request)); }
  void Finalize() override { Call("MPI_Finalize", finalize_); }

 private:
  using Handle = typename Abi::Handle;

  template <typename... Arguments, typename... Given>
  static void Call(const char* name, int (*function)(Arguments...), Given... given) {
    const int error = function(given...);
    Check(error == 0, "{} of {} fails with error {}", name, Abi::kName, error);
  }

  SharedLibrary library_;
  Abi abi_;
  int (*init_)(int*, char***, int, int*) = library_.Find("MPI_Init_thread");
  int (*set_errhandler_)(Handle, Handle) = library_.Find("MPI_Comm_set_errhandler");
  int (*rank_)(Handle, int*) = library_.Find("MPI_Comm_rank");
  int (*size_)(Handle, int*) = library_.Find("MPI_Comm_size");
  int (*isend_)(const void*, int, Handle, int, int, Handle, void*) = library_.Find("MPI_Isend");
  int (*irecv_)(void*, int, Handle, int, int, Handle, void*) = library_.Find("MPI_Irecv");
  int (*test_)(void*, int*, void*) = library_.Find("MPI_Test");
  int (*cancel_)(void*) = library_.Find("MPI_Cancel");
  int (*finalize_)() = library_.Find("MPI_Finalize");
};

}  // namespace

std::unique_ptr<Mpi> Mpi::Load(MpiKind kind) {
  if (kind == MpiKind::kOpenMpi) return std::make_unique<Loaded<OpenMpi>>();
  return std::make_unique<Loaded<Mpich>>();
}

}  // namespace shiftrt
