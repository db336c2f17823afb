// SPDX-License-Identifier: Apache-2.0
// The hub's checksums: SHA-256 of an LFS file, and git's hash of any other (SHA-1 of "blob SIZE\0" and the contents).
// OpenSSL's libcrypto computes them and is loaded when the first Digest is made.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace shiftrt {

// True if `etag` is a checksum: 64 or 40 lower-case hexadecimal digits.
bool IsChecksum(std::string_view etag);

class Digest {
 public:
  // Computes the checksum of `size` bytes; the length of `etag` decides which kind. Throws Error if libcrypto is
  // missing.
  Digest(std::string_view etag, int64_t size);
  ~Digest();
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;

  void Update(std::span<const std::byte> bytes);
  std::string Hex();  // the result; call it once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace shiftrt
