#!/bin/sh
# Whether the bookie writes and reads.
exec /opt/bookkeeper/bin/bookkeeper shell bookiesanity
