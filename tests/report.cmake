shiftrt_test(report SOURCES report/chart_test.cc DEPENDS shiftrt_report)
