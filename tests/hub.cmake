add_library(shiftrt_test_hub STATIC hub/test_hub.cc)
target_link_libraries(shiftrt_test_hub PUBLIC shiftrt_hub nlohmann_json::nlohmann_json PRIVATE shiftrt_options)
target_compile_options(shiftrt_test_hub PRIVATE ${SHIFTRT_QUICK_TO_COMPILE})

shiftrt_test(hub SOURCES hub/cache_test.cc hub/errors_test.cc hub/pull_test.cc DEPENDS shiftrt_test_hub)

# The program, pulling from that hub.
shiftrt_test(pull SOURCES hub/pull_cli_test.cc DEPENDS shiftrt_test_hub shiftrt_engine)
target_compile_definitions(test_pull PRIVATE SHIFTRT_TOOL="$<TARGET_FILE:shiftrt>")
add_dependencies(test_pull shiftrt)
