// Layers with hand-made tensors for the tests of runtime/agree.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agree/oracle.h"
#include "base/case_line.h"
#include "base/layer_config.h"

namespace perch_unit {

using perch::LayerConfig;
using perch::NamedData;
using perch::Oracle;
using perch::OracleRow;
using perch::OracleVisit;

struct OracleRig {
  LayerConfig config;
  std::vector<std::map<std::string, std::vector<unsigned char>>> experts;

  // "moe t1 e1 top1 h4 i3 w=f32 act=relu2_no_mul in=f32 o=f32": its config, without tensors.
  explicit OracleRig(const std::string& line) {
    const perch::Result<perch::Case> parsed = perch::parse_case(line);
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    if (!parsed.ok()) return;
    config = parsed->config;
    experts.resize(config.is_moe() ? config.moe().num_experts : 1);
  }

  template <typename T>
  void set(size_t expert, const std::string& name, const std::vector<T>& values) {
    std::vector<unsigned char>& bytes = experts[expert][name];
    bytes.resize(values.size() * sizeof(T));
    std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  void set_floats(size_t expert, const std::string& name, const std::vector<float>& values) {
    set(expert, name, values);
  }
  void set_codes(size_t expert, const std::string& name, const std::vector<unsigned char>& codes) {
    set(expert, name, codes);
  }

  // f32 weights of every expert, uniform in +-`size`; `size` times w2_size in w2.
  void randomize(unsigned seed, float size, float w2_size = 1) {
    for (size_t e = 0; e < experts.size(); ++e) {
      for (const perch::TensorSpec& spec : perch::tensor_specs(config)) {
        const float reach = spec.name == "w2" ? size * w2_size : size;
        set_floats(e, spec.name,
                   random_floats(seed + static_cast<unsigned>(e), count(spec), reach));
        ++seed;
      }
    }
  }
  static size_t count(const perch::TensorSpec& spec) {
    size_t numel = 1;
    for (const int64_t dim : spec.shape) numel *= static_cast<size_t>(dim);
    return numel;
  }
  static std::vector<float> random_floats(unsigned seed, size_t count, float reach) {
    std::mt19937 rng(seed);
    std::uniform_real_distribution<float> any(-reach, reach);
    std::vector<float> values(count);
    for (float& value : values) value = any(rng);
    return values;
  }
  std::vector<float> floats(size_t expert, const std::string& name) const {
    const std::vector<unsigned char>& bytes = experts[expert].at(name);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  perch::Result<Oracle> try_evaluate(const std::vector<OracleRow>& rows) const {
    const perch::ReadTensors read = [this](int64_t expert, std::vector<NamedData>* tensors) {
      for (const auto& [name, bytes] : experts[static_cast<size_t>(expert)]) {
        tensors->push_back({name, bytes.data()});
      }
      return perch::Status();
    };
    return perch::evaluate_rows(config, read, rows);
  }
  Oracle evaluate(const std::vector<OracleRow>& rows) const {
    perch::Result<Oracle> oracle = try_evaluate(rows);
    EXPECT_TRUE(oracle.ok()) << oracle.status().message();
    return oracle.ok() ? *oracle : Oracle{};
  }
  std::vector<double> values(const std::vector<OracleRow>& rows) const {
    return evaluate(rows).value;
  }
  double value(const std::vector<float>& x, const std::vector<OracleVisit>& visits = {}) const {
    const std::vector<double> all = values({{x, visits}});
    return all.empty() ? 0 : all[0];
  }
  bool exact(const std::vector<float>& x, const std::vector<OracleVisit>& visits = {}) const {
    const Oracle oracle = evaluate({{x, visits}});
    return !oracle.exact.empty() && oracle.exact[0] != 0;
  }
};

}  // namespace perch_unit
