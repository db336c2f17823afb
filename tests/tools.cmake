shiftrt_test(tools SOURCES tools/chat_cli_test.cc tools/cli_test.cc tools/run_cli_test.cc tools/sweep_cli_test.cc
  tools/eval_cli_test.cc tools/export_cli_test.cc tools/quantised_cli_test.cc tools/dry_run_cli_test.cc tools/finetune_cli_test.cc tools/halves_cli_test.cc tools/help_cli_test.cc tools/processes_cli_test.cc tools/trust_cli_test.cc tools/kill_campaign_test.cc tools/ranks_campaign_test.cc tools/numbers_cli_test.cc tools/outputs_cli_test.cc tools/faults_test.cc tools/mixture_cli_test.cc
             DEPENDS shiftrt_engine shiftrt_train nlohmann_json::nlohmann_json NIGHTLY */AcrossHosts.LinksCut*)
target_compile_definitions(test_tools PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>"
                           $<$<BOOL:${SHIFTRT_HAVE_CUDA}>:SHIFTRT_HAVE_CUDA>)
add_dependencies(test_tools shiftrt)
# Preloaded into the program by the tests of faults.
add_library(shiftrt_failing_calls SHARED tools/failing_calls.cc)
target_compile_features(shiftrt_failing_calls PRIVATE cxx_std_20)
target_link_libraries(shiftrt_failing_calls PRIVATE ${CMAKE_DL_LIBS})
target_compile_definitions(test_tools PRIVATE SHIFTRT_FAILING_CALLS="$<TARGET_FILE:shiftrt_failing_calls>")
add_dependencies(test_tools shiftrt_failing_calls)
# Tests of parts of the command line that link these parts alone.
shiftrt_test(table SOURCES tools/table_test.cc ${PROJECT_SOURCE_DIR}/tools/table.cc DEPENDS shiftrt_runtime)
shiftrt_test(progress SOURCES tools/progress_bar_test.cc ${PROJECT_SOURCE_DIR}/tools/progress_bar.cc DEPENDS shiftrt_runtime)
# How far variants are from the original: the commands, and the items of the probes.
shiftrt_test(compare SOURCES tools/compare_cli_test.cc tools/probes_test.cc ${PROJECT_SOURCE_DIR}/tools/probe_items.cc
             DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_compare PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_compare shiftrt)
# Suites of replies.
shiftrt_test(replies_cli SOURCES tools/replies_cli_test.cc DEPENDS shiftrt_eval nlohmann_json::nlohmann_json)
target_compile_definitions(test_replies_cli PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_replies_cli shiftrt)
# Texts that the original model writes for a training.
shiftrt_test(own_text SOURCES tools/own_text_cli_test.cc DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_own_text PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_own_text shiftrt)
# Models with gated delta networks on the command line.
shiftrt_test(gated_delta SOURCES tools/gated_delta_cli_test.cc DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_gated_delta PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_gated_delta shiftrt)
# Families with blocks of their own on the command line.
shiftrt_test(families SOURCES tools/families_cli_test.cc DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_families PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_families shiftrt)
# Pruning in steps.
shiftrt_test(steps SOURCES tools/steps_cli_test.cc DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_steps PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_steps shiftrt)
