#include "bench/limits/limit_loops.h"

namespace perch_bench {

const char* dot_class_name(DotClass dot) {
  return dot == DotClass::kF32 ? "f32" : dot == DotClass::kBf16 ? "bf16" : "int8";
}

std::span<const LoopSet* const> loop_sets() {
  static const LoopSet* const kSets[] = {
    &kLoopsPortable,
#if defined(__x86_64__)
    &kLoopsAvx2,
    &kLoopsAvx512,
    &kLoopsAvx512Vnni,
    &kLoopsAvx512Bf16,
#endif
  };
  return kSets;
}

}  // namespace perch_bench
