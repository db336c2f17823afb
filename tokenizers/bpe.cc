// SPDX-License-Identifier: Apache-2.0
#include "tokenizers/bpe.h"

#include <algorithm>
#include <array>
#include <queue>

#include "runtime/check.h"
#include "runtime/printable.h"
#include "tokenizers/load.h"
#include "tokenizers/utf8.h"

namespace shiftrt {

namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

constexpr size_t kLongestCachedWord = 128;  // bytes; longer words hardly ever repeat

}  // namespace

void BpeMerges::Add(std::string_view left, std::string_view right, const Vocabulary& vocabulary,
                    const std::string& where) {
  const std::string whole = std::string(left).append(right);
  const auto find = [&](std::string_view piece) {
    const auto id = vocabulary.Find(piece);
    Check(id.has_value(), "{}: merge {} ('{}' '{}'): '{}' is not in the vocabulary", where, next_rank_, left, right,
          piece);
    return *id;
  };
  const int32_t left_id = find(left), right_id = find(right);
  merges_[PairKey(left_id, right_id)] = {next_rank_++, find(whole)};
}

const BpeMerge* BpeMerges::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

// A part of the word. The symbols of a word form a doubly linked list.
struct BpeTokenizer::Symbol {
  int32_t id;
  size_t begin, length;  // the length is 0 once the symbol has been merged into its left neighbour
  int64_t previous, next;
};

// The ids of the words that one call of Encode() has encoded so far.
class BpeTokenizer::WordCache {
 public:
  explicit WordCache(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void Append(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > kLongestCachedWord) return tokenizer_.EncodeWord(word, ids);
    const auto [entry, fresh] = words_.try_emplace(std::string(word));
    if (fresh) tokenizer_.EncodeWord(word, entry->second);
    ids.insert(ids.end(), entry->second.begin(), entry->second.end());
  }

 private:
  const BpeTokenizer& tokenizer_;
  std::unordered_map<std::string, std::vector<int32_t>> words_;
};

BpeTokenizer::BpeTokenizer(BpeParts parts, const TokenizerSettings& settings, const std::optional<std::string>& bos,
                           const std::optional<std::string>& eos, bool adds_bos)
    : where_(std::move(parts.where)),
      merges_(std::move(parts.merges)),
      normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      byte_level_(parts.byte_level),
      byte_fallback_(parts.byte_fallback),
      ignore_merges_(parts.ignore_merges),
      fuse_unknown_(parts.fuse_unknown) {
  vocabulary_ = std::move(parts.vocabulary);
  decoder_ = std::move(parts.decoder);
  for (AddedToken& token : NamedTokens(settings, vocabulary_, parts.added)) parts.added.push_back(std::move(token));
  AddTokens(parts.added, where_);
  try {
    for (const AddedToken& token : parts.added) {
      if (token.normalized) {
        normalized_.Add(token, normalizer_.Apply(token.content));
      } else {
        raw_.Add(token, token.content);
      }
    }
  } catch (const Error& error) {
    Fail("{}: an added token: {}", where_, error.what());
  }
  const auto find = [&](const std::optional<std::string>& piece) {
    if (!piece) return -1;
    const auto id = vocabulary_.Find(*piece);
    Check(id.has_value(), "{}: token '{}' is not in the vocabulary", where_, *piece);
    return *id;
  };
  if (parts.unknown) {
    const auto unknown = vocabulary_.Find(*parts.unknown);
    unknown_ = unknown.value_or(-1);
    if (!unknown) missing_unknown_ = std::move(parts.unknown);
  }
  notes_ = std::move(parts.notes);
  SetSpecials(settings, find(bos), find(eos), adds_bos);
  if (parts.prefix.empty()) return;
  prefix_ = std::move(parts.prefix);
  for (const int32_t id : prefix_)
    Check(vocabulary_.Piece(id) != nullptr, "{}: the post_processor adds token {}, which is not in the vocabulary",
          where_, id);
}

std::optional<BpeMerge> BpeTokenizer::FindMerge(std::string_view word, const Symbol& left, const Symbol& right) const {
  if (merges_) {
    const BpeMerge* merge = merges_->Find(left.id, right.id);
    return merge ? std::optional(*merge) : std::nullopt;
  }
  const size_t length = left.length + right.length;
  // Between symbols that do not touch, a character without a token was left out.
  if (left.begin + left.length != right.begin || length > vocabulary_.longest()) return std::nullopt;
  const auto id = vocabulary_.Find(word.substr(left.begin, length));
  return id ? std::optional(BpeMerge{*id, *id}) : std::nullopt;
}

void BpeTokenizer::AddUnspelt(std::string_view word, size_t begin, size_t length, std::vector<Symbol>& symbols) const {
  if (byte_fallback_) {
    std::array<int32_t, 4> ids = {};
    bool all = true;
    for (size_t i = 0; i < length && all; ++i) {
      const auto id = vocabulary_.Find(BytePiece(static_cast<uint8_t>(word[begin + i])));
      all = id.has_value();
      ids[i] = id.value_or(-1);
    }
    if (all) {
      for (size_t i = 0; i < length; ++i) symbols.push_back({ids[i], begin + i, 1, 0, 0});
      return;
    }
  }
  if (missing_unknown_)
    Fail("{}: '{}' has no token, and neither has the unk_token '{}'", where_, Printable(word.substr(begin, length)),
         Printable(*missing_unknown_));
  // Without a token for the unknown, the character gives no token, as in the library `tokenizers`.
  if (unknown_ < 0) return;
  if (fuse_unknown_ && !symbols.empty() && symbols.back().id == unknown_) {
    symbols.back().length += length;
  } else {
    symbols.push_back({unknown_, begin, length, 0, 0});
  }
}

std::vector<BpeTokenizer::Symbol> BpeTokenizer::Spell(std::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (size_t begin = 0; begin < word.size();) {
    const size_t length = FirstCharacter(word.substr(begin)).length;
    const auto id = vocabulary_.Find(word.substr(begin, length));
    if (id) {
      symbols.push_back({*id, begin, length, 0, 0});
    } else {
      AddUnspelt(word, begin, length, symbols);
    }
    begin += length;
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    symbols[i].previous = static_cast<int64_t>(i) - 1;
    symbols[i].next = i + 1 < symbols.size() ? static_cast<int64_t>(i) + 1 : -1;
  }
  return symbols;
}

// Applies the merge of the lowest rank first, and of equal ranks the leftmost. Candidates are kept in a heap. One
// whose parts have changed in the meantime is dropped when it is reached. O(n log n).
void BpeTokenizer::Merge(std::string_view word, std::vector<Symbol>& symbols) const {
  struct Candidate {
    BpeMerge merge;
    int64_t left;
    size_t length;  // length of both symbols; symbols only grow, so an equal length means the same two symbols
    int32_t left_id, right_id;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.merge.rank != b.merge.rank ? a.merge.rank > b.merge.rank : a.left > b.left;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> queue(later);
  const auto consider = [&](int64_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const Symbol &a = symbols[left], &b = symbols[symbols[left].next];
    if (const auto merge = FindMerge(word, a, b)) queue.push({*merge, left, a.length + b.length, a.id, b.id});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int64_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.left];
    if (left.length == 0 || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    if (left.id != top.left_id || right.id != top.right_id || left.length + right.length != top.length) continue;
    left.id = top.merge.id;
    left.length = top.length;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols[left.next].previous = top.left;
    consider(left.previous);
    consider(top.left);
  }
}

void BpeTokenizer::EncodeWord(std::string_view word, std::vector<int32_t>& ids) const {
  const std::string spelt = byte_level_ ? BytesToAlphabet(word) : std::string(word);
  if (ignore_merges_) {
    if (const auto id = vocabulary_.Find(spelt)) return ids.push_back(*id);
  }
  std::vector<Symbol> symbols = Spell(spelt);
  Merge(spelt, symbols);
  for (const Symbol& symbol : symbols)
    if (symbol.length > 0) ids.push_back(symbol.id);
}

std::vector<int32_t> BpeTokenizer::Encode(std::string_view text) const {
  CheckText(text);
  std::vector<int32_t> ids;
  WordCache cache(*this);
  for (const auto& outer : raw_.Split(text)) {
    if (outer.token >= 0) {
      ids.push_back(outer.token);
      continue;
    }
    const std::string normal = normalizer_.Apply(outer.text);
    for (const auto& inner : normalized_.Split(normal)) {
      if (inner.token >= 0) {
        ids.push_back(inner.token);
        continue;
      }
      const bool at_start = outer.text.data() == text.data() && inner.text.data() == normal.data();
      pre_tokenizer_.Apply(inner.text, at_start, [&](std::string_view word) { cache.Append(word, ids); });
    }
  }
  return ids;
}

}  // namespace shiftrt
