// SPDX-License-Identifier: Apache-2.0
#include "bench/gpu_bench.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "bench/gpu_kernel_bench.h"
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

constexpr int kWarmups = 3, kRuns = 15;
constexpr int kLaunchesPerReplay = 32;

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

void KernelBench::Add(GpuKernelTime time, const std::function<void()>& body) {
  time.floor = std::max(time.floor, time.bytes / limits_.copy_bandwidth);
  time.seconds = MedianSecondsInGraph(stream, body);
  time.seconds_launched_alone = MedianSeconds(stream, body);
  times.push_back(std::move(time));
  progress_.Advance(1);
}

namespace {

gpu::AttentionShape Attention(const GpuKernelShape& shape) {
  return {static_cast<int>(shape.heads), static_cast<int>(shape.kv_heads), static_cast<int>(shape.head_dim),
          1 / std::sqrt(static_cast<float>(shape.head_dim))};
}

// out (tokens, intermediate) = silu(gate) * up of the joined product with both matrices.
void ApplySwiGlu(Stream stream, int64_t intermediate, const DeviceBuffer<BFloat16>& gate_up,
                 const DeviceBuffer<BFloat16>& out) {
  const auto half = [&](int64_t column) {
    return gpu::ConstDeviceRows({gate_up.data() + column, DType::kBFloat16}, kTokens, intermediate, 2 * intermediate);
  };
  gpu::GateRows(stream, Activation::kSilu, {.gate = half(0), .up = half(intermediate)},
                {Array(out), kTokens, intermediate});
}

void BenchElementwise(KernelBench& bench) {
  const Stream stream = bench.stream;
  const GpuKernelShape& shape = bench.shape;
  const auto h = RandomOnDevice<float>(stream, kTokens * shape.hidden),
             more = RandomOnDevice<float>(stream, kTokens * shape.hidden),
             weight = RandomOnDevice<float>(stream, shape.hidden);
  const DeviceBuffer<BFloat16> out(stream, kTokens * shape.intermediate, kBench);
  const double elements = AsDouble(kTokens * shape.hidden);
  bench.Time("rmsnorm", "update and norm, 4096 tokens", 14 * elements, 0, [&] {
    gpu::AddNorm(stream, {h.data(), kTokens, shape.hidden}, {more.data(), nullptr}, {weight.data(), 1e-5f}, Array(out));
  });
  const DeviceBuffer<RowProducts> products(stream, kTokens, kBench);
  bench.Time("gram", "block influence, 4096 tokens", 8 * elements, 0,
             [&] { gpu::ComputeRowProducts(stream, h.data(), more.data(), kTokens, shape.hidden, products.data()); });
  const auto gate_up = RandomOnDevice<BFloat16>(stream, kTokens * 2 * shape.intermediate);
  bench.Time("rowwise", "SwiGLU, 4096 tokens", AsDouble(6 * kTokens * shape.intermediate), 0,
             [&] { ApplySwiGlu(stream, shape.intermediate, gate_up, out); });
  const std::vector<int32_t> ids(kTokens, 17);
  const DeviceBuffer<int32_t> tokens(stream, std::span<const int32_t>(ids), kBench);
  bench.Time("rowwise", "embedding, 4096 tokens", 4 * elements, 0, [&] {
    gpu::GatherRows(stream, tokens.data(), {Array(gate_up), kTokens, shape.hidden},
                    MatrixView<float>(h.data(), kTokens, shape.hidden));
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
  const int64_t vocab = bench.shape.vocab;
  const int multiprocessors = bench.multiprocessors;
  const auto logits = RandomOnDevice<float>(stream, vocab);
  const DeviceBuffer<int32_t> token(stream, 1, kBench);
  const DeviceBuffer<uint64_t> scratch(stream, gpu::SampleScratch(vocab, multiprocessors), kBench);
  const auto time = [&](const std::string& name, const gpu::SampleRequest& request) {
    const DeviceBuffer<gpu::SampleRequest> there(stream, std::span(&request, 1), kBench);
    bench.Time("sample", name, AsDouble(4 * vocab), 0, [&] {
      gpu::SampleToken(stream, logits.data(), vocab, there.data(), multiprocessors, scratch.data(), token.data());
    });
  };
  time(fmt::format("greedy, {} logits", vocab), {});
  time("temperature, top-k 50, top-p 0.9", {1, 0.9, 0.5, 50});
}

void BenchAttention(KernelBench& bench) {
  const Stream stream = bench.stream;
  const GpuKernelShape& shape = bench.shape;
  const gpu::AttentionShape attention = Attention(shape);
  const int multiprocessors = bench.multiprocessors;
  const auto qkv = RandomOnDevice<BFloat16>(stream, kTokens * shape.qkv_dim()),
             q = RandomOnDevice<BFloat16>(stream, kTokens * shape.query_dim()),
             keys = RandomOnDevice<BFloat16>(stream, kTokens * shape.kv_dim()),
             values = RandomOnDevice<BFloat16>(stream, kTokens * shape.kv_dim());
  const DeviceBuffer<BFloat16> out(stream, kTokens * shape.query_dim(), kBench);
  const auto table = RandomOnDevice<float>(stream, kTokens * shape.head_dim);
  std::vector<int32_t> rows(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) rows[t] = static_cast<int32_t>(t);
  const DeviceBuffer<int32_t> positions(stream, std::span<const int32_t>(rows), kBench);
  bench.Time("rope", "RoPE and cache write, 4096 tokens", AsDouble(4 * kTokens * shape.qkv_dim()), 0, [&] {
    gpu::RopeAndStore(stream, {.qkv = Array(qkv),
                               .table = {table.data(), table.data()},
                               .positions = positions.data(),
                               .cache_rows = positions.data(),
                               .tokens = kTokens,
                               .heads = attention.heads,
                               .kv_heads = attention.kv_heads,
                               .head_dim = attention.head_dim,
                               .q = Array(q),
                               .keys = Array(keys),
                               .values = Array(values)});
  });
  const std::vector<gpu::PackedSequence> whole = {{0, static_cast<int32_t>(kTokens), 0, 0}};
  const DeviceBuffer<gpu::PackedSequence> sequences(stream, std::span<const gpu::PackedSequence>(whole), kBench);
  const double pairs = 0.5 * AsDouble(kTokens * (kTokens + 1) * shape.heads);
  // Times both kernels, so that one run compares them.
  for (const gpu::PackedKernel kernel : {gpu::PackedKernel::kWarps, gpu::PackedKernel::kWarpgroups}) {
    const bool warpgroups = kernel == gpu::PackedKernel::kWarpgroups;
    if (warpgroups && !gpu::TakesWarpgroups(stream.device, attention)) continue;
    bench.Time(warpgroups ? "attention_warpgroup" : "attention_packed", "4096 tokens, one sequence",
               AsDouble(4 * kTokens * (shape.query_dim() + shape.kv_dim())), 4 * pairs * attention.head_dim, [&] {
                 gpu::AttendPacked(stream, {.shape = attention,
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
  const auto one = RandomOnDevice<float>(stream, shape.query_dim());
  const DeviceBuffer<float> attended(stream, shape.query_dim(), kBench);
  gpu::SplitScratch scratch;
  Pieces<BFloat16> cached_keys(stream, kTokens * shape.kv_dim()), cached_values(stream, kTokens * shape.kv_dim());
  for (const int32_t context : {128, 4096}) {
    const std::vector<int32_t> facts = {0, context};
    const DeviceBuffer<int32_t> seen(stream, std::span<const int32_t>(facts), kBench);
    const int splits = gpu::AttentionSplits(attention, 1, context, multiprocessors);
    bench.Time("attention_split", context == 128 ? "one token, 128 keys" : "one token, 4096 keys",
               AsDouble(4 * context * shape.kv_dim()), 0, [&] {
                 gpu::AttendSplit(stream, {.shape = attention,
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
  const GpuKernelShape& shape = bench.shape;
  const auto x = RandomOnDevice<BFloat16>(stream, kTokens * shape.hidden),
             w = RandomOnDevice<BFloat16>(stream, 2 * shape.intermediate * shape.hidden);
  const DeviceBuffer<BFloat16> out(stream, kTokens * shape.intermediate, kBench);
  const double bytes =
      AsDouble(2 * (kTokens * shape.hidden + 2 * shape.intermediate * shape.hidden + kTokens * shape.intermediate));
  const double flops = AsDouble(4 * kTokens * shape.intermediate * shape.hidden);
  {
    const DeviceBuffer<BFloat16> gate_up(stream, kTokens * 2 * shape.intermediate, kBench);
    gpu::Products products(stream);
    bench.Time("matmul_cublaslt", "gate and up, then SwiGLU, 4096 tokens", bytes, flops, [&] {
      products.MatMul({.x = Array(x),
                       .w = Array(w),
                       .y = Array(gate_up),
                       .m = kTokens,
                       .n = 2 * shape.intermediate,
                       .k = shape.hidden});
      ApplySwiGlu(stream, shape.intermediate, gate_up, out);
    });
  }
  if (!gpu::TakesGatedProduct(stream.device, DType::kBFloat16, shape.hidden, shape.intermediate)) return;
  bench.Time("gated_product_warpgroup", "gate, up and SwiGLU, 4096 tokens", bytes, flops, [&] {
    gpu::MultiplyGated(stream, Activation::kSilu,
                       {.x = Array(x),
                        .gate_up = Array(w),
                        .tokens = kTokens,
                        .hidden = shape.hidden,
                        .intermediate = shape.intermediate,
                        .out = Array(out),
                        .multiprocessors = bench.multiprocessors});
  });
}

void BenchDecode(KernelBench& bench) {
  const Stream stream = bench.stream;
  const GpuKernelShape& shape = bench.shape;
  const int multiprocessors = bench.multiprocessors;
  const auto x = RandomOnDevice<float>(stream, shape.intermediate),
             weight = RandomOnDevice<float>(stream, shape.hidden);
  const DeviceBuffer<float> y(stream, shape.vocab, kBench);
  const auto time = [&](const char* name, int64_t rows, int64_t cols, const auto& launch) {
    Pieces<BFloat16> w(stream, rows * cols);
    bench.Time("matvec", name, AsDouble(2 * rows * cols), 0, [&] {
      launch(gpu::MatVecProblem{.w = w.Next(), .rows = rows, .cols = cols, .x = x.data(), .y = y.data()});
    });
  };
  const auto normed = [&](gpu::MatVecProblem problem) {
    problem.norm_weight = weight.data();
    return problem;
  };
  time("norm, queries, keys and values", shape.qkv_dim(), shape.hidden,
       [&](const gpu::MatVecProblem& p) { gpu::MatVec(stream, normed(p), multiprocessors); });
  time("output projection", shape.hidden, shape.query_dim(),
       [&](const gpu::MatVecProblem& p) { gpu::MatVecAdd(stream, p, y.data(), multiprocessors); });
  time("norm, gate, up and SwiGLU", 2 * shape.intermediate, shape.hidden,
       [&](const gpu::MatVecProblem& p) { gpu::MatVecGated(stream, Activation::kSilu, normed(p), multiprocessors); });
  time("down projection", shape.hidden, shape.intermediate,
       [&](const gpu::MatVecProblem& p) { gpu::MatVecAdd(stream, p, y.data(), multiprocessors); });
  time("norm and head", shape.vocab, shape.hidden,
       [&](const gpu::MatVecProblem& p) { gpu::MatVec(stream, normed(p), multiprocessors); });
  Pieces<float> factors(stream, 2 * shape.hidden * 64);
  const auto next = [&] {
    const auto* const p = static_cast<const float*>(factors.Next().data);
    return gpu::LowRankLra{p, p + shape.hidden * 64, weight.data(), shape.hidden, 64};
  };
  const DeviceBuffer<float> scratch(stream, gpu::LowRankLraScratch(next()), kBench);
  for (const gpu::LraKernel kernel : {gpu::LraKernel::kGrid, gpu::LraKernel::kCluster}) {
    const bool cluster = kernel == gpu::LraKernel::kCluster;
    if (cluster && !gpu::LraTakesCluster(stream, next())) continue;
    bench.Time(cluster ? "lra_cluster" : "lra", "rank 64, one token",
               AsDouble(4 * (2 * shape.hidden * 64 + 2 * shape.hidden)), 0,
               [&] { gpu::ApplyLowRankLra(stream, next(), scratch.data(), y.data(), kernel); });
  }
}

// One token, few tokens, and the conversion for more, of the gate and up projections in each format that kernels read;
// of bfloat16 few tokens, because other groups have the rest.
void BenchQuantised(KernelBench& bench) {
  const Stream stream = bench.stream;
  const GpuKernelShape& shape = bench.shape;
  const int64_t rows = 2 * shape.intermediate;
  constexpr int64_t kFew = gpu::kFewTokens;
  const auto x = RandomOnDevice<float>(stream, shape.hidden), weight = RandomOnDevice<float>(stream, shape.hidden);
  const auto few = RandomOnDevice<BFloat16>(stream, kFew * shape.hidden);
  const DeviceBuffer<float> y(stream, kFew * rows, kBench);
  const DeviceBuffer<BFloat16> expanded(stream, rows * shape.hidden, kBench);
  for (const DType type : {DType::kBFloat16, DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ4_0}) {
    if (shape.hidden % LayoutOf(type).elements != 0) continue;  // rows of whole blocks
    const int64_t bytes = BytesOf(type, rows * shape.hidden);
    // Random bfloat16 numbers as blocks: no bit pattern takes longer than another.
    Pieces<BFloat16> blocks(stream, (bytes + 15) / 16 * 8);
    const auto next = [&] { return gpu::WeightPart{{blocks.Next().data, type}, rows, 0, rows}; };
    const auto time = [&](const char* room, const std::string& what, double moved, double flops, const auto& launch) {
      bench.Time(room, fmt::format("{}, {}", Name(type), what), moved, flops, launch);
    };
    const bool quantised = IsQuantised(type);
    if (quantised)
      time("matvec_blocks", "norm, gate, up and SwiGLU", AsDouble(bytes), 0, [&] {
        gpu::WeightRows w;
        w.parts[w.count++] = next();
        gpu::MatVecGated(
            stream, Activation::kSilu,
            {.w = w, .rows = rows, .cols = shape.hidden, .x = x.data(), .norm_weight = weight.data(), .y = y.data()},
            bench.multiprocessors);
      });
    for (const int64_t tokens : {int64_t{4}, int64_t{16}, kFew}) {
      time("few", fmt::format("gate and up, {} tokens", tokens), AsDouble(bytes + 4 * tokens * rows),
           AsDouble(2 * tokens * rows * shape.hidden), [&] {
             gpu::MultiplyFew(
                 stream,
                 {.x = Array(few), .w = next(), .y = {y.data(), DType::kFloat32}, .m = tokens, .k = shape.hidden},
                 bench.multiprocessors);
           });
    }
    if (!quantised) continue;
    time("quantised", "gate and up to bfloat16", AsDouble(bytes + 2 * rows * shape.hidden), 0,
         [&] { gpu::ExpandRows(stream, next(), shape.hidden, Array(expanded)); });
  }
}

void BenchGram(KernelBench& bench) {
  const Stream stream = bench.stream;
  const GpuKernelShape& shape = bench.shape;
  constexpr int64_t kRows = 2048;
  const int64_t side = shape.hidden + 1;
  const auto h = RandomOnDevice<float>(stream, kRows * shape.hidden),
             delta = RandomOnDevice<float>(stream, kRows * shape.hidden);
  const DeviceBuffer<double> gram(stream, side * side, kBench), cross(stream, side * shape.hidden, kBench);
  gpu::FillBytes(stream, gram.data(), 0, side * side * 8);
  gpu::FillBytes(stream, cross.data(), 0, side * shape.hidden * 8);
  const double bytes = AsDouble(8 * shape.hidden * (kRows + 3 * side));
  bench.TimeDouble("gram", "one site, 2048 tokens", bytes, AsDouble(3 * kRows * shape.hidden * shape.hidden), [&] {
    gpu::AddToRidgeSums(stream, {h.data(), delta.data(), nullptr, kRows, shape.hidden, shape.hidden},
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
      {"gated delta networks", &BenchDelta},
      {"mixtures of experts", &BenchExperts},
  };
  return groups;
}

std::vector<GpuKernelTime> BenchGpuKernels(const Context& context, const GpuLimits& limits, const GpuKernelShape& shape,
                                           const GpuKernelGroup& group, Progress& progress) {
  const gpu::StreamOwner stream(context.gpus.front());
  KernelBench bench(stream.get(), gpu::QueryDevice(context.gpus.front()).multiprocessors, shape, limits, progress);
  progress.Begin(group.name, 0);
  group.run(bench);
  progress.End();
  return std::move(bench.times);
}

}  // namespace shiftrt
