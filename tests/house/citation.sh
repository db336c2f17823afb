#!/usr/bin/env bash
# Checks that CITATION.cff, the version of the project and the pages that name the paper agree.
#   citation.sh ROOT           prints what differs, and exits with 1 if anything does
#   citation.sh ROOT --seeded  changes each fact in a copy in turn, and exits with 1 if a change is not found
set -euo pipefail
root=$1

# cff SECTION TREE NAME: a value of CITATION.cff, of the software or of the paper in its references, without quotation marks.
cff() {
  if [ "$1" = software ]; then sed '/^references:/,$d' "$2/CITATION.cff"; else sed '1,/^references:/d' "$2/CITATION.cff"; fi |
    sed -n "s/^[ -]*$3: *//p" | tr -d '"'
}

agree() {
  local tree=$1 differs=0
  same() {
    if [ -n "$2" ] && [ "$2" = "$3" ]; then return; fi
    echo "$1: \"$2\" and \"$3\""
    differs=1
  }
  same "version in CMakeLists.txt and CITATION.cff" \
    "$(sed -n 's/^project(shiftrt VERSION \([0-9.]*\) .*/\1/p' "$tree/CMakeLists.txt")" "$(cff software "$tree" version)"
  same "first author of the paper in README.md and CITATION.cff" \
    "$(sed -nE 's/.*\(([A-Z][a-z]+) et al\., [0-9]{4}\).*/\1/p' "$tree/README.md" | head -1)" "$(cff paper "$tree" family-names | head -1)"
  local years
  years=$(grep -rhoE 'Bahri et al\., [0-9]{4}' "$tree/README.md" "$tree/CITATION.cff" "$tree/docs" | sort -u | sed 's/.*, //' | paste -sd' ')
  same "year of the paper where pages name it" "$years" "$(cff paper "$tree" year)"
  return $differs
}

if [ "${2:-}" != --seeded ]; then agree "$root"; exit; fi

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
missed=0
change() {  # FILE EXPRESSION: what sed changes
  cp -r "$root/README.md" "$root/CITATION.cff" "$root/CMakeLists.txt" "$root/docs" "$copy"
  sed -i "$2" "$copy/$1"
  if cmp -s "$root/$1" "$copy/$1"; then echo "changes nothing: $1 $2"; missed=1; fi
  if agree "$copy" >/dev/null; then echo "not found: $1 $2"; missed=1; fi
}
change README.md 's/Bahri et al., 2026/Bahri et al., 2025/'
change README.md 's/Bahri et al\./Li et al./'
change CITATION.cff 's/^version: .*/version: 9.9.9/'
change CITATION.cff 's/family-names: Bahri/family-names: Li/'
change CITATION.cff '/^references:/,$d'
change CMakeLists.txt 's/^project(shiftrt VERSION [0-9.]*/project(shiftrt VERSION 9.9.9/'
exit $missed
