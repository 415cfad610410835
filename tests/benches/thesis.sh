#!/usr/bin/env bash
# Fills the table that the thesis left blank: every lock recipe on three real Cassandra nodes, and the native store beside them,
# for 1 to 100 threads on one key and on keys of their own. Tables and plots go into docs/thesis-benchmark.md.
#
#   tests/benches/thesis.sh            everything, in about two and a half hours; needs java, mvn, cc, python3 (tests/cassandra/nodes)
#
#   SECS       measured seconds of each cell, after 2 s of warm-up [default: 20]
#   RUNS       how often each cell is measured; all cells once, then all again [default: 3]
#   STORES     which of them, in the order in which they are measured [default: all seven]
#   THREADS    how many [default: 1 2 5 10 20 50 100]
#   BIN        the folder of holdfast, holdfastd and holdfast-thesis-table [default: built now, target/release]
#   ROWS       where the rows go, a JSON object a line. ROWS.done names the cells that were measured, and a run that was cut short goes on
#              where it was [default: docs/thesis-benchmark/rows.jsonl, begun anew]
#   NODES      a folder of nodes that run already (tests/cassandra/nodes up) [default: three of its own, `stock`]

set -euo pipefail
cd "$(dirname "$0")/../.."

: "${SECS:=20}" "${RUNS:=3}" "${THREADS:=1 2 5 10 20 50 100}"
: "${STORES:=shadow queue lease bakery tokens-optimistic tokens-lwt native}"
page=docs/thesis-benchmark.md plots=docs/thesis-benchmark
mkdir -p "$plots"
if [[ -z ${ROWS:-} ]]; then
  ROWS=$plots/rows.jsonl
  : >"$ROWS"
  rm -f "$ROWS.done"
fi
touch "$ROWS.done"

if [[ -z ${BIN:-} ]]; then
  cargo build --release --locked --workspace --bins
  BIN=target/release
fi

if [[ -z ${NODES:-} ]]; then
  NODES=$(mktemp -d)/nodes
  trap 'tests/cassandra/nodes down "$NODES"; rm -rf "${NODES%/nodes}"' EXIT
  tests/cassandra/nodes up "$NODES" 3 stock
fi
points=$(tests/cassandra/nodes addresses "$NODES")
on_cassandra=("$BIN/holdfast" cassandra --contact-points "$points" --keyspace thesis)
"${on_cassandra[@]}" schema --apply --replication 3

# store, threads, keys; once for each $run
cell() {
  if grep -qx "$run $*" "$ROWS.done"; then return; fi
  local workload=W3 bench
  if (($3 > 1)); then workload=W2; fi
  if (($2 == 1)); then workload=W1; fi
  if [[ $1 == native ]]; then
    bench=("$BIN/holdfast" bench --json --members 3 --workload "$workload" --clients "$2" --secs "$SECS")
  else
    bench=("${on_cassandra[@]}" "$1" bench --json --clients "$2" --names "$3" --seconds "$SECS")
  fi
  # The longest waits of a cell end 20 s after it; a store that does not come to an end has no row.
  timeout "$((SECS + 90))" "${bench[@]}" >>"$ROWS" || echo "thesis.sh: $1, $2 threads, $3 keys: ended with $?" >&2
  echo "$run $*" >>"$ROWS.done"
}

for run in $(seq "$RUNS"); do
  for threads in $THREADS; do
    for store in $STORES; do
      echo "$(date +%T) run $run: $store, $threads threads" >&2
      cell "$store" "$threads" 1
      if ((threads > 1)); then cell "$store" "$threads" "$threads"; fi
    done
  done
done
rm "$ROWS.done"

"$BIN/holdfast-thesis-table" "$ROWS" "$page" "$plots"
