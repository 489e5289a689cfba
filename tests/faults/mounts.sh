# sourced by faults that mount: a mount namespace of their own, so that nothing of it outlives them, and its end
if [ -z "${FAULTS_INSIDE:-}" ]; then
  [ "$(id -u)" = 0 ] || die "this fault mounts file systems: run it as root"
  FAULTS_INSIDE=1 exec unshare -m "$0" "$@"
fi
loops=() daemons=()
release() {
  local l p name
  for name in "${!pid_of[@]}"; do kill_bookie "$name"; done
  for p in ${daemons[@]+"${daemons[@]}"}; do kill -9 "$p" 2>/dev/null; done
  for p in $(awk -v s="$scratch/" 'index($2, s) == 1 {print $2}' /proc/mounts | tac); do umount -l "$p" 2>/dev/null; done
  for l in ${loops[@]+"${loops[@]}"}; do losetup -d "$l" 2>/dev/null; done
  loops=() daemons=()
}
release_at_end() { trap 'code=$?; release; finish $code' EXIT; } # after make_scratch

# loop_ext4 IMAGE SIZE DIR: a new ext4 of that size in a sparse file, mounted at DIR; sets $loop
loop_ext4() {
  truncate -s "$2" "$1" && mkfs.ext4 -q -F -m 0 -E lazy_itable_init=0,lazy_journal_init=0 -J size=4 "$1" || die "mkfs.ext4 failed on $1"
  loop=$(losetup -f --show "$1") || die "losetup failed: no loop device is free, or it is not allowed here"
  loops+=("$loop")
  mkdir -p "$3" && mount -t ext4 "$loop" "$3" || die "cannot mount $loop"
}
