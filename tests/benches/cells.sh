# The cells of the performance milestone, and how a row of `holdfast bench --json` is read; sourced by the scripts beside it.

# Workload, clients, figure, what it may be at most (<=) or must be at least (>=), unit.
cells=(
  "W1 1 acq_p50_us <= 670 µs"
  "W2 64 ops_per_s >= 15000 pairs/s"
  "W3 10 ops_per_s >= 1250 hand-overs/s"
  "W3 100 ops_per_s >= 1250 hand-overs/s"
  "W3 500 ops_per_s >= 1250 hand-overs/s"
)

field() { grep -o "\"$2\":[-0-9.e+]*" <<<"$1" | cut -d : -f 2; }
median() { sort -g | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

# Runs a cell once with the programs of folder $1: workload $2, clients $3, run $4. The row goes to the end of $rows and to
# standard output; $5 is said in it as its side, where two are compared.
run_cell() {
  local row
  row=$("$1/holdfast" bench --json --members 3 --workload "$2" --clients "$3" --secs "$SECS" --run "$4")
  [[ -z ${5:-} ]] || row="{\"side\":\"$5\",${row#\{}"
  echo "$row" >>"$rows"
  [[ $(field "$row" errors) == 0 ]] || { echo "${0##*/}: errors in $row" >&2; return 1; }
  echo "$row"
}
