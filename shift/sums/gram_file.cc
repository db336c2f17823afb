// SPDX-License-Identifier: Apache-2.0
#include "shift/sums/gram_file.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "runtime/check.h"
#include "runtime/files.h"
#include "runtime/interrupts_held.h"
#include "runtime/json.h"
#include "runtime/printable.h"
#include "runtime/safetensors.h"
#include "runtime/shared_items.h"
#include "runtime/stopwatch.h"
#include "types/part_json.h"

namespace shiftrt {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "shiftrt-gram";
constexpr int kVersion = 2;

std::vector<std::string> SampleHashes(const std::vector<Batch>& batches) {
  std::vector<std::string> hashes;
  for (const Batch& batch : batches)
    for (int64_t s = 0; s < batch.sequences(); ++s) {
      const auto sample = std::span(batch.tokens).subspan(batch.offsets[s], batch.offsets[s + 1] - batch.offsets[s]);
      hashes.push_back(HashHex(std::as_bytes(sample)));
    }
  return hashes;
}

Json ToJson(const SavedSums& set) {
  Json tokens = Json::array();
  for (const SiteSums& site : set.sums.sites) tokens.push_back({site.fit.tokens(), site.heldout.tokens()});
  return {{"version", kVersion},
          {"model", set.origin.model},
          {"dtype", set.origin.dtype},
          {"settings", set.origin.settings},
          {"source", set.origin.source},
          {"fit_samples", set.origin.fit_samples},
          {"heldout_samples", set.origin.heldout_samples},
          {"layers", set.sums.Parts()},
          {"tokens", tokens},
          {"fit_batches", {set.sums.fit_batches, set.fit_total}},
          {"heldout_batches", {set.sums.heldout_batches, set.heldout_total}},
          {"scores", set.scores}};
}

// The header without the checksum, for ChecksumOf().
std::string Checked(Json header) {
  header.erase("checksum");
  return header.dump();
}

TensorView View(const Matrix<double>& m) { return {m.data(), DType::kFloat64, {m.rows(), m.cols()}}; }

std::string TensorName(const Site& site, const char* part, const char* what) {
  return fmt::format("layer.{}.{}.{}", site.Name(), part, what);
}

Matrix<double> ReadMatrix(const SafetensorsFile& file, const std::string& name, int64_t rows, int64_t cols) {
  const auto found = file.tensors().find(name);
  Check(found != file.tensors().end(), "{}: tensor {} is missing", file.path().string(), name);
  const TensorView& tensor = found->second;
  Check(tensor.dtype == DType::kFloat64 && tensor.shape == std::vector<int64_t>{rows, cols},
        "{}: tensor {} is {} [{}], expected float64 [{}, {}]", file.path().string(), name, Name(tensor.dtype),
        fmt::join(tensor.shape, ", "), rows, cols);
  Matrix<double> matrix(rows, cols);
  std::memcpy(matrix.data(), tensor.data, tensor.bytes());
  for (double value : matrix.span())
    Check(std::isfinite(value), "{}: tensor {} holds {}", file.path().string(), name, value);
  return matrix;
}

RidgeSums ReadRidgeSums(const SafetensorsFile& file, const Site& site, const char* part, int64_t tokens) {
  const auto gram = file.tensors().find(TensorName(site, part, "gram"));
  Check(gram != file.tensors().end() && gram->second.rows() >= 2, "{}: tensor {} is missing or empty",
        file.path().string(), TensorName(site, part, "gram"));
  const int64_t side = gram->second.rows();
  const Matrix<double> squares = ReadMatrix(file, TensorName(site, part, "squares"), 1, 1);
  return RidgeSums::FromSums(ReadMatrix(file, TensorName(site, part, "gram"), side, side),
                             ReadMatrix(file, TensorName(site, part, "cross"), side, side - 1), squares(0, 0), tokens);
}

std::string WhyNotTheSame(const SumsOrigin& a, const SumsOrigin& b) {
  if (a.model != b.model)
    return fmt::format("they are of two models (fingerprints {} and {})", Printable(a.model), Printable(b.model));
  if (a.dtype != b.dtype)
    return fmt::format("the model ran in {} for one and in {} for the other", Printable(a.dtype), Printable(b.dtype));
  if (a.settings != b.settings)
    return fmt::format("their settings differ: {} and {}", Printable(a.settings), Printable(b.settings));
  return "";
}

// How many samples, fitted or held out, are in both.
int64_t Overlap(const SumsOrigin& a, const SumsOrigin& b) {
  std::set<std::string> seen(a.fit_samples.begin(), a.fit_samples.end());
  seen.insert(a.heldout_samples.begin(), a.heldout_samples.end());
  int64_t common = 0;
  for (const auto* samples : {&b.fit_samples, &b.heldout_samples})
    common += std::count_if(samples->begin(), samples->end(), [&](const std::string& s) { return seen.contains(s); });
  return common;
}

void Add(SavedSums& set, const SavedSums& other) {
  for (size_t i = 0; i < set.sums.sites.size(); ++i) {
    set.sums.sites[i].fit += other.sums.sites[i].fit;
    set.sums.sites[i].heldout += other.sums.sites[i].heldout;
  }
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  append(set.origin.fit_samples, other.origin.fit_samples);
  append(set.origin.heldout_samples, other.origin.heldout_samples);
  set.origin.source += "; " + other.origin.source;
  set.sums.fit_batches += other.sums.fit_batches;
  set.sums.heldout_batches += other.sums.heldout_batches;
  set.fit_total += other.fit_total;
  set.heldout_total += other.heldout_total;
  set.scores.clear();  // found on one text; another might have found others
}

// Fields of the header, checked as they are taken.
class Header {
 public:
  Header(const SafetensorsFile& file) : name_(file.path().string()) {
    const auto format = file.metadata().find("format");
    const auto gram = file.metadata().find("gram");
    Check(format != file.metadata().end() && format->second == kFormat && gram != file.metadata().end(),
          "{}: not a file of calibration sums", name_);
    json_ = ParseJson(gram->second, name_);
    Check(json_.is_object() && json_.contains("version"), "{}: its metadata is not that of calibration sums", name_);
    Check(json_["version"] == kVersion, "{}: version {} of the format; this program reads version {}", name_,
          Shown(json_["version"]), kVersion);
  }
  template <typename T>
  T Get(const char* key) const {
    try {
      return json_.at(key).get<T>();
    } catch (const Json::exception&) {
      Fail("{}: \"{}\" in its metadata is missing or malformed", name_, key);
    } catch (const Error& error) {
      Fail("{}: \"{}\" in its metadata: {}", name_, key, error.what());
    }
  }
  const Json& json() const { return json_; }
  // A pair of counts, done and total.
  void GetDone(const char* key, int64_t* done, int64_t* total) const {
    const auto pair = Get<std::vector<int64_t>>(key);
    Check(pair.size() == 2 && pair[0] >= 0 && pair[0] <= pair[1], "{}: \"{}\" in its metadata is malformed", name_,
          key);
    *done = pair[0];
    *total = pair[1];
  }

 private:
  std::string name_;
  Json json_;
};

void CheckSameRun(const SavedSums& found, const SavedSums& wanted, const fs::path& file) {
  constexpr const char* kAdvice = "give another name or remove it";
  const std::string why = WhyNotTheSame(found.origin, wanted.origin);
  Check(why.empty(), "{}: holds other sums ({}); {}", file.string(), why, kAdvice);
  Check(found.origin.fit_samples == wanted.origin.fit_samples &&
            found.origin.heldout_samples == wanted.origin.heldout_samples && found.fit_total == wanted.fit_total &&
            found.heldout_total == wanted.heldout_total,
        "{}: holds sums of another text or choice of samples ({}); {}", file.string(), Printable(found.origin.source),
        kAdvice);
  Check(found.sums.Parts() == wanted.sums.Parts(), "{}: holds layers {}, not {}; {}", file.string(),
        Names(found.sums.Parts()), Names(wanted.sums.Parts()), kAdvice);
}

// Rewrites the file now and then.
class FileCheckpoint : public PassCheckpoint {
 public:
  // `write`: whether this program writes the file (WritesFiles).
  FileCheckpoint(const fs::path& file, const SavedSums& set, double seconds, bool write)
      : file_(file), set_(set), seconds_(seconds), write_(write) {}
  bool Due() override { return SecondsSince(last_) >= seconds_; }
  void Save() override {
    const auto now = Clock::now();
    if (write_) WriteSums(file_, set_);
    // Writing must not become the work: at most a tenth of the time.
    last_ = Clock::now();
    seconds_ = std::max(seconds_, 9 * std::chrono::duration<double>(last_ - now).count());
  }

 private:
  using Clock = std::chrono::steady_clock;
  const fs::path& file_;
  const SavedSums& set_;
  double seconds_;
  const bool write_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace

SavedSums NewSavedSums(const ShiftJob& job, const std::vector<BlockPart>& parts, const std::string& settings,
                       std::map<std::string, std::vector<double>> scores) {
  const auto& [context, model, calibration, progress] = job;
  SavedSums set;
  set.origin = {model.weights->Fingerprint(), Name(model.weights->embedding.dtype), settings,
                calibration.source,           SampleHashes(calibration.fit),        SampleHashes(calibration.heldout)};
  set.sums = CalibrationSums::Empty(parts, model.weights->config.hidden);
  set.fit_total = static_cast<int64_t>(calibration.fit.size());
  set.heldout_total = static_cast<int64_t>(calibration.heldout.size());
  set.scores = std::move(scores);
  return set;
}

void WriteSums(const fs::path& file, const SavedSums& set) {
  std::vector<Matrix<double>> owned;
  std::vector<NamedTensor> tensors;
  owned.reserve(4 * set.sums.sites.size());
  for (const SiteSums& site : set.sums.sites) {
    for (const auto& [part, sums] : {std::pair("fit", &site.fit), std::pair("heldout", &site.heldout)}) {
      owned.push_back(sums->Gram());
      tensors.push_back({TensorName(site.site, part, "gram"), View(owned.back())});
      tensors.push_back({TensorName(site.site, part, "cross"), View(sums->Cross())});
      owned.emplace_back(1, 1);
      owned.back()(0, 0) = sums->DeltaSquares();
      tensors.push_back({TensorName(site.site, part, "squares"), View(owned.back())});
    }
  }
  Json header = ToJson(set);
  header["checksum"] = ChecksumOf(Checked(header), tensors);
  WriteSafetensors(file, tensors, {{"format", kFormat}, {"gram", header.dump()}});
}

SavedSums ReadSums(const fs::path& path) {
  const SafetensorsFile file(path);
  const Header header(file);
  SavedSums set;
  set.origin = {header.Get<std::string>("model"),
                header.Get<std::string>("dtype"),
                header.Get<std::string>("settings"),
                header.Get<std::string>("source"),
                header.Get<std::vector<std::string>>("fit_samples"),
                header.Get<std::vector<std::string>>("heldout_samples")};
  header.GetDone("fit_batches", &set.sums.fit_batches, &set.fit_total);
  header.GetDone("heldout_batches", &set.sums.heldout_batches, &set.heldout_total);
  set.scores = header.Get<std::map<std::string, std::vector<double>>>("scores");
  const auto layers = header.Get<std::vector<BlockPart>>("layers");
  const auto tokens = header.Get<std::vector<std::vector<int64_t>>>("tokens");
  const bool ascending = std::adjacent_find(layers.begin(), layers.end(), [](const BlockPart& a, const BlockPart& b) {
                           return a.end() > b.begin();
                         }) == layers.end();
  Check(ascending && tokens.size() == layers.size() && !layers.empty(), "{}: its layers are malformed", path.string());
  for (size_t i = 0; i < layers.size(); ++i) {
    Check(tokens[i].size() == 2 && tokens[i][0] >= 0 && tokens[i][1] >= 0, "{}: its token counts are malformed",
          path.string());
    const Site read = Site::Between(layers[i].begin(), layers[i].end());
    set.sums.sites.emplace_back(read, ReadRidgeSums(file, read, "fit", tokens[i][0]),
                                ReadRidgeSums(file, read, "heldout", tokens[i][1]));
    const SiteSums& site = set.sums.sites.back();
    Check(site.fit.hidden() == set.sums.sites[0].fit.hidden() && site.heldout.hidden() == site.fit.hidden(),
          "{}: layer {} has sums of another hidden size", path.string(), read.Name());
  }
  Check(header.Get<std::string>("checksum") == ChecksumOf(Checked(header.json()), file.tensors()),
        "{}: the file is damaged: its checksum is not that of its contents", path.string());
  return set;
}

SavedSums LoadSums(const std::vector<fs::path>& files) {
  Check(!files.empty(), "no file of sums to load");
  std::vector<SavedSums> sets;
  for (size_t i = 0; i < files.size(); ++i) {
    SavedSums set = ReadSums(files[i]);
    Check(set.complete(), "{}: holds {} of {} fitted batches: the run that writes it was interrupted; start it again",
          files[i].string(), set.sums.fit_batches, set.fit_total);
    for (size_t j = 0; j < sets.size(); ++j) {
      const std::string pair = fmt::format("{} and {} cannot be summed", files[j].string(), files[i].string());
      const std::string why = WhyNotTheSame(sets[j].origin, set.origin);
      Check(why.empty(), "{}: {}", pair, why);
      Check(sets[j].sums.Parts() == set.sums.Parts(), "{}: one has layers {}, the other {}", pair,
            Names(sets[j].sums.Parts()), Names(set.sums.Parts()));
      const int64_t common = Overlap(sets[j].origin, set.origin);
      Check(common == 0, "{}: {} samples are in both and would count twice", pair, common);
    }
    sets.push_back(std::move(set));
  }
  SavedSums sum = std::move(sets[0]);
  for (size_t i = 1; i < sets.size(); ++i) Add(sum, sets[i]);
  return sum;
}

void CheckModel(const SavedSums& set, const Model& model) {
  const std::string found = model.weights->Fingerprint();
  Check(set.origin.model == found, "the saved sums are of another model: fingerprint {}, but {} has {}",
        Printable(set.origin.model), model.name, found);
  for (const auto& [criterion, scores] : set.scores)
    Check(static_cast<int64_t>(scores.size()) == model.weights->config.layers,
          "the saved sums have {} scores of {} for {} layers", scores.size(), criterion, model.weights->config.layers);
}

SavedSums CollectIntoFile(const ShiftJob& job, SavedSums set, const fs::path& file, double seconds_between) {
  std::optional<SavedSums> earlier;
  if (Exists(file)) earlier = ReadSums(file);
  CheckSame(job.context, fmt::format("state of {}, which is to be in a directory of all hosts,", file.string()),
            earlier ? fmt::format("{} and {} batches", earlier->sums.fit_batches, earlier->sums.heldout_batches)
                    : "no such file");
  if (earlier) {
    SavedSums found = std::move(*earlier);
    CheckSameRun(found, set, file);
    if (found.complete()) return found;
    // Which the settings, just compared, name.
    for (size_t i = 0; i < set.sums.sites.size(); ++i) found.sums.sites[i].weighting = set.sums.sites[i].weighting;
    set.sums = std::move(found.sums);
  }
  const bool writes = WritesFiles(job.context);
  FileCheckpoint checkpoint(file, set, seconds_between, writes);
  try {
    Collect(job, set.sums, &checkpoint);
  } catch (const Interrupted&) {
    const InterruptsHeld held;
    if (writes) WriteSums(file, set);
    throw;
  }
  if (writes) WriteSums(file, set);
  return set;
}

}  // namespace shiftrt
