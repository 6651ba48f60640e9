// seqpar_measure: writes a machine file of seqpar_sim from the machine that it runs on.
#include <fstream>
#include <stdexcept>

#include "machine_file.h"

namespace seqpar::perf {
namespace {

std::string nameOfFile(const std::string& path) {
  const size_t begin = path.find_last_of('/') + 1;
  const size_t end = path.rfind(".json");
  return path.substr(begin, end == std::string::npos || end < begin ? end : end - begin);
}

void measureMachine(Session& session, const std::string& path, const std::string& about, bool quick) {
  Samples samples(session, quick);
  const Json parts = samples.onGpu() ? gpuMachine(samples) : hostMachine(samples);
  if (session.group.rank() != 0) return;
  Json file{{"name", nameOfFile(path)}, {"about", about}};
  file.update(parts);
  std::ofstream out(path);
  out << file.dump(1) << "\n";
  if (!out.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace
}  // namespace seqpar::perf

int main(int argc, char** argv) {
  using namespace seqpar::perf;
  std::string path = "machine.json", about = "measured by seqpar_measure";
  bool quick = false;
  Program program;
  program.name = "seqpar_measure";
  program.summary =
      "Measures links, All-Scan and kernels of this machine and writes a machine file of seqpar_sim. Ranks are "
      "threads:\n"
      "two on an idle host, on two GPUs with -g 2. Takes about a minute.";
  program.knowsGpus = true;
  program.hasPeers = false;
  program.layout = [] { return Layout{{{"what", "", 40}}, false, {}}; };
  program.addOptions = [&](OptionParser& parser) {
    parser.add('o', "output", "FILE", "the file to write (machine.json)",
               [&](const std::string& text) { path = text; });
    parser.add(0, "about", "TEXT", "a description of the machine in the file",
               [&](const std::string& text) { about = text; });
    parser.add(0, "quick", "", "few and short loops and small shapes: a file for tests only",
               [&](const std::string&) { quick = true; });
  };
  program.checkOptions = [](Settings& settings) {
    if (!settings.gpu) settings.blocking = Blocking::Each;
  };
  program.body = [&](Session& session) { measureMachine(session, path, about, quick); };
  return runProgram(program, argc, argv);
}
