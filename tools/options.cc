// SPDX-License-Identifier: Apache-2.0
#include "tools/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "api/impl.h"
#include "models/lora.h"
#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/host_memory.h"
#include "runtime/parse.h"
#include "tools/gpus.h"
#include "tools/outputs.h"
#include "tools/progress_bar.h"
#include "tools/pulling.h"
#include "tools/splitting.h"
#include "tools/standard_output.h"

namespace shiftrt {

void CommonOptions::AddModelTo(CLI::App& app) {
  app.add_option("--model", model,
                 "Hugging Face directory, GGUF file, directory written by --save, demo, or a model of the Hugging Face "
                 "hub, which is\n"
                 "pulled if it is not there: ORG/NAME[@REVISION] or a known name such as qwen2-1.5b (docs/pull.md)")
      ->capture_default_str();
  app.add_flag("--offline", offline, "never pull a model");
}

void CommonOptions::AddTo(CLI::App& app) {
  AddModelTo(app);
  app.add_option("--device", device,
                 "auto, cpu, cuda or cuda:N; cuda:N,M,... or cuda:all collect the sums of fits that are independent\n"
                 "of each other on several GPUs, and do everything else on the first of them. Several\n"
                 "processes take one GPU each (docs/scale.md)")
      ->capture_default_str();
  app.add_option("--dtype", dtype,
                 "type of the weights in memory; auto: as stored. A GPU expands quantised types without kernels there "
                 "to bfloat16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  AddThreadsTo(app);
}

void CommonOptions::AddLoraTo(CLI::App& app) {
  app.add_option("--lora", lora,
                 "directory with a LoRA adapter of peft for this model (adapter_config.json,\n"
                 "adapter_model.safetensors), to be merged into its weights")
      ->check(CLI::ExistingDirectory);
}

void CommonOptions::AddThreadsTo(CLI::App& app) {
  app.add_option("--threads", threads, "number of CPU threads; 0: one per core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  app.add_option(
         "--products", products,
         "precision of products on a CPU: float32, or bfloat16, which rounds activations, gradients and weights\n"
         "for the products (or activations to 8 bits where weights are quantised) and takes half the time or\n"
         "less with AVX512-BF16 and AMX. auto: bfloat16 on such a CPU where layers are selected, a repair is\n"
         "fitted or a model is trained, else float32\n"
         "(docs/dev/cpu.md#products-in-bfloat16)")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16"}))
      ->capture_default_str();
  app.add_flag("--check-weights", check_finite, "fail if a weight is NaN or infinite");
}

void CommonOptions::AddQuietTo(CLI::App& app) { app.add_flag("--quiet", quiet, "no progress on standard error"); }

void CommonOptions::AddOutputTo(CLI::App& app) {
  AddQuietTo(app);
  app.add_option("--json", json, "write all results to this file")->check(FileOutput());
}

namespace {

void AddMemory(CLI::App& app, uint64_t& memory, const std::string& help) {
  app.add_option("--memory", memory, help)
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 60));
}

}  // namespace

void CommonOptions::AddMemoryTo(CLI::App& app) {
  AddMemory(app, memory,
            "host memory for calibration sums, such as 4GiB (default: three quarters of what is free). If the\n"
            "sums of all sites need more, the sites are fitted in groups, with one pass over the text per group");
}

void CommonOptions::AddActivationMemoryTo(CLI::App& app) {
  AddMemory(app, memory,
            "host memory for activations of blocks, such as 4GiB (default: three quarters of what is free). What does\n"
            "not fit is computed again in the backward pass. On a GPU everything is computed again");
}

void CommonOptions::AddSeedTo(CLI::App& app, const std::string& of) {
  app.add_option("--seed", seed, "seed of " + of)->capture_default_str();
}

namespace {

// A validator of outputs (tools/outputs.h has their names), which passes where `attempt` throws no Error.
CLI::Validator Output(const std::string& name, const std::string& type,
                      const std::function<void(const std::string&)>& attempt) {
  const auto why_not = [attempt](const std::string& path) -> std::string {
    if (path.empty()) return "its value is empty";
    try {
      attempt(path);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  return CLI::Validator(why_not, type, name);
}

CLI::Validator Number(const char* expected, const char* type, bool (*has)(double)) {
  const auto why_not = [expected, has](const std::string& text) -> std::string {
    double number = 0;
    if (ParseNumber(text, &number) && std::isfinite(number) && has(number)) return "";
    return fmt::format("{}: expected {}", text, expected);
  };
  return CLI::Validator(why_not, type);
}

}  // namespace

Resources CommonOptions::MakeResources() const {
  return Prepare({.threads = threads,
                  .calibration_memory = static_cast<int64_t>(memory),
                  .gpus = ChooseGpus(device, *processes),
                  .products = ParseProducts(products),
                  .processes = processes});
}

Context CommonOptions::MakeContext() const { return shiftrt::MakeContext(MakeResources()); }

namespace {

WeightType WeightTypeOf(const std::string& dtype) {
  return dtype == "float32"    ? WeightType::kFloat32
         : dtype == "float16"  ? WeightType::kFloat16
         : dtype == "bfloat16" ? WeightType::kBFloat16
                               : WeightType::kAsStored;
}

OpenSettings Opening(const CommonOptions& options) {
  // Quantised weights stay so, because products read them.
  const bool expand = options.dtype == "auto" && options.expand;
  return {.weights = expand ? WeightType::kExpanded : WeightTypeOf(options.dtype),
          .check_finite = options.check_finite,
          .merge_lora = options.merge_lora,
          .lora = options.lora};
}

}  // namespace

LoadOptions CommonOptions::Loading() const { return shiftrt::Loading(Opening(*this)); }

LanguageModel CommonOptions::OpenLanguageModel() const {
  processes->FirstBeforeOthers([&] {
    PullMissingModel(model, offline, quiet);
    return true;
  });
  const auto progress = MakeProgress();
  SplitModel(*this, *processes);
  OpenSettings settings = Opening(*this);
  settings.processes = processes;
  settings.progress = progress.get();
  LanguageModel opened = LanguageModel::Open(model, settings);
  ReportShares(*opened.impl().model.weights, *processes, quiet);
  const DeferredTokenizer& tokenizer = opened.impl().model.tokenizer;
  if (tokenizer && processes->first()) tokenizer.ReportTo(Tell);
  const std::filesystem::path& directory = opened.Directory();
  if (lora.empty() && processes->first() && Exists(directory / kLoraConfig))
    Tell(fmt::format(
        "{0} has a LoRA adapter of peft next to the model, which transformers applies by itself and shiftrt "
        "does not; --lora {0} applies it",
        directory.string()));
  return opened;
}

void CommonOptions::WriteJson(const nlohmann::json& result) const {
  if (json.empty()) return;
  nlohmann::json whole = result;
  if (!processes->alone()) {
    const std::vector<Bytes> all = processes->Gather(Packer().Put(processes->work).Put(PeakMemory()).Take());
    for (int rank = 0; rank < processes->size(); ++rank) {
      Unpacker in(all[rank]);
      const auto work = in.Get<ProcessWork>();
      whole["processes"].push_back({{"rank", rank},
                                    {"host", processes->host(rank)},
                                    {"batches", work.batches},
                                    {"tokens", work.tokens},
                                    {"fits", work.fits},
                                    {"bytes_sent", work.sent},
                                    {"seconds_waited", work.waited},
                                    {"peak_memory", in.Get<int64_t>()}});
      if (!processes->split()) continue;
      nlohmann::json& one = whole["processes"].back();
      one["blocks"] = {work.first_block, work.end_block};
      one["weight_bytes"] = work.weight_bytes;
    }
  }
  if (processes->first()) WriteFile(json, whole.dump(2) + "\n");
}

CLI::Validator AboveZero() {
  return Number("a number above 0", "POSITIVE", [](double number) { return number > 0; });
}

CLI::Validator FromZero() {
  return Number("a number from 0 on", "NONNEGATIVE", [](double number) { return number >= 0; });
}

CLI::Validator FileOutput() {
  return Output(kFileOutput, "FILE", [](const std::string& path) { AtomicFile trial(path); });
}

CLI::Validator DirectoryOutput() {
  return Output(kDirectoryOutput, "DIR",
                [](const std::string& path) { AtomicDirectory(path).Create(".shiftrt-trial"); });
}

CLI::Validator JournalOutput(const std::string& suffix) {
  return Output(kFileOutput, "", [suffix](const std::string& path) {
    if (!MayBeJournal(path + suffix))
      Fail("{}{}: this file is no journal of shiftrt, and a journal is removed at the end; name another file", path,
           suffix);
  });
}

namespace {

// True if a program was killed while it saved a model to `directory`: shiftrt.json comes last.
bool HasUnfinished(const std::filesystem::path& directory) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(directory, none))
    if (entry.path().filename().string().starts_with("shiftrt.json.tmp-shiftrt-")) return true;
  return false;
}

}  // namespace

void RefuseSavingOver(const LanguageModel& model, const std::string& opened, const std::filesystem::path& save) {
  std::error_code none;
  const auto has = [&](const char* file) { return std::filesystem::exists(save / file, none); };
  for (const std::filesystem::path& directory : {model.Directory(), std::filesystem::path(opened)})
    if ((has("config.json") || has("shiftrt.json")) && std::filesystem::equivalent(save, directory, none))
      FailUsage("--save {}: this is the model itself; save somewhere else", save.string());
  if (has("config.json") && !HasUnfinished(save) && !has("shiftrt.json"))
    FailUsage(
        "--save {}: there is a model in this directory that shiftrt has not saved (config.json without shiftrt.json); "
        "save somewhere else",
        save.string());
}

std::vector<int32_t> ParseTokenIds(const std::string& text) {
  constexpr std::string_view kSeparators = " ,\t\r\n";
  std::vector<int32_t> ids;
  const char *at = text.data(), *const end = at + text.size();
  while (true) {
    while (at != end && kSeparators.find(*at) != std::string_view::npos) ++at;
    if (at == end) return ids;
    int32_t id = 0;
    const auto [stop, error] = std::from_chars(at, end, id);
    if (error != std::errc() || (stop != end && kSeparators.find(*stop) == std::string_view::npos))
      FailUsage("\"{}\" is not a list of token ids", std::string_view(at, std::min<size_t>(end - at, 20)));
    ids.push_back(id);
    at = stop;
  }
}

std::unique_ptr<Progress> CommonOptions::MakeProgress() const {
  if (quiet) return std::make_unique<NoProgress>();
  return std::make_unique<ProgressBar>();
}

}  // namespace shiftrt
