// SPDX-License-Identifier: Apache-2.0
// Writes a Hugging Face directory of the family's own architecture, which transformers, vLLM, TGI, mergekit and lm-eval
// load without code of shiftrt.
#include "export/hf_directory.h"

namespace shiftrt {

namespace {

std::vector<std::string> WriteHf(const ExportJob& job, const std::filesystem::path& directory) {
  HfExtras extras;
  extras.usage =
      "A stock checkpoint: every program that loads the original's architecture loads it.\n\n"
      "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
      "model = AutoModelForCausalLM.from_pretrained(\"PATH\")\n"
      "tokenizer = AutoTokenizer.from_pretrained(\"PATH\")\n```\n";
  return WriteHfDirectory(job, std::move(extras), directory);
}

}  // namespace

const ExportFormat& HfFormat() {
  static const ExportFormat format = {
      .name = "hf",
      .summary = "directory that transformers, vLLM, TGI, mergekit and lm-eval load; no adapters",
      .own_tensors = true,
      .opened_by = "transformers, vLLM, TGI, mergekit and lm-eval, without code of shiftrt",
      .holds = "recipe stock",
      .why_not = WhyNoHfDirectory,
      .write = WriteHf,
      .verify = VerifyHfDirectory,
  };
  return format;
}

}  // namespace shiftrt
