shiftrt_test(report SOURCES report/chart_test.cc report/progress_bar_test.cc ../tools/progress_bar.cc DEPENDS shiftrt_report)
