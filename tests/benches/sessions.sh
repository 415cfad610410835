#!/usr/bin/env bash
# What sessions cost that only stay alive: three members on this machine, processes with 1,000 sessions each, a held
# lock in each session. Prints the CPU of each member and the packets on loopback, each for ten seconds.
#
#   tests/benches/sessions.sh FOLDER...     one after the other; FOLDER has holdfast and holdfastd
#
# SESSIONS: thousands of sessions (default 10). Takes about 50 s for each folder. A member has to be allowed as many
# open files as there are sessions, and 1,400 more. Needs curl.

set -euo pipefail

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }

case ${1:-} in
  "" | -h | --help) usage && exit $(($# ? 0 : 2)) ;;
esac
: "${SESSIONS:=10}"
[[ $SESSIONS =~ ^[1-9][0-9]*$ ]] || { echo "sessions.sh: SESSIONS is a number from 1 on, not '$SESSIONS'" >&2; exit 2; }
settle=20 measured=10

data="" nodes=() clients=()
ended() {
  ((${#nodes[@]} + ${#clients[@]})) && kill -9 "${clients[@]}" "${nodes[@]}" 2>/dev/null || true
  wait 2>/dev/null
  [[ -z $data ]] || rm -rf "$data"
  data="" nodes=() clients=()
}
trap ended EXIT

members() { for n in 1 2 3; do printf '%s=127.0.0.1:2742%s/127.0.0.1:2743%s ' $n $n $n; done; }
# Ticks of processor time of each member.
ticks() { for pid in "${nodes[@]}"; do awk '{ print $14 + $15 }' "/proc/$pid/stat"; done; }
packets() { awk '/lo:/ { print $3 }' /proc/net/dev; }
open_sessions() { curl -fsS 127.0.0.1:27441/metrics | awk '$1 == "holdfast_sessions" { print $2 }'; }

measure() {
  local folder=$1 n before after from to
  data=$(mktemp -d)
  for n in 1 2 3; do
    "$folder/holdfastd" --node-id $n --members "$(members)" --data-dir "$data/$n" --listen 127.0.0.1:2742$n \
      --peer-listen 127.0.0.1:2743$n --admin-listen 127.0.0.1:2744$n >"$data/$n.log" 2>&1 &
    nodes+=($!)
  done
  sleep 6
  for ((n = 1; n <= SESSIONS; n++)); do
    "$folder/holdfast" bench --endpoints 127.0.0.1:27421,127.0.0.1:27422,127.0.0.1:27423 --workload W4 \
      --clients 1000 --sessions 1000 --secs $((settle + 2 * measured + 20)) --run "$n" --json >"$data/client-$n.log" 2>&1 &
    clients+=($!)
  done
  sleep $settle
  mapfile -t before < <(ticks) && from=$(packets)
  sleep $measured
  mapfile -t after < <(ticks) && to=$(packets)
  printf '%s: %s sessions, CPU of the members in %s s:' "$folder" "$(open_sessions)" $measured
  for n in 0 1 2; do awk -v t=$((after[n] - before[n])) -v hz="$(getconf CLK_TCK)" 'BEGIN { printf " %.2f", t / hz }'; done
  printf ' s, packets a second: %s\n' $(((to - from) / measured))
  ended
}

for folder in "$@"; do measure "$folder"; done
