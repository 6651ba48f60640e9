#include "ring/copy_window.h"

namespace seqpar {
namespace {

constexpr std::size_t kAlignment = 512;

}  // namespace

CopyWindow::CopyWindow(DeviceGroup& group, const RingBuffers& buffers)
    : self_(group.rank()), first_(buffers.keepHome ? 1 : 0), tensors_(buffers.mostBytes.size()) {
  std::size_t end = kWordsBytes;
  for (int set = first_; set < buffers.sets; ++set) {
    for (const std::size_t bytes : buffers.mostBytes) {
      offsets_.push_back(end);
      end += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    }
  }
  window_ = group.makeWindow(end);
}

RingBuffers CopyWindow::placed(RingBuffers buffers) const {
  const auto pointers = [&](int set) {
    std::vector<std::byte*> made;
    for (std::size_t number = 0; number < tensors_; ++number) {
      made.push_back(buffers.mostBytes[number] == 0 ? nullptr : tensor(self_, set, number));
    }
    return made;
  };
  if (!buffers.keepHome) buffers.home = pointers(0);
  for (int set = 1; set < buffers.sets; ++set) buffers.scratch.push_back(pointers(set));
  return buffers;
}

std::byte* CopyWindow::tensor(int rank, int set, std::size_t number) const {
  return window_->at(rank) + offsets_[static_cast<std::size_t>(set - first_) * tensors_ + number];
}

}  // namespace seqpar
