// A buffer of a random call: ordinary memory, or memory of seqparMemAlloc(), which peers map.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>

#include "seqpar/seqpar.h"

namespace seqpar::test {

template <typename Value>
class CallBuffer {
 public:
  /// comm: of seqparMemAlloc(); null: ordinary memory, as after a failure of seqparMemAlloc().
  CallBuffer(seqparComm_t comm, size_t count, Value value) : size_(count) {
    if (comm != nullptr && seqparMemAlloc(&mapped_, count * sizeof(Value), comm) != seqparSuccess) mapped_ = nullptr;
    if (mapped_ == nullptr) own_ = std::make_unique<Value[]>(count);
    data_ = mapped_ != nullptr ? static_cast<Value*>(mapped_) : own_.get();
    std::fill(begin(), end(), value);
  }
  CallBuffer(const CallBuffer&) = delete;
  CallBuffer& operator=(const CallBuffer&) = delete;
  ~CallBuffer() { seqparMemFree(mapped_); }

  Value* data() { return data_; }
  const Value* data() const { return data_; }
  size_t size() const { return size_; }
  Value* begin() { return data_; }
  Value* end() { return data_ + size_; }
  const Value* begin() const { return data_; }
  const Value* end() const { return data_ + size_; }
  Value& operator[](size_t i) { return data_[i]; }
  const Value& operator[](size_t i) const { return data_[i]; }

 private:
  size_t size_;
  void* mapped_ = nullptr;
  std::unique_ptr<Value[]> own_;
  Value* data_ = nullptr;
};

}  // namespace seqpar::test
