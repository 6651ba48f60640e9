#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/ranks.h"
#include "fault/lifetimes.h"

namespace seqpar::test {
namespace {

constexpr int kStreams = 5, kEvents = 4, kSteps = 60;

/// Streams and events of several threads. A stream's owner synchronizes and destroys it, and launches work that fails.
struct Table {
  std::array<std::atomic<seqparStream_t>, kStreams> streams{};
  std::array<std::atomic<seqparEvent_t>, kEvents> events{};
  std::array<std::atomic<int>, kStreams> failures{};
  std::atomic<int> launched{0}, ran{0};
  std::atomic<bool> refused{false};  ///< work could not report its failure
  /// Streams and events are replaced. Work has no objects of its own then: a call with a handle that was destroyed
  /// since its read could reach them, and let work wait for itself.
  bool replaces = false;
};

enum class Kind { Nothing, Fail, Launch, OwnObjects, Query, Pause, Count };

struct Work {
  Table* table;
  Kind kind;
  seqparStream_t own;
  int index;
  unsigned seed;
};

void run(void* argument);

seqparResult_t launch(const Work& work) {
  auto made = std::make_unique<Work>(work);
  const auto result = seqparStreamLaunch(work.own, run, made.get());
  if (result != seqparSuccess) return result;
  static_cast<void>(made.release());
  ++work.table->launched;
  return result;
}

/// A stream and an event of one piece of work, destroyed in either order with work pending.
void useOwnObjects(Table& table, Random& random) {
  seqparStream_t stream = nullptr;
  seqparEvent_t event = nullptr;
  if (seqparStreamCreate(&stream) != seqparSuccess || seqparEventCreate(&event) != seqparSuccess) return;
  for (int i = draw(random, 3); i >= 0; --i) launch({&table, Kind::Nothing, stream, 0, 0});
  seqparEventRecord(event, stream);
  if (draw(random, 2) == 0) seqparEventSynchronize(event);
  const bool early = draw(random, 2) == 0;
  if (early) seqparEventDestroy(event);
  seqparStreamDestroy(stream);
  if (early) return;
  seqparEventSynchronize(event);
  seqparEventDestroy(event);
}

void run(void* argument) {
  const std::unique_ptr<Work> work(static_cast<Work*>(argument));
  Table& table = *work->table;
  Random random(work->seed + 1);
  switch (work->kind) {
    case Kind::Fail:
      if (seqparStreamFail(work->own, seqparSystemError, "work failed") == seqparSuccess) {
        ++table.failures[static_cast<size_t>(work->index)];
      } else {
        table.refused = true;
      }
      break;
    case Kind::Launch: {
      const int index = draw(random, kStreams);
      const seqparStream_t other = table.streams[static_cast<size_t>(index)];
      if (other != work->own) launch({&table, Kind::Nothing, other, index, 0});
      break;
    }
    case Kind::OwnObjects:
      if (!table.replaces) useOwnObjects(table, random);
      break;
    case Kind::Query:
      seqparStreamQuery(table.streams[static_cast<size_t>(draw(random, kStreams))]);
      seqparEventQuery(table.events[static_cast<size_t>(draw(random, kEvents))]);
      break;
    case Kind::Pause:
      std::this_thread::sleep_for(std::chrono::microseconds(draw(random, 200)));
      break;
    default:
      break;
  }
  ++table.ran;
}

/// Handles may be destroyed by another thread between their read and their use.
void expectKnown(seqparResult_t result, const char* call) {
  const std::string text = seqparGetLastError(nullptr);
  const bool known = result == seqparSuccess || result == seqparInProgress ||
                     (result == seqparInvalidArgument && text.find(", expected a") != std::string::npos) ||
                     (result == seqparSystemError && text.ends_with(": work failed"));
  expect(known, call, " returned ", static_cast<int>(result), ": ", text);
}

void replaceStream(Table& table, size_t index) {
  expectSuccess(seqparStreamDestroy(table.streams[index]), "seqparStreamDestroy");
  seqparStream_t made = nullptr;
  expectSuccess(seqparStreamCreate(&made), "seqparStreamCreate");
  table.streams[index] = made;
}

void replaceEvent(std::atomic<seqparEvent_t>& event) {
  seqparEvent_t made = nullptr;
  expectSuccess(seqparEventCreate(&made), "seqparEventCreate");
  expectSuccess(seqparEventDestroy(event.exchange(made)), "seqparEventDestroy");
}

void useTable(Table& table, int thread, int threads, unsigned seed) {
  Random random(seed * 7919 + static_cast<unsigned>(thread) + 1);
  std::array<int, kStreams> reported{};
  for (int step = 0; step < kSteps; ++step) {
    const int number = draw(random, kStreams);
    const auto index = static_cast<size_t>(number);
    const bool owned = number % threads == thread;
    const seqparStream_t stream = table.streams[index];
    auto& slot = table.events[static_cast<size_t>(draw(random, kEvents))];
    const seqparEvent_t event = slot;
    switch (draw(random, 10)) {
      case 0:
        expectKnown(seqparEventRecord(event, stream), "seqparEventRecord");
        break;
      case 1:
        expectKnown(seqparStreamWaitEvent(stream, event), "seqparStreamWaitEvent");
        break;
      case 2:
        expectKnown(seqparEventSynchronize(event), "seqparEventSynchronize");
        break;
      case 3:
        expectKnown(seqparEventQuery(event), "seqparEventQuery");
        break;
      case 4:
        if (owned) {
          const int before = table.failures[index];
          const auto result = seqparStreamSynchronize(stream);
          expectKnown(result, "seqparStreamSynchronize");
          expect(result != seqparSuccess || before == reported[index], "an error of a stream's work was lost");
          reported[index] = table.failures[index];
        }
        break;
      case 5:
        if (table.replaces && owned && draw(random, 2) == 0) {
          replaceStream(table, index);
          reported[index] = table.failures[index];
        }
        break;
      case 6:
        if (table.replaces && draw(random, 3) == 0) replaceEvent(slot);
        break;
      default: {
        auto kind = static_cast<Kind>(draw(random, static_cast<int>(Kind::Count)));
        if (kind == Kind::Fail && !owned) kind = Kind::Nothing;
        expectKnown(launch({&table, kind, stream, number, static_cast<unsigned>(random())}), "seqparStreamLaunch");
      }
    }
  }
}

}  // namespace

void shareStreams(unsigned seed) {
  Random random(seed);
  Table table;
  table.replaces = draw(random, 2) == 0;
  for (auto& stream : table.streams) {
    seqparStream_t made = nullptr;
    expectSuccess(seqparStreamCreate(&made), "seqparStreamCreate");
    stream = made;
  }
  for (auto& event : table.events) {
    seqparEvent_t made = nullptr;
    expectSuccess(seqparEventCreate(&made), "seqparEventCreate");
    event = made;
  }
  const int threads = 2 + draw(random, 3);
  std::string wrong = onThreads(threads, [&](int thread) { useTable(table, thread, threads, seed); });
  // Work may launch on other streams: all are idle before any of them is destroyed.
  for (int round = 0; round < 2; ++round) {
    for (auto& stream : table.streams) seqparStreamSynchronize(stream);
  }
  wrong += onThreads(kStreams + kEvents, [&](int object) {
    const auto index = static_cast<size_t>(object);
    if (object < kStreams) return expectSuccess(seqparStreamDestroy(table.streams[index]), "seqparStreamDestroy");
    expectSuccess(seqparEventDestroy(table.events[index - kStreams]), "seqparEventDestroy");
  });
  expect(wrong.empty(), wrong);
  expect(!table.refused, "work could not report its failure");
  expect(table.launched == table.ran, "of ", table.launched, " launched functions ", table.ran, " ran");
}

}  // namespace seqpar::test
