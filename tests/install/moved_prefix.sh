#!/bin/sh
# moved_prefix.sh CMAKE BUILD PREFIX: installs, moves what was installed to PREFIX, and checks that
# it is complete, free of the paths it was made with, and that its command finds its own libraries.
set -eu
cmake=$1 build=$2 prefix=$3
fail() {
  printf 'moved_prefix.sh: %s\n' "$1" >&2
  exit 1
}

rm -rf -- "$prefix" "$prefix.made"
"$cmake" --install "$build" --prefix "$prefix.made" >"$build/install_test.log" 2>&1 ||
  { cat -- "$build/install_test.log" >&2; fail 'cmake --install failed'; }
mv -- "$prefix.made" "$prefix"

libdir=$(dirname -- "$(find "$prefix" -name libperch.so)")
for file in "$prefix/include/perch/base.h" "$prefix/include/perch/perch.hpp" \
  "$libdir/libperch.so.1" "$libdir/perch/default.yaml" "$libdir/perch/cases/smoke.cases" \
  "$libdir/perch/backends/libperch_reference.so" "$libdir/perch/backends/libperch_humming_cpu.so" \
  "$libdir/cmake/perch/perchConfig.cmake" "$libdir/pkgconfig/perch.pc" \
  "$libdir/pkgconfig/perch-abi.pc" "$prefix/bin/perch"; do
  [ -e "$file" ] || fail "$file was not installed"
done
[ -z "$(find "$prefix" -name 'libperch_template*')" ] || fail 'the template backend was installed'
readelf -d "$libdir/libperch.so" | grep -q 'SONAME.*\[libperch.so.1\]' || fail 'wrong SONAME'
for file in "$libdir"/*.so "$libdir"/perch/backends/*.so "$prefix/bin/perch"; do
  ! readelf -d "$file" | grep -E '(RPATH|RUNPATH)' | grep -v -F '[$ORIGIN' || fail "rpath of $file"
done
! grep -r -F -l -e "$prefix" -e "$build" "$libdir/cmake" "$libdir/pkgconfig" ||
  fail 'these files hold a path of this machine'

"$prefix/bin/perch" list --json >"$build/install_test.log"
for id in reference humming-cpu; do
  grep -q "\"id\": \"$id\"" "$build/install_test.log" || fail "perch list does not show $id"
done
grep -q -F "\"$libdir/perch/backends" "$build/install_test.log" ||
  fail 'perch list does not show the moved place'
