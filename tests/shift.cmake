shiftrt_test(shift SOURCES shift/method_test.cc DEPENDS shiftrt_shift)
