import java.nio.file.*;
import java.util.*;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.api.DigestType;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.zookeeper.ZooKeeper;

/** Creates ledgers with the Java client in each metadata version and dumps the bytes of their nodes. */
public final class CaptureVectors {
    static ZooKeeper zk;
    static Path out;
    static void dump(String name, String path) throws Exception {
        byte[] b = zk.getData(path, false, null);
        Files.write(out.resolve(name), b);
        System.out.println(name + " " + path + " " + b.length);
    }
    static void cookie(String name, boolean indexDirs) throws Exception {
        Cookie.Builder b = Cookie.newBuilder().setLayoutVersion(5).setBookieId("bookie-1:3181").setJournalDirs("/data/j1,/data/j 2")
            .setLedgerDirs(Cookie.encodeDirPaths(new String[] {"/data/l1", "/data/\u00e4\"2"}));
        if (indexDirs) b.setIndexDirs(Cookie.encodeDirPaths(new String[] {"/data/i1"})).setInstanceId("d7bb00d0-7908-4e9f-8fbe-f76db8e07af4");
        Files.write(out.resolve(name), b.build().toString().getBytes("UTF-8"));
    }
    static String path(long id) {
        String s = String.format("%010d", id);
        return "/ledgers/" + s.substring(0,2) + "/" + s.substring(2,6) + "/L" + s.substring(6);
    }
    public static void main(String[] a) throws Exception {
        String server = a[0]; out = Paths.get(a[1]);
        zk = new ZooKeeper(server, 10000, e -> {});
        DigestType[] types = {DigestType.CRC32, DigestType.MAC, DigestType.CRC32C, DigestType.DUMMY};
        for (int version = 1; version <= 3; version++) {
            ClientConfiguration conf = new ClientConfiguration();
            conf.setMetadataServiceUri("zk+hierarchical://" + server + "/ledgers");
            conf.setLedgerMetadataFormatVersion(version);
            conf.setStoreSystemtimeAsLedgerCreationTime(version != 2);
            try (org.apache.bookkeeper.client.api.BookKeeper bk = org.apache.bookkeeper.client.api.BookKeeper.newBuilder(conf).build()) {
                for (DigestType t : types) {
                    if (version == 1 && t != DigestType.CRC32) continue;
                    Map<String, byte[]> custom = new LinkedHashMap<>();
                    if (version > 1) { custom.put("application", "pulsar".getBytes("UTF-8")); custom.put("binary", new byte[]{0, (byte) 0xff, 10, 34, 39, 92}); }
                    byte[] pw = t == DigestType.DUMMY ? new byte[0] : ("se\"cr\u00e9t\t" + t).getBytes("UTF-8");
                    WriteHandle w = bk.newCreateLedgerOp().withEnsembleSize(1).withWriteQuorumSize(1).withAckQuorumSize(1)
                        .withDigestType(t).withPassword(pw).withCustomMetadata(custom).execute().get();
                    dump("v" + version + "-" + t + "-open", path(w.getId()));
                    w.append("hello".getBytes());
                    w.append("world!".getBytes());
                    w.close();
                    dump("v" + version + "-" + t + "-closed", path(w.getId()));
                }
            } catch (Exception e) { System.out.println("version " + version + ": " + e); e.printStackTrace(); }
        }
        cookie("cookie-plain", false);
        cookie("cookie-index-dirs", true);
        dump("layout", "/ledgers/LAYOUT");
        dump("instanceid", "/ledgers/INSTANCEID");
        for (String c : zk.getChildren("/ledgers/available", false)) if (!c.equals("readonly")) dump("service-info", "/ledgers/available/" + c);
        zk.close();
        System.exit(0);
    }
}
