// SPDX-License-Identifier: Apache-2.0
// Fuzzes the answers of a hub: the listing of a repository, addresses of redirects, and the field Retry-After. The
// result must be an error or names that stay below the directory of the repository, with sizes that a file can have.
#include <cmath>
#include <cstdint>

#include "hub/client.h"
#include "runtime/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  try {
    const shiftrt::Listing listing = shiftrt::ParseListing(text, *shiftrt::ParseRepository("org/model"), "a host");
    if (!shiftrt::ParseRepository(listing.id) || listing.commit.size() != 40) __builtin_trap();
    for (const shiftrt::RemoteFile& file : listing.files)
      if (!shiftrt::IsRelativePath(file.path) || file.size < -1) __builtin_trap();
  } catch (const shiftrt::Error&) {
  }
  shiftrt::OriginOf(text);
  shiftrt::HostOf(text);
  if (std::isnan(shiftrt::RetryAfterSeconds(text))) __builtin_trap();
  return 0;
}
