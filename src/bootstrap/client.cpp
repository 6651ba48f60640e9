#include "bootstrap/client.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/current_call.h"
#include "base/log.h"
#include "base/memory.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kSlice{10};        // bound on noticing, during a wait, a failure that others found
constexpr milliseconds kFlushLimit{500};  // for the final messages
constexpr size_t kReadBytes = 65536;

}  // namespace

Client::Client(RootConnection connection, const JoinRequest& request, Health& health,
               std::unique_ptr<RootServer> server)
    : request_(request),
      rootName_(std::move(connection.root)),
      health_(health),
      server_(std::move(server)),
      socket_(std::move(connection.socket)),
      sealer_(connection.sealer),
      opener_(std::move(connection.opener)) {
  frames_.append(connection.early);
  heard_ = sent_ = lastRound_ = Deadline::Clock::now();
  try {
    start();
  } catch (const std::exception& error) {
    announce(error.what());  // otherwise the others would take the end of the connection for that of the process
    writeAll(Deadline::Clock::now());
    throw;
  }
}

void Client::start() {
  wake_.emplace();
  worker_.emplace([this] { run(); });
}

Client::~Client() {
  if (!worker_->exists()) return;
  if (!parting_) announceEnd();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (wake_) wake_->signal();
  worker_.reset();
  socket_.close();
}

void Client::gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  const auto nranks = static_cast<size_t>(size());
  if (mine.size() > wire::kMaxShard || mine.size() > wire::kMaxResult / nranks || all.size() != nranks * mine.size()) {
    fail(seqparInternalError, "gather: ", mine.size(), " bytes into ", all.size(), ", expected at most ",
         std::min(wire::kMaxShard, wire::kMaxResult / nranks), " into ", nranks, " times that");
  }
  communicate();
  health_.check();
  std::unique_lock lock(mutex_);
  if (parting_) fail(seqparInvalidUsage, "gather: rank ", rank(), " has left");
  ++sequence_;
  call_ = CurrentCall::name();
  result_.reset();
  wire::append(output_, wire::Kind::Gather, sequence_, mine);
  if (wake_) wake_->signal();
  await(lock, [&] { return result_.has_value(); });
  if (result_->kind == wire::Kind::Mismatch) fail(seqparInvalidUsage, wire::readable(result_->body));
  if (result_->body.size() != all.size()) {
    fail(seqparInternalError, "gather: ", rootName_, " sent ", result_->body.size(), " bytes, expected ", all.size());
  }
  if (!all.empty()) std::memcpy(all.data(), result_->body.data(), all.size());
  result_.reset();
}

template <typename Done>
void Client::await(std::unique_lock<std::mutex>& lock, Done done) {
  while (!done()) {
    health_.check();
    changed_.wait_for(lock, kSlice);
  }
}

void Client::announce(const std::string& why) noexcept {
  if (reported_.exchange(true)) return;
  try {
    const std::lock_guard lock(mutex_);
    wire::appendText(output_, wire::Kind::News, 0, why);
  } catch (const std::exception&) {
    mute_ = true;  // the end of the connection tells the root as much
  }
  if (wake_) wake_->signal();
}

void Client::announceEnd() noexcept {
  try {
    announce(health_.ok() ? "it gave up the communicator without a bye" : health_.text());
  } catch (const std::exception&) {
    return;  // the closed connection tells the root as much
  }
}

void Client::part() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (parting_ || !health_.ok()) return;
    parting_ = true;
    wire::append(output_, wire::Kind::Bye);
  } catch (const std::exception&) {
    return;  // the closed connection tells the root as much
  }
  if (wake_) wake_->signal();
}

void Client::leave() {
  if (!health_.ok()) return;
  part();
  std::unique_lock lock(mutex_);
  call_ = CurrentCall::name();
  await(lock, [&] { return allLeft_; });
}

void Client::communicate() noexcept {
  try {
    const std::string refused = sequenceOfCalls_.communicate();
    if (!refused.empty()) health_.fail(seqparRemoteError, refused);
  } catch (const std::exception& error) {
    health_.fail(seqparSystemError, error.what());
  }
}

void Client::refuseCall(const std::string& why) {
  if (!health_.ok()) return;
  const wire::Bytes body = wire::encode(sequenceOfCalls_.refuse(why));
  {
    const std::lock_guard lock(mutex_);
    if (parting_) return;
    wire::append(output_, wire::Kind::Refused, 0, body);
  }
  if (wake_) wake_->signal();
}

std::string Client::behind() {
  const std::lock_guard lock(mutex_);
  return behind_;
}

void Client::run() noexcept {
  const auto end = [this](seqparResult_t result, std::string_view why) {
    health_.fail(result, FixedText{"the control thread of rank ", std::to_string(rank()), " ended: ", why});
    try {
      writeAll(Deadline::Clock::now());
    } catch (const std::exception&) {
      mute_ = true;
    }
    endConnection();
  };
  try {
    serve();
  } catch (const std::bad_alloc&) {
    end(seqparSystemError, kNoMemory);
  } catch (const std::exception& error) {
    end(seqparInternalError, error.what());
  }
}

void Client::endConnection() noexcept {
  connected_ = false;
  shutdown(socket_.get(), SHUT_RDWR);
}

void Client::serve() {
  std::optional<Deadline> flushBy;
  handleAll();
  while (true) {
    bool writes = false;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && !flushBy) flushBy.emplace(kFlushLimit);
      writes = !output_.empty() || !sealed_.empty();
    }
    if (flushBy && (!connected_ || !writes || flushBy->passed())) return;
    std::array<pollfd, 2> polled{
        {{wake_->get(), POLLIN, 0},
         {connected_ ? socket_.get() : -1, static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0}}};
    poll(polled.data(), polled.size(), static_cast<int>(heartbeatInterval(request_.timeout).count()));
    wake_->clear();
    if (mute_.exchange(false) && connected_) endConnection();
    if (!connected_) continue;
    if ((polled[1].revents & ~POLLOUT) != 0) readAll();
    const auto now = Deadline::Clock::now();
    watch(now);
    writeAll(now);
  }
}

void Client::readAll() {
  std::array<std::byte, kReadBytes> bytes{};
  const SocketTransfer got = readSome(socket_, bytes);
  if (got.bytes == 0) {
    if (!got.closed && got.error == 0) return;
    const bool lost = got.error != 0 && got.error != ECONNRESET && got.error != EPIPE;
    connected_ = false;
    return lose(lost ? concat("cannot be reached: ", std::generic_category().message(got.error))
                     : "closed its connection: the process is gone");
  }
  heard_ = Deadline::Clock::now();
  wire::Bytes payload;
  const bool genuine = opener_.open(std::span(bytes).first(got.bytes), payload);
  frames_.append(payload);
  handleAll();
  if (genuine || !connected_) return;
  connected_ = false;
  lose("sent a record with a wrong tag");
}

void Client::handleAll() {
  try {
    while (auto frame = frames_.next()) handle(std::move(*frame));
  } catch (const Error& error) {
    connected_ = false;
    lose(concat("sent a ", error.what()));
  }
}

void Client::handle(wire::Frame frame) {
  switch (frame.kind) {
    case wire::Kind::Heartbeat:
      return;
    case wire::Kind::Gathered:
    case wire::Kind::Mismatch: {
      const std::lock_guard lock(mutex_);
      if (frame.sequence == sequence_) result_ = std::move(frame);
      break;
    }
    case wire::Kind::News:
      reported_ = true;
      health_.fail(seqparRemoteError, wire::readable(frame.body));
      break;
    case wire::Kind::Refused: {
      auto refusal = wire::decodeRefusal(frame.body);
      if (!refusal) fail(seqparRemoteError, "malformed message: a refusal of another form");
      const std::string refused = sequenceOfCalls_.textOf(std::move(*refusal));
      if (!refused.empty()) health_.fail(seqparRemoteError, refused);
      break;
    }
    case wire::Kind::Missing: {
      const std::lock_guard lock(mutex_);
      log(LogLevel::Warn, call_, ": rank ", rank(), " waits: ", wire::readable(frame.body));
      return;
    }
    case wire::Kind::Behind: {
      const std::lock_guard lock(mutex_);
      behind_ = wire::readable(frame.body);
      return;
    }
    case wire::Kind::AllLeft: {
      const std::lock_guard lock(mutex_);
      allLeft_ = true;
      break;
    }
    default:
      fail(seqparRemoteError, "malformed message: only ranks send kind ", static_cast<int>(frame.kind));
  }
  changed_.notify_all();
}

void Client::writeAll(Time now) {
  const std::lock_guard lock(mutex_);
  // Unsent output is an equally good heartbeat.
  if (output_.empty() && sealed_.empty() && now - sent_ >= heartbeatInterval(request_.timeout)) {
    const CallChain* const chain = chain_.load();
    const wire::Calls calls{calls_.load(std::memory_order_relaxed), chain ? chain->report() : std::nullopt};
    if (calls.enqueued == callsSent_ && calls.report == reportSent_) {
      wire::append(output_, wire::Kind::Heartbeat);
    } else {
      wire::append(output_, wire::Kind::Calls, 0, wire::encode(calls));
    }
    callsSent_ = calls.enqueued;
    reportSent_ = calls.report;
    sent_ = now;
  }
  while (connected_ && !(output_.empty() && sealed_.empty())) {
    if (sealed_.empty()) sealer_.seal(std::exchange(output_, {}), sealed_);
    const SocketTransfer put = writeSome(socket_, sealed_);
    // A lost connection is reported when it is read, after its remaining input.
    if (put.error != 0) sealed_.clear();
    if (put.error != 0) output_.clear();
    if (put.error != 0 || put.bytes == 0) return;
    sealed_.erase(sealed_.begin(), sealed_.begin() + static_cast<std::ptrdiff_t>(put.bytes));
  }
}

void Client::watch(Time now) {
  // Time while this process was stopped or suspended does not count as silence.
  const auto round = now - lastRound_;
  lastRound_ = now;
  if (round > 3 * heartbeatInterval(milliseconds(0))) heard_ += round;
  if (request_.timeout.count() == 0 || now - heard_ < request_.timeout) return;
  lose(concat("has been silent for ", request_.timeout.count(), " ms: it is stopped or cannot be reached"));
}

void Client::lose(const std::string& how) {
  {
    const std::lock_guard lock(mutex_);
    if (allLeft_) return;
  }
  health_.fail(seqparRemoteError, concat(rootName_, " ", how));
  changed_.notify_all();
}

}  // namespace seqpar
