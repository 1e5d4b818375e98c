// The bytes of one safetensors file -> its named raw tensors.
//
// Not a file reader (mapped_file.h) and not a loader: no byte of tensor data is copied or looked
// at. The first half of step 2, checkpoint.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/raw_tensor.h"

namespace perch {

// The format's own limit, checked before the length is used for anything.
inline constexpr int64_t kSafetensorsHeaderBytesMax = 100'000'000;

// The tensors in the order of their data (ties, which are zero-size, by name), with data
// pointing into `file` and no RawTensor::file; `path` is for messages only. The string map under
// __metadata__ goes to `metadata` unless that is null.
//
// Every tensor found lies inside `file`; together they cover the data exactly: no hole, no overlap,
// no trailing byte. A failure reads
//   <path>: [tensor "<name>": ]<Error>: got <found>; want <rule>
// where <Error> is a name of the reference reader: HeaderTooSmall, HeaderTooLarge,
// InvalidHeaderLength, InvalidHeader (not UTF-8), InvalidHeaderDeserialization (not the JSON of the
// format), InvalidOffset, ValidationOverflow, MisalignedSlice, TensorInvalidInfo,
// MetadataIncompleteBuffer. Memory is linear in the header, whatever lengths it claims.
//
// What the reference reader accepts and this one does not, on purpose:
//
//   case                                        here                          because
//   a tensor name twice, same entry             InvalidHeaderDeserialization  the format forbids it
//   a tensor name twice, other entry, also      InvalidHeaderDeserialization  likewise (there it is
//     through escapes ("a" and "\u0061")                                      InvalidOffset)
//   a __metadata__ key twice                    InvalidHeaderDeserialization  which one counts?
//   a key twice in or below an unknown field    InvalidHeaderDeserialization  same rule everywhere
//   an entry as an array ["U8",[1],[0,1]]       InvalidHeaderDeserialization  an artefact of serde,
//                                                                             no writer does it
//   a dtype as an object {"U8":null}            InvalidHeaderDeserialization  likewise
//   a product of dims that overflows after      ValidationOverflow            the verdict must not
//     a 0: [0,2^63,2^63]                                                      hang on dim order
//   beside a 0 a dim of 2^63 or more, or        ValidationOverflow            shapes and strides
//     others with such a product                                              are int64 here
Result<std::vector<RawTensor>> parse_safetensors(
    std::span<const std::byte> file, const std::string& path,
    std::map<std::string, std::string>* metadata = nullptr);

}  // namespace perch
