# Checks by shell, for parts of tests/run that are no cargo tests. Sourced; $suite is what stands before the name of each.

passed=0 failed=0 ignored=0
# Outside of every folder that a check may mount something on.
said_by_check=$(mktemp)

# Runs a check, named by its first argument, in this shell, and says how it ended. Its outcome is that of the check.
check() {
  local name=$1
  shift
  if "$@" >"$said_by_check" 2>&1; then
    echo "test $suite::$name ... ok"
    passed=$((passed + 1))
  else
    echo "test $suite::$name ... FAILED"
    sed 's/^/    /' "$said_by_check"
    failed=$((failed + 1))
    return 1
  fi
}

# Says that checks are left out, and why.
ignore() {
  echo "test $suite::$1 ... ignored, $2"
  ignored=$((ignored + 1))
}

# The line of cargo's that tests/run counts; the outcome is that of all checks.
result() {
  local result=ok
  ((failed)) && result=FAILED
  rm -f "$said_by_check"
  echo "test result: $result. $passed passed; $failed failed; $ignored ignored; 0 measured; 0 filtered out"
  ((failed == 0))
}

is() { [[ $1 == "$2" ]] || { echo "it is '$1', not '$2'" && return 1; }; }
has() { grep -qF -- "$2" <<<"$1" || { echo "no '$2' in: $1" && return 1; }; }
within() {
  local seconds=$1 end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    ((SECONDS < end)) || { echo "not within $seconds s: $*" && "$@"; return; }
    sleep 0.1
  done
}

# A folder of devices for a root: new ones, none of the machine's.
make_devices() {
  mount -t tmpfs tmpfs "$1/dev" && mknod -m 666 "$1/dev/null" c 1 3 && mknod -m 666 "$1/dev/zero" c 1 5 &&
    mknod -m 666 "$1/dev/random" c 1 8 && mknod -m 666 "$1/dev/urandom" c 1 9 && ln -s /proc/self/fd "$1/dev/fd"
}
