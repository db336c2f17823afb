#!/usr/bin/env bash
# The man page and the completion hold every command and option of the program, and the completion completes.
#   pages.sh PROGRAM PAGES    PAGES: the directory of shiftrt.1 and shiftrt.bash
set -euo pipefail
program=$1 page=$2/shiftrt.1 completion=$2/shiftrt.bash
fail() { echo "$*" >&2; exit 1; }

plain=$(sed 's/\\-/-/g' "$page")
for command in $("$program" --help | awk '/^Subcommands:/ { on = 1; next } /^[^ ]/ { on = 0 } on && NF { print $1 }'); do
  grep -q "^.SH SHIFTRT ${command^^}$" "$page" || fail "$page: no section for $command"
  for option in $("$program" "$command" --help | grep -oE '^  -[-a-z,]+' | tr -d ' '); do
    grep -qF -- "$option" <<<"$plain" || fail "$page: no $option of $command"
  done
done
if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww "$page" 2>&1 >/dev/null)
  [ -z "$warnings" ] || fail "$warnings"
fi

source "$completion"
completed() {  # completed WORD...: what the last word may become
  COMP_WORDS=("$@")
  COMP_CWORD=$(($# - 1))
  _shiftrt
  echo "${COMPREPLY[*]}"
}
expect() { [ "$1" = "$2" ] || fail "the completion offers \"$1\" instead of \"$2\""; }
expect "$(completed shiftrt gen)" "generate"
expect "$(completed shiftrt ppl --prot)" "--protocol"
expect "$(completed shiftrt ppl --protocol '')" "gptq seq128 harness"
expect "$(completed shiftrt run --model '')" ""
expect "$(completed shiftrt-eval --tas)" "--tasks"
