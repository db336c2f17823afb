// SPDX-License-Identifier: Apache-2.0
#include "models/config_keys.h"

#include <algorithm>
#include <set>

#include "runtime/printable.h"

namespace shiftrt {

namespace {

using Json = nlohmann::json;

// Keys that change nothing in what the model computes, whatever their value.
const std::set<std::string_view>& HarmlessKeys() {
  static const std::set<std::string_view> keys = {
      // These describe the file.
      "architectures", "model_type", "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype",
      "auto_map", "tokenizer_class", "transformers.js_config", "unsloth_version", "unsloth_fixed", "_commit_hash",
      "finetuning_task", "task_specific_params", "problem_type", "id2label", "label2id", "num_labels", "shiftrt",
      "max_sequence_length",
      // These are of the initialisation and the training.
      "initializer_range", "initializer_factor", "attention_dropout", "hidden_dropout", "residual_dropout",
      "resid_pdrop", "embd_pdrop", "gradient_checkpointing", "finetuned",
      // These are of tokens and of the generation of text.
      "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "decoder_start_token_id",
      "forced_bos_token_id", "forced_eos_token_id", "do_sample", "temperature", "top_p", "top_k", "typical_p",
      "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "max_length", "min_length", "max_new_tokens",
      "num_beams", "num_return_sequences", "early_stopping", "bad_words_ids", "suppress_tokens",
      // These say how a program runs the model. The tensor parallelism of the training changes only the order of
      // additions.
      "use_cache", "cache_implementation", "pretraining_tp", "output_attentions", "output_hidden_states", "return_dict",
      "return_dict_in_generate", "torchscript", "use_bfloat16", "use_return_dict", "chunk_size_feed_forward",
      "is_decoder", "is_encoder_decoder", "attn_implementation", "_attn_implementation", "_attn_implementation_autoset",
      "_flash_attn_2_enabled", "use_flash_attention", "use_flash_attention_2"};
  return keys;
}

// Keys that change nothing with one value, which says that a model lacks something.
bool IsOff(const std::string& key, const Json& value) {
  static const std::set<std::string_view> off = {"attention_bias",
                                                 "mlp_bias",
                                                 "use_bias",
                                                 "use_sliding_window",
                                                 "use_mrope",
                                                 "rope_interleaved",
                                                 "use_bidirectional_attention",
                                                 "use_parallel_residual",
                                                 "add_cross_attention",
                                                 "tie_encoder_decoder",
                                                 "lm_head_bias"};
  if (off.contains(key)) return value == false;
  if (key == "partial_rotary_factor" || key == "full_attn_mod" || key == "interpolate_factor") return value == 1;
  // A list without an entry that is anything else.
  return key == "layer_types" && value.is_array() &&
         std::all_of(value.begin(), value.end(), [](const Json& type) { return type == "full_attention"; });
}

bool IsHarmless(const Family& family, const std::string& key, const Json& value) {
  const auto named = [&](const char* harmless) { return key == harmless; };
  return HarmlessKeys().contains(key) || IsOff(key, value) ||
         std::any_of(family.harmless.begin(), family.harmless.end(), named);
}

}  // namespace

std::vector<std::string> UnknownKeys(const ConfigReader& config, const Family& family) {
  std::vector<std::string> unknown = config.Unread();
  std::erase_if(unknown, [&](const std::string& key) { return IsHarmless(family, key, config[key]); });
  return unknown;
}

void RefuseUnknownKeys(const ConfigReader& config, const Family& family) {
  for (const std::string& key : UnknownKeys(config, family))
    Fail("{}: {} is {}: {} is not known to read this setting. Remove it if it does not change what the model computes",
         config.file(), Printable(key), Shown(config[key]), family.architecture);
}

}  // namespace shiftrt
