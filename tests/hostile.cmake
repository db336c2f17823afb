# Tables of malformed inputs of every reader (hostile/README.md).
shiftrt_test(hostile
  SOURCES hostile/models_test.cc hostile/state_test.cc hostile/text_test.cc
  DEPENDS shiftrt_api shiftrt_export shiftrt_train shiftrt_eval shiftrt_shift shiftrt_hub nlohmann_json::nlohmann_json PkgConfig::zstd ZLIB::ZLIB)
