#!/bin/sh
# entrypoint.sh: prepares settings and metadata as the image apache/bookkeeper does, then runs `bookkeeper "$@"`.
#
#   entrypoint.sh bookie | autorecovery | standalone | COMMAND [ARGUMENT...]
set -eu
: "${BK_DATA_DIR:=/data/bookkeeper}" "${BK_CLUSTER_ROOT_PATH:=}"
export BK_bookiePort="${BK_bookiePort:-${PORT0:-${BOOKIE_PORT:-3181}}}"
export BK_journalDirectory="${BK_journalDirectory:-$BK_DATA_DIR/journal}"
export BK_ledgerDirectories="${BK_ledgerDirectories:-$BK_DATA_DIR/ledgers}"
export BK_zkLedgersRootPath="${BK_zkLedgersRootPath:-$BK_CLUSTER_ROOT_PATH/ledgers}"
if [ -z "${BK_metadataServiceUri:-}" ] && [ -n "${BK_zkServers:-}" ]; then
  BK_metadataServiceUri=zk+hierarchical://$(echo "$BK_zkServers" | tr , ';')$BK_zkLedgersRootPath
  export BK_metadataServiceUri
fi
bookkeeper=/opt/bookkeeper/bin/bookkeeper
what=${1:-bookie}
case $what in
  /opt/bookkeeper/bin/bookkeeper) shift; what=${1:-bookie} ;;
esac
case $what in
  bookie | autorecovery)
    # Several may do this at once: one of them creates the metadata.
    until "$bookkeeper" shell metaformat -nonInteractive; do
      # A wrong configuration gets no better.
      [ $? -ne 2 ] || exit 2
      sleep 5
    done
    exec "$bookkeeper" "$@" ;;
  standalone | localbookie) exec "$bookkeeper" "$@" ;;
  zookeeper)
    echo "entrypoint.sh zookeeper: this image has no ZooKeeper; use the image zookeeper, or bindery standalone --bookies 0" >&2
    exit 2 ;;
  *) exec "$@" ;;
esac
