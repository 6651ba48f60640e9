#include "scan/shards.h"

#include <algorithm>

namespace seqpar {

ShardScan::ShardScan(Affine& affine, const ScanProblem& problem, const ScanOrder& order, Mailbox& mail, Group group,
                     std::vector<Block> shards)
    : affine_(affine),
      problem_(problem),
      order_(order),
      mail_(mail),
      group_(group),
      shards_(std::move(shards)),
      local_(static_cast<size_t>(order.position - group.first)),
      maps_(static_cast<size_t>(group.size()), nullptr) {}

MapLayout ShardScan::layoutOf(int position, Block block) const {
  return MapLayout(affine_, problem_, block, position == 0 ? MapKind::Absolute : MapKind::Relative);
}

void ShardScan::scatter() {
  const int position = order_.position;
  if (position + 1 == order_.size()) return;
  // Each position starts with a different owner, so that they do not all write to the same owner at once.
  for (size_t i = 1; i <= shards_.size(); ++i) {
    const size_t q = (local_ + i) % shards_.size();
    if (q == local_) continue;
    const MapLayout layout = layoutOf(position, shards_[q]);
    const Target message = mail_.acquire(order_.ranks[group_.first + q], layout.bytes());
    if (position == 0) {
      affine_.hop(shards_[q], {}, layout.state(message));
    } else {
      layout.pack(affine_, shards_[q], message);
    }
    mail_.commit();
  }
}

const std::byte* ShardScan::map(int position) {
  const std::byte*& held = maps_[position - group_.first];
  if (held == nullptr) held = mail_.receive(order_.ranks[position], layoutOf(position, shard()).bytes());
  return held;
}

void ShardScan::releaseMap(int position) {
  const std::byte*& held = maps_[position - group_.first];
  if (held != nullptr) mail_.release(order_.ranks[position]);
  held = nullptr;
}

template <typename Visit>
void ShardScan::eachMap(const Visit& visit) {
  const MapLayout ownLayout = layoutOf(order_.position, shard());
  MessageBuffer own(ownLayout.bytes());
  ownLayout.pack(affine_, shard(), own.data());
  for (int p = group_.first; p < group_.end; ++p) {
    visit(p, layoutOf(p, shard()), p == order_.position ? own.data() : map(p));
  }
}

Fold ShardScan::groupMap() {
  Fold fold(affine_, shard());
  eachMap([&](int p, const MapLayout& layout, const std::byte* message) {
    if (p == group_.first) {
      fold.start(layout, message);
    } else {
      fold.then(layout, message);
    }
  });
  return fold;
}

void ShardScan::thenGroup(Fold& x) {
  eachMap([&](int, const MapLayout& layout, const std::byte* message) { x.then(layout, message); });
}

void ShardScan::distribute(std::optional<Fold> x) {
  const MapLayout stateLayout(affine_, problem_, shard(), MapKind::Absolute);
  for (int p = group_.first; p < group_.end; ++p) {
    const bool more = p + 1 < group_.end;
    if (p == order_.position) {
      MessageBuffer next(more ? stateLayout.bytes() : 0);
      affine_.hop(shard(), x ? x->state() : Values{}, more ? Target(next.data()) : Target());
      if (!x) x.emplace(affine_, shard());
      if (more) x->start(stateLayout, next.data());
      continue;
    }
    if (p > 0) {
      x->write(stateLayout, mail_.acquire(order_.ranks[p], stateLayout.bytes()));
      mail_.commit();
    }
    if (more) {
      if (p == 0) {
        x.emplace(affine_, shard());
        x->start(stateLayout, map(p));
      } else {
        x->then(layoutOf(p, shard()), map(p));
      }
    }
    releaseMap(p);
  }
}

void ShardScan::take() {
  if (order_.position == 0) return;
  std::vector<size_t> pending;
  for (size_t i = 1; i <= shards_.size(); ++i) {
    const size_t q = (local_ + i) % shards_.size();
    if (q != local_) pending.push_back(q);
  }
  const auto rankOf = [this](size_t q) { return order_.ranks[group_.first + q]; };
  while (!pending.empty()) {
    auto next = std::find_if(pending.begin(), pending.end(), [&](size_t q) { return mail_.ready(rankOf(q)); });
    if (next == pending.end()) next = pending.begin();
    const size_t q = *next;
    const MapLayout layout(affine_, problem_, shards_[q], MapKind::Absolute);
    affine_.hop(shards_[q], layout.state(mail_.receive(rankOf(q), layout.bytes())), nullptr);
    mail_.release(rankOf(q));
    pending.erase(next);
  }
}

}  // namespace seqpar
