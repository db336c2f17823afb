// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json: the pipeline of the Hugging Face library, as far as Llama- and Qwen-family models use it. Any
// other component is refused with an error that names it.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/printable.h"
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

bool Flag(const json& component, const char* key, bool fallback) {
  const json* value = Present(component, key);
  return value ? value->get<bool>() : fallback;
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
    if (const json* type = Present(root.at("model"), "type"); type && *type == "Unigram") return ReadUnigram(root);
    ReadModel(root.at("model"));
    ReadAddedTokens(root);
    for (const json& step : Flatten(Present(root, "normalizer"), "normalizers", where_)) ReadNormalizer(step);
    parts_.byte_level = false;
    for (const json& step : Flatten(Present(root, "pre_tokenizer"), "pretokenizers", where_)) ReadPreTokenizer(step);
    ReadDecoder(root);
    ReadPostProcessor(Present(root, "post_processor"));
    return std::make_unique<BpeTokenizer>(std::move(parts_), settings_, bos_, std::nullopt, false);
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

  // A Unigram model is made from a SentencePiece model, which encodes if it is next to the file and has the same
  // pieces.
  std::unique_ptr<Tokenizer> ReadUnigram(const json& root) {
    const std::filesystem::path path = settings_.directory / "tokenizer.model";
    Check(Exists(path), "{}: model 'Unigram' needs the tokenizer.model that it was made from: put that file next to it",
          where_);
    const std::string bytes = ReadFile(path);
    const SentencePieceTable table = ReadSentencePieceTable(bytes, path.string());
    CheckSamePieces(root.at("model").at("vocab"), table, path.string());
    for (size_t id = 0; id < table.pieces.size(); ++id)
      parts_.vocabulary.Add(table.pieces[id], static_cast<int64_t>(id), path.string());
    ReadAddedTokens(root);
    ReadPostProcessor(Present(root, "post_processor"));
    TokenizerSettings settings = settings_;
    settings.added = parts_.added;
    settings.notes.insert(settings.notes.end(), parts_.notes.begin(), parts_.notes.end());
    settings.add_bos = !parts_.prefix.empty();
    if (settings.add_bos) settings.bos = bos_;
    Check(parts_.prefix.size() <= 1, "{}: several tokens before a text are not supported with a tokenizer.model",
          where_);
    using Prepend = PreTokenizer::Prepend;
    const Prepend prepend = UnigramPrepend(root, settings);
    settings.add_prefix_space = prepend != Prepend::kNever;
    settings.legacy = prepend == Prepend::kAlways;
    return LoadSentencePiece(settings, bytes, path.string());
  }

  void CheckSamePieces(const json& pieces, const SentencePieceTable& table, const std::string& path) {
    Check(pieces.is_array() && pieces.size() == table.pieces.size() && !table.bpe,
          "{}: the model is not that of {}: {} pieces here and {} there{}", where_, path, pieces.size(),
          table.pieces.size(), table.bpe ? ", of a BPE model" : "");
    for (size_t id = 0; id < pieces.size(); ++id) {
      const std::string piece = pieces[id].at(0).get<std::string>();
      const bool scored = table.types[id] == 1;  // only these scores are used
      if (piece != table.pieces[id] || (scored && std::abs(pieces[id].at(1).get<double>() - table.scores[id]) > 1e-3))
        Fail("{}: the model is not that of {}: token {} is {} here and '{}' with the score {} there", where_, path, id,
             Shown(pieces[id]), Printable(table.pieces[id]), table.scores[id]);
    }
  }

  // The space that the steps before a Unigram model put before a text. The other steps are those of the SentencePiece
  // model.
  PreTokenizer::Prepend UnigramPrepend(const json& root, TokenizerSettings& settings) {
    PreTokenizer::Prepend prepend = PreTokenizer::Prepend::kNever;
    for (const json& step : Flatten(Present(root, "normalizer"), "normalizers", where_)) {
      const std::string type = Type(step);
      if (type == "Prepend") {
        prepend = IsWithoutPrefix() ? PreTokenizer::Prepend::kNever : PreTokenizer::Prepend::kAlways;
      } else if (type != "Precompiled" && type != "Replace" && type != "Strip") {
        Refuse("normalizer", type);
      }
    }
    for (const json& step : Flatten(Present(root, "pre_tokenizer"), "pretokenizers", where_)) {
      const std::string type = Type(step);
      if (type == "Metaspace") {
        prepend = PrependScheme(step);
        settings.one_prefix_space = true;
      } else {
        Refuse("pre_tokenizer", type);
      }
    }
    return prepend;
  }

  void ReadModel(const json& model) {
    if (const json* type = Present(model, "type"); type && *type != "BPE")
      Refuse("model", type->is_string() ? type->get<std::string>() : Shown(*type));
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
    parts_.added = WithTokensOf(std::move(parts_.added), settings_);
  }

  void ReadNormalizer(const json& step) {
    const std::string type = Type(step);
    using Form = Normalizer::Form;
    for (const auto& [name, form] : {std::pair("NFC", Form::kNfc), std::pair("NFD", Form::kNfd),
                                     std::pair("NFKC", Form::kNfkc), std::pair("NFKD", Form::kNfkd)})
      if (type == name) return parts_.normalizer.AddForm(form);
    if (type == "Lowercase") {
      parts_.normalizer.AddLowercase();
    } else if (type == "Strip") {
      parts_.normalizer.AddStrip(Flag(step, "strip_left", true), Flag(step, "strip_right", true));
    } else if (type == "Prepend") {
      prepends_ = !IsWithoutPrefix();
      if (prepends_) parts_.normalizer.AddPrepend(step.at("prepend").get<std::string>());
    } else if (type == "Replace" && step.at("pattern").contains("String")) {
      parts_.normalizer.AddReplace(PatternString(step), step.at("content").get<std::string>());
    } else if (type == "Replace") {
      parts_.normalizer.AddReplace(SplitPattern(SplitExpression(step), where_), step.at("content").get<std::string>());
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
    if (parts_.byte_level) {  // the steps after ByteLevel see its alphabet
      parts_.byte_level = false;
      parts_.pre_tokenizer.AddByteAlphabet();
    }
    if (type == "Split") {
      AddSplit(SplitExpression(step), step.at("behavior").get<std::string>(), Flag(step, "invert", false));
    } else if (type == "Digits") {
      AddSplit("\\p{N}", Flag(step, "individual_digits", false) ? "Isolated" : "Contiguous", false);
    } else if (type == "Punctuation") {
      const json* behavior = Present(step, "behavior");
      AddSplit(kPunctuationPattern, behavior ? behavior->get<std::string>() : "Isolated", false);
    } else if (type == "WhitespaceSplit") {
      AddSplit("\\s", "Removed", false);
    } else if (type == "ByteLevel") {
      Check(!bytes_, "{}: a second ByteLevel among the pretokenizers is not supported", where_);
      bytes_ = parts_.byte_level = true;
      if (Flag(step, "add_prefix_space", true)) parts_.pre_tokenizer.AddPrefixSpace();
      if (Flag(step, "use_regex", true)) parts_.pre_tokenizer.AddSplit(SplitPattern(kGpt2Pattern, where_), true, true);
    } else if (type == "Metaspace") {
      const PreTokenizer::Prepend scheme = PrependScheme(step);
      prepends_ |= scheme != PreTokenizer::Prepend::kNever;
      parts_.pre_tokenizer.AddMetaspace(NonEmpty(step, "replacement"), scheme, Flag(step, "split", true));
    } else {
      Refuse("pre_tokenizer", type);
    }
  }

  std::string SplitExpression(const json& step) {
    const json& pattern = step.at("pattern");
    if (pattern.contains("Regex")) return pattern["Regex"].get<std::string>();
    std::string expression;
    for (const char c : PatternString(step)) {
      if (std::ispunct(static_cast<uint8_t>(c))) expression += '\\';
      expression += c;
    }
    return expression;
  }

  void AddSplit(const std::string& expression, const std::string& behavior, bool invert) {
    using Joining = PreTokenizer::Joining;
    SplitPattern pattern(expression, where_);
    for (const auto& [name, joining] :
         {std::pair("MergedWithPrevious", Joining::kPrevious), std::pair("MergedWithNext", Joining::kNext),
          std::pair("Contiguous", Joining::kAlike)})
      if (behavior == name) return parts_.pre_tokenizer.AddMergingSplit(std::move(pattern), joining, invert);
    const bool all = behavior == "Isolated";
    if (!all && behavior != "Removed") Refuse("Split behavior", behavior);
    parts_.pre_tokenizer.AddSplit(std::move(pattern), all || invert, all || !invert);
  }

  // The tokenizers of Llama follow add_prefix_space of tokenizer_config.json and not their own steps, as in
  // transformers.
  bool IsWithoutPrefix() const {
    return settings_.tokenizer_class.starts_with("LlamaTokenizer") && !settings_.add_prefix_space.value_or(true);
  }

  PreTokenizer::Prepend PrependScheme(const json& step) {
    if (IsWithoutPrefix()) return PreTokenizer::Prepend::kNever;
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
    if (decoder == nullptr) return AssumeDecoder();
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
        out.strip_spaces =
            IsWithoutPrefix() ? 0 : static_cast<int>(std::clamp<int64_t>(Integer(step.at("start")), 0, 1 << 20));
      } else {
        Refuse("decoder", type);
      }
    }
    Check(parts_.decoder.byte_level == bytes_, "{}: only one of the pre_tokenizer and the decoder is ByteLevel",
          where_);
  }

  // The library gives the pieces with a space between them, which is no text; here the decoder is what undoes the steps
  // before the model.
  void AssumeDecoder() {
    parts_.decoder.byte_level = bytes_;
    parts_.decoder.byte_fallback = parts_.byte_fallback;
    if (!bytes_) parts_.decoder.replacements.emplace_back("\u2581", " ");
    parts_.decoder.strip_spaces = prepends_ ? 1 : 0;
    parts_.notes.push_back(
        fmt::format("{}: there is no decoder; text is made from tokens by undoing the pre_tokenizer.", where_));
  }

  void ReadPostProcessor(const json* processor) {
    for (const json& step : Flatten(processor, "processors", where_)) {
      const std::string type = Type(step);
      if (type == "TemplateProcessing") {
        ReadTemplate(step);
      } else if (type != "ByteLevel") {  // ByteLevel here only trims offsets
        Refuse("post_processor", type);
      }
    }
  }

  // A template is a list of special tokens with the text among them. Tokens after the text would end a text that is to
  // be continued or measured as a part of a longer one.
  void ReadTemplate(const json& step) {
    const json& single = step.at("single");
    const auto is_text = [](const json& part) { return part.contains("Sequence"); };
    Check(single.is_array() && std::count_if(single.begin(), single.end(), is_text) == 1,
          "{}: the post_processor's template {} does not have the text once", where_, Shown(single));
    const auto text = std::find_if(single.begin(), single.end(), is_text);
    std::vector<int32_t> before;
    for (auto part = single.begin(); part != text; ++part)
      for (const int32_t id : TemplateIds(step, *part)) before.push_back(id);
    parts_.prefix.insert(parts_.prefix.begin(), before.begin(), before.end());
    bos_.reset();
    if (parts_.prefix.size() == 1 && before.size() == 1) bos_ = SpecialName(single[0]);
    std::string after;
    for (auto part = text + 1; part != single.end(); ++part) after += SpecialName(*part);
    if (!after.empty())
      parts_.notes.push_back(
          fmt::format("{}: the post_processor puts {} after a text, which is left out, because texts are continued.",
                      where_, Printable(after)));
  }

  static std::string SpecialName(const json& part) { return part.at("SpecialToken").at("id").get<std::string>(); }

  // The ids of a special token of the template, which has a list of them, too.
  std::vector<int32_t> TemplateIds(const json& step, const json& part) {
    const std::string name = SpecialName(part);
    if (const json* tokens = Present(step, "special_tokens"); tokens && tokens->contains(name)) {
      std::vector<int32_t> ids;
      for (const json& id : tokens->at(name).at("ids")) ids.push_back(static_cast<int32_t>(ParseTokenId(id, where_)));
      return ids;
    }
    for (const AddedToken& token : parts_.added)
      if (token.content == name) return {static_cast<int32_t>(token.id)};
    const auto id = parts_.vocabulary.Find(name);
    Check(id.has_value(), "{}: the post_processor adds '{}', which is not in the vocabulary", where_, Printable(name));
    return {*id};
  }

  const TokenizerSettings& settings_;
  std::string where_;
  BpeParts parts_;
  bool prepends_ = false;           // a space is put before a text
  bool bytes_ = false;              // ByteLevel is among the pretokenizers
  std::optional<std::string> bos_;  // the token that the post_processor puts before the text
};

}  // namespace

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings) {
  const std::string file = (settings.directory / "tokenizer.json").string();
  return LoadTokenizerJson(settings, ReadTokenizerJson(file), file);
}

std::unique_ptr<Tokenizer> LoadTokenizerJson(const TokenizerSettings& settings, const json& root,
                                             const std::string& where) {
  // With a tokenizer.json, transformers (5.x) does not read the flag add_bos_token: the template decides.
  TokenizerSettings without_flag = settings;
  without_flag.add_bos.reset();
  return Reader(without_flag, where).Read(root);
}

}  // namespace shiftrt
