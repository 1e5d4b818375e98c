#!/bin/sh
# examples.sh CMAKE PREFIX FIXTURES CC CXX: builds the installed examples with these compilers, by
# find_package and by pkg-config, and runs them: a C host, a C++ host, and a backend from outside.
set -eu
cmake=$1 prefix=$2 fixtures=$3 cc=$4 cxx=$5
fail() {
  printf 'examples.sh: %s\n' "$1" >&2
  exit 1
}
for program in "$cc" "$cxx" pkg-config; do
  command -v "$program" >/dev/null || { echo "skipped: $program is not installed"; exit 77; }
done

examples=$prefix/share/perch/examples
work=$prefix.${cc##*/}
libdir=$(dirname -- "$(find "$prefix" -name libperch.so)")
rm -rf -- "$work"
mkdir -p -- "$work"

# expect TEXT COMMAND...: the command succeeds and says this.
expect() {
  text=$1
  shift
  "$@" >"$work/out" 2>&1 || { cat -- "$work/out" >&2; fail "$* failed"; }
  grep -q -F -e "$text" -- "$work/out" || { cat -- "$work/out" >&2; fail "$*: want \"$text\""; }
}

# By find_package.
for example in c cpp plugin; do
  expect 'Generating done' "$cmake" -G Ninja -S "$examples/$example" -B "$work/$example" \
    -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx"
  expect Linking "$cmake" --build "$work/$example"
done
row='model.layers.0.mlp.experts on humming-cpu/1: y[0] = '
expect "$row" "$work/c/host" "$fixtures/qwen3_moe"
expect 'example on humming-cpu/1: y = 9 8' "$work/cpp/host"
expect 'example on reference/0: y = 9 8' "$work/cpp/host" \
  "$prefix/share/perch/configs/reference.yaml"

# By pkg-config. Word splitting is meant.
PKG_CONFIG_PATH=$libdir/pkgconfig
export PKG_CONFIG_PATH
strict='-Wall -Wextra -pedantic -Werror'
"$cc" -std=c99 $strict "$examples/c/host.c" $(pkg-config --cflags --libs perch) \
  -Wl,-rpath,"$libdir" -o "$work/host_c"
"$cxx" -std=c++17 $strict "$examples/cpp/host.cc" $(pkg-config --cflags --libs perch) \
  -Wl,-rpath,"$libdir" -o "$work/host_cc"
"$cxx" -std=c++17 $strict -O2 -shared -fPIC -fvisibility=hidden -Wl,-z,nodelete \
  "$examples/plugin/mine.cc" $(pkg-config --cflags perch-abi) -o "$work/libperch_mine.so"
expect "$row" "$work/host_c" "$fixtures/qwen3_moe"
expect 'example on humming-cpu/1: y = 9 8' "$work/host_cc"

# The backend from outside: one door, nothing of libperch's wanted, listed, chosen, run.
cat >"$work/mine.yaml" <<'END'
version: 1
select:
  rules:
    - match: {}
      use: [mine]
END
for library in "$work/plugin/libperch_mine.so" "$work/libperch_mine.so"; do
  nm -D --defined-only "$library" | sed 's/.* //' >"$work/symbols"
  [ "$(cat -- "$work/symbols")" = perch_backend_entry_v1 ] ||
    { cat -- "$work/symbols" >&2; fail "$library exports more than perch_backend_entry_v1"; }
  ! nm -D --undefined-only "$library" | grep perch_ || fail "$library wants symbols of libperch"
  expect 'mine         0.1      1.0  loaded' "$prefix/bin/perch" list --backend-path "$library"
  expect 'example on mine/0: y = 9 8' "$work/host_cc" "$work/mine.yaml" "$library"
  # Its author checks it with what was installed.
  expect 'mine smoke: 2 cases passed, 0 failed' "$prefix/bin/perch" check --plugin "$library"
done
