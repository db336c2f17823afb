// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/gguf.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "runtime/check.h"
#include "runtime/parse.h"
#include "runtime/printable.h"
#include "tokenizers/load.h"
#include "tokenizers/pretokenizer.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

using nlohmann::json;

namespace {

constexpr const char *kModel = "tokenizer.ggml.model", *kPre = "tokenizer.ggml.pre", *kTokens = "tokenizer.ggml.tokens",
                     *kTypes = "tokenizer.ggml.token_type", *kScores = "tokenizer.ggml.scores",
                     *kMerges = "tokenizer.ggml.merges", *kBos = "tokenizer.ggml.bos_token_id",
                     *kEos = "tokenizer.ggml.eos_token_id", *kUnknownId = "tokenizer.ggml.unknown_token_id",
                     *kAddBos = "tokenizer.ggml.add_bos_token", *kAddEos = "tokenizer.ggml.add_eos_token",
                     *kAddSpace = "tokenizer.ggml.add_space_prefix",
                     *kTrimSpace = "tokenizer.ggml.remove_extra_whitespaces",
                     *kChatTemplate = "tokenizer.chat_template";

// tokenizer.ggml.token_type; the numbers are those of SentencePiece.
enum TokenType : int64_t {
  kNormalToken = 1,
  kUnknownToken = 2,
  kControlToken = 3,
  kUserDefinedToken = 4,
  kByteToken = 6
};

// The pre-tokenizer of files that name none.
constexpr const char* kDefaultPre = "default";

// The fields that both tokenizer models have.
struct Tokens {
  std::vector<std::string_view> pieces;
  std::vector<int64_t> types;  // one per piece
  int64_t bos = -1, eos = -1;  // -1: none
  std::optional<bool> add_bos;
  std::vector<std::string> notes;  // Tokenizer::notes()

  std::string Piece(int64_t id) const { return std::string(pieces[id]); }
};

Tokens ReadTokens(const GgufMetadata& metadata) {
  Tokens tokens;
  tokens.pieces = metadata.Texts(kTokens);
  const auto count = static_cast<int64_t>(tokens.pieces.size());
  Check(count > 0 && count < kMaxTokenId, "{}: {} has {} tokens, expected 1 to {}", metadata.name(), kTokens, count,
        kMaxTokenId - 1);
  tokens.types.assign(count, kNormalToken);
  if (metadata.Has(kTypes)) tokens.types = metadata.Integers(kTypes);
  Check(std::ssize(tokens.types) == count, "{}: {} has {} elements for {} tokens", metadata.name(), kTypes,
        tokens.types.size(), count);
  for (int64_t id = 0; id < count; ++id)
    Check(tokens.types[id] >= kNormalToken && tokens.types[id] <= kByteToken,
          "{}: {}: token {} is of type {}, expected {} to {}", metadata.name(), kTypes, id, tokens.types[id],
          static_cast<int>(kNormalToken), static_cast<int>(kByteToken));
  tokens.bos = metadata.Integer(kBos, 0, count - 1, -1);
  tokens.eos = metadata.Integer(kEos, 0, count - 1, -1);
  if (metadata.Has(kAddBos)) tokens.add_bos = metadata.Flag(kAddBos, false);
  if (metadata.Flag(kAddEos, false))
    tokens.notes.push_back(
        fmt::format("{}: {} puts the end token after a text, which is left out, because texts are continued.",
                    metadata.name(), kAddEos));
  return tokens;
}

// Source: llama.cpp's llama-vocab.cpp, where several names stand for one pattern. The steps are those of the families'
// own tokenizer.json.
const std::vector<GgufPreTokenizer>& PreTokenizers() {
  static const std::vector<GgufPreTokenizer> rows = {
      {.name = "llama-bpe", .pattern = kLlama3Pattern, .whole_words = true, .add_bos = true},
      {.name = "llama3", .pattern = kLlama3Pattern, .whole_words = true, .add_bos = true},
      {.name = "llama-v3", .pattern = kLlama3Pattern, .whole_words = true, .add_bos = true},
      {.name = "lfm2", .pattern = kLlama3Pattern, .whole_words = true, .add_bos = true},
      {.name = "dbrx", .pattern = kLlama3Pattern},
      {.name = "smaug-bpe", .pattern = kLlama3Pattern},
      {.name = "qwen2", .pattern = kQwen2Pattern, .nfc = true},
      {.name = "qwen35", .pattern = kQwen35Pattern, .nfc = true},
      {.name = "deepseek-r1-qwen", .pattern = kQwen2Pattern, .nfc = true},
      {.name = "smollm", .pattern = kGpt2Pattern, .digits = true},
      {.name = "gpt-2", .pattern = kGpt2Pattern},
      {.name = "olmo", .pattern = kGpt2Pattern},
      {.name = "starcoder", .pattern = kGpt2Pattern, .digits = true},
      {.name = "refact", .pattern = kGpt2Pattern, .digits = true},
      {.name = "command-r", .pattern = kGpt2Pattern, .nfc = true, .digits = true},
      {.name = "chatglm-bpe", .pattern = kLlama3Pattern},
      {.name = "glm4", .pattern = kLlama3Pattern, .whole_words = true},
      {.name = "tekken", .pattern = kTekkenPattern, .whole_words = true, .add_bos = true},
      {.name = "gpt-4o", .pattern = kO200kPattern},
      {.name = "deepseek-coder",
       .pattern = "\\p{N}",
       .before = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"}},
      {.name = "hunyuan-dense",
       .pattern = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|)"
                  "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
       .before = {"\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"}},
      {.name = kDefaultPre,
       .pattern = "[0-9][0-9][0-9]",
       .before = {"[\\p{P}\\$\\+<=>\\^~\\|]+", kGpt2Pattern, "\\p{N}+"}},
  };
  return rows;
}

// A file without the name is of llama.cpp's default, as there.
const GgufPreTokenizer& PreTokenizerOf(const GgufMetadata& metadata) {
  std::string_view name = metadata.Text(kPre, kDefaultPre);
  if (name.empty()) name = kDefaultPre;
  std::string known;
  for (const GgufPreTokenizer& row : PreTokenizers()) {
    if (name == row.name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  Fail("{}: {} {} is not supported (known: {})", metadata.name(), kPre, Printable(name), known);
}

bool AddsBos(const GgufMetadata& metadata, const Tokens& tokens) {
  return tokens.add_bos.value_or(PreTokenizerOf(metadata).add_bos);
}

// Makes the contents of tokenizer.json.
json BpeJson(const GgufMetadata& metadata, const Tokens& tokens) {
  const GgufPreTokenizer& pre = PreTokenizerOf(metadata);
  json vocabulary = json::object(), added = json::array();
  for (size_t id = 0; id < tokens.pieces.size(); ++id) {
    const auto [entry, fresh] = vocabulary.emplace(std::string(tokens.pieces[id]), id);
    Check(fresh, "{}: {}: '{}' has two ids, {} and {}", metadata.name(), kTokens, Printable(tokens.pieces[id]),
          entry->get<int64_t>(), id);
    const bool special = tokens.types[id] == kControlToken || tokens.types[id] == kUnknownToken;
    if (!special && tokens.types[id] != kUserDefinedToken) continue;
    added.push_back({{"id", id},
                     {"content", tokens.pieces[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  json merges = json::array();
  for (const std::string_view merge : metadata.Texts(kMerges)) {
    Check(IsValidUtf8(merge), "{}: {}: merge {} is not valid UTF-8: {}", metadata.name(), kMerges, merges.size(),
          Printable(merge));
    merges.push_back(merge);
  }
  const auto byte_level = [](bool use_regex) {
    return json{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
  };
  json steps = json::array();
  if (pre.digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  const auto split = [&](const char* pattern) {
    steps.push_back(
        {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}});
  };
  for (const char* pattern : pre.before) split(pattern);
  split(pre.pattern);
  steps.push_back(byte_level(false));
  json root = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", std::move(added)},
               {"normalizer", pre.nfc ? json{{"type", "NFC"}} : json()},
               {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}}},
               {"post_processor", nullptr},
               {"decoder", byte_level(true)},
               {"model",
                {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"ignore_merges", pre.whole_words},
                 {"vocab", std::move(vocabulary)},
                 {"merges", std::move(merges)}}}};
  if (tokens.bos >= 0 && AddsBos(metadata, tokens)) {
    const std::string bos = tokens.Piece(tokens.bos);
    const json token = {{"SpecialToken", {{"id", bos}, {"type_id", 0}}}};
    const auto text = [](const char* id) { return json{{"Sequence", {{"id", id}, {"type_id", 0}}}}; };
    root["post_processor"] = {{"type", "TemplateProcessing"},
                              {"single", json::array({token, text("A")})},
                              {"pair", json::array({token, text("A"), token, text("B")})},
                              {"special_tokens", {{bos, {{"id", bos}, {"ids", {tokens.bos}}, {"tokens", {bos}}}}}}};
  }
  return root;
}

// Writes the fields of a protocol buffer message.
class WireWriter {
 public:
  void Number(uint64_t field, uint64_t value) {
    Varint(field << 3);
    Varint(value);
  }
  void Float(uint64_t field, float value) {
    Varint(field << 3 | 5);
    char bytes[sizeof(value)];
    std::memcpy(bytes, &value, sizeof(value));
    message_.append(bytes, sizeof(value));
  }
  void Bytes(uint64_t field, std::string_view bytes) {
    Varint(field << 3 | 2);
    Varint(bytes.size());
    message_ += bytes;
  }
  const std::string& message() const { return message_; }

 private:
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) message_ += static_cast<char>(value | 0x80);
    message_ += static_cast<char>(value);
  }
  std::string message_;
};

// Converters write every special entry of added_tokens_decoder as a control piece, the unknown piece too, so that
// unknown_token_id and not the type says which piece is the unknown one.
int64_t SentencePieceType(const Tokens& tokens, int64_t id, int64_t unknown) {
  if (id == unknown) return kUnknownToken;
  return tokens.types[id] == kUnknownToken ? kControlToken : tokens.types[id];
}

// Converters write the spaces of a user-defined piece as they are, but libsentencepiece looks for such pieces after it
// has replaced each space by its mark. A piece stays as it is where another one already has the marked spelling.
std::string SentencePiecePiece(const Tokens& tokens, int64_t id, const std::unordered_set<std::string_view>& pieces) {
  std::string marked;
  for (const char c : tokens.pieces[id]) marked += c == ' ' ? "\xE2\x96\x81" : std::string(1, c);
  const bool changes = tokens.types[id] == kUserDefinedToken && !pieces.contains(marked);
  return changes ? marked : tokens.Piece(id);
}

// Makes the contents of tokenizer.model. The field numbers are those of sentencepiece_model.proto.
std::string SentencePieceModel(const GgufMetadata& metadata, const Tokens& tokens) {
  const std::vector<float> scores = metadata.Numbers(kScores);
  Check(scores.size() == tokens.pieces.size(), "{}: {} has {} elements for {} tokens", metadata.name(), kScores,
        scores.size(), tokens.pieces.size());
  const int64_t unknown = metadata.Integer(kUnknownId, 0, std::ssize(scores) - 1, 0);
  const std::unordered_set<std::string_view> pieces(tokens.pieces.begin(), tokens.pieces.end());
  WireWriter model;
  bool bytes = false;
  for (int64_t id = 0; id < std::ssize(scores); ++id) {
    WireWriter piece;
    piece.Bytes(1, SentencePiecePiece(tokens, id, pieces));
    piece.Float(2, scores[id]);
    piece.Number(3, static_cast<uint64_t>(SentencePieceType(tokens, id, unknown)));
    model.Bytes(1, piece.message());
    bytes = bytes || tokens.types[id] == kByteToken;
  }
  WireWriter trainer, normalizer;
  trainer.Number(3, 2);  // BPE
  trainer.Number(4, scores.size());
  trainer.Number(35, bytes ? 1 : 0);  // unknown characters become bytes
  trainer.Bytes(45, tokens.pieces[unknown]);
  if (tokens.bos >= 0) trainer.Bytes(46, tokens.pieces[tokens.bos]);
  if (tokens.eos >= 0) trainer.Bytes(47, tokens.pieces[tokens.eos]);
  normalizer.Bytes(1, "identity");
  normalizer.Number(3, metadata.Flag(kAddSpace, true) ? 1 : 0);
  normalizer.Number(4, metadata.Flag(kTrimSpace, false) ? 1 : 0);
  normalizer.Number(5, 1);  // a space is written as U+2581
  model.Bytes(2, trainer.message());
  model.Bytes(3, normalizer.message());
  return model.message();
}

// The special tokens that take the spaces after them. GGUF has no flag for that; as in llama.cpp, it is known from the
// name of the model.
std::vector<AddedToken> StrippingTokens(const GgufMetadata& metadata, const Tokens& tokens) {
  std::vector<AddedToken> added;
  if (!StripsGgufSpaces(metadata)) return added;
  for (int64_t id = 0; id < std::ssize(tokens.pieces); ++id) {
    const std::string piece = tokens.Piece(id);
    const bool user_defined = tokens.types[id] == kUserDefinedToken;
    const bool special = tokens.types[id] == kControlToken || tokens.types[id] == kUnknownToken;
    if ((special || user_defined) && piece != "<unk>" && piece != "<s>" && piece != "<|endoftext|>")
      added.push_back({.content = piece, .id = id, .special = special, .rstrip = true});
  }
  return added;
}

// The same tokens as added_tokens_decoder of tokenizer_config.json.
json AddedTokensDecoder(const std::vector<AddedToken>& added) {
  json decoder = json::object();
  for (const AddedToken& token : added)
    decoder[std::to_string(token.id)] = {{"content", token.content}, {"lstrip", false},
                                         {"normalized", false},      {"rstrip", token.rstrip},
                                         {"single_word", false},     {"special", token.special}};
  return decoder;
}

// True for SentencePiece, false for byte-level BPE; throws Error for a third model.
bool IsSentencePiece(const GgufMetadata& metadata) {
  const std::string_view model = metadata.Text(kModel);
  Check(model == "gpt2" || model == "llama", "{}: {} {} is not supported (known: gpt2, llama)", metadata.name(), kModel,
        Printable(model));
  return model == "llama";
}

}  // namespace

bool HasGgufTokenizer(const GgufFile& file) { return file.metadata().Has(kModel); }

std::unique_ptr<Tokenizer> LoadGgufTokenizer(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  const bool sentencepiece = IsSentencePiece(metadata);
  const Tokens tokens = ReadTokens(metadata);
  TokenizerSettings settings;
  settings.directory = file.path();
  settings.notes = tokens.notes;
  if (!sentencepiece && metadata.Text(kPre, "").empty())
    settings.notes.push_back(
        fmt::format("{}: there is no {}, so that text may be split into other words than the model was trained on; as "
                    "in llama.cpp, the pre-tokenizer is \"{}\".",
                    file.path().string(), kPre, kDefaultPre));
  settings.add_bos = sentencepiece ? tokens.add_bos.value_or(true) : AddsBos(metadata, tokens);
  if (tokens.bos >= 0) settings.bos = tokens.Piece(tokens.bos);
  if (tokens.eos >= 0) settings.eos = tokens.Piece(tokens.eos);
  const std::string& where = metadata.name();
  if (sentencepiece) {
    settings.added = StrippingTokens(metadata, tokens);
    return LoadSentencePiece(settings, SentencePieceModel(metadata, tokens), where);
  }
  return LoadTokenizerJson(settings, BpeJson(metadata, tokens), where);
}

std::map<std::string, std::string> GgufTokenizerFiles(const GgufFile& file) {
  const GgufMetadata& metadata = file.metadata();
  const Tokens tokens = ReadTokens(metadata);
  std::map<std::string, std::string> files;
  json config;
  if (IsSentencePiece(metadata)) {
    files["tokenizer.model"] = SentencePieceModel(metadata, tokens);
    // Readers of GGUF put the space before text after a special token too, and transformers 5 does so with legacy
    // only.
    config = {
        {"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", tokens.add_bos.value_or(true)}, {"legacy", true}};
    // transformers takes the space before a text from this key and not from tokenizer.model.
    if (!metadata.Flag(kAddSpace, true)) config["add_prefix_space"] = false;
    if (const auto added = StrippingTokens(metadata, tokens); !added.empty())
      config["added_tokens_decoder"] = AddedTokensDecoder(added);
    config["unk_token"] = tokens.pieces[metadata.Integer(kUnknownId, 0, std::ssize(tokens.pieces) - 1, 0)];
  } else {
    files["tokenizer.json"] = BpeJson(metadata, tokens).dump();
    config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"add_bos_token", AddsBos(metadata, tokens)}};
  }
  config["bos_token"] = tokens.bos >= 0 ? json(tokens.pieces[tokens.bos]) : json();
  config["eos_token"] = tokens.eos >= 0 ? json(tokens.pieces[tokens.eos]) : json();
  if (const std::string text = GgufChatTemplate(file); !text.empty()) config["chat_template"] = text;
  files["tokenizer_config.json"] = config.dump(2) + "\n";
  return files;
}

bool StripsGgufSpaces(const GgufMetadata& metadata) {
  const std::string name = AsciiLower(std::string(metadata.Text("general.name", "")));
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

std::string GgufChatTemplate(const GgufFile& file) {
  const std::string_view text = file.metadata().Text(kChatTemplate, "");
  Check(IsValidUtf8(text), "{}: {} is not valid UTF-8", file.path().string(), kChatTemplate);
  return std::string(text);
}

const GgufPreTokenizer* FindGgufPreTokenizer(const std::vector<std::string>& patterns, bool digits, bool whole_words) {
  for (const GgufPreTokenizer& row : PreTokenizers()) {
    std::vector<std::string> of_row(row.before.begin(), row.before.end());
    of_row.emplace_back(row.pattern);
    if (patterns == of_row && digits == row.digits && whole_words == row.whole_words) return &row;
  }
  return nullptr;
}

}  // namespace shiftrt
