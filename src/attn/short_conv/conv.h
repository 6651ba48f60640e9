// A short convolution on one communicator: the halo exchanges around the rank's local work.
#pragma once

#include <memory>
#include <vector>

#include "attn/short_conv/passes.h"
#include "seqpar/short_conv.h"

namespace seqpar::attn::short_conv {

class Conv {
 public:
  /// Checks `desc`; throws Error in the name of `call`.
  Conv(const char* call, const seqparShortConvDesc_t* desc, seqparComm_t comm);
  Conv(const Conv&) = delete;
  Conv& operator=(const Conv&) = delete;
  ~Conv();  ///< waits for enqueued work

  bool training() const { return training_; }
  const Shape& shape() const { return shape_; }
  seqparComm_t comm() const { return comm_; }
  bool onDevice() const { return exec_->device() != SEQPAR_HOST_DEVICE; }

  /// Arguments are checked.
  void forward(const void* x, const void* weight, const void* bias, void* y, void* stream);
  void backward(const seqparShortConvBackwardArgs_t& args, void* stream);

 private:
  void carve(Arena& arena);
  void place(const std::vector<int64_t>& cuSeqlens, int64_t begin, int64_t end);
  void packTail(const void* x);
  void exchange(const void* edge, void* left, void* right, seqparDataType_t type, void* stream);
  void clearHalos();  ///< the parts past the ends
  Tensor rows(void* data, seqparDataType_t type, size_t tokens) const;
  Tensor tensor(void* data) const { return rows(data, shape_.type, shape_.tokens); }

  Shape shape_;
  bool training_ = true;
  seqparComm_t comm_ = nullptr;
  std::vector<int64_t> edges_;                   ///< edge() of all ranks
  std::vector<seqparCompared_t> passArguments_;  ///< compared integers
  std::unique_ptr<Exec> exec_;
  std::unique_ptr<Passes> passes_;
  std::shared_ptr<void> memory_;
  void *tail_ = nullptr, *left_ = nullptr;    ///< of the data type
  float *edge_ = nullptr, *right_ = nullptr;  ///< gradients of z
};

}  // namespace seqpar::attn::short_conv
