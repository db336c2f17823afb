shiftrt_test(export SOURCES export/hf_test.cc DEPENDS shiftrt_export nlohmann_json::nlohmann_json)
