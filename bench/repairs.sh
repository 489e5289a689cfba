# What the benches of repair share, on top of lib.sh: a cluster on a real ZooKeeper, ledgers, who repairs, what its metadata show
# meanwhile. Sourced by them.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export BK_VERSION=4.18.0

# Who repairs: the bookies with their default budget, the bookies without a limit, and AutoRecovery, with its defaults and tuned.
# Batches are how many entries it reads before it waits for all of them to be written; `throttle` is what its client reads in a second
# (5,000 by default, 0 for no limit); java-batch-reads also asks for these entries in one request, which it does of ledgers that are not
# striped, over v2.
repairers=(ours ours-unlimited java-default java-tuned java-batch-reads)
check_who() { # names: dies unless each is one of them
  local who
  for who in "$@"; do [[ " ${repairers[*]} " = *" $who "* ]] || die "--who $who: one of ${repairers[*]}"; done
}

start_cluster() { # who repairs, bookies, seconds until a bookie is lost: sets $zk, and ids[n], pids[n] and admins[n] of b0, b1, ...
  local n
  rm -rf "$scratch"/b? "$scratch/auto" "$scratch/zk"
  started=() ids=() pids=() admins=() autorecovery=
  start_zk --set "$zk_words"
  export BINDERY_METADATA=zk+hierarchical://$zk/ledgers
  for ((n = 0; n < $2; n++)); do add_bookie "$1" "$3"; done
}

add_bookie() { # who repairs, seconds until a bookie is lost: the next one
  local n=${#ids[@]}
  bookie_settings "$@"
  start_bindery "b$n" "${settings[@]}"
  ids+=("$bookie") pids+=("$(cat "$scratch/b$n/pid")") admins+=("$admin")
}

start_again() { # number of a bookie that ended, who repairs, seconds until a bookie is lost
  bookie_settings "$2" "$3"
  "$peer/start-bindery-bookie" --data "$scratch/b$1" --zk "$zk" --port "${ids[$1]##*:}" --admin-port "${admins[$1]##*:}" "${settings[@]}" \
    >>"$scratch/b$1.out" 2>&1 || { cat "$scratch/b$1.out" >&2; die "b$1 does not start again"; }
}

bookie_settings() { # who repairs, seconds until a bookie is lost: sets the array settings
  settings=(--set autoRecoveryDaemonEnabled=false)
  case $1 in ours*) settings=(--set autoRecoveryDaemonEnabled=true --set "lostBookieRecoveryDelay=$2") ;; esac
  [ "$1" != ours-unlimited ] || settings+=(--set replicationRateByBytes=-1)
  settings+=(-- --memory-limit 512MiB)
}

start_repairer() { # who: the daemon, where one repairs; returns when it is the auditor, and at rest
  local settings=()
  case $1 in
    java-tuned) settings=(throttle=0 rereplicationEntryBatchSize=100) ;;
    java-batch-reads) settings=(throttle=0 rereplicationEntryBatchSize=100 recoveryBatchReadEnabled=true) ;;
  esac
  case $1 in java-*)
    write_java_conf useV2WireProtocol=true ${settings[@]+"${settings[@]}"}
    start_autorecovery -Xmx512m -Dpeer.log.level=warn
    sleep 5 ;;
  *)
    wait_for 120 "a bookie is the auditor" has_auditor
    sleep 1 ;;
  esac
}
has_auditor() { ! "$BINDERY" cluster repair status | grep -q 'auditor  *none'; }

stop_cluster() {
  local dir pid
  for dir in "${started[@]}"; do
    pid=$(cat "$dir/pid" 2>/dev/null) && is_ours "$pid" "$dir" && kill -9 "$pid" && wait_gone "$pid"
  done
  rm -rf "$scratch"/b?
}

make_lines() { # file, entries, bytes of each with its newline
  local line
  printf -v line '%*s' $(($3 - 1)) ''
  yes "${line// /x}" | head -n "$2" >"$1" || [ ${PIPESTATUS[1]} = 0 ] || die "cannot write $1"
}

new_ledger() { # quorum as E/Qw/Qa, bookies that it is on, bookies that it is not on: sets $ledger
  local e w a shown try id fits
  IFS=/ read -r e w a <<<"$1"
  for ((try = 0; try < 500; try++)); do
    ledger=$("$BINDERY" ledger create --ensemble "$e" --write-quorum "$w" --ack-quorum "$a") || die "cannot create a ledger"
    shown=$("$BINDERY" ledger show "$ledger" --json) || die "cannot show ledger $ledger"
    fits=1
    for id in $2; do [[ $shown = *"\"$id\""* ]] || fits=; done
    for id in $3; do [[ $shown != *"\"$id\""* ]] || fits=; done
    [ -z "$fits" ] || return 0
    "$BINDERY" ledger delete --yes "$ledger" >/dev/null || die "cannot delete ledger $ledger"
  done
  die "no ledger came to be on $2 and not on ${3:-others}"
}

write_ledger() { # quorum, bookies that it is on, bookies that it is not on, file: closed
  new_ledger "$1" "$2" "$3"
  "$BINDERY" ledger append "$ledger" "$4" --close --quiet || die "cannot write ledger $ledger"
}

copies_on() { # bookies: a line for each ledger that names one of them, as bench/timeline reads it
  "$BINDERY" ledger list | while read -r ledger; do "$BINDERY" ledger show "$ledger" --json; done | python3 -c '
import json, sys
for line in sys.stdin:
    ledger = json.loads(line)
    e, w, (segment,) = ledger["ensemble_size"], ledger["write_quorum_size"], ledger["segments"]
    at = [segment["bookies"].index(lost) if lost in segment["bookies"] else None for lost in sys.argv[1:]]
    had = [0 if n is None else sum((n - entry % e) % e < w for entry in range(ledger["last_entry"] + 1)) for n in at]
    if any(had):
        print(ledger["ledger_id"], *had)' "$@"
}

# bench/timeline in the background, with its options: $timeline is its pid; it reads $to_timeline, and its object comes to $scratch/timeline.
start_timeline() {
  rm -f "$scratch/go" && mkfifo "$scratch/go"
  : >"$scratch/timeline"
  "$repo/bench/timeline" --zk "$zk" "$@" <"$scratch/go" >"$scratch/timeline" 2>"$scratch/timeline.err" &
  timeline=$!
  exec {to_timeline}>"$scratch/go"
  timeline_is_ready() { grep -q ready "$scratch/timeline" || { is_alive $timeline || end_timeline; return 1; }; }
  wait_for 120 "the metadata of all ledgers are read" timeline_is_ready
}
end_timeline() { # waits for it: sets $seen
  local rc=0
  exec {to_timeline}>&-
  wait $timeline || rc=$?
  [ $rc = 0 ] || { cat "$scratch/timeline.err" >&2; die "the copies did not come back"; }
  seen=$(tail -n 1 "$scratch/timeline")
}

pids_of() { local IFS=,; echo "$*"; }

all_sound() { "$BINDERY" ledger verify --all >"$scratch/verified" 2>&1 || { tail -20 "$scratch/verified" >&2; die "copies are missing"; }; }

# The entries that a worker copied: ours counts them, and of Java's they are the adds that bookies took.
copied_entries() { # who, admin ports
  local who=$1; shift
  case $who in
    ours*) metric bindery_repair_entries "$@" ;;
    *) metric bookkeeper_server_ADD_ENTRY_REQUEST_count "$@" ;;
  esac
}
