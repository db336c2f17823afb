// SPDX-License-Identifier: Apache-2.0
// Provenance (include/shiftrt/provenance.h) as the JSON object that saved models have under the key "provenance".
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "include/shiftrt/provenance.h"

namespace shiftrt {

// Fields that are not recorded have no key. Numbers that are not finite are null.
nlohmann::json ProvenanceJson(const Provenance& provenance);
// The inverse. The object may come from anywhere: a field of another type than expected counts as not recorded.
Provenance ReadProvenance(const nlohmann::json& json);

// The part that exports to other programs carry along: who chose the layers, what replaced them, and on which text.
Provenance Essentials(const Provenance& provenance);

}  // namespace shiftrt
