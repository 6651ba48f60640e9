#include "machine_file.h"

#include <cmath>
#include <cstdio>
#include <ctime>

#include "common/values.h"

namespace seqpar::perf {
namespace {

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return std::stod(text);
}

/// The scan's part of ZECO that no kernel of the passes contains.
double scanUs(Samples& samples, int family, size_t heads) {
  constexpr size_t kStateOfHead = size_t{128} * 128 * sizeof(float);
  seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
  requireAttn(seqparAttnFamilyQuery(family, &info), "seqparAttnFamilyQuery");
  const int op = info.transition == seqparScanMatrix ? seqparScanMatrix : seqparScanDiag;
  return samples.scan(op, seqparScanAuto, heads * kStateOfHead);
}

}  // namespace

Json number(double value, const std::string& source) {
  return {{"value", rounded(value)}, {"source", source}};
}

Json curve(const std::vector<std::pair<double, double>>& points, const std::string& source) {
  Json list = Json::array();
  for (const auto& [x, y] : points) list.push_back({x, rounded(y)});
  return {{"points", std::move(list)}, {"source", source}};
}

std::string measured(const std::string& what) {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", &utc);
  return std::string("measured ") + date + ": " + what;
}

Json guessedNetwork(double gbs) {
  return {{"alpha_us", number(6, "guess")},
          {"overhead_us", number(4.7, "guess")},
          {"gbs", number(gbs, "guess")},
          {"oversubscription", number(1, "guess")},
          {"leaf_nodes", number(4, "guess")}};
}

void addSoftmax(Json& softmax, Samples& samples, int type, const std::string& prefix, size_t heads,
                const std::vector<size_t>& tokens) {
  constexpr double kDims = 256;  // of a key and a value
  for (const int mask : {seqparAttnFull, seqparAttnCausal}) {
    for (const Pass pass : {kForward, kBackward}) {
      std::vector<std::pair<double, double>> points;
      for (const size_t count : tokens) {
        const auto n = static_cast<double>(count);
        const double scores = mask == seqparAttnFull ? n * n : n * (n + 1) / 2;
        const double flops = (pass == kForward ? 2 : 5) * scores * static_cast<double>(heads) * kDims;
        points.emplace_back(n, flops / samples.softmax(type, mask, pass, heads, count) * 1e-6);
      }
      const std::string name = std::string(mask == seqparAttnFull ? "full " : "causal ") + nameOf(pass, passNames());
      softmax[prefix + name] = curve(points, measured("LOCAL, " + std::to_string(heads) + " heads of 128"));
    }
  }
}

Json linearFamilies(Samples& samples, int type, size_t heads, const std::vector<size_t>& tokens) {
  Json families = Json::object();
  const std::string local = measured("LOCAL, " + std::to_string(heads) + " heads of 128");
  for (int family = 0; family < SEQPAR_ATTN_FAMILIES; ++family) {
    seqparAttnFamilyInfo_t info = SEQPAR_ATTN_FAMILY_INFO_INITIALIZER;
    if (seqparAttnFamilyQuery(family, &info) != seqparSuccess) continue;
    std::vector<std::pair<double, double>> forward, backward;
    for (const size_t count : tokens) {
      const double size = static_cast<double>(count * heads) / 32;
      forward.emplace_back(size, samples.linear(family, seqparAttnLocal, type, kForward, heads, count) * 1e-3);
      backward.emplace_back(size, samples.linear(family, seqparAttnLocal, type, kBackward, heads, count) * 1e-3);
    }
    Json& entry = families[info.name];
    entry["forward"] = curve(forward, local);
    entry["backward"] = curve(backward, local);
    if (samples.group().size() == 1) continue;
    const double scan = scanUs(samples, family, heads) * 1e-3;
    const auto split = [&](Pass pass, double alone) {
      const double zeco = samples.linear(family, seqparAttnZeco, type, pass, heads, tokens.back()) * 1e-3;
      return number(std::max(1.0, (zeco - scan) / alone), measured("ZECO without its scan / LOCAL"));
    };
    entry["split_forward"] = split(kForward, forward.back().second);
    entry["split_backward"] = split(kBackward, backward.back().second);
  }
  return families;
}

}  // namespace seqpar::perf
