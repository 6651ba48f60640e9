#include "bootstrap/vote_links.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/error.h"
#include "base/shortage.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kAddressWait{1000};              // for a connection to one address
constexpr milliseconds kGreetingLimit{3000};            // for a connection to open
constexpr milliseconds kPauseFirst{2}, kPauseMost{50};  // before the next attempt
constexpr milliseconds kAcceptPause{50};                // when the process is out of descriptors
constexpr size_t kWaiting = 8;                          // messages for a rank without a connection; all are repeated
constexpr size_t kReadBytes = 65536;

}  // namespace

VoteLinks::VoteLinks(Listener listener, Options options)
    : listener_(std::move(listener)), options_(std::move(options)) {}

void VoteLinks::close() {
  // Also for a copy of the socket in a forked child.
  if (listener_.socket) shutdown(listener_.socket.get(), SHUT_RDWR);
  listener_.socket.close();
  incoming_.clear();
  outgoing_.clear();
}

void VoteLinks::send(int to, uint32_t epoch, const VoteMessage& message) {
  if (options_.addresses[static_cast<size_t>(to)].port == 0) return;
  Outgoing& link = outgoing_[to];
  link.queuedAt = Deadline::Clock::now();
  auto& waiting = link.waiting;
  wire::append(waiting.emplace_back(), wire::Kind::Vote, epoch, wire::encodeVote(message));
  if (waiting.size() > kWaiting) waiting.pop_front();
}

void VoteLinks::serve(int wake, milliseconds most) {
  auto now = Deadline::Clock::now();
  std::erase_if(outgoing_, [&](const auto& one) {
    return one.second.stage != Outgoing::Stage::Open && now - one.second.queuedAt >= kGreetingLimit;
  });
  for (auto& [rank, link] : outgoing_) advance(rank, link, 0, now);
  const auto acceptAt = std::max(acceptAfter_, strangers_.roomAt());
  const bool accepts = now >= acceptAt;
  if (!accepts) most = std::min(most, std::max(milliseconds(1), std::chrono::ceil<milliseconds>(acceptAt - now)));
  std::vector<pollfd> polled{{wake, POLLIN, 0}, {accepts ? listener_.socket.get() : -1, POLLIN, 0}};
  for (const auto& link : incoming_) {
    polled.push_back({link.socket.get(), static_cast<short>(link.output.empty() ? POLLIN : POLLIN | POLLOUT), 0});
  }
  std::vector<int> ranks;
  for (const auto& [rank, link] : outgoing_) {
    if (!link.socket) {
      // Waits for its next attempt.
      most = std::min(most, std::max(milliseconds(1), std::chrono::ceil<milliseconds>(link.retryAt - now)));
      continue;
    }
    ranks.push_back(rank);
    const bool writes = link.stage == Outgoing::Stage::Connecting || !link.output.empty();
    polled.push_back({link.socket.get(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
  }
  poll(polled.data(), polled.size(), static_cast<int>(most.count()));
  now = Deadline::Clock::now();
  size_t at = 2;
  for (auto& link : incoming_) {
    const short events = polled[at++].revents;
    if ((events & ~POLLOUT) != 0) readFrom(link);
    if (!link.ended) flush(link);
    if (!link.opener && now - link.since >= kGreetingLimit) link.ended = true;
  }
  for (const auto& link : incoming_) {
    if (link.ended || link.opener) strangers_.forget(link.id);
  }
  std::erase_if(incoming_, [](const Incoming& link) { return link.ended; });
  for (const int rank : ranks) advance(rank, outgoing_.at(rank), polled[at++].revents, now);
  if (polled[1].revents != 0) acceptAll(now);
}

void VoteLinks::acceptAll(Time now) {
  int error = 0;
  uint64_t source = 0;
  while (strangers_.mayAdd(now)) {
    auto socket = acceptFrom(listener_.socket, error, source);
    if (!socket) break;
    const auto id = nextId_++;
    if (const auto dropped = strangers_.add(id, source, now)) {
      std::erase_if(incoming_, [&](const Incoming& link) { return link.id == *dropped; });
    }
    Incoming& link = incoming_.emplace_back();
    link.id = id;
    link.socket = std::move(*socket);
    link.since = now;
    tuneConnection(link.socket, milliseconds(0));
  }
  if (isShortage(error)) acceptAfter_ = now + kAcceptPause;
}

void VoteLinks::readFrom(Incoming& link) {
  std::array<std::byte, kReadBytes> bytes{};
  const size_t expected = (link.session ? wire::kProofBytes : wire::kHelloBytes) - link.greeting.size();
  const SocketTransfer got = readSome(link.socket, std::span(bytes).first(link.opener ? bytes.size() : expected));
  if (got.bytes == 0) {
    link.ended = got.closed || got.error != 0;
    return;
  }
  const auto read = std::span<const std::byte>(bytes).first(got.bytes);
  try {
    link.opener ? deliver(link, read) : greet(link, read);
  } catch (const Error&) {
    link.ended = true;
  }
}

void VoteLinks::greet(Incoming& link, std::span<const std::byte> bytes) {
  link.greeting.insert(link.greeting.end(), bytes.begin(), bytes.end());
  if (link.greeting.size() < (link.session ? wire::kProofBytes : wire::kHelloBytes)) return;
  if (!link.session) {
    const auto hello = wire::decodeHello(std::span<const std::byte>(link.greeting).first<wire::kHelloBytes>());
    link.ended = !hello || hello->wireVersion != wire::kVersion || hello->nranks != options_.addresses.size() ||
                 hello->rank >= hello->nranks;
    if (link.ended) return;
    wire::Challenge challenge;
    challenge.nonce = randomToken();
    link.from = static_cast<int>(hello->rank);
    link.output = wire::encode(challenge);
    link.session = makeSession(options_.secret, link.greeting, link.output);
  } else {
    const auto proof = wire::decodeProof(std::span<const std::byte>(link.greeting).first<wire::kProofBytes>());
    link.ended = !proof || !equalSecrets(*proof, link.session->proof);
    if (link.ended) return;
    link.opener.emplace(link.session->toRoot);
  }
  link.greeting.clear();
}

void VoteLinks::deliver(Incoming& link, std::span<const std::byte> bytes) {
  wire::Bytes payload;
  link.ended = !link.opener->open(bytes, payload);
  link.frames.append(payload);
  while (const auto frame = link.frames.next()) {
    if (frame->kind != wire::Kind::Vote) continue;
    auto message = wire::decodeVote(frame->body, options_.addresses.size());
    if (message) received_.push_back({link.from, frame->sequence, std::move(*message)});
  }
}

void VoteLinks::flush(Incoming& link) {
  while (!link.output.empty()) {
    const SocketTransfer put = writeSome(link.socket, link.output);
    link.ended = put.error != 0;
    if (put.bytes == 0) return;
    link.output.erase(link.output.begin(), link.output.begin() + static_cast<std::ptrdiff_t>(put.bytes));
  }
}

void VoteLinks::advance(int rank, Outgoing& link, short events, Time now) {
  switch (link.stage) {
    case Outgoing::Stage::Idle:
      if (now >= link.retryAt) connect(rank, link, now);
      return;
    case Outgoing::Stage::Connecting:
      if (events == 0 && now - link.since < kAddressWait) return;
      if (const int error = events == 0 ? ETIMEDOUT : connectError(link.socket)) {
        return nextAddress(rank, link, error, now);
      }
      link.stage = Outgoing::Stage::Greeting;
      link.output = link.hello;
      tuneConnection(link.socket, milliseconds(0));
      return flush(link, now);
    case Outgoing::Stage::Greeting:
      if ((events & ~POLLOUT) != 0) readChallenge(link, now);
      if (link.socket) flush(link, now);
      return;
    case Outgoing::Stage::Open:
      if ((events & ~POLLOUT) != 0) awaitEnd(link, now);
      if (link.socket) flush(link, now);
      return;
  }
}

void VoteLinks::connect(int rank, Outgoing& link, Time now) {
  const auto& target = options_.addresses[static_cast<size_t>(rank)];
  if (link.address == 0) link.allRefused = true;
  int error = 0;
  link.socket = startConnecting(target.addresses[link.address], target.port, options_.interfaceName, error);
  if (!link.socket) return nextAddress(rank, link, error, now);
  wire::Hello hello;
  hello.nonce = randomToken();
  hello.rank = static_cast<uint32_t>(options_.self);
  hello.nranks = static_cast<uint32_t>(options_.addresses.size());
  hello.pid = static_cast<uint32_t>(getpid());
  hello.host = localHostName();
  link.hello = wire::encode(hello);
  link.challenge.clear();
  link.output.clear();
  link.sealer.reset();
  link.stage = Outgoing::Stage::Connecting;
  link.since = now;
}

void VoteLinks::readChallenge(Outgoing& link, Time now) {
  std::array<std::byte, wire::kChallengeBytes> bytes{};
  const SocketTransfer got = readSome(link.socket, std::span(bytes).first(bytes.size() - link.challenge.size()));
  if (got.closed || got.error != 0) return retry(link, now);
  link.challenge.insert(link.challenge.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got.bytes));
  if (link.challenge.size() < wire::kChallengeBytes) return;
  const auto challenge =
      wire::decodeChallenge(std::span<const std::byte>(link.challenge).first<wire::kChallengeBytes>());
  if (!challenge || challenge->wireVersion != wire::kVersion) return retry(link, now);
  const Session session = makeSession(options_.secret, link.hello, link.challenge);
  const wire::Bytes proof = wire::encodeProof(session.proof);
  link.output.insert(link.output.end(), proof.begin(), proof.end());
  link.sealer.emplace(session.toRoot);
  link.stage = Outgoing::Stage::Open;
  link.pause = milliseconds(0);
}

/// The other side sends nothing: it has closed the connection.
void VoteLinks::awaitEnd(Outgoing& link, Time now) {
  std::array<std::byte, 16> bytes{};
  const SocketTransfer got = readSome(link.socket, bytes);
  if (got.closed || got.error != 0 || got.bytes > 0) retry(link, now);
}

void VoteLinks::flush(Outgoing& link, Time now) {
  while (true) {
    if (link.output.empty() && link.sealer && !link.waiting.empty()) {
      link.sealer->seal(link.waiting.front(), link.output);
      link.waiting.pop_front();
    }
    if (link.output.empty()) return;
    const SocketTransfer put = writeSome(link.socket, link.output);
    if (put.error != 0) return retry(link, now);
    if (put.bytes == 0) return;
    link.output.erase(link.output.begin(), link.output.begin() + static_cast<std::ptrdiff_t>(put.bytes));
  }
}

void VoteLinks::nextAddress(int rank, Outgoing& link, int error, Time now) {
  // An address of a host may be one of another network on this host, so one refusal is no evidence.
  link.allRefused = link.allRefused && error == ECONNREFUSED;
  link.socket.close();
  link.stage = Outgoing::Stage::Idle;
  if (++link.address < options_.addresses[static_cast<size_t>(rank)].addresses.size()) return connect(rank, link, now);
  if (link.allRefused) refused_.push_back(rank);
  retry(link, now);
}

void VoteLinks::retry(Outgoing& link, Time now) {
  link.socket.close();
  link.stage = Outgoing::Stage::Idle;
  link.address = 0;
  link.pause = std::clamp(2 * link.pause, kPauseFirst, kPauseMost);
  link.retryAt = now + link.pause;
}

}  // namespace seqpar
