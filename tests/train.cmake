shiftrt_test(train
  SOURCES train/checkpoint_test.cc train/finetune_test.cc train/loop_test.cc train/own_answers_test.cc train/parameters_test.cc
          train/schedule_test.cc train/text_test.cc train/narrow_mlp_test.cc train/finetune_fields_test.cc
  DEPENDS shiftrt_train nlohmann_json::nlohmann_json)
