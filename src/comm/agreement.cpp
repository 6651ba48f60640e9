#include "comm/agreement.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace seqpar {
namespace {

/// The ranks that compare their arguments, and how a value of each is gathered.
struct ByControl {
  static constexpr bool kGathersElements = true;
  Allgather& control;

  size_t size() const { return static_cast<size_t>(control.size()); }
  int rank(size_t index) const { return static_cast<int>(index); }
  template <typename Value>
  std::vector<Value> gathered(const Value& mine) {
    std::vector<Value> all(size());
    control.gatherValues(mine, std::span(all));
    return all;
  }
};

/// A group, gathered together with all other groups: the number of gathers must not depend on a group's values.
struct GroupByControl {
  static constexpr bool kGathersElements = false;
  Allgather& control;
  const std::vector<int>& members;

  size_t size() const { return members.size(); }
  int rank(size_t index) const { return members[index]; }
  template <typename Value>
  std::vector<Value> gathered(const Value& mine) {
    const auto all = ByControl{control}.gathered(mine);
    std::vector<Value> ofGroup;
    for (const int member : members) ofGroup.push_back(all[static_cast<size_t>(member)]);
    return ofGroup;
  }
};

struct ByMessages {
  static constexpr bool kGathersElements = true;
  Mailbox& mail;
  std::vector<int> members;

  ByMessages(Mailbox& mailbox, const std::vector<int>& ranks) : mail(mailbox), members(ranks) {
    if (!members.empty()) return;
    members.resize(static_cast<size_t>(mail.size()));
    std::iota(members.begin(), members.end(), 0);
  }
  size_t size() const { return members.size(); }
  int rank(size_t index) const { return members[index]; }
  template <typename Value>
  std::vector<Value> gathered(const Value& mine) {
    std::vector<Value> all(size(), mine);
    std::vector<int> others = members;
    std::erase(others, mail.rank());
    if (others.empty()) return all;
    std::memcpy(mail.acquire(others, sizeof(Value)).data, &mine, sizeof(Value));
    mail.commit();
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == mail.rank()) continue;
      std::memcpy(&all[i], mail.receive(members[i], sizeof(Value)), sizeof(Value));
      mail.release(members[i]);
    }
    return all;
  }
};

/// Adds "rank 1 has this, rank 0 has that" to the list of differences.
template <typename What, typename Value>
void note(std::string& list, std::pair<int, int> ranks, const What& what, const Value& remote, const Value& first) {
  list += concat(list.empty() ? "" : "; ", "rank ", ranks.first, " has ", what, " ", remote, ", rank ", ranks.second,
                 " has ", first);
}

}  // namespace

Comparison::Comparison(const char* call, std::span<const NamedValue> values) : call_(call) {
  std::strncpy(mine_.name.data(), call, mine_.name.size() - 1);
  for (size_t i = 0; i < std::min(values.size(), kMostValues); ++i) {
    const NamedValue& value = values[i];
    arguments_.push_back({value.name, value.kind, {value.elements.begin(), value.elements.end()}});
    mine_.values[i] = value.value;
    if (value.kind == NamedValue::Kind::Array) mine_.arrays |= uint64_t{1} << i;
  }
}

Comparison::Comparison(const char* call, std::vector<int> members, std::span<const NamedValue> values)
    : Comparison(call, values) {
  members_ = std::move(members);
}

void Comparison::addOfGroup(std::vector<int> members, std::span<const NamedValue> values) {
  ofGroup_ = std::make_shared<Comparison>(call_, std::move(members), values);
}

std::string Comparison::differences(Allgather& control) const {
  ByControl all{control};
  std::string text = differencesAmong(all);
  if (!text.empty() || !ofGroup_) return text;
  GroupByControl group{control, ofGroup_->members_};
  return ofGroup_->differencesAmong(group);
}

std::string Comparison::differences(Mailbox& mail) const {
  ByMessages ranks(mail, members_);
  std::string text = differencesAmong(ranks);
  if (!text.empty() || !ofGroup_) return text;
  ByMessages group(mail, ofGroup_->members_);
  return ofGroup_->differencesAmong(group);
}

template <typename Ranks>
std::string Comparison::differencesAmong(Ranks& ranks) const {
  const std::vector<Call> all = ranks.gathered(mine_);
  const auto pair = [&](size_t rank) { return std::pair(ranks.rank(rank), ranks.rank(0)); };
  std::string list;
  bool alike = Ranks::kGathersElements;  // the ranks agree on which values are arrays
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].name != all[0].name) note(list, pair(rank), "called", all[rank].name.data(), all[0].name.data());
    alike = alike && all[rank].name == all[0].name && all[rank].arrays == all[0].arrays;
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& [name, kind, elements] = arguments_[i];
    bool gathers = false;
    for (size_t rank = 1; rank < all.size(); ++rank) {
      // The values of different calls are not comparable.
      if (all[rank].name != all[0].name || all[0].name != mine_.name) continue;
      const int64_t remote = all[rank].values[i], first = all[0].values[i];
      if (remote == first) continue;
      const bool sameKind = ((all[rank].arrays ^ all[0].arrays) >> i & 1) == 0;
      if (sameKind && kind != NamedValue::Kind::Array) {
        note(list, pair(rank), name, inWords(kind, remote), inWords(kind, first));
      } else if (alike) {
        gathers = true;
      } else {
        list += concat(list.empty() ? "" : "; ", "rank ", ranks.rank(rank), " has ",
                       sameKind ? "other " : "another kind of ", name, " than rank ", ranks.rank(0));
      }
    }
    if (gathers) list += concat(list.empty() ? "" : "; ", differencesOfArrays(arguments_[i], ranks));
  }
  return list.empty() ? list : concat(call_, ": the ranks disagree: ", list);
}

/// Collective: describes the ranks that differ earliest from rank 0.
template <typename Ranks>
std::string Comparison::differencesOfArrays(const Argument& array, Ranks& ranks) const {
  const std::vector<int64_t>& own = array.elements;
  for (size_t begin = 0;; begin += Elements().some.size()) {
    Elements mine{static_cast<int64_t>(own.size())};
    const size_t end = std::min(own.size(), begin + mine.some.size());
    for (size_t i = begin; i < end; ++i) mine.some[i - begin] = own[i];
    const std::vector<Elements> all = ranks.gathered(mine);
    const auto pair = [&](size_t rank) { return std::pair(ranks.rank(rank), ranks.rank(0)); };
    std::string list;
    int64_t longest = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      longest = std::max(longest, all[rank].length);
      if (all[rank].length != all[0].length) {
        note(list, pair(rank), concat("a length of ", array.name), all[rank].length, all[0].length);
        continue;
      }
      const auto& [remote, first] = std::pair(all[rank].some, all[0].some);
      const auto at = std::mismatch(remote.begin(), remote.end(), first.begin());
      if (at.first == remote.end()) continue;
      const auto index = begin + static_cast<size_t>(at.first - remote.begin());
      note(list, pair(rank), concat(array.name, "[", index, "]"), *at.first, *at.second);
    }
    if (!list.empty() || end >= static_cast<size_t>(longest)) return list;
  }
}

void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values) {
  const std::string text = Comparison(call, values).differences(control);
  if (!text.empty()) fail(seqparInvalidUsage, text);
}

}  // namespace seqpar
