// Format: MXFP4 as gpt-oss stores it.
//   blocks U8 [N, K/32, 16], low nibble first; scales U8 [N, K/32], powers of two; bias [N]
// The layout has undone the interleaving of gate and up rows and joined the last two axes of
// blocks.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

constexpr int64_t kGroup = 32;

bool claims(const Projection& projection) { return projection.find("blocks") != nullptr; }

Result<MatrixPlan> plan(const Scheme& scheme, const Projection& projection) {
  const RawView& blocks = *projection.find("blocks");
  if (blocks.tensor->dtype != RawDtype::kU8) return wrong_dtype(blocks, "U8");
  PERCH_RETURN_IF_ERROR(check_method(scheme, projection, blocks, "mxfp4"));
  MatrixPlan result;
  result.format = &kMxfp4BlocksFormat;
  result.quant = make_quant(PERCH_TYPE_E2M1);
  PERCH_RETURN_IF_ERROR(check_dimensions(blocks));
  PERCH_RETURN_IF_ERROR(set_size(blocks, blocks.rows, 2 * blocks.columns, &result));
  const RawView* scales = projection.find("scales");
  if (scales == nullptr) return missing_part(projection, "scales", "the scales of its blocks");
  Scheme groups = scheme;
  groups.strategy = Strategy::kGroup;
  groups.group = kGroup;
  PERCH_RETURN_IF_ERROR(plan_scale(groups, projection, *scales, true, &result));
  result.act = scheme.act;
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*projection.find("blocks"), 4, slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() { return {"blocks", "scales", "bias"}; }

}  // namespace

const Format kMxfp4BlocksFormat = {
    "MXFP4 blocks (gpt-oss)", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
