// SPDX-License-Identifier: Apache-2.0
// Tallies of GPUs: copies, products and sums stay there. Three numbers per token come over, and the sums once.
#include "engine/tally.h"

#include <cstring>
#include <optional>

#include "engine/cuda/exchange.h"
#include "engine/cuda/weights.h"
#include "kernels/cuda/gram.h"
#include "kernels/cuda/rmsnorm.h"
#include "runtime/check.h"
#include "runtime/cuda/communicator.h"

namespace shiftrt {

namespace {

using gpu::DeviceBuffer;
using gpu::Stream;

constexpr const char* kTallied = "weights and products of tokens";

// The GPUs whose rows a tally takes.
class Gpus {
 public:
  Gpus(const Context& context, const std::shared_ptr<const Weights>& weights) {
    for (int gpu : context.gpus) weights_.push_back(OnDevice(context, weights, gpu));
    if (count() == 1) return;
    std::vector<Stream> streams;
    for (size_t i = 0; i < weights_.size(); ++i) streams.push_back(stream(i));
    communicator_.emplace(std::move(streams));
  }
  int64_t count() const { return std::ssize(weights_); }
  const std::shared_ptr<const StreamRows>& rows(size_t which) const { return weights_[which]->rows(); }
  Stream stream(size_t which) const { return weights_[which]->stream(); }
  // Which of them has these rows.
  size_t Which(const Rows& rows) const {
    Check(!rows.on_host(), "rows of the host where a GPU's are expected");
    for (size_t i = 0; i < weights_.size(); ++i)
      if (weights_[i]->rows() == rows.device()) return i;
    Fail("rows of GPU {} that are not of the weights on the GPUs that this tally was made for", rows.gpu());
  }
  gpu::Communicator& communicator() { return *communicator_; }

 private:
  std::vector<std::shared_ptr<DeviceWeights>> weights_;  // which own the streams
  std::optional<gpu::Communicator> communicator_;        // of several
};

// On the first GPU what the host's matrices hold, and what is added there; on the others what is added there.
class CudaRidgeSums : public DeviceRidgeSums {
 public:
  CudaRidgeSums(std::shared_ptr<Gpus> gpus, const RidgeSumsView& host) : gpus_(std::move(gpus)), host_(host) {
    const std::span<const double> gram = Dense(host.gram), cross = Dense(host.cross);
    for (int64_t i = 0; i < gpus_->count(); ++i) {
      const Stream stream = gpus_->stream(i);
      parts_.push_back({DeviceBuffer<double>(stream, std::ssize(gram), kSums),
                        DeviceBuffer<double>(stream, std::ssize(cross), kSums),
                        {}});
      Clear(i);
    }
    if (gram.back() == 0) return;  // the weight of all tokens: sums of none need not go over
    gpu::CopyToDevice(gpus_->stream(0), parts_[0].gram.data(), gram.data(), SizeInBytes(parts_[0].gram));
    gpu::CopyToDevice(gpus_->stream(0), parts_[0].cross.data(), cross.data(), SizeInBytes(parts_[0].cross));
  }

  void Add(const Rows& h, const Rows& delta, std::span<const double> weights) override {
    const int64_t tokens = h.count(), n = host_.cross.rows - 1, d = host_.cross.cols;
    Check(h.hidden() == n && delta.hidden() == d && delta.count() == tokens,
          "inputs ({}, {}) and updates ({}, {}) for sums of {} inputs and {} outputs", tokens, h.hidden(),
          delta.count(), delta.hidden(), n, d);
    Check(weights.empty() || std::ssize(weights) == tokens, "{} weights for {} rows", weights.size(), tokens);
    const size_t which = gpus_->Which(h);
    Check(gpus_->Which(delta) == which, "inputs of GPU {} and updates of GPU {}", h.gpu(), delta.gpu());
    const Stream stream = gpus_->stream(which);
    Part& part = parts_[which];
    const double* on_device = nullptr;
    if (!weights.empty()) {
      on_device = part.weights.Reserve(stream, tokens, kTallied);
      gpu::CopyToDevice(stream, part.weights.data(), weights.data(), static_cast<int64_t>(weights.size_bytes()));
    }
    gpu::AddToRidgeSums(stream, {h.there().data, delta.there().data, on_device, tokens, n, d},
                        {part.gram.data(), part.cross.data()});
  }

  void Store() override {
    if (parts_.size() > 1) GatherOnFirst();
    const Part& first = parts_[0];
    gpu::CopyToHost(gpus_->stream(0), host_.gram.data, first.gram.data(), SizeInBytes(first.gram));
    gpu::CopyToHost(gpus_->stream(0), host_.cross.data, first.cross.data(), SizeInBytes(first.cross));
  }

 private:
  struct Part {
    DeviceBuffer<double> gram, cross, weights;
  };
  static constexpr const char* kSums = "the sums of a site";
  static std::span<const double> Dense(MatrixView<double> m) {
    Check(m.stride == m.cols, "sums ({}, {}) that are not dense", m.rows, m.cols);
    return {m.data, static_cast<size_t>(m.rows * m.cols)};
  }
  static int64_t SizeInBytes(const DeviceBuffer<double>& m) { return m.size() * static_cast<int64_t>(sizeof(double)); }

  void Clear(size_t which) {
    for (const auto member : {&Part::gram, &Part::cross}) {
      const DeviceBuffer<double>& m = parts_[which].*member;
      gpu::FillBytes(gpus_->stream(which), m.data(), 0, SizeInBytes(m));
    }
  }
  void GatherOnFirst() {
    for (const auto member : {&Part::gram, &Part::cross}) {
      std::vector<double*> arrays;
      for (const Part& part : parts_) arrays.push_back((part.*member).data());
      gpus_->communicator().SumToFirst(arrays, (parts_[0].*member).size());
    }
    for (size_t i = 1; i < parts_.size(); ++i) Clear(i);
  }

  std::shared_ptr<Gpus> gpus_;
  RidgeSumsView host_;
  std::vector<Part> parts_;  // one a GPU
};

class CudaProducts : public PendingProducts {
 public:
  explicit CudaProducts(std::shared_ptr<const Gpus> gpus) : gpus_(std::move(gpus)) {}
  ~CudaProducts() override {
    if (arrived_ != nullptr) arrived_->all.WaitQuietly();
  }
  void Start(const Rows& a, const Rows& b) override {
    Check(a.count() == b.count() && a.hidden() == b.hidden(), "products of rows of ({}, {}) and ({}, {})", a.count(),
          a.hidden(), b.count(), b.hidden());
    const size_t which = gpus_->Which(a);
    Check(gpus_->Which(b) == which, "products of rows of GPU {} and GPU {}", a.gpu(), b.gpu());
    const Stream stream = gpus_->stream(which);
    Wait();
    count_ = a.count();
    RowProducts* const on_device = buffer_.Reserve(stream, count_, kTallied);
    if (arrived_ == nullptr || arrived_->device != stream.device || arrived_->capacity < count_)
      arrived_ = std::make_unique<Arrived>(stream, count_);
    gpu::ComputeRowProducts(stream, a.there().data, b.there().data, count_, a.hidden(), on_device);
    gpu::CopyToPinned(stream, arrived_->host, on_device, count_ * static_cast<int64_t>(sizeof(RowProducts)));
    arrived_->all.Record();
  }
  std::vector<RowProducts> Take() override {
    Wait();
    std::vector<RowProducts> products(count_);
    if (count_ > 0) std::memcpy(products.data(), arrived_->host.data(), products.size() * sizeof(RowProducts));
    count_ = 0;
    return products;
  }

 private:
  // Where they come to.
  struct Arrived {
    Arrived(Stream stream, int64_t count)
        : device(stream.device),
          capacity(count),
          host(stream, count * static_cast<int64_t>(sizeof(RowProducts))),
          all(stream) {}
    int device;
    int64_t capacity;
    gpu::PinnedBuffer host;
    gpu::Event all;
  };
  void Wait() {
    if (arrived_ != nullptr) arrived_->all.Wait();
  }

  std::shared_ptr<const Gpus> gpus_;
  DeviceBuffer<RowProducts> buffer_;
  std::unique_ptr<Arrived> arrived_;
  int64_t count_ = 0;
};

class CudaTally : public Tally {
 public:
  CudaTally(const Context& context, std::shared_ptr<Gpus> gpus) : Tally(context), gpus_(std::move(gpus)) {
    if (processes().groups() == 1) return;
    Check(gpus_->count() == 1, "a process that shares batches with others has {} GPUs, not one", gpus_->count());
    exchange_ = MakeRowExchange(context, gpus_->rows(0));
  }
  int64_t devices() const override { return gpus_->count(); }
  std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(const RidgeSumsView& host) override {
    return std::make_unique<CudaRidgeSums>(gpus_, host);
  }
  std::unique_ptr<PendingProducts> MakeProducts() override { return std::make_unique<CudaProducts>(gpus_); }
  RowExchange* exchange() override { return exchange_.get(); }

 private:
  std::shared_ptr<Gpus> gpus_;
  std::unique_ptr<RowExchange> exchange_;  // of several processes
};

}  // namespace

std::unique_ptr<Tally> MakeCudaTally(const Context& context, std::shared_ptr<const Weights> weights) {
  Check(gpu::WhyUnavailable().empty(), "CUDA: {}", gpu::WhyUnavailable());
  return std::make_unique<CudaTally>(context, std::make_shared<Gpus>(context, weights));
}

}  // namespace shiftrt
