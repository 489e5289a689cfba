package peer;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.SplittableRandom;

/** Entry payloads that can be made again from (seed, entry): sizes log-uniform from 0 B to 1 MiB, contents pseudo-random. */
final class Payload {
    static final int SIZE_MAX = 1 << 20;

    private final long seed;
    private final int[] sizes;
    final long bytes;

    /** Draws {@code count} sizes; those that would take the sum above an even share of {@code bytesMax} become small ones. */
    Payload(long seed, int count, long bytesMax) {
        this.seed = seed;
        sizes = new int[count];
        SplittableRandom rnd = new SplittableRandom(seed);
        long total = 0;
        for (int i = 0; i < count; i++) {
            int size = (int) Math.exp(rnd.nextDouble() * Math.log(SIZE_MAX + 1.0)) - 1;
            if (i == 0) {
                size = 0;
            } else if (i == 1) {
                size = SIZE_MAX;
            } else if (total + size > (double) bytesMax * (i + 1) / count) {
                size &= 255;
            }
            sizes[i] = size;
            total += size;
        }
        bytes = total;
    }

    int count() {
        return sizes.length;
    }

    byte[] of(long entry) {
        return make(seed, entry, sizes[(int) entry]);
    }

    static byte[] make(long seed, long entry, int size) {
        SplittableRandom rnd = new SplittableRandom(seed * 0x9E3779B97F4A7C15L + entry);
        ByteBuffer b = ByteBuffer.allocate(size);
        while (b.remaining() >= 8) {
            b.putLong(rnd.nextLong());
        }
        while (b.hasRemaining()) {
            b.put((byte) rnd.nextInt());
        }
        return b.array();
    }

    /** Null if {@code got} is the payload of the entry, or what is wrong with it. */
    String fault(long entry, byte[] got) {
        byte[] want = of(entry);
        if (Arrays.equals(want, got)) {
            return null;
        }
        if (want.length != got.length) {
            return "entry " + entry + " has " + got.length + " bytes instead of " + want.length;
        }
        return "entry " + entry + " of " + want.length + " bytes differs first at byte " + Arrays.mismatch(want, got);
    }
}
