#include "models.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <tuple>

#include "attn/linear/families/family.h"

namespace seqpar::sim {
namespace {

const Model kModels[] = {
    {"llama3-8b", 32, 0, seqparAttnGla, 4096, 32, 8, 128, 14336, 128256},
    {"llama3-70b", 80, 0, seqparAttnGla, 8192, 64, 8, 128, 28672, 128256},
    {"llama2-7b", 32, 0, seqparAttnGla, 4096, 32, 32, 128, 11008, 32000},
    {"qwen3-8b", 36, 0, seqparAttnGla, 4096, 32, 8, 128, 12288, 151936},
    {"gla-1b", 0, 20, seqparAttnGla, 2048, 16, 16, 128, 5632, 32000},
    {"hybrid-8b", 8, 24, seqparAttnScalar, 4096, 32, 8, 128, 14336, 128256},
};

}  // namespace

std::string modelNames() {
  std::string names;
  for (const auto& model : kModels) names += (names.empty() ? "" : ", ") + model.name;
  return names;
}

int linearFamily(const std::string& name) {
  for (const auto& family : attn::linear::families()) {
    if (name == family.name) return family.id;
  }
  return -1;
}

namespace {

constexpr double kMostOfModel = 1 << 30;

std::string familyNames() {
  std::string names;
  for (const auto& family : attn::linear::families()) names += std::string(names.empty() ? " " : ", ") + family.name;
  return names;
}

/// A layer's attention alone: FAMILY:HEADSxDIM.
bool readLayer(const std::string& text, Model& model) {
  static const std::regex pattern(R"(([a-z_]+):(\d{1,6})x(\d{1,6}))");
  std::smatch parts;
  if (!std::regex_match(text, parts, pattern)) return false;
  const bool softmax = parts[1] == "softmax";
  model.name = text;
  model.linearFamily = softmax ? seqparAttnGla : linearFamily(parts[1]);
  if (model.linearFamily < 0) {
    throw std::invalid_argument("--model " + text + ": there is no family " + parts[1].str() +
                                ", expected softmax or one of" + familyNames());
  }
  if (std::stoi(parts[2]) < 1 || std::stoi(parts[3]) < 1) {
    throw std::invalid_argument("--model " + text + ": expected a positive number of heads and a positive dimension");
  }
  (softmax ? model.softmaxLayers : model.linearLayers) = 1;
  model.heads = model.kvHeads = std::stoi(parts[2]);
  model.headDim = std::stoi(parts[3]);
  model.hidden = model.heads * model.headDim;
  return true;
}

}  // namespace

Model readModel(const std::string& nameOrPath) {
  for (const auto& model : kModels) {
    if (model.name == nameOrPath) return model;
  }
  Model layer;
  if (readLayer(nameOrPath, layer)) return layer;
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("--model " + nameOrPath + ": " + why);
  };
  std::ifstream file(nameOrPath);
  if (!file || std::filesystem::is_directory(nameOrPath)) {
    throw std::invalid_argument("--model " + nameOrPath + " is neither a file, nor FAMILY:HEADSxDIM, nor one of " +
                                modelNames());
  }
  Model model;
  model.name = nameOrPath;
  const std::tuple<const char*, int64_t*, int64_t> numbers[] = {{"softmaxLayers", &model.softmaxLayers, 0},
                                                                {"linearLayers", &model.linearLayers, 0},
                                                                {"hidden", &model.hidden, 1},
                                                                {"heads", &model.heads, 1},
                                                                {"kvHeads", &model.kvHeads, 1},
                                                                {"headDim", &model.headDim, 1},
                                                                {"intermediate", &model.intermediate, 0},
                                                                {"vocabulary", &model.vocabulary, 0}};
  try {
    const auto json = nlohmann::json::parse(file);
    if (!json.is_object()) refuse("the text is not an object, expected the keys of docs/simulator.md");
    for (const auto& [key, value] : json.items()) {
      bool known = key == "name" || key == "linearFamily";
      if (known && !value.is_string()) refuse(key + " is " + value.dump() + ", expected a string");
      if (key == "name") model.name = value.get<std::string>();
      if (key == "linearFamily" && (model.linearFamily = linearFamily(value.get<std::string>())) < 0) {
        refuse("linearFamily is " + value.dump() + ", expected one of" + familyNames());
      }
      for (const auto& [name, number, least] : numbers) {
        if (key != name) continue;
        known = true;
        const bool whole = value.is_number_integer() && value.get<double>() <= kMostOfModel;
        *number = whole ? value.get<int64_t>() : -1;
        if (*number < least)
          refuse(key + " is " + value.dump() + ", expected a whole number from " + std::to_string(least) + " to 2^30");
      }
      if (!known) refuse("the key " + key + " is unknown");
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(error.what());
  }
  for (const auto& [name, number, least] : numbers) {
    if (*number < least) refuse(std::string(name) + " is missing, expected a whole number from 1 to 2^30");
  }
  if (model.layers() < 1) refuse("softmaxLayers and linearLayers are 0, expected one or more layers");
  if (model.heads % model.kvHeads != 0) {
    refuse("kvHeads is " + std::to_string(model.kvHeads) + ", expected a divisor of heads, " +
           std::to_string(model.heads));
  }
  return model;
}

seqparAttnDesc_t attentionOf(const Model& model, bool softmax, int64_t tokens, bool full) {
  seqparAttnDesc_t desc = SEQPAR_ATTN_DESC_INITIALIZER;
  desc.family = softmax ? seqparAttnSoftmax : model.linearFamily;
  desc.tokens = tokens;
  desc.heads = model.heads;
  desc.kvHeads = softmax ? model.kvHeads : model.heads;
  desc.headDim = model.headDim;
  desc.dataType = seqparBfloat16;
  desc.mask = softmax && !full ? seqparAttnCausal : seqparAttnFull;
  desc.normalize = !softmax && attn::linear::findFamily(model.linearFamily)->isDelta() ? 1 : 0;
  return desc;
}

double otherWorkUs(const Model& model, const Machine& machine, double tokens, bool forwardOnly) {
  constexpr double kActivations = 14;  // reads and writes of a hidden state per layer: norms, residuals, activation
  constexpr double kElement = 2;
  const auto hidden = static_cast<double>(model.hidden), layers = static_cast<double>(model.layers());
  const auto queries = static_cast<double>(model.heads * model.headDim);
  const double keys =
      static_cast<double>(model.kvHeads * model.headDim) * static_cast<double>(model.softmaxLayers) / layers +
      queries * static_cast<double>(model.linearLayers) / layers;
  const double ofLayer = hidden * (2 * queries + 2 * keys + 3 * static_cast<double>(model.intermediate));
  const double flops = 2 * tokens * (layers * ofLayer + hidden * static_cast<double>(model.vocabulary));
  const double bytes = kActivations * layers * tokens * hidden * kElement;
  const double passes = forwardOnly ? 1 : 3;
  return passes * (flops / machine.gpu.gemmTflops * 1e-6 + bytes / machine.gpu.hbmGbs * 1e-3);
}

}  // namespace seqpar::sim
