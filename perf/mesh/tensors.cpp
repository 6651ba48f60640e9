#include "mesh/tensors.h"

#include "common/values.h"

namespace seqpar::perf {
namespace {

constexpr float kTiny = -80;  // exp(-80) is 2e-35

unsigned char byteOf(int rank, size_t index) {
  return static_cast<unsigned char>((index * 29 + static_cast<size_t>(rank) * 83 + (index >> 8) + 1) & 0x7f);
}

/// The term of `rank` in the block of `owner`: 0, 1 or 2, so that sums are exact in any type.
float term(int rank, int owner, size_t index) {
  return static_cast<float>((static_cast<size_t>(rank) * 5 + static_cast<size_t>(owner) * 3 + index) % 3);
}

template <typename Value>
void fill(void* out, size_t count, int type, Value value) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = value(i);
  encode(values, type, out);
}

}  // namespace

MeshGroup::MeshGroup(seqparMesh_t itsMesh, seqparMeshAxis_t itsAxis) : mesh(itsMesh), axis(itsAxis) {
  int a = 0, b = 0;
  require(seqparMeshShape(mesh, &a, &b), "seqparMeshShape");
  ranks.resize(static_cast<size_t>(axis == seqparMeshAxisQ ? a : b));
  int here = 0;
  require(seqparMeshGroup(mesh, axis, ranks.data(), &here), "seqparMeshGroup");
  position = static_cast<size_t>(here);
}

Blocks::Blocks(const MeshGroup& group, size_t bytes, seqparComm_t comm)
    : group_(&group), bytes_(bytes), all_(bytes * group.size(), comm) {}

void Blocks::prepare(bool atOnce) {
  auto* const all = all_.as<unsigned char>();
  std::memset(all, 0xff, all_.bytes());
  unsigned char* const own = all + (atOnce ? group_->position : 0) * bytes_;
  for (size_t i = 0; i < bytes_; ++i) own[i] = byteOf(group_->self(), i);
  all_.upload();
}

size_t Blocks::wrong(bool atOnce) {
  all_.download();
  size_t count = 0;
  for (size_t slot = 0; slot < group_->size(); ++slot) {
    const int rank = group_->rankAt(slot, atOnce);
    const unsigned char* const block = all_.as<unsigned char>() + slot * bytes_;
    for (size_t i = 0; i < bytes_; ++i) count += block[i] == byteOf(rank, i) ? 0 : 1;
  }
  return count;
}

seqparMeshPart_t Blocks::part(int index) {
  const auto slot = static_cast<size_t>(index);
  return {at(slot - 1), bytes_, at(slot), bytes_};
}

void Blocks::gather(void* stream) {
  const std::vector<size_t> bytes(group_->size(), bytes_);
  require(seqparMeshAllGather(group_->axis, at(group_->position), all_.data(), bytes.data(), group_->mesh, stream),
          "seqparMeshAllGather");
}

Sums::Sums(const MeshGroup& group, size_t count, int type, seqparComm_t comm)
    : group_(&group),
      count_(count),
      type_(type),
      all_(count * bytesOf(type) * group.size(), comm),
      carry_(count * bytesOf(type), comm) {}

void Sums::prepare(bool atOnce) {
  for (size_t slot = 0; slot < group_->size(); ++slot) {
    const int owner = group_->rankAt(slot, atOnce);
    fill(all_.as<std::byte>() + slot * carry_.bytes(), count_, type_,
         [&](size_t i) { return term(group_->self(), owner, i); });
  }
  all_.upload();
  carry_.fill(0xff);
}

size_t Sums::wrong(bool atOnce) {
  std::vector<std::byte> want(carry_.bytes());
  fill(want.data(), count_, type_, [&](size_t i) {
    float sum = 0;
    for (const int rank : group_->ranks) sum += term(rank, group_->self(), i);
    return sum;
  });
  Buffer& got = atOnce ? carry_ : all_;
  got.download();
  return countWrong(got.as<std::byte>(), want.data(), count_, type_);
}

seqparMeshSum_t Sums::part(int index) {
  return {at(static_cast<size_t>(index)), count_, carry_.data(), count_};
}

void Sums::scatter(void* stream) {
  const std::vector<size_t> counts(group_->size(), count_);
  require(seqparMeshReduceScatter(group_->axis, all_.data(), carry_.data(), counts.data(),
                                  static_cast<seqparDataType_t>(type_), group_->mesh, stream),
          "seqparMeshReduceScatter");
}

Outputs::Outputs(const MeshGroup& group, int64_t tokens, int64_t heads, int64_t dim, int type, seqparComm_t comm)
    : group_(&group),
      tokens_(tokens),
      heads_(heads),
      dim_(dim),
      type_(static_cast<seqparDataType_t>(type)),
      rows_(static_cast<size_t>(tokens * heads)),
      numbers_(rows_ * static_cast<size_t>(dim)),
      o_(numbers_ * bytesOf(type) * group.size(), comm),
      lse_(rows_ * sizeof(float) * group.size(), comm),
      carry_(numbers_ * bytesOf(type), comm),
      carryLse_(rows_ * sizeof(float), comm) {}

void Outputs::prepare(bool atOnce) {
  const auto tokens = static_cast<size_t>(tokens_);
  for (size_t slot = 0; slot < group_->size(); ++slot) {
    fill(o_.as<std::byte>() + slot * carry_.bytes(), numbers_, type_,
         [&](size_t) { return static_cast<float>(group_->position + 1); });
    for (size_t row = 0; row < rows_; ++row) {
      const size_t token = row % tokens, head = row / tokens;
      // In the atOnce form, the lse of all blocks is one array [heads][all tokens].
      const size_t place = atOnce ? (head * group_->size() + slot) * tokens + token : slot * rows_ + row;
      lse_.as<float>()[place] = mainOf(token, head) == group_->position ? 0 : kTiny;
    }
  }
  o_.upload();
  lse_.upload();
  carry_.fill(0xff);
  carryLse_.fill(0xff);
}

size_t Outputs::wrong(bool atOnce) {
  const auto heads = static_cast<size_t>(heads_), dim = static_cast<size_t>(dim_);
  std::vector<std::byte> want(carry_.bytes());
  fill(want.data(), numbers_, type_,
       [&](size_t i) { return static_cast<float>(mainOf(i / dim / heads, i / dim % heads) + 1); });
  Buffer& got = atOnce ? carry_ : o_;
  Buffer& gotLse = atOnce ? carryLse_ : lse_;
  got.download();
  gotLse.download();
  size_t count = countWrong(got.as<std::byte>(), want.data(), numbers_, type_);
  for (size_t row = 0; row < rows_; ++row) count += gotLse.as<float>()[row] == 0 ? 0 : 1;
  return count;
}

void Outputs::send(int index, void* stream) {
  const auto slot = static_cast<size_t>(index);
  seqparMeshReduceOParams_t params = SEQPAR_MESH_REDUCE_O_PARAMS_INITIALIZER;
  params.o = static_cast<std::byte*>(o_.data()) + slot * carry_.bytes();
  params.lse = static_cast<float*>(lse_.data()) + slot * rows_;
  params.carry = carry_.data();
  params.carryLse = static_cast<float*>(carryLse_.data());
  params.tokens = params.carryTokens = tokens_;
  params.heads = heads_;
  params.dim = dim_;
  params.dataType = params.wireType = type_;
  require(seqparMeshReduceO(index, &params, group_->mesh, stream), "seqparMeshReduceO");
}

void Outputs::scatter(void* stream) {
  const std::vector<int64_t> tokens(group_->size(), tokens_);
  seqparMeshReduceScatterOParams_t params = SEQPAR_MESH_REDUCE_SCATTER_O_PARAMS_INITIALIZER;
  params.o = o_.data();
  params.lse = static_cast<float*>(lse_.data());
  params.result = carry_.data();
  params.resultLse = static_cast<float*>(carryLse_.data());
  params.tokens = tokens.data();
  params.heads = heads_;
  params.dim = dim_;
  params.dataType = type_;
  require(seqparMeshReduceScatterO(&params, group_->mesh, stream), "seqparMeshReduceScatterO");
}

}  // namespace seqpar::perf
