#include "comm/agreement.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace seqpar {
namespace {

template <typename Value>
std::vector<Value> gathered(const Value& mine, Allgather& control) {
  std::vector<Value> all(static_cast<size_t>(control.size()));
  control.gatherValues(mine, std::span(all));
  return all;
}

template <typename Value>
std::vector<Value> gathered(const Value& mine, Mailbox& mail) {
  std::vector<Value> all(static_cast<size_t>(mail.size()), mine);
  std::vector<int> others(all.size());
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + mail.rank());
  if (others.empty()) return all;
  std::memcpy(mail.acquire(others, sizeof(Value)).data, &mine, sizeof(Value));
  mail.commit();
  for (const int other : others) {
    std::memcpy(&all[static_cast<size_t>(other)], mail.receive(other, sizeof(Value)), sizeof(Value));
    mail.release(other);
  }
  return all;
}

/// Adds "rank 1 has this, rank 0 has that" to the list of differences.
template <typename What, typename Value>
void note(std::string& list, size_t rank, const What& what, const Value& theirs, const Value& first) {
  list += concat(list.empty() ? "" : "; ", "rank ", rank, " has ", what, " ", theirs, ", rank 0 has ", first);
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

std::string Comparison::differences(Allgather& control) const {
  return differencesAmong(control);
}

std::string Comparison::differences(Mailbox& mail) const {
  return differencesAmong(mail);
}

template <typename Ranks>
std::string Comparison::differencesAmong(Ranks& ranks) const {
  const std::vector<Call> all = gathered(mine_, ranks);
  std::string list;
  bool alike = true;  // the ranks know which of their values are arrays
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].name != all[0].name) note(list, rank, "called", all[rank].name.data(), all[0].name.data());
    alike = alike && all[rank].name == all[0].name && all[rank].arrays == all[0].arrays;
  }
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const auto& [name, kind, elements] = arguments_[i];
    bool gathers = false;
    for (size_t rank = 1; rank < all.size(); ++rank) {
      // The values of different calls have nothing to do with each other.
      if (all[rank].name != all[0].name || all[0].name != mine_.name) continue;
      const int64_t theirs = all[rank].values[i], first = all[0].values[i];
      if (theirs == first) continue;
      const bool sameKind = ((all[rank].arrays ^ all[0].arrays) >> i & 1) == 0;
      if (sameKind && kind != NamedValue::Kind::Array) {
        note(list, rank, name, inWords(kind, theirs), inWords(kind, first));
      } else if (alike) {
        gathers = true;
      } else {
        list += concat(list.empty() ? "" : "; ", "rank ", rank, " has ", sameKind ? "other " : "another kind of ", name,
                       " than rank 0");
      }
    }
    if (gathers) list += concat(list.empty() ? "" : "; ", differencesOfArrays(arguments_[i], ranks));
  }
  return list.empty() ? list : concat(call_, ": the ranks disagree: ", list);
}

/// Collective: of the ranks that differ earliest from rank 0.
template <typename Ranks>
std::string Comparison::differencesOfArrays(const Argument& array, Ranks& ranks) const {
  const std::vector<int64_t>& own = array.elements;
  for (size_t begin = 0;; begin += Elements().some.size()) {
    Elements mine{static_cast<int64_t>(own.size())};
    const size_t end = std::min(own.size(), begin + mine.some.size());
    for (size_t i = begin; i < end; ++i) mine.some[i - begin] = own[i];
    const std::vector<Elements> all = gathered(mine, ranks);
    std::string list;
    int64_t longest = 0;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      longest = std::max(longest, all[rank].length);
      if (all[rank].length != all[0].length) {
        note(list, rank, concat("a length of ", array.name), all[rank].length, all[0].length);
        continue;
      }
      const auto& [theirs, first] = std::pair(all[rank].some, all[0].some);
      const auto at = std::mismatch(theirs.begin(), theirs.end(), first.begin());
      if (at.first == theirs.end()) continue;
      const auto index = begin + static_cast<size_t>(at.first - theirs.begin());
      note(list, rank, concat(array.name, "[", index, "]"), *at.first, *at.second);
    }
    if (!list.empty() || end >= static_cast<size_t>(longest)) return list;
  }
}

void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values) {
  const std::string text = Comparison(call, values).differences(control);
  if (!text.empty()) fail(seqparInvalidUsage, text);
}

}  // namespace seqpar
