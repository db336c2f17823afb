#include "tools/fields.h"

#include <map>

namespace shiftrt {

std::string OptionOf(const std::string& field) {
  static const std::map<std::string, std::string> options = {
      {"calibration", "--calib"},
      {"correction", "--correction"},
      {"factorization", "--factorize"},
      {"gate", "--gate"},
      {"gram.load", "--load-gram"},
      {"gram.save", "--save-gram"},
      {"lambda", "--lambda"},
      {"merge", "--merge"},
      {"mode", "--calibration-mode"},
      {"prune", "--prune"},
      {"rank", "--lra"},
      {"span", "--span"},
      {"weighting", "--token-weight"},
  };
  const auto known = options.find(field);
  return known == options.end() ? field : known->second;
}

}  // namespace shiftrt
