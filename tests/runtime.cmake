shiftrt_test(runtime
  SOURCES runtime/check_test.cc runtime/checked_lines_test.cc runtime/context_test.cc runtime/cuda_library_test.cc
          runtime/device_copies_test.cc runtime/dtype_test.cc
          runtime/elements_test.cc runtime/files_test.cc runtime/gguf_test.cc runtime/host_memory_test.cc runtime/json_test.cc
          runtime/linalg_test.cc runtime/memory_test.cc runtime/parallel_test.cc
          runtime/parquet_test.cc runtime/printable_test.cc runtime/processes_test.cc runtime/safetensors_test.cc runtime/solver_test.cc runtime/text_test.cc runtime/large_test.cc runtime/block_rounding_test.cc
  DEPENDS shiftrt_runtime nlohmann_json::nlohmann_json PkgConfig::zstd ZLIB::ZLIB)
