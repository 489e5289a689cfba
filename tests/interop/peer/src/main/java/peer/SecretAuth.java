package peer;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import org.apache.bookkeeper.auth.AuthCallbacks.GenericCallback;
import org.apache.bookkeeper.auth.AuthToken;
import org.apache.bookkeeper.auth.BookKeeperPrincipal;
import org.apache.bookkeeper.auth.BookieAuthProvider;
import org.apache.bookkeeper.client.BKException;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.proto.BookieConnectionPeer;

/**
 * Lets clients in that know a secret (file peerSecretFile): hello, a challenge, its HMAC-SHA1 under the secret, welcome. The
 * client's side is crates/client/examples/hooks/secret.rs.
 */
public final class SecretAuth implements BookieAuthProvider.Factory {
    private static final byte[] HELLO = "hello".getBytes();
    private static final byte[] WELCOME = "welcome".getBytes();
    private static final SecureRandom RANDOM = new SecureRandom();
    private byte[] secret;

    @Override
    public void init(ServerConfiguration conf) throws IOException {
        secret = Files.readAllBytes(Path.of(conf.getString("peerSecretFile")));
    }

    @Override
    public String getPluginName() {
        return SecretAuth.class.getName();
    }

    @Override
    public BookieAuthProvider newProvider(BookieConnectionPeer peer, GenericCallback<Void> complete) {
        return new Connection(peer, complete);
    }

    private final class Connection implements BookieAuthProvider {
        private final BookieConnectionPeer peer;
        private final GenericCallback<Void> complete;
        /** What the client was asked, until it answers: it has one try. */
        private byte[] challenge;

        Connection(BookieConnectionPeer peer, GenericCallback<Void> complete) {
            this.peer = peer;
            this.complete = complete;
        }

        @Override
        public void process(AuthToken message, GenericCallback<AuthToken> answer) {
            byte[] said = message.getData();
            byte[] asked = challenge;
            challenge = null;
            if (asked == null && Arrays.equals(said, HELLO)) {
                challenge = new byte[16];
                RANDOM.nextBytes(challenge);
                answer.operationComplete(BKException.Code.OK, AuthToken.wrap(challenge));
            } else if (asked != null && MessageDigest.isEqual(said, mac(asked))) {
                peer.setAuthorizedId(new BookKeeperPrincipal("knows the secret"));
                answer.operationComplete(BKException.Code.OK, AuthToken.wrap(WELCOME));
                complete.operationComplete(BKException.Code.OK, null);
            } else {
                complete.operationComplete(BKException.Code.UnauthorizedAccessException, null);
                answer.operationComplete(BKException.Code.UnauthorizedAccessException, null);
            }
        }

        private byte[] mac(byte[] of) {
            try {
                Mac mac = Mac.getInstance("HmacSHA1");
                mac.init(new SecretKeySpec(secret, "HmacSHA1"));
                return mac.doFinal(of);
            } catch (GeneralSecurityException e) {
                throw new IllegalStateException(e);
            }
        }
    }
}
