#include "comm/agreement.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace seqpar {

Comparison::Comparison(const char* call, std::span<const NamedValue> values) : call_(call) {
  std::strncpy(mine_.name.data(), call, mine_.name.size() - 1);
  for (size_t i = 0; i < std::min(values.size(), kMostValues); ++i) {
    names_.push_back(values[i].name);
    mine_.values[i] = values[i].value;
  }
}

std::string Comparison::differences(Allgather& control) const {
  std::vector<Call> all(static_cast<size_t>(control.size()));
  control.gatherValues(mine_, std::span(all));
  return differences(all);
}

std::string Comparison::differences(Mailbox& mail) const {
  std::vector<Call> all(static_cast<size_t>(mail.size()), mine_);
  std::vector<int> others(all.size());
  std::iota(others.begin(), others.end(), 0);
  others.erase(others.begin() + mail.rank());
  if (others.empty()) return "";
  std::memcpy(mail.acquire(others, sizeof(Call)).data, &mine_, sizeof(Call));
  mail.commit();
  for (const int other : others) {
    std::memcpy(&all[static_cast<size_t>(other)], mail.receive(other, sizeof(Call)), sizeof(Call));
    mail.release(other);
  }
  return differences(all);
}

std::string Comparison::differences(std::span<const Call> all) const {
  std::string text;
  const auto note = [&](size_t rank, const auto& what, const auto& theirs, const auto& first) {
    text += concat(text.empty() ? concat(call_, ": the ranks disagree: ") : "; ", "rank ", rank, " has ", what, " ",
                   theirs, ", rank 0 has ", first);
  };
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].name != all[0].name) {
      note(rank, "called", all[rank].name.data(), all[0].name.data());
      continue;  // the values of different calls have nothing to do with each other
    }
    for (size_t i = 0; i < names_.size() && all[0].name == mine_.name; ++i) {
      if (all[rank].values[i] != all[0].values[i]) note(rank, names_[i], all[rank].values[i], all[0].values[i]);
    }
  }
  return text;
}

void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values) {
  const std::string text = Comparison(call, values).differences(control);
  if (!text.empty()) fail(seqparInvalidUsage, text);
}

}  // namespace seqpar
