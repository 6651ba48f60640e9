#include "group.h"

#include <stdexcept>

namespace seqpar::perf {
namespace {

constexpr size_t kTextBytes = 256;

}  // namespace

void require(seqparResult_t result, const char* call, seqparComm_t comm) {
  if (result == seqparSuccess) return;
  const std::string detail = seqparGetLastError(comm);
  throw std::runtime_error(withCall(call, detail.empty() ? seqparGetErrorString(result) : detail));
}

std::string withCall(const std::string& call, const std::string& text) {
  return text.starts_with(call + ":") ? text : call + ": " + text;
}

std::vector<double> Group::gather(std::span<const double> mine) {
  std::vector<double> all(mine.size() * static_cast<size_t>(size_));
  gather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)));
  return all;
}

std::vector<std::string> Group::gatherText(const std::string& mine) {
  std::string padded = mine.substr(0, kTextBytes - 1);
  padded.resize(kTextBytes, '\0');
  std::vector<char> all(kTextBytes * static_cast<size_t>(size_));
  gather(std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < all.size(); begin += kTextBytes) texts.emplace_back(all.data() + begin);
  return texts;
}

}  // namespace seqpar::perf
