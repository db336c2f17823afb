#!/usr/bin/env bash
# Checks the command lines of shiftrt in the documentation: every option is in --help-all of its command. An option in prose
# is one of some command, or of another program that the list below names.
#   options.sh PROGRAM FILE...
set -euo pipefail
program=$1
shift
others="--gpus --arch --check --compress-mode --gpus-per-task --mpi --only --prefix --prune-layers --python --seconds --with-transformers"
commands=$("$program" --help | awk '/^Subcommands:/ { on = 1; next } /^[^ ]/ { on = 0 } on && NF { print $1 }')
{
  for command in $commands; do
    "$program" "$command" --help-all | grep -oE -- '--[a-z][a-z0-9-]*' | sort -u | sed "s/^/option $command /"
  done
  for option in $others; do echo "option other $option"; done
} | awk '
  NR == FNR { known[$2, $3] = any[$3] = 1; commands[$2] = 1; next }
  function check(command, option, line) {
    if (command == "" ? option in any : (command, option) in known) return
    printf "%s:%d: %s %s\n", FILENAME, line, command == "" ? "no command has" : "shiftrt " command " lacks", option
    broken = 1
  }
  {
    rest = line $0
    if (rest ~ /\\$/) { sub(/\\$/, " ", rest); line = rest; next }
    line = ""
    prose = rest
    while (match(rest, /shiftrt [a-z]+ [^`#;|)]*/)) {
      words = substr(rest, RSTART + 8, RLENGTH - 8)
      rest = substr(rest, RSTART + RLENGTH)
      command = words
      sub(/ .*/, "", command)
      if (!(command in commands)) continue
      while (match(words, /(^| )--[a-z][a-z0-9-]*/)) {
        option = substr(words, RSTART, RLENGTH)
        sub(/^ /, "", option)
        check(command, option, FNR)
        words = substr(words, RSTART + RLENGTH)
      }
    }
    while (match(prose, /`--[a-z][a-z0-9-]*/)) {
      check("", substr(prose, RSTART + 1, RLENGTH - 1), FNR)
      prose = substr(prose, RSTART + RLENGTH)
    }
  }
  END { exit broken }' - "$@"
