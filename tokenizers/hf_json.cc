// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json: the pipeline of the Hugging Face library, as far as Llama- and Qwen-family models use it. Any
// other component is refused with an error that names it.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/json.h"
#include "tokenizers/bpe.h"
#include "tokenizers/load.h"

namespace shiftrt {

using nlohmann::json;

namespace {

// A null value and an absent key mean the same throughout tokenizer.json.
const json* Present(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string Type(const json& component) { return component.at("type").get<std::string>(); }

bool Flag(const json& component, const char* key, bool otherwise) {
  const json* value = Present(component, key);
  return value ? value->get<bool>() : otherwise;
}

// A component, or the components of a Sequence, in order. Nested sequences, which the library does not write by itself,
// are not supported. Tokenizers have some five components; each of them is a level of calls when text is tokenised.
std::vector<json> Flatten(const json* component, const char* list, const std::string& where) {
  constexpr size_t kMost = 64;
  if (component == nullptr) return {};
  if (Type(*component) != "Sequence") return {*component};
  const json& components = component->at(list);
  Check(components.size() <= kMost, "{}: {} {}, at most {} are read", where, components.size(), list, kMost);
  return components.get<std::vector<json>>();
}

class Reader {
 public:
  Reader(const TokenizerSettings& settings, std::string where) : settings_(settings), where_(std::move(where)) {}

  std::unique_ptr<Tokenizer> Read(const json& root) {
    Check(root.is_object(), "{}: not a JSON object", where_);
    parts_.where = where_;
    ReadModel(root.at("model"));
    ReadAddedTokens(root);
    for (const json& step : Flatten(Present(root, "normalizer"), "normalizers", where_)) ReadNormalizer(step);
    parts_.byte_level = false;
    for (const json& step : Flatten(Present(root, "pre_tokenizer"), "pretokenizers", where_)) ReadPreTokenizer(step);
    ReadDecoder(root);
    ReadPostProcessor(Present(root, "post_processor"));
    return std::make_unique<BpeTokenizer>(std::move(parts_), settings_, bos_, std::nullopt, bos_.has_value());
  }

 private:
  [[noreturn]] void Refuse(const char* part, const std::string& what) {
    Fail("{}: {} '{}' is not supported", where_, part, what);
  }

  std::string NonEmpty(const json& component, const char* key) {
    std::string text = component.at(key).get<std::string>();
    Check(!text.empty(), "{}: '{}' of a {} is empty", where_, key, Type(component));
    return text;
  }

  void ReadModel(const json& model) {
    if (const json* type = Present(model, "type"); type && *type != "BPE") Refuse("model", Shown(*type));
    const json no_text = "";
    for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"})
      if (const json* value = Present(model, key); value && *value != no_text && *value != 0.0)
        Refuse("model setting", key);
    const json& pieces = model.at("vocab");
    Check(pieces.is_object(), "{}: the vocabulary is not an object", where_);
    for (const auto& [piece, id] : pieces.items()) parts_.vocabulary.Add(piece, ParseTokenId(id, where_), where_);
    BpeMerges& merges = parts_.merges.emplace();
    for (const json& merge : model.at("merges")) {
      const auto [left, right] = ReadMerge(merge);
      merges.Add(left, right, parts_.vocabulary, where_);
    }
    parts_.byte_fallback = Flag(model, "byte_fallback", false);
    parts_.ignore_merges = Flag(model, "ignore_merges", false);
    parts_.fuse_unknown = Flag(model, "fuse_unk", false);
    if (const json* unknown = Present(model, "unk_token")) parts_.unknown = unknown->get<std::string>();
  }

  // A merge is written as "a b" or as ["a", "b"].
  std::pair<std::string, std::string> ReadMerge(const json& merge) {
    if (merge.is_array() && merge.size() == 2) return {merge[0].get<std::string>(), merge[1].get<std::string>()};
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      Fail("{}: the merge {} is not two pieces", where_, Shown(merge));
    return {text.substr(0, space), text.substr(space + 1)};
  }

  void ReadAddedTokens(const json& root) {
    if (const json* added = Present(root, "added_tokens")) {
      for (const json& token : *added)
        parts_.added.push_back(ParseAddedToken(token, ParseTokenId(token.at("id"), where_), where_));
    }
    // tokenizer_config.json repeats these tokens and may add others.
    parts_.added = WithTokensBeside(std::move(parts_.added), settings_);
  }

  void ReadNormalizer(const json& step) {
    const std::string type = Type(step);
    if (type == "NFC") {
      parts_.normalizer.AddNfc();
    } else if (type == "Prepend") {
      parts_.normalizer.AddPrepend(step.at("prepend").get<std::string>());
    } else if (type == "Replace" && step.at("pattern").contains("String")) {
      parts_.normalizer.AddReplace(PatternString(step), step.at("content").get<std::string>());
    } else {
      Refuse("normalizer", type);
    }
  }

  std::string PatternString(const json& component) {
    std::string text = component.at("pattern").at("String").get<std::string>();
    Check(!text.empty(), "{}: the pattern of a {} is empty", where_, Type(component));
    return text;
  }

  void ReadPreTokenizer(const json& step) {
    const std::string type = Type(step);
    Check(!parts_.byte_level, "{}: pre_tokenizer '{}' after ByteLevel is not supported", where_, type);
    if (type == "Split") {
      ReadSplit(step);
    } else if (type == "Digits") {
      const bool single = Flag(step, "individual_digits", false);
      parts_.pre_tokenizer.AddSplit(SplitPattern(single ? "\\p{N}" : "\\p{N}+", where_), true, true);
    } else if (type == "ByteLevel") {
      parts_.byte_level = true;
      if (Flag(step, "add_prefix_space", true)) parts_.pre_tokenizer.AddPrefixSpace();
      if (Flag(step, "use_regex", true)) parts_.pre_tokenizer.AddSplit(SplitPattern(kGpt2Pattern, where_), true, true);
    } else if (type == "Metaspace") {
      parts_.pre_tokenizer.AddMetaspace(NonEmpty(step, "replacement"), PrependScheme(step), Flag(step, "split", true));
    } else {
      Refuse("pre_tokenizer", type);
    }
  }

  void ReadSplit(const json& step) {
    const json& pattern = step.at("pattern");
    std::string expression;
    if (pattern.contains("Regex")) {
      expression = pattern["Regex"].get<std::string>();
    } else {
      for (const char c : PatternString(step)) {
        if (std::ispunct(static_cast<uint8_t>(c))) expression += '\\';
        expression += c;
      }
    }
    const std::string behavior = step.at("behavior").get<std::string>();
    const bool all = behavior == "Isolated", with_next = behavior == "MergedWithNext";
    const bool invert = Flag(step, "invert", false);
    if (with_next || behavior == "MergedWithPrevious")
      return parts_.pre_tokenizer.AddMergingSplit(SplitPattern(expression, where_), with_next, invert);
    if (!all && behavior != "Removed") Refuse("Split behavior", behavior);
    parts_.pre_tokenizer.AddSplit(SplitPattern(expression, where_), all || invert, all || !invert);
  }

  PreTokenizer::Prepend PrependScheme(const json& step) {
    const bool prefix = Flag(step, "add_prefix_space", true);
    const json* scheme = Present(step, "prepend_scheme");
    const std::string name = scheme ? scheme->get<std::string>() : prefix ? "always" : "never";
    if (name == "always") return PreTokenizer::Prepend::kAlways;
    if (name == "first") return PreTokenizer::Prepend::kFirst;
    if (name != "never") Refuse("prepend_scheme", name);
    return PreTokenizer::Prepend::kNever;
  }

  void ReadDecoder(const json& root) {
    const json* decoder = Present(root, "decoder");
    Check(decoder != nullptr, "{}: a tokenizer without a decoder is not supported", where_);
    bool fused = false;
    for (const json& step : Flatten(decoder, "decoders", where_)) {
      const std::string type = Type(step);
      PieceDecoder& out = parts_.decoder;
      if (type == "ByteLevel") {
        out.byte_level = true;
      } else if (type == "ByteFallback") {
        out.byte_fallback = true;
      } else if (type == "Fuse") {
        fused = true;
      } else if (type == "Replace" && !fused && step.at("pattern").contains("String")) {
        out.replacements.emplace_back(PatternString(step), step.at("content").get<std::string>());
      } else if (type == "Metaspace") {
        out.replacements.emplace_back(NonEmpty(step, "replacement"), " ");
        out.strip_spaces = PrependScheme(step) == PreTokenizer::Prepend::kNever ? 0 : 1;
      } else if (type == "Strip" && fused && step.at("content") == " " && step.at("stop") == 0) {
        out.strip_spaces = static_cast<int>(std::clamp<int64_t>(Integer(step.at("start")), 0, 1 << 20));
      } else {
        Refuse("decoder", type);
      }
    }
    Check(parts_.decoder.byte_level == parts_.byte_level,
          "{}: only one of the pre_tokenizer and the decoder is ByteLevel", where_);
  }

  void ReadPostProcessor(const json* processor) {
    for (const json& step : Flatten(processor, "processors", where_)) {
      const std::string type = Type(step);
      if (type == "TemplateProcessing") {
        ReadTemplate(step.at("single"));
      } else if (type != "ByteLevel") {  // ByteLevel here only trims offsets
        Refuse("post_processor", type);
      }
    }
  }

  // The supported templates: the text alone, or one special token followed by the text.
  void ReadTemplate(const json& single) {
    const size_t count = single.size();
    const bool with_bos = count == 2 && single[0].contains("SpecialToken");
    Check(single.is_array() && (count == 1 || with_bos) && single[count - 1].contains("Sequence"),
          "{}: the post_processor's template {} is not supported: only one token, before the text, can be added",
          where_, Shown(single));
    if (with_bos) bos_ = single[0]["SpecialToken"].at("id").get<std::string>();
  }

  const TokenizerSettings& settings_;
  std::string where_;
  BpeParts parts_;
  std::optional<std::string> bos_;  // the token that the post_processor puts before the text
};

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings) {
  const std::string file = (settings.directory / "tokenizer.json").string();
  return LoadTokenizerJson(settings, ReadTokenizerJson(file), file);
}

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings, const json& root,
                                             const std::string& where) {
  // Beside a tokenizer.json, transformers (5.x) does not read the flag add_bos_token: the template decides.
  TokenizerSettings without_flag = settings;
  without_flag.add_bos.reset();
  return Reader(without_flag, where).Read(root);
}

}  // namespace shiftrt
