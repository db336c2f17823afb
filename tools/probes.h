// SPDX-License-Identifier: Apache-2.0
// Synthetic probes: small tasks that take no data set, whose answers are exact, at several lengths each.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "shiftrt/compare.h"
#include "tools/report/page.h"

namespace shiftrt {

// A prompt, with solved examples before the question, and what a model should continue it with, up to the line's end.
struct ProbeItem {
  std::string prompt, answer;
};

// The items of one probe at one length.
struct ProbeItems {
  std::string probe;   // "copy", "sort", "sum", "brackets" or "fact"
  int64_t length = 0;  // words, numbers, digits, brackets; of "fact", tokens of the prompt
  std::vector<ProbeItem> items;
};

struct ProbeSettings {
  int64_t items = 16;     // for each probe and length; a quarter for "fact", at least 2
  int64_t tokens = 2048;  // the longest prompt of "fact"
  int64_t positions = 0;  // the model's: no prompt with its answer is longer
  uint64_t seed = 0;
};

// The names of the probes.
std::vector<std::string> ProbeNames();

// The items of all probes, the same for the same settings on every machine. `count` returns the tokens of a text. A
// length for which the model has no room is left out.
std::vector<ProbeItems> MakeProbes(const ProbeSettings& settings,
                                   const std::function<int64_t(const std::string& text)>& count);

// True if a reply begins with the answer and nothing else on its first line, but for spaces. Of "fact" and "sum", whose
// answers are numbers, what follows the number does not matter.
bool AnswersProbe(const std::string& probe, const std::string& reply, const std::string& answer);

// The share of right answers of models, by probe and length.
struct ProbeResults {
  struct Row {
    std::string probe;
    int64_t length = 0, items = 0;
    std::vector<int64_t> right;  // by model
  };
  std::vector<std::string> names = {}, labels = {};  // the models' names, in the JSON and for people
  std::vector<Row> rows = {};

  PageTable Table() const;
  nlohmann::json ToJson() const;
};

// Has every model answer all items greedily.
ProbeResults RunProbes(std::span<const ModelVariant> models, std::span<const ProbeItems> probes, int64_t batch,
                       const Resources& resources, Progress& progress);

}  // namespace shiftrt
