// SPDX-License-Identifier: Apache-2.0
#include "text/prompts.h"

#include <filesystem>
#include <sstream>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/text.h"
#include "text/documents.h"

namespace shiftrt {

std::vector<std::string> ReadPrompts(const std::string& name, bool chat) {
  const std::filesystem::path file = ResolveText(name);
  std::vector<std::string> prompts;
  const auto add_lines = [&](const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty()) prompts.push_back(std::move(line));
    }
  };
  if (HasRows(file) || IsStream(file)) {
    const Documents documents = Documents::Read(file);
    const int64_t rows = documents.plain() ? 0 : documents.size();
    if (documents.plain()) add_lines(documents.Text(0));
    for (int64_t i = 0; i < rows; ++i) {
      Documents::Document document = documents.At(i);
      if (document.prompt > 0) document.text.resize(document.prompt);
      if (chat && !document.message.empty()) document.text = std::move(document.message);
      prompts.push_back(std::move(document.text));
    }
  } else {
    add_lines(ReadText(file, kMaxArrayBytes));
  }
  Check(!prompts.empty(), "{}: it has no prompt; expected one per line", file.string());
  return prompts;
}

}  // namespace shiftrt
