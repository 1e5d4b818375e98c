// A target that must crash: four bytes that only a fuzzer guided by coverage finds soon. Where it
// does not, the other targets' silence means nothing.
#include "fuzz.h"

namespace perch::fuzz {
namespace {

void fuzz_canary(Bytes bytes) {
  // One byte per branch: compared as one word, watching comparisons would do.
  if (bytes.size() < 4 || bytes[0] != 'P') return;
  if (bytes[1] != 'R') return;
  if (bytes[2] != 'C') return;
  if (bytes[3] == 'H') fail("planted bug", "PRCH", __FILE__, __LINE__);
}

}  // namespace
}  // namespace perch::fuzz

PERCH_FUZZ_TARGET(canary, perch::fuzz::fuzz_canary);
