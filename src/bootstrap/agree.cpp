#include "bootstrap/agree.h"

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

std::optional<Cause> findCause(Allgather& control, const std::exception_ptr& mine) {
  std::vector<Verdict> verdicts(static_cast<size_t>(control.size()));
  control.gatherValues(verdict(mine), std::span(verdicts));
  const auto own = verdicts.begin() + control.rank();
  const auto fails = [](const Verdict& one) { return one.result != seqparSuccess; };
  const auto causes = [&](const Verdict& one) { return fails(one) && one.result != seqparRemoteError; };
  auto found = causes(*own) ? own : std::find_if(verdicts.begin(), verdicts.end(), causes);
  if (found == verdicts.end()) found = fails(*own) ? own : std::find_if(verdicts.begin(), verdicts.end(), fails);
  if (found == verdicts.end()) return std::nullopt;
  const auto rank = static_cast<int>(found - verdicts.begin());
  return Cause{rank, static_cast<seqparResult_t>(found->result), found->text.data()};
}

void agree(Allgather& control, const std::exception_ptr& mine) {
  const auto cause = findCause(control, mine);
  if (!cause) return;
  if (mine && cause->rank == control.rank()) std::rethrow_exception(mine);
  fail(cause->result, "rank ", cause->rank, ": ", cause->text);
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
