// SPDX-License-Identifier: Apache-2.0
// Writes a model for other programs: export MODEL FORMAT DIRECTORY. Without arguments it lists the formats.
#include <shiftrt/shiftrt.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 4) {
    for (const shiftrt::ExportFormatName& format : shiftrt::ExportFormatNames())
      std::printf("%s: %s\n", format.name.c_str(), format.summary.c_str());
    return 2;
  }
  try {
    shiftrt::CheckExport(argv[2], argv[3]);  // before the model is read
    const shiftrt::LanguageModel model = shiftrt::LanguageModel::Open(argv[1]);
    for (const std::string& note : shiftrt::Export(model, argv[3], {.format = argv[2]}))
      std::printf("%s\n", note.c_str());
    return 0;
  } catch (const shiftrt::UsageError& error) {  // such as adapters in a format that holds none
    std::fprintf(stderr, "%s\n", error.reason().c_str());
    return 2;
  } catch (const shiftrt::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
