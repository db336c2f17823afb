// SPDX-License-Identifier: Apache-2.0
// json.dumps of Python with ensure_ascii=False, as the filter `tojson` of transformers calls it.
#include <algorithm>
#include <cmath>

#include "tokenizers/jinja/python_text.h"
#include "tokenizers/jinja/run.h"

namespace shiftrt::jinja {

namespace {

class Writer {
 public:
  Writer(Run& run, const JsonStyle& style) : run_(run), style_(style) {}

  void Write(const Value& value) {
    run_.Charge(1);
    if (Is<std::nullptr_t>(value)) {
      out += "null";
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      out += *flag ? "true" : "false";
    } else if (const auto* integer = std::get_if<int64_t>(&value)) {
      out += std::to_string(*integer);
    } else if (const auto* number = std::get_if<double>(&value)) {
      out += std::isnan(*number)   ? "NaN"
             : std::isinf(*number) ? (*number > 0 ? "Infinity" : "-Infinity")
                                   : Format(*number);
    } else if (const Text* text = AsText(value)) {
      WriteText(text->text);
    } else if (const Sequence* sequence = AsSequence(value); sequence && sequence->kind <= Sequence::Kind::kTuple) {
      WriteAll('[', ']', sequence->items, [&](const Value& item) { Write(item); });
    } else if (const Mapping* mapping = AsMapping(value)) {
      std::vector<const std::pair<Key, Value>*> entries;
      for (const auto& entry : mapping->entries) entries.push_back(&entry);
      if (style_.sort_keys)
        std::sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
          return run_.Less(run_.FromKey(a->first), run_.FromKey(b->first));
        });
      WriteAll('{', '}', entries, [&](const auto* entry) {
        WriteText(entry->first.text);  // an integer in quotation marks too, as JSON has it
        Separate(style_.key_separator);
        Write(entry->second);
      });
    } else if (const auto* undefined = std::get_if<Undefined>(&value)) {
      run_.Fail("the filter 'tojson': {}", *undefined->what);
    } else {
      run_.Fail("the filter 'tojson': a {} is not JSON", TypeName(value));
    }
  }

  std::string out;

 private:
  void WriteText(const std::string& text) {
    run_.ChargeText(4 * text.size());
    run_.ChargeMemory(text.size());
    constexpr std::string_view kNamed = "\"\\\n\r\t\f\b", kLetters = "\"\\nrtfb";
    out += '"';
    for (const char c : text) {
      if (const size_t at = kNamed.find(c); at != kNamed.npos) {
        out += {'\\', kLetters[at]};
      } else if (static_cast<unsigned char>(c) < 0x20) {
        out += fmt::format("\\u{:04x}", static_cast<int>(c));
      } else {
        out += c;
      }
    }
    out += '"';
  }

  void Separate(const std::string& separator) {
    run_.ChargeText(separator.size());
    run_.ChargeMemory(separator.size());
    out += separator;
  }

  void StartLine() {
    if (!style_.indent) return;
    run_.ChargeText(level_ * style_.indent->size());
    run_.ChargeMemory(level_ * style_.indent->size());
    out += '\n';
    for (int i = 0; i < level_; ++i) out += *style_.indent;
  }

  template <typename Parts, typename One>
  void WriteAll(char open, char close, const Parts& parts, One&& one) {
    out += open;
    if (!parts.empty()) {
      ++level_;
      for (size_t i = 0; i < parts.size(); ++i) {
        if (i > 0) Separate(style_.item_separator);
        StartLine();
        one(parts[i]);
      }
      --level_;
      StartLine();
    }
    out += close;
  }

  Run& run_;
  const JsonStyle& style_;
  int level_ = 0;
};

}  // namespace

std::string DumpJson(Run& run, const Value& value, const JsonStyle& style) {
  Writer writer(run, style);
  writer.Write(value);
  return std::move(writer.out);
}

}  // namespace shiftrt::jinja
