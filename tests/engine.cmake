shiftrt_test(decoder SOURCES engine/decoder_test.cc engine/generate_test.cc engine/halves_test.cc engine/loss_test.cc engine/reference_test.cc engine/split_test.cc engine/units_test.cc DEPENDS shiftrt_eval)
shiftrt_test(gradients SOURCES engine/device_matrix_test.cc engine/gradients_test.cc DEPENDS shiftrt_engine)

set(SHIFTRT_TEST_DATA "" CACHE PATH "Directory of checkpoints to test with that are not in the repository (CONTRIBUTING.md)")
shiftrt_test(trained SOURCES engine/trained_test.cc DEPENDS shiftrt_engine)
target_compile_definitions(test_trained PRIVATE SHIFTRT_TEST_DATA="${SHIFTRT_TEST_DATA}")

# Threads that share a model, under ThreadSanitizer: the engine is compiled once more for it, where compiler and system
# support it.
include(CheckCXXSourceRuns)
set(CMAKE_REQUIRED_FLAGS -fsanitize=thread)
check_cxx_source_runs("#include <thread>\nint main() { int x = 1; std::thread([&] { x = 0; }).join(); return x; }" SHIFTRT_HAVE_TSAN)
unset(CMAKE_REQUIRED_FLAGS)
if(SHIFTRT_HAVE_TSAN AND NOT SHIFTRT_SANITIZE)
  set(threaded engine/adapter.cc engine/activations.cc engine/backend.cc engine/block_pass.cc engine/cpu/backend.cc engine/cpu/recurrent_sequences.cc engine/short_convolution_pass.cc
               engine/cpu/ops.cc engine/cuda/no_cuda.cc engine/decoder.cc engine/gated_delta_pass.cc engine/layer_loop.cc engine/mixture_pass.cc engine/shared_expert_pass.cc
               engine/model_part.cc engine/ops.cc engine/ops_layers.cc engine/parameters.cc engine/projection.cc engine/rows.cc
               engine/sampling.cc models/plan.cc models/rope_frequencies.cc runtime/device_copies.cc)
  list(TRANSFORM threaded PREPEND ${PROJECT_SOURCE_DIR}/)
  shiftrt_test(threads SOURCES engine/threads_test.cc ${threaded} DEPENDS shiftrt_models shiftrt_kernels shiftrt_cuda_runtime)
  set_target_properties(test_threads PROPERTIES DISABLE_PRECOMPILE_HEADERS ON)  # they are compiled with other options
  target_compile_options(test_threads PRIVATE -fsanitize=thread)
  target_link_options(test_threads PRIVATE -fsanitize=thread)
endif()
