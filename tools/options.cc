#include "tools/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/cuda.h"
#include "runtime/files.h"
#include "tools/progress_bar.h"

namespace shiftrt {

void CommonOptions::AddTo(CLI::App& app, bool with_json) {
  app.add_option("--model", model, "a Hugging Face directory, one written by --save, a known name, or demo")
      ->capture_default_str();
  app.add_option("--device", device, "auto, cpu or cuda[:N]")->capture_default_str();
  app.add_option("--dtype", dtype, "auto (as stored), float32, bfloat16 or float16")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--threads", threads, "CPU threads (0: all cores)")->check(CLI::Range(0, 1024))->capture_default_str();
  app.add_option("--seed", seed, "of everything random")->capture_default_str();
  app.add_flag("--quiet", quiet, "no progress on standard error");
  app.add_flag("--check-weights", check_finite, "look at every weight for NaN and infinity first");
  if (with_json) app.add_option("--json", json, "write the whole result to this file")->check(FileOutput());
}

void CommonOptions::AddMemoryTo(CLI::App& app) {
  app.add_option(
         "--memory", memory,
         "what calibration sums may take of the host's memory (4GiB; default: three quarters of what is free);\n"
         "sites beyond that are fitted in groups, a pass over the text each")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 60));
}

namespace {

// The GPU that `device` names, "cuda" or "cuda:N".
int ParseGpu(std::string_view device) {
  int index = 0;
  if (device == "cuda") return index;
  const std::string_view digits = device.substr(device.find(':') + 1);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (!device.starts_with("cuda:") || error != std::errc() || end != digits.data() + digits.size() || index < 0)
    FailUsage("--device {}: expected auto, cpu or cuda[:N]", device);
  return index;
}

Device ChooseDevice(const std::string& device, bool quiet) {
  if (device == "cpu") return Device::kCpu;
  const bool automatic = device == "auto";
  const int index = automatic ? 0 : ParseGpu(device);
  const std::string& why_not = gpu::WhyUnavailable();
  if (!why_not.empty()) {
    if (!automatic) FailUsage("--device {}: {}; use --device cpu or leave it out", device, why_not);
    if (gpu::BuiltWithCuda() && !quiet) std::fprintf(stderr, "shiftrt: on the CPU: %s\n", why_not.c_str());
    return Device::kCpu;
  }
  gpu::SelectDevice(index);
  return Device::kCuda;
}

// A validator by what throws an Error where nothing can be written.
CLI::Validator Output(const std::string& type, const std::function<void(const std::string&)>& attempt) {
  const auto why_not = [attempt](const std::string& path) -> std::string {
    try {
      attempt(path);
      return "";
    } catch (const Error& error) {
      return error.what();
    }
  };
  return CLI::Validator(why_not, type);
}

}  // namespace

Context CommonOptions::MakeContext() const {
  Context context = Context::Default();
  context.device = ChooseDevice(device, quiet);
  if (context.device == Device::kCuda) context.solver = gpu::MakeSolver();
  if (threads > 0) context.threads = threads;
  context.memory = static_cast<int64_t>(memory);
  return context;
}

Model CommonOptions::Open() const {
  LoadOptions options;
  options.check_finite = check_finite;
  options.dtype = dtype == "float32"    ? LoadDType::kFloat32
                  : dtype == "float16"  ? LoadDType::kFloat16
                  : dtype == "bfloat16" ? LoadDType::kBFloat16
                                        : LoadDType::kAuto;
  return OpenModel(model, options);
}

void CommonOptions::WriteJson(const nlohmann::json& result) const {
  if (!json.empty()) WriteFile(json, result.dump(2) + "\n");
}

CLI::Validator FileOutput() {
  return Output("FILE", [](const std::string& path) { AtomicFile trial(path); });
}

CLI::Validator DirectoryOutput() {
  return Output("DIR", [](const std::string& path) { AtomicDirectory(path).Create("trial"); });
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
