shiftrt_test(weights
  SOURCES models/adapted_test.cc models/own_tensors_test.cc models/block_tensors_test.cc models/config_test.cc models/gguf_test.cc models/lora_test.cc models/plan_test.cc models/quantised_test.cc models/split_test.cc
    models/weights_test.cc models/mixture_test.cc models/as_original_test.cc
  DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
