// SPDX-License-Identifier: Apache-2.0
#include "types/part_json.h"

#include "runtime/check.h"
#include "runtime/json.h"

namespace shiftrt {

void to_json(nlohmann::json& json, const BlockPart& part) {
  if (part.halves == Halves::kBoth) {
    json = part.layer;
  } else {
    json = Name(part);
  }
}

void from_json(const nlohmann::json& json, BlockPart& part) {
  const auto whole = [&] { return json.is_number_integer() && json >= 0; };
  const auto half = json.is_string() ? ParseBlockPart(json.get_ref<const std::string&>()) : std::nullopt;
  Check(whole() || (half && half->halves != Halves::kBoth),
        "{} is neither a layer (3) nor a half of one (\"3.attn\", \"3.mlp\")", Shown(json));
  part = half ? *half : BlockPart(json.get<int64_t>());
}

}  // namespace shiftrt
