// Tallies of a GPU: copies, products and sums stay there; what comes over is three numbers a token, and the sums once.
#include "kernels/cuda/gram.h"
#include "kernels/cuda/rmsnorm.h"
#include "models/cuda_weights.h"
#include "models/tally.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

using gpu::DeviceBuffer;
using gpu::Stream;

constexpr const char* kKept = "activations kept for calibration";

int64_t Bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

const float* OnDevice(const Rows& rows) {
  Check(!rows.on_host(), "rows of the host where the GPU's are expected");
  return rows.there().data;
}

class CudaRows : public KeptRows, private Rows::Carrier {
 public:
  explicit CudaRows(std::shared_ptr<DeviceWeights> device)
      : device_(std::move(device)), stream_(device_->stream.get()) {}
  void Set(const Rows& rows) override {
    const MatrixView<const float> from = rows.there();
    float* const to = buffer_.Reserve(stream_, from.rows * from.cols, kKept);
    Check(from.stride == from.cols, "rows ({}, {}) that are not dense", from.rows, from.cols);
    const auto copy = rows.on_host() ? gpu::CopyToDevice : gpu::CopyOnDevice;
    copy(stream_, to, from.data, Bytes(from.rows * from.cols));
    view_ = {to, from.rows, from.cols};
  }
  void Add(const Rows& rows) override {
    gpu::Add(stream_, buffer_.data(), OnDevice(rows), view_.rows * view_.cols, buffer_.data());
  }
  Rows rows() override { return {view_, this}; }

 private:
  MatrixView<const float> ToHost(MatrixView<const float> on_device) override {
    const int64_t size = on_device.rows * on_device.cols;
    host_.Reserve(size);
    gpu::CopyToHost(stream_, host_.data(), on_device.data, Bytes(size));
    return {host_.data(), on_device.rows, on_device.cols};
  }

  std::shared_ptr<DeviceWeights> device_;
  Stream stream_;
  DeviceBuffer<float> buffer_;
  MatrixView<const float> view_;
  Buffer<float> host_;
};

class CudaRidgeSums : public RidgeSums {
 public:
  CudaRidgeSums(std::shared_ptr<DeviceWeights> device, const RidgeMatrices& host)
      : device_(std::move(device)),
        stream_(device_->stream.get()),
        host_(host),
        gram_(stream_, Dense(host.gram), kSums),
        cross_(stream_, Dense(host.cross), kSums) {}

  void Add(const Rows& h, const Rows& delta, std::span<const double> weights) override {
    const int64_t tokens = h.count(), d = host_.cross.cols;
    Check(h.hidden() == d && delta.hidden() == d && delta.count() == tokens,
          "inputs ({}, {}) and updates ({}, {}) for sums of hidden size {}", tokens, h.hidden(), delta.count(),
          delta.hidden(), d);
    Check(weights.empty() || std::ssize(weights) == tokens, "{} weights for {} rows", weights.size(), tokens);
    const double* on_device = nullptr;
    if (!weights.empty()) {
      on_device = weights_.Reserve(stream_, tokens, kKept);
      gpu::CopyToDevice(stream_, weights_.data(), weights.data(), static_cast<int64_t>(weights.size_bytes()));
    }
    gpu::AddToRidgeSums(stream_, {OnDevice(h), OnDevice(delta), on_device, tokens, d}, {gram_.data(), cross_.data()});
  }
  void Store() override {
    gpu::CopyToHost(stream_, host_.gram.data, gram_.data(), gram_.size() * static_cast<int64_t>(sizeof(double)));
    gpu::CopyToHost(stream_, host_.cross.data, cross_.data(), cross_.size() * static_cast<int64_t>(sizeof(double)));
  }

 private:
  static constexpr const char* kSums = "the sums of a site";
  static std::span<const double> Dense(MatrixView<double> m) {
    Check(m.stride == m.cols, "sums ({}, {}) that are not dense", m.rows, m.cols);
    return {m.data, static_cast<size_t>(m.rows * m.cols)};
  }

  std::shared_ptr<DeviceWeights> device_;
  Stream stream_;
  RidgeMatrices host_;
  DeviceBuffer<double> gram_, cross_, weights_;
};

class CudaTally : public Tally {
 public:
  explicit CudaTally(std::shared_ptr<DeviceWeights> device)
      : device_(std::move(device)), stream_(device_->stream.get()) {}
  std::unique_ptr<KeptRows> MakeRows() override { return std::make_unique<CudaRows>(device_); }
  std::unique_ptr<RidgeSums> MakeRidgeSums(const RidgeMatrices& host) override {
    return std::make_unique<CudaRidgeSums>(device_, host);
  }
  std::vector<RowProducts> Products(const Rows& a, const Rows& b) override {
    Check(a.count() == b.count() && a.hidden() == b.hidden(), "products of rows of ({}, {}) and ({}, {})", a.count(),
          a.hidden(), b.count(), b.hidden());
    std::vector<RowProducts> products(a.count());
    RowProducts* const on_device = products_.Reserve(stream_, a.count(), kKept);
    gpu::ComputeRowProducts(stream_, OnDevice(a), OnDevice(b), a.count(), a.hidden(), on_device);
    gpu::CopyToHost(stream_, products.data(), on_device, a.count() * static_cast<int64_t>(sizeof(RowProducts)));
    return products;
  }

 private:
  std::shared_ptr<DeviceWeights> device_;
  Stream stream_;
  DeviceBuffer<RowProducts> products_;
};

}  // namespace

std::unique_ptr<Tally> MakeCudaTally(const Weights& weights) {
  Check(gpu::WhyUnavailable().empty(), "CUDA: {}", gpu::WhyUnavailable());
  return std::make_unique<CudaTally>(OnDevice(weights));
}

}  // namespace shiftrt
