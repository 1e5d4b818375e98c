#!/bin/sh
# new_backend.sh CMAKE SOURCE BUILD: the README's recipe for a new backend under a name that nobody
# chose, in a copy of the tree: made, built, refused everywhere, switched on, checked.
set -eu
cmake=$1 source=$2 build=$3
fail() {
  printf 'new_backend.sh: %s\n' "$1" >&2
  exit 1
}

name=b$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')
echo "the name: $name"
work=$build/new_backend_test
rm -rf -- "$work"
mkdir -p -- "$work"
for entry in CMakeLists.txt abi backends tools; do cp -R -- "$source/$entry" "$work/"; done
"$work/tools/new_backend" "$name" >"$work/out" || fail 'tools/new_backend failed'
grep -q "perch check --backend $name" "$work/out" || fail 'it does not say how to check'

# The folder alone, with the helper that every backend is built with.
build_it() {
  {
    cat <<'END'
cmake_minimum_required(VERSION 3.25)
project(alone LANGUAGES C CXX)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
include(GNUInstallDirs)
add_library(perch_warnings INTERFACE)
set(PERCH_BACKEND_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
END
    # From backends/CMakeLists.txt: the function, without the list of folders.
    sed '/^add_subdirectory/d' "$work/backends/CMakeLists.txt"
    cat <<END
add_library(perch_abi INTERFACE)
target_include_directories(perch_abi INTERFACE $work/abi/include)
add_subdirectory($work/backends/$name $name)
END
  } >"$work/CMakeLists.txt"
  "$cmake" -G Ninja -S "$work" -B "$work/build" >"$work/log" 2>&1 &&
    "$cmake" --build "$work/build" >>"$work/log" 2>&1 || { cat -- "$work/log" >&2; fail "$1"; }
}
library=$work/build/lib/libperch_$name.so
perch=$build/bin/perch

build_it 'the new backend does not build'
"$perch" check --plugin "$library" --suite smoke -q >"$work/out" || fail 'a refusal is no failure'
grep -q ' 0 cases passed, 0 failed.* UNSUPPORTED' "$work/out" ||
  { cat "$work/out"; fail 'it does not refuse every case'; }

sed -i 's/kOffersBf16 = false/kOffersBf16 = true/' "$work/backends/$name/backend.cc"
build_it 'the switched-on backend does not build'
"$perch" check --plugin "$library" --suite smoke -q >"$work/out" || { cat "$work/out"; fail 'on'; }
grep -q "$name smoke: [1-9][0-9]* cases passed, 0 failed" "$work/out" || fail 'nothing passed'
tail -n 1 -- "$work/out"
