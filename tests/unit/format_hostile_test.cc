// Files made to break a reader. Whatever shapes, types and numbers a file has, a plan that is made
// reads inside its tensors; the sanitizer builds judge.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "canonical/read_expert.h"
#include "projection_rig.h"
#include "sound_projections.h"

namespace perch_unit {
namespace {

// Sound projections with some of their parts replaced, added or left out.
class HostileFile {
 public:
  ProjectionRig projection(const SoundProjection& sound) {
    static const char* const kSuffixes[] = {
        "weight",       "weight_packed",  "qweight",           "blocks",       "scales", "scale",
        "weight_scale", "weight_shape",   "weight_zero_point", "weight_g_idx", "g_idx",  "qzeros",
        "bias",         "weight_scale_2", "pre_quant_scale"};
    ProjectionRig rig = sound.rig();
    for (uint32_t changes = random_() % 4; changes > 0; --changes) {
      const std::vector<std::pair<std::string, RawView>>& parts = rig.projection.parts;
      const bool one_of_its_own = random_() % 4 != 0 && !parts.empty();
      const std::string suffix =
          one_of_its_own ? parts[random_() % parts.size()].first : pick(kSuffixes);
      if (random_() % 8 == 0) {
        rig.drop(suffix);
      } else {
        replace(rig, suffix);
      }
    }
    return rig;
  }

  Scheme scheme(const SoundProjection& sound) {
    const Strategy strategies[] = {Strategy::kTensor, Strategy::kChannel, Strategy::kGroup,
                                   Strategy::kBlock, Strategy::kUnstated};
    const int64_t numbers[] = {-1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 16, int64_t{1} << 40};
    Scheme scheme = coin() ? sound.scheme() : unstated();
    if (random_() % 4 == 0) scheme.bits = pick(numbers);
    if (random_() % 4 == 0) scheme.group = pick(numbers);
    if (random_() % 4 == 0) scheme.strategy = pick(strategies);
    scheme.block_n = pick(numbers);
    scheme.block_k = pick(numbers);
    if (coin()) scheme.symmetric = coin();
    scheme.act_order = coin();
    scheme.zeros_less_one = coin();
    return scheme;
  }

 private:
  bool coin() { return random_() % 2 == 0; }

  template <typename T, size_t size>
  T pick(const T (&values)[size]) {
    return values[random_() % size];
  }

  void replace(ProjectionRig& rig, const std::string& suffix) {
    const RawDtype dtypes[] = {RawDtype::kI32, RawDtype::kU8,     RawDtype::kI8,
                               RawDtype::kF32, RawDtype::kF8E4M3, RawDtype::kF4,
                               RawDtype::kF16, RawDtype::kI64,    RawDtype::kF8E8M0};
    const int64_t dims[] = {1, 1, 2, 4, 8, 16};
    RawDtype dtype = pick(dtypes);
    std::vector<int64_t> shape;
    for (uint32_t rank = random_() % 4; rank > 0; --rank) shape.push_back(pick(dims));
    for (const auto& [name, view] : rig.projection.parts) {
      if (name != suffix || !coin()) continue;
      dtype = view.tensor->dtype;
      if (coin()) shape = view.tensor->shape;
    }
    if (dtype == RawDtype::kF4) shape.push_back(2);
    int64_t bits = perch::raw_dtype_bits(dtype);
    for (const int64_t dim : shape) bits *= dim;
    std::vector<uint8_t> bytes(static_cast<size_t>(bits / 8));
    // Small numbers, so that sizes and group ids that are stored can be right by chance.
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random_() % 4 == 0 ? random_() % 9 : 0);
    rig.add(suffix, dtype, shape, bytes);
  }

  std::mt19937 random_{3};
};

// What a reader of scales would touch.
void touch_scales(const MatrixPlan& plan) {
  if (!plan.scale) return;
  const int64_t last_row = (plan.n - 1 + plan.scale->first_row) / plan.scale->group_n;
  const int64_t last_group = (plan.k - 1) / plan.scale->group_k;
  EXPECT_LT(last_row, plan.scale->view.rows);
  EXPECT_LT(last_group, plan.scale->view.columns);
}

TEST(FormatHostile, ReadsNothingOutside) {
  constexpr int kRounds = 40000;
  HostileFile hostile;
  std::map<std::string, int> planned;
  for (int round = 0; round < kRounds; ++round) {
    const SoundProjection& sound =
        kSoundProjections[static_cast<size_t>(round) % std::size(kSoundProjections)];
    const ProjectionRig rig = hostile.projection(sound);
    const perch::Result<MatrixPlan> plan = plan_of(rig, hostile.scheme(sound));
    if (!plan.ok()) {
      EXPECT_NE(plan.status().message(), "");
      continue;
    }
    ++planned[plan->format->name];
    packed_rows(rig, *plan, whole(*plan));
    touch_scales(*plan);
    if (plan->quant.zero_kind != PERCH_ZERO_INT) continue;
    for (int64_t n = 0; n < plan->n; ++n) zeros_of(rig, *plan, n);
  }
  EXPECT_EQ(planned.size(), 9u) << "formats that a hostile file has reached";
}

TEST(FormatHostile, EmptyAndVastDimensions) {
  constexpr int64_t kVast = int64_t{1} << 62;
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{0, 4}, {4, 0}, {kVast, 0}, {0, kVast}, {0}}) {
    for (const RawDtype dtype : {RawDtype::kF32, RawDtype::kI8, RawDtype::kF8E4M3, RawDtype::kF4}) {
      ProjectionRig rig;
      rig.add("weight", dtype, shape, std::vector<uint8_t>());
      rig.add("weight_scale", RawDtype::kF32, {}, std::vector<float>{1});
      EXPECT_NE(refusal(rig, unstated()), "");
    }
    for (const char* suffix : {"weight_packed", "qweight", "blocks"}) {
      const bool words = suffix[0] != 'b';
      ProjectionRig rig = words ? pack_rig() : ProjectionRig();
      rig.drop("weight_packed");
      rig.add(suffix, words ? RawDtype::kI32 : RawDtype::kU8, shape, std::vector<uint8_t>());
      rig.add("scales", RawDtype::kU8, shape, std::vector<uint8_t>());
      EXPECT_NE(refusal(rig, unstated()), "");
    }
  }
}

// A tensor that no format reads, allowed to be there, may be empty too.
TEST(FormatHostile, ReleasesAnEmptyTensor) {
  const RawTensor empty{"m.up_proj.extra", RawDtype::kF32, {1, 0, 4}};
  perch::CanonicalLayer layer;
  const perch_quant bf16 = perch::make_quant(PERCH_TYPE_BF16);
  layer.config = perch::LayerConfig::make_moe("m", bf16, bf16);
  layer.experts = {0};
  layer.source.experts.resize(1);
  layer.source.experts[0].up.parts.emplace_back("extra", perch::whole_view(empty));
  perch::release_expert(layer, 0);
}

}  // namespace
}  // namespace perch_unit
