// SPDX-License-Identifier: Apache-2.0
// Writes a Hugging Face directory with adapters: the kept blocks as in hf, the adapters as further tensors, and the
// Python files with which transformers runs both (trust_remote_code=True). models/hf_lra.h describes the format.
#include "models/hf_lra.h"

#include "export/hf_directory.h"
#include "export/hf_lra_python.h"
#include "export/model_card.h"
#include "models/saved_config.h"

namespace shiftrt {

namespace {

std::string WhyNoModelOfHfLra(const ModelConfig& config) {
  // Its class in transformers reads layer_types under another name, which the configuration of this format lacks.
  if (config.block.mixed)
    return "its Python files do not run mixtures of experts, whose tensors transformers joins when it loads the model";
  if (config.family != "granite4") return "";
  return "its Python files do not run models of family granite4, whose class in transformers reads layers_block_type";
}

std::vector<std::string> WriteHfLra(const ExportJob& job, const std::filesystem::path& directory) {
  const std::vector<AdapterTensor> adapters = HfLraTensors(job.plan);
  HfExtras extras;
  extras.config = MarkedHfLra(PlanConfig(job.model, job.plan),
                              HfLraMark(*job.model.weights, job.plan, OriginalOf(job).removed, job.provenance));
  for (const AdapterTensor& tensor : adapters) extras.tensors.push_back({tensor.name, {tensor.View()}});
  extras.files = {{"configuration_shiftrt.py", kConfigurationShiftrtPy}, {"modeling_shiftrt.py", kModelingShiftrtPy}};
  extras.usage =
      "The adapters need the Python files of this directory, so transformers has to be allowed to run them.\n\n"
      "```python\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
      "model = AutoModelForCausalLM.from_pretrained(\"PATH\", trust_remote_code=True)\n"
      "tokenizer = AutoTokenizer.from_pretrained(\"PATH\")\n```\n\n"
      "`shiftrt generate --model PATH` runs it too.\n";
  return WriteHfDirectory(job, std::move(extras), directory);
}

}  // namespace

const ExportFormat& HfLraFormat() {
  static const ExportFormat format = {
      .name = "hf-lra",
      .summary =
          "the family's own architecture with adapters, half blocks and MLPs of any width, for transformers with "
          "trust_remote_code and for vLLM with our "
          "plugin",
      .adapters = true,
      .normed_adapters = true,
      .own_tensors = true,
      .half_blocks = true,
      .other_units = true,
      .opened_by = "transformers and lm-eval with trust_remote_code=True, and vLLM with the plugin in export/vllm",
      .why_no_model = WhyNoModelOfHfLra,
      .why_not = WhyNoHfDirectory,
      .write = WriteHfLra,
      .verify = VerifyHfDirectory,
  };
  return format;
}

}  // namespace shiftrt
