// SPDX-License-Identifier: Apache-2.0
#include "models/result_key.h"

#include "runtime/check.h"

namespace shiftrt {

WorkKey ResultKey(std::string_view what, const Context& context, const Model& model, const DepthPlan& plan) {
  const bool rounded = context.products == Products::kBFloat16, on_gpu = context.device == Device::kCuda;
  const std::vector<int32_t>& ends = model.weights->config.eos_tokens;
  WorkKey key(what);
  return key.Add("weights", model.weights->Fingerprint())
      .Add("dtype", model.weights->embedding.dtype)
      .Add("unit", on_gpu ? "cuda" : Name(context.isa))
      .Add("products", rounded && !on_gpu ? "bfloat16" : "")
      .Add("plan", plan.Fingerprint())
      .Add("end_tokens", fmt::format("{}", fmt::join(ends, " ")))
      .Add("eos_token", model.tokenizer ? model.tokenizer->eos_token() : -1);
}

}  // namespace shiftrt
