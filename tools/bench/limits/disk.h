// The disk as a limit: how fast it gives the bytes of a file, past the system's cache.
#pragma once

#include <string>

namespace perch_bench {

// GB/s over the first 256 MiB of the file. 0 where there is nothing to measure: a file below
// 16 MiB, one that cannot be opened, or a file system whose cache cannot be passed by.
double disk_read_gbps(const std::string& path);

}  // namespace perch_bench
