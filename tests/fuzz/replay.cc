// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: on every file of a corpus, unchanged and with seeded damage. SHIFTRT_DAMAGED is
// the number of damaged inputs (default 1000).
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/files.h"
#include "runtime/random.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace shiftrt {
namespace {

// The number of damaged inputs of a corpus, of each of whose files there are as many versions, at least one.
int64_t Damaged() {
  const char* const given = std::getenv("SHIFTRT_DAMAGED");
  return given == nullptr ? 1000 : std::atoll(given);
}

// clang-format off
constexpr std::string_view kPieces[] = {
    "-1", "0", "1", "0.5", "1e300", "18446744073709551615", "9223372036854775807", "null", "true",
    "[]", "{}", "[1,2]", "[[", "\"\"", "\"x\"", "\"\\u0000\"", "\xFF"};
// clang-format on

void RunOn(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

// Makes one edit. It either replaces a JSON value by another, so that the rest can still be parsed, or it replaces,
// removes, doubles or adds bytes.
void Damage(std::string& text, Random& random) {
  constexpr const char* kDelimiters = ",:[]{}";
  const size_t at = random.Below(text.size() + 1), length = random.Below(std::min<size_t>(text.size() - at, 16) + 1);
  const std::string_view piece = kPieces[random.Below(std::size(kPieces))];
  switch (random.Below(16)) {
    case 0: text.replace(at, length, piece); break;
    case 1: text.erase(at, length); break;
    case 2: text.insert(at, text.substr(random.Below(text.size() + 1), length)); break;
    case 3: text.insert(at, 1, static_cast<char>(random.Below(256))); break;
    case 4: text.resize(at); break;
    default: {
      const size_t begin = text.find_last_of(kDelimiters, at) + 1;  // 0 if there is none
      const size_t end = std::min(text.find_first_of(kDelimiters, begin), text.size());
      text.replace(begin, end - begin, piece);
    }
  }
}

int Replay(const std::filesystem::path& corpus) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(corpus)) files.push_back(entry.path());
  const int64_t rounds = std::max<int64_t>(Damaged() / std::max<int64_t>(std::ssize(files), 1), 1);
  int64_t inputs = 0;
  for (const std::filesystem::path& file : files) {
    std::fprintf(stderr, "%s\n", file.c_str());  // after a crash, the last name printed is the input that caused it
    const std::string text = ReadFile(file);
    Random random(1);
    RunOn(text);
    for (int64_t round = 0; round < rounds; ++round, ++inputs) {
      std::string damaged = text;
      for (int64_t edits = 1 + random.Below(4); edits > 0; --edits) Damage(damaged, random);
      RunOn(damaged);
    }
  }
  std::printf("%ld damaged inputs\n", inputs);
  return inputs > 0 ? 0 : 1;  // an empty corpus tests nothing
}

}  // namespace
}  // namespace shiftrt

int main(int argc, char** argv) { return argc == 2 ? shiftrt::Replay(argv[1]) : 2; }
