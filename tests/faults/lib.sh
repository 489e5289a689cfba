# sourced by the scripts beside it: a coordinator, bookies that may run under strace, a load that remembers, V, results
faults=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$faults/../interop/lib.sh"
unset RUST_LOG BINDERY_METADATA
ACKED=${ACKED:-$(dirname "$BINDERY")/examples/acked}
seed=${FAULTS_SEED:-$((RANDOM * 32768 + RANDOM))}
quick=${FAULTS_QUICK:-}
RANDOM=$((seed % 32768))
faults_found=0 runs=0 injections=0 missed=0 acknowledged=0 lost=0 restarts=()
TRACER=() # put before the next bookie's command
MORE=()   # further options of every bookie
# Everything that a bookie does to its disks happens within seconds.
CONF=${CONF:-"flushInterval=250
journalMaxSizeMB=16
gcWaitTime=1000
minorCompactionInterval=2
minorCompactionThreshold=0.5"}

fault() { echo "  FAULT: $*"; faults_found=$((faults_found + 1)); }
say() { echo "  $*"; }
now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo $((t / 1000)); }
below() { echo $(((RANDOM * 32768 + RANDOM) % $1)); } # a number below $1
field() { sed -n "s/.*[ {]$1=\([^ ]*\).*/\1/p" <<<"$2" | tail -n 1; } # the value behind $1= in text $2

need_tools() { # tools: all that a script cannot do without, or the end
  local t
  for t in "$@"; do
    command -v "$t" >/dev/null || die "$t is missing: run tests/faults/run --install, or install its Debian package"
  done
  [ -x "$ACKED" ] || die "no load driver at $ACKED; run: cargo build -p bindery-cli --example acked"
  need_bindery
}
need_root() { [ "$(id -u)" = 0 ] || die "this fault needs root (mounts): run it as root"; }
can_trace() { strace -D -f -o /dev/null true 2>/dev/null || die "strace may not trace here: run as root, or allow ptrace"; }

start_coordinator() { # sets $zk and BINDERY_METADATA; the coordinator itself is not under any fault
  take_port; zk=127.0.0.1:$port
  take_port; local unused=$port; take_port
  started+=("$scratch/c")
  mkdir -p "$scratch/c"
  "$BINDERY" standalone --data "$scratch/c/data" --bookies 0 --bookie-port "$unused" --coordinator-port "${zk##*:}" --oxia-port 0 \
    --admin-port "$port" >>"$scratch/c/log" 2>&1 </dev/null &
  echo $! >"$scratch/c/pid"
  disown
  wait_ready 180 "$(cat "$scratch/c/pid")" "$scratch/c/log" grep -qs '^  to stop' "$scratch/c/log"
  export BINDERY_METADATA=zk+hierarchical://$zk/ledgers
  "$BINDERY" cluster init --metadata "$BINDERY_METADATA" >"$scratch/c/init" 2>&1 || die "cluster init: $(cat "$scratch/c/init")"
}

declare -A port_of admin_of pid_of data_of dirs_of
is_ready() { ask "${admin_of[$1]}" 'GET /api/v1/bookie/is_ready HTTP/1.0\r\n\r\n' | head -n 1 | grep -q ' 200 '; }
state_of() { ask "${admin_of[$1]}" 'GET /api/v1/bookie/state HTTP/1.0\r\n\r\n' | tail -n 1; }
is_read_only() { grep -q '"readOnly":true' <<<"$(state_of "$1")"; }
bookie_id() { echo "127.0.0.1:${port_of[$1]}"; }

# launch NAME: starts the bookie (data in $scratch/NAME/data, or ${data_of[NAME]}, or where the flags ${dirs_of[NAME]} say) and waits
# until it serves or ends.
# True when it serves; sets $took (ms). Otherwise $rc is its exit code. Its log since the start is $scratch/NAME/log.
launch() {
  local name=$1 dir=$scratch/$1 t0 limit=${START_MAX:-120}
  mkdir -p "$dir"
  if [ -z "${port_of[$name]:-}" ]; then
    take_port; port_of[$name]=$port; take_port; admin_of[$name]=$port
    started+=("$dir")
  fi
  [ -f "$dir/log" ] && cat "$dir/log" >>"$dir/log.before"
  printf '%s\n' "$CONF" >"$dir/bookie.conf"
  local dirs=(--data "${data_of[$name]:-$dir/data}")
  [ -z "${dirs_of[$name]:-}" ] || read -ra dirs <<<"${dirs_of[$name]}"
  t0=$(now_ms)
  "${TRACER[@]}" "$BINDERY" bookie --metadata "$BINDERY_METADATA" "${dirs[@]}" --config "$dir/bookie.conf" \
    --listen "${LISTEN_IP:-127.0.0.1}:${port_of[$name]}" --admin "127.0.0.1:${admin_of[$name]}" --allow-loopback --memory lazy \
    --memory-limit "${MEMORY_LIMIT:-192MiB}" "${MORE[@]}" >"$dir/log" 2>&1 </dev/null &
  pid_of[$name]=$!
  echo "${pid_of[$name]}" >"$dir/pid"
  until is_ready "$name"; do
    if ! is_alive "${pid_of[$name]}"; then
      wait "${pid_of[$name]}" 2>/dev/null; rc=$?
      pid_of[$name]=
      return 1
    fi
    if [ $(($(now_ms) - t0)) -gt $((limit * 1000)) ]; then
      fault "$name does not serve after $limit s and does not end: $(tail -n 2 "$dir/log")"
      kill_bookie "$name"; rc=124
      return 1
    fi
    sleep 0.02
  done
  took=$(($(now_ms) - t0))
}

kill_bookie() { # name: kill -9
  local pid=${pid_of[$1]:-}
  [ -n "$pid" ] || return 0
  kill -9 "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
  wait_gone "$pid" || die "process $pid survives kill -9"
  pid_of[$1]=
}

stop_bookie() { # name: SIGTERM; its exit code is the result
  local pid=${pid_of[$1]:-} code
  [ -n "$pid" ] || return 0
  kill "$pid" 2>/dev/null
  wait_gone "$pid" 30 || { fault "$1 does not stop within 30 s"; kill -9 "$pid"; }
  wait "$pid" 2>/dev/null; code=$?
  pid_of[$1]=
  return $code
}

restart() { # name: must serve; its time counts
  TRACER=()
  if launch "$1"; then restarts+=("$took"); return 0; fi
  fault "$1 does not start again (exit code $rc): $(tail -n 1 "$scratch/$1/log" | cut -c1-400)"
  return 1
}

# ended_as_documented NAME CODE: a bookie that ended by itself said why, with a documented exit code, without a panic
ended_as_documented() {
  case $2 in 1|3|4) ;; *) fault "$1 ended with exit code $2: $(tail -n 2 "$scratch/$1/log" | cut -c1-400)" ;; esac
  grep -q '^bindery: ' "$scratch/$1/log" || fault "$1 ended with $2 and did not say why: $(tail -n 1 "$scratch/$1/log" | cut -c1-300)"
  no_panic "$1"
}
no_panic() { ! grep -q 'panicked at' "$scratch/$1/log" || fault "$1 panicked: $(grep -A1 'panicked at' "$scratch/$1/log" | head -n 2 | cut -c1-300)"; }
memory_bounded() { # name: the most it ever had, against its limit, redb's caches and what a process costs
  local kib; kib=$(sed -n 's/^VmHWM:[[:space:]]*\([0-9]*\) kB/\1/p' "/proc/${pid_of[$1]}/status" 2>/dev/null)
  [ -z "$kib" ] || [ "$kib" -lt $(((192 + 96) * 1024)) ] || fault "$1 used $kib KiB with a limit of 192 MiB"
}

load() { # options: sets $out; acknowledged entries count, wrong reads are faults
  out=$("$ACKED" load --log "$scratch/acks" "$@" 2>&1) || fault "during the load: $(tail -n 3 <<<"$out")"
  local n; n=$(field acknowledged "$out")
  [ -n "$n" ] || fault "the load itself failed: $(tail -n 2 <<<"$out")"
  acknowledged=$((acknowledged + ${n:-0}))
}

verified() { # options: V over the log; counts what is lost
  out=$("$ACKED" verify --log "$scratch/acks" "$@" 2>&1) && return 0
  local m c; m=$(field missing "$out") c=$(field changed "$out")
  lost=$((lost + ${m:-0} + ${c:-0}))
  fault "V: $(head -n 3 <<<"$out") $(tail -n 1 <<<"$out")"
  return 1
}
fences_hold() { out=$("$ACKED" fence --check --log "$scratch/acks" --bookie "$(bookie_id "$1")" 2>&1) || fault "fences: $(tail -n 3 <<<"$out")"; }
sound() { # name: the stopped bookie's disks are as they should be
  out=$("$BINDERY" verify "${data_of[$1]:-$scratch/$1/data}" 2>&1) || fault "bindery verify: $(grep -v '^note' <<<"$out" | head -n 4)"
}

# injected FILE: the number of calls that strace tampered with
injected() { [ -f "$1" ] && grep -c -e '(INJECTED)' -e '(DELAYED)' "$1" || true; }

new_cluster() { # forgets everything of the cluster before, its coordinator included
  local name pid
  for name in "${!pid_of[@]}"; do kill_bookie "$name"; done
  if [ -f "$scratch/c/pid" ]; then
    pid=$(cat "$scratch/c/pid"); kill -9 "$pid" 2>/dev/null; wait_gone "$pid"
  fi
  rm -rf "${scratch:?}"/*
  started=()
  start_coordinator
}

quantile() { # q in percent, numbers...
  local q=$1; shift
  [ $# -gt 0 ] || { echo -; return; }
  printf '%s\n' "$@" | sort -n | awk -v q="$q" '{v[NR] = $1} END {i = int((NR - 1) * q / 100 + 0.5) + 1; print v[i]}'
}

# report ID WHAT: the last line of every script; its exit code says whether all held
report() {
  local line
  line="$1|$runs|$injections|$acknowledged|$lost|$faults_found|$(quantile 50 "${restarts[@]}")|$(quantile 99 "${restarts[@]}")|$(quantile 100 "${restarts[@]}")|$2"
  [ -z "${FAULTS_RESULTS:-}" ] || echo "$line" >>"$FAULTS_RESULTS"
  echo "$1: runs=$runs injections=$injections acknowledged=$acknowledged lost=$lost faults=$faults_found" \
    "restart p50/p99/max=$(cut -d'|' -f7-9 <<<"$line" | tr '|' '/') ms seed=$seed: $2"
  [ $injections -gt 0 ] || { echo "$1: FAILED: nothing was injected, so nothing was shown"; return 1; }
  [ $acknowledged -gt 0 ] || { echo "$1: FAILED: nothing was acknowledged, so nothing was shown"; return 1; }
  [ $faults_found = 0 ]
}
