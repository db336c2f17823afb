#include <CLI/CLI.hpp>
#include <chrono>
#include <nlohmann/json.hpp>

#include "eval/perplexity.h"
#include "runtime/files.h"
#include "runtime/text.h"
#include "tools/options.h"

namespace shiftrt {

namespace {

struct Options {
  CommonOptions common;
  std::string text;
  std::string protocol = "gptq";
};

int Run(const Options& options) {
  const Context context = options.common.MakeContext();
  const Model model = options.common.Open();
  const int64_t window = ProtocolWindow(options.protocol, model.weights->config);
  const std::vector<int32_t> tokens = model.tokenizer->EncodeWithBos(ReadText(options.text), options.text);
  Decoder decoder(context, model.weights, model.plan);
  const auto progress = options.common.MakeProgress();
  const auto start = std::chrono::steady_clock::now();
  const PerplexityResult result = WindowedPerplexity(decoder, tokens, window, options.protocol, *progress);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{} (windows of {}): perplexity {:.4f}, mean NLL {:.6f} over {} tokens, {:.0f} tokens/s\n",
             result.protocol, result.window, result.perplexity, result.mean_nll, result.predicted,
             static_cast<double>(result.predicted) / seconds);
  if (!options.common.json.empty()) {
    const nlohmann::json json = {{"model", model.name},         {"protocol", result.protocol},
                                 {"window", result.window},     {"predicted", result.predicted},
                                 {"mean_nll", result.mean_nll}, {"perplexity", result.perplexity},
                                 {"seconds", seconds}};
    AtomicFile file(options.common.json);
    file.Write(json.dump(2) + "\n");
    file.Commit();
  }
  return 0;
}

}  // namespace

Command AddPpl(CLI::App& app) {
  auto options = std::make_shared<Options>();
  options->common.AddTo(app, /*with_json=*/true);
  app.add_option("--text", options->text, "a text file, tokenised as a whole")->required();
  app.add_option("--protocol", options->protocol,
                 "gptq: windows of 2048, seq128: of 128 (or the model's context if that is shorter)")
      ->check(CLI::IsMember({"gptq", "seq128"}))
      ->capture_default_str();
  app.footer("Example:\n  shiftrt ppl --model demo --text models/demo/heldout.txt --protocol seq128");
  return [options] { return Run(*options); };
}

}  // namespace shiftrt
