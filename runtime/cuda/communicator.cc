// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/communicator.h"

#include <nccl.h>

#include <exception>

#include "runtime/cuda/library.h"

namespace shiftrt::gpu {

namespace {

// The NCCL functions in use, looked up by name.
struct Nccl {
  void CheckStatus(ncclResult_t status, const char* what) const {
    Check(status == ncclSuccess, "NCCL: {} in {}", error_text(status), what);
  }

  SharedLibrary library{"sums over several devices", "libnccl", NCCL_MAJOR};
  decltype(&ncclCommInitAll) init_all = library.Find("ncclCommInitAll");
  decltype(&ncclCommDestroy) destroy = library.Find("ncclCommDestroy");
  decltype(&ncclGroupStart) group_start = library.Find("ncclGroupStart");
  decltype(&ncclGroupEnd) group_end = library.Find("ncclGroupEnd");
  decltype(&ncclReduce) reduce = library.Find("ncclReduce");
  decltype(&ncclGetUniqueId) unique_id = library.Find("ncclGetUniqueId");
  decltype(&ncclCommInitRank) init_rank = library.Find("ncclCommInitRank");
  decltype(&ncclCommAbort) abort = library.Find("ncclCommAbort");
  decltype(&ncclSend) send = library.Find("ncclSend");
  decltype(&ncclRecv) receive = library.Find("ncclRecv");
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

struct PeerCommunicator::Impl {
  Impl(int device, Processes& processes) : nccl(Library()) {
    ncclUniqueId id{};
    if (processes.first()) nccl.CheckStatus(nccl.unique_id(&id), "its start");
    const Bytes everyones = processes.Broadcast(0, Packer().Put(id).Take());
    id = Unpacker(everyones).Get<ncclUniqueId>();
    UseDeviceOf({nullptr, device});
    nccl.CheckStatus(nccl.init_rank(&member, processes.size(), id, processes.rank()), "its start");
  }
  // After an error, others may never come to a transfer that this one has begun.
  ~Impl() { std::uncaught_exceptions() > 0 ? nccl.abort(member) : nccl.destroy(member); }

  const Nccl& nccl;
  ncclComm_t member = nullptr;
};

PeerCommunicator::PeerCommunicator(int device, Processes& processes)
    : impl_(std::make_unique<Impl>(device, processes)) {}
PeerCommunicator::~PeerCommunicator() = default;

void PeerCommunicator::Exchange(Stream stream, std::span<const Transfer> sent, std::span<const Transfer> received) {
  const Nccl& nccl = impl_->nccl;
  UseDeviceOf(stream);
  ncclResult_t status = nccl.group_start();
  const auto each = [&](std::span<const Transfer> transfers, auto call) {
    for (const Transfer& one : transfers)
      if (status == ncclSuccess)
        status = call(one.data, static_cast<size_t>(one.count), ncclFloat32, one.rank, impl_->member, stream.handle);
  };
  each(sent, nccl.send);
  each(received, nccl.receive);
  const ncclResult_t end = nccl.group_end();
  nccl.CheckStatus(status == ncclSuccess ? end : status, "transfers between processes");
}

}  // namespace shiftrt::gpu
