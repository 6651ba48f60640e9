#include "cases.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <stdexcept>

#include "scan/registry.h"
#include "seqpar/seqpar.h"

namespace seqpar::sim {
namespace {

/// Scores of a causal mask of more tokens exceed 64 bits.
constexpr int64_t kMostTokens = int64_t{1} << 31;

/// `others`: names of the other kind of attention are known too, but not returned.
std::vector<int> attentionAlgorithms(const std::string& list, bool softmax, bool others) {
  const auto all = algorithmsFor(softmax);
  if (list == "all") return all;
  if (list == "auto") return {};
  std::vector<int> ids;
  const auto add = [&](const std::vector<int>& from, const std::string& name) {
    for (const int id : from) {
      if (name == seqparAttnAlgorithmName(id)) return ids.push_back(id), true;
    }
    return false;
  };
  for (const auto& name : split("--algo", list)) {
    if (add(all, name)) continue;
    const auto known = ids.size();
    if (others && add(algorithmsFor(!softmax), name)) {
      ids.resize(known);
      continue;
    }
    std::string names;
    for (const int id : all) names += std::string(", ") + seqparAttnAlgorithmName(id);
    throw std::invalid_argument("--algo " + name + " is no algorithm of " + (softmax ? "softmax" : "linear") +
                                " attention, expected all, or auto alone, or of" + names.substr(1));
  }
  return ids;
}

std::string ranksText(const Machine& machine) {
  return (machine.onHosts() ? "ranks of " : "GPUs of ") + machine.name;
}

}  // namespace

void keepTimeline(const std::vector<Row>& rows, bool forwardOnly, std::vector<Timeline>& timelines) {
  const Row* best = nullptr;
  for (const auto& row : rows) {
    if (!row.outcome.refusal.empty()) continue;
    const bool faster = best == nullptr || timeOf(row.outcome, forwardOnly) < timeOf(best->outcome, forwardOnly);
    if (row.chosen || (faster && (best == nullptr || !best->chosen))) best = &row;
  }
  if (best != nullptr) {
    const bool same = best->operation == best->name();
    timelines.push_back({same ? best->name() : best->operation + " " + best->name(), best->outcome.spans});
  }
}

namespace {

/// All algorithms of one kind of attention, and the choice of `auto`.
std::vector<Row> runAttention(const Machine& machine, const Options& options, const Model& model, bool softmax,
                              int ranks, int64_t tokens, std::vector<Timeline>& timelines) {
  Case given;
  given.ranks = ranks;
  given.desc = attentionOf(model, softmax, tokens, options.mask == "full");
  given.desc.training = options.forwardOnly() ? 0 : 1;
  given.desc.dataType = options.type == "fp32" ? seqparFloat32 : seqparBfloat16;
  given.desc.wireType = options.wire == "bf16" ? seqparBfloat16 : seqparFloat32;
  given.desc.reserve = options.reserve ? 1 : 0;
  given.layout = options.layout == "contiguous" ? seqparContiguous
                 : options.layout == "zigzag"   ? seqparZigzag
                 : options.layout == "striped"  ? seqparStriped
                                                : -1;
  std::string explain;
  given.desc.inner = options.inner.front();
  const bool hybrid = model.softmaxLayers > 0 && model.linearLayers > 0;
  auto ids = attentionAlgorithms(options.algo, softmax, hybrid);
  const std::string choice = chosen(machine, given, explain);
  if (options.algo == "auto") ids = attentionAlgorithms(choice, softmax, false);
  std::cout << "\n"
            << (softmax ? "softmax" : "linear") << " attention, " << tokens << " tokens, " << ranks << " "
            << ranksText(machine) << "\n";
  if (options.choose) ids.clear();
  given.traced = options.trace.empty() ? 0 : options.traced;
  given.ordered = !options.order.empty();
  given.mapped = options.mapped;
  std::vector<Row> rows;
  for (const int id : ids) {
    for (const int inner : options.inner) {
      given.desc.algorithm = id;
      given.desc.inner = inner;
      Row row;
      row.ranks = ranks;
      row.operation = softmax ? "softmax" : "linear";
      row.size = tokens;
      row.inner = options.inner.size() > 1 ? inner : 0;
      row.outcome = run(machine, given);
      row.chosen = row.outcome.algorithm == choice && inner == options.inner.front();
      rows.push_back(std::move(row));
    }
  }
  if (!options.trace.empty()) keepTimeline(rows, options.forwardOnly(), timelines);
  for (auto& row : rows) row.outcome.spans.clear();
  writeChoice(std::cout, choice, explain, rows, options.forwardOnly());
  if (options.explain) std::cout << explain << "\n";
  return rows;
}

/// tokens/s of a GPU for each algorithm: its attention in all layers of its kind, the other kind's by `auto`.
void estimateModel(const Machine& machine, const Options& options, const Model& model, std::vector<Row>& softmax,
                   std::vector<Row>& linear, int ranks, int64_t tokens) {
  const double local = static_cast<double>(tokens) / ranks;
  const double others = otherWorkUs(model, machine, local, options.forwardOnly());
  const auto attention = [&](const Row& row) {
    return options.forwardOnly() ? row.outcome.forwardUs : row.outcome.stepUs;
  };
  const auto ofChoice = [&](const std::vector<Row>& rows) {
    double least = -1;
    for (const auto& row : rows) {
      if (row.chosen && row.outcome.refusal.empty()) return attention(row);
      const bool usable = row.outcome.refusal.empty() && row.outcome.algorithm != "local";
      if (usable && (least < 0 || attention(row) < least)) least = attention(row);
    }
    return least;
  };
  const auto fill = [&](std::vector<Row>& rows, int64_t layers, const std::vector<Row>& rest, int64_t restLayers) {
    const double fixed = restLayers == 0 ? 0 : static_cast<double>(restLayers) * ofChoice(rest);
    for (auto& row : rows) {
      if (!row.outcome.refusal.empty() || fixed < 0) continue;
      row.tokensPerSecond = local / (static_cast<double>(layers) * attention(row) + fixed + others) * 1e6;
    }
  };
  fill(softmax, model.softmaxLayers, linear, model.linearLayers);
  fill(linear, model.linearLayers, softmax, model.softmaxLayers);
}

/// The sizes of --scan, --ring or --exchange; an operation before them is stored.
std::vector<int64_t> sizesOf(const Options& options, const std::vector<std::string>& operations,
                             std::string& operation) {
  const std::string option = options.collective(), &text = options.collectiveText();
  auto parts = split(option, text);
  if (!operations.empty()) {
    operation = parts.front();
    parts.erase(parts.begin());
    if (parts.empty() || std::find(operations.begin(), operations.end(), operation) == operations.end()) {
      std::string names;
      for (const auto& name : operations) names += (names.empty() ? "" : ", ") + name;
      throw std::invalid_argument(option + " " + text + " is not OP,BYTES,..., expected an OP of " + names +
                                  " and sizes, such as " + operations.front() + ",64K,1M");
    }
  }
  std::vector<int64_t> sizes;
  for (const auto& part : parts) sizes.push_back(parseSize(option, part));
  return sizes;
}

/// A case of a collective.
Case collectiveCase(const Options& options, int ranks) {
  Case given;
  given.ranks = ranks;
  given.ordered = !options.order.empty();
  given.traced = options.trace.empty() ? 0 : options.traced;
  given.calls = options.calls;
  given.mapped = options.mapped;
  return given;
}

/// The rows of All-Scan that --algo names; all if it is "auto".
std::vector<int> scanAlgorithmsOf(const Options& options) {
  std::vector<int> ids;
  std::string names;
  for (const auto& row : seqpar::scanAlgorithms()) {
    names += (names.empty() ? "" : ", ") + std::string(row.name);
    if (options.algo == "all" || options.algo == "auto") ids.push_back(row.id);
  }
  if (!ids.empty()) return ids;
  for (const auto& name : split("--algo", options.algo)) {
    const auto known = ids.size();
    for (const auto& row : seqpar::scanAlgorithms()) {
      if (name == row.name) ids.push_back(row.id);
    }
    if (ids.size() == known)
      throw std::invalid_argument("--algo " + name +
                                  " is no algorithm of All-Scan, expected all, or auto alone, or of " + names);
  }
  return ids;
}

void writeCollective(const Machine& machine, const std::vector<Row>& rows) {
  const auto& row = rows.front();
  std::cout << "\n"
            << row.operation << ", " << row.size << " bytes, " << row.ranks << " " << ranksText(machine) << "\n";
  writeTable(std::cout, rows, true);
}

}  // namespace

std::vector<Row> runScans(const Machine& machine, const Options& options, int ranks) {
  std::vector<Row> all;
  const std::vector<std::string> ops{"sum", "scalar", "diag", "matrix"};
  std::string operation;
  const auto sizes = sizesOf(options, ops, operation);
  const auto ids = scanAlgorithmsOf(options);
  for (const int64_t size : sizes) {
    if (size < 4)
      throw std::invalid_argument("--scan " + options.scan + ": a state of " + std::to_string(size) +
                                  " bytes, expected 4 or more");
    std::vector<Row> rows;
    Case given = collectiveCase(options, ranks);
    given.scanBytes = size;
    given.scan.op = static_cast<int>(std::find(ops.begin(), ops.end(), operation) - ops.begin());
    given.scan.bounded = 1;
    Case free = given;
    free.calls = 1;
    const auto choice = run(machine, free);
    if (!choice.refusal.empty()) throw std::invalid_argument("--scan " + options.scan + ": " + choice.refusal);
    for (const int id : ids) {
      const std::string name = seqparScanAlgorithmName(id);
      if (options.algo == "auto" && name != choice.algorithm) continue;
      given.scan.algorithm = id;
      Row out;
      out.ranks = ranks;
      out.operation = "scan " + operation;
      out.size = given.scanBytes;
      out.outcome = run(machine, given);
      out.outcome.algorithm = name;
      out.chosen = choice.algorithm == name;
      rows.push_back(std::move(out));
    }
    writeCollective(machine, rows);
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

std::vector<Row> runTransfers(const Machine& machine, const Options& options, int ranks) {
  std::vector<Row> rows;
  Case given = collectiveCase(options, ranks);
  const bool ring = !options.ring.empty();
  for (const int64_t size : sizesOf(options, ring ? std::vector<std::string>() : exchangeNames(), given.exchange)) {
    (ring ? given.ringBytes : given.exchangeBytes) = size;
    Row row;
    row.ranks = ranks;
    row.operation = ring ? "ring" : given.exchange;
    row.size = size;
    row.outcome = run(machine, given);
    writeCollective(machine, {row});
    rows.push_back(std::move(row));
  }
  return rows;
}

namespace {

/// The time of all layers with the choices of auto.
void writeWholeModel(const Options& options, const Model& model, const std::vector<Row>& softmax,
                     const std::vector<Row>& linear, int ranks, int64_t tokens) {
  double attentionUs = 0, speed = 0;
  for (const auto& [rows, layers] : {std::pair(&softmax, model.softmaxLayers), {&linear, model.linearLayers}}) {
    if (layers == 0) continue;
    const auto chosen = std::find_if(rows->begin(), rows->end(), [](const Row& row) { return row.chosen; });
    if (chosen == rows->end() || chosen->tokensPerSecond == 0) return;
    attentionUs += static_cast<double>(layers) * timeOf(chosen->outcome, options.forwardOnly());
    speed = chosen->tokensPerSecond;
  }
  const double us = static_cast<double>(tokens) / ranks / speed * 1e6;
  char text[160];
  std::snprintf(text, sizeof(text),
                "\n%s with auto: a %s of %lld tokens takes %.3g s, %.0f %% of it attention; %.0f tokens/s\n",
                model.name.c_str(), options.forwardOnly() ? "forward" : "step", static_cast<long long>(tokens),
                us * 1e-6, attentionUs / us * 100, static_cast<double>(tokens) / us * 1e6);
  std::cout << text;
}

}  // namespace

std::vector<Row> runModel(const Machine& machine, const Options& options, const Model& model, int ranks, int64_t tokens,
                          std::vector<Timeline>& timelines) {
  if (tokens > kMostTokens || tokens % (int64_t{2} * ranks) != 0) {
    throw std::invalid_argument("--tokens: " + std::to_string(tokens) + " tokens on " + std::to_string(ranks) +
                                " ranks, expected at most " + std::to_string(kMostTokens) +
                                ", and a multiple of twice the ranks, for shards of equal lengths");
  }
  std::vector<Row> softmax, linear, rows;
  if (model.softmaxLayers > 0) softmax = runAttention(machine, options, model, true, ranks, tokens, timelines);
  if (model.linearLayers > 0) linear = runAttention(machine, options, model, false, ranks, tokens, timelines);
  if (options.choose) return rows;
  estimateModel(machine, options, model, softmax, linear, ranks, tokens);
  for (auto* const kind : {&softmax, &linear}) {
    if (kind->empty()) continue;
    if (!softmax.empty() && !linear.empty()) std::cout << "\n" << kind->front().operation << " attention:\n";
    writeTable(std::cout, *kind, options.forwardOnly());
    rows.insert(rows.end(), kind->begin(), kind->end());
  }
  if (model.softmaxLayers + model.linearLayers > 1) writeWholeModel(options, model, softmax, linear, ranks, tokens);
  return rows;
}

}  // namespace seqpar::sim
