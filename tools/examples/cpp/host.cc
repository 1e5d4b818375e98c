// host.cc - a C++ host: a linear layer made of its own tensors, on the backend that a policy picks.
//
//   c++ -std=c++17 host.cc $(pkg-config --cflags --libs perch) -o host
//   ./host [POLICY.yaml [BACKENDS]]     BACKENDS: a directory or a libperch_*.so, searched first
#include <cstdio>
#include <perch/perch.hpp>

namespace {

float widen(uint16_t bf16) {
  const uint32_t bits = static_cast<uint32_t>(bf16) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void run(const perch_runtime_opts& opts) {
  const perch_host::Runtime runtime = perch_host::make_runtime(&opts);

  perch_quant plain{};  // bf16 as it is: no scales, no zero points
  plain.struct_size = sizeof(plain);
  plain.weight = PERCH_TYPE_BF16;
  plain.scale_kind = PERCH_SCALE_NONE;
  plain.scale_dtype = PERCH_TYPE_NONE;
  plain.scale2_kind = PERCH_SCALE2_NONE;
  plain.zero_kind = PERCH_ZERO_NONE;
  plain.offset_kind = PERCH_OFFSET_NONE;
  plain.k_order = PERCH_K_NATURAL;
  const perch_linear_config linear{sizeof(linear), 0, 2, 3, &plain, nullptr, nullptr};
  perch_layer_config config{};
  config.struct_size = sizeof(config);
  config.kind = PERCH_KIND_LINEAR;
  config.device = {kDLCPU, 0};
  config.in_dtype = config.out_dtype = PERCH_TYPE_BF16;
  config.max_tokens = 1;
  config.name = "example";
  config.linear = &linear;

  // y [1,2] = x [1,3] * w [2,3]^T. In bf16 0x3F80 is 1, 0x4000 is 2 and 0x4040 is 3.
  uint16_t w_codes[] = {0x3F80, 0x4000, 0x4040, 0x4000, 0x4000, 0x4000};
  uint16_t x_codes[] = {0x3F80, 0x3F80, 0x4000};
  constexpr DLDataType kBf16 = {kDLBfloat, 16, 1};
  const perch_host::Tensor w(w_codes, kBf16, {2, 3}), x(x_codes, kBf16, {1, 3});
  perch_host::Tensor y(kBf16, {1, 2});
  const perch_host::Layer layer = perch_host::make_layer(runtime, config, {{"w", w.get(), 0}});

  perch_exec_args args{};
  args.x = x.get();
  args.y = y.get();
  perch_host::Executor(layer.get()).run(args, 1);

  perch_layer_info info{};
  info.struct_size = sizeof(info);
  info.layout.struct_size = sizeof(info.layout);
  perch_host::check(perch_layer_get_info, layer.get(),
                    static_cast<const perch_call_shape*>(nullptr), &info);
  std::printf("%s on %s/%u: y = %g %g\n", info.name, info.backend, info.variant,
              widen(y.data<uint16_t>()[0]), widen(y.data<uint16_t>()[1]));
}

}  // namespace

int main(int argc, char** argv) {
  perch_runtime_opts opts{};  // all zero: the installed policy, the backends beside the library
  opts.struct_size = sizeof(opts);
  opts.config_path = argc > 1 ? argv[1] : nullptr;
  opts.backend_path = argc > 2 ? argv[2] : nullptr;
  try {
    run(opts);
  } catch (const perch_host::Error& error) {
    std::fprintf(stderr, "%s: %s\n", perch_status_name(error.code()), error.what());
    return 2;
  }
  return 0;
}
