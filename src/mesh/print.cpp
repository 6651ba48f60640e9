#include "mesh/print.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <span>

#include "base/error.h"
#include "mesh/simulate.h"

namespace seqpar {
namespace {

constexpr std::array<const char*, SEQPAR_MESH_OPERATIONS> kNames{"compute", "recv_q",  "recv_kv", "recv_odoq",
                                                                 "send_o",  "send_dq", "send_dkv"};

const char* passName(seqparMeshPass_t pass) {
  return pass == seqparMeshForward ? "forward" : "backward";
}

/// Microseconds with three decimals, in any locale.
std::string us(double seconds) {
  const auto nanoseconds = std::llround(seconds * 1e9);
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%lld.%03lld", nanoseconds / 1000, nanoseconds % 1000);
  return digits.data();
}

std::string padded(std::string text, size_t width) {
  if (text.size() < width) text.insert(0, width - text.size(), ' ');
  return text;
}

std::span<const seqparMeshTile_t> tilesOf(const MeshSchedule& schedule, const seqparMeshStep_t& step) {
  return std::span(schedule.tiles).subspan(static_cast<size_t>(step.firstTile), static_cast<size_t>(step.tileCount));
}

size_t placeOf(MeshShape shape, int row, int column) {
  return static_cast<size_t>(row) * static_cast<size_t>(shape.b) + static_cast<size_t>(column);
}

/// The grid of tiles, each with the number of the step that computes it.
std::string grid(const MeshSchedule& schedule) {
  constexpr size_t kWidth = 6;
  std::vector<size_t> stepOf(schedule.tiles.size(), 0);
  for (size_t s = 0; s < schedule.steps.size(); ++s) {
    for (const auto& tile : tilesOf(schedule, schedule.steps[s])) {
      stepOf[placeOf(schedule.shape, tile.q, tile.kv)] = s;
    }
  }
  std::string text(kWidth, ' ');
  for (int column = 0; column < schedule.shape.b; ++column) text += padded(concat("KV#", column), kWidth);
  text += '\n';
  for (int row = 0; row < schedule.shape.a; ++row) {
    text += padded(concat("Q#", row), kWidth);
    for (int column = 0; column < schedule.shape.b; ++column) {
      text += padded(std::to_string(stepOf[placeOf(schedule.shape, row, column)]), kWidth);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

const char* meshOperationName(int operation) {
  return kNames.at(static_cast<size_t>(operation));
}

std::string scheduleJson(const MeshSchedule& schedule, const MeshCosts& costs) {
  const auto timing = simulate(schedule, costs);
  std::string text =
      concat("{\"pass\":\"", passName(schedule.pass), "\",\"a\":", schedule.shape.a, ",\"b\":", schedule.shape.b,
             ",\"total_us\":", us(timing.total), ",\"exposed_us\":", us(timing.exposed), ",\"steps\":[");
  const char* comma = "";
  for (const auto& step : schedule.steps) {
    const auto one = stepTiming(step, costs);
    text += concat(comma, "{\"operation\":\"", meshOperationName(step.operation), "\",\"index\":", step.index,
                   ",\"communication_us\":", us(one.communication), ",\"computation_us\":", us(one.computation),
                   ",\"tiles\":[");
    comma = "";
    for (const auto& tile : tilesOf(schedule, step)) {
      text += concat(comma, "[", tile.q, ",", tile.kv, "]");
      comma = ",";
    }
    text += "]}";
    comma = ",";
  }
  return text + "]}";
}

std::string scheduleDiagram(const MeshSchedule& schedule, const MeshCosts& costs) {
  const auto timing = simulate(schedule, costs);
  std::string text = concat("mesh ", schedule.shape.a, " x ", schedule.shape.b, ", ", passName(schedule.pass), ": ",
                            us(timing.total), " us, ", us(timing.exposed), " us exposed communication\n\n");
  text += concat("The step that computes each tile:\n", grid(schedule),
                 "\nstep  moves           us   computes us  tiles\n");
  for (size_t s = 0; s < schedule.steps.size(); ++s) {
    const auto& step = schedule.steps[s];
    const auto one = stepTiming(step, costs);
    const bool moves = step.operation != seqparMeshCompute;
    std::string name = moves ? concat(meshOperationName(step.operation), " ", step.index) : "-";
    name.resize(12, ' ');
    text += concat(padded(std::to_string(s), 4), "  ", name, padded(us(one.communication), 6),
                   padded(us(one.computation), 14), " ");
    for (const auto& tile : tilesOf(schedule, step)) text += concat(" (", tile.q, ",", tile.kv, ")");
    text += '\n';
  }
  return text;
}

}  // namespace seqpar
