// Derives a machine file of seqpar_sim from samples.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "samples.h"

namespace seqpar::perf {

using Json = nlohmann::ordered_json;

/// Values with at most four digits, and where they are from.
Json number(double value, const std::string& source);
Json curve(const std::vector<std::pair<double, double>>& points, const std::string& source);
std::string measured(const std::string& what);

/// The network is not measured: numbers of a vendor's adapter as guesses.
Json guessedNetwork(double gbs);

/// Kernels of softmax attention, by the keys of the file with a prefix for the type.
void addSoftmax(Json& softmax, Samples& samples, int type, const std::string& prefix, size_t heads,
                const std::vector<size_t>& tokens);
/// Families of linear attention; families without kernels here are left out.
Json linearFamilies(Samples& samples, int type, size_t heads, const std::vector<size_t>& tokens);

/// Collective. The parts of the file that describe ranks on hosts, or on two GPUs.
Json hostMachine(Samples& samples);
Json gpuMachine(Samples& samples);

}  // namespace seqpar::perf
