#include "canonical/layer_algebra.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>

#include "base/layer_config.h"
#include "base/recipe.h"
#include "canonical/format_parts.h"

namespace perch {
namespace {

Status differs(const Projection& a, const char* what, const std::string& found,
               const std::string& wanted, const Projection& b) {
  return unsupported(
      fmt::format("{}: {}: got {}; want {}, as module {} has: all experts of a layer, and the gate "
                  "and up of each, are alike",
                  print_module(a), what, found, wanted, quoted_name(b.module)));
}

// Widens *joined until it holds `plan` too. Kinds of which one is a special case of the other meet
// in the more general; all else must be equal.
Status join(const Projection& first, const Projection& projection, const MatrixPlan& plan,
            MatrixPlan* joined) {
  const perch_quant& q = plan.quant;
  perch_quant* to = &joined->quant;
  const auto other = [&](const char* what) {
    return differs(projection, what, print_weight(q), print_weight(*to), first);
  };
  if (plan.format != joined->format || q.weight != to->weight || q.scale_dtype != to->scale_dtype) {
    return other("number format");
  }
  if (q.scale_kind != to->scale_kind) {
    const auto per_row = [](uint32_t kind) {
      return kind == PERCH_SCALE_TENSOR || kind == PERCH_SCALE_CHANNEL;
    };
    if (!per_row(q.scale_kind) || !per_row(to->scale_kind)) {
      return other("kind of scales");
    }
    to->scale_kind = PERCH_SCALE_CHANNEL;
  }
  if (q.group_k != to->group_k || q.group_n != to->group_n || q.scale2_kind != to->scale2_kind) {
    return other("groups of scales");
  }
  if (q.zero_kind != to->zero_kind) {
    const auto integer = [](uint32_t kind) {
      return kind == PERCH_ZERO_INT || kind == PERCH_ZERO_MIDPOINT;
    };
    if (!integer(q.zero_kind) || !integer(to->zero_kind)) {
      return other("kind of zero points");
    }
    to->zero_kind = PERCH_ZERO_INT;
  }
  if (q.k_order == PERCH_K_G_IDX) to->k_order = PERCH_K_G_IDX;
  if (q.flags != to->flags) {
    return other("bias or input scaling");
  }
  if (!same_act(plan.act, joined->act)) {
    return differs(projection, "input", print_act(plan.act), print_act(joined->act), first);
  }
  return {};
}

// Whether two arrays of floats, at most one of them empty, hold the same values.
bool same_floats(const RawView& a, const RawView& b) {
  for (int64_t i = 0; i < a.rows; ++i) {
    if (float_at(a, i, 0) != float_at(b, i, 0)) return false;
  }
  return a.rows == b.rows;
}

bool same_tensor_scale(const MatrixPlan& a, const MatrixPlan& b) {
  const RawView& p = a.scale->view;
  const RawView& q = b.scale->view;
  const auto width = static_cast<size_t>(raw_dtype_bits(p.tensor->dtype) / 8);
  return std::memcmp(p.at(0, 0), q.at(0, 0), width) == 0;
}

void note_once(const std::string& name, const std::string& reason, LayerAlgebra* algebra) {
  for (const DerivedTensor& tensor : algebra->derived) {
    if (tensor.name == name) return;
  }
  algebra->derived.push_back({name, reason, false});
}

// Gate and up of one expert share w13: what the kernel contract has once for both must be equal, or
// must have a form per row.
Status join_halves(const ExpertSource& source, const ExpertPlan& plan, size_t expert,
                   LayerAlgebra* algebra) {
  const auto note = [&](const char* name, const char* what) {
    note_once(name,
              fmt::format("gate and up of expert {} have different {}: one per row", expert, what),
              algebra);
  };
  const MatrixPlan& gate = plan.gate;
  const MatrixPlan& up = plan.up;
  if (algebra->w13.scale_kind == PERCH_SCALE_TENSOR && !same_tensor_scale(gate, up)) {
    algebra->w13.scale_kind = PERCH_SCALE_CHANNEL;
    note("w13.scale", "scales");
  }
  if (gate.scale2 != up.scale2) {
    algebra->w13.scale2_kind = PERCH_SCALE2_CHANNEL;
    note("w13.scale2", "second scales");
  }
  if (gate.input_scale != up.input_scale) {
    return unsupported(
        fmt::format("{}: input scale: got {}; want {}, as module {} has: both read one input",
                    print_module(source.up), *up.input_scale, *gate.input_scale,
                    quoted_name(source.gate.module)));
  }
  if (gate.pre_scale && !same_floats(*gate.pre_scale, *up.pre_scale)) {
    return differs(source.up, "pre_quant_scale", "other values", "the same", source.gate);
  }
  return {};
}

// Everything that the kernel contract can hold in a more general form, said once.
void note_widened(const char* name, const perch_quant& first, const perch_quant& joined,
                  LayerAlgebra* algebra) {
  const auto note = [&](const char* suffix, const char* reason) {
    note_once(fmt::format("{}.{}", name, suffix), reason, algebra);
  };
  if (joined.scale_kind != first.scale_kind) {
    note("scale", "experts differ in having one scale or one per row: one per row");
  }
  if (joined.zero_kind != first.zero_kind) {
    note("zero", "some experts have zero points and some the midpoint: zero points for all");
  }
  if (joined.k_order != first.k_order) {
    note("g_idx", "some experts have an act-order: a g_idx for all");
  }
}

}  // namespace

Result<LayerAlgebra> join_experts(const LayerSource& source, const std::vector<ExpertPlan>& plans) {
  const ExpertSource& first = source.experts[0];
  MatrixPlan w13 = plans[0].up;
  MatrixPlan w2 = plans[0].down;
  for (size_t e = 0; e < plans.size(); ++e) {
    const ExpertSource& expert = source.experts[e];
    if (source.gated) PERCH_RETURN_IF_ERROR(join(first.up, expert.gate, plans[e].gate, &w13));
    PERCH_RETURN_IF_ERROR(join(first.up, expert.up, plans[e].up, &w13));
    PERCH_RETURN_IF_ERROR(join(first.down, expert.down, plans[e].down, &w2));
  }
  LayerAlgebra algebra;
  algebra.w13 = w13.quant;
  algebra.w2 = w2.quant;
  algebra.act13 = w13.act;
  algebra.act2 = w2.act;
  note_widened("w13", plans[0].up.quant, algebra.w13, &algebra);
  note_widened("w2", plans[0].down.quant, algebra.w2, &algebra);
  for (size_t e = 0; e < plans.size() && source.gated; ++e) {
    PERCH_RETURN_IF_ERROR(join_halves(source.experts[e], plans[e], e, &algebra));
  }
  return algebra;
}

bool fit_groups(const std::vector<int64_t>& row_cuts, const std::vector<int64_t>& column_cuts,
                perch_quant* quant) {
  const perch_quant before = *quant;
  const auto fit = [](uint32_t group, const std::vector<int64_t>& cuts) {
    int64_t fine = group;
    for (const int64_t cut : cuts) fine = std::gcd(fine, cut);
    return static_cast<uint32_t>(fine);
  };
  const bool grouped =
      quant->scale_kind == PERCH_SCALE_GROUP || quant->scale_kind == PERCH_SCALE_BLOCK;
  if (grouped && quant->k_order == PERCH_K_NATURAL)
    quant->group_k = fit(quant->group_k, column_cuts);
  if (quant->scale_kind == PERCH_SCALE_BLOCK) {
    quant->group_n = fit(quant->group_n, row_cuts);
    if (quant->group_n == 1) {
      quant->scale_kind = PERCH_SCALE_GROUP;
      quant->group_n = 0;
    }
  }
  return quant->scale_kind != before.scale_kind || quant->group_k != before.group_k ||
         quant->group_n != before.group_n;
}

}  // namespace perch
