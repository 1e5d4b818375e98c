// Format: MXFP4 in blocks, as gpt-oss has it.
//   blocks U8 [N, K/32, 16], 32 elements of K a block, the even one in the low nibble
//   scales U8 [N, K/32], E8M0
//   bias   [N]; optional
// Seen as [N, K/2], the blocks are the canonical rows, byte for byte.
#include <fmt/format.h>

#include "base/layer_config.h"
#include "canonical/code_rows.h"
#include "canonical/format_checks.h"

namespace perch {
namespace {

constexpr int64_t kBlock = 32;
constexpr int64_t kBlockBytes = kBlock / 2;

bool claims(const Projection& projection) { return projection.find("blocks") != nullptr; }

Result<MatrixPlan> plan(const Scheme& given, const Projection& projection) {
  const RawView& blocks = *projection.find("blocks");
  if (blocks.tensor->dtype != RawDtype::kU8) return wrong_dtype(blocks, "U8");
  PERCH_RETURN_IF_ERROR(check_dimensions(blocks));
  PERCH_RETURN_IF_ERROR(check_number(given, projection, blocks, {4, true}));
  if (blocks.columns % kBlockBytes != 0) {
    return wrong_shape(blocks, "[N, K/32, 16] (blocks of 16 bytes)");
  }
  const RawView* scales = projection.find("scales");
  if (scales == nullptr) return missing_part(projection, "scales", "the scales of blocks");
  Scheme scheme = given;
  if (scheme.strategy == Strategy::kUnstated) scheme.strategy = Strategy::kGroup;
  if (scheme.group == 0) scheme.group = kBlock;
  if (scheme.strategy != Strategy::kGroup || scheme.group != kBlock) {
    return wrong_scheme(scheme, projection, fmt::format("groups of {}", scheme.group),
                        fmt::format("groups of {}, as tensor {} has blocks", kBlock,
                                    quoted_name(blocks.tensor->name)));
  }
  MatrixPlan result;
  result.format = &kMxfp4BlocksFormat;
  result.n = blocks.rows;
  result.k = blocks.columns * 2;
  result.quant = make_quant(PERCH_TYPE_E2M1);
  if (scale_type(scales->tensor->dtype, true) != PERCH_TYPE_E8M0) {
    return wrong_dtype(*scales, "U8 or F8_E8M0");
  }
  PERCH_RETURN_IF_ERROR(plan_scale(scheme, projection, *scales, true, &result));
  PERCH_RETURN_IF_ERROR(plan_act(scheme, projection, "input_scale", false, &result));
  PERCH_RETURN_IF_ERROR(plan_bias(projection, &result));
  return result;
}

Status read_codes(const Projection& projection, const MatrixPlan&, const MatrixSlice& slice,
                  std::byte* codes, int64_t row_bytes) {
  copy_code_rows(*projection.find("blocks"), 4, slice, codes, row_bytes);
  return {};
}

std::vector<std::string_view> suffixes() { return {"blocks", "scales", "input_scale", "bias"}; }

}  // namespace

const Format kMxfp4BlocksFormat = {
    "MXFP4 blocks (gpt-oss)", claims, plan, read_codes, nullptr, suffixes};

}  // namespace perch
