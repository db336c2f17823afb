shiftrt_test(weights
  SOURCES models/config_test.cc
  DEPENDS shiftrt_models nlohmann_json::nlohmann_json)
