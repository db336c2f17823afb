shiftrt_test(estimate SOURCES estimate/devices_test.cc estimate/flops_test.cc estimate/messages_test.cc estimate/simulation_test.cc
  DEPENDS shiftrt_estimate nlohmann_json::nlohmann_json)
