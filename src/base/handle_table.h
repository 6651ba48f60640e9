// Handles of a C interface: the live handles and their objects. A handle that is stale, foreign or of another kind is
// detected without access to the memory that it points to.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "base/error.h"
#include "base/process.h"

namespace seqpar {

template <typename Object, typename Handle>
class HandleTable {
 public:
  Handle add(std::shared_ptr<Object> object) {
    // NOLINTNEXTLINE: handles are opaque pointers by the C interface; they are compared, never followed.
    const auto handle = reinterpret_cast<Handle>(object.get());
    const std::unique_lock lock(mutex_);
    objects_[handle] = std::move(object);
    return handle;
  }

  /// Null if the handle is not in the table.
  std::shared_ptr<Object> find(Handle handle) const {
    const std::shared_lock lock(mutex_);
    const auto entry = objects_.find(handle);
    return entry == objects_.end() ? nullptr : entry->second;
  }

  /// find(), and removes the handle.
  std::shared_ptr<Object> remove(Handle handle) {
    const std::unique_lock lock(mutex_);
    const auto node = objects_.extract(handle);
    removals_.fetch_add(1, std::memory_order_release);
    return node.empty() ? nullptr : std::move(node.mapped());
  }

  /// find(), with the thread's latest result, which takes less time than a search. `Recent` is a thread variable.
  class Recent {
   public:
    std::shared_ptr<Object> find(const HandleTable& table, Handle handle) {
      const uint64_t removals = table.removals_.load(std::memory_order_acquire);
      if (handle == handle_ && removals == removals_ && table_ == &table) {
        if (auto object = object_.lock()) return object;
      }
      auto object = table.find(handle);
      handle_ = object ? handle : Handle{};
      table_ = &table;
      removals_ = removals;
      object_ = object;
      return object;
    }

   private:
    const HandleTable* table_ = nullptr;
    Handle handle_{};
    uint64_t removals_ = 0;  ///< of the table, before the search
    std::weak_ptr<Object> object_;
  };

 private:
  mutable std::shared_mutex mutex_;
  std::unordered_map<Handle, std::shared_ptr<Object>> objects_;
  std::atomic<uint64_t> removals_{0};
};

/// The table of the process. Never destroyed: a program may exit without destroying its handles, and their threads must
/// not outlive the table that they use. A forked child has none of its parent's handles: their threads do not exist
/// there, and other ranks would take the child's data for the parent's.
template <typename Object, typename Handle>
HandleTable<Object, Handle>& handleTable() {
  return ofProcess<HandleTable<Object, Handle>>();
}

template <typename Handle>
[[noreturn]] void failHandle(Handle handle, const char* call, const char* argument, const char* kind) {
  fail(seqparInvalidArgument, call, ": ", argument, " is ", static_cast<const void*>(handle), ", expected an open ",
       kind, forks() == 0 ? "" : "; a forked process cannot use those of its parent");
}

/// The object of a handle; InvalidArgument in the name of `call` and `argument` if the handle is not valid.
template <typename Object, typename Handle>
std::shared_ptr<Object> require(const HandleTable<Object, Handle>& table, Handle handle, const char* call,
                                const char* argument, const char* kind) {
  auto object = handle == nullptr ? nullptr : table.find(handle);
  if (!object) failHandle(handle, call, argument, kind);
  return object;
}

}  // namespace seqpar
