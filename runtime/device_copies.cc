// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_copies.h"

#include <tuple>

#include "runtime/context.h"

namespace shiftrt {

std::shared_ptr<DeviceCopies> MakeDeviceCopies() { return std::make_shared<DeviceCopies>(); }

bool DeviceCopies::Key::operator<(const Key& other) const {
  if (source.owner_before(other.source)) return true;
  if (other.source.owner_before(source)) return false;
  return std::tie(object, device, copy) < std::tie(other.object, other.device, other.copy);
}

std::shared_ptr<void> DeviceCopies::Find(const Key& key, const std::function<std::shared_ptr<void>()>& make) {
  const std::lock_guard lock(mutex_);
  // Copies of deleted sources are freed before memory for a new one is requested.
  std::erase_if(copies_, [](const auto& entry) { return entry.first.source.expired(); });
  const auto at = copies_.find(key);
  if (at != copies_.end()) return at->second;
  return copies_.emplace(key, make()).first->second;
}

}  // namespace shiftrt
