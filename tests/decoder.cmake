shiftrt_test(decoder SOURCES models/decoder_test.cc DEPENDS shiftrt_eval)
