shiftrt_test(export SOURCES export/gguf_test.cc export/gguf_layers_test.cc export/hf_lra_test.cc export/hf_test.cc export/mergekit_test.cc DEPENDS shiftrt_export nlohmann_json::nlohmann_json)
