// SPDX-License-Identifier: Apache-2.0
// Compares a configuration with what llama.cpp's architecture computes.
#include <array>
#include <cmath>
#include <span>

#include "models/gguf.h"
#include "runtime/check.h"
#include "runtime/json.h"

namespace shiftrt {

namespace {

bool SameRope(const ModelConfig& a, const RopeSpec& rope_a, const RopeSpec& rope_b) {
  for (const bool is_long : {false, true}) {
    const RopeFrequencies of_a = MakeRopeFrequencies(rope_a, a.head_dim, is_long);
    const RopeFrequencies of_b = MakeRopeFrequencies(rope_b, a.head_dim, is_long);
    if (of_a.inverse != of_b.inverse || std::abs(of_a.scale - of_b.scale) > 1e-6f) return false;
  }
  const bool counts = rope_a.kind == RopeKind::kLongRope || rope_a.query_beta != 0;
  return rope_a.interleaved == rope_b.interleaved && rope_a.query_beta == rope_b.query_beta &&
         (rope_a.kind == RopeKind::kLongRope) == (rope_b.kind == RopeKind::kLongRope) &&
         (!counts || rope_a.original_max_positions == rope_b.original_max_positions);
}

// The first setting in which two configurations differ; null if they compute the same.
const char* Difference(const ModelConfig& a, const ModelConfig& b) {
  const BlockSpec &s = a.block, &t = b.block;
  const auto shape = [](const ModelConfig& c) {
    return std::array{c.hidden, c.intermediate, c.layers, c.heads, c.kv_heads, c.head_dim, c.vocab, c.max_positions};
  };
  const auto norms = [](const BlockSpec& block) {
    return std::array{block.input_norms,   block.update_norms,     block.qk_norm,
                      block.qk_norm_whole, block.layer_norm,       block.norm_bias,
                      block.shared_norm,   block.norm_offset != 0, block.qk_norm_after_rotation};
  };
  if (shape(a) != shape(b)) return "sizes";
  if (a.rms_eps != b.rms_eps || norms(s) != norms(t)) return "norms";
  if (a.tied_head != b.tied_head) return "head";
  if (s.qkv_bias != t.qkv_bias || s.output_bias != t.output_bias || s.mlp_bias != t.mlp_bias ||
      s.expert_bias != t.expert_bias)
    return "biases";
  if (s.attention_sinks != t.attention_sinks) return "attention sinks";
  const auto delta = [](const BlockSpec& block) {
    const GatedDeltaShape& of = block.delta;
    return std::array{of.key_heads, of.value_heads, of.key_dim, of.value_dim, of.conv_width, block.convolution.width};
  };
  if (s.mixers != t.mixers || s.attention_gate != t.attention_gate || delta(s) != delta(t)) return "mixers";
  if (s.gated != t.gated || s.activation != t.activation || s.clamped != t.clamped || s.parallel != t.parallel ||
      s.xielu != t.xielu)
    return "MLPs";
  const auto mixture = [](const BlockSpec& block) {
    const MixtureSpec& of = block.mixture;
    return std::array<int64_t, 6>{block.dense, of.experts, of.active, of.units, of.normalised, of.shared_units};
  };
  if (s.mixed != t.mixed || (s.mixed && mixture(s) != mixture(t))) return "mixtures of experts";
  if (s.attention_scale != t.attention_scale || s.attention_cap != t.attention_cap) return "scale of attention scores";
  if (s.residual_multiplier != t.residual_multiplier || s.scaled_embeddings != t.scaled_embeddings ||
      s.embedding_multiplier != t.embedding_multiplier || s.logit_scale != t.logit_scale || s.logit_cap != t.logit_cap)
    return "multipliers";
  for (int64_t layer = 0; layer < a.layers; ++layer) {
    if (s.Window(layer) != t.Window(layer)) return "windows";
    const RopeChoice choice = s.Rope(layer), other = t.Rope(layer);
    if ((choice == RopeChoice::kNone) != (other == RopeChoice::kNone))
      return "order of layers without rotary embedding";
    if (choice == RopeChoice::kNone) continue;
    const auto rope = [](const ModelConfig& c, RopeChoice which) {
      return which == RopeChoice::kSecond ? c.second_rope : c.rope;
    };
    if (!SameRope(a, rope(a, choice), rope(b, other))) return "rotary embedding";
  }
  return nullptr;
}

}  // namespace

std::string WhyNoGguf(const ModelConfig& config, const GgufArchitecture& architecture) {
  if (config.block.AnyWindow() && architecture.full_every == 0)
    return fmt::format("some blocks attend to a window, which llama.cpp's architecture {} does not", architecture.name);
  GgufWriter writer;
  AddGgufConfig(config, architecture, {}, writer);
  const std::string header = writer.header();
  const auto factors = GgufRopeFactors(config);
  try {
    GgufContents file = GgufFile::Parse(std::as_bytes(std::span(header)), "the GGUF file");
    const BlockTraits& type = TraitsOf(BlockType::kF32);
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, const void* data, int64_t bytes) {
      file.tensors[name] = {static_cast<const std::byte*>(data), &type, shape, bytes};
    };
    add(kGgufEmbedding, {config.vocab, config.hidden}, nullptr, 0);
    if (!config.tied_head) add(kGgufHead, {config.vocab, config.hidden}, nullptr, 0);
    for (const CheckpointTensor& tensor : GgufTensorsOf(architecture, config))
      add(fmt::format("blk.0.{}", tensor.name), tensor.shape, nullptr, 0);
    for (const auto& [name, values] : factors)
      add(name, {std::ssize(values)}, values.data(), std::ssize(values) * static_cast<int64_t>(sizeof(float)));
    const char* const different = Difference(config, ConfigFromJson(GgufConfig(file), "the GGUF file"));
    if (different == nullptr) return "";
    return fmt::format("llama.cpp's architecture {} has other {}", architecture.name, different);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace shiftrt
