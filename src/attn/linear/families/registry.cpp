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

Tensor gateTensor(const GateRow& row, const seqparAttnTensor_t& given, int type, const GateSizes& sizes) {
  const auto number = static_cast<seqparDataType_t>(type);
  if (row.shape == seqparAttnGatePerHead) return denseTensor(given.data, number, 1, 1, sizes.heads, 1);
  auto tensor = denseTensor(given.data, number, sizes.batch, sizes.tokens, sizes.heads,
                            row.shape == seqparAttnGatePerChannel ? sizes.headDim : 1);
  if (given.batchStride != 0 || given.tokenStride != 0 || given.headStride != 0) {
    tensor.batchStride = given.batchStride;
    tensor.tokenStride = given.tokenStride;
    tensor.headStride = given.headStride;
  }
  return tensor;
}

Gates gateTensors(std::span<const GateRow> rows, const seqparAttnTensor_t* given, const int* types,
                  const GateSizes& sizes) {
  Gates gates;
  for (size_t i = 0; i < rows.size(); ++i) gates[i] = gateTensor(rows[i], given[i], types[i], sizes);
  return gates;
}

}  // namespace seqpar::attn::linear
