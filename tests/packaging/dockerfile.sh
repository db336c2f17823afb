#!/usr/bin/env bash
# Checks a Dockerfile without Docker: its instructions, stages, copied files, scripts, and what images should not hold.
#   dockerfile.sh FILE ROOT    prints file, line and fault, and exits with 1 if there is any
set -euo pipefail
cd "$2"
awk '
  function fault(what) { printf "%s:%d: %s\n", FILENAME, start, what; broken = 1 }
  function exists(path) { return system("test -e \"" path "\"") == 0 }
  BEGIN {
    count = split("FROM RUN COPY WORKDIR ENV ENTRYPOINT", names, " ")
    for (i = 1; i <= count; ++i) known[names[i]] = 1
  }
  /^[ \t]*(#|$)/ { next }
  { if (text == "") start = FNR; sub(/^[ \t]+/, ""); text = text (text == "" ? "" : " ") $0 }
  /\\$/ { sub(/\\$/, "", text); next }
  {
    words = split(text, word, /[ \t]+/)
    if (!(word[1] in known)) fault("unknown instruction " word[1])
    if (stages == 0 && word[1] != "FROM") fault("an instruction before the first FROM")
    if (word[1] == "FROM") {
      if (word[2] !~ /:/ || word[2] ~ /:latest$/) fault("the image " word[2] " names no version")
      if (words != 4 || word[3] != "AS" || word[4] in stage) fault("a stage needs a name of its own: FROM IMAGE AS NAME")
      if (stages > 0 && current !~ /^build/ && !entry) fault("the stage " current " has no ENTRYPOINT")
      stage[word[4]] = ++stages
      current = word[4]
      entry = 0
    }
    if (word[1] == "COPY") {
      if (word[2] ~ /^--from=/) {
        from = substr(word[2], 8)
        if (!(from in stage) || from == current) fault("no stage " from " stands before")
      } else for (i = 2; i < words; ++i) if (!exists(word[i])) fault("there is no " word[i] " to copy")
    }
    if (word[1] == "ENTRYPOINT") { entry = 1; if (text !~ /^ENTRYPOINT \["[^"]+"(, *"[^"]+")*\]$/) fault("ENTRYPOINT is no JSON list") }
    if (word[1] == "RUN") {
      for (i = 2; i <= words; ++i) if (word[i] ~ /^scripts\// && !exists(word[i])) fault("there is no " word[i])
      if (text ~ /apt-get install/) {
        if (text !~ /apt-get update/) fault("apt-get install without apt-get update in the same layer")
        if (text !~ /apt-get install -y --no-install-recommends/) fault("apt-get install without -y --no-install-recommends")
        if (text !~ /rm -rf \/var\/lib\/apt\/lists/) fault("the lists of apt-get stay in the layer")
      }
      if (text ~ /pip install/ && text !~ /--no-cache-dir/) fault("the cache of pip stays in the layer")
    }
    text = ""
  }
  END { if (!entry) { start = FNR; fault("the last stage has no ENTRYPOINT") } exit broken }' "$1"
