// kernels.cc - the inventory as a table.
#include "kernels.h"

namespace humming_cpu {

namespace {
constexpr KernelRow kKernels[] = {
#define PERCH_KERNEL(weight, rows, columns, isa, level) \
  {Weight::weight, Isa::level, #weight, #rows "x" #columns "_" #isa, gemm_##weight##_##isa},
#include "kernels.inc"
#undef PERCH_KERNEL
};
}  // namespace

const KernelRow* find_kernel(Weight weight, Isa isa) {
  for (const KernelRow& row : kKernels) {
    if (row.weight == weight && row.isa == isa) return &row;
  }
  return nullptr;
}

const RowKernels& find_row_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return row_kernels_avx512;
  if (isa == Isa::kAvx2) return row_kernels_avx2;
#endif
  return row_kernels_portable;
}

}  // namespace humming_cpu
