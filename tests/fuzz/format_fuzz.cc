// The readers of each checkpoint format, through what the loader does with a linear layer: which
// format it is, its plan, the rules of its config, and its canonical tensors, whole and cut.
//
// A refusal says which tensor or module, what was found and what is wanted. A plan that is made can
// be read, and agrees with what it says of itself; a slice is the whole, cut, to the bit; and each
// scale is the stored one of its group. Tensors lie in blocks of exactly their size, and so does
// what is read into.
#include <algorithm>
#include <array>

#include "base/config_rules.h"
#include "canonical/format_parts.h"
#include "canonical/layer_algebra.h"
#include "canonical/read_expert.h"
#include "format_forge.h"
#include "numeric/packed_codes.h"

namespace perch::fuzz {
namespace {

// Elements of a slice that are compared, at even distances where there are more.
constexpr int64_t kComparedMax = 1024;

void check_refusal(const Status& status) {
  const std::string& message = status.message();
  PERCH_FUZZ_CHECK(status.code() == PERCH_E_INVALID_ARGUMENT ||
                   status.code() == PERCH_E_UNSUPPORTED);
  PERCH_FUZZ_CHECK(message.find("\"m") != std::string::npos);
  PERCH_FUZZ_CHECK(message.find("want ") != std::string::npos);
  for (const char c : message) PERCH_FUZZ_CHECK(static_cast<unsigned char>(c) >= ' ');
}

// What format.h says of a plan.
void check_plan(const MatrixPlan& plan) {
  const perch_quant& quant = plan.quant;
  PERCH_FUZZ_CHECK(plan.format != nullptr && plan.n >= 1 && plan.k >= 1);
  PERCH_FUZZ_CHECK(plan.scale.has_value() == (quant.scale_kind != PERCH_SCALE_NONE));
  PERCH_FUZZ_CHECK(plan.scale2.has_value() == (quant.scale2_kind == PERCH_SCALE2_TENSOR));
  PERCH_FUZZ_CHECK(plan.g_idx.has_value() == (quant.k_order == PERCH_K_G_IDX));
  PERCH_FUZZ_CHECK(plan.bias.has_value() == ((quant.flags & PERCH_QUANT_HAS_BIAS) != 0));
  PERCH_FUZZ_CHECK(plan.pre_scale.has_value() == ((quant.flags & PERCH_QUANT_HAS_PRE_SCALE) != 0));
  const uint32_t mode = plan.act.mode;
  PERCH_FUZZ_CHECK(plan.input_scale.has_value() ==
                   (mode == PERCH_ACT_STATIC || mode == PERCH_ACT_STATIC_GROUP));
  PERCH_FUZZ_CHECK(plan.format->read_zeros != nullptr || quant.zero_kind != PERCH_ZERO_INT);
}

// One canonical tensor of a part; null where the algebra has none.
struct Rows {
  const std::byte* data = nullptr;
  int64_t row_bytes = 0;

  explicit Rows(const CanonicalTensor* tensor) {
    if (tensor == nullptr) return;
    data = tensor->data.data();
    row_bytes = static_cast<int64_t>(tensor->data.size()) / tensor->spec.shape[0];
  }
};

// A part of the matrix, read as the loader reads a linear layer.
struct Read {
  MatrixSlice slice;
  perch_quant quant{};
  CanonicalExpert tensors;
  Rows codes{tensors.find("w")};
  Rows scale{tensors.find("w.scale")};
  Rows zero{tensors.find("w.zero")};
  Rows g_idx{tensors.find("w.g_idx")};

  int64_t rows() const { return slice.n1 - slice.n0; }
  int64_t columns() const { return slice.k1 - slice.k0; }
};

// The algebra of a part: made as fine as its cuts need, with all groups where they are indexed.
perch_quant quant_of(const MatrixPlan& plan, const MatrixSlice& slice) {
  perch_quant quant = plan.quant;
  fit_groups({slice.n0, plan.scale ? plan.scale->first_row : 0}, {slice.k0}, &quant);
  const bool part = slice.k0 > 0 || slice.k1 < plan.k;
  if (plan.g_idx && part) quant.num_groups = static_cast<uint32_t>(plan.scale->view.columns);
  return quant;
}

// Nothing where the rules of a config refuse the layer.
std::optional<Read> read(const Projection& projection, const MatrixPlan& plan,
                         const MatrixSlice& slice) {
  const perch_quant quant = quant_of(plan, slice);
  CanonicalLayer layer;
  layer.source.name = projection.module;
  layer.source.linear = projection;
  layer.linear = plan;
  layer.first_slice = slice;
  layer.config =
      LayerConfig::make_linear(projection.module, slice.n1 - slice.n0, slice.k1 - slice.k0, quant);
  layer.config.act_first() = plan.act;
  layer.config.layer().in_dtype = layer.config.layer().out_dtype = PERCH_TYPE_BF16;
  layer.config.layer().device = {kDLCPU, 0};
  layer.config.layer().max_tokens = 1;
  const std::vector<RuleBreach> breaches = check_layer_config(layer.config.abi());
  if (!breaches.empty()) {
    PERCH_FUZZ_CHECK(!breach_status(breaches).ok());
    return std::nullopt;
  }
  Result<CanonicalExpert> tensors = read_expert(layer, layer.config, -1);
  PERCH_FUZZ_CHECK(tensors.ok());
  PERCH_FUZZ_CHECK(tensors->bytes_read > 0);
  for (const CanonicalTensor& tensor : tensors->tensors) {
    PERCH_FUZZ_CHECK(static_cast<int64_t>(tensor.data.size()) == tensor.spec.bytes());
  }
  return Read{slice, quant, std::move(*tensors)};
}

// One element of a part, by its place in the part.
struct Element {
  std::array<std::byte, 4> code{};
  std::array<std::byte, 4> scale{};
  uint8_t zero = 0;
  int32_t group = 0;  // under an act-order
  bool operator==(const Element&) const = default;
};

Element element(const Read& part, const ScaleCells& cells, int64_t n, int64_t k) {
  Element out;
  const int bits = type_bits(part.quant.weight);
  const std::byte* codes = part.codes.data + n * part.codes.row_bytes;
  if (bits > 8) {
    std::memcpy(out.code.data(), codes + k * bits / 8, static_cast<size_t>(bits / 8));
  } else {
    const auto* row = reinterpret_cast<const uint8_t*>(codes);
    out.code[0] = static_cast<std::byte>(numeric::get_code(row, k, bits));
  }
  if (part.scale.data == nullptr) return out;
  int64_t column = k / cells.group_k;
  if (part.g_idx.data != nullptr) {
    std::memcpy(&out.group, part.g_idx.data + k * 4, sizeof(out.group));
    column = out.group;
  }
  const int64_t width = type_bits(part.quant.scale_dtype) / 8;
  const std::byte* scales = part.scale.data + n / cells.group_n * part.scale.row_bytes;
  std::memcpy(out.scale.data(), scales + column * width, static_cast<size_t>(width));
  if (part.zero.data != nullptr) {
    out.zero = std::to_integer<uint8_t>(part.zero.data[n * part.zero.row_bytes + column]);
  }
  return out;
}

// The scale that is stored for it.
void check_scale(const MatrixPlan& plan, const Element& found, int64_t n, int64_t k) {
  if (!plan.scale) return;
  const Grid& grid = *plan.scale;
  const int64_t column = plan.g_idx ? found.group : k / grid.group_k;
  const int64_t row = (n + grid.first_row) / grid.group_n;
  PERCH_FUZZ_CHECK(row < grid.view.rows && column < grid.view.columns);
  PERCH_FUZZ_CHECK(std::memcmp(found.scale.data(), grid.view.at(row, column),
                               static_cast<size_t>(type_bits(plan.quant.scale_dtype) / 8)) == 0);
}

// Bits behind the last code of each row are 0.
void check_padding(const Read& part) {
  const int64_t used = part.columns() * type_bits(part.quant.weight) % 8;
  for (int64_t n = 0; n < part.rows() && used != 0; ++n) {
    const std::byte last = part.codes.data[(n + 1) * part.codes.row_bytes - 1];
    PERCH_FUZZ_CHECK((last >> used) == std::byte{0});
  }
}

void check_cut(const MatrixPlan& plan, const Read& whole, const Read& part) {
  const MatrixSlice& slice = part.slice;
  const ScaleCells cells = scale_cells(part.quant, part.rows(), part.columns());
  const ScaleCells whole_cells = scale_cells(whole.quant, whole.rows(), whole.columns());
  const int64_t count = part.rows() * part.columns();
  for (int64_t i = 0; i < count; i += 1 + count / kComparedMax) {
    const int64_t n = i / part.columns();
    const int64_t k = i % part.columns();
    const Element found = element(part, cells, n, k);
    PERCH_FUZZ_CHECK(found == element(whole, whole_cells, slice.n0 + n, slice.k0 + k));
    check_scale(plan, found, slice.n0 + n, slice.k0 + k);
  }
  check_padding(part);
  const auto same_floats = [&](const char* name, int64_t first, int64_t floats) {
    const CanonicalTensor* tensor = part.tensors.find(name);
    if (tensor == nullptr) return;
    const CanonicalTensor* from = whole.tensors.find(name);
    PERCH_FUZZ_CHECK(from != nullptr);
    PERCH_FUZZ_CHECK(std::memcmp(tensor->data.data(), from->data.data() + first * 4,
                                 static_cast<size_t>(floats * 4)) == 0);
  };
  same_floats("w.bias", slice.n0, part.rows());
  same_floats("w.pre_scale", slice.k0, part.columns());
  same_floats("w.scale2", 0, 1);
  same_floats("w.input_scale", 0, 1);
}

// The codes alone, of a part that may be empty: then there is no memory for them.
void read_codes(const Projection& projection, const MatrixPlan& plan, const MatrixSlice& slice) {
  const int64_t row_bytes =
      numeric::packed_row_bytes(slice.k1 - slice.k0, type_bits(plan.quant.weight));
  std::vector<std::byte> codes(static_cast<size_t>((slice.n1 - slice.n0) * row_bytes));
  PERCH_FUZZ_CHECK(plan.format->read_codes(projection, plan, slice, codes.data(), row_bytes).ok());
}

void check_reads(const Forged& forged, const MatrixPlan& plan) {
  const Projection& projection = forged.rig.projection;
  const std::optional<Read> whole = read(projection, plan, {0, plan.n, 0, plan.k});
  if (!whole) return;
  accept();
  check_cut(plan, *whole, *whole);
  for (size_t i = 0; i < std::size(forged.cuts); i += 4) {
    const auto cut = [&](size_t at, int64_t size) {
      const int64_t a = forged.cuts[i + at] % (size + 1);
      const int64_t b = forged.cuts[i + at + 1] % (size + 1);
      return std::pair(std::min(a, b), std::max(a, b));
    };
    const auto [n0, n1] = cut(0, plan.n);
    const auto [k0, k1] = cut(2, plan.k);
    const MatrixSlice slice = {n0, n1, k0, k1};
    read_codes(projection, plan, slice);
    if (n0 == n1 || k0 == k1) continue;
    const std::optional<Read> part = read(projection, plan, slice);
    if (part) check_cut(plan, *whole, *part);
    PERCH_FUZZ_BUG(part && plan.bias && plan.quant.zero_kind == PERCH_ZERO_INT);
  }
}

// Tensors that the format does not list change nothing, not even a refusal.
void check_suffixes(const Forged& forged, const Format& format, const Status& planned) {
  Projection listed = forged.rig.projection;
  const std::vector<std::string_view> known = format.suffixes();
  std::erase_if(listed.parts, [&](const auto& part) {
    return std::find(known.begin(), known.end(), part.first) == known.end();
  });
  const Status status = format.plan(forged.scheme, listed).status();
  PERCH_FUZZ_CHECK(status.code() == planned.code() && status.message() == planned.message());
}

void fuzz_format(Bytes bytes) {
  const Forged forged = Forge(bytes).make();
  const Result<const Format*> format = find_format(forged.rig.projection);
  if (!format.ok()) return check_refusal(format.status());
  const Result<MatrixPlan> plan = (*format)->plan(forged.scheme, forged.rig.projection);
  check_suffixes(forged, **format, plan.status());
  if (!plan.ok()) return check_refusal(plan.status());
  PERCH_FUZZ_CHECK(plan->format == *format);
  check_plan(*plan);
  check_reads(forged, *plan);
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TARGET(format, perch::fuzz::fuzz_format);
