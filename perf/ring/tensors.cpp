#include "tensors.h"

#include <cstring>

namespace seqpar::perf {
namespace {

unsigned char byteOf(int rank, size_t tensor, size_t index) {
  const auto from = static_cast<size_t>(rank) * 7 + tensor;
  return static_cast<unsigned char>((index * 31 + from * 97 + (index >> 8) + 1) & 0x7f);
}

}  // namespace

Tensors::Tensors(size_t bytes, int count, int sets, Group& group) : group_(group) {
  const auto number = static_cast<size_t>(count);
  for (size_t i = 0; i < number; ++i) sizes_.push_back(bytes / number + (i < bytes % number ? 1 : 0));
  for (size_t i = 0; i < static_cast<size_t>(sets) * number; ++i) {
    buffers_.push_back(std::make_unique<Buffer>(sizes_[i % number], group.comm()));
    pointers_.push_back(buffers_.back()->data());
  }
  for (size_t i = 0; i < number; ++i) {
    for (size_t at = 0; at < sizes_[i]; ++at) buffers_[i]->as<unsigned char>()[at] = byteOf(group.rank(), i, at);
    buffers_[i]->upload();
  }
}

void Tensors::corrupt() {
  for (size_t i = sizes_.size(); i < buffers_.size(); ++i) buffers_[i]->fill(0xff);
}

void Tensors::copyHome(void* const* pointers) const {
  for (size_t i = 0; i < sizes_.size(); ++i) {
    if (sizes_[i] == 0) continue;
    if (group_.gpu() != nullptr) {
      gpuCopy(pointers[i], pointers_[i], sizes_[i]);
    } else {
      std::memcpy(pointers[i], pointers_[i], sizes_[i]);
    }
  }
}

size_t Tensors::wrong(void* const* pointers, int source) const {
  size_t count = 0;
  std::vector<unsigned char> copy;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    const auto* bytes = static_cast<const unsigned char*>(pointers[i]);
    if (group_.gpu() != nullptr && sizes_[i] > 0) {
      copy.resize(sizes_[i]);
      gpuCopy(copy.data(), pointers[i], sizes_[i]);
      bytes = copy.data();
    }
    for (size_t at = 0; at < sizes_[i]; ++at) count += bytes[at] == byteOf(source, i, at) ? 0 : 1;
  }
  return count;
}

}  // namespace seqpar::perf
