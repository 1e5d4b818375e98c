// The machine's read bandwidth, measured beside a run so that a time can be given as a share of it.
#pragma once

namespace perch_command {

// Bytes per nanosecond that `threads` threads read together from memory that no cache holds: the
// best of several passes over at least 512 MB in 2 MiB pages where the system gives them.
double read_bandwidth_gbps(int threads);

}  // namespace perch_command
