// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/exchange.h"

#include <deque>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/cuda/communicator.h"
#include "runtime/device_copies.h"

namespace shiftrt {

namespace {

using gpu::DeviceBuffer;
using gpu::PeerCommunicator;
using gpu::Transfer;

// Exchanges the data of a round.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void Exchange(gpu::Stream stream, const std::vector<Transfer>& sent,
                        const std::vector<Transfer>& received) = 0;
};

class ByNccl : public Transport {
 public:
  explicit ByNccl(std::shared_ptr<PeerCommunicator> peers) : peers_(std::move(peers)) {}
  void Exchange(gpu::Stream stream, const std::vector<Transfer>& sent, const std::vector<Transfer>& received) override {
    peers_->Exchange(stream, sent, received);
  }

 private:
  std::shared_ptr<PeerCommunicator> peers_;
};

class ThroughTheHost : public Transport {
 public:
  explicit ThroughTheHost(Processes& processes) : processes_(processes), channel_(processes.NewChannel()) {}
  void Exchange(gpu::Stream stream, const std::vector<Transfer>& sent, const std::vector<Transfer>& received) override {
    for (const Transfer& one : sent) {
      Bytes message(SizeInBytes(one));
      gpu::CopyToHost(stream, message.data(), one.data, std::ssize(message));
      processes_.Send(one.rank, channel_, std::move(message));
    }
    for (const Transfer& one : received) {
      const Bytes message = processes_.Receive(one.rank, channel_);
      Check(message.size() == SizeInBytes(one), "{} has sent {} bytes where {} are expected", processes_.Name(one.rank),
            message.size(), SizeInBytes(one));
      gpu::CopyToDevice(stream, one.data, message.data(), std::ssize(message));
    }
  }

 private:
  static size_t SizeInBytes(const Transfer& one) { return static_cast<size_t>(one.count) * sizeof(float); }

  Processes& processes_;
  const int channel_;
};

class GpuRowExchange : public RowExchange {
 public:
  GpuRowExchange(Processes& processes, std::shared_ptr<const StreamRows> rows, std::unique_ptr<Transport> transport)
      : processes_(processes), rows_(std::move(rows)), transport_(std::move(transport)) {}

  void Send(int to, const Rows& rows) override {
    Check(rows.device() == rows_, "rows of another stream than the exchange is of");
    sent_.push_back({to, const_cast<float*>(rows.there().on_gpu().data), rows.count() * rows.hidden()});
  }
  Rows Receive(int from, int64_t count, int64_t hidden) override {
    if (received_.empty()) used_ = 0;
    if (used_ == buffers_.size()) buffers_.emplace_back();
    float* data = nullptr;
    try {
      data = buffers_[used_++].Reserve(rows_->stream(), count * hidden, "rows of another process");
    } catch (const OutOfMemory& error) {
      lacking_ = error;
    }
    received_.push_back({from, data, count * hidden});
    return rows_->Of({data, count, hidden});
  }
  void Run() override {
    const std::vector<Transfer> sent = std::exchange(sent_, {}), received = std::exchange(received_, {});
    WithMemoryForBatch(processes_, [&] {
      if (const auto lacking = std::exchange(lacking_, {})) throw OutOfMemory(*lacking);
    });
    transport_->Exchange(rows_->stream(), sent, received);
  }

 private:
  Processes& processes_;
  std::shared_ptr<const StreamRows> rows_;
  std::unique_ptr<Transport> transport_;
  std::vector<Transfer> sent_, received_;
  std::deque<DeviceBuffer<float>> buffers_;  // they keep their memory from round to round
  size_t used_ = 0;
  std::optional<OutOfMemory> lacking_;
};

// NCCL takes no GPU twice.
bool HasNcclEverywhere(Processes& processes, int gpu) {
  const std::string self = processes.host(processes.rank()) + " " + gpu::PciBusId(gpu);
  bool all = true;
  std::set<std::string> different;
  for (const Bytes& one : processes.Gather(Packer().Put(gpu::WhyNoCommunicator().empty()).PutText(self).Take())) {
    Unpacker in(one);
    all = in.Get<bool>() && all;
    different.insert(in.GetText());
  }
  return all && std::ssize(different) == processes.size();
}

}  // namespace

std::unique_ptr<RowExchange> MakeRowExchange(const Context& context, std::shared_ptr<const StreamRows> rows) {
  Processes& processes = *context.processes;
  const int gpu = rows->gpu();
  std::unique_ptr<Transport> transport;
  if (HasNcclEverywhere(processes, gpu)) {
    transport = std::make_unique<ByNccl>(context.device_copies->Get<PeerCommunicator>(
        context.processes, gpu, [&] { return std::make_shared<PeerCommunicator>(gpu, processes); }));
  } else {
    transport = std::make_unique<ThroughTheHost>(processes);
  }
  return std::make_unique<GpuRowExchange>(processes, std::move(rows), std::move(transport));
}

}  // namespace shiftrt
