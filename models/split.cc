// SPDX-License-Identifier: Apache-2.0
#include "models/split.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>

#include "models/block_tensors.h"
#include "models/weights.h"
#include "runtime/check.h"

namespace shiftrt {

namespace {

int64_t Elements(const std::vector<int64_t>& shape) {
  if (shape.empty()) return 0;
  int64_t elements = 1;
  for (const int64_t side : shape) elements *= side;
  return elements;
}

// The number of elements of each layer that the plan runs.
std::vector<int64_t> ElementsPerLayer(const ModelConfig& config, const DepthPlan& plan) {
  std::vector<int64_t> elements(config.layers, 0);
  for (const BlockStage* block : plan.Blocks()) {
    const ModelConfig of_block = ConfigOfBlock(config, block->layer, 0);
    for (const BlockTensor* row : AllTensors(of_block)) {
      const bool runs = row->half == Halves::kMlp ? RunsMlp(block->halves) : RunsAttention(block->halves);
      if (runs) elements.at(block->layer) += Elements(row->Shape(of_block));
    }
  }
  return elements;
}

// Divides `sizes` into `parts` consecutive ranges with the least total cost. Each range but the last has at least one
// element. The cost of two ranges together is join(cost(a), cost(b)). Returns where each range begins, and the end.
struct Division {
  double cost = 0;
  std::vector<size_t> begins;
};
Division Divide(const std::vector<int64_t>& sizes, int64_t parts, int64_t with_last,
                const std::function<double(double)>& cost, const std::function<double(double, double)>& join) {
  const size_t count = sizes.size();
  std::vector<double> sums(count + 1, 0);
  for (size_t i = 0; i < count; ++i) sums[i + 1] = sums[i] + static_cast<double>(sizes[i]);
  // best[p][i]: the least cost of the first i sizes in p + 1 ranges; from[p][i]: where the last of these begins.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<std::vector<double>> best(parts, std::vector<double>(count + 1, kNever));
  std::vector<std::vector<size_t>> from(parts, std::vector<size_t>(count + 1, 0));
  for (int64_t p = 0; p < parts; ++p) {
    const bool first = p == 0, last = p + 1 == parts;
    for (size_t end = last ? count : 1; end <= count; ++end) {
      const size_t lowest = first ? 0 : 1, highest = first ? 0 : last ? end : end - 1;
      for (size_t begin = lowest; begin <= highest; ++begin) {
        const double range = cost(sums[end] - sums[begin] + (last ? static_cast<double>(with_last) : 0));
        const double all = first ? range : join(best[p - 1][begin], range);
        if (all >= best[p][end]) continue;
        best[p][end] = all;
        from[p][end] = begin;
      }
    }
  }
  Division division{best[parts - 1][count], {count}};
  for (int64_t p = parts - 1; p >= 0; --p) division.begins.push_back(from[p][division.begins.back()]);
  std::reverse(division.begins.begin(), division.begins.end());
  return division;
}

}  // namespace

std::vector<ModelShare> CutModel(const ModelConfig& config, const DepthPlan& plan, int64_t processes) {
  const std::vector<int64_t> per_layer = ElementsPerLayer(config, plan), kept = plan.KeptLayers();
  const int64_t most = std::ssize(kept) + 1;
  if (processes < 1 || processes > most)
    FailUsage(
        Field("split"),
        "a model of {} blocks cannot be split over {} processes: 1 to {} are possible, of which the last may have "
        "the head alone",
        kept.size(), processes, most);
  std::vector<int64_t> sizes;
  sizes.reserve(kept.size());
  for (const int64_t layer : kept) sizes.push_back(per_layer[layer]);
  const int64_t head = config.vocab * config.hidden;
  const double largest =
      Divide(
          sizes, processes, head, [](double size) { return size; }, [](double a, double b) { return std::max(a, b); })
          .cost;
  const std::vector<size_t> begins =
      Divide(
          sizes, processes, head,
          [&](double size) { return size > largest ? std::numeric_limits<double>::infinity() : size * size; },
          [](double a, double b) { return a + b; })
          .begins;
  std::vector<ModelShare> shares;
  const auto layer_at = [&](size_t at) { return at == 0 ? 0 : at == kept.size() ? config.layers : kept[at]; };
  for (int64_t i = 0; i < processes; ++i)
    shares.push_back({layer_at(begins[i]), layer_at(begins[i + 1]), i == 0, i + 1 == processes});
  return shares;
}

int64_t WeightBytes(const ModelConfig& config, const DepthPlan& plan, const ModelShare& share, DType dtype) {
  const std::vector<int64_t> per_layer = ElementsPerLayer(config, plan);
  int64_t elements = 0;
  for (int64_t layer = share.begin; layer < share.end; ++layer) elements += per_layer[layer];
  const int64_t table = config.vocab * config.hidden;
  if (share.first) elements += table;
  if (share.last) elements += config.hidden + (share.first && config.tied_head ? 0 : table);
  return BytesOf(dtype, elements);
}

int64_t WeightBytes(const Weights& weights, const DepthPlan& plan, const ModelShare& share) {
  int64_t bytes = 0;
  for (const BlockStage* block : plan.Blocks())
    if (share.Has(block->layer))
      ForEachTensor(weights.blocks[block->layer], block->halves,
                    [&](const BlockTensor&, const TensorView& tensor) { bytes += tensor.bytes(); });
  if (share.first) bytes += weights.embedding.bytes();
  if (share.last) {
    bytes += weights.final_norm.bytes() + (weights.final_norm_bias.empty() ? 0 : weights.final_norm_bias.bytes());
    if (!share.first || !weights.config.tied_head) bytes += weights.head.bytes();
  }
  return bytes;
}

int64_t ChooseSplit(const WeightMemory& weights, const std::vector<ProcessMemory>& processes) {
  struct Host {
    int64_t room = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> ranks;
  };
  std::map<std::string, Host> hosts;
  const int64_t count = std::ssize(processes);
  for (int64_t rank = 0; rank < count; ++rank) {
    Host& host = hosts[processes[rank].host];
    host.room = std::min(host.room, processes[rank].bytes);
    host.ranks.push_back(rank);
  }
  const int64_t most = std::ssize(weights.plan.KeptLayers()) + 1;
  std::string lacks;
  for (int64_t parts = 1; parts <= std::min(count, most); ++parts) {
    if (count % parts != 0) continue;
    const std::vector<ModelShare> shares = CutModel(weights.config, weights.plan, parts);
    bool fits = true;
    for (const auto& [name, host] : hosts) {
      int64_t needed = 0;
      std::set<int64_t> mapped;
      for (const int64_t rank : host.ranks)
        if (mapped.insert(rank % parts).second || !weights.mapped) needed += weights.bytes(shares[rank % parts]);
      if (needed <= host.room) continue;
      fits = false;
      lacks = fmt::format("{} processes of {} would hold {:.1f} GiB of weights, and {:.1f} GiB may be used",
                          host.ranks.size(), name, static_cast<double>(needed) / (1 << 30),
                          static_cast<double>(host.room) / (1 << 30));
    }
    if (fits) return parts;
  }
  FailUsage(Field("split"),
            "memory has no room for the model, divided among {} process{}: {}; start more of them, on more hosts",
            count, count == 1 ? "" : "es", lacks);
}

}  // namespace shiftrt
