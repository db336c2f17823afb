// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bench.h"

#include <algorithm>
#include <functional>
#include <string>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/gated_product.h"
#include "kernels/cuda/gram.h"
#include "kernels/cuda/lra.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/rmsnorm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/rowwise.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/scores.h"
#include "runtime/cuda/dense.h"
#include "runtime/elements.h"
#include "runtime/median.h"
#include "runtime/random.h"

namespace shiftrt {

namespace {

using gpu::DeviceBuffer;
using gpu::Stream;

constexpr const char* kBench = "the bench";
constexpr int kWarmups = 3, kRuns = 15;
constexpr int kLaunchesPerReplay = 32;
// The shape of Llama-3.1-8B.
constexpr int64_t kHidden = 4096, kIntermediate = 14336, kVocab = 128256, kTokens = 4096;
constexpr gpu::AttentionShape kShape{32, 8, 128, 0.08838835f};
constexpr int64_t kQDim = 4096, kKvDim = 1024, kQkvDim = kQDim + 2 * kKvDim;

double MedianSeconds(Stream stream, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int run = 0; run < kWarmups + kRuns; ++run) {
    const double taken = gpu::SecondsOnDevice(stream, body);
    if (run >= kWarmups) seconds.push_back(taken);
  }
  return Median(seconds);
}

// Seconds per launch of `body` inside a replayed graph of many launches, which excludes the cost of submitting a
// launch. `body` uses another input each time it is called, so that the launches of a replay rotate over the inputs.
double MedianSecondsInGraph(Stream stream, const std::function<void()>& body) {
  gpu::LaunchGraph graph;
  const std::function<void()> many = [&] {
    for (int launch = 0; launch < kLaunchesPerReplay; ++launch) body();
  };
  return MedianSeconds(stream, [&] { graph.Run(stream, many); }) / kLaunchesPerReplay;
}

// Random values on the device: repeats a pattern that is drawn on the host.
template <typename T>
DeviceBuffer<T> RandomOnDevice(Stream stream, int64_t count) {
  constexpr int64_t kPattern = 1 << 20;
  Random random(1);
  std::vector<T> pattern(std::min(count, kPattern));
  for (T& x : pattern) x = T(static_cast<float>(random.Normal()));
  DeviceBuffer<T> out(stream, count, kBench);
  for (int64_t at = 0; at < count; at += kPattern)
    gpu::CopyToDevice(stream, out.data() + at, pattern.data(),
                      std::min(kPattern, count - at) * static_cast<int64_t>(sizeof(T)));
  return out;
}

// Successive pieces of an array that is larger than any cache, so that each is read from memory, like weights in
// decoding.
template <typename T>
class Pieces {
 public:
  Pieces(Stream stream, int64_t piece)
      : piece_(piece),
        count_(std::max<int64_t>(1, kColdBytes / (piece * static_cast<int64_t>(sizeof(T))))),
        all_(RandomOnDevice<T>(stream, piece * count_)) {}
  gpu::DeviceArray Next() {
    at_ = (at_ + 1) % count_;
    return {all_.data() + at_ * piece_, DTypeOf<T>::value};
  }

 private:
  static constexpr int64_t kColdBytes = int64_t{512} << 20;
  int64_t piece_, count_;
  DeviceBuffer<T> all_;
  int64_t at_ = 0;
};

template <typename T>
gpu::DeviceArray Array(const DeviceBuffer<T>& buffer) {
  return {buffer.data(), DTypeOf<T>::value};
}

double CopyBandwidth(Stream stream) {
  constexpr int64_t kBytes = int64_t{2} << 30;
  const DeviceBuffer<std::byte> from(stream, kBytes, kBench), to(stream, kBytes, kBench);
  return 2.0 * static_cast<double>(kBytes) /
         MedianSeconds(stream, [&] { gpu::CopyOnDevice(stream, to.data(), from.data(), kBytes); });
}

template <typename T>
double MatrixPeak(Stream stream) {
  constexpr int64_t kSide = 8192;
  gpu::Products products(stream);
  const auto x = RandomOnDevice<T>(stream, kSide * kSide), w = RandomOnDevice<T>(stream, kSide * kSide);
  const DeviceBuffer<T> y(stream, kSide * kSide, kBench);
  const double seconds = MedianSeconds(stream, [&] {
    products.MatMul({.x = Array(x), .w = Array(w), .y = Array(y), .m = kSide, .n = kSide, .k = kSide});
  });
  return 2.0 * static_cast<double>(kSide * kSide * kSide) / seconds;
}

double DoublePeak(Stream stream) {
  constexpr int64_t kSide = 4096;
  gpu::Dense dense(stream);
  const auto a = RandomOnDevice<double>(stream, kSide * kSide), b = RandomOnDevice<double>(stream, kSide * kSide);
  const DeviceBuffer<double> c(stream, kSide * kSide, kBench);
  const double seconds = MedianSeconds(stream, [&] {
    dense.Gemm(1, {a.data(), kSide, kSide, true}, {b.data(), kSide, kSide}, 0, c.data());
  });
  return 2.0 * static_cast<double>(kSide * kSide * kSide) / seconds;
}

}  // namespace

// Times kernels and collects the results.
class KernelBench {
 public:
  KernelBench(Stream stream, int multiprocessors, const GpuLimits& limits, Progress& progress)
      : stream(stream), multiprocessors(multiprocessors), limits_(limits), progress_(progress) {}
  void Time(const char* room, const char* name, double bytes, double flops, const std::function<void()>& body) {
    Add({.room = room, .name = name, .bytes = bytes, .flops = flops, .floor = flops / limits_.matrix_peak}, body);
  }
  // `flops` are float64 FLOP.
  void TimeDouble(const char* room, const char* name, double bytes, double flops, const std::function<void()>& body) {
    Add({.room = room, .name = name, .bytes = bytes, .flops = flops, .floor = flops / limits_.double_peak}, body);
  }

  const Stream stream;
  const int multiprocessors;
  std::vector<GpuKernelTime> times;

 private:
  void Add(GpuKernelTime time, const std::function<void()>& body) {
    time.floor = std::max(time.floor, time.bytes / limits_.copy_bandwidth);
    time.seconds = MedianSecondsInGraph(stream, body);
    time.seconds_launched_alone = MedianSeconds(stream, body);
    times.push_back(std::move(time));
    progress_.Advance(1);
  }

  GpuLimits limits_;
  Progress& progress_;
};

namespace {

// out (tokens, intermediate) = silu(gate) * up of the joined product with both matrices.
void ApplySwiGlu(Stream stream, const DeviceBuffer<BFloat16>& gate_up, const DeviceBuffer<BFloat16>& out) {
  const auto half = [&](int64_t column) {
    return gpu::ConstDeviceRows({gate_up.data() + column, DType::kBFloat16}, kTokens, kIntermediate, 2 * kIntermediate);
  };
  gpu::GateRows(stream, Activation::kSilu, {.gate = half(0), .up = half(kIntermediate)},
                {Array(out), kTokens, kIntermediate});
}

void BenchElementwise(KernelBench& bench) {
  const Stream stream = bench.stream;
  const auto h = RandomOnDevice<float>(stream, kTokens * kHidden),
             more = RandomOnDevice<float>(stream, kTokens * kHidden), weight = RandomOnDevice<float>(stream, kHidden);
  const DeviceBuffer<BFloat16> out(stream, kTokens * kIntermediate, kBench);
  const double elements = static_cast<double>(kTokens * kHidden);
  bench.Time("rmsnorm", "update and norm, 4096 tokens", 14 * elements, 0, [&] {
    gpu::AddNorm(stream, {h.data(), kTokens, kHidden}, {more.data(), nullptr}, {weight.data(), 1e-5f}, Array(out));
  });
  const DeviceBuffer<RowProducts> products(stream, kTokens, kBench);
  bench.Time("gram", "block influence, 4096 tokens", 8 * elements, 0,
             [&] { gpu::ComputeRowProducts(stream, h.data(), more.data(), kTokens, kHidden, products.data()); });
  const auto gate_up = RandomOnDevice<BFloat16>(stream, kTokens * 2 * kIntermediate);
  bench.Time("rowwise", "SwiGLU, 4096 tokens", 6.0 * static_cast<double>(kTokens * kIntermediate), 0,
             [&] { ApplySwiGlu(stream, gate_up, out); });
  const std::vector<int32_t> ids(kTokens, 17);
  const DeviceBuffer<int32_t> tokens(stream, std::span<const int32_t>(ids), kBench);
  bench.Time("rowwise", "embedding, 4096 tokens", 4 * elements, 0, [&] {
    gpu::GatherRows(stream, tokens.data(), {Array(gate_up), kTokens, kHidden},
                    MatrixView<float>(h.data(), kTokens, kHidden));
  });
  constexpr int64_t kRows = 1024, kChunk = 8192;
  const auto logits = RandomOnDevice<float>(stream, kRows * kChunk);
  const DeviceBuffer<gpu::TokenScore> scores(stream, kRows, kBench);
  const DeviceBuffer<int32_t> best(stream, kRows, kBench);
  bench.Time("scores", "token scores, 1024 x 8192 logits", 4.0 * kRows * kChunk, 0, [&] {
    gpu::UpdateScores(stream, {logits.data(), kRows, kChunk, 0, kChunk}, tokens.data(), scores.data(), h.data(),
                      best.data());
  });
}

void BenchSampling(KernelBench& bench) {
  const Stream stream = bench.stream;
  const int multiprocessors = bench.multiprocessors;
  const auto logits = RandomOnDevice<float>(stream, kVocab);
  const DeviceBuffer<int32_t> token(stream, 1, kBench);
  const DeviceBuffer<uint64_t> scratch(stream, gpu::SampleScratch(kVocab, multiprocessors), kBench);
  for (const auto& [name, request] : {std::pair{"greedy, 128256 logits", gpu::SampleRequest{}},
                                      {"temperature, top-k 50, top-p 0.9", {1, 0.9, 0.5, 50}}}) {
    const DeviceBuffer<gpu::SampleRequest> there(stream, std::span(&request, 1), kBench);
    bench.Time("sample", name, 4.0 * kVocab, 0, [&] {
      gpu::SampleToken(stream, logits.data(), kVocab, there.data(), multiprocessors, scratch.data(), token.data());
    });
  }
}

void BenchAttention(KernelBench& bench) {
  const Stream stream = bench.stream;
  const int multiprocessors = bench.multiprocessors;
  const auto qkv = RandomOnDevice<BFloat16>(stream, kTokens * kQkvDim),
             q = RandomOnDevice<BFloat16>(stream, kTokens * kQDim),
             keys = RandomOnDevice<BFloat16>(stream, kTokens * kKvDim),
             values = RandomOnDevice<BFloat16>(stream, kTokens * kKvDim);
  const DeviceBuffer<BFloat16> out(stream, kTokens * kQDim, kBench);
  const auto table = RandomOnDevice<float>(stream, kTokens * 128);
  std::vector<int32_t> rows(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) rows[t] = static_cast<int32_t>(t);
  const DeviceBuffer<int32_t> positions(stream, std::span<const int32_t>(rows), kBench);
  bench.Time("rope", "RoPE and cache write, 4096 tokens", 4.0 * kTokens * kQkvDim, 0, [&] {
    gpu::RopeAndStore(stream, {.qkv = Array(qkv),
                               .table = {table.data(), table.data()},
                               .positions = positions.data(),
                               .cache_rows = positions.data(),
                               .tokens = kTokens,
                               .heads = kShape.heads,
                               .kv_heads = kShape.kv_heads,
                               .head_dim = kShape.head_dim,
                               .q = Array(q),
                               .keys = Array(keys),
                               .values = Array(values)});
  });
  const std::vector<gpu::PackedSequence> whole = {{0, static_cast<int32_t>(kTokens), 0, 0}};
  const DeviceBuffer<gpu::PackedSequence> sequences(stream, std::span<const gpu::PackedSequence>(whole), kBench);
  const double pairs = 0.5 * static_cast<double>(kTokens) * (kTokens + 1) * kShape.heads;
  // Times both kernels, so that one run compares them.
  for (const gpu::PackedKernel kernel : {gpu::PackedKernel::kWarps, gpu::PackedKernel::kWarpgroups}) {
    const bool warpgroups = kernel == gpu::PackedKernel::kWarpgroups;
    if (warpgroups && !gpu::TakesWarpgroups(stream.device, kShape)) continue;
    bench.Time(warpgroups ? "attention_warpgroup" : "attention_packed", "4096 tokens, one sequence",
               2.0 * kTokens * (2 * kQDim + 2 * kKvDim), 4 * pairs * kShape.head_dim, [&] {
                 gpu::AttendPacked(stream, {.shape = kShape,
                                            .q = Array(q),
                                            .keys = Array(keys),
                                            .values = Array(values),
                                            .sequences = sequences.data(),
                                            .sequence_count = 1,
                                            .longest = kTokens,
                                            .tokens = kTokens,
                                            .rows = kTokens,
                                            .out = Array(out),
                                            .kernel = kernel});
               });
  }
  const auto one = RandomOnDevice<float>(stream, kQDim);
  const DeviceBuffer<float> attended(stream, kQDim, kBench);
  gpu::SplitScratch scratch;
  Pieces<BFloat16> cached_keys(stream, kTokens * kKvDim), cached_values(stream, kTokens * kKvDim);
  for (const int32_t context : {128, 4096}) {
    const std::vector<int32_t> facts = {0, context};
    const DeviceBuffer<int32_t> seen(stream, std::span<const int32_t>(facts), kBench);
    const int splits = gpu::AttentionSplits(kShape, 1, context, multiprocessors);
    bench.Time("attention_split", context == 128 ? "one token, 128 keys" : "one token, 4096 keys",
               4.0 * context * kKvDim, 0, [&] {
                 gpu::AttendSplit(stream, {.shape = kShape,
                                           .q = one.data(),
                                           .keys = cached_keys.Next(),
                                           .values = cached_values.Next(),
                                           .first_row = seen.data(),
                                           .visible = seen.data() + 1,
                                           .tokens = 1,
                                           .splits = splits,
                                           .scratch = &scratch,
                                           .out = Array(attended)});
               });
  }
}

// Times both forms, so that one run compares them.
void BenchGates(KernelBench& bench) {
  const Stream stream = bench.stream;
  const auto x = RandomOnDevice<BFloat16>(stream, kTokens * kHidden),
             w = RandomOnDevice<BFloat16>(stream, 2 * kIntermediate * kHidden);
  const DeviceBuffer<BFloat16> out(stream, kTokens * kIntermediate, kBench);
  const double bytes = 2.0 * (kTokens * kHidden + 2 * kIntermediate * kHidden + kTokens * kIntermediate);
  const double flops = 4.0 * kTokens * kIntermediate * kHidden;
  {
    const DeviceBuffer<BFloat16> gate_up(stream, kTokens * 2 * kIntermediate, kBench);
    gpu::Products products(stream);
    bench.Time("matmul_cublaslt", "gate and up, then SwiGLU, 4096 tokens", bytes, flops, [&] {
      products.MatMul(
          {.x = Array(x), .w = Array(w), .y = Array(gate_up), .m = kTokens, .n = 2 * kIntermediate, .k = kHidden});
      ApplySwiGlu(stream, gate_up, out);
    });
  }
  if (!gpu::TakesGatedProduct(stream.device, DType::kBFloat16, kHidden, kIntermediate)) return;
  bench.Time("gated_product_warpgroup", "gate, up and SwiGLU, 4096 tokens", bytes, flops, [&] {
    gpu::MultiplyGated(stream, Activation::kSilu,
                       {.x = Array(x),
                        .gate_up = Array(w),
                        .tokens = kTokens,
                        .hidden = kHidden,
                        .intermediate = kIntermediate,
                        .out = Array(out),
                        .multiprocessors = bench.multiprocessors});
  });
}

void BenchDecode(KernelBench& bench) {
  const Stream stream = bench.stream;
  const int multiprocessors = bench.multiprocessors;
  const auto x = RandomOnDevice<float>(stream, kIntermediate), weight = RandomOnDevice<float>(stream, kHidden);
  const DeviceBuffer<float> y(stream, kVocab, kBench);
  const auto time = [&](const char* name, int64_t rows, int64_t cols, const auto& launch) {
    Pieces<BFloat16> w(stream, rows * cols);
    bench.Time("matvec", name, 2.0 * static_cast<double>(rows * cols), 0, [&] {
      launch(gpu::MatVecProblem{.w = w.Next(), .rows = rows, .cols = cols, .x = x.data(), .y = y.data()});
    });
  };
  const auto normed = [&](gpu::MatVecProblem problem) {
    problem.norm_weight = weight.data();
    return problem;
  };
  time("norm, queries, keys and values", kQkvDim, kHidden,
       [&](const gpu::MatVecProblem& p) { gpu::MatVec(stream, normed(p), multiprocessors); });
  time("output projection", kHidden, kQDim,
       [&](const gpu::MatVecProblem& p) { gpu::MatVecAdd(stream, p, y.data(), multiprocessors); });
  time("norm, gate, up and SwiGLU", 2 * kIntermediate, kHidden,
       [&](const gpu::MatVecProblem& p) { gpu::MatVecGated(stream, Activation::kSilu, normed(p), multiprocessors); });
  time("down projection", kHidden, kIntermediate,
       [&](const gpu::MatVecProblem& p) { gpu::MatVecAdd(stream, p, y.data(), multiprocessors); });
  time("norm and head", kVocab, kHidden,
       [&](const gpu::MatVecProblem& p) { gpu::MatVec(stream, normed(p), multiprocessors); });
  Pieces<float> factors(stream, 2 * kHidden * 64);
  const auto next = [&] {
    const auto* const p = static_cast<const float*>(factors.Next().data);
    return gpu::LowRankLra{p, p + kHidden * 64, weight.data(), kHidden, 64};
  };
  const DeviceBuffer<float> scratch(stream, gpu::LowRankLraScratch(next()), kBench);
  for (const gpu::LraKernel kernel : {gpu::LraKernel::kGrid, gpu::LraKernel::kCluster}) {
    const bool cluster = kernel == gpu::LraKernel::kCluster;
    if (cluster && !gpu::LraTakesCluster(stream, next())) continue;
    bench.Time(cluster ? "lra_cluster" : "lra", "rank 64, one token", 4.0 * (2 * kHidden * 64 + 2 * kHidden), 0,
               [&] { gpu::ApplyLowRankLra(stream, next(), scratch.data(), y.data(), kernel); });
  }
}

// One token, few tokens, and the conversion for more, of the gate and up projections in each format that kernels read;
// of bfloat16 few tokens, because other groups have the rest.
void BenchQuantised(KernelBench& bench) {
  const Stream stream = bench.stream;
  constexpr int64_t kRows = 2 * kIntermediate, kFew = gpu::kFewTokens;
  const auto x = RandomOnDevice<float>(stream, kHidden), weight = RandomOnDevice<float>(stream, kHidden);
  const auto few = RandomOnDevice<BFloat16>(stream, kFew * kHidden);
  const DeviceBuffer<float> y(stream, kFew * kRows, kBench);
  const DeviceBuffer<BFloat16> expanded(stream, kRows * kHidden, kBench);
  for (const DType type : {DType::kBFloat16, DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ4_0}) {
    const int64_t bytes = BytesOf(type, kRows * kHidden);
    // Random bfloat16 numbers as blocks: no bit pattern takes longer than another.
    Pieces<BFloat16> blocks(stream, (bytes + 15) / 16 * 8);
    const auto next = [&] { return gpu::WeightPart{{blocks.Next().data, type}, kRows, 0, kRows}; };
    const auto time = [&](const char* room, const char* what, double moved, double flops, const auto& launch) {
      bench.Time(room, (std::string(Name(type)) + ", " + what).c_str(), moved, flops, launch);
    };
    const bool quantised = IsQuantised(type);
    if (quantised)
      time("matvec_blocks", "norm, gate, up and SwiGLU", static_cast<double>(bytes), 0, [&] {
        gpu::WeightRows w;
        w.parts[w.count++] = next();
        gpu::MatVecGated(
            stream, Activation::kSilu,
            {.w = w, .rows = kRows, .cols = kHidden, .x = x.data(), .norm_weight = weight.data(), .y = y.data()},
            bench.multiprocessors);
      });
    for (const int64_t tokens : {int64_t{4}, int64_t{16}, kFew}) {
      const double outputs = 4.0 * static_cast<double>(tokens * kRows);
      time("few", fmt::format("gate and up, {} tokens", tokens).c_str(), static_cast<double>(bytes) + outputs,
           2.0 * static_cast<double>(tokens * kRows * kHidden), [&] {
             gpu::MultiplyFew(
                 stream, {.x = Array(few), .w = next(), .y = {y.data(), DType::kFloat32}, .m = tokens, .k = kHidden},
                 bench.multiprocessors);
           });
    }
    if (!quantised) continue;
    time("quantised", "gate and up to bfloat16", static_cast<double>(bytes) + 2.0 * kRows * kHidden, 0,
         [&] { gpu::ExpandRows(stream, next(), kHidden, Array(expanded)); });
  }
}

void BenchGram(KernelBench& bench) {
  const Stream stream = bench.stream;
  constexpr int64_t kRows = 2048, kSide = kHidden + 1;
  const auto h = RandomOnDevice<float>(stream, kRows * kHidden), delta = RandomOnDevice<float>(stream, kRows * kHidden);
  const DeviceBuffer<double> gram(stream, kSide * kSide, kBench), cross(stream, kSide * kHidden, kBench);
  gpu::FillBytes(stream, gram.data(), 0, kSide * kSide * 8);
  gpu::FillBytes(stream, cross.data(), 0, kSide * kHidden * 8);
  const double bytes = 8.0 * kRows * kHidden + 8.0 * 3 * kSide * kHidden;
  bench.TimeDouble("gram", "one site, 2048 tokens", bytes, 3.0 * kRows * kHidden * kHidden, [&] {
    gpu::AddToRidgeSums(stream, {h.data(), delta.data(), nullptr, kRows, kHidden, kHidden},
                        {gram.data(), cross.data()});
  });
}

}  // namespace

GpuLimits MeasureGpuLimits(const Context& context) {
  const gpu::StreamOwner stream(context.gpus.front());
  return {CopyBandwidth(stream.get()), MatrixPeak<BFloat16>(stream.get()), DoublePeak(stream.get())};
}

double MeasureGpuProductPeak(const Context& context, DType type) {
  const gpu::StreamOwner stream(context.gpus.front());
  return WithType(type, [&]<typename T>(std::type_identity<T>) { return MatrixPeak<T>(stream.get()); });
}

const std::vector<GpuKernelGroup>& GpuKernelGroups() {
  static const std::vector<GpuKernelGroup> groups = {
      {"elementwise kernels", &BenchElementwise},
      {"sampling", &BenchSampling},
      {"attention", &BenchAttention},
      {"gate and up projections", &BenchGates},
      {"decoding", &BenchDecode},
      {"few tokens, quantised weights", &BenchQuantised},
      {"ridge sums", &BenchGram},
  };
  return groups;
}

std::vector<GpuKernelTime> BenchGpuKernels(const Context& context, const GpuLimits& limits, const GpuKernelGroup& group,
                                           Progress& progress) {
  const gpu::StreamOwner stream(context.gpus.front());
  KernelBench bench(stream.get(), gpu::QueryDevice(context.gpus.front()).multiprocessors, limits, progress);
  progress.Begin(group.name, 0);
  group.run(bench);
  progress.End();
  return std::move(bench.times);
}

}  // namespace shiftrt
