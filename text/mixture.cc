// SPDX-License-Identifier: Apache-2.0
#include "text/mixture.h"

#include <algorithm>
#include <cmath>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "text/documents.h"

namespace shiftrt {

namespace {

constexpr std::string_view kOwn = "own";

// Takes ":30%" from the end of a text's name and returns 0.3, or 0 if it is not there.
double TakeShare(std::string& name) {
  const size_t colon = name.rfind(':');
  if (colon == std::string::npos || !name.ends_with('%') || !LookForText(name).empty()) return 0;
  double percent = 0;
  if (!ParseNumber(name.substr(colon + 1, name.size() - colon - 2), &percent) || !(percent > 0 && percent <= 100))
    FailUsage(Field("text"), "{}: expected a share above 0% and of at most 100% after the colon", name);
  name.resize(colon);
  return percent / 100;
}

MixedText TextOf(std::string name) {
  MixedText text;
  text.share = TakeShare(name);
  text.own = name == kOwn || name.starts_with(std::string(kOwn) + ":");
  text.name = !text.own ? name : name == kOwn ? kOwnPrompts : name.substr(kOwn.size() + 1);
  if (text.name.empty())
    FailUsage(Field("text"), "{}: expected a file of prompts after the colon, or `own` alone for the prompts of {}",
              name, kOwnPrompts);
  return text;
}

void CompleteShares(const std::string& list, std::vector<MixedText>& texts) {
  double given = 0;
  int64_t without = 0;
  for (const MixedText& text : texts) {
    given += text.share;
    without += text.share == 0 ? 1 : 0;
  }
  if (given == 0 && std::none_of(texts.begin(), texts.end(), [](const MixedText& text) { return text.own; })) return;
  constexpr double kRounding = 1e-3;  // shares such as 33.3% are rounded
  const bool fits = without > 0 ? given < 1 : std::abs(given - 1) <= kRounding * static_cast<double>(texts.size());
  if (!fits)
    FailUsage(Field("text"), "{}: the shares are {:g}% together, expected {}100%", list, 100 * given,
              without > 0 ? "less than " : "");
  for (MixedText& text : texts)
    text.share = without == 0      ? text.share / given
                 : text.share == 0 ? (1 - given) / static_cast<double>(without)
                                   : text.share;
}

}  // namespace

std::vector<MixedText> MixtureIn(const std::string& list) {
  std::vector<MixedText> texts;
  for (std::string& name : TextsIn(list)) texts.push_back(TextOf(std::move(name)));
  CompleteShares(list, texts);
  return texts;
}

bool HasOwnTexts(const std::string& list) {
  const std::vector<MixedText> texts = list.empty() ? std::vector<MixedText>() : MixtureIn(list);
  return std::any_of(texts.begin(), texts.end(), [](const MixedText& text) { return text.own; });
}

std::string NamesIn(const std::string& list) {
  if (list.empty()) return "";
  std::string names;
  for (const MixedText& text : MixtureIn(list)) names += (names.empty() ? "" : ",") + text.name;
  return names;
}

}  // namespace shiftrt
