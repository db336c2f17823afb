shiftrt_test(decoder SOURCES engine/decoder_test.cc engine/loss_test.cc DEPENDS shiftrt_eval)

set(SHIFTRT_TEST_DATA "" CACHE PATH "Directory of checkpoints to test with that are not in the repository (CONTRIBUTING.md)")
shiftrt_test(trained SOURCES engine/trained_test.cc DEPENDS shiftrt_engine)
target_compile_definitions(test_trained PRIVATE SHIFTRT_TEST_DATA="${SHIFTRT_TEST_DATA}")
