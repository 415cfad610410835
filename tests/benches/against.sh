#!/usr/bin/env bash
# Measures the cells of the performance milestone with the programs of another revision and with those of this tree, in
# turns, and prints the ratios: a machine that is busy for a while is so for both.
#
#   tests/benches/against.sh REVISION [RUNS]     default: 5 runs of each cell and side, about nine minutes
#
# REVISION is what git knows, built in a worktree below target/against, or a folder with holdfast and holdfastd.
# SECS: measured seconds of each run (default 8). BIN: the folder of this tree's programs (default: built now).
# ROWS: where the rows of all runs are appended (default target/against.jsonl).
# Exits with 1 if the median of a cell is more than 5 % worse than the other revision's.

set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/benches/cells.sh

usage() { sed -n '2,/^$/s/^# \{0,1\}//p' "tests/benches/against.sh"; }

case ${1:-} in
  "" | -h | --help) usage && exit $(($# ? 0 : 2)) ;;
esac
revision=$1 runs=${2:-5}
[[ $runs =~ ^[1-9][0-9]*$ ]] || { echo "against.sh: RUNS is a number from 1 on, not '$runs'" >&2; exit 2; }
rows=${ROWS:-target/against.jsonl}
mkdir -p "$(dirname "$rows")"
: "${SECS:=8}"

# Builds the programs of a revision and says where they are.
built() {
  local revision=$1 commit source
  commit=$(git rev-parse --verify --quiet "$revision^{commit}") ||
    { echo "against.sh: '$revision' is neither a folder with holdfastd nor a revision" >&2; return 2; }
  source=target/against/$commit
  [[ -d $source ]] || git worktree add --detach --force "$source" "$commit" >&2
  # Revisions before the profile `dist` shipped what `release` makes.
  local profile=release
  grep -q '^\[profile.dist\]' "$source/Cargo.toml" && profile=dist
  (cd "$source" && CARGO_TARGET_DIR=target cargo build --profile "$profile" --locked --bins >&2)
  echo "$source/target/$profile"
}

new=${BIN:-}
if [[ -z $new ]]; then
  cargo build --profile dist --locked --bins
  new=target/dist
fi
old=$revision
[[ -x $old/holdfastd ]] || old=$(built "$revision")

# Percent by which the new median is worse than the old one; below nothing it is better.
worse() { awk -v old="$1" -v new="$2" -v op="$3" 'BEGIN { printf "%.1f", 100 * (op == "<=" ? new / old - 1 : 1 - new / old) }'; }

missed=0
printf '%-8s %-10s %10s %10s %8s  %-8s %s\n' cell figure old new 'new/old' '' 'other cores'
for cell in "${cells[@]}"; do
  read -r workload clients figure comparison _ <<<"$cell"
  olds="" news="" others=""
  for ((run = 1; run <= runs; run++)); do
    # The side that goes first changes from run to run.
    ((run % 2)) && sides=(old new) || sides=(new old)
    for side in "${sides[@]}"; do
      row=$(run_cell "${!side}" "$workload" "$clients" "$run" "$side")
      value=$(field "$row" "$figure")
      [[ $side == old ]] && olds+="$value"$'\n' || news+="$value"$'\n'
      others+="$(field "$row" other_cores)"$'\n'
    done
  done
  before=$(printf %s "$olds" | median) after=$(printf %s "$news" | median)
  percent=$(worse "$before" "$after" "$comparison")
  verdict=held
  awk -v percent="$percent" 'BEGIN { exit !(percent > 5) }' && verdict=WORSE && missed=1
  printf '%-8s %-10s %10.0f %10.0f %8s  %-8s %s\n' "$workload $clients" "$figure" "$before" "$after" \
    "$(awk -v a="$after" -v b="$before" 'BEGIN { printf "%.3f", a / b }')" "$verdict" "$(printf %s "$others" | median)"
done
exit "$missed"
