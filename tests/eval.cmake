shiftrt_test(eval
  SOURCES eval/golden_test.cc eval/replies_test.cc eval/rows_test.cc eval/scoring_test.cc eval/statistics_test.cc eval/suite_fields_test.cc eval/summary_test.cc
          eval/text_test.cc
  DEPENDS shiftrt_eval nlohmann_json::nlohmann_json)
shiftrt_test(fidelity SOURCES eval/fidelity_test.cc DEPENDS shiftrt_eval)
shiftrt_test(programs SOURCES eval/programs_test.cc DEPENDS shiftrt_eval)
