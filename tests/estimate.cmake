shiftrt_test(estimate SOURCES estimate/flops_test.cc estimate/main_job_test.cc
  DEPENDS shiftrt_estimate nlohmann_json::nlohmann_json)
