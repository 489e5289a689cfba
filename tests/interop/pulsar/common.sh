# sourced by the scripts beside it, after ../lib.sh: a broker of Pulsar and the client that takes orders
need_pulsar() { # version: sets the array $jvm
  local jars=$interop/pulsar/target/jars-$1
  [ -f "$jars/pulsar-harness-1.jar" ] || die "no jars of Pulsar $1; run: tests/interop/pulsar/build $1"
  # An array and no function: what is started in the background must have the pid of the JVM.
  # shellcheck disable=SC2206
  jvm=("$JAVA" ${PEER_JVM_FLAGS:-} -Dlog4j2.configurationFile="$peer/conf/log4j2.xml" -Dio.netty.leakDetectionLevel=disabled
    --add-opens=java.base/jdk.internal.platform=ALL-UNNAMED --add-opens=java.base/sun.net=ALL-UNNAMED
    --add-opens=java.management/sun.management=ALL-UNNAMED -cp "$jars/*")
}

broker_ready() { ask "${web##*:}" 'GET /admin/v2/brokers/health HTTP/1.0\r\n\r\n' | grep -q '^ok'; }
start_broker() { # configuration file, at $service and $web: sets $broker
  mkdir -p "$scratch/broker"
  "${jvm[@]}" -Dpeer.log.level=info -Dpeer.dir="$scratch/broker" -Xmx512m -XX:MaxDirectMemorySize=512m org.apache.pulsar.PulsarBrokerStarter \
    -c "$1" >>"$scratch/broker/log" 2>&1 </dev/null &
  broker=$!
  disown # its end is reported by the script, not by the shell
  echo $broker >"$scratch/broker/pid"
  started+=("$scratch/broker")
  wait_ready 120 $broker "$scratch/broker/log" port_open "${service##*:}"
  wait_for 120 "the broker is healthy" broker_ready
}

start_client() { # at $service and $web
  coproc CLIENT { exec "${jvm[@]}" -Dpeer.log.level=error -Xmx256m -XX:MaxDirectMemorySize=512m pulsar.Topics --service "pulsar://$service" --admin "http://$web" 2>"$scratch/client.log"; }
  # Copies, which subshells have, too.
  exec {to_client}>&"${CLIENT[1]}" {from_client}<&"${CLIENT[0]}"
}
say() { # order: sets $answer to what follows ok
  echo "$*" >&"$to_client"
  local line
  read -r -t 300 line <&"$from_client" || { tail -n 5 "$scratch/client.log" >&2; die "the client, asked to $*: no answer in 300 s"; }
  [ "${line%% *}" = ok ] || die "the client, asked to $*: $line"
  answer=${line#ok}; answer=${answer# }
}
