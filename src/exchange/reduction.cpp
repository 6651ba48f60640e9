#include "exchange/reduction.h"

#include <algorithm>
#include <map>

#include "base/convert.h"
#include "exchange/combine.h"
#include "exchange/messages.h"
#include "exchange/rendezvous.h"

namespace seqpar {
namespace {

/// The payload of one rank's terms: this rank's in place, another rank's as its messages arrive. Bytes that cannot be
/// added yet, because another rank's term for the same elements is missing, wait in a backlog.
class Terms {
 public:
  Terms() = default;
  explicit Terms(RegionWalk<const std::byte> own) : own_(std::move(own)), isOwn_(true) {}

  /// Available contiguous bytes.
  size_t contiguous() const {
    if (isOwn_) return own_.contiguous();
    return taken_ < backlog_.size() ? backlog_.size() - taken_ : message_.size();
  }

  /// The next `bytes` <= contiguous().
  const std::byte* take(size_t bytes) {
    if (isOwn_) return own_.next(bytes).data();
    if (taken_ < backlog_.size()) {
      taken_ += bytes;
      return backlog_.data() + taken_ - bytes;
    }
    const std::byte* const begin = message_.data();
    message_ = message_.subspan(bytes);
    return begin;
  }

  void arrive(std::span<const std::byte> message) { message_ = message; }

  /// Saves the unused rest of the message, so that the message can be released.
  void keepRest() {
    if (taken_ == backlog_.size()) {
      backlog_.clear();
      taken_ = 0;
    }
    backlog_.insert(backlog_.end(), message_.begin(), message_.end());
    message_ = {};
  }

  std::vector<size_t> sums;  ///< sums that these terms belong to, in order
  size_t current = 0;        ///< in sums
  size_t length = 0;         ///< of the payload, in bytes
  size_t batch = 0;

 private:
  RegionWalk<const std::byte> own_;
  bool isOwn_ = false;
  std::vector<std::byte> backlog_;
  size_t taken_ = 0;  ///< bytes of the backlog
  std::span<const std::byte> message_;
};

/// All sums of one rank, with their progress.
class Sums {
 public:
  Sums(const Reduction& reduction, seqparDataType_t type, int rank, std::span<const std::byte* const> sendBuffers,
       std::span<std::byte* const> receiveBuffers, const RowFactors* factors)
      : reduction_(&reduction), type_(type), elementBytes_(sizeOf(type)), factors_(factors) {
    size_t rows = 0;
    for (size_t s = 0; s < reduction.sums.size(); ++s) {
      const Sum& sum = reduction.sums[s];
      State& state = states_.emplace_back();
      state.out.add(sum.region, receiveBuffers[static_cast<size_t>(sum.region.buffer)]);
      state.element = rows;
      rows += sum.region.bytes() / elementBytes_;
      if (sum.region.bytes() == 0) continue;
      for (const int from : sum.from) {
        Terms& terms = terms_[from];
        terms.sums.push_back(s);
        terms.length += sum.region.bytes();
      }
    }
    const auto own = terms_.find(rank);
    if (own == terms_.end()) return;
    auto walk = payloadOf<const std::byte>(std::span(reduction.sends), rank);
    walk.restart(sendBuffers);
    Terms terms(std::move(walk));
    terms.sums = own->second.sums;
    own->second = std::move(terms);
  }

  /// By rank, including this rank.
  std::map<int, Terms>& terms() { return terms_; }

  /// Adds all terms that are available.
  void advance() {
    for (size_t s = finished_; s < states_.size(); ++s) {
      if (states_[s].out.left() > 0) advance(s);
      if (s == finished_ && states_[s].out.left() == 0) ++finished_;
    }
  }

  /// InternalError if a sum lacks terms after all payloads have arrived.
  void requireFinished() const {
    if (finished_ < states_.size()) {
      fail(seqparInternalError, "sum ", finished_, " of ", states_.size(), " lacks terms of ",
           states_[finished_].out.left(), " bytes: the ranks disagree about the operation");
    }
  }

 private:
  struct State {
    RegionWalk<std::byte> out;
    size_t element = 0;  ///< the next element, counted over all sums
  };

  void advance(size_t s) {
    State& state = states_[s];
    std::vector<Terms*> all;
    for (const int from : reduction_->sums[s].from) {
      Terms& terms = terms_[from];
      if (terms.sums[terms.current] != s) return;
      all.push_back(&terms);
    }
    if (all.empty()) {
      while (state.out.left() > 0) state.out.next(state.out.left());
      return;
    }
    while (state.out.left() > 0) {
      size_t bytes = std::min(kCombined * elementBytes_, state.out.contiguous());
      for (const Terms* terms : all) bytes = std::min(bytes, terms->contiguous());
      if (bytes == 0) return;
      combine(s, all, bytes);
    }
    for (Terms* terms : all) ++terms->current;
  }

  void combine(size_t s, std::span<Terms* const> all, size_t bytes) {
    State& state = states_[s];
    const auto out = state.out.next(bytes);
    const size_t count = bytes / elementBytes_;
    float sum[kCombined];
    size_t term = 0;
    const auto add = [&](const std::byte* data) {
      if (factors_ != nullptr) {
        if (term == 0) std::fill_n(sum, count, 0.0f);
        addRows(sum, data, factors_->term[term], state.element, count);
      } else if (term == 0) {
        setTerm(sum, data, type_, count);
      } else {
        addTerm(sum, data, type_, count);
      }
      ++term;
    };
    if (reduction_->sums[s].existing) add(out.data());
    for (Terms* terms : all) add(terms->take(bytes));
    fromFloat(sum, out.data(), type_, count);
    state.element += count;
  }

  void addRows(float* sum, const std::byte* data, const float* factors, size_t element, size_t count) const {
    for (size_t done = 0; done < count;) {
      const size_t row = (element + done) / factors_->elements;
      const size_t part = std::min(count - done, (row + 1) * factors_->elements - (element + done));
      addTerm(sum + done, data + done * elementBytes_, type_, part, factors[row]);
      done += part;
    }
  }

  const Reduction* reduction_;
  seqparDataType_t type_;
  size_t elementBytes_;
  const RowFactors* factors_;
  std::vector<State> states_;
  std::map<int, Terms> terms_;
  size_t finished_ = 0;  ///< all sums before this index are finished
};

/// The terms of another rank, being received.
struct Arrival {
  int from;
  Terms* terms;
  RemotePayload remote;  ///< where to read them; empty: they arrive in messages
  bool inPlace = false;
  std::vector<std::byte> scratch;  ///< the bytes read so far

  bool arrives(const Cutting& cutting, size_t round) const { return round < cutting.messages(terms->length); }

  void begin(Mailbox& mail, const Cutting& cutting, size_t round) {
    const size_t bytes = cutting.messageAt(terms->length, round);
    if (!inPlace) return terms->arrive({mail.receive(from, bytes), bytes});
    if (remote.mapped && remote.walk.contiguous() >= bytes) return terms->arrive(remote.walk.next(bytes));
    scratch.resize(bytes);
    const std::span<std::byte> into(scratch);
    readRemote(mail, from, remote, std::span(&into, 1));
    terms->arrive(scratch);
  }

  void end(Mailbox& mail) {
    terms->keepRest();
    if (!inPlace) mail.release(from);
  }
};

void reduceBatch(Mailbox& mail, const Cutting& cutting, size_t batch, std::span<OutgoingPayload> outgoing, Sums& sums) {
  std::vector<OutgoingPayload*> out;
  std::vector<Arrival> in;
  size_t rounds = 0;
  for (auto& payload : outgoing) {
    if (payload.batch != batch) continue;
    out.push_back(&payload);
    sendRts(mail, payload);
    if (!payload.to.empty()) rounds = std::max(rounds, cutting.messages(payload.bytes));
  }
  for (auto& [from, terms] : sums.terms()) {
    if (from == mail.rank() || terms.batch != batch) continue;
    Arrival& arrival = in.emplace_back(Arrival{from, &terms, {}, false, {}});
    rounds = std::max(rounds, cutting.messages(terms.length) + kLead);
    if (!byRendezvous(mail, from, terms.length)) continue;
    arrival.remote = receiveRegions(mail, from);
    arrival.inPlace = arrival.remote.walk.left() > 0;
    if (arrival.inPlace) requireLength(mail, from, arrival.remote, terms.length);
  }
  for (size_t round = 0; round < rounds; ++round) {
    for (auto* payload : out) payload->send(mail, cutting, round);
    if (round < kLead) continue;
    for (auto& arrival : in) {
      if (arrival.arrives(cutting, round - kLead)) arrival.begin(mail, cutting, round - kLead);
    }
    sums.advance();
    for (auto& arrival : in) {
      if (arrival.arrives(cutting, round - kLead)) arrival.end(mail);
    }
  }
  for (const auto& arrival : in) {
    if (!arrival.inPlace) continue;
    mail.endViews(arrival.from);
    sendFin(mail, arrival.from);
  }
  for (const auto* payload : out) {
    for (const int to : payload->readers) awaitFin(mail, to);
  }
}

}  // namespace

void reduceOnHost(Mailbox& mail, const Reduction& reduction, seqparDataType_t type,
                  std::span<const std::byte* const> sendBuffers, std::span<std::byte* const> receiveBuffers,
                  const RowFactors* factors) {
  const Cutting cutting(mail);
  auto outgoing = outgoingPayloads(mail, cutting, reduction.sends);
  for (OutgoingPayload& payload : outgoing) payload.restart(sendBuffers);
  Sums sums(reduction, type, mail.rank(), sendBuffers, receiveBuffers, factors);
  for (auto& [from, terms] : sums.terms()) {
    if (from != mail.rank()) terms.batch = cutting.batchOf(from, mail.rank());
  }
  sums.advance();
  for (size_t batch = 0; batch < cutting.batches(); ++batch) reduceBatch(mail, cutting, batch, outgoing, sums);
  sums.requireFinished();
}

}  // namespace seqpar
