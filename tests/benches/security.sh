#!/usr/bin/env bash
# What security costs, as ratios in one run: the same cells without TLS, with TLS, and with TLS and rules, in turns on three
# clusters of three nodes; and a quiet client beside 10,000 connections that begin a handshake and say no more.
#
#   tests/benches/security.sh [RUNS]     default: 3 runs of each cell and side, about six minutes
#
# SECS: measured seconds of each run (default 5). BIN: the folder of the programs (default: built now).
# Exits with 1 if W2 keeps less than 85 % of its rate with all on, or the p99 of the quiet client more than doubles.
# Needs python3, which opens the connections.

set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/benches/cells.sh

case ${1:-} in -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "$0" && exit 0 ;; esac
runs=${1:-3}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { echo "security.sh: RUNS is a number from 1 on, not '$runs'" >&2; exit 2; }
command -v python3 >/dev/null || { echo "security.sh: python3 is missing" >&2; exit 2; }
: "${SECS:=5}"
bin=${BIN:-}
[[ -n $bin ]] || { cargo build --profile dist --locked --bins && bin=target/dist; }

folder=$(mktemp -d)
started=()
end() {
  ((${#started[@]})) && kill -9 "${started[@]}" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$folder"
}
trap end EXIT

sides=(off tls rules)
declare -A first_port=([off]=17500 [tls]=17600 [rules]=17700)
address() { echo "127.0.0.1:$((first_port[$1] + 10 * $2 + $3))"; }
endpoints() { echo "$(address "$1" 1 0),$(address "$1" 2 0),$(address "$1" 3 0)"; }

"$bin/holdfast" cert ca --dir "$folder/certs" >/dev/null
for id in 1 2 3; do "$bin/holdfast" cert node --dir "$folder/certs" --id "$id" --address 127.0.0.1 >/dev/null; done
"$bin/holdfast" cert client --dir "$folder/certs" ops >/dev/null
"$bin/holdfast" cert client --dir "$folder/certs" bench >/dev/null

start() {
  local side=$1 id members="" tls
  for id in 1 2 3; do
    members+="{ node_id = $id, advertise = \"$(address "$side" "$id" 0)\", peer_advertise = \"$(address "$side" "$id" 1)\" },"
  done
  for id in 1 2 3; do
    printf 'node_id = %s\nlisten = "%s"\npeer_listen = "%s"\nadmin_listen = "%s"\n[cluster]\nadmins = ["cn:ops"]\nmembers = [%s]\n' \
      "$id" "$(address "$side" "$id" 0)" "$(address "$side" "$id" 1)" "$(address "$side" "$id" 2)" "$members" \
      >"$folder/$side-$id.toml"
    tls=()
    [[ $side == off ]] || tls=(--tls-cert "$folder/certs/node-$id.pem" --tls-key "$folder/certs/node-$id.key" --tls-ca "$folder/certs/ca.pem")
    "$bin/holdfastd" --config "$folder/$side-$id.toml" --data-dir "$folder/$side-$id" "${tls[@]}" 2>"$folder/$side-$id.log" &
    started+=($!)
  done
}

# Runs holdfast against a side, as the client $2.
at() {
  local side=$1 who=$2 tls=()
  shift 2
  [[ $side == off ]] || tls=(--ca "$folder/certs/ca.pem" --cert "$folder/certs/$who.pem" --key "$folder/certs/$who.key")
  "$bin/holdfast" --endpoints "$(endpoints "$side")" "${tls[@]}" "$@"
}

for side in "${sides[@]}"; do start "$side"; done
for side in "${sides[@]}"; do at "$side" ops lock probe -- true; done
at rules ops auth role set bench acquire read status >/dev/null
at rules ops auth assign cn:bench bench >/dev/null
at rules ops auth enable >/dev/null

# The figure of one run.
measured() {
  local row
  row=$(at "$1" bench bench --json --workload "$2" --clients "$3" --secs "$SECS")
  [[ $(field "$row" errors) == 0 ]] || { echo "security.sh: errors in $row" >&2; return 1; }
  field "$row" "$4"
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.3f", a / b }'; }

missed=0
printf '%-8s %-11s %10s %10s %10s %8s %8s\n' cell figure off tls rules tls/off rules/off
for cell in "W1 1 acq_p50_us" "W2 64 ops_per_s" "W3 10 ops_per_s"; do
  read -r workload clients figure <<<"$cell"
  declare -A values=([off]="" [tls]="" [rules]="")
  for ((run = 0; run < runs; run++)); do
    # Another side goes first each time.
    for ((turn = 0; turn < 3; turn++)); do
      side=${sides[$(((run + turn) % 3))]}
      values[$side]+="$(measured "$side" "$workload" "$clients" "$figure")"$'\n'
    done
  done
  for side in "${sides[@]}"; do values[$side]=$(printf %s "${values[$side]}" | median); done
  kept=$(ratio "${values[rules]}" "${values[off]}")
  printf '%-8s %-11s %10.0f %10.0f %10.0f %8s %8s\n' "$workload $clients" "$figure" "${values[off]}" "${values[tls]}" "${values[rules]}" \
    "$(ratio "${values[tls]}" "${values[off]}")" "$kept"
  [[ $workload != W2 ]] || awk -v kept="$kept" 'BEGIN { exit !(kept < 0.85) }' && missed=1
done

# 10,000 connections to the leader's port for clients: each sends the first bytes of a handshake and waits; one that the node
# closes begins anew after five seconds, as long as a handshake may take: about 2,000 begin in each second.
flood() {
  exec python3 - "$1" <<'PYTHON'
import asyncio, resource, sys

resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
host, port = sys.argv[1].split(":")

async def half_open(number):
    await asyncio.sleep(number / 2000)
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(bytes([22, 3, 1, 2, 0, 1]))
            await reader.read()
            writer.close()
        except OSError:
            pass
        await asyncio.sleep(5)

async def main():
    await asyncio.gather(*(half_open(number) for number in range(10_000)))

asyncio.run(main())
PYTHON
}

leader=$(at tls ops cluster status | awk '$2 == "leader" { print $3 }')
declare -A p99=([quiet]="" [flooded]="")
for ((run = 0; run < runs; run++)); do
  p99[quiet]+="$(measured tls W1 1 acq_p99_us)"$'\n'
  flood "$leader" &
  flooding=$!
  started+=("$flooding")
  sleep 6
  p99[flooded]+="$(measured tls W1 1 acq_p99_us)"$'\n'
  kill -9 "$flooding"
  wait "$flooding" 2>/dev/null || true
  sleep 6
done
quiet=$(printf %s "${p99[quiet]}" | median) flooded=$(printf %s "${p99[flooded]}" | median)
grown=$(ratio "$flooded" "$quiet")
printf 'a quiet client: p99 %.0f µs, beside 10,000 half-open handshakes %.0f µs: %s\n' "$quiet" "$flooded" "$grown"
awk -v grown="$grown" 'BEGIN { exit !(grown > 2) }' && missed=1
exit "$missed"
