#include "attn/layer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "attn/draw.h"
#include "common/values.h"

namespace seqpar::perf {
namespace {

std::unique_ptr<Buffer> make(size_t count, int type, Group& group) {
  return count == 0 ? nullptr : std::make_unique<Buffer>(count * bytesOf(type), group.comm());
}

/// Distinct values; longer buffers repeat them. A prime, so that no two rows are equal.
constexpr size_t kPattern = (1 << 20) - 3;

/// Rounded to 8 bits, which all types can represent.
float toEightBits(float number) {
  return std::ldexp(std::round(std::ldexp(number, 7)), -7);
}

size_t numbersOf(const Buffer& buffer, int type) {
  return std::min(buffer.bytes() / bytesOf(type), kPattern);
}

void fill(Buffer& buffer, int type, const std::vector<float>& numbers) {
  std::vector<std::byte> pattern(numbers.size() * bytesOf(type));
  encode(numbers, type, pattern.data());
  auto* const to = buffer.as<std::byte>();
  for (size_t at = 0; at < buffer.bytes(); at += pattern.size()) {
    std::copy_n(pattern.begin(), std::min(pattern.size(), buffer.bytes() - at), to + at);
  }
  buffer.upload();
}

}  // namespace

const Names& passNames() {
  static const Names names{{"forward", kForward}, {"backward", kBackward}, {"step", kStep}};
  return names;
}

void requireAttn(seqparResult_t result, const char* call) {
  if (result != seqparSuccess) throw std::runtime_error(withCall(call, seqparAttnGetLastError()));
}

std::vector<float> drawnGates(size_t count, double normalizer, unsigned seed) {
  Draw draw(seed);
  std::vector<float> gates(count);
  for (auto& gate : gates) {
    gate = static_cast<float>(toEightBits(std::log(0.25f + 0.75f * draw.next())) / normalizer);
  }
  return gates;
}

std::vector<float> drawnBetas(size_t count, unsigned seed) {
  Draw draw(seed);
  std::vector<float> betas(count);
  for (auto& beta : betas) beta = toEightBits(0.25f + 0.75f * draw.next());
  return betas;
}

size_t tokensFor(size_t bytes, size_t bytesOfToken) {
  return std::max<size_t>(1, (bytes + bytesOfToken / 2) / bytesOfToken);
}

Layer::Layer(const LayerSizes& sizes, Group& group) : sizes_(sizes) {
  for (auto* buffer : {&q_, &dq_}) *buffer = make(sizes.q, sizes.type, group);
  for (auto* buffer : {&k_, &dk_}) *buffer = make(sizes.k, sizes.type, group);
  for (auto* buffer : {&v_, &dv_}) *buffer = make(sizes.v, sizes.type, group);
  for (auto* buffer : {&out_, &dOut_}) *buffer = make(sizes.out, sizes.type, group);
  for (size_t i = 0; i < gates_.size(); ++i) {
    for (auto* buffer : {&gates_[i], &dGates_[i]}) *buffer = make(sizes.gates[i], sizes.gateType, group);
  }
  saved_ = make(sizes.saved, seqparFloat32, group);
  lse_ = make(sizes.lse, seqparFloat32, group);
  const unsigned seed = 12345u + static_cast<unsigned>(group.rank());
  Draw draw(seed);
  for (auto* buffer : {&q_, &k_, &v_, &dOut_}) {
    std::vector<float> numbers(numbersOf(**buffer, sizes.type));
    for (auto& number : numbers) number = toEightBits(2 * draw.next() - 1);
    fill(**buffer, sizes.type, numbers);
  }
  for (size_t i = 0; i < gates_.size(); ++i) {
    if (gates_[i] == nullptr) continue;
    const size_t count = numbersOf(*gates_[i], sizes.gateType);
    fill(*gates_[i], sizes.gateType,
         sizes.betas[i] ? drawnBetas(count, seed)
         : sizes.decays ? sizes.decays(count, seed)
                        : drawnGates(count, sizes.gateNormalizer, seed));
  }
}

seqparAttnForwardArgs_t Layer::forward() const {
  seqparAttnForwardArgs_t args = SEQPAR_ATTN_FORWARD_INITIALIZER;
  args.q.data = q_->data();
  args.k.data = k_->data();
  args.v.data = v_->data();
  args.out.data = out_->data();
  for (size_t i = 0; i < gates_.size(); ++i) {
    if (gates_[i]) args.gates[i].data = gates_[i]->data();
  }
  if (saved_) args.saved = static_cast<float*>(saved_->data());
  if (lse_) args.lse = static_cast<float*>(lse_->data());
  return args;
}

seqparAttnBackwardArgs_t Layer::backward() const {
  seqparAttnBackwardArgs_t args = SEQPAR_ATTN_BACKWARD_INITIALIZER;
  args.q.data = q_->data();
  args.k.data = k_->data();
  args.v.data = v_->data();
  args.dOut.data = dOut_->data();
  args.dq.data = dq_->data();
  args.dk.data = dk_->data();
  args.dv.data = dv_->data();
  for (size_t i = 0; i < gates_.size(); ++i) {
    if (gates_[i] == nullptr) continue;
    args.gates[i].data = gates_[i]->data();
    args.dGates[i].data = dGates_[i]->data();
  }
  if (saved_) args.saved = static_cast<const float*>(saved_->data());
  if (lse_) {
    args.out.data = out_->data();
    args.lse = static_cast<const float*>(lse_->data());
  }
  return args;
}

size_t Layer::minimalBytes(Pass pass) const {
  size_t inputs = q_->bytes() + k_->bytes() + v_->bytes();
  for (const auto& gate : gates_) inputs += gate ? gate->bytes() : 0;
  const size_t forward = inputs + out_->bytes(), backward = 2 * inputs + out_->bytes();
  return pass == kForward ? forward : pass == kBackward ? backward : forward + backward;
}

void Layer::corrupt(Pass pass) {
  if (pass != kBackward) out_->fill(0xff);
  if (pass == kForward) return;
  for (auto* buffer : {&dq_, &dk_, &dv_}) (*buffer)->fill(0xff);
}

size_t Layer::wrong(Pass pass) {
  size_t count = pass == kBackward ? 0 : notNumbers(*out_);
  if (pass != kForward) count += notNumbers(*dq_) + notNumbers(*dk_) + notNumbers(*dv_);
  return count;
}

size_t Layer::notNumbers(Buffer& buffer) const {
  buffer.download();
  size_t count = 0;
  const size_t numbers = buffer.bytes() / bytesOf(sizes_.type);
  for (size_t i = 0; i < numbers; ++i) {
    count += std::isfinite(decode(buffer.as<std::byte>(), i, sizes_.type)) ? 0 : 1;
  }
  return count;
}

std::vector<float> Layer::numbers(Array array) {
  Buffer& buffer = *(array == Array::Q      ? q_
                     : array == Array::K    ? k_
                     : array == Array::V    ? v_
                     : array == Array::Out  ? out_
                     : array == Array::DOut ? dOut_
                     : array == Array::Dq   ? dq_
                     : array == Array::Dk   ? dk_
                                            : dv_);
  buffer.download();
  std::vector<float> numbers(buffer.bytes() / bytesOf(sizes_.type));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = decode(buffer.as<std::byte>(), i, sizes_.type);
  return numbers;
}

Expectation expectationOf(const std::string& explanation) {
  const auto after = [&](const std::string& what, size_t from) {
    const size_t found = explanation.find(what, from);
    if (found == std::string::npos) throw std::runtime_error("seqparAttnPlanExplain: no " + what);
    return found + what.size();
  };
  const auto text = [&](const std::string& key) {
    const size_t begin = after('"' + key + "\": \"", 0);
    return explanation.substr(begin, explanation.find('"', begin) - begin);
  };
  Expectation expectation;
  expectation.algorithm = text("algorithm");
  expectation.block = text("block");
  const size_t candidate = after("\"algorithm\": \"" + expectation.algorithm + '"', after("\"candidates\"", 0));
  const auto number = [&](const char* key) {
    return std::stod(explanation.substr(after(std::string("\"") + key + "\": ", candidate)));
  };
  expectation.forwardUs = number("forwardUs");
  expectation.backwardUs = number("backwardUs");
  expectation.bytes = number("bytesSent");
  return expectation;
}

LayerPlan::LayerPlan(const seqparAttnDesc_t& desc, Group& group) {
  requireAttn(seqparAttnPlanCreate(&plan_, &desc, group.comm()), "seqparAttnPlanCreate");
  try {
    requireAttn(seqparAttnPlanWorkspaceSize(plan_, &workspace_), "seqparAttnPlanWorkspaceSize");
    size_t reserve = 0;
    requireAttn(seqparAttnPlanReserveSize(plan_, &reserve), "seqparAttnPlanReserveSize");
    if (reserve > 0) reserve_ = std::make_unique<Buffer>(reserve, group.comm());
    requireAttn(seqparAttnPlanPrepare(plan_, nullptr, 0), "seqparAttnPlanPrepare");
  } catch (...) {
    seqparAttnPlanDestroy(plan_);
    throw;
  }
}

LayerPlan::~LayerPlan() {
  seqparAttnPlanDestroy(plan_);
}

Expectation LayerPlan::expectation() const {
  size_t bytes = 0;
  requireAttn(seqparAttnPlanExplain(plan_, nullptr, &bytes), "seqparAttnPlanExplain");
  std::string text(bytes, '\0');
  requireAttn(seqparAttnPlanExplain(plan_, text.data(), &bytes), "seqparAttnPlanExplain");
  return expectationOf(text);
}

seqparLayout_t LayerPlan::layout() const {
  seqparLayout_t layout = SEQPAR_LAYOUT_INITIALIZER;
  requireAttn(seqparAttnPlanLayout(plan_, &layout, nullptr), "seqparAttnPlanLayout");
  return layout;
}

Work passWork(const std::shared_ptr<LayerPlan>& plan, const std::shared_ptr<Layer>& layer, Pass pass, void* stream) {
  Work work;
  auto forward = layer->forward();
  auto backward = layer->backward();
  forward.reserve = plan->reserve();
  backward.reserve = plan->reserve();
  work.prepare = [=] {
    layer->corrupt(pass);
    if (pass == kBackward) requireAttn(seqparAttnForward(plan->get(), &forward, stream), "seqparAttnForward");
  };
  work.run = [=] {
    if (pass != kBackward) requireAttn(seqparAttnForward(plan->get(), &forward, stream), "seqparAttnForward");
    if (pass != kForward) requireAttn(seqparAttnBackward(plan->get(), &backward, stream), "seqparAttnBackward");
  };
  work.wrong = [layer, pass] { return layer->wrong(pass); };
  return work;
}

}  // namespace seqpar::perf
