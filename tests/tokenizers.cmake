shiftrt_test(tokenizers
  SOURCES tokenizers/chat_template_test.cc tokenizers/deferred_test.cc tokenizers/gguf_test.cc tokenizers/golden_test.cc tokenizers/hostile_test.cc
          tokenizers/converter_test.cc tokenizers/jinja_test.cc tokenizers/parts_test.cc tokenizers/stream_test.cc
  DEPENDS shiftrt_tokenizers nlohmann_json::nlohmann_json)
