// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/upload.h"

#include <algorithm>

namespace shiftrt::gpu {

Uploader::~Uploader() {
  for (const std::unique_ptr<Piece>& piece : pieces_)
    if (piece != nullptr) piece->sent.WaitQuietly();  // the device may still be reading it
}

void Uploader::Copy(void* to, const void* from, int64_t bytes) {
  auto* const target = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(from);
  for (int64_t at = 0; at < bytes; at += piece_) {
    std::unique_ptr<Piece>& piece = pieces_[next_];
    next_ = 1 - next_;
    if (piece == nullptr) piece = std::make_unique<Piece>(stream_, piece_);
    piece->sent.Wait();
    const int64_t count = std::min(piece_, bytes - at);
    std::copy_n(source + at, count, piece->buffer.data());
    CopyToDevice(stream_, target + at, piece->buffer.data(), count);
    piece->sent.Record();
  }
}

}  // namespace shiftrt::gpu
