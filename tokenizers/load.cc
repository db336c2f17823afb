// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/load.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_set>
#include <utility>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/json.h"
#include "runtime/parse.h"
#include "tokenizers/bpe.h"
#include "tokenizers/gguf.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

using nlohmann::json;

namespace {

constexpr uint64_t kLargestFile = uint64_t{1} << 28;

// The content of "<s>" or {"content": "<s>", ...}; empty for null.
std::optional<std::string> TokenName(const json& token) {
  if (token.is_null()) return std::nullopt;
  return token.is_object() ? token.at("content").get<std::string>() : token.get<std::string>();
}

// The special tokens that tokenizer_config.json or, for keys that it lacks, special_tokens_map.json names. They have no
// ids.
std::vector<AddedToken> ReadNamedTokens(const std::filesystem::path& directory, const json& config, const json& map) {
  std::vector<AddedToken> named;
  const std::string where = directory.string();
  const auto add = [&](const json& value) {
    if (value.is_null()) return;
    AddedToken token =
        value.is_object() ? ParseAddedToken(value, -1, where) : AddedToken{.content = value.get<std::string>()};
    token.special = true;
    named.push_back(std::move(token));
  };
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"})
    add(config.contains(key) ? config[key] : map.value(key, json()));
  for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
    const json list = config.contains(key) ? config[key] : map.value(key, json());
    // transformers 5 gives names to some of these tokens; the list is then an object.
    if (list.is_array() || list.is_object())
      for (const json& value : list) add(value);
  }
  return named;
}

std::vector<AddedToken> ReadAddedTokens(const std::filesystem::path& directory, const json& config,
                                        const std::vector<AddedToken>& named) {
  std::vector<AddedToken> added;
  std::unordered_set<std::string> names;
  for (const AddedToken& token : named) names.insert(token.content);
  const auto is_named = [&](const AddedToken& token) { return names.contains(token.content); };
  if (config.contains("added_tokens_decoder")) {
    const std::string where = (directory / "tokenizer_config.json").string();
    for (const auto& [key, token] : config["added_tokens_decoder"].items()) {
      int64_t id = -1;
      Check(ParseNumber(key, &id), "{}: added_tokens_decoder: '{}' is not a token id", where, key);
      added.push_back(ParseAddedToken(token, id, where));
      added.back().special |= is_named(added.back());
    }
  }
  std::set<std::pair<int64_t, std::string>> known;
  for (const AddedToken& token : added) known.emplace(token.id, token.content);
  const auto path = directory / "added_tokens.json";
  const json more = ReadTokenizerJsonIfPresent(path);
  for (const auto& [content, id] : more.items()) {
    AddedToken token{.content = content, .id = ParseTokenId(id, path.string())};
    token.special = is_named(token);
    token.normalized = !token.special;
    token.has_flags = false;
    if (known.emplace(token.id, token.content).second) added.push_back(std::move(token));
  }
  return added;
}

int64_t ConfigTokenId(const json& config, const char* key) {
  if (!config.contains(key)) return -1;
  const json& id = config[key].is_array() && !config[key].empty() ? config[key][0] : config[key];
  return id.is_number_integer() ? id.get<int64_t>() : -1;
}

void ReadMerges(const std::filesystem::path& path, const Vocabulary& vocabulary, BpeMerges& merges) {
  const std::string text = ReadFile(path, kLargestFile);
  std::string_view rest = text;
  for (size_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    const size_t space = line.find(' ');
    Check(space != std::string_view::npos && line.find(' ', space + 1) == std::string_view::npos && IsValidUtf8(line),
          "{}: line {} is not two pieces with a space between", path.string(), number);
    merges.Add(line.substr(0, space), line.substr(space + 1), vocabulary, path.string());
  }
}

std::unique_ptr<Tokenizer> OpenModelFile(const TokenizerSettings& settings) {
  const auto path = settings.directory / "tokenizer.model";
  const std::string file = ReadFile(path, kLargestFile);
  Check(!file.empty(), "{}: the file is empty", path.string());
  // A SentencePiece model is a protocol buffer whose first field, a piece, has the tag 0x0A, which is not a base64
  // character.
  return file[0] == '\n' ? LoadSentencePiece(settings, file, path.string()) : LoadTiktoken(settings, file);
}

enum class Form { kJson, kVocabAndMerges, kModelFile, kNone };

Form FormOf(const std::filesystem::path& directory) {
  const auto has = [&](const char* name) { return Exists(directory / name); };
  if (has("tokenizer.json")) return Form::kJson;
  if (has("vocab.json") && has("merges.txt")) return Form::kVocabAndMerges;
  if (has("tokenizer.model")) return Form::kModelFile;
  return Form::kNone;
}

std::unique_ptr<Tokenizer> Open(const std::filesystem::path& directory) {
  if (IsGguf(directory)) return LoadGgufTokenizer(GgufFile(directory));
  const Form form = FormOf(directory);
  if (form == Form::kNone) Fail("{}: no tokenizer here ({})", directory.string(), kTokenizerFiles);
  TokenizerSettings settings = ReadTokenizerSettings(directory);
  if (form == Form::kJson) return LoadTokenizerJson(settings);
  if (settings.add_eos)
    settings.notes.push_back(fmt::format(
        "{}: add_eos_token puts the end token after a text, which is left out, because texts are continued.",
        (directory / "tokenizer_config.json").string()));
  if (form == Form::kVocabAndMerges) return LoadVocabAndMerges(settings);
  return OpenModelFile(settings);
}

}  // namespace

TokenizerSettings ReadTokenizerSettings(const std::filesystem::path& directory) {
  const json config = ReadTokenizerJsonIfPresent(directory / "tokenizer_config.json");
  const json map = ReadTokenizerJsonIfPresent(directory / "special_tokens_map.json");
  const json model = ReadTokenizerJsonIfPresent(directory / "config.json");
  TokenizerSettings settings;
  settings.directory = directory;
  if (const json tokenizer_class = config.value("tokenizer_class", json()); !tokenizer_class.is_null())
    settings.tokenizer_class = tokenizer_class.get<std::string>();
  settings.added = ReadAddedTokens(directory, config, ReadNamedTokens(directory, config, map));
  // With added_tokens_decoder, transformers does not read special_tokens_map.json.
  settings.named = ReadNamedTokens(directory, config, config.contains("added_tokens_decoder") ? json::object() : map);
  // An explicit null in tokenizer_config.json means that there is no such token; the id in config.json is then ignored.
  const auto name = [&](const char* key, const char* id_key, std::optional<std::string>& token, int64_t& id) {
    if (config.contains(key)) {
      token = TokenName(config[key]);
    } else if (map.contains(key)) {
      token = TokenName(map[key]);
    } else {
      id = ConfigTokenId(model, id_key);
    }
  };
  name("bos_token", "bos_token_id", settings.bos, settings.bos_id);
  name("eos_token", "eos_token_id", settings.eos, settings.eos_id);
  const auto flag = [&](const char* key) -> std::optional<bool> {
    if (!config.contains(key) || config[key].is_null()) return std::nullopt;
    return config[key].get<bool>();
  };
  settings.add_bos = flag("add_bos_token");
  settings.add_eos = flag("add_eos_token").value_or(false);
  settings.add_prefix_space = flag("add_prefix_space");
  settings.legacy = flag("legacy").value_or(true);
  return settings;
}

json ReadTokenizerJson(const std::filesystem::path& path) {
  return ParseJson(ReadFile(path, kLargestFile), path.string());
}

json ReadTokenizerJsonIfPresent(const std::filesystem::path& path) {
  if (!Exists(path)) return json::object();
  json value = ReadTokenizerJson(path);
  Check(value.is_object(), "{}: not a JSON object", path.string());
  return value;
}

int64_t ParseTokenId(const json& json, const std::string& where) {
  if (!json.is_number_integer()) Fail("{}: {} is not a token id", where, Shown(json));
  if (json.is_number_unsigned() && json.get<uint64_t>() >= static_cast<uint64_t>(kMaxTokenId))
    Fail("{}: token id {} is too large", where, Shown(json));
  return json.get<int64_t>();
}

AddedToken ParseAddedToken(const json& json, int64_t id, const std::string& where) {
  const auto flag = [&](const char* key, bool fallback) { return json.value(key, fallback); };
  AddedToken token{.content = json.at("content").get<std::string>(), .id = id};
  Check(!flag("single_word", false), "{}: added token '{}': single_word is not supported", where, token.content);
  token.special = flag("special", false);
  token.lstrip = flag("lstrip", false);
  token.rstrip = flag("rstrip", false);
  token.normalized = flag("normalized", !token.special);
  return token;
}

std::vector<AddedToken> WithTokensOf(std::vector<AddedToken> added, const TokenizerSettings& settings) {
  std::map<std::pair<int64_t, std::string>, size_t> places;
  for (size_t i = 0; i < added.size(); ++i) places.try_emplace({added[i].id, added[i].content}, i);
  for (const AddedToken& token : settings.added) {
    const auto [place, is_new] = places.try_emplace({token.id, token.content}, added.size());
    if (is_new) {
      added.push_back(token);
    } else if (token.has_flags) {
      added[place->second] = token;
    }
  }
  return added;
}

std::vector<AddedToken> NamedTokens(const TokenizerSettings& settings, const Vocabulary& vocabulary,
                                    const std::vector<AddedToken>& added) {
  std::vector<AddedToken> found;
  std::unordered_set<std::string> known;
  for (const AddedToken& token : added) known.insert(token.content);
  for (AddedToken token : settings.named) {
    const auto id = vocabulary.Find(token.content);
    if (!id || !known.insert(token.content).second) continue;
    token.id = *id;
    found.push_back(std::move(token));
  }
  return found;
}

std::unique_ptr<Tokenizer> LoadVocabAndMerges(const TokenizerSettings& settings) {
  const std::string vocab = (settings.directory / "vocab.json").string();
  std::string family = settings.tokenizer_class;
  if (family.ends_with("Fast")) family.resize(family.size() - 4);
  Check(family == "Qwen2Tokenizer" || family == "GPT2Tokenizer",
        "{}: vocab.json and merges.txt do not say how text is split into words, and the tokenizer_class '{}' of "
        "tokenizer_config.json is neither Qwen2Tokenizer nor GPT2Tokenizer",
        settings.directory.string(), settings.tokenizer_class);
  BpeParts parts;
  parts.where = vocab;
  const json pieces = ReadTokenizerJson(vocab);
  Check(pieces.is_object(), "{}: not a JSON object", vocab);
  for (const auto& [piece, id] : pieces.items()) parts.vocabulary.Add(piece, ParseTokenId(id, vocab), vocab);
  ReadMerges(settings.directory / "merges.txt", parts.vocabulary, parts.merges.emplace());
  parts.added = settings.added;
  const bool qwen = family == "Qwen2Tokenizer";
  if (qwen) parts.normalizer.AddForm(Normalizer::Form::kNfc);
  if (settings.add_prefix_space.value_or(false)) parts.pre_tokenizer.AddPrefixSpace();
  parts.pre_tokenizer.AddSplit(SplitPattern(qwen ? kQwen2Pattern : kGpt2Pattern, vocab), true, true);
  parts.decoder.byte_level = true;
  return std::make_unique<BpeTokenizer>(std::move(parts), settings, std::nullopt, std::nullopt, false);
}

bool HasTokenizer(const std::filesystem::path& model) {
  return IsGguf(model) ? HasGgufTokenizer(GgufFile(model)) : FormOf(model) != Form::kNone;
}

std::unique_ptr<Tokenizer> LoadTokenizer(const std::filesystem::path& model) {
  try {
    return Open(model);
  } catch (const json::exception& error) {  // a value of the wrong type; errors of the parser already name their file
    Fail("{}: tokenizer files: {}", model.string(), JsonReason(error));
  } catch (const std::filesystem::filesystem_error& error) {
    Fail("{}: {}", model.string(), error.what());
  }
}

}  // namespace shiftrt
