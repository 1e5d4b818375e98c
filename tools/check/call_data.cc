// make_call: the rows of a batch and where they go.
#include <algorithm>
#include <cmath>

#include "check/case_data.h"
#include "hashed_data.h"
#include "numeric/decode.h"

namespace perch_check {
namespace {

using perch::Case;
using perch::ExpertLoad;
using perch_command::hash_coordinate;
using perch_command::hashed_unit;

enum : uint64_t { kInput = 1, kRouting = 2, kWeight = 3 };

// Largest code of an input type: an input of that size makes its scale 1.
float code_max(uint32_t dtype) {
  if (dtype == PERCH_TYPE_INT8) return 127.0F;
  return dtype == PERCH_TYPE_E4M3FN ? 448.0F : 6.0F;
}

// x[k] of the row `key`.
float input_value(const Case& problem, RowKey key, int64_t k, Fill fill) {
  const auto row = static_cast<uint64_t>(key);
  const uint64_t bits = hash_coordinate(problem.seed, kInput, row, static_cast<uint64_t>(k));
  const int64_t columns = problem.config.columns(0);
  const perch_act_quant& act = problem.config.act_first();
  if (fill == Fill::kAccumulate) return k == key % columns ? 4096.0F : 1.0F;
  if (fill == Fill::kExact) {
    const int64_t group = act.group == 0 ? columns : act.group;
    const bool dynamic = act.mode != PERCH_ACT_NONE && act.mode != PERCH_ACT_STATIC;
    if (dynamic && k % group == 0)
      return bits % 2 == 0 ? code_max(act.dtype) : -code_max(act.dtype);
    const bool sparse = problem.config.is_moe() && problem.config.abi().out_dtype != PERCH_TYPE_F32;
    const auto one_in = static_cast<uint64_t>(std::max<int64_t>(1, columns / 3));
    if (sparse && bits % one_in != 0) return 0.0F;
    // The sum of a linear layer may be too long for a 16-bit output: its rounding is then met, ties
    // among them.
    const bool linear = !problem.config.is_moe() && act.mode == PERCH_ACT_NONE;
    if (linear) return static_cast<float>((bits >> 32) % 33) - 16.0F;
    return static_cast<float>((bits >> 32) % 5) - 2.0F;
  }
  const float value = hashed_unit(problem.seed, kInput, row, static_cast<uint64_t>(k));
  return fill == Fill::kSameSign ? std::fabs(value) : value;
}

// Slot `slot` of the row `key` before distinctness.
int64_t any_expert(const Case& problem, const ExpertLoad& load, RowKey key, int64_t slot) {
  const int64_t experts = problem.config.moe().num_experts_global;
  const uint64_t bits = hash_coordinate(problem.seed, kRouting, static_cast<uint64_t>(key),
                                        static_cast<uint64_t>(slot));
  if (load.kind == ExpertLoad::Kind::kOne && slot == 0) return load.experts[0];
  if (load.kind == ExpertLoad::Kind::kZipf) {
    // Inverse of the harmonic numbers' growth: expert e with probability about 1 / (e + 1).
    const double u = static_cast<double>(bits >> 11) * 0x1p-53;
    return std::min(experts - 1,
                    static_cast<int64_t>(std::exp(u * std::log(double(experts) + 1))) - 1);
  }
  return static_cast<int64_t>(bits % static_cast<uint64_t>(experts));
}

// topk distinct experts (repeated where fewer are allowed); `empty` ones only if nothing is left.
void route_row(const Case& problem, const ExpertLoad& load, RowKey key, std::vector<int64_t>* ids) {
  const auto& moe = problem.config.moe();
  const int64_t experts = moe.num_experts_global;
  const auto is_empty = [&](int64_t expert) {
    return load.kind == ExpertLoad::Kind::kEmpty &&
           std::find(load.experts.begin(), load.experts.end(), expert) != load.experts.end();
  };
  const size_t first = ids->size();
  for (int64_t slot = 0; slot < moe.topk; ++slot) {
    int64_t expert = any_expert(problem, load, key, slot);
    for (int64_t tries = 0; tries < experts; ++tries) {
      const auto begin = ids->begin() + static_cast<std::ptrdiff_t>(first);
      if (!is_empty(expert) && std::find(begin, ids->end(), expert) == ids->end()) break;
      expert = (expert + 1) % experts;
    }
    ids->push_back(expert);
  }
}

float slot_weight(const Case& problem, RowKey key, int64_t slot, Fill fill) {
  if (fill == Fill::kExact || fill == Fill::kAccumulate) {
    return std::ldexp(1.0F, -1 - static_cast<int>(slot % 4));
  }
  const auto topk = static_cast<float>(problem.config.moe().topk);
  const float any =
      hashed_unit(problem.seed, kWeight, static_cast<uint64_t>(key), static_cast<uint64_t>(slot));
  return (1.0F + 0.75F * any) / topk;
}

// The experts of this rank: a contiguous part of the global ones.
std::vector<int32_t> map_experts(const Case& problem) {
  const auto& moe = problem.config.moe();
  std::vector<int32_t> map(moe.num_experts_global, -1);
  const int64_t begin = std::min<int64_t>(int64_t{problem.ep_rank} * moe.num_experts,
                                          moe.num_experts_global - moe.num_experts);
  for (uint32_t e = 0; e < moe.num_experts; ++e) {
    map[static_cast<size_t>(begin) + e] = static_cast<int32_t>(e);
  }
  return map;
}

// The expert of a row of the forms whose rows the caller has sorted.
int64_t sorted_expert(const Case& problem, const ExpertLoad& load, RowKey key) {
  const int64_t experts = problem.config.moe().num_experts;
  int64_t expert = any_expert(problem, load, key, 0) % experts;
  for (int64_t tries = 0; tries < experts && load.kind == ExpertLoad::Kind::kEmpty; ++tries) {
    if (std::find(load.experts.begin(), load.experts.end(), expert) == load.experts.end()) break;
    expert = (expert + 1) % experts;
  }
  return expert;
}

// Rows sorted by expert, each expert's in the order of the keys.
void place_sorted(const Case& problem, CallData* call) {
  const auto& moe = problem.config.moe();
  std::vector<int64_t> counts(moe.num_experts, 0);
  std::vector<int64_t> rank;
  for (const int64_t expert : call->expert) {
    rank.push_back(counts[static_cast<size_t>(expert)]++);
  }
  if (moe.form == PERCH_FORM_BATCHED) {
    // One row more than any expert has, so that there is one that must not be written.
    call->num_tokens = 1 + *std::max_element(counts.begin(), counts.end());
    for (size_t i = 0; i < rank.size(); ++i) {
      call->place.push_back(call->expert[i] * call->num_tokens + rank[i]);
    }
    call->counts = std::move(counts);
    return;
  }
  call->num_tokens = static_cast<int64_t>(call->keys.size());
  call->offsets.assign(1, 0);
  for (const int64_t count : counts) call->offsets.push_back(call->offsets.back() + count);
  for (size_t i = 0; i < rank.size(); ++i) {
    call->place.push_back(call->offsets[static_cast<size_t>(call->expert[i])] + rank[i]);
  }
}

void route_call(const Case& problem, const ExpertLoad& own, const ExpertLoad& load, Fill fill,
                const std::vector<RowKey>& fixed, CallData* call) {
  const auto& moe = problem.config.moe();
  for (size_t i = 0; i < call->keys.size(); ++i) {
    const RowKey key = call->keys[i];
    const bool keeps = std::find(fixed.begin(), fixed.end(), key) != fixed.end();
    const ExpertLoad& chosen = keeps ? own : load;
    if (moe.form != PERCH_FORM_STANDARD) {
      call->expert.push_back(sorted_expert(problem, chosen, key));
      continue;
    }
    route_row(problem, chosen, key, &call->ids);
    for (uint32_t slot = 0; slot < moe.topk; ++slot) {
      call->weights.push_back(slot_weight(problem, key, slot, fill));
    }
    call->place.push_back(static_cast<int64_t>(i));
  }
  if (moe.form != PERCH_FORM_STANDARD) place_sorted(problem, call);
  if (problem.ep_size > 1 || moe.num_experts_global != moe.num_experts) {
    call->expert_map = map_experts(problem);
  }
}

}  // namespace

CallData make_call(const Case& problem, const std::vector<RowKey>& keys, Fill fill,
                   const std::string& load, const std::vector<RowKey>& fixed) {
  CallData call;
  call.keys = keys;
  call.columns = problem.config.columns(0);
  call.num_tokens = static_cast<int64_t>(keys.size());
  if (problem.config.is_moe()) {
    // Both texts have been parsed before: a case's is checked, the checker's own are right.
    const ExpertLoad own = perch::parse_load(problem.load).value();
    route_call(problem, own, perch::parse_load(load).value(), fill, fixed, &call);
  } else {
    for (size_t i = 0; i < keys.size(); ++i) call.place.push_back(static_cast<int64_t>(i));
  }
  const bool batched = problem.config.is_moe() && problem.config.moe().form == PERCH_FORM_BATCHED;
  const int64_t rows =
      batched ? call.num_tokens * problem.config.moe().num_experts : call.num_tokens;
  const int64_t bytes = float_bytes(problem.config.abi().in_dtype);
  call.x.assign(static_cast<size_t>(rows * call.columns * bytes), std::byte{0xFF});
  for (size_t i = 0; i < keys.size(); ++i) {
    std::byte* row = call.x.data() + call.place[i] * call.columns * bytes;
    for (int64_t k = 0; k < call.columns; ++k) {
      perch::numeric::store_float(problem.config.abi().in_dtype,
                                  input_value(problem, keys[i], k, fill), row, k);
    }
  }
  return call;
}

}  // namespace perch_check
