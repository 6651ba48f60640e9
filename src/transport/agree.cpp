#include "transport/agree.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/memory.h"

namespace seqpar {
namespace {

struct Verdict {
  int result = seqparSuccess;
  std::array<char, 380> text{};
};

Verdict verdict(const std::exception_ptr& failure) {
  Verdict verdict;
  if (!failure) return verdict;
  std::string text = "unknown error";
  verdict.result = seqparInternalError;
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    verdict.result = error.result();
    text = error.what();
  } catch (const std::bad_alloc&) {
    verdict.result = seqparSystemError;
    text = kNoMemory;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  text.copy(verdict.text.data(), verdict.text.size() - 1);
  return verdict;
}

}  // namespace

void agree(Allgather& control, const std::exception_ptr& mine) {
  std::vector<Verdict> verdicts(static_cast<size_t>(control.size()));
  control.gatherValues(verdict(mine), std::span(verdicts));
  if (mine) std::rethrow_exception(mine);
  for (size_t rank = 0; rank < verdicts.size(); ++rank) {
    const Verdict& remote = verdicts[rank];
    if (remote.result == seqparSuccess) continue;
    fail(static_cast<seqparResult_t>(remote.result), "rank ", rank, ": ", remote.text.data());
  }
}

std::vector<std::vector<std::byte>> gatherParts(Allgather& control, std::span<const std::byte> mine) {
  const auto ranks = static_cast<size_t>(control.size());
  std::vector<size_t> sizes(ranks);
  control.gatherValues(mine.size(), std::span(sizes));
  const size_t widest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::vector<std::byte>> parts(ranks);
  if (widest == 0) return parts;
  std::vector<std::byte> padded(widest);
  std::copy(mine.begin(), mine.end(), padded.begin());
  std::vector<std::byte> all(ranks * widest);
  control.gather(padded, all);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * widest);
    parts[rank].assign(begin, begin + static_cast<std::ptrdiff_t>(sizes[rank]));
  }
  return parts;
}

}  // namespace seqpar
