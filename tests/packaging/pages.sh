#!/usr/bin/env bash
# The man page and the completion hold every command and option of the program, and the completion completes.
#   pages.sh PROGRAM PAGES    PAGES: the directory of shiftrt.1 and shiftrt.{bash,zsh,fish}
set -euo pipefail
program=$1 page=$2/shiftrt.1
fail() { echo "$*" >&2; exit 1; }

plain=$(sed 's/\\-/-/g' "$page")
for command in $("$program" --help | awk '/^Subcommands:/ { on = 1; next } /^[^ ]/ { on = 0 } on && NF { print $1 }'); do
  grep -q "^.SH SHIFTRT ${command^^}$" "$page" || fail "$page: no section for $command"
  for option in $("$program" "$command" --help-all | grep -oE '^  -[-a-z,]+' | tr -d ' '); do
    grep -qF -- "$option" <<<"$plain" || fail "$page: no $option of $command"
  done
done
if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww "$page" 2>&1 >/dev/null)
  [ -z "$warnings" ] || fail "$warnings"
fi

expect() { [ "$1" = "$2" ] || fail "the completion of $3 offers \"$1\" instead of \"$2\""; }
source "$2/shiftrt.bash"
completed() {  # completed WORD...: what bash makes of the last word
  COMP_WORDS=("$program" "$@")
  COMP_CWORD=$#
  _shiftrt
  echo "${COMPREPLY[*]}"
}
expect "$(completed gen)" "generate" bash
expect "$(completed ppl --prot)" "--protocol" bash
expect "$(completed ppl --protocol '')" "gptq seq128 harness" bash
expect "$(completed ppl --protocol = ha)" "harness" bash
expect "$(completed run --model '')" "" bash
expect "$(completed eval --calib)" "--calibration-mode --calib" bash
expect "$(program=$program-eval completed --tas)" "--tasks" bash

PATH=$(dirname "$program"):$PATH
if command -v fish >/dev/null; then
  offers() { fish --no-config -c "source '$1/shiftrt.fish'; complete -C '$2'" | sed 's/\t.*//' | paste -sd' '; }
  expect "$(offers "$2" "shiftrt gen")" "generate" fish
  expect "$(offers "$2" "shiftrt ppl --protocol ")" "gptq harness seq128" fish
  expect "$(offers "$2" "shiftrt run --correction=joi")" "--correction=joint" fish
  expect "$(offers "$2" "shiftrt-eval --tas")" "--tasks" fish
else
  echo "not run: the completion of fish, which is not installed" >&2
fi
if command -v zsh >/dev/null; then
  # A terminal of its own, in which the line and Tab are typed, shows the completed line.
  typed() {
    timeout 60 zsh -f -c '
      zmodload zsh/zpty
      zpty shell zsh -f -i
      zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source $1/shiftrt.zsh; stty -echo; print ready-$((1 + 1))"
      zpty -r shell answer "*ready-2*"
      zpty -n -w shell "$2"$'"'\t'"'
      zpty -r shell answer "*$3*" && print found
      zpty -d shell' zsh "$1" "$2" "$3"
  }
  expect "$(typed "$2" "shiftrt gen" "generate")" "found" zsh
  expect "$(typed "$2" "shiftrt run --correction joi" "joint")" "found" zsh
  expect "$(typed "$2" "shiftrt run --prune str" "streamline:")" "found" zsh
else
  echo "not run: the completion of zsh, which is not installed" >&2
fi
