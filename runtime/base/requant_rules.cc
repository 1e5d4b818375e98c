#include "base/requant_rules.h"

#include <fmt/format.h>

#include "base/recipe.h"

namespace perch {

Result<LayerConfig> requantized_config(const LayerConfig& config, const std::string& format) {
  PERCH_ASSIGN_OR_RETURN(const perch_quant parsed, parse_weight(format));
  const bool integer = parsed.weight >= PERCH_TYPE_INT1 && parsed.weight <= PERCH_TYPE_INT8;
  const bool made = parsed.weight != PERCH_TYPE_LUT4 && parsed.zero_kind != PERCH_ZERO_FLOAT &&
                    parsed.offset_kind == PERCH_OFFSET_NONE && parsed.k_order == PERCH_K_NATURAL &&
                    parsed.flags == 0 && parsed.scale2_kind != PERCH_SCALE2_CHANNEL &&
                    !(integer && parsed.zero_kind == PERCH_ZERO_NONE) &&
                    !(integer && type_bits(parsed.scale_dtype) == 8) &&
                    !(integer && parsed.scale2_kind != PERCH_SCALE2_NONE);
  const bool scaled = type_bits(parsed.weight) > 8 ? parsed.scale_kind == PERCH_SCALE_NONE
                                                   : parsed.scale_kind != PERCH_SCALE_NONE;
  if (!made || !scaled) {
    return unsupported(
        fmt::format("requant: got \"{}\"; want f32, f16 or bf16 without scales, int1..int8 with "
                    "scales of 16 or "
                    "32 bits and at most +z, or a float of 8 bits or less with scales",
                    format));
  }
  LayerConfig result = config;
  const auto replace = [&](perch_quant* quant) {
    const uint32_t flags = quant->flags;
    *quant = parsed;
    quant->flags = flags;
  };
  replace(&result.first());
  if (config.is_moe()) replace(&result.second());
  return result;
}

}  // namespace perch
