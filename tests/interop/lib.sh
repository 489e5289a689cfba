# sourced by the scripts beside it and by benchmarks: one scratch folder, servers that end with the script, ports that nothing else uses
interop=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repo=$(cd "$interop/../.." && pwd)
peer=$interop/peer
. "$peer/common.sh"
# The build of the tests, which checks itself; what measures sources this with $BINDERY set to a release.
export BINDERY=${BINDERY:-${CARGO_TARGET_DIR:-$repo/target}/debug/bindery}
# Ports are looked for from here on. Below the range of outgoing connections; each script has a hundred of its own, for as long as it
# or a server that it started holds the lock.
claim_ports() {
  local base
  for ((base = 20000; base < 32000; base += 100)); do
    { exec {port_lock}>>"/tmp/bindery-ports-$base.lock"; } 2>/dev/null || continue # another user's
    flock -n "$port_lock" && { next_port=$base; return; }
    exec {port_lock}>&-
  done
  die "no hundred ports are free: /tmp/bindery-ports-*.lock are all held"
}
if [ -n "${INTEROP_PORT_BASE:-}" ]; then next_port=$INTEROP_PORT_BASE; else claim_ports; fi
started=()

make_scratch() { # name: makes $scratch, removed at the end unless the script fails or KEEP is set
  mkdir -p "${INTEROP_DIR:-$repo/.interop}" || die "cannot make ${INTEROP_DIR:-$repo/.interop}"
  # `cd ''` succeeds where it is: a directory that could not be made must end the script here, because $scratch is removed at the end.
  scratch=$(mktemp -d "${INTEROP_DIR:-$repo/.interop}/$1.XXXXXX") && [ -d "$scratch" ] || die "cannot make a directory in ${INTEROP_DIR:-$repo/.interop}"
  # As the start scripts name it on command lines, by which servers are told from others.
  scratch=$(cd "$scratch" && pwd) || exit 1
  trap 'finish $?' EXIT
  trap 'exit 130' INT TERM
}

finish() { # exit code: ends every server of this script, whatever happened
  trap - EXIT INT TERM
  # What has ended by itself is no failure.
  set +e
  local d pid
  for d in ${started[@]+"${started[@]}"}; do
    [ -f "$d/pid" ] && pid=$(cat "$d/pid") && is_ours "$pid" "$d" && kill -9 "$pid" 2>/dev/null
  done
  for pid in $(jobs -p); do kill "$pid" 2>/dev/null; kill -CONT "$pid" 2>/dev/null; done
  wait 2>/dev/null
  if [ "$1" = 0 ] && [ -z "${KEEP:-}" ]; then rm -rf "$scratch"; else echo "kept: $scratch" >&2; fi
  exit "$1"
}

# A killed process is a zombie before its last thread has ended, and until then its files and ports are open.
is_alive() {
  [ -n "${1:-}" ] && kill -0 "$1" 2>/dev/null || return 1
  local tasks=("/proc/$1/task/"*)
  ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>/dev/null || [ ${#tasks[@]} -gt 1 ]
}

wait_gone() { # pid, seconds: true when it has ended
  local t0=$SECONDS
  while is_alive "$1"; do [ $((SECONDS - t0)) -lt "${2:-20}" ] || return 1; sleep 0.02; done
}

wait_for() { # seconds, what, command...: dies when it does not succeed in time
  local limit=$((SECONDS + $1)) what=$2; shift 2
  until "$@"; do [ $SECONDS -lt $limit ] || die "not yet after $SECONDS s: $what"; sleep 0.1; done
}

take_port() { # sets $port to a free port
  port=$(free_port $next_port)
  next_port=$((port + 1))
}

take_ports() { # count: sets $port to the first of so many consecutive free ports
  local first p
  take_port; first=$port
  while [ "$next_port" -lt $((first + $1)) ]; do
    p=$next_port; take_port
    [ "$port" = "$p" ] || first=$port
  done
  port=$first
}

need_jars() { # versions...
  local v
  for v in "$@"; do
    [ -f "$peer/target/jars-$v/peer-harness-1.jar" ] || die "no jars of $v; run: tests/interop/peer/build $v"
  done
}

# The commands of a page of the guide: the sh block behind each "<!-- step: NAME -->" is done by `step NAME`, in $scratch, in a subshell that has the
# functions of the script.
used_steps=()
read_page() { # file: sets $page
  page=$1
  awk -v dir="$scratch" '
    /^<!-- step: / { name = $3; next }
    /^```sh$/ && name != "" { file = dir "/step." name; printf "" >file; inside = 1; next }
    /^```/ { inside = 0; name = ""; next }
    inside { print >file }' "$page"
}
step() { # name [codes that are no failure]: does what the page says there; sets $code; but for the step that $left_out names
  [ -s "$scratch/step.$1" ] || die "$page has no step $1"
  used_steps+=("$1")
  code=0
  [ "$1" != "${left_out:-}" ] || { echo "    left out: $1"; return 0; }
  echo "    $1"
  # A command that fails ends the step. Behind || it would not.
  set +e; (set -e; cd "$scratch"; . "$scratch/step.$1") >"$scratch/said.$1" 2>&1; code=$?; set -e
  [[ " 0 ${2:-} " = *" $code "* ]] || { cat "$scratch/said.$1" >&2; die "the step $1 failed, with OLD=${OLD-} NEW=${NEW-}"; }
}
all_steps_done() { # [those that may be left out]
  local name
  for name in "$scratch"/step.*; do
    name=${name##*/step.}
    [[ " ${used_steps[*]} $* " = *" $name "* ]] || die "no step of the test is $name of $page"
  done
}

# A cell of docs/reference/compatibility.md was tested just now: ./test names the file. A script says before which cells it has, in a line
# "# proves PRODUCT: COLUMN...", by which tests/compatibility finds cells that have lost their test.
proved() { # product, version, columns...
  local product=$1 version=$2 column; shift 2
  for column in "$@"; do
    grep -q "^# proves $product:.* $column\( \|\$\)" "$0" || die "$0 does not say that it proves $column of $product"
    [ -z "${BINDERY_PROVED:-}" ] || printf '%s\t%s\t%s\t%s\n' "$product" "$version" "$column" "$(date -u +%F)" >>"$BINDERY_PROVED"
  done
}

need_bindery() { [ -x "$BINDERY" ] || die "no binary at $BINDERY; run: cargo build, with --release for a benchmark"; }

# What scripts ask ZooKeeper itself, beyond the words that it answers by default here.
zk_words=4lw.commands.whitelist=ruok,srvr,stat,isro,mntr,srst,dump
start_zk() { # further options: sets $zk
  take_port
  zk=127.0.0.1:$port
  started+=("$scratch/zk")
  BK_VERSION=4.18.0 "$peer/start-zookeeper" --data "$scratch/zk" --port "$port" "$@" >"$scratch/zk.out" 2>&1 ||
    { cat "$scratch/zk.out" >&2; exit 1; }
}

start_java() { # name, further options of start-java-bookie: sets $bookie (host:port) and $admin
  local name=$1 p; shift
  take_port; p=$port; take_port; admin=127.0.0.1:$port
  bookie=127.0.0.1:$p
  started+=("$scratch/$name")
  "$peer/start-java-bookie" --data "$scratch/$name" --zk "$zk" --port "$p" --metrics-port "$port" --heap "${JAVA_HEAP:-512m}" \
    --direct "${JAVA_DIRECT:-1g}" "$@" >"$scratch/$name.out" 2>&1 || { cat "$scratch/$name.out" >&2; exit 1; }
}

start_bindery() { # name, further options of start-bindery-bookie: sets $bookie and $admin
  local name=$1 p; shift
  take_port; p=$port; take_port; admin=127.0.0.1:$port
  bookie=127.0.0.1:$p
  started+=("$scratch/$name")
  "$peer/start-bindery-bookie" --data "$scratch/$name" --zk "$zk" --port "$p" --admin-port "$port" "$@" \
    >"$scratch/$name.out" 2>&1 || { cat "$scratch/$name.out" >&2; exit 1; }
}

write_java_conf() { # key=value...: what Java's daemon and shell read, in $scratch/java.conf, for the cluster at $BINDERY_METADATA
  { printf 'metadataServiceUri=%s\nallowLoopback=true\nadvertisedAddress=127.0.0.1\nuseHostNameAsBookieID=false\n' "$BINDERY_METADATA"
    printf 'httpServerEnabled=false\nlostBookieRecoveryDelay=0\n'
    printf '%s\n' "$@"; } >"$scratch/java.conf"
}

# Java's AutoRecovery by $scratch/java.conf: sets $autorecovery to its pid, and returns when it stands for election. Its log is
# $scratch/auto/log; one at a time.
start_autorecovery() { # [options of the JVM]
  local votes
  mkdir -p "$scratch/auto" || die "cannot make $scratch/auto"
  started+=("$scratch/auto")
  votes=$(auditor_votes)
  # shellcheck disable=SC2086
  "$JAVA" ${PEER_JVM_FLAGS:-} -Dpeer.dir="$scratch/auto" -Xmx256m -Dio.netty.leakDetectionLevel=disabled -Dpeer.log.level=info \
    -Dlog4j2.configurationFile="$peer/conf/log4j2.xml" "$@" -cp "$PEER_JARS/*" \
    org.apache.bookkeeper.replication.AutoRecoveryMain --conf "$scratch/java.conf" >>"$scratch/auto/log" 2>&1 </dev/null &
  autorecovery=$!
  echo $autorecovery >"$scratch/auto/pid"
  disown # its end is reported by the script, not by the shell
  one_vote_more() { [ "$(auditor_votes)" -gt "$votes" ]; }
  wait_ready 60 $autorecovery "$scratch/auto/log" one_vote_more
}
auditor_votes() { ask "${zk##*:}" dump | grep -c '/underreplication/auditorelection/V_' || true; }

start_standalone() { # name, bookies, further options: sets $zk, and $bookie and $admin of the first bookie
  local name=$1 count=$2 dir=$scratch/$1 p; shift 2
  take_port; zk=127.0.0.1:$port
  take_ports "$count"; p=$port; take_ports "$count"; admin=127.0.0.1:$port
  bookie=127.0.0.1:$p
  started+=("$dir")
  mkdir -p "$dir" || die "cannot make $dir"
  "$BINDERY" standalone --data "$dir/data" --bookies "$count" --bookie-port "$p" --coordinator-port "${zk##*:}" --oxia-port "${oxia_port:-0}" \
    --admin-port "$port" "$@" >>"$dir/log" 2>&1 </dev/null &
  echo $! >"$dir/pid"
  disown # its end is reported by the script, not by the shell
  wait_ready 180 "$(cat "$dir/pid")" "$dir/log" grep -q '^  to stop' "$dir/log"
}

# moto, from PyPI: a server that speaks S3's protocol. Sets $moto_python; installed once for each target directory, because it takes a minute.
need_moto() {
  local version=5.2.5 python=${BINDERY_PYTHON:-python3} home
  "$python" -c 'import venv, ensurepip' || die "Python with venv is missing: apt-get install python3 python3-venv"
  home=${CARGO_TARGET_DIR:-$repo/target}/moto-$version
  if [ ! -f "$home/complete" ]; then
    rm -rf "$home" && "$python" -m venv "$home" || die "cannot make $home"
    PIP_DISABLE_PIP_VERSION_CHECK=1 "$home/bin/pip" install -q "moto[s3,server]==$version" || die "cannot install moto"
    touch "$home/complete"
  fi
  moto_python=$home/bin/python
}

# Prometheus, from the PATH, or Debian's package unpacked beside the build: nothing is installed. Sets $prometheus_bin, where it and promtool
# are.
need_prometheus() {
  local home=${CARGO_TARGET_DIR:-$repo/target}/prometheus
  if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    prometheus_bin=$(dirname "$(command -v prometheus)")
    return
  fi
  prometheus_bin=$home/usr/bin
  [ ! -x "$prometheus_bin/promtool" ] || return 0
  command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || die "prometheus is missing, and this system has no packages of Debian"
  mkdir -p "$home" || die "cannot make $home"
  (
    # One script at a time.
    flock 9
    [ ! -x "$prometheus_bin/promtool" ] || exit 0
    cd "$home" && rm -f -- *.deb || exit 1
    apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; } || exit 1
    dpkg-deb -x prometheus_*.deb . && rm -f -- *.deb
  ) 9>"$home/lock" >"$home/log" 2>&1 || { cat "$home/log" >&2; die "cannot get prometheus from Debian"; }
}

start_prometheus() { # directory; its configuration comes on standard input: sets $prometheus (host:port)
  local dir=$1
  mkdir -p "$dir" || die "cannot make $dir"
  cat >"$dir/prometheus.yml"
  take_port
  prometheus=127.0.0.1:$port
  "$prometheus_bin/prometheus" --config.file "$dir/prometheus.yml" --storage.tsdb.path "$dir/data" --web.listen-address "$prometheus" \
    --log.level warn >"$dir/log" 2>&1 </dev/null &
  prometheus_ready() { ask "${prometheus##*:}" 'GET /-/ready HTTP/1.0\r\n\r\n' | grep -q ' 200 '; }
  wait_ready 60 $! "$dir/log" prometheus_ready
}

# Sets $s3_server, $moto_pid and the array $s3_env, the environment of a command that is to reach it. It takes one request at a
# time: with several it loses updates of a compare-and-swap, which `bindery tier check` finds now and then.
start_moto() { # log file
  need_moto
  take_port
  s3_server=127.0.0.1:$port
  "$moto_python" - "$port" >"$1" 2>&1 <<'PYTHON' &
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app), threaded=False)
PYTHON
  moto_pid=$!
  moto_ready() { port_open "${s3_server##*:}"; }
  wait_ready 120 $moto_pid "$1" moto_ready
  s3_env=(AWS_ACCESS_KEY_ID=key AWS_SECRET_ACCESS_KEY=words-of-a-secret AWS_REGION=us-east-1 "AWS_ENDPOINT_URL=http://$s3_server" AWS_ALLOW_HTTP=true)
}

make_bucket() { # name, at $s3_server
  "$moto_python" - "$s3_server" "$1" <<'PYTHON' || die "cannot make the bucket $1"
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1])
connection.request("PUT", "/" + sys.argv[2], headers={"Authorization": "AWS4-HMAC-SHA256 Credential=key/20200101/us-east-1/s3/aws4_request"})
sys.exit(connection.getresponse().status != 200)
PYTHON
}

collect() { # admin port: has the bookie collect its garbage, with a major compaction
  ask "${1##*:}" 'PUT /api/v1/bookie/gc HTTP/1.0\r\nContent-Length: 19\r\n\r\n{"forceMajor":true}' | grep -q Triggered
}
metric() { # name, admin ports: the sum of its series on all of them
  local name=$1 admin tries; shift
  for admin in "$@"; do
    # A port that does not answer in time is no zero.
    for ((tries = 0; tries < 10; tries++)); do ask "${admin##*:}" 'GET /metrics HTTP/1.0\r\n\r\n' >"$scratch/metrics" && break; sleep 0.5; done
    [ $tries -lt 10 ] || die "no metrics from $admin"
    cat "$scratch/metrics"
  done | awk -v name="$name" '{ split($1, of, "{"); if (of[1] == name) sum += $2 } END { printf "%.0f\n", sum }'
}

# The value of a name in a line of JSON; for benchmarks.
field() { sed -n "s/.*\"$1\": \{0,1\}\([^,}]*\).*/\1/p" <<<"$2"; } # name, JSON

# Authorities and certificates of openssl, in $scratch: NAME.pem and NAME.key.
openssl_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
authority() { # name
  openssl req -x509 "${openssl_key[@]}" -days 2 -keyout "$scratch/$1.key" -out "$scratch/$1.pem" -subj "/CN=$1" 2>>"$scratch/openssl.log" ||
    die "openssl cannot make the authority $1"
}
certificate() { # name, use, authority, names (default: of this machine), subject (default: /CN=NAME)
  printf 'subjectAltName=%s\nextendedKeyUsage=%s\n' "${4:-DNS:localhost,IP:127.0.0.1}" "$2" >"$scratch/$1.ext"
  { openssl req "${openssl_key[@]}" -keyout "$scratch/$1.key" -out "$scratch/$1.csr" -subj "${5:-/CN=$1}" &&
    openssl x509 -req -in "$scratch/$1.csr" -CA "$scratch/$3.pem" -CAkey "$scratch/$3.key" -CAcreateserial -days 2 \
      -extfile "$scratch/$1.ext" -out "$scratch/$1.pem"; } 2>>"$scratch/openssl.log" || die "openssl cannot make $1"
}
