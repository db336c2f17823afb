// The criteria of this directory; criteria.cc holds the table, criteria.h the signatures.
#pragma once

#include <vector>

#include "shift/criteria/criteria.h"

namespace shiftrt {

// fixed.cc, magnitude.cc: a score a layer.
std::vector<double> ReverseScores(const CriterionInput& input, Progress& progress);
std::vector<double> ReverseKeepLastScores(const CriterionInput& input, Progress& progress);
std::vector<double> RandomScores(const CriterionInput& input, Progress& progress);
std::vector<double> MagnitudeL1Scores(const CriterionInput& input, Progress& progress);
std::vector<double> MagnitudeL2Scores(const CriterionInput& input, Progress& progress);

// What the criteria below read off the pass over the original model's stream.
void WantBlocks(const PruneSpec& spec, int64_t count, const ModelConfig& config, StreamWants& wants);
void WantWindow(const PruneSpec& spec, int64_t count, const ModelConfig& config, StreamWants& wants);
void WantCorrections(const PruneSpec& spec, int64_t count, const ModelConfig& config, StreamWants& wants);

using SelectFunction = Selection(const PruneSpec& spec, int64_t count, const CriterionInput& input,
                                 const StreamFindings& findings, Progress& progress);
// influence.cc
SelectFunction SelectByBlockInfluence, SelectByFrobenius, SelectByAngle, SelectByStreamline;
// correctable.cc
SelectFunction SelectByResidual, SelectByCorrectedLoss;
// perplexity.cc
SelectFunction SelectByPerplexity, SelectByPerplexityGreedy;

}  // namespace shiftrt
