// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/communicator.h"

#include <nccl.h>

#include "runtime/cuda/library.h"

namespace shiftrt::gpu {

namespace {

// The NCCL functions in use, looked up by name.
struct Nccl {
  void CheckStatus(ncclResult_t status, const char* what) const {
    Check(status == ncclSuccess, "NCCL: {} in {}", error_text(status), what);
  }

  SharedLibrary library{"sums over several devices", fmt::format("libnccl.so.{}", NCCL_MAJOR)};
  decltype(&ncclCommInitAll) init_all = library.Find("ncclCommInitAll");
  decltype(&ncclCommDestroy) destroy = library.Find("ncclCommDestroy");
  decltype(&ncclGroupStart) group_start = library.Find("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = library.Find("ncclGroupEnd");
  decltype(&ncclReduce) reduce = library.Find("ncclReduce");
  decltype(&ncclGetErrorString) error_text = library.Find("ncclGetErrorString");
};

// The library is never closed because it has threads of its own. Throws Error if it is not installed.
const Nccl& Library() {
  static const Nccl* const nccl = new Nccl();
  return *nccl;
}

}  // namespace

const std::string& WhyNoCommunicator() {
  static const std::string why = []() -> std::string {
    try {
      Library();
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  }();
  return why;
}

struct Communicator::Impl {
  explicit Impl(std::vector<Stream> of) : nccl(Library()), streams(std::move(of)), members(streams.size()) {
    std::vector<int> devices;
    for (const Stream& stream : streams) devices.push_back(stream.device);
    nccl.CheckStatus(nccl.init_all(members.data(), static_cast<int>(devices.size()), devices.data()), "its start");
  }
  ~Impl() {
    for (ncclComm_t member : members) nccl.destroy(member);
  }

  const Nccl& nccl;
  std::vector<Stream> streams;
  std::vector<ncclComm_t> members;  // one per stream
};

Communicator::Communicator(std::vector<Stream> streams) : impl_(std::make_unique<Impl>(std::move(streams))) {}
Communicator::~Communicator() = default;

void Communicator::SumToFirst(std::span<double* const> arrays, int64_t count) {
  const Nccl& nccl = impl_->nccl;
  ncclResult_t status = nccl.group_start();
  for (size_t i = 0; i < arrays.size() && status == ncclSuccess; ++i)
    status = nccl.reduce(arrays[i], arrays[i], static_cast<size_t>(count), ncclFloat64, ncclSum, 0, impl_->members[i],
                         impl_->streams[i].handle);
  const ncclResult_t end = nccl.group_end();
  nccl.CheckStatus(status == ncclSuccess ? end : status, "a sum over devices");
}

}  // namespace shiftrt::gpu
