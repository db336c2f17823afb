// SPDX-License-Identifier: Apache-2.0
#include "hub/digest.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>

#include "runtime/shared_library.h"

namespace shiftrt {

namespace {

constexpr size_t kSha256Digits = 64, kSha1Digits = 40;

struct Crypto {
  SharedLibrary library{"checking what is downloaded needs OpenSSL's libcrypto (Debian: apt-get install libssl3);",
                        {"libcrypto.so.3", "libcrypto.so.1.1"}};
  decltype(&EVP_MD_CTX_new) context_new = library.Find("EVP_MD_CTX_new");
  decltype(&EVP_MD_CTX_free) context_free = library.Find("EVP_MD_CTX_free");
  decltype(&EVP_sha256) sha256 = library.Find("EVP_sha256");
  decltype(&EVP_sha1) sha1 = library.Find("EVP_sha1");
  decltype(&EVP_DigestInit_ex) init = library.Find("EVP_DigestInit_ex");
  decltype(&EVP_DigestUpdate) update = library.Find("EVP_DigestUpdate");
  decltype(&EVP_DigestFinal_ex) finish = library.Find("EVP_DigestFinal_ex");
};

const Crypto& LoadCrypto() {
  static const Crypto crypto;
  return crypto;
}

}  // namespace

bool IsChecksum(std::string_view etag) {
  return (etag.size() == kSha256Digits || etag.size() == kSha1Digits) &&
         std::all_of(etag.begin(), etag.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

struct Digest::State {
  const Crypto& crypto = LoadCrypto();
  EVP_MD_CTX* context = crypto.context_new();
  ~State() { crypto.context_free(context); }
};

Digest::Digest(std::string_view etag, int64_t size) : state_(std::make_unique<State>()) {
  const bool lfs = etag.size() == kSha256Digits;
  const Crypto& crypto = state_->crypto;
  Check(crypto.init(state_->context, lfs ? crypto.sha256() : crypto.sha1(), nullptr) == 1,
        "libcrypto does not compute {}", lfs ? "SHA-256" : "SHA-1");
  if (lfs) return;
  const std::string header = fmt::format("blob {}", size);
  Update(std::as_bytes(std::span(header.c_str(), header.size() + 1)));
}
Digest::~Digest() = default;
Digest::Digest(Digest&&) noexcept = default;
Digest& Digest::operator=(Digest&&) noexcept = default;

void Digest::Update(std::span<const std::byte> bytes) {
  state_->crypto.update(state_->context, bytes.data(), bytes.size());
}

std::string Digest::Hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash;
  unsigned int bytes = 0;
  Check(state_->crypto.finish(state_->context, hash.data(), &bytes) == 1, "libcrypto does not finish a checksum");
  return fmt::format("{:02x}", fmt::join(hash.begin(), hash.begin() + bytes, ""));
}

}  // namespace shiftrt
