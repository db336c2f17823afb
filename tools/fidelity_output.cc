// SPDX-License-Identifier: Apache-2.0
#include "tools/fidelity_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/processes.h"
#include "tools/table.h"

namespace shiftrt {

using Json = nlohmann::json;

PageTable FidelityTable::Rows() const {
  PageTable table{{"model", "mean KLD", "median", "90%", "99%", "same top p, %", "mean Δp, %", "RMS Δp, %"}, {}};
  for (size_t v = 0; v < rows.size(); ++v) {
    const Fidelity& row = rows[v];
    table.rows.push_back({labels[v], fmt::format("{:.4f}{}", row.mean_kld, PlusMinus(row.mean_kld_error, 4)),
                          fmt::format("{:.4f}", row.median_kld), fmt::format("{:.4f}", row.kld_90),
                          fmt::format("{:.4f}", row.kld_99),
                          fmt::format("{:.2f}{}", 100 * row.same_top, PlusMinus(100 * row.same_top_error, 2)),
                          fmt::format("{:+.2f}{}", 100 * row.mean_delta_p, PlusMinus(100 * row.mean_delta_p_error, 2)),
                          fmt::format("{:.2f}", 100 * row.rms_delta_p)});
  }
  return table;
}

std::string FidelityTable::Text() const {
  if (empty()) return "";
  return fmt::format("\nfidelity to the original on {}, {} predicted tokens\n{}", text, rows.front().tokens,
                     Table(Rows()).Text());
}

Section FidelityTable::ToSection() const {
  return {"Fidelity to the original",
          fmt::format("Measured on {}, {} predicted tokens. KLD is the divergence KL(original || variant) of the "
                      "predictions of a token, in nats. “Same top p” is the share of tokens whose likeliest token is "
                      "the original's. Δp is the change of the probability of the text's token.",
                      text, rows.empty() ? 0 : rows.front().tokens),
          {Rows()}};
}

Json FidelityTable::ToJson() const {
  Json variants = Json::array();
  for (size_t v = 0; v < rows.size(); ++v) {
    Json row = FidelityJson(rows[v]);
    row["name"] = names[v];
    row["label"] = labels[v];
    variants.push_back(std::move(row));
  }
  return {{"text", text}, {"variants", std::move(variants)}};
}

Json FidelityJson(const Fidelity& row) {
  return {{"tokens", row.tokens},
          {"mean_kld", row.mean_kld},
          {"mean_kld_error", row.mean_kld_error},
          {"median_kld", row.median_kld},
          {"kld_90", row.kld_90},
          {"kld_99", row.kld_99},
          {"max_kld", row.max_kld},
          {"same_top_p", row.same_top},
          {"same_top_p_error", row.same_top_error},
          {"mean_delta_p", row.mean_delta_p},
          {"mean_delta_p_error", row.mean_delta_p_error},
          {"rms_delta_p", row.rms_delta_p},
          {"perplexity_original", row.perplexity_original},
          {"perplexity", row.perplexity},
          {"log_perplexity_ratio", row.log_perplexity_ratio},
          {"log_perplexity_ratio_error", row.log_perplexity_ratio_error}};
}

FidelityTable FidelityOf(std::span<const ModelVariant> variants, const HeldOutText& heldout,
                         const std::string& protocol, const Resources& resources, Progress& progress) {
  if (variants.size() < 2 || !heldout.Scored()) return {};
  if (resources.processes && resources.processes->split()) return {};
  HeldOutText first = heldout;
  first.tokens.resize(std::min<size_t>(first.tokens.size(), kFidelityTokens));
  FidelityTable table{.text = first.Description()};
  for (const ModelVariant& variant : variants.subspan(1)) {
    table.names.push_back(variant.name);
    table.labels.push_back(variant.label);
  }
  table.rows = MeasureFidelity(variants, first, protocol, resources, &progress);
  return table;
}

}  // namespace shiftrt
