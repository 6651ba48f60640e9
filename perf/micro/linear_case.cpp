#include "linear_case.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "base/convert.h"

namespace seqpar::perf {
namespace {

constexpr size_t kPattern = 1 << 20;  ///< random values; longer tensors repeat them

size_t sizeOfGate(const LinearShape& shape) {
  return sizeOf(static_cast<seqparDataType_t>(shape.gateType));
}

/// Random values of a type, as bytes.
std::vector<std::byte> patternOf(int type, bool gates) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(kPattern);
  for (float& number : numbers) number = gates ? -std::log1p(std::exp(-normal(random))) / 16 : normal(random);
  const auto dataType = static_cast<seqparDataType_t>(type);
  std::vector<std::byte> bytes(kPattern * sizeOf(dataType));
  fromFloat(numbers.data(), bytes.data(), dataType, kPattern);
  return bytes;
}

}  // namespace

std::vector<LinearShape> linearShapes() {
  using attn::Gate;
  std::vector<LinearShape> shapes;
  for (const int64_t tokens : {8192, 32768}) {
    for (const int heads : {32, 16}) {
      shapes.push_back({"channel", Gate::Channel, seqparFloat32, tokens, heads, 128});
      shapes.push_back({"channel bf16", Gate::Channel, seqparBfloat16, tokens, heads, 128});
      shapes.push_back({"token", Gate::Token, seqparFloat32, tokens, heads, 128});
      shapes.push_back({"head", Gate::Head, seqparFloat32, tokens, heads, 128});
      shapes.push_back({"none", Gate::None, seqparFloat32, tokens, heads, 128});
    }
  }
  for (const int dimension : {64, 256}) {
    shapes.push_back({"channel", Gate::Channel, seqparFloat32, 8192, 32, dimension});
    shapes.push_back({"token", Gate::Token, seqparFloat32, 8192, 32, dimension});
  }
  return shapes;
}

LinearCase::LinearCase(const LinearShape& shape, Session& session) : shape_(shape), session_(session) {
  problem_.tokens = shape.tokens;
  problem_.heads = problem_.qkHeads = shape.heads;
  problem_.dk = problem_.dv = shape.dimension;
  problem_.gate = shape.gate;
  problem_.gateType = shape.gateType;
  problem_.scale = 1 / std::sqrt(static_cast<float>(shape.dimension));
  problem_.q = drawn();
  problem_.k = drawn();
  problem_.v = drawn();
  if (shape.gate == attn::Gate::None) return;
  problem_.gates.data = filled(gateBytes(), patternOf(shape.gateType, true));
  if (shape.gate == attn::Gate::Channel) {
    problem_.gates.token = problem_.q.token;
    problem_.gates.head = problem_.q.head;
  } else if (shape.gate == attn::Gate::Token) {
    problem_.gates.token = shape.heads;
    problem_.gates.head = 1;
  }
}

size_t LinearCase::numbers() const {
  return static_cast<size_t>(shape_.tokens * shape_.heads * shape_.dimension);
}

size_t LinearCase::gateBytes() const {
  if (shape_.gate == attn::Gate::Channel) return numbers() * sizeOfGate(shape_);
  if (shape_.gate == attn::Gate::Token) return static_cast<size_t>(shape_.tokens * shape_.heads) * sizeOfGate(shape_);
  return shape_.gate == attn::Gate::Head ? static_cast<size_t>(shape_.heads) * sizeOfGate(shape_) : 0;
}

void* LinearCase::take(size_t bytes) {
  memory_.push_back(std::make_unique<Buffer>(bytes, session_.group.comm()));
  return memory_.back()->data();
}

void* LinearCase::filled(size_t bytes, const std::vector<std::byte>& pattern) {
  auto* const memory = static_cast<std::byte*>(take(bytes));
  size_t done = std::min(bytes, pattern.size());
  gpuCopy(memory, pattern.data(), done);
  while (done < bytes) {
    const size_t more = std::min(done, bytes - done);
    session_.group.gpu()->copy(memory + done, memory, more);
    done += more;
  }
  return memory;
}

attn::Input LinearCase::drawn() {
  static const std::vector<std::byte> pattern = patternOf(seqparBfloat16, false);
  return {filled(numbers() * 2, pattern), 0, int64_t{shape_.heads} * shape_.dimension, shape_.dimension};
}

attn::Output LinearCase::output() {
  return {take(numbers() * 2), 0, problem_.q.token, problem_.q.head};
}

void LinearCase::measure(const attn::Segments& segments, const std::vector<Pass>& passes) {
  for (const Pass& pass : passes) {
    Row row;
    row.bytes = pass.bytes;
    row.count = numbers();
    const auto text = [](int64_t number) { return std::to_string(number); };
    row.labels = {shape_.name, text(shape_.tokens) + "x" + text(shape_.heads) + "x" + text(shape_.dimension),
                  text(segments.count) + "x" + text(segments.tokens), pass.name};
    std::vector<Case> cases{{row, partWork(pass.run), {}}};
    Gpu& gpu = *session_.group.gpu();
    const size_t half = pass.bytes / 2;
    const auto from = std::make_shared<Buffer>(half, session_.group.comm());
    const auto to = std::make_shared<Buffer>(half, session_.group.comm());
    row.labels.back() = "copy";
    cases.push_back({row, partWork([=, &gpu] { gpu.copy(to->data(), from->data(), half); }), {}});
    session_.report.row(measureTogether(session_, cases, RowKind::Limit).front());
  }
}

void LinearCase::must(int error, const char* launch) {
  if (error != 0) throw std::runtime_error(std::string(launch) + ": CUDA error " + std::to_string(error));
}

Program linearProgram(std::string name, std::string summary, void (*body)(LinearCase&, void* stream)) {
  return partProgram(std::move(name), std::move(summary),
                     {{"gates", "", 13, InPlot::Panel},
                      {"shape", "", 13, InPlot::Panel},
                      {"segments", "", 9, InPlot::Panel},
                      {"pass", "", 12}},
                     {{"of copy", "(%)", 9}}, true, [body](Session& session) {
                       for (const LinearShape& shape : linearShapes()) {
                         LinearCase mine(shape, session);
                         body(mine, session.stream);
                       }
                     });
}

}  // namespace seqpar::perf
