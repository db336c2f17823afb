// SPDX-License-Identifier: Apache-2.0
// Copies of host objects in the memory of devices, made once and shared by all who need them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>
#include <utility>

namespace shiftrt {

// Keeps copies for as long as their sources live. A new source at the address of a deleted one is not mistaken for it.
// Safe for use by several threads.
class DeviceCopies {
 public:
  // The copy of `source` on the device with this index. If there is none yet, make() returns it as a
  // std::shared_ptr<Copy>; other callers wait for it. An exception of make() is passed on, and nothing is kept.
  template <typename Copy, typename Source, typename Make>
  std::shared_ptr<Copy> Get(const std::shared_ptr<Source>& source, int device, const Make& make) {
    return std::static_pointer_cast<Copy>(
        Find({source, source.get(), device, typeid(Copy)}, [&]() -> std::shared_ptr<void> { return make(); }));
  }

 private:
  struct Key {
    std::weak_ptr<const void> source;  // identifies the owner, even after its deletion
    const void* object;                // an owner may have several
    int device;
    std::type_index copy;
    bool operator<(const Key& other) const;
  };
  std::shared_ptr<void> Find(const Key& key, const std::function<std::shared_ptr<void>()>& make);

  std::mutex mutex_;
  std::map<Key, std::shared_ptr<void>> copies_;
};

}  // namespace shiftrt
