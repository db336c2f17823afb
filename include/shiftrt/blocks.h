// SPDX-License-Identifier: Apache-2.0
/// \file
/// How blocks of a model, and halves of them, are named.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shiftrt {

/// Says which of a block's two residual updates run: h += attention(norm(h)), h += mlp(norm(h)).
enum class Halves : uint8_t {
  kBoth,       ///< the whole block
  kAttention,  ///< its attention alone
  kMlp,        ///< its MLP alone
};
/// \param halves halves of a block
/// \return whether the attention is among them
constexpr bool RunsAttention(Halves halves) { return halves != Halves::kMlp; }
/// \param halves halves of a block
/// \return whether the MLP is among them
constexpr bool RunsMlp(Halves halves) { return halves != Halves::kAttention; }
/// \param halves halves of a block
/// \return "both", "attention" or "mlp"
const char* Name(Halves halves);
/// The inverse of Name(Halves).
/// \param name a word
/// \return nothing for another word
std::optional<Halves> ParseHalves(std::string_view name);

/// Says what is scored and removed as a whole.
enum class Unit : uint8_t {
  kBlock,  ///< blocks: unit i is block i
  kHalf,   ///< halves of blocks: unit i is the half at place i (BlockPart)
};
/// \param unit blocks or halves
/// \return "block" or "half"
const char* Name(Unit unit);

/// A block of the original model, or one half of it. Places count halves from the model's first: the attention of layer
/// l is at place 2 l, its MLP at 2 l + 1.
struct BlockPart {
  int64_t layer = 0;              ///< counted from 0
  Halves halves = Halves::kBoth;  ///< the whole block, or which half of it

  /// The whole first block.
  constexpr BlockPart() = default;
  /// A layer number stands for its whole block.
  /// \param layer counted from 0
  /// \param halves the whole block, or which half of it
  // NOLINTNEXTLINE(google-explicit-constructor): a layer is a part of a model
  constexpr BlockPart(int64_t layer, Halves halves = Halves::kBoth) : layer(layer), halves(halves) {}
  /// \param place of a half
  /// \return the half that is there
  static constexpr BlockPart At(int64_t place) {
    return {place / 2, place % 2 == 0 ? Halves::kAttention : Halves::kMlp};
  }
  /// \return its first place
  constexpr int64_t begin() const { return 2 * layer + (RunsAttention(halves) ? 0 : 1); }
  /// \return the place after its last
  constexpr int64_t end() const { return 2 * layer + (RunsMlp(halves) ? 2 : 1); }

  /// \return whether both are the same part
  bool operator==(const BlockPart&) const = default;
};
/// \param part a block or a half
/// \return "3", "3.attn" or "3.mlp"
std::string Name(const BlockPart& part);
/// The inverse of Name(const BlockPart&).
/// \param name a word
/// \return nothing for another word
std::optional<BlockPart> ParseBlockPart(std::string_view name);
/// \param parts blocks and halves
/// \param between what stands between two names
/// \return their names, in the order given
std::string Names(std::span<const BlockPart> parts, std::string_view between = ", ");
/// \param parts consecutive blocks and halves, ascending
/// \return the name of the first, or those of the first and the last: "3-6", "3.mlp-6"
std::string SpanName(std::span<const BlockPart> parts);

}  // namespace shiftrt
