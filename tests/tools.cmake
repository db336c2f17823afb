shiftrt_test(tools SOURCES tools/chat_cli_test.cc tools/cli_test.cc tools/run_cli_test.cc tools/sweep_cli_test.cc
  tools/eval_cli_test.cc tools/export_cli_test.cc tools/dry_run_cli_test.cc tools/finetune_cli_test.cc tools/halves_cli_test.cc tools/processes_cli_test.cc tools/trust_cli_test.cc
             DEPENDS shiftrt_engine nlohmann_json::nlohmann_json)
target_compile_definitions(test_tools PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_tools shiftrt)
