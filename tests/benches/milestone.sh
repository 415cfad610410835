#!/usr/bin/env bash
# Measures the cells of the performance milestone and sets their medians beside the targets: three members on this
# machine, every answer synced. Say what else ran by the last column: a cell is worth something below 0.3 cores.
#
#   tests/benches/milestone.sh [RUNS]     default: 3 runs of each cell, about three minutes
#
# SECS: measured seconds of each run (default 8). BIN: the folder of holdfast and holdfastd (default: built now,
# target/dist). The rows of all runs are appended to ROWS (default target/milestone.jsonl). Exits with 1 if a target
# is missed.

set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/benches/cells.sh

runs=${1:-3}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { echo "milestone.sh: RUNS is a number from 1 on, not '$runs'" >&2; exit 2; }
bin=${BIN:-}
if [[ -z $bin ]]; then
  cargo build --profile dist --locked --bins
  bin=target/dist
fi
rows=${ROWS:-target/milestone.jsonl}
mkdir -p "$(dirname "$rows")"
: "${SECS:=8}"

holds() { awk -v a="$1" -v b="$3" -v op="$2" 'BEGIN { exit !(op == "<=" ? a <= b : a >= b) }'; }

missed=0
judge() { # median, comparison, target: sets $verdict
  verdict=met
  holds "$@" || { verdict=MISSED && missed=1; }
}

declare -A medians
printf '%-8s %-10s %12s %20s  %-7s %s\n' cell figure median target '' 'other cores'
for cell in "${cells[@]}"; do
  read -r workload clients figure comparison target unit <<<"$cell"
  figures="" others=""
  for ((run = 1; run <= runs; run++)); do
    row=$(run_cell "$bin" "$workload" "$clients" "$run")
    figures+="$(field "$row" "$figure")"$'\n'
    others+="$(field "$row" other_cores)"$'\n'
  done
  middle=$(printf %s "$figures" | median)
  medians["$workload $clients"]=$middle
  judge "$middle" "$comparison" "$target"
  printf '%-8s %-10s %12.0f %20s  %-7s %s\n' "$workload $clients" "$figure" "$middle" "$comparison $target $unit" \
    "$verdict" "$(printf %s "$others" | median)"
done

flat=$(awk -v a="${medians["W3 500"]}" -v b="${medians["W3 10"]}" 'BEGIN { printf "%.2f", a / b }')
judge "$flat" ">=" 0.9
printf '%-8s %-10s %12s %20s  %-7s\n' W3 '500 : 10' "$flat" '>= 0.90' "$verdict"
exit "$missed"
