// SPDX-License-Identifier: Apache-2.0
// Checksums of the hub: SHA-256 of an LFS file, and git's hash of any other (SHA-1 of "blob SIZE\0" and the contents).
// They are computed by OpenSSL's libcrypto, which is loaded when the first one is made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace shiftrt {

// Whether `etag` is one of the two: 64 or 40 lower-case hexadecimal digits.
bool IsChecksum(std::string_view etag);

class Digest {
 public:
  // Of contents of `size` bytes, of the kind that the length of `etag` says. Throws Error where libcrypto is missing.
  Digest(std::string_view etag, int64_t size);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  std::string Hex();  // of everything; once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiftrt
