#!/usr/bin/env bash
# What it costs to reach the leader through another node: three members on this machine, whose clients reach none of them but the
# one that they are given. Prints each figure direct and through a follower, in one run.
#
#   tests/benches/relayed.sh FOLDER           FOLDER has holdfast and holdfastd
#
# SECS: seconds of each measurement (default 10). ROUNDS: of each cell (default 3). SESSIONS: thousands of sessions that only stay
# alive, direct; through two followers there are twice as many (default 8). Needs curl, and as many open files.

set -euo pipefail

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; }
case ${1:-} in
  "" | -h | --help) usage && exit $(($# ? 0 : 2)) ;;
esac
folder=$1
: "${SECS:=10}" "${ROUNDS:=3}" "${SESSIONS:=8}"
source "$(dirname "$0")/cells.sh"

data=$(mktemp -d) nodes=() clients=()
ended() {
  ((${#nodes[@]} + ${#clients[@]})) && kill -9 "${clients[@]}" "${nodes[@]}" 2>/dev/null || true
  wait 2>/dev/null
  rm -rf "$data"
}
trap ended EXIT

# Clients are told that the members are where nothing listens, so that they stay with the node that they are given.
members() { for n in 1 2 3; do printf '%s=127.9.0.%s:7/127.0.0.1:2743%s ' $n $n $n; done; }
for n in 1 2 3; do
  "$folder/holdfastd" --node-id $n --members "$(members)" --data-dir "$data/$n" --listen 127.0.0.1:2742$n \
    --peer-listen 127.0.0.1:2743$n --admin-listen 127.0.0.1:2744$n >"$data/$n.log" 2>&1 &
  nodes+=($!)
done
metric() { curl -fsS "127.0.0.1:2744$1/metrics" | awk -v name="$2" '$1 == name { print $2 }'; }
leader=""
for ((tries = 0; tries < 100; tries++)); do
  for n in 1 2 3; do [[ $(metric $n holdfast_leader 2>/dev/null) != 1 ]] || leader=$n; done
  [[ -z $leader ]] || break
  sleep 0.2
done
[[ -n $leader ]] || { echo "relayed.sh: no member leads" >&2; exit 1; }
followers=()
for n in 1 2 3; do [[ $n == "$leader" ]] || followers+=("$n"); done
sleep 2

# ---- a cell, direct and relayed in turn ---------------------------------------------------------

run=0
cell() {
  local workload=$1 clients=$2 name=$3 round way row at
  local -A values=()
  for ((round = 1; round <= ROUNDS; round++)); do
    for way in direct relayed; do
      at=$leader
      [[ $way == direct ]] || at=${followers[0]}
      row=$("$folder/holdfast" bench --endpoints "127.0.0.1:2742$at" --json --workload "$workload" --clients "$clients" \
        --secs "$SECS" --run $((++run)))
      values[$way]+="$(field "$row" "$name")"$'\n'
    done
  done
  local direct relayed
  direct=$(printf '%s' "${values[direct]}" | median) relayed=$(printf '%s' "${values[relayed]}" | median)
  awk -v w="$workload/$clients $name" -v d="$direct" -v r="$relayed" \
    'BEGIN { printf "%s: direct %s, through a follower %s, ratio %.2f\n", w, d, r, r / d }'
}
cell W1 1 acq_p50_us
cell W3 10 ops_per_s

# ---- sessions that only stay alive --------------------------------------------------------------

ticks() { awk '{ print $14 + $15 }' "/proc/${nodes[$1 - 1]}/stat"; }
# Opens so many thousand sessions at these nodes in turn, and prints what a second of them costs the leader.
sessions() {
  local name=$1 thousands=$2 settle=25 measured=20 n before after
  shift 2
  local at=("$@")
  clients=()
  for ((n = 0; n < thousands; n++)); do
    "$folder/holdfast" bench --endpoints "127.0.0.1:2742${at[n % ${#at[@]}]}" --workload W4 --clients 1000 --sessions 1000 \
      --secs $((settle + measured + 10)) --run $((++run)) --json >"$data/client-$n.log" 2>&1 &
    clients+=($!)
  done
  sleep $settle
  before=$(ticks "$leader")
  sleep $measured
  after=$(ticks "$leader")
  awk -v name="$name" -v s="$(metric "$leader" holdfast_sessions)" -v t=$((after - before)) -v m=$measured -v hz="$(getconf CLK_TCK)" \
    'BEGIN { printf "%s: %s sessions cost the leader %.3f s of a core in a second\n", name, s, t / hz / m }'
  kill -9 "${clients[@]}" 2>/dev/null || true
  wait "${clients[@]}" 2>/dev/null || true
  clients=()
  # Their leases run out.
  sleep 20
}
sessions direct "$SESSIONS" "$leader"
sessions relayed $((2 * SESSIONS)) "${followers[@]}"
