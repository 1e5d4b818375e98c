// What humming-cpu answers before it computes: options, reasons, promises, layout, missing tensors.
#include "humming_cpu_problems.h"

namespace perch::test::humming {
namespace {

struct Rig {
  ShuffledHost host;
  Library library{&host.api};
  Rig() { library.create({}); }
};

Problem good_moe() {
  const perch_quant quant = int4_weight(32, PERCH_TYPE_BF16, false, false);
  return moe_problem({3, 1, 64, 40}, PERCH_ACTIVATION_SILU, quant, quant, 1);
}

TEST(HummingCpuOptions, CreateRefusesByName) {
  const ShuffledHost host;
  Library library(&host.api);
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(library.create({{"iza", "avx2"}}, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("'iza'"), std::string::npos);
  EXPECT_NE(std::string(error.message).find("'isa'"), std::string::npos);
  EXPECT_EQ(library.create({{"isa", "sse9"}}, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("sse9"), std::string::npos);
}

TEST(HummingCpuOptions, LevelIsReportedAndInTheKernelName) {
  for (const std::string& isa : isa_levels()) {
    const ShuffledHost host;
    Library library(&host.api);
    ASSERT_EQ(library.create({{"isa", isa.c_str()}}), PERCH_OK);
    EXPECT_EQ(library.arch(), isa);
    EXPECT_EQ(std::string(library.query(good_moe().config, 0).support.kernel),
              "bf16_int4_bf16_4x32_" + isa);
    EXPECT_EQ(std::string(library.query(good_moe().config, 1).support.kernel),
              "bf16_int4_bf16_4x32_" + isa + "_split");
  }
}

TEST(HummingCpuOptions, LayerOptionChoosesTheLevel) {
  const Rig rig;
  Problem problem = good_moe();
  problem.config.set_option("isa", "portable");
  EXPECT_EQ(std::string(rig.library.query(problem.config, 0).support.kernel),
            "bf16_int4_bf16_4x32_portable");
  problem.config.set_option("isa", "sse9");
  problem.config.set_option("stream-k", "1");
  const Answer answer = rig.library.query(problem.config, 0);
  EXPECT_TRUE(answer.has(PERCH_REASON_OPTION, "options.isa")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_OPTION, "options.stream-k")) << answer.print();
}

TEST(HummingCpuSupport, VariantsPromiseDifferentThings) {
  const Rig rig;
  const Answer ordered = rig.library.query(good_moe().config, 0);
  const Answer split = rig.library.query(good_moe().config, 1);
  const perch_caps invariant = PERCH_CAP_BATCH_INVARIANT | PERCH_CAP_EXPERT_LOAD_INVARIANT;
  EXPECT_EQ(ordered.support.caps & invariant, invariant);
  EXPECT_EQ(split.support.caps & invariant, 0u);
  EXPECT_NE(split.support.caps & PERCH_CAP_DETERMINISTIC, 0u);
  EXPECT_GT(split.support.score, ordered.support.score);
  // 3 experts of 80 x 64 and 64 x 40 int4 codes with a bf16 scale per 32; padding comes on top.
  EXPECT_GE(ordered.support.packed_bytes, 3u * (80 * (32 + 4) + 64 * (20 + 4)));
  EXPECT_LE(ordered.support.packed_bytes, 3u * (96 * (32 + 4) + 64 * (20 + 4) + 256));
}

TEST(HummingCpuSupport, AllReasonsAtOnce) {
  const Rig rig;
  Problem problem = good_moe();
  problem.config.first() = make_quant(PERCH_TYPE_E8M0);
  problem.config.second().group_n = 6;
  problem.config.second().scale_dtype = PERCH_TYPE_E2M1;
  problem.config.second().scale2_kind = 9;
  problem.config.second().k_order = 7;
  problem.config.second().flags = 128;
  problem.config.act_first().dtype = PERCH_TYPE_INT8;
  problem.config.act_first().mode = PERCH_ACT_STATIC_GROUP;
  problem.config.moe().activation = 77;
  problem.config.layer().device = {kDLCUDA, 0};
  const Answer answer = rig.library.query(problem.config, 0);
  EXPECT_FALSE(answer.yes());
  EXPECT_TRUE(answer.has(PERCH_REASON_DTYPE, "moe.w13.weight")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_GROUP, "moe.w2.group_n")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_DTYPE, "moe.w2.scale_dtype")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_FIELD_UNKNOWN, "moe.w2.scale2_kind")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_FIELD_UNKNOWN, "moe.w2.k_order")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_FIELD_UNKNOWN, "moe.w2.flags")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_DTYPE, "moe.act13.scale_dtype")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_ACTIVATION, "moe.activation")) << answer.print();
  EXPECT_TRUE(answer.has(PERCH_REASON_DEVICE, "device")) << answer.print();
  EXPECT_NE(answer.print().find("moe.w13.weight: e8m0 (19) is no weight type"), std::string::npos);
}

TEST(HummingCpuSupport, ExtensionThatMustBeUnderstood) {
  const Rig rig;
  Problem problem = good_moe();
  perch_ext skipped{sizeof(perch_ext), 60001, 0, 0, nullptr};
  problem.config.second().next = &skipped;
  EXPECT_TRUE(rig.library.query(problem.config, 0).yes());
  skipped.flags = PERCH_EXT_MUST_UNDERSTAND;
  const Answer answer = rig.library.query(problem.config, 0);
  EXPECT_TRUE(answer.has(PERCH_REASON_EXT_UNKNOWN, "moe.w2.next"));
  EXPECT_NE(answer.print().find("60001"), std::string::npos);
}

TEST(HummingCpuSupport, DescribeTellsWidthsByActivation) {
  const Rig rig;
  for (const uint32_t activation : {PERCH_ACTIVATION_SILU, PERCH_ACTIVATION_RELU2_NO_MUL}) {
    Problem problem = good_moe();
    problem.config.moe().hidden = 2688;
    problem.config.moe().intermediate = 1856;
    problem.config.moe().activation = activation;
    perch_layout layout{};
    std::vector<perch_buffer_layout> buffers(8);
    layout.struct_size = sizeof(layout);
    layout.buffers = buffers.data();
    layout.buffers_capacity = 8;
    const perch_call_shape shape{sizeof(shape), PERCH_FORM_STANDARD, 1};
    ASSERT_EQ(rig.library.api().describe(rig.library.backend(), &problem.config.abi(), 1, &shape,
                                         &layout, nullptr),
              PERCH_OK);
    const int64_t width = activation == PERCH_ACTIVATION_SILU ? 3712 : 1856;
    EXPECT_EQ(layout.matrices[0].n, width);
    EXPECT_EQ(layout.matrices[0].n_padded, width);
    EXPECT_EQ(layout.matrices[1].k, 1856);
    EXPECT_EQ(layout.matrices[1].k_padded, 1856);
    int found = 0;
    for (uint32_t i = 0; i < layout.num_buffers; ++i) {
      const std::string name = buffers[i].name;
      if (name == "gate_up_output") found += buffers[i].shape[1] == width;
      if (name == "activation_output") found += buffers[i].shape[1] == 1856;
    }
    EXPECT_EQ(found, 2);
  }
}

TEST(HummingCpuPrepare, RefusesTensorsByName) {
  const Rig rig;
  const Problem problem = good_moe();
  const perch_backend_api& api = rig.library.api();
  perch_builder* builder = nullptr;
  ASSERT_EQ(api.prepare_begin(rig.library.backend(), &problem.config.abi(), 0, nullptr, &builder,
                              nullptr),
            PERCH_OK);
  const auto put = [&](int32_t expert, const TensorMap& tensors) {
    perch_error error = PERCH_ERROR_INIT;
    const auto named = BackendHarness::name_tensors(tensors);
    const perch_status status =
        api.prepare_put(builder, expert, named.data(), static_cast<uint32_t>(named.size()), &error);
    return status == PERCH_OK ? std::string() : std::string(error.message);
  };
  TensorMap tensors = problem.experts[0];
  tensors.erase("w13.scale");
  EXPECT_EQ(put(0, tensors), "tensor 'w13.scale' is missing");
  tensors = problem.experts[0];
  tensors["w13.bias"] = f32({80}, std::vector<float>(80));
  EXPECT_EQ(put(0, tensors), "tensor 'w13.bias' is not of this layer");
  tensors = problem.experts[0];
  tensors["w3"] = f32({1}, {0});
  EXPECT_EQ(put(0, tensors), "tensor 'w3' is not known here");
  tensors = problem.experts[0];
  tensors["w2"] = u8({64, 19}, std::vector<uint8_t>(64 * 19));
  EXPECT_EQ(put(0, tensors), "tensor 'w2': want uint8 [64, 20]");
  EXPECT_EQ(put(3, problem.experts[0]), "expert 3: want 0 to 2");
  EXPECT_EQ(put(0, problem.experts[0]), "");
  EXPECT_EQ(put(0, problem.experts[0]), "this expert was put before");
  perch_prepared* prepared = nullptr;
  perch_error error = PERCH_ERROR_INIT;
  EXPECT_EQ(api.prepare_end(builder, &prepared, &error), PERCH_E_INVALID_ARGUMENT);
  EXPECT_EQ(std::string(error.message), "expert 1 is missing");
  api.prepare_abort(builder);
}

TEST(HummingCpuWorkspace, NeverLessForMoreTokens) {
  const Rig rig;
  for (const uint32_t variant : {0u, 1u}) {
    const Problem problem = good_moe();
    perch_builder* builder = nullptr;
    perch_prepared* prepared = nullptr;
    const perch_backend_api& api = rig.library.api();
    api.prepare_begin(rig.library.backend(), &problem.config.abi(), variant, nullptr, &builder,
                      nullptr);
    for (int32_t e = 0; e < 3; ++e) {
      const auto named = BackendHarness::name_tensors(problem.experts[static_cast<size_t>(e)]);
      api.prepare_put(builder, e, named.data(), static_cast<uint32_t>(named.size()), nullptr);
    }
    ASSERT_EQ(api.prepare_end(builder, &prepared, nullptr), PERCH_OK);
    uint64_t last = 0;
    for (const int64_t tokens : {0, 1, 2, 3, 4, 5, 6, 16, 17, 1024, 1025, 4096}) {
      const perch_call_shape shape{sizeof(shape), PERCH_FORM_STANDARD, tokens};
      perch_workspace_req request{sizeof(request), 0, 0, 0};
      EXPECT_EQ(api.workspace(prepared, &shape, &request, nullptr), PERCH_OK);
      EXPECT_GE(request.bytes, last);
      last = request.bytes;
    }
    EXPECT_EQ(last, rig.library.query(problem.config, variant).support.workspace_bytes);
    api.prepared_destroy(prepared);
  }
}

}  // namespace
}  // namespace perch::test::humming
