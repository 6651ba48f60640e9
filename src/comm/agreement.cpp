#include "comm/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"

namespace seqpar {
namespace {

constexpr size_t kMostValues = 24;

struct Call {
  std::array<char, 40> name{};
  std::array<int64_t, kMostValues> values{};
};

}  // namespace

void checkAgreement(Allgather& control, const char* call, std::span<const NamedValue> values) {
  Call mine;
  std::strncpy(mine.name.data(), call, mine.name.size() - 1);
  for (size_t i = 0; i < std::min(values.size(), kMostValues); ++i) mine.values[i] = values[i].value;
  std::vector<Call> all(static_cast<size_t>(control.size()));
  control.gatherValues(mine, std::span(all));

  std::string differences;
  const auto note = [&](size_t rank, const auto& what, const auto& theirs, const auto& first) {
    differences +=
        concat(differences.empty() ? "" : "; ", "rank ", rank, " has ", what, " ", theirs, ", rank 0 has ", first);
  };
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].name != all[0].name) {
      note(rank, "called", all[rank].name.data(), all[0].name.data());
      continue;  // the values of different calls have nothing to do with each other
    }
    for (size_t i = 0; i < values.size() && std::strcmp(all[0].name.data(), mine.name.data()) == 0; ++i) {
      if (all[rank].values[i] != all[0].values[i]) note(rank, values[i].name, all[rank].values[i], all[0].values[i]);
    }
  }
  if (!differences.empty()) fail(seqparInvalidUsage, call, ": the ranks disagree: ", differences);
}

}  // namespace seqpar
