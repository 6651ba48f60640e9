#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "bootstrap/client.h"
#include "bootstrap/wire.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

// Additional time for the root, which knows the missing ranks, to report them.
constexpr milliseconds kGrace{1000};

enum class Progress { Done, Closed };

template <typename Move>
Progress moveAll(const Descriptor& socket, short events, size_t bytes, const Deadline& deadline, const Health& health,
                 Move move) {
  size_t moved = 0;
  while (moved < bytes) {
    const Transfer step = move(moved);
    if (step.closed || step.error != 0) return Progress::Closed;
    moved += step.bytes;
    if (step.bytes > 0) continue;
    health.check();
    if (deadline.passed()) fail(seqparRemoteError, "joining the other ranks: no answer in time");
    waitFor(socket, events, deadline);
  }
  return Progress::Done;
}

}  // namespace

std::optional<RootConnection> joinRoot(Descriptor socket, const JoinRequest& request, const Health& health) {
  const Deadline deadline(request.timeout.count() == 0 ? request.timeout : request.timeout + kGrace);
  tuneConnection(socket, request.timeout);
  wire::Hello hello;
  hello.token = request.token;
  hello.rank = static_cast<uint32_t>(request.rank);
  hello.nranks = static_cast<uint32_t>(request.nranks);
  hello.timeoutMs = static_cast<uint32_t>(std::min<long long>(request.timeout.count(), INT32_MAX));
  hello.pid = static_cast<uint32_t>(getpid());
  hello.host = localHostName();
  const wire::Bytes out = wire::encode(hello);
  const auto send = [&](size_t at) { return writeSome(socket, std::span(out).subspan(at)); };
  if (moveAll(socket, POLLOUT, out.size(), deadline, health, send) == Progress::Closed) return std::nullopt;

  const auto receive = [&](std::span<std::byte> into) {
    const auto step = [&](size_t at) { return readSome(socket, into.subspan(at)); };
    return moveAll(socket, POLLIN, into.size(), deadline, health, step) == Progress::Done;
  };
  std::array<std::byte, wire::kAnswerHeadBytes> headBytes{};
  if (!receive(headBytes)) return std::nullopt;
  const auto head = wire::decodeAnswerHead(headBytes);
  if (!head) fail(seqparRemoteError, "joining the other ranks: the answer is not from seqpar");
  wire::Bytes textBytes(head->textBytes);
  if (!receive(textBytes)) return std::nullopt;
  const std::string text = wire::readable(textBytes);
  if (!head->answer.joined) fail(seqparRemoteError, "joining the other ranks: ", text);
  if (head->answer.wireVersion != wire::kVersion || head->answer.libraryVersion != SEQPAR_VERSION_CODE) {
    fail(seqparRemoteError, "joining the other ranks: rank ", request.rank, " has seqpar ",
         wire::versionText(SEQPAR_VERSION_CODE), ", ", text, " has ", wire::versionText(head->answer.libraryVersion));
  }
  return RootConnection{std::move(socket), text};
}

}  // namespace seqpar
