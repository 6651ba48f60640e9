#include "bootstrap/lineage.h"

#include <algorithm>
#include <iterator>
#include <random>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

namespace seqpar {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kIdle{1000};   // between two looks of a thread without a vote
constexpr int kDeadlineTimeouts = 8;  // for a decision
constexpr std::string_view kVote = "vote";

}  // namespace

Lineage::Lineage(int rank, int size, const ControlOptions& options) : rank_(rank), size_(size), options_(options) {
  if (size == 1) return;
  ended_.reserve(kReservedText);
  try {
    listener_ = listenOn(chosenInterface(options.interfaceName), 0);
  } catch (const Error& error) {
    log(LogLevel::Warn, "rank ", rank, " cannot take part in seqparCommShrink: ", error.what());
  }
}

Lineage::~Lineage() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wakeThread();
  }
  worker_.reset();
  endMeeting();
  if (links_) links_->close();
}

LineageCard Lineage::card() const {
  LineageCard card;
  if (listener_.socket) card.address = wire::encode(wire::Rendezvous{listener_.addresses, listener_.port, Token{}});
  card.process = thisProcess();
  return card;
}

void Lineage::connect(const std::vector<LineageCard>& cards, const Token& secret) {
  secret_ = deriveToken(secret, kVote, {});
  VoteLinks::Options links;
  links.self = rank_;
  links.secret = secret_;
  links.interfaceName = chosenInterface(options_.interfaceName);
  for (const auto& card : cards) {
    VoteAddress& address = links.addresses.emplace_back();
    if (std::any_of(std::begin(card.address.internal), std::end(card.address.internal),
                    [](char c) { return c != 0; })) {
      const auto rendezvous = wire::decodeRendezvous(card.address);
      address = {rendezvous.addresses, rendezvous.port};
    }
    visible_.push_back(isVisible(card.process) ? card.process : ProcessIdentity{});
  }
  links_.emplace(std::move(listener_), std::move(links));
  VoteOptions options;
  options.self = rank_;
  options.timeout = options_.timeout;
  options.interval = voteInterval(options_.timeout);
  options.seed = std::random_device{}();
  options.meet = [this] { return openMeeting(); };
  votes_.emplace(static_cast<size_t>(size_), std::move(options));
}

void Lineage::serve() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (worker_ || !links_ || stopping_) return;
    wake_.emplace();
    worker_.emplace([this] { run(); });
  } catch (const std::exception& error) {
    log(LogLevel::Warn, "rank ", rank_, " cannot take part in seqparCommShrink: ", error.what());
  }
}

void Lineage::wakeThread() {
  if (wake_) wake_->signal();
}

bool Lineage::busy() const {
  return votes_->arrived() || votes_->contacted() || joining_;
}

Successor Lineage::agree(uint32_t epoch, milliseconds timeout) {
  serve();
  std::unique_lock lock(mutex_);
  const auto now = Deadline::Clock::now();
  if (votes_->epoch() > epoch) {
    epoch = votes_->epoch();
    if (current_ == epoch) {
      fail(seqparInvalidUsage, "comm was shrunk already; expected the communicator that replaced it");
    }
  }
  joining_.reset();
  votes_->arrive(timeout, now);
  wakeThread();
  const Deadline deadline(kDeadlineTimeouts * timeout);
  while (true) {
    if (auto successor = result(epoch)) return std::move(*successor);
    if (!votes_->failure().empty() && !votes_->resigned()) {
      const std::string why = votes_->failure();
      votes_->leave();
      fail(seqparRemoteError, why);
    }
    if (votes_->resigned()) {
      fail(seqparRemoteError, "excluded: this rank has left the survivors, ",
           votes_->failure().empty() ? "because it did not call in time" : votes_->failure());
    }
    if (!ended_.empty()) fail(seqparSystemError, "the thread of the vote ended: ", ended_);
    if (deadline.passed()) {
      votes_->leave();
      fail(seqparRemoteError, "no decision within ", kDeadlineTimeouts * timeout.count(), " ms");
    }
    changed_.wait_for(lock, milliseconds(50));
  }
}

/// The outcome of the vote of `epoch`, if there is one.
std::optional<Successor> Lineage::result(uint32_t epoch) {
  if (votes_->excluded()) fail(seqparRemoteError, "excluded: the other ranks decided without this one");
  if (votes_->epoch() <= epoch) return std::nullopt;
  Successor successor;
  successor.epoch = votes_->epoch();
  const Membership& choice = votes_->choice();
  for (int rank = 0; rank < size_; ++rank) {
    if (choice.members[static_cast<size_t>(rank)]) successor.members.push_back(rank);
  }
  successor.meeting = unlockId(choice.meeting, secret_);
  successor.joining = joining_ = std::make_shared<Health>();
  return successor;
}

void Lineage::enter(uint32_t epoch, std::function<void(const std::string&)> lose) {
  {
    const std::lock_guard lock(mutex_);
    current_ = epoch;
    joining_.reset();
    wakeThread();
  }
  const std::lock_guard lock(loseMutex_);
  lose_ = std::move(lose);
  loseEpoch_ = epoch;
}

void Lineage::leave(uint32_t epoch) {
  {
    const std::lock_guard lock(loseMutex_);
    if (loseEpoch_ == epoch) lose_ = nullptr;
  }
  const std::lock_guard lock(mutex_);
  if (current_ != epoch) return;
  current_.reset();
  if (votes_->epoch() > epoch) return;
  votes_->resign();
  wakeThread();
}

void Lineage::run() noexcept {
  try {
    while (true) {
      milliseconds most = kIdle;
      {
        const std::lock_guard lock(mutex_);
        if (stopping_) return;
        advance();
        if (busy()) most = voteInterval(options_.timeout);
      }
      changed_.notify_all();
      tellCommunicator();
      links_->serve(wake_->get(), most);
      wake_->clear();
    }
  } catch (const std::bad_alloc&) {
    end(kNoMemory);
  } catch (const std::exception& error) {
    end(error.what());
  }
}

/// The others see that this rank votes no more: its listener refuses connections.
void Lineage::end(const char* why) noexcept {
  log(LogLevel::Warn, "the vote of rank ", rank_, " ends: ", why);
  links_->close();
  {
    const std::lock_guard lock(mutex_);
    assignText(ended_, why);
  }
  changed_.notify_all();
}

/// Hands the connections' news to the vote, and its messages to the connections.
void Lineage::advance() {
  const auto now = Deadline::Clock::now();
  const uint32_t before = votes_->epoch();
  for (const auto& [from, epoch, message] : links_->takeReceived()) {
    // Another rank failed to create the successor.
    const bool again = joining_ && epoch == votes_->epoch() && message.kind != VoteMessage::Kind::Decided;
    votes_->receive(from, epoch, message, now);
    if (again) failJoining(concat("rank ", from, " votes again"));
  }
  for (const int rank : links_->takeRefused()) {
    links_->drop(rank);
    votes_->confirmDeparted(rank, now);
  }
  if (busy()) observe(now);
  votes_->tick(now);
  for (size_t rank = 0; rank < votes_->departed().size(); ++rank) {
    if (votes_->departed()[rank] && votes_->members()[rank]) failJoining(concat("rank ", rank, " is gone"));
  }
  const bool decided = votes_->epoch() != before && !votes_->excluded();
  if (decided && meeting_ &&
      !std::equal(std::begin(meeting_->internal), std::end(meeting_->internal),
                  std::begin(votes_->choice().meeting.internal))) {
    endMeeting();  // another one was chosen
  }
  for (const auto& sent : votes_->take()) links_->send(sent.to, sent.epoch, sent.message);
}

/// Looks for processes of this host that have ended.
void Lineage::observe(Time now) {
  for (int rank = 0; rank < size_; ++rank) {
    const auto index = static_cast<size_t>(rank);
    if (rank == rank_ || visible_[index].pid == 0 || votes_->departed()[index]) continue;
    if (hasEnded(visible_[index])) votes_->confirmDeparted(rank, now);
  }
}

void Lineage::failJoining(const std::string& why) {
  if (!joining_ || !joining_->fail(seqparRemoteError, why)) return;
  // The others wait at this meeting for a member that does not come.
  endMeeting();
}

/// Ends the newest communicator of this rank if others vote about its successor.
void Lineage::tellCommunicator() {
  uint32_t epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    if (!votes_->contacted()) return;
    epoch = votes_->epoch();
  }
  const std::lock_guard lock(loseMutex_);
  if (lose_ && loseEpoch_ == epoch) std::exchange(lose_, nullptr)("another rank called seqparCommShrink");
}

/// Called by the vote, with the mutex.
seqparUniqueId Lineage::openMeeting() {
  endMeeting();
  meeting_ = makeLockedId(options_.interfaceName, secret_);
  return *meeting_;
}

void Lineage::endMeeting() {
  if (!meeting_) return;
  endRendezvous(unlockId(*std::exchange(meeting_, std::nullopt), secret_));
}

}  // namespace seqpar
