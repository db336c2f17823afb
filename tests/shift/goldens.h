// SPDX-License-Identifier: Apache-2.0
// tests/goldens/shift.json, worked out by numpy from the tokens themselves.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/test_directory.h"

namespace shiftrt::test {

inline const nlohmann::json& Goldens() {
  static const nlohmann::json goldens = [] {
    std::ifstream file(TestDirectory() / "goldens/shift.json");
    return nlohmann::json::parse(file);
  }();
  return goldens;
}

inline std::vector<double> Numbers(const nlohmann::json& golden, const char* key) {
  return golden.at(key).get<std::vector<double>>();
}

}  // namespace shiftrt::test
