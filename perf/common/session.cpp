#include "session.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "buffer.h"
#include "launch.h"

namespace seqpar::perf {
namespace {

constexpr int kExitUsage = 2;

void complain(const std::string& program, const char* text) {
  std::fprintf(stderr, "%s: %s\n", program.c_str(), text);
}

std::string describe(const Row& row) {
  std::string text = std::to_string(row.bytes) + " bytes";
  for (const std::string& label : row.labels) text += " " + label;
  return text;
}

/// The stream of a session on the host; none for blocking calls.
class HostStream {
 public:
  explicit HostStream(bool requested) {
    if (requested) require(seqparStreamCreate(&stream_), "seqparStreamCreate");
  }
  ~HostStream() { seqparStreamDestroy(stream_); }
  HostStream(const HostStream&) = delete;
  HostStream& operator=(const HostStream&) = delete;
  void* get() const { return stream_; }

 private:
  seqparStream_t stream_ = nullptr;
};

void checkGpus(const Program& program, const Settings& settings) {
  if (!settings.gpu) return;
  if (!program.knowsGpus) throw UsageError("option --device: " + program.name + " works on host memory only");
  const int found = gpuCount();
  const int requested = settings.gpus > 0 ? settings.gpus : settings.devices > 0 ? ranksHere(settings) : 1;
  if (requested + std::max(settings.firstGpu, 0) > found) {
    throw UsageError("option " + std::string(settings.gpus > 0 ? "--gpus" : "-g") + ": " + std::to_string(requested) +
                     " GPUs were asked for" +
                     (settings.firstGpu > 0 ? " from " + std::to_string(settings.firstGpu) + " on" : "") +
                     ", but there are " + std::to_string(found) + "; with --gpus N ranks share N GPUs");
  }
}

/// MPI peers need one rank per process, under mpirun.
void checkPeers(const Program& program, const Settings& settings) {
  if (!settings.peers) return;
  if (!program.hasPeers) throw UsageError("option --peers: " + program.name + " has none");
  if (settings.gpu) return;
  if (launchMode() != LaunchMode::Mpi || ranksHere(settings) != 1 || !settings.split.empty()) {
    throw UsageError(
        "option --peers: MPI is not there; start with mpirun a build that has MPI, with one rank a process and without "
        "NCCL_TESTS_SPLIT");
  }
}

}  // namespace

void Session::wait() {
  if (stream == nullptr) return;
  if (group.gpu() != nullptr) return group.gpu()->synchronize();
  require(seqparStreamSynchronize(static_cast<seqparStream_t>(stream)), "seqparStreamSynchronize", group.comm());
}

std::vector<Row> Session::measure(std::vector<Case>& cases) {
  std::vector<Work> works;
  std::vector<const Row*> rows;
  for (Case& entry : cases) {
    works.push_back(entry.outOfPlace);
    rows.push_back(&entry.row);
    if (!entry.inPlace) continue;
    works.push_back(*entry.inPlace);
    rows.push_back(&entry.row);
  }
  if (stream != nullptr) {
    for (Work& work : works) {
      if (!work.finish) work.finish = [this] { wait(); };
    }
  }
  size_t done = 0;
  const std::vector<Timing> timings =
      perf::measure(works, group, settings, [&] { report.progress(describe(*rows[done++ % rows.size()])); });
  std::vector<Row> measured;
  size_t next = 0;
  for (const Case& entry : cases) {
    measured.push_back(entry.row);
    measured.back().outOfPlace = timings[next++];
    if (entry.inPlace) measured.back().inPlace = timings[next++];
  }
  return measured;
}

int runProgram(const Program& program, int argc, char** argv) {
  Settings settings;
  try {
    OptionParser parser(program.name, program.summary);
    settings.addTo(parser, program.defaultBytes);
    parser.group("Options of " + program.name);
    program.addOptions(parser);
    settings.addIgnoredTo(parser);
    if (!parser.parse(std::span(argv, static_cast<size_t>(argc)).subspan(1))) {
      if (speaks()) std::fputs(parser.help().c_str(), stdout);
      return EXIT_SUCCESS;
    }
    settings.finish(program.defaultBytes);
    checkGpus(program, settings);
    checkPeers(program, settings);
    if (program.checkOptions) program.checkOptions(settings);
  } catch (const UsageError& error) {
    if (speaks()) complain(program.name, error.what());
    return kExitUsage;
  }
  Buffer::misaligned = settings.unalign * sizeof(float);
  std::atomic<bool> failed = false;
  try {
    launch(settings, [&](Group& group) {
      Report report(program.name, std::vector<std::string>(argv, argv + argc), settings, program.layout(),
                    group.rank() != 0 || !speaks());
      report.header(group);
      const HostStream hostStream(!settings.blockingCalls() && !settings.gpu);
      Session session{group, settings, report, settings.gpu ? group.gpu()->stream() : hostStream.get()};
      if (group.size() < program.leastRanks) {
        throw std::runtime_error(program.name + " needs at least " + std::to_string(program.leastRanks) +
                                 " ranks, but was given " + std::to_string(group.size()));
      }
      for (int cycle = 0; settings.cycles == 0 || cycle < settings.cycles; ++cycle) program.body(session);
      report.footer(group);
      if (report.failed()) failed = true;
    });
  } catch (const std::exception& error) {
    complain(program.name, error.what());
    return EXIT_FAILURE;
  }
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace seqpar::perf
