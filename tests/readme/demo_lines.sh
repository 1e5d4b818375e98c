#!/bin/sh
# demo_lines.sh README OUTPUT: every line of the demo that the README shows must stand in OUTPUT,
# but for numbers and for what the CPU decides.
set -eu
mask() {
  sed -e 's/avx512\|avx2\|portable/ISA/g' -e 's/[0-9][0-9.]*/N/g' -e 's/  */ /g' -e 's/ *$//'
}
scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
mask <"$2" >"$scratch/output"
sed -n '/^\$ perch/,/^```/p' -- "$1" | grep -v '^```' | mask >"$scratch/shown"
[ -s "$scratch/shown" ] || { echo "demo_lines.sh: $1 shows no output of the demo" >&2; exit 1; }
while IFS= read -r line; do
  grep -q -x -F -e "$line" -- "$scratch/output" ||
    { printf 'demo_lines.sh: the demo does not print: %s\n' "$line" >&2; exit 1; }
done <"$scratch/shown"
