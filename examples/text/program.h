// main() of the text examples: options, ranks, exit statuses 2 (bad arguments) and 3 (a call failed).
#pragma once

#include <functional>
#include <iostream>
#include <stdexcept>

#include "launch.h"
#include "options.h"

inline int runProgram(const char* name, const char* usage, const std::function<Options()>& parse,
                      const std::function<int(const Options&, seqparComm_t)>& runRank) {
  Options options;
  try {
    options = parse();
  } catch (const std::invalid_argument& error) {
    std::cerr << name << ": " << error.what() << '\n' << usage;
    return 2;
  }
  try {
    return launch(options.ranks, [&](seqparComm_t comm) { return runRank(options, comm); });
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << '\n';
    return 3;
  }
}
