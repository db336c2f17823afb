shiftrt_test(tokenizers
  SOURCES tokenizers/gguf_test.cc tokenizers/golden_test.cc tokenizers/hostile_test.cc tokenizers/stream_test.cc
  DEPENDS shiftrt_tokenizers nlohmann_json::nlohmann_json)
