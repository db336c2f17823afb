// SPDX-License-Identifier: Apache-2.0
// The trained checkpoint of CONTRIBUTING.md, which is not in the repository: tests on it are skipped without it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace shiftrt::test {

class Stories260K : public testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path data = SHIFTRT_TEST_DATA;
    if (data.empty()) GTEST_SKIP() << "configure with -DSHIFTRT_TEST_DATA=DIRECTORY to run it";
    checkpoint_ = data / "checkpoints/stories260K";
    std::ifstream file(checkpoint_ / "tokens100.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream ids(line);
      stories_.emplace_back(std::istream_iterator<int32_t>(ids), std::istream_iterator<int32_t>());
    }
    ASSERT_EQ(stories_.size(), 100u) << checkpoint_;
  }

  std::filesystem::path checkpoint_;
  std::vector<std::vector<int32_t>> stories_;  // BOS first, cut to 256 tokens
};

}  // namespace shiftrt::test
