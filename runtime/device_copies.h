// SPDX-License-Identifier: Apache-2.0
// What the host holds, copied into the memory of devices once and shared by all who need it there.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <typeindex>
#include <utility>

namespace shiftrt {

// Remembers copies for as long as their sources live: a source that is gone is never taken for another one that came to
// stand at its address. Safe for use by several threads.
class DeviceCopies {
 public:
  // The copy of `source` on the device with this index. If there is none yet, make() returns it as a
  // std::shared_ptr<Copy>; others who ask meanwhile wait. What make() throws, this throws, and remembers nothing.
  template <typename Copy, typename Source, typename Make>
  std::shared_ptr<Copy> Get(const std::shared_ptr<Source>& source, int device, const Make& make) {
    return std::static_pointer_cast<Copy>(
        Find({source, source.get(), device, typeid(Copy)}, [&]() -> std::shared_ptr<void> { return make(); }));
  }

 private:
  struct Key {
    std::weak_ptr<const void> source;  // tells owners apart, also those that are gone
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
