#include "scan/in_place.h"

#include <algorithm>
#include <optional>

#include "base/convert.h"
#include "scan/message.h"
#include "transport/rendezvous.h"

namespace seqpar {
namespace {

/// From this size on, one copy by the kernel, of huge pages, is faster than two copies divided between the ranks.
constexpr size_t kLeast = size_t{2} << 20;
/// From this size on, one copy from a buffer that position 1 maps is faster.
constexpr size_t kLeastMapped = size_t{128} << 10;
/// Read size when the data is processed further, so that it is still cached.
constexpr size_t kAtOnce = size_t{256} << 10;

size_t bytesOf(const ScanProblem& problem) {
  return problem.elements() * sizeOf(problem.wireType);
}

std::vector<Block> parts(const Affine& affine, const ScanProblem& problem) {
  return affine.split(std::max<size_t>(1, bytesOf(problem) / kAtOnce));
}

/// Position 0 without an initial state sends its input state; as messages if an output overwrites the state.
bool offer(Affine& affine, const ScanProblem& problem, int to, Mailbox& mail) {
  const size_t bytes = bytesOf(problem);
  const bool reaches = (bytes >= kLeast && mail.readable(to)) || (mail.mapped(to) && mail.shared(problem.state, bytes));
  const bool canRead = reaches && problem.initial == nullptr && problem.stateType == problem.wireType &&
                       problem.prefix != problem.state && problem.total != problem.state;
  sendRts(mail, to, canRead ? reinterpret_cast<uint64_t>(problem.state) : 0);
  if (!canRead) return false;
  for (const Block block : parts(affine, problem)) affine.hop(block, {}, nullptr);
  awaitFin(mail, to);
  return true;
}

/// Position 1. If only the prefix is wanted and no head resets, the prefix is the received state.
bool read(Affine& affine, const ScanProblem& problem, int from, Mailbox& mail) {
  uint64_t where = receiveRts(mail, from);
  if (where == 0) return false;
  const auto continues = [](unsigned char flags) { return (flags & SEQPAR_SCAN_RESET_IN) == 0; };
  if (problem.prefix != nullptr && problem.total == nullptr && problem.stateType == problem.wireType &&
      std::all_of(problem.headFlags.begin(), problem.headFlags.end(), continues)) {
    mail.read(from, where, {static_cast<std::byte*>(problem.prefix), bytesOf(problem)});
  } else {
    const auto blocks = parts(affine, problem);
    const std::byte* x = mail.mapped(from) ? mail.view(from, where, bytesOf(problem)) : nullptr;
    const bool mapped = x != nullptr;
    std::optional<MessageBuffer> copy;
    if (!mapped) x = copy.emplace(stateBytes(affine, problem, blocks.front())).data();
    for (const Block block : blocks) {
      const size_t bytes = stateBytes(affine, problem, block);
      if (!mapped) mail.read(from, where, {copy->data(), bytes});
      affine.hop(block, {x, problem.wireType}, nullptr);
      where += bytes;
      if (mapped) x += bytes;
    }
    if (mapped) mail.endViews(from);
  }
  sendFin(mail, from);
  return true;
}

}  // namespace

bool offersInPlace(const ScanProblem& problem, int positions, PairAccess access) {
  // MATRIX's blocks are columns, which are not contiguous.
  if (positions != 2 || problem.op == seqparScanMatrix) return false;
  const size_t bytes = bytesOf(problem);
  return (access.readable && bytes >= kLeast) || (access.mapped && bytes >= kLeastMapped);
}

bool offersInPlace(const ScanProblem& problem, const ScanOrder& order, const Mailbox& mail) {
  return order.size() == 2 && offersInPlace(problem, order.size(), PairAccess(mail, order.ranks[1 - order.position]));
}

bool scanInPlace(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail) {
  const int other = order.ranks[1 - order.position];
  return order.position == 0 ? offer(affine, problem, other, mail) : read(affine, problem, other, mail);
}

}  // namespace seqpar
