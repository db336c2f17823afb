// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "bench/kernels_bench.h"
#include "bench/record.h"
#include "runtime/check.h"
#include "tools/bench_options.h"
#include "tools/options.h"
#include "tools/pulling.h"
#include "tools/table.h"

namespace shiftrt {

namespace {

// A checkpoint of random weights that goes with the object, unless it is to be kept.
class RandomModel {
 public:
  RandomModel(const std::string& config, const std::string& keep)
      : directory_(keep.empty() ? std::filesystem::temp_directory_path() / fmt::format("shiftrt-bench-{}", ::getpid())
                                : std::filesystem::path(keep)),
        kept_(!keep.empty()) {
    WriteRandomCheckpoint(config, DType::kBFloat16, 1, directory_);
  }
  ~RandomModel() {
    std::error_code ignored;
    if (!kept_) std::filesystem::remove_all(directory_, ignored);
  }
  RandomModel(const RandomModel&) = delete;
  RandomModel& operator=(const RandomModel&) = delete;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
  bool kept_;
};

// Random weights do not take the place of a model's.
void RefuseModelIn(const std::filesystem::path& directory) {
  for (const char* file : {"config.json", "shiftrt.json", "model.safetensors"})
    if (std::filesystem::exists(directory / file))
      FailUsage("--save {}: there is a model in this directory ({}); save somewhere else", directory.string(), file);
}

void PrintComparison(const BenchComparison& comparison, const std::string& file) {
  fmt::print("\ncompared with {}; a speedup above 1 is better\n", file);
  for (const std::string& difference : comparison.machine) fmt::print("another machine: {}\n", difference);
  Table table({"", "before", "now", "speedup", "error", ""});
  for (const ComparedFigure& figure : comparison.figures) {
    const bool known = std::isfinite(figure.error);
    table.Add({figure.name, fmt::format("{:.4g}", figure.before), fmt::format("{:.4g}", figure.now),
               fmt::format("{:.3f}", figure.speedup), known ? fmt::format("{:.3f}", figure.error) : "-",
               !known               ? "too few rounds"
               : !figure.differs    ? "no difference"
               : figure.speedup > 1 ? "better"
                                    : "worse"});
  }
  fmt::print("{}", table.Text());
}

}  // namespace

// Removing the files leaves the mapping.
std::shared_ptr<const Weights> OpenWeights(const BenchOptions& options) {
  if (options.config.empty()) {
    PullMissingModel(options.common.model, options.common.offline, options.common.quiet);
    return LoadWeights(ResolveModel(options.common.model), options.common.Loading());
  }
  if (!options.save.empty()) RefuseModelIn(options.save);
  const RandomModel random(options.config, options.save);
  return LoadWeights(random.directory(), options.common.Loading());
}

namespace {

// One benchmark's way from its settings to its record.
class Recorded {
 public:
  // Reads the record of --compare, so that one that does not go with these settings is refused before anything is
  // measured.
  Recorded(const BenchOptions& options, const Weights& weights, nlohmann::json settings)
      : options_(options), settings_(std::move(settings)) {
    settings_.update({{"model", weights.Fingerprint()}, {"rounds", options.bench.rounds}});
    if (options.common.products != Name(Products::kAuto)) settings_["products"] = options.common.products;
    if (!options.compare.empty()) before_ = ReadBenchRecord(options.compare, options.what, settings_);
  }
  // Compares, and writes the record with `more` in it to the file of --json, which may be that of --compare.
  void Finish(const Context& context, const std::vector<BenchFigure>& figures, const nlohmann::json& more) const {
    nlohmann::json record = BenchRecord(options_.what, context, settings_, figures);
    if (!before_.is_null()) PrintComparison(CompareRecords(before_, record), options_.compare);
    record.update(more);
    options_.common.WriteJson(record);
  }

 private:
  const BenchOptions& options_;
  nlohmann::json settings_, before_;
};

int BenchCpu(const BenchOptions& options) {
  Context context = options.common.MakeContext();
  context.device = Device::kCpu;
  const auto weights = OpenWeights(options);
  const auto progress = options.common.MakeProgress();
  const ModelBenchOptions& bench = options.bench;
  const Recorded recorded(options, *weights,
                          {{"prefill", bench.prefill},
                           {"context", bench.context},
                           {"decode", bench.decode},
                           {"sequences", bench.sequences}});
  const ModelBenchResult r = BenchModel(context, weights, bench, *progress);
  fmt::print(
      "{} threads, {}; read bandwidth {:.1f} GB/s, float32 peak {:.0f} GFLOP/s, of the model's products {:.0f}\n",
      context.threads, Name(context.isa), r.read_bandwidth.median() / 1e9, r.float32_peak.median() / 1e9,
      r.product_peak.median() / 1e9);
  fmt::print("prefill of {}: {:.1f} tokens/s, floor {:.1f}, {:.0f}% of the peak of its products\n", bench.prefill,
             r.prefill.median(), r.prefill_floor, 100 * r.prefill_share.median());
  fmt::print("decode at {}: {:.2f} tokens/s, floor {:.2f}, {:.0f}% of read bandwidth\n", bench.context,
             r.decode.median(), r.decode_floor, 100 * r.decode_share.median());
  fmt::print("decode of {} sequences together: {:.1f} tokens/s, floor {:.1f}, {:.0f}% of it\n", bench.sequences,
             r.together.median(), r.together_floor, 100 * r.together_share.median());
  recorded.Finish(context, r.figures(),
                  {{"bytes_per_token", r.bytes_per_token},
                   {"flops_per_token", r.flops_per_token},
                   {"prefill_floor", r.prefill_floor},
                   {"decode_floor", r.decode_floor},
                   {"together_floor", r.together_floor}});
  return 0;
}

int BenchCalibrate(const BenchOptions& options) {
  const Context context = options.common.MakeContext();
  Model model;
  model.weights = OpenWeights(options);
  CalibrationBenchOptions bench = options.calibration;
  bench.rounds = options.bench.rounds;
  const Recorded recorded(options, *model.weights,
                          {{"batches", bench.batches}, {"tokens", bench.tokens}, {"every", bench.every}});
  const CalibrationBenchResult r = BenchCalibration(context, model, bench, *options.common.MakeProgress());
  fmt::print("{} threads; {} batches of 4 x {} tokens, layers {} tapped\n", context.threads, bench.batches,
             bench.tokens, fmt::join(r.layers, ", "));
  fmt::print("forward {:.3f} s, collecting {:.3f} s: {:.2f} times the forward pass\n", r.forward.median(),
             r.collect.median(), r.ratio.median());
  recorded.Finish(context, {r.forward, r.collect, r.ratio}, {{"layers", r.layers}});
  return 0;
}

int BenchTrain(const BenchOptions& options) {
  const Context context = options.common.MakeContext();
  const auto weights = OpenWeights(options);
  const TrainBenchOptions& train = options.train;
  const Recorded recorded(options, *weights,
                          {{"device", context.device == Device::kCuda ? "cuda" : "cpu"},
                           {"loss", train.loss},
                           {"method", train.all              ? "all"
                                      : train.layers.empty() ? "lora"
                                                             : "layers " + train.layers},
                           {"rank", train.rank},
                           {"batch", train.batch},
                           {"length", train.length},
                           {"pass_tokens", train.pass_tokens}});
  const TrainBenchResult r = BenchTrain(context, weights, train, options.bench.rounds, *options.common.MakeProgress());
  const std::string trained = train.all              ? "every block and the head"
                              : train.layers.empty() ? fmt::format("LoRA of rank {} on every projection", train.rank)
                                                     : "blocks " + train.layers;
  fmt::print("{}; {}, {} parameters; loss {}, steps of {} x {} tokens\n",
             context.device == Device::kCuda ? "on the GPU"
                                             : fmt::format("{} threads, {}", context.threads, Name(context.isa)),
             trained, r.parameters, train.loss, train.batch, train.length);
  if (context.device == Device::kCpu) fmt::print("products in {}; ", Name(r.products));
  fmt::print("a step {:.3f} s, {:.1f} tokens/s; floor {:.3f} s, {:.0f}% of the peak of {:.0f} GFLOP/s\n",
             r.seconds.median(), r.tokens_per_second, r.floor_seconds, 100 * r.floor_seconds / r.seconds.median(),
             r.product_peak.median() / 1e9);
  fmt::print("memory: {:.0f} MB of the engine, {:.0f} MB resident at most; activations of {} blocks kept\n",
             static_cast<double>(r.engine_bytes) / 1e6, static_cast<double>(r.peak_resident_bytes) / 1e6,
             r.kept_blocks);
  recorded.Finish(context, {r.product_peak, r.seconds},
                  {{"parameters", r.parameters},
                   {"products", Name(r.products)},
                   {"flops", r.flops},
                   {"floor_seconds", r.floor_seconds},
                   {"tokens_per_second", r.tokens_per_second},
                   {"kept_blocks", r.kept_blocks},
                   {"engine_bytes", r.engine_bytes},
                   {"peak_resident_bytes", r.peak_resident_bytes}});
  return 0;
}

int BenchJob(const BenchOptions& options) {
  const Context context = options.common.MakeContext();
  Model model;
  model.weights = OpenWeights(options);
  const Recorded recorded(options, *model.weights, {{"samples", options.job.samples}, {"tokens", options.job.tokens}});
  const MainJobTimes times = BenchMainJob(context, model, options.job, *options.common.MakeProgress());
  const nlohmann::json report = ReportMainJob(times);
  std::vector<BenchFigure> figures;
  for (const char* step : {"select", "calibrate", "solve", "factorize", "total"})
    figures.push_back({step, BenchFigure::Better::kLower, {report[step].get<double>()}});
  recorded.Finish(context, figures, report);
  return 0;
}

}  // namespace

nlohmann::json ReportMainJob(const MainJobTimes& times) {
  fmt::print(
      "main job, {} samples of {} tokens, {} sites: selection {:.2f} s, calibration {:.2f} s, solving {:.2f} s, "
      "factorizing {:.2f} s; {:.2f} s in all\n",
      times.samples, times.tokens, times.sites, times.select, times.calibrate, times.solve, times.factorize,
      times.total);
  return {{"samples", times.samples},     {"tokens", times.tokens},       {"sites", times.sites},
          {"select", times.select},       {"calibrate", times.calibrate}, {"solve", times.solve},
          {"factorize", times.factorize}, {"total", times.total}};
}

#ifndef SHIFTRT_HAVE_CUDA
int BenchGpu(const BenchOptions&) { FailUsage("bench gpu: this build has no CUDA backend"); }
#endif

Command AddBench(CLI::App& app) {
  auto options = std::make_shared<BenchOptions>();
  options->common.AddTo(app);
  options->common.AddActivationMemoryTo(app);
  options->common.AddOutputTo(app);
  app.add_option(
         "what", options->what,
         "cpu: prefill and decoding on the CPU; calibrate: collecting sums, against a plain forward pass; job:\n"
         "selection and fit; train: a step of fine-tuning; kernels: one by one, with Google Benchmark; gpu: kernels, "
         "a\n"
         "model and the job on the GPU")
      ->check(CLI::IsMember({"cpu", "calibrate", "job", "train", "kernels", "gpu"}))
      ->capture_default_str();
  app.add_option("--config", options->config, "make random bfloat16 weights for this config.json")
      ->check(CLI::ExistingFile)
      ->excludes(app.get_option("--model"));
  app.add_option("--save", options->save, "keep those weights in this directory, for --model later")
      ->check(DirectoryOutput())
      ->needs("--config");
  app.add_option("--prefill", options->bench.prefill, "length of the prompt in tokens")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--context", options->bench.context, "number of cached positions when decoding is timed")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--decode", options->bench.decode, "tokens per timed round and sequence")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--sequences", options->bench.sequences, "number of sequences that are decoded together")
      ->check(CLI::Range(1, 1 << 12))
      ->capture_default_str();
  app.add_option("--batches", options->calibration.batches, "batches of 2048 tokens per round of calibrate")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--rounds", options->bench.rounds, "number of rounds; medians are reported")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--samples", options->job.samples, "samples of random text for the job, 512 tokens each")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app.add_option("--length", options->train.length, "tokens of a sequence of train")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--batch", options->train.batch, "sequences per step of train")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--pass-tokens", options->train.pass_tokens, "tokens that pass through the model together in train")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  CLI::Option* all = app.add_flag("--all", options->train.all, "train every block and the head instead of LoRA");
  app.add_option("--layers", options->train.layers,
                 "train these blocks instead of LoRA: last:3, first:2, or numbers of layers (3,5,8-10)")
      ->excludes(all);
  app.add_option("--rank", options->train.rank, "rank of LoRA in train")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--loss", options->train.loss,
                 "loss of train: cross entropy, or the divergence from the original model")
      ->check(CLI::IsMember({"ce", "kl", "both"}))
      ->capture_default_str();
  app.add_option(
         "--compare", options->compare,
         "cpu, calibrate, job, train: compare with the file that an earlier run with the same settings wrote with\n"
         "--json, best on the same machine")
      ->check(CLI::ExistingFile);
  app.add_flag("--kernels-only", options->kernels_only, "gpu: the kernels alone, without a model and the job");
  app.allow_extras();
  app.footer(
      "Examples:\n  shiftrt bench cpu --config Qwen2-1.5B/config.json\n"
      "  shiftrt bench calibrate --config Qwen2-1.5B/config.json --batches 1 --rounds 3\n"
      "  shiftrt bench train --model SmolLM2-135M-Instruct --dtype float32 --rounds 2\n"
      "  shiftrt bench cpu --model demo --json before.json\n"
      "  shiftrt bench cpu --model demo --compare before.json   (after a change of the program or of the machine)\n"
      "  shiftrt bench kernels --benchmark_filter=matmul   (Google Benchmark's flags are passed on)");
  return [options, &app] {
    const std::vector<std::string> rest = app.remaining();
    if (!options->compare.empty() && (options->what == "kernels" || options->what == "gpu"))
      FailUsage("bench {}: --compare belongs to bench cpu, calibrate, job and train", options->what);
    if (options->what == "kernels" && !options->common.json.empty())
      FailUsage("bench kernels: --json belongs to the others; Google Benchmark writes --benchmark_out=FILE");
    if (options->what == "job" && app.count("--rounds") > 0)
      FailUsage("bench job: it runs once, and --rounds belongs to the others");
    if (options->what == "kernels") return BenchKernels(options->common.MakeContext(), rest);
    if (!rest.empty()) FailUsage("bench {}: unknown argument {}", options->what, rest[0]);
    if (options->what == "gpu") return BenchGpu(*options);
    if (options->kernels_only) FailUsage("bench {}: --kernels-only belongs to bench gpu", options->what);
    if (options->what == "calibrate") return BenchCalibrate(*options);
    if (options->what == "job") return BenchJob(*options);
    if (options->what == "train") return BenchTrain(*options);
    return BenchCpu(*options);
  };
}

}  // namespace shiftrt
