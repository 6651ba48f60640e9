// The table of families: lists, errors and tests read its rows, which are in the families' folders.
#include <algorithm>
#include <vector>

#include "attn/linear/families/family.h"

namespace seqpar::attn::linear {

constinit const RegisteredFamily* RegisteredFamily::first_ = nullptr;

namespace {

std::vector<Family> sortedRows() {
  std::vector<Family> rows;
  for (const auto* one = RegisteredFamily::first(); one != nullptr; one = one->next()) rows.push_back(one->row());
  std::sort(rows.begin(), rows.end(), [](const Family& a, const Family& b) { return a.id < b.id; });
  return rows;
}

}  // namespace

std::span<const Family> families() {
  static const auto rows = sortedRows();
  return rows;
}

const Family* findFamily(int id) {
  for (const auto& family : families()) {
    if (family.id == id) return &family;
  }
  return nullptr;
}

}  // namespace seqpar::attn::linear
