#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The King James Bible (public domain), 4.1 MB of text, from the Debian package bible-kjv: one document a chapter, every 20th
# chapter held out.
# usage: sh tools/bible_chapters.sh DIRECTORY      writes text.txt, train.jsonl and validation.jsonl
set -eu
directory=$1
mkdir -p "$directory"
bible -f gen1:1-rev22:21 >"$directory/verses.txt"
awk -v train="$directory/train.jsonl" -v validation="$directory/validation.jsonl" '
  function flush() {
    if (text == "") return
    gsub(/\\/, "\\\\", text); gsub(/"/, "\\\"", text)
    print "{\"text\": \"" text "\"}" > (++chapters % 20 == 0 ? validation : train)
  }
  { split($1, place, ":"); $1 = ""; sub(/^ /, "") }
  place[1] != chapter { flush(); chapter = place[1]; text = $0; next }
  { text = text "\\n" $0 }
  END { flush() }' "$directory/verses.txt"
sed 's/^[^ ]* //' "$directory/verses.txt" >"$directory/text.txt"
