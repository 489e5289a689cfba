# sourced by the scripts beside it
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BK_VERSION=${BK_VERSION:-4.18.0}
PEER_JARS=${PEER_JARS:-$here/target/jars-$BK_VERSION}
JAVA=${JAVA_HOME:+$JAVA_HOME/bin/}java

die() { echo "${0##*/}: $*" >&2; exit 1; }

check_jars() {
  [ -d "$PEER_JARS" ] || die "no jars in $PEER_JARS; run: mvn -q -B package${BK_VERSION:+ -Dbookkeeper.version=$BK_VERSION}"
}

run_java() { # options and class; client side logging (errors only, unless PEER_LOG_LEVEL says otherwise) to stderr
  # shellcheck disable=SC2086
  "$JAVA" ${PEER_JVM_FLAGS:-} -Dpeer.log.level="${PEER_LOG_LEVEL:-error}" -Dlog4j2.configurationFile="$here/conf/log4j2.xml" -cp "$PEER_JARS/*" "$@"
}

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

ask() { # port, text to send: prints the reply (2 s at most)
  timeout 2 bash -c 'exec 3<>"/dev/tcp/127.0.0.1/$0" || exit 1; printf "$1" >&3; cat <&3' "$1" "$2" 2>/dev/null
}

is_ours() { # pid, data dir: the process is alive and carries that directory, or its file, on its command line (java, bindery or coordinator)
  [ -r "/proc/$1/cmdline" ] &&
    tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null | grep -qF -e "-Dpeer.dir=$2 " -e " $2/data " -e " $2/bookie.conf "
}

free_port() { # prints a port that nothing listens on, at or above $1, not in the ephemeral range of outgoing connections
  local p=$1
  while port_open "$p"; do p=$((p + 1)); done
  echo "$p"
}

check_free() { # pid file, data dir, ports...
  local pidfile=$1 dir=$2 p; shift 2
  if [ -f "$pidfile" ] && is_ours "$(cat "$pidfile")" "$dir"; then die "already running in $dir (pid $(cat "$pidfile"))"; fi
  rm -f "$pidfile"
  for p in "$@"; do port_open "$p" && die "port $p is already in use"; done
  return 0
}

wait_ready() { # seconds, pid, log file, command...: polls until the command succeeds
  local limit=$1 pid=$2 log=$3 t0=$SECONDS; shift 3
  until "$@"; do
    kill -0 "$pid" 2>/dev/null || { tail -n 20 "$log" >&2; die "process $pid ended before it was ready (see $log)"; }
    if [ $((SECONDS - t0)) -ge "$limit" ]; then
      tail -n 20 "$log" >&2; kill "$pid" 2>/dev/null; die "not ready after $limit s, stopped (see $log)"
    fi
    sleep 0.2
  done
}
