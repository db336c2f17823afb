// SPDX-License-Identifier: Apache-2.0
// Collectors of GPUs: copies, products and sums stay there. Three numbers per token come over.
#include "engine/collector.h"

#include <cstring>
#include <optional>
#include <utility>

#include "engine/cuda/exchange.h"
#include "engine/cuda/weights.h"
#include "kernels/cuda/gram.h"
#include "runtime/check.h"
#include "runtime/cuda/communicator.h"

namespace shiftrt {

namespace {

using gpu::DeviceBuffer;
using gpu::Stream;

constexpr const char* kTallied = "weights and products of tokens";

// The GPUs whose rows a collector takes.
class Gpus {
 public:
  Gpus(const Context& context, const std::shared_ptr<const Weights>& weights) {
    for (int gpu : context.gpus) {
      weights_.push_back(OnDevice(context, weights, gpu));
      const bool fits = solvers_.empty() && context.solver != nullptr;
      solvers_.push_back(fits ? context.solver : gpu::MakeSolver(gpu));
    }
    if (count() == 1) return;
    std::vector<Stream> streams;
    for (size_t i = 0; i < weights_.size(); ++i) streams.push_back(stream(i));
    communicator_.emplace(std::move(streams));
  }
  int64_t count() const { return std::ssize(weights_); }
  const std::shared_ptr<const StreamRows>& rows(size_t which) const { return weights_[which]->rows(); }
  Stream stream(size_t which) const { return weights_[which]->stream(); }
  // The solver in whose memory the sums are. On the first GPU it is the context's solver, which later fits them.
  linalg::Solver& solver(size_t which) const { return *solvers_[which]; }
  // Returns which of them has these rows.
  size_t Which(const Rows& rows) const {
    Check(!rows.on_host(), "rows of the host where a GPU's are expected");
    for (size_t i = 0; i < weights_.size(); ++i)
      if (weights_[i]->rows() == rows.device()) return i;
    Fail("rows of GPU {} that are not of the weights on the GPUs that this collector was made for", rows.gpu());
  }
  gpu::Communicator& communicator() { return *communicator_; }

 private:
  std::vector<std::shared_ptr<DeviceWeights>> weights_;  // they own the streams
  std::vector<std::shared_ptr<linalg::Solver>> solvers_;
  std::optional<gpu::Communicator> communicator_;  // none for one GPU
};

// On the first GPU what the matrices held, and what is added there; on the others what is added there. The first one's
// arrays are those of the context's solver, so that a fit finds them in its memory.
class CudaRidgeSums : public DeviceRidgeSums {
 public:
  CudaRidgeSums(std::shared_ptr<Gpus> gpus, RidgeMatrices& into)
      : gpus_(std::move(gpus)), into_(into), n_(into.cross.rows() - 1), d_(into.cross.cols()) {
    stored_ = !into.gram.zeros();
    for (int64_t i = 0; i < gpus_->count(); ++i) {
      linalg::Solver& solver = gpus_->solver(i);
      if (i == 0 && stored_) {
        parts_.push_back({into.gram.On(solver), into.cross.On(solver), {}});
      } else {
        parts_.push_back({solver.Make(n_ + 1, n_ + 1), solver.Make(n_ + 1, d_), {}});
      }
      const Stream stream = gpu::There(*parts_[i].gram).stream;
      if (i > 0 || !stored_) Clear(parts_[i], stream);
      gpu::Synchronize(stream);  // from here on they are used in another one
    }
  }
  // The arrays are freed in the solver's stream, which knows nothing of what was added last.
  ~CudaRidgeSums() override {
    for (size_t i = stored_ ? 1 : 0; i < parts_.size(); ++i) {
      try {
        gpu::Synchronize(gpus_->stream(i));
      } catch (const Error&) {  // the next call on the stream reports it
      }
    }
  }

  void Add(const Rows& h, const Rows& delta, std::span<const double> weights) override {
    const int64_t tokens = h.count();
    Check(h.hidden() == n_ && delta.hidden() == d_ && delta.count() == tokens,
          "inputs ({}, {}) and updates ({}, {}) for sums of {} inputs and {} outputs", tokens, h.hidden(),
          delta.count(), delta.hidden(), n_, d_);
    Check(weights.empty() || std::ssize(weights) == tokens, "{} weights for {} rows", weights.size(), tokens);
    const size_t which = gpus_->Which(h);
    Check(gpus_->Which(delta) == which, "inputs of GPU {} and updates of GPU {}", h.gpu(), delta.gpu());
    const Stream stream = gpus_->stream(which);
    if (std::exchange(stored_, false)) {
      into_.gram.ToHost();
      into_.cross.ToHost();
    }
    Part& part = parts_[which];
    const double* on_device = nullptr;
    if (!weights.empty()) {
      on_device = part.weights.Reserve(stream, tokens, kTallied);
      gpu::CopyToDevice(stream, part.weights.data(), weights.data(), static_cast<int64_t>(weights.size_bytes()));
    }
    gpu::AddToRidgeSums(stream, {h.there().on_gpu().data, delta.there().on_gpu().data, on_device, tokens, n_, d_},
                        {gpu::There(*part.gram).data, gpu::There(*part.cross).data});
  }

  void Store() override {
    if (std::exchange(stored_, true)) return;
    if (parts_.size() > 1) GatherOnFirst();
    gpu::Synchronize(gpus_->stream(0));
    into_.gram = {gpus_->solver(0), parts_[0].gram};
    into_.cross = {gpus_->solver(0), parts_[0].cross};
  }

 private:
  struct Part {
    std::shared_ptr<const linalg::Array> gram, cross;
    DeviceBuffer<double> weights;
  };
  static constexpr std::shared_ptr<const linalg::Array> Part::*kMatrices[] = {&Part::gram, &Part::cross};

  static void Clear(const Part& part, Stream stream) {
    for (const auto member : kMatrices) {
      const linalg::Array& m = *(part.*member);
      gpu::FillBytes(stream, gpu::There(m).data, 0, m.rows() * m.cols() * static_cast<int64_t>(sizeof(double)));
    }
  }
  void GatherOnFirst() {
    for (const auto member : kMatrices) {
      std::vector<double*> arrays;
      arrays.reserve(parts_.size());
      for (const Part& part : parts_) arrays.push_back(gpu::There(*(part.*member)).data);
      const linalg::Array& first = *(parts_[0].*member);
      gpus_->communicator().SumToFirst(arrays, first.rows() * first.cols());
    }
    for (size_t i = 1; i < parts_.size(); ++i) Clear(parts_[i], gpus_->stream(i));
  }

  std::shared_ptr<Gpus> gpus_;
  RidgeMatrices& into_;
  const int64_t n_, d_;
  bool stored_;              // into_ has what the parts have, perhaps as the same arrays
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
    gpu::ComputeRowProducts(stream, a.there().on_gpu().data, b.there().on_gpu().data, count_, a.hidden(), on_device);
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
  // The memory of the host to which they are copied.
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

class CudaCollector : public Collector {
 public:
  explicit CudaCollector(std::shared_ptr<Gpus> gpus) : gpus_(std::move(gpus)) {}
  int64_t devices() const override { return gpus_->count(); }
  std::unique_ptr<DeviceRidgeSums> MakeRidgeSums(RidgeMatrices& into) override {
    return std::make_unique<CudaRidgeSums>(gpus_, into);
  }
  std::unique_ptr<PendingProducts> MakeProducts() override { return std::make_unique<CudaProducts>(gpus_); }
  std::unique_ptr<RowExchange> MakeExchange(const Context& context) override {
    return MakeRowExchange(context, gpus_->rows(0));
  }

 private:
  std::shared_ptr<Gpus> gpus_;
};

}  // namespace

// NOLINTNEXTLINE(performance-unnecessary-value-param): a build without CUDA has another body.
std::unique_ptr<Collector> MakeCudaCollector(const Context& context, std::shared_ptr<const Weights> weights) {
  Check(gpu::WhyUnavailable().empty(), "CUDA: {}", gpu::WhyUnavailable());
  return std::make_unique<CudaCollector>(std::make_shared<Gpus>(context, weights));
}

}  // namespace shiftrt
