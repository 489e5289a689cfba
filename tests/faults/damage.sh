# sourced by X19 and X20: one bookie of three (E3 Qw3 Qa2) is damaged, in one place after the other, each time from the same
# data, offline (before a start) and live (while it serves). What must hold each time:
#   - V for clients of all three; a ledger left open is recovered with the damaged bookie among those asked
#   - the damaged bookie, asked directly for all it had: the same bytes or an error, never "no such entry", never others
#   - what `bindery verify` calls sound is all there; damage is reported with its file and something to do, by verify, or by
#     the start that refuses
CONF="flushInterval=60000
journalMaxSizeMB=16
zkTimeout=4000
gcWaitTime=600000
autoRecoveryDaemonEnabled=false" # what is damaged or missing is to stay so

prepare() { # three bookies; b1 has flushed logs, and as much again in its journal only; $pristine is a copy of it
  new_cluster
  local name
  for name in b1 b2 b3; do launch $name || die "$name does not start: $(tail -n 1 "$scratch/$name/log")"; done
  load --quorum 3/3/2 --seconds 60 --entries 6000 --ledger-entries 120 --deletes 0
  stop_bookie b1 || fault "a stop ended with $?"
  launch b1 || die "b1 does not start"
  load --quorum 3/3/2 --seconds 60 --entries 3000 --ledger-entries 120 --deletes 0
  local i
  for ((i = 0; i < open_logs; i++)); do # ledgers to recover, one log for each place that does so
    "$ACKED" load --log "$scratch/open.$i" --quorum 3/3/2 --leave-open --writers 1 --seconds 20 --entries 12 --ledger-entries 30 \
      >"$scratch/out" 2>&1 || fault "$(cat "$scratch/out")"
  done
  verified # closes what is to be closed
  sleep 0.3
  cat "$scratch"/acks "$scratch"/open.* >"$scratch/everything"
  out=$("$ACKED" census --log "$scratch/everything" --bookie "$(bookie_id b1)" --census "$scratch/census") || die "census: $out"
  say "$out"
  kill_bookie b1
  pristine=$scratch/pristine
  cp -a "$scratch/b1/data" "$pristine"
  next_open=0
}

files_of() { # kind: its files in b1's data, one a line
  case $1 in
    journal) find "$scratch/b1/data/journal" -name '*.bjl' -size +0 ;;
    entry-log) find "$scratch/b1/data/ledgers" -name '*.elog' ;;
    index) find "$scratch/b1/data/ledgers" -name state.redb ;;
    cookie) find "$scratch/b1/data" \( -name VERSION -o -name BINDERY \) ;;
  esac | sort
}

pick() { # kind: sets $file, one that has anything in it, and $used, how much
  local candidate candidates=()
  while read -r candidate; do
    [ "$("$ACKED" damage --used "$candidate")" -gt 0 ] && candidates+=("$candidate")
  done < <(files_of "$1")
  if [ ${#candidates[@]} -gt 0 ]; then
    file=${candidates[RANDOM % ${#candidates[@]}]}
    used=$("$ACKED" damage --used "$file")
    return 0
  fi
  die "no $1 file with anything in it in $scratch/b1/data"
}

restore() { # puts the same data back; the session stays the last one, so that nobody waits for it to expire
  local session=$scratch/b1/data/journal/current/SESSION
  cp -f "$session" "$scratch/session" 2>/dev/null
  rm -rf "$scratch/b1/data"
  cp -a "$pristine" "$scratch/b1/data"
  [ ! -f "$scratch/session" ] || cp -f "$scratch/session" "$session"
}

recheck() { # asks b1 for everything it had; sets $same and $errors
  out=$("$ACKED" recheck --log "$scratch/everything" --bookie "$(bookie_id b1)" --census "$scratch/census" 2>&1) || {
    if [ -n "$limit" ] && [ "$(field changed "$out")" = 0 ]; then
      tally[limit]=$((${tally[limit]:-0} + 1)) same=$(field same "$out") errors=$(field errors "$out")
      return
    fi
    fault "$where: $(head -n 2 <<<"$out" | tr '\n' ' ') $(tail -n 1 <<<"$out")"
    lost=$((lost + $(field negative "$out") + $(field changed "$out")))
  }
  same=$(field same "$out") errors=$(field errors "$out")
  [ "$(field unreachable "$out")" = 0 ] || fault "$where: $(tail -n 1 <<<"$out")"
}

for_clients() { # V with b1 as it is, and a recovery
  verified --patience 3 || say "at $where"
  if [ $((places_done % 4)) = 0 ] && [ $next_open -lt $open_logs ]; then
    out=$("$ACKED" verify --log "$scratch/open.$next_open" --patience 3 2>&1) || fault "$where: recovery: $(tail -n 3 <<<"$out" | tr '\n' ' ')"
    next_open=$((next_open + 1))
  fi
}

reported() { # name of the file, text: does the text name it and say what to do
  grep -qF "$(basename "$1")" <<<"$2" && grep -qi 'do: \|restore\|mount\|bindery \|directory' <<<"$2"
}

# place KIND offline|live: one damage and all that must hold
place() {
  local kind=$1 mode=$2 verdict limit=
  restore
  if [ "$mode" = live ]; then launch b1 || { fault "the undamaged bookie does not start: $(tail -n 1 "$scratch/b1/log")"; return; }; fi
  pick "$kind"
  damage_one "$file" "$used"
  injections=$((injections + 1)) runs=$((runs + 1)) places_done=$((places_done + 1))
  where="$kind $mode $(basename "$file"): $what"
  # Nothing tells that a newest journal file was there, with its header (docs/guide/verify.md, Limits): counted by itself.
  if [ "$kind" = journal ] && [ "$mode" = offline ]; then
    case $what in deleted*) limit=1 ;; cut*) [ "$(stat -c %s "$file")" -ge 4096 ] || limit=1 ;; esac
  fi
  if [ "$mode" = live ]; then
    recheck; for_clients; no_panic b1
    if is_alive "${pid_of[b1]}"; then
      stop_bookie b1; rc=$?
      case $rc in 0|1|4) ;; *) fault "$where: the stop ended with $rc: $(tail -n 2 "$scratch/b1/log" | cut -c1-300)" ;; esac
    else
      wait "${pid_of[b1]}"; rc=$?; pid_of[b1]=; ended_as_documented b1 $rc
    fi
    no_panic b1
  fi
  out=$("$BINDERY" verify "$scratch/b1/data" 2>&1); verdict=$?
  case $verdict in
    0) ;;
    9) tally[reported]=$((${tally[reported]:-0} + 1)); reported "$file" "$out" || [ "$mode" = live ] || fault "$where: verify does not name the file and what to do: $(grep ^damage <<<"$out" | head -n 2)" ;;
    *) grep -q '^bindery: ' <<<"$out" || fault "$where: verify ended with $verdict: $(tail -n 2 <<<"$out")" ;;
  esac
  if launch b1; then
    restarts+=("$took")
    recheck
    [ $verdict != 0 ] || [ "$errors" = 0 ] || fault "$where: verify finds nothing, and $errors entries cannot be read"
    for_clients; no_panic b1
    stop_bookie b1; rc=$?
    case $rc in 0|4) ;; *) fault "$where: the stop ended with $rc: $(tail -n 2 "$scratch/b1/log" | cut -c1-300)" ;; esac
    tally[served]=$((${tally[served]:-0} + 1))
  else
    ended_as_documented b1 $rc
    tally[refused]=$((${tally[refused]:-0} + 1))
    grep '^bindery: ' "$scratch/b1/log" >"$scratch/said"
    # The directory is enough where a file of it is gone.
    grep -qF -e "$(basename "$file")" -e "$scratch/b1/data" "$scratch/said" || fault "$where: the refused start names no file: $(cut -c1-300 "$scratch/said")"
    [ $verdict != 0 ] || fault "$where: verify finds nothing, and the start is refused: $(cut -c1-300 "$scratch/said")"
    for_clients
  fi
}

damage_one() { # file, used bytes: two bits, two sectors, a cut; every tenth time the file is gone. Sets $what
  local at
  case $((places_done % 5)) in
    0|1) at=$(below $(($2 * 8))); "$ACKED" damage "$1" --bit "$at"; what="bit $at (byte $((at / 8)))" ;;
    2|3) at=$(below $((($2 + 511) / 512))); "$ACKED" damage "$1" --sector "$at"; what="sector $at (byte $((at * 512)))" ;;
    *)
      if [ $((places_done % 10)) = 9 ]; then rm "$1"; what="deleted, $2 bytes"; else
        at=$(below "$2"); truncate -s "$at" "$1"; what="cut at byte $at of $2"
      fi ;;
  esac
}

damage_all() { # places for each kind, id, offline or live
  local kind i before kinds=(journal entry-log index cookie)
  declare -gA tally=()
  places_done=0 open_logs=$(($1 * ${#kinds[@]} / 4 + 1))
  [ $open_logs -lt 40 ] || open_logs=40
  prepare
  for kind in "${kinds[@]}"; do
    before=$faults_found
    for ((i = 0; i < $1; i++)); do
      place "$kind" "$3"
      [ $((faults_found - before)) -lt 6 ] || { say "$kind $3: stopped after $((i + 1)) places"; break; }
    done
    say "$kind $3: $i places, $((faults_found - before)) faults; so far served ${tally[served]:-0}, refused ${tally[refused]:-0}, reported by verify ${tally[reported]:-0}"
  done
  report "$2" "one bookie of three; it served after ${tally[served]:-0} of them, refused to start after ${tally[refused]:-0}, verify reported ${tally[reported]:-0}${tally[limit]:+; ${tally[limit]} times the newest journal file was gone and nobody noticed: see Limits}"
}
