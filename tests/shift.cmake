shiftrt_test(shift
  SOURCES shift/automatic_test.cc shift/calibration_test.cc shift/corrections_test.cc shift/criteria_test.cc shift/documents_test.cc
          shift/drift_test.cc shift/factorize_test.cc shift/gram_file_test.cc shift/halves_test.cc shift/merge_test.cc shift/options_test.cc shift/pass_test.cc
          shift/pipeline_test.cc shift/processes_test.cc shift/quantise_test.cc shift/recipe_fields_test.cc shift/refit_test.cc shift/ridge_test.cc shift/rivals_test.cc shift/selection_test.cc
          shift/statistics_test.cc shift/sweep_test.cc shift/tsne_test.cc shift/largest_cut_test.cc shift/norm_refit_test.cc
  DEPENDS shiftrt_shift nlohmann_json::nlohmann_json NIGHTLY AutomaticOnATrainedModel.*)

shiftrt_test(shift_trained SOURCES shift/trained_test.cc DEPENDS shiftrt_shift)
target_compile_definitions(test_shift_trained PRIVATE SHIFTRT_TEST_DATA="${SHIFTRT_TEST_DATA}")
